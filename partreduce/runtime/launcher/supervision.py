"""Supervise running workers: forward their output, report how a worker failed, and end the rest."""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from partreduce.runtime.launcher.log_multiplexer import ErrorDeduplicator
from partreduce.runtime.launcher.processes import Child, Line, Worker
from partreduce.runtime.launcher.signals import (
    Terminated,
    allow_signals,
    defer_signals,
    format_end,
    mark_delivered,
    reraise_pending,
    shell_exit_code,
)
from partreduce.runtime.liveness.wait_chain import format_workers
from partreduce.topo.errors import EvictedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partreduce.runtime.elastic.coordinator import FailureRule
    from partreduce.runtime.launcher.log_multiplexer import LogMultiplexer
    from partreduce.runtime.transport.torch_api import Store

CONSEQUENCE = UnavailableError.exit_code
"""Exit code of a worker that ended because another one is missing; either of the two may exit first."""
GRACE_SECONDS = 5.0  # after a failure, how long the other workers may report it before they are killed
ANSWER_SECONDS = 10.0  # after SIGKILL, how long a node may take to report that its workers have ended
LOOK_SECONDS = 0.05
CHILDREN_SECONDS = 2.0  # how long child processes of a failed worker may take to clean up


class Source(Protocol):
    """Interface of an object that the launcher reads from: a worker's output, or records of other nodes' launchers."""

    streams: dict[int, bytes]  # unfinished line by file descriptor

    def take(self, descriptor: int, *, last: bool = False) -> tuple[list[Line], bool]: ...


@dataclass(slots=True)
class Shutdown:
    """Orderly end of a run: after a failure or Ctrl-C (`request`), a grace period until `deadline`, SIGTERM, SIGKILL.

    `code` and `cause` are the run's exit code and the failure that ended it; `signals` are those still to be sent.
    """

    code: int = 0  # the run's exit code; 128 + signal, as in a shell
    cause: str = ""  # the failure that ended the run, as a clause
    request: int = 0  # the signal by which the user asked the run to end
    deadline: float = float("inf")
    signals: list[signal.Signals] = field(default_factory=lambda: [signal.SIGTERM, signal.SIGKILL])

    def begin(self, code: int, grace: float, cause: str = "") -> None:
        """Start a grace period of `grace` seconds; store `code` and `cause` unless the first cause is already known."""
        if not self.knows_cause and not self.has_signalled:
            self.code, self.cause = shell_exit_code(code), cause
        self.deadline = min(self.deadline, time.monotonic() + grace)

    def end_on_request(
        self, number: int, grace: float, workers: Sequence[Worker], outlet: LogMultiplexer | None = None
    ) -> None:
        """Pass on to the workers signal `number`, which asks the run to end; if it is repeated, send SIGKILL."""
        gentle = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        if outlet is not None and gentle == signal.SIGINT and not self.request:
            outlet.log_line(f"interrupted; the workers have {grace:g} s to save")
        _signal(workers, signal.SIGKILL if self.request == number else gentle)
        self.request, self.code = number, shell_exit_code(-number)
        if gentle == signal.SIGTERM:
            self.signals = [signal.SIGKILL]
        self.begin(-number, grace)

    @property
    def knows_cause(self) -> bool:
        """Whether a worker has failed for another reason than a missing worker."""
        return self.code not in (0, CONSEQUENCE)

    @property
    def has_signalled(self) -> bool:
        """Whether the launcher has already sent signals to workers."""
        return len(self.signals) < 2 or bool(self.request)

    def failed(self, worker: Worker, rule: FailureRule[Worker], grace: float) -> bool:
        """Return whether the policy `rule` lets the run continue without a failed worker.

        Otherwise start the grace period of the others, `grace` seconds long, or without end for a patient rule.
        """
        assert worker.code is not None
        is_failed = _is_lost(worker)
        if not self.has_signalled and rule.continue_without(worker, is_failed=is_failed):
            return True
        cause = f"worker {worker.rank} {worker.lost or format_end(worker.code)}"
        self.begin(worker.code, float("inf") if rule.patient and is_failed else grace, cause)
        return False

    def escalate(self, workers: Sequence[Worker], outlet: LogMultiplexer | None = None) -> None:
        """After the deadline, send SIGTERM, later SIGKILL; finally stop waiting for workers that do not exit."""
        if time.monotonic() <= self.deadline:
            return
        if self.signals:
            running = [worker.rank for worker in workers if worker.code is None]
            if outlet is not None and self.cause and running and not self.has_signalled:
                # The others did not need the failed worker, so none has reported it.
                outlet.log_line(f"{self.cause}, so the run ends: SIGTERM to {format_workers(running)}")
            _signal(workers, self.signals.pop(0))
            self.deadline = time.monotonic() + (2.0 if self.signals else ANSWER_SECONDS)
            return
        self.deadline = float("inf")
        for worker in workers:
            if worker.code is None:
                worker.give_up()


