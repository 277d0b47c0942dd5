"""Supervision: what the launcher does while its workers run: forward output, tell how one died, end the rest."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import sys
import termios
import time
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from partreduce.runtime.launcher.orphans import end_groups
from partreduce.runtime.launcher.outlet import ErrorDeduplicator
from partreduce.runtime.launcher.signals import (
    Terminated,
    format_end,
    heard,
    held,
    let_through,
    raise_unheard,
    shell_exit_code,
)
from partreduce.runtime.launcher.workers import ANSWER_SECONDS, Worker
from partreduce.topo.errors import EvictedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partreduce.runtime.elastic.coordinator import FailureRule
    from partreduce.runtime.launcher.outlet import LogMultiplexer
    from partreduce.runtime.transport.torch_api import Store

CONSEQUENCE = UnavailableError.exit_code
"""Of a worker that ends because another one is missing: who ends first of these two is chance."""
CHILDREN_SECONDS = 2.0
"""How long what a failed worker has started may live on, to clean up."""


class Source(Protocol):
    """What writes lines of workers: a worker's process, or the connection to a host that has several."""

    streams: dict[int, bytes]
    """By descriptor, the line that is unfinished."""

    def take(self, descriptor: int, *, last: bool = False) -> tuple[list[Line], bool]:
        """The complete lines that have come, and whether there may be more.

        With `last` what has come so far is all that counts, although somebody may hold the pipe open.
        """
        ...


class Line(NamedTuple):
    """What a worker wrote: to its standard output, or to the errors."""

    worker: Worker
    errors: bool
    text: str


@dataclass(slots=True)
class Child(Worker):
    """A process of this machine: it waits for the store's port on the pipe `go`; `streams` are its output and errors.

    It stays a zombie until the run ends, so that its number is its process group's and nobody else's.
    """

    pid: int
    go: int
    streams: dict[int, bytes] = field(default_factory=dict)

    def reap(self) -> bool:
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        self.code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return True

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            os.killpg(self.pid, signal.SIGCONT)  # a stopped process gets other signals only when it continues

    def has_more_to_say(self) -> bool:
        errors = list(self.streams)[-1]
        return bool(_num_waiting(errors) or self.streams[errors])

    def take(self, descriptor: int, *, last: bool = False) -> tuple[list[Line], bool]:
        lines, is_open = complete_lines(self.streams, descriptor, last=last)
        errors = descriptor == list(self.streams)[-1]
        return [Line(self, errors, line.decode(errors="replace")) for line in lines], is_open


