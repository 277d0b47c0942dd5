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
from typing import TYPE_CHECKING

from partreduce.runtime.launcher.orphans import end_groups
from partreduce.runtime.launcher.outlet import AlikeErrors
from partreduce.runtime.launcher.signals import SIGNALLED, Terminated, heard, held, let_through, raise_unheard
from partreduce.topo.errors import FencedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partreduce.runtime.launcher.outlet import Outlet
    from partreduce.runtime.transport.torch_api import Store

CONSEQUENCE = UnavailableError.exit_code
"""Of a worker that ends because another one is missing: who ends first of these two is chance."""
CHILDREN_SECONDS = 2.0
"""How long what a failed worker has started may live on, to clean up."""


@dataclass(slots=True)
class Child:
    """One worker's process: it waits for the store's port on the pipe `go`; `streams` holds its unfinished lines.

    It stays a zombie until the run ends, so that its number is its process group's and nobody else's. `children_until`
    is when what it started is ended after its failure.
    """

    rank: int
    pid: int
    go: int
    streams: dict[int, bytes] = field(default_factory=dict)
    code: int | None = None
    has_complained: bool = False
    """Whether it wrote to its standard error."""
    children_until: float = float("inf")


@dataclass(slots=True)
class _Shutdown:
    """How the rest of a run is ended after a failure or Ctrl-C: first a grace period, then SIGTERM, then SIGKILL.

    With `survive` workers that a signal ends, or that the group generator gave up, do not count, as long as one is
    left. With `patient` they count, and the others go on until one of them fails, too.
    """

    survive: bool = False
    patient: bool = False
    code: int = 0
    deadline: float = float("inf")
    signals: list[signal.Signals] = field(default_factory=lambda: [signal.SIGTERM, signal.SIGKILL])

    def begin(self, code: int, grace: float) -> None:
        """Note the first failure; later ones change nothing, unless they are what the first was a consequence of."""
        if not self.knows_cause and not self.has_signalled:
            self.code = code
        self.deadline = min(self.deadline, time.monotonic() + grace)

    def asked(self, code: int, grace: float, workers: Sequence[Child]) -> None:
        """Somebody wants the run to end: pass it on, and end who does not; asked again, end them now."""
        again = self.code == code
        _signal(workers, signal.SIGKILL if again else signal.SIGTERM)
        self.code, self.signals = code, [signal.SIGKILL]
        self.begin(code, grace)

    @property
    def knows_cause(self) -> bool:
        """Whether a worker has failed for another reason than that others are missing."""
        return self.code not in (0, CONSEQUENCE)

    @property
    def has_signalled(self) -> bool:
        """Whether workers were already ended from here, so that a signal is no news."""
        return len(self.signals) < 2 or self.code == 130  # as Ctrl-C

    def failed(self, worker: Child, workers: Sequence[Child], grace: float) -> None:
        """A worker ended with a failure; where that is one of the run, the others have the grace period left."""
        assert worker.code is not None
        if self.survive and _is_lost(worker) and not all(_is_lost(w) for w in workers):
            return
        self.begin(worker.code, float("inf") if self.patient and _is_lost(worker) else grace)

    def escalate(self, workers: Sequence[Child]) -> None:
        """Send the next signal when its time has come."""
        if time.monotonic() > self.deadline and self.signals:
            _signal(workers, self.signals.pop(0))
            self.deadline = time.monotonic() + 2.0


def supervise(
    workers: Sequence[Child], store: Store, grace: float, outlet: Outlet, *, survive: bool, patient: bool
) -> int:
    """Forward output and wait; after the first failure the others have `grace` seconds to report it themselves."""
    shutdown = _Shutdown(survive, patient)
    drained = float("inf")
    width, alike = len(str(len(workers) - 1)), AlikeErrors(outlet, len(workers))
    with held() as mask, selectors.DefaultSelector() as selector:
        for worker in workers:
            for descriptor in worker.streams:
                selector.register(descriptor, selectors.EVENT_READ, worker)
        running = True
        # A worker's pipes close before its exit code can be read; its own child may hold a pipe open for ever.
        while running or (selector.get_map() and time.monotonic() < drained):
            try:
                with let_through(mask):
                    raise_unheard()
                    for key, _ in selector.select(timeout=0.05):
                        if not _forward(key.fd, key.data, outlet, alike, width):
                            selector.unregister(key.fd)
                    alike.show()
                if running and not (running := _collect(workers, store, shutdown, grace, outlet)):
                    drained = time.monotonic() + 0.5
            except Terminated as ended:
                heard()
                shutdown.asked(ended.exit_code, grace, workers)
            except KeyboardInterrupt:
                heard()
                _signal(workers, signal.SIGINT if shutdown.code != 130 else signal.SIGKILL)
                shutdown.code = 130
                shutdown.begin(130, grace)
        with let_through(mask):
            for key in list(selector.get_map().values()):
                _forward(key.fd, key.data, outlet, alike, width, last=True)
            alike.show(everything=True)
    # A run that went on without a worker that was given up says so, even where all others ended well.
    fenced = any(worker.code == FencedError.exit_code for worker in workers)
    return shutdown.code or (FencedError.exit_code if fenced else 0)


