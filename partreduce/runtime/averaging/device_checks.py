"""Report the results of tag checks that a CUDA device makes, and watch whether queued operations complete.

A tag is four numbers that each member adds to an all-reduce; their sum shows whether all members ran the same
operation. No step waits for the device: an average whose check is false changes nothing, and neither does any later
average; the host reads the check a few operations later. A watch thread looks at the oldest operation once a second. If
a member can no longer take part, or after twice the timeout, it destroys the groups, which ends their kernels.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.recorder import Operation, Recorder
from partreduce.runtime.transport.streams import DeviceClock, Marker, Streams
from partreduce.runtime.transport.waiting import LOOK_SECONDS, PeerGoneError, own_time, pause_after
from partreduce.runtime.transport.work import Background
from partreduce.runtime.transport.worlds import World

MAX_IN_FLIGHT = 2
IDLE_SECONDS = 10.0  # an idle watch thread ends after this time; the next operation starts another


@dataclass(slots=True)
class _Pending:
    """An operation queued on the device at `since`, and its tag `check`, whose failure is reported as `complaint`."""

    operation: Operation
    since: float
    begun: Marker | None = None
    ended: Marker | None = None
    check: torch.Tensor | None = None
    complaint: str = ""
    watched: bool = True


class DeviceChecks:
    """Queue of a reducer's all-reduces that a CUDA device has not finished, oldest first; thread-safe.

    A watch thread destroys the groups of `world` if an operation takes twice `timeout` seconds or a member died.
    """

    def __init__(self, world: World, recorder: Recorder, heartbeat: Heartbeat, *, timeout: float) -> None:
        self.world, self.recorder, self.heartbeat, self.timeout = world, recorder, heartbeat, timeout
        self._lock = threading.Lock()
        self._pending: list[_Pending] = []
        self._healthy: torch.Tensor | None = None
        self.why: str | None = None  # why the watch thread destroyed the groups
        self._watch: threading.Thread | None = None
        self._clock: DeviceClock | None = None
        self._closed = False

    def begun(self, operation: Operation, streams: Streams, *, watched: bool = True) -> None:
        """Add an operation that is queued on the device now; unless `watched`, the watch thread ignores it."""
        timed = self.recorder.directory is not None
        if timed and self._clock is None:
            clock = DeviceClock(streams)
            with self._lock:
                self._clock = self._clock or clock
        pending = _Pending(operation, own_time(), streams.mark(timed=True) if timed else None, watched=watched)
        with self._lock:
            self._pending.append(pending)
            if self._watch is None or not self._watch.is_alive():
                self._watch = Background(self._look_now_and_then, name="partreduce-device-watch", stop=self.close)
                self._watch.start()

    def add(self, operation: Operation, checks: list[torch.Tensor], streams: Streams, complaint: str) -> torch.Tensor:
        """Return, as a 0-d bool tensor on the device, whether the checks of this and all earlier operations hold.

        `check` later reads the result on the host and raises PeerGoneError with `complaint` if it is False.
        """
        healthy = torch.stack(checks).all()
        with self._lock:
            if self._healthy is not None:
                healthy = healthy & self._healthy
            self._healthy = healthy
        host = streams.download(healthy)
        mark = streams.mark(timed=self.recorder.directory is not None)
        with self._lock:
            pending = next(one for one in self._pending if one.operation is operation)
            pending.check, pending.ended, pending.complaint = host, mark, complaint
            pending.since = own_time()
        return healthy

    def drop(self, operation: Operation) -> None:
        """Forget an operation that has failed on the host, and its check on the device."""
        with self._lock:
            self._pending = [one for one in self._pending if one.operation is not operation]
            self._healthy = None

    def check(self, most: int = MAX_IN_FLIGHT - 1, abort_reason: Callable[[], str | None] | None = None) -> None:
        """Read the checks of finished operations, and wait until at most `most` operations are in flight.

        Raises PeerGoneError if a check failed, a member is gone, or the timeout has passed. `abort_reason`, if passed,
        returns why to stop waiting, in place of the heartbeat and the timeout.
        """
        start, since = time.monotonic(), own_time()
        look = start + LOOK_SECONDS
        while True:
            self._raise_what_the_watch_saw()
            with self._lock:
                queued = [one for one in self._pending if one.ended is not None]
            if not queued:
                return
            oldest = queued[0]
            assert oldest.ended is not None, "as filtered"
            if oldest.ended.query():
                self._read(oldest)
                continue
            if len(queued) <= most:
                return
            now = time.monotonic()
            if now > look:
                look = now + LOOK_SECONDS
                why = abort_reason() if abort_reason is not None else self._why_not(oldest, since)
                if why is not None:
                    raise PeerGoneError(why)
            time.sleep(pause_after(now - start))

    def close(self) -> None:
        self._closed = True

    def flush(self, abort_reason: Callable[[], str | None] | None = None) -> None:
        self.check(0, abort_reason)

    def _read(self, pending: _Pending) -> None:
        assert pending.check is not None, "set with its mark"
        assert pending.ended is not None, "set with its check"
        with self._lock:
            if pending not in self._pending:
                return  # another thread has read it
            self._pending.remove(pending)
        self._raise_what_the_watch_saw()
        good = bool(pending.check)
        times = None
        if self._clock is not None and pending.begun is not None:
            times = self._clock.time_of(pending.begun), self._clock.time_of(pending.ended)
        self.recorder.end(pending.operation, "ok" if good else "failed: the device's check", times=times)
        if not good:
            raise PeerGoneError(f"in {pending.operation} {pending.complaint}")

    def _raise_what_the_watch_saw(self) -> None:
        if self.why is not None:
            raise PeerGoneError(self.why)

    def _why_not(self, pending: _Pending, since: float) -> str | None:
        """Return why to stop waiting for an operation (a dead member, or the timeout, which starts at `since`)."""
        operation = pending.operation
        members, round_ = operation.members, operation.rounds_before
        why = self.heartbeat.failure_reason(members, round_) or self.heartbeat.in_other_gathering(members, round_)
        if why is None and own_time() > since + self.timeout:
            return f"timed out: {operation} did not finish on the device within {self.timeout:g} s"
        return why

    def _look_now_and_then(self) -> None:
        """Main function of the watch thread: a training loop that waits for the device cannot call `check` itself."""
        idle = 0.0
        while idle < IDLE_SECONDS and self.why is None and not self._closed:
            time.sleep(LOOK_SECONDS)
            with self._lock:
                pending = [one for one in self._pending if one.watched]
            idle = 0.0 if pending else idle + LOOK_SECONDS
            oldest = next((one for one in pending if one.ended is None or not one.ended.query()), None)
            if oldest is None:
                continue
            # Twice the timeout, so that a training loop that calls `check` reports the failure first. An operation that
            # overlaps a round has no deadline until it is complete on the host.
            why = self._why_not(oldest, oldest.since + self.timeout if oldest.ended is not None else float("inf"))
            with self._lock:
                if why is None or oldest not in self._pending:
                    continue
                self.why = why
            self.heartbeat.note("failed", f"gave up in {oldest.operation}")
            self.world.abandon()