@dataclass(slots=True)
class _Shutdown:
    """How the rest of a run is ended after a failure or Ctrl-C: first a grace period, then SIGTERM, then SIGKILL."""

    code: int = 0
    """The run's exit code; that of a signal is as a shell reports it."""
    request: int = 0
    """The signal by which somebody asked for the end of the run."""
    deadline: float = float("inf")
    signals: list[signal.Signals] = field(default_factory=lambda: [signal.SIGTERM, signal.SIGKILL])

    def begin(self, code: int, grace: float) -> None:
        """Note the first failure; later ones change nothing, unless they are what the first was a consequence of."""
        if not self.knows_cause and not self.has_signalled:
            self.code = shell_exit_code(code)
        self.deadline = min(self.deadline, time.monotonic() + grace)

    def asked(self, number: int, grace: float, workers: Sequence[Worker]) -> None:
        """Somebody wants the run to end: pass it on, and end who does not; asked again, end them now."""
        gentle = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        _signal(workers, signal.SIGKILL if self.request == number else gentle)
        self.request, self.code = number, shell_exit_code(-number)
        if gentle == signal.SIGTERM:
            self.signals = [signal.SIGKILL]
        self.begin(-number, grace)

    @property
    def knows_cause(self) -> bool:
        """Whether a worker has failed for another reason than that others are missing."""
        return self.code not in (0, CONSEQUENCE)

    @property
    def has_signalled(self) -> bool:
        """Whether workers were already ended from here, so that a signal is no news."""
        return len(self.signals) < 2 or bool(self.request)

    def failed(self, worker: Worker, rule: FailureRule[Worker], grace: float) -> bool:
        """A worker ended with a failure: whether the run continues without it; else the others have `grace` left.

        Where the rule is patient they go on until one of them fails by itself, too.
        """
        assert worker.code is not None
        is_failed = _is_lost(worker)
        if not self.has_signalled and rule.continue_without(worker, is_failed=is_failed):
            return True
        self.begin(worker.code, float("inf") if rule.patient and is_failed else grace)
        return False

    def escalate(self, workers: Sequence[Worker]) -> None:
        """Send the next signal when its time has come; at last wait no longer for whoever is out of reach."""
        if time.monotonic() <= self.deadline:
            return
        if self.signals:
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
) -> int:
    """Forward output and wait; after the first failure the others have `grace` seconds to report it themselves.

    They continue without workers that a signal ended, or that were evicted, as long as the rule says so; those that it
    starts in their place are added to `workers`.
    """
    shutdown = _Shutdown()
    drained = float("inf")
    width, alike = len(str(len(workers) - 1)), ErrorDeduplicator(outlet, len(workers))
    with held() as mask, selectors.DefaultSelector() as selector:
        for source in sources:
            for descriptor in source.streams:
                selector.register(descriptor, selectors.EVENT_READ, source)
        running = True
        # A worker's pipes close before its exit code can be read; its own child may hold a pipe open for ever.
        while running or (selector.get_map() and time.monotonic() < drained):
            try:
                with let_through(mask):
                    raise_unheard()
                    for key, _ in selector.select(timeout=rule.pause):
                        if not _forward(key.fd, key.data, outlet, alike, width):
                            selector.unregister(key.fd)
                    alike.show()
                known = len(workers)
                if running and not (running := _collect(workers, store, shutdown, grace, outlet, rule=rule)):
                    drained = time.monotonic() + 0.5
                for started in [worker for worker in workers[known:] if isinstance(worker, Child)]:
                    for descriptor in started.streams:  # a host's stream has all its workers' lines
                        selector.register(descriptor, selectors.EVENT_READ, started)
            except Terminated as ended:
                heard()
                shutdown.asked(ended.number, grace, workers)
            except KeyboardInterrupt:
                heard()
                shutdown.asked(signal.SIGINT, grace, workers)
        with let_through(mask):
            for key in list(selector.get_map().values()):
                _forward(key.fd, key.data, outlet, alike, width, last=True)
            alike.show(everything=True)
    # A run that went on without a worker that was given up says so, even where all others ended well.
    evicted = rule.evicted or any(worker.code == EvictedError.exit_code for worker in workers)
    return shutdown.code or (EvictedError.exit_code if evicted else 0)


def _is_lost(worker: Worker) -> bool:
    """Whether the others of a run that outlives lost workers go on without this one."""
    signalled_or_evicted = worker.code is not None and (worker.code < 0 or worker.code == EvictedError.exit_code)
    return signalled_or_evicted or bool(worker.lost)


def _ended_by_itself(worker: Worker) -> bool:
    """Whether no signal ended a worker: of those that are seen to have ended at one time, these are looked at last."""
    assert worker.code is not None
    return worker.code >= 0 and not worker.lost


def _collect(
    workers: list[Worker],
    store: Store,
    shutdown: _Shutdown,
    grace: float,
    outlet: LogMultiplexer,
    *,
    rule: FailureRule[Worker],
) -> bool:
    """Note who ended, and with what; go on shutdown the rest after a failure. Returns whether anybody still runs."""
    ended = [worker for worker in workers if worker.code is None and worker.reap()]
    rule.poll()
    for worker in ended:
        if not worker.code:
            rule.exited_well(worker)
    for worker in sorted((worker for worker in ended if worker.code), key=_ended_by_itself):
        is_first = not shutdown.code or (not shutdown.knows_cause and worker.code != CONSEQUENCE)
        was_ended = shutdown.has_signalled or rule.has_ended(worker)
        _tell(store, worker, outlet, first=is_first, ended=was_ended)
        worker.signal(signal.SIGTERM)
        worker.children_until = time.monotonic() + CHILDREN_SECONDS
        if shutdown.failed(worker, rule, grace) and (started := rule.restart(worker)) is not None:
            workers.append(started)
    for worker in workers:
        if time.monotonic() > worker.children_until:
            worker.children_until = float("inf")
            worker.signal(signal.SIGKILL)
    shutdown.escalate(workers)
    return any(worker.code is None for worker in workers)