def supervise(
    workers: list[Worker],
    sources: Sequence[Source],
    store: Store,
    grace: float,
    outlet: LogMultiplexer,
    *,
    rule: FailureRule[Worker],
    release: Callable[[], None] = lambda: None,
) -> int:
    """Release the workers, forward their output until all have ended, and return the run's exit code.

    After the first failure the other workers have `grace` seconds, unless the policy `rule` lets the run continue
    without failed or evicted workers. Replacements are added to `workers`; failures are written to `store`.
    """
    shutdown = Shutdown()
    collect = partial(_collect, workers, store, shutdown, grace, outlet, rule=rule)
    watch(workers, sources, shutdown, outlet, collect, release=release, grace=grace, pause=lambda: rule.pause)
    # The exit code tells that a worker was evicted, even if all others ended well.
    evicted = rule.evicted or any(worker.code == EvictedError.exit_code for worker in workers)
    return shutdown.code or (EvictedError.exit_code if evicted else 0)


def watch(
    workers: list[Worker],
    sources: Sequence[Source],
    shutdown: Shutdown,
    outlet: LogMultiplexer,
    collect: Callable[[], bool],
    *,
    release: Callable[[], None] = lambda: None,
    grace: float = GRACE_SECONDS,
    pause: Callable[[], float] = lambda: LOOK_SECONDS,
    num_workers: int | None = None,
    num_here: int | None = None,
) -> None:
    """Forward output and signals, and call `collect` repeatedly until it returns False: no worker runs any more.

    Calls `release` first, which lets the workers begin, and reads at least every `pause()` seconds. After a signal that
    ends the run, workers have `grace` seconds to save. `num_workers` is the number of workers of the run, `num_here`
    the number of those whose output this launcher prints.
    """
    drained = float("inf")
    width = len(str((num_workers or len(workers)) - 1))
    deduplicator = ErrorDeduplicator(outlet, num_here or sum(isinstance(source, Child) for source in sources))
    with defer_signals() as mask, selectors.DefaultSelector() as selector:
        for source in sources:
            for descriptor in source.streams:
                selector.register(descriptor, selectors.EVENT_READ, source)
        running, is_released = True, False
        # A worker's pipes close before its exit code is available; a child of the worker may keep them open for ever.
        while running or (
            time.monotonic() < drained and any(isinstance(key.data, Child) for key in selector.get_map().values())
        ):
            try:
                if not is_released:  # in here, since a thread of torch's may take the signal although it is blocked
                    is_released = True
                    release()
                with allow_signals(mask):
                    reraise_pending()
                    for key, _ in selector.select(timeout=pause()):
                        if not _forward(key.fd, key.data, outlet, deduplicator, width):
                            selector.unregister(key.fd)
                    deduplicator.show()
                known = len(workers)
                if running and not (running := collect()):
                    drained = time.monotonic() + 0.5
                for started in [worker for worker in workers[known:] if isinstance(worker, Child)]:
                    for descriptor in started.streams:
                        selector.register(descriptor, selectors.EVENT_READ, started)
            except (Terminated, KeyboardInterrupt) as ended:
                mark_delivered()
                number = ended.number if isinstance(ended, Terminated) else signal.SIGINT
                shutdown.end_on_request(number, grace, workers, outlet)
        with allow_signals(mask):
            for key in list(selector.get_map().values()):
                _forward(key.fd, key.data, outlet, deduplicator, width, last=True)
            deduplicator.show(everything=True)


def _is_lost(worker: Worker) -> bool:
    """Return whether a worker was killed, evicted or lost with its node: failures after which others may continue."""
    assert worker.code is not None
    return worker.code < 0 or worker.code == EvictedError.exit_code or bool(worker.lost)