def _is_lost(worker: Child) -> bool:
    """Whether the others of a run that outlives lost workers go on without this one."""
    return worker.code is not None and (worker.code > SIGNALLED or worker.code == FencedError.exit_code)


def _ended_by_itself(worker: Child) -> bool:
    """Whether no signal ended a worker: of those that are seen to have ended at one time, these are looked at last."""
    assert worker.code is not None
    return worker.code <= SIGNALLED


def _collect(workers: Sequence[Child], store: Store, shutdown: _Shutdown, grace: float, outlet: Outlet) -> bool:
    """Note who ended, and with what; go on shutdown the rest after a failure. Returns whether anybody still runs."""
    ended = [worker for worker in workers if worker.code is None and _reap(worker) and worker.code]
    for worker in sorted(ended, key=_ended_by_itself):
        is_first = not shutdown.code or (not shutdown.knows_cause and worker.code != CONSEQUENCE)
        _tell(store, worker, outlet, first=is_first, ended=shutdown.has_signalled)
        _signal_group(worker, signal.SIGTERM)
        worker.children_until = time.monotonic() + CHILDREN_SECONDS
        shutdown.failed(worker, workers, grace)
    for worker in workers:
        if time.monotonic() > worker.children_until:
            worker.children_until = float("inf")
            _signal_group(worker, signal.SIGKILL)
    shutdown.escalate(workers)
    return any(worker.code is None for worker in workers)


def _forward(
    descriptor: int, worker: Child, outlet: Outlet, alike: AlikeErrors, width: int, *, last: bool = False
) -> bool:
    """Pass on a worker's complete lines, each with its rank before it; False at the end of its output.

    With `last` what has come so far is all that counts, although somebody may hold the pipe open.
    """
    chunk = os.read(descriptor, _num_waiting(descriptor) if last else 65536)
    held = worker.streams[descriptor] + chunk
    lines, rest = held.split(b"\n")[:-1], held.split(b"\n")[-1]
    if (last or not chunk) and rest:
        lines, rest = [*lines, rest], b""
    worker.streams[descriptor] = rest
    if lines:
        errors = descriptor == list(worker.streams)[-1]
        worker.has_complained |= errors
        texts = [line.decode(errors="replace") for line in lines]
        shown = [text for text in texts if not (errors and alike.hold(worker.rank, text))]
        if shown:
            outlet.write("".join(f"[{worker.rank:>{width}}] {text}\n" for text in shown), errors=errors)
    return bool(chunk)


def _reap(worker: Child) -> bool:
    """Whether a worker has ended; then `code` is its exit code, 128 + signal number if it was killed."""
    ended = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return False
    worker.code = ended.si_status if ended.si_code == os.CLD_EXITED else SIGNALLED + ended.si_status
    return True


def _tell(store: Store, worker: Child, outlet: Outlet, *, first: bool, ended: bool) -> None:
    """Leave word in the store of how a worker died, for the others' error messages, and say a signal's death here.

    Later exit codes are consequences of the first; signals are causes in any case, unless they were sent from here.
    """
    from partreduce.runtime.transport.notes import CHANGES, DEATHS, Notes, stage_of  # loads torch, as every worker does

    assert worker.code is not None
    if worker.code > SIGNALLED:
        number = worker.code - SIGNALLED
        text = f"was killed by signal {number} ({signal.Signals(number).name})"
        if not ended:
            # A worker that a signal ends prints nothing itself.
            hint = "; the kernel does that when memory runs out" if number == signal.SIGKILL else ""
            with contextlib.suppress(RuntimeError):
                where = stage_of(store, worker.rank)
                outlet.write(f"partreduce: worker {worker.rank} {text} {where}{hint}\n", errors=True)
    elif not first:
        return
    else:
        text = f"ended with exit code {worker.code}"
        if not ended and _is_silent(worker):
            with contextlib.suppress(RuntimeError):
                where = stage_of(store, worker.rank)
                outlet.write(f"partreduce: worker {worker.rank} {text} and no message {where}\n", errors=True)
    with contextlib.suppress(RuntimeError):
        notes = Notes(store, DEATHS, own_server=True)
        notes.write(str(worker.rank), text)
        notes.count(CHANGES, 1)


def _is_silent(worker: Child) -> bool:
    """Whether a worker that has ended never wrote to its standard error, what is not forwarded yet included."""
    errors = list(worker.streams)[-1]
    return not (worker.has_complained or _num_waiting(errors) or worker.streams[errors])


def _num_waiting(descriptor: int) -> int:
    """How many bytes lie in a pipe."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def _signal(workers: Sequence[Child], number: signal.Signals) -> None:
    """Send a signal to the running workers and to what they started: each has its own process group."""
    for worker in workers:
        if worker.code is None:
            _signal_group(worker, number)


def _signal_group(worker: Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.pid, number)
        os.killpg(worker.pid, signal.SIGCONT)  # a stopped process gets other signals only when it continues


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
