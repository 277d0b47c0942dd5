"""StoreLine: this process's own connection to the run's store, on which no question waits for ever.

torch's client has no deadline of its own for most calls, and one that blocks (while gloo waits for an address, say)
holds up all others on the same client. So a thread with a client of its own asks, and a thread that wants to know waits
for it at most as long as the run waits for anything. A line that broke or was silent for so long stays lost: a store
that went away has forgotten what it was told.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from partreduce.runtime.transport.torch_api import PrefixStore, Store, TCPStore
from partreduce.runtime.transport.waiting import GLANCE_SECONDS, Deadline
from partreduce.runtime.transport.work import Background
from partreduce.topo.errors import StoreLostError

Answer = TypeVar("Answer")


class _Question:
    """What is asked, and what came back."""

    def __init__(self, action: Callable[[Store], Any]) -> None:
        self.action, self.answer, self.answered = action, None, False


class StoreLine:
    """A connection of its own to the store at `place`; `timeout` bounds every question, in seconds."""

    def __init__(self, place: str, connect: Callable[[], Store], timeout: float) -> None:
        self.place, self.timeout = place, timeout
        self.problem: str | None = None
        """Why the store is lost; None while it answers."""
        self._connect = connect
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        Background(self._run, name="partreduce-store", stop=self.close).start()

    def ask(self, action: Callable[[Store], Answer]) -> Answer:
        """What the action finds in the store.

        Raises:
            StoreLostError: the store is gone, or gave no answer within the timeout.
        """
        question = _Question(action)
        self._questions.put(question)
        deadline = Deadline(self.timeout)
        with self._changed:
            while not question.answered and self.problem is None:
                self._changed.wait(min(GLANCE_SECONDS, max(0.0, deadline.left)))
                if not question.answered and deadline.is_over:
                    self._lose(f"it gave no answer for {self.timeout:g} s")
        if question.answered:
            answer: Answer = question.answer  # type: ignore[assignment]  # what this very action returned
            return answer
        raise self.error()

    def error(self) -> StoreLostError:
        """The error of a line that is lost."""
        return StoreLostError(
            f"the store at {self.place} is gone ({self.problem}): the launcher or rank 0 hosts it, and without it "
            "workers cannot agree on anything; start the run again from its last checkpoint"
        )

    def close(self) -> None:
        """Ask nothing any more: this process ends."""
        self._lose("this process ends")
        self._questions.put(None)

    def _lose(self, problem: str) -> None:
        with self._changed:
            self.problem = self.problem or problem
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            store = self._connect()
            while self.problem is None and (question := self._questions.get()) is not None:
                question.answer = question.action(store)
                with self._changed:
                    question.answered = True
                    self._changed.notify_all()
        except RuntimeError as error:
            self._lose((str(error).strip().splitlines() or ["the connection broke"])[0][:120])


class NamedPrefixStore(PrefixStore):  # type: ignore[misc]  # torch's stubs do not export it
    """A PrefixStore that knows its prefix, so that a line to the bare server can use the same keys.

    Where workers are replicas it knows their `processes`, too: by worker the ranks under which a launcher knows them,
    first that of the process that meets the others in this store.
    """

    def __init__(self, prefix: str, below: Store, processes: dict[int, list[int]] | None = None) -> None:
        super().__init__(prefix, below)
        self.prefix, self.below = prefix, below
        self.processes = processes or {}


_lines: dict[tuple[str, int] | int, tuple[StoreLine, Store]] = {}
"""By address, or by identity for a store under a prefix that torch does not tell; the store is kept with its line."""
_making = threading.Lock()
os.register_at_fork(after_in_child=_lines.clear)  # a child has neither the thread nor a connection of its own


def line_to(store: Store) -> tuple[StoreLine, str] | None:
    """This process's line to the server of a store, and what stands before a key there.

    None for stores that live in memory or in a file, which cannot go away. The others are asked without a deadline.
    """
    root: Any = root_store(store)
    if not isinstance(root, TCPStore):
        return None
    base: Any
    base, prefix = _named(store)
    if base is not root and not hasattr(base, "clone"):
        return None  # older releases of torch cannot connect again under a prefix that they do not tell
    name: tuple[str, int] | int = (root.host, root.port) if base is root else id(base)
    with _making:
        if name not in _lines:
            timeout = root.timeout

            def connect() -> Store:
                other: Store = (
                    TCPStore(root.host, root.port, None, False, timeout, wait_for_workers=False)
                    if base is root
                    else base.clone()
                )
                return other

            _lines[name] = StoreLine(f"{root.host}:{root.port}", connect, timeout.total_seconds()), base
        return _lines[name][0], prefix


def fresh_line(store: Store, timeout: float) -> None:
    """From now on questions to this store have this timeout, and lines that were lost are tried afresh."""
    with _making:
        for name in [name for name, (line, _) in _lines.items() if line.problem is not None]:
            del _lines[name]
    if (known := line_to(store)) is not None:
        known[0].timeout = timeout


def root_store(store: Store) -> Store:
    """The store below all prefixes, where the launcher leaves word of workers that died."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def processes_of(store: Store, worker: int) -> list[int]:
    """The ranks under which a launcher knows the processes of a worker: one, except where workers are replicas."""
    while isinstance(store, NamedPrefixStore):
        if worker in store.processes:
            return store.processes[worker]
        store = store.below
    return [worker]


def _named(store: Store) -> tuple[Store, str]:
    """The store below the prefixes that we know, and those prefixes."""
    below: Any = store
    prefix = ""
    while isinstance(below, NamedPrefixStore):
        below, prefix = below.below, f"{below.prefix}/{prefix}"
    return below, prefix