def _ended_by_itself(worker: Worker) -> bool:
    """Return whether neither a signal killed the worker nor its node was lost; sorts killed and lost workers first."""
    assert worker.code is not None
    return worker.code >= 0 and not worker.lost


def _collect(
    workers: list[Worker], store: Store, shutdown: Shutdown, grace: float, outlet: LogMultiplexer,
    *, rule: FailureRule[Worker],
) -> bool:  # fmt: skip
    """Handle workers that have ended, and start the shutdown after a failure; return whether any worker still runs."""
    ended = [worker for worker in workers if worker.code is None and worker.reap()]
    rule.poll()
    for worker in ended:
        if not worker.code:
            rule.exited_well(worker)
    for worker in sorted((worker for worker in ended if worker.code), key=_ended_by_itself):
        is_first = not shutdown.code or (not shutdown.knows_cause and worker.code != CONSEQUENCE)
        was_ended = shutdown.has_signalled or rule.has_ended(worker)
        _publish_failure(store, worker, outlet, first=is_first, ended=was_ended)
        ask_children_to_end(worker)
        if shutdown.failed(worker, rule, grace) and (started := rule.restart(worker)) is not None:
            workers.append(started)
    end_children(workers)
    if rule.failure is not None and not shutdown.has_signalled:
        shutdown.begin(CONSEQUENCE, 0.0, rule.failure)
    shutdown.escalate(workers, outlet)
    return any(worker.code is None for worker in workers)


def ask_children_to_end(worker: Worker) -> None:
    """Send SIGTERM to a failed worker's child processes, and set the time at which `end_children` kills them."""
    worker.signal(signal.SIGTERM)
    worker.children_until = time.monotonic() + CHILDREN_SECONDS


def end_children(workers: Sequence[Worker]) -> None:
    """Kill child processes of failed workers if their time to clean up is over."""
    for worker in workers:
        if time.monotonic() > worker.children_until:
            worker.children_until = float("inf")
            worker.signal(signal.SIGKILL)


def _forward(
    descriptor: int,
    source: Source,
    outlet: LogMultiplexer,
    deduplicator: ErrorDeduplicator,
    width: int,
    *,
    last: bool = False,
) -> bool:
    """Print a source's complete lines, each after its worker's rank in `width` digits; return False if it has ended."""
    lines, is_open = source.take(descriptor, last=last)
    for errors, written in groupby(lines, key=lambda line: line.errors):
        shown = []
        for worker, _, text in written:
            worker.has_complained |= errors
            if not (errors and deduplicator.hold(worker.rank, text)):
                shown.append(f"[{worker.rank:>{width}}] {text}\n")
        if shown:
            outlet.write("".join(shown), errors=errors)
    return is_open


def _publish_failure(store: Store, worker: Worker, outlet: LogMultiplexer, *, first: bool, ended: bool) -> None:
    """Write to the store how a worker ended, for the others' errors; print it if the worker could not.

    `first`: no earlier failure is the cause; `ended`: the launcher has ended this worker, so that nothing is printed.
    """
    from partreduce.runtime.transport.store import CHANGES, DEATHS, Notes, read_stage  # loads torch, as workers do

    assert worker.code is not None
    text, is_lost = worker.lost or format_end(worker.code), _is_lost(worker) and worker.code != EvictedError.exit_code
    if not (is_lost or first):
        return
    # A worker killed by a signal prints nothing itself.
    if not ended and (is_lost or not (worker.has_complained or worker.has_unread_errors())):
        hint = "; the kernel does that when memory runs out" if worker.code == -signal.SIGKILL else ""
        with contextlib.suppress(RuntimeError):
            where = read_stage(store, worker.rank)
            outlet.log_line(f"worker {worker.rank} {text} {'' if is_lost else 'and no message '}{where}{hint}")
    with contextlib.suppress(RuntimeError):
        notes = Notes(store, DEATHS, own_server=True)
        notes.write(str(worker.rank), text)
        notes.count(CHANGES, 1)


def _signal(workers: Sequence[Worker], number: signal.Signals) -> None:
    for worker in workers:
        if worker.code is None:
            worker.signal(number)