def _forward(
    descriptor: int, source: Source, outlet: LogMultiplexer, alike: ErrorDeduplicator, width: int, *, last: bool = False
) -> bool:
    """Pass on complete lines, each with its worker's rank before it; False at the end of the output."""
    lines, is_open = source.take(descriptor, last=last)
    for errors, written in groupby(lines, key=lambda line: line.errors):
        shown = []
        for worker, _, text in written:
            worker.has_complained |= errors
            if not (errors and alike.hold(worker.rank, text)):
                shown.append(f"[{worker.rank:>{width}}] {text}\n")
        if shown:
            outlet.write("".join(shown), errors=errors)
    return is_open


def complete_lines(streams: dict[int, bytes], descriptor: int, *, last: bool) -> tuple[list[bytes], bool]:
    """Read a pipe, leave its unfinished line in `streams`, and say whether more may come."""
    chunk = os.read(descriptor, _num_waiting(descriptor) if last else 65536)
    *lines, rest = (streams[descriptor] + chunk).split(b"\n")
    if (last or not chunk) and rest:
        lines, rest = [*lines, rest], b""
    streams[descriptor] = rest
    return lines, bool(chunk)


def _tell(store: Store, worker: Worker, outlet: LogMultiplexer, *, first: bool, ended: bool) -> None:
    """Leave word in the store of how a worker died, for the others' error messages, and say a signal's death here.

    Later exit codes are consequences of the first; signals are causes in any case, unless they were sent from here.
    """
    from partreduce.runtime.transport.store import (  # loads torch, as every worker does
        CHANGES,
        DEATHS,
        Notes,
        read_stage,
    )

    assert worker.code is not None
    if _is_lost(worker) and worker.code != EvictedError.exit_code:
        text = worker.lost or format_end(worker.code)
        if not ended:
            # A worker that a signal ends prints nothing itself.
            hint = "; the kernel does that when memory runs out" if worker.code == -signal.SIGKILL else ""
            with contextlib.suppress(RuntimeError):
                where = read_stage(store, worker.rank)
                outlet.write(f"partreduce: worker {worker.rank} {text} {where}{hint}\n", errors=True)
    elif not first:
        return
    else:
        text = format_end(worker.code)
        if not ended and not (worker.has_complained or worker.has_more_to_say()):
            with contextlib.suppress(RuntimeError):
                where = read_stage(store, worker.rank)
                outlet.write(f"partreduce: worker {worker.rank} {text} and no message {where}\n", errors=True)
    with contextlib.suppress(RuntimeError):
        notes = Notes(store, DEATHS, own_server=True)
        notes.write(str(worker.rank), text)
        notes.count(CHANGES, 1)


def _num_waiting(descriptor: int) -> int:
    """How many bytes lie in a pipe."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def _signal(workers: Sequence[Worker], number: signal.Signals) -> None:
    """Send a signal to the running workers and to what they started."""
    for worker in workers:
        if worker.code is None:
            worker.signal(number)


def end_all(workers: Sequence[Child]) -> None:
    """Leave nothing behind, whatever happened above."""
    _signal(workers, signal.SIGKILL)
    end_groups({worker.pid for worker in workers})
    for worker in workers:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(worker.pid, 0)
        for descriptor in [*worker.streams, *([worker.go] if worker.go >= 0 else [])]:
            with contextlib.suppress(OSError):
                os.close(descriptor)
