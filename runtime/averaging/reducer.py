"""Reducer: one group operation in a scratch array, tagged, waited for with a deadline, and checked before any commit.

Nothing that a user sees changes until every sum has arrived and every tag agrees: a worker that is killed in
mid-operation leaves partial sums in the scratch arrays of its peers, never in their parameters. On CUDA the host waits
for nothing: the commit itself looks at the tag on the device, and a violation is reported a few rounds later.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import torch

from preduce.runtime.averaging.gradients import load_gradients
from preduce.runtime.averaging.riders import load_riders
from preduce.runtime.transport.tags import TAG_LENGTH, sums_agree, tag_of
from preduce.runtime.transport.waiting import GoneError, Lookout, OwnWork, pause_after
from preduce.topo.errors import PeerLostError, StoreLostError, UnavailableError
from preduce.topo.phase import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preduce.runtime.averaging.bucket import Bucket
    from preduce.runtime.liveness.heartbeat import Heartbeat
    from preduce.runtime.recorder import Operation, Recorder
    from preduce.runtime.transport.communicators import Communicator
    from preduce.runtime.transport.waiting import RunningWork
    from preduce.runtime.transport.worlds import World

DIAGNOSE_SECONDS = 1.5
MAX_IN_FLIGHT = 2
SPLIT_BYTES = 4 * 2**20


class Reduction:
    """One running or finished group operation."""

    def __init__(self, communicator: Communicator, group: Group, operation: Operation, tag: tuple[int, ...]) -> None:
        self.communicator, self.group, self.operation, self.tag = communicator, group, operation, tag
        self.works: list[RunningWork] = []
        self.sides: dict[int, torch.Tensor] = {}
        self.ok: torch.Tensor | None = None

    @property
    def num_members(self) -> int:
        """k, the members of the group."""
        return len(self.group.members)


class Reducer:
    """Runs the group operations of one worker, one at a time, in the order of its rounds."""

    def __init__(
        self,
        world: World,
        buckets: Sequence[Bucket],
        recorder: Recorder,
        heartbeat: Heartbeat,
        *,
        key: str,
        timeout: float,
    ) -> None:
        self.world, self.buckets, self.recorder, self.heartbeat = world, buckets, recorder, heartbeat
        self.key, self.timeout = key, timeout
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._deferred: list[tuple[torch.cuda.Event, torch.Tensor, Operation]] = []

    def begin(self, kind: str, step: int, round_: int, group: Group, *, gradients: bool = False) -> Reduction:
        """Copy parameters (or gradients) into the scratch arrays and start summing them over the group.

        Raises:
            PeerLostError: an earlier operation is found to have failed, or this one cannot start.
        """
        reduction = self._announced(kind, step, round_, group)
        try:
            self._start(reduction, gradients=gradients)
        except (GoneError, UnavailableError) as error:
            raise self.failed(reduction, error) from None
        return reduction

    def attempt(
        self, kind: str, step: int, round_: int, group: Group, *, given_up: Callable[[], str | None]
    ) -> Reduction | None:
        """A whole operation whose failure ends its own group only: None then, and nothing to commit.

        `given_up` is asked now and then, and says why the operation shall not be waited for. After a failure the
        scratch arrays are left to whatever may still arrive in them, and the caller destroys the group, so that its
        members learn.
        """
        reduction = self._announced(kind, step, round_, group)
        try:
            self._start(reduction)
            self._complete(reduction, given_up)
        except (RuntimeError, GoneError, UnavailableError) as error:
            reduction.works.clear()
            for bucket in self.buckets:
                bucket.let_go()
            self.recorder.end(reduction.operation, f"failed: {error}")
            self.heartbeat.doing(f"went on without {reduction.operation}")
            return None
        return reduction

    def _announced(self, kind: str, step: int, round_: int, group: Group) -> Reduction:
        """A new operation, which the recorder and the next heartbeat tell of."""
        communicator = self.world.communicator(group.members)
        num_bytes = sum(bucket.num_bytes for bucket in self.buckets)
        operation = self.recorder.begin(kind, step, round_, group.members, num_bytes)
        self.heartbeat.doing(f"entered {operation}")
        return Reduction(communicator, group, operation, tag_of(self.key, kind, round_, group, "sum"))

    def _start(self, reduction: Reduction, *, gradients: bool = False) -> None:
        self._look_at_deferred()
        for index, bucket in enumerate(self.buckets):
            with self.stream(bucket.device):
                self._launch(reduction, index, bucket, gradients=gradients)

    def agree(self, kind: str, round_: int, group: Group, *fields: object) -> None:
        """Compare `fields` over the group with one tiny operation, before an operation whose sizes might differ.

        Raises:
            PeerLostError: members differ, or one is gone.
        """
        communicator = self.world.communicator(group.members)
        operation = self.recorder.begin(kind, round_, round_, group.members, 16)
        reduction = Reduction(communicator, group, operation, ())
        tag = tag_of(self.key, kind, round_, group, *fields)
        device = self.buckets[0].device if self.buckets else torch.device("cpu")
        sums = torch.tensor(tag, dtype=torch.float32, device=device)
        try:
            self._await(communicator.all_reduce(sums), reduction)
            if not bool(sums_agree(sums, tag, reduction.num_members)):
                raise GoneError("its members called it with different tensors, relax factors or order of calls")
        except (RuntimeError, GoneError, UnavailableError) as error:
            raise self.failed(reduction, error) from None
        self.recorder.end(operation)
        self.heartbeat.doing(f"finished {operation}")

    def wait(self, reduction: Reduction) -> None:
        """Wait until the sums are there and check the tags; on CUDA only order the streams and remember to check.

        Raises:
            PeerLostError: a member is gone, the timeout passed, or the members ran different operations.
        """
        try:
            self._complete(reduction)
        except (RuntimeError, GoneError) as error:
            raise self.failed(reduction, error) from None

    def _complete(self, reduction: Reduction, given_up: Callable[[], str | None] | None = None) -> None:
        for work in reduction.works:
            self._await(work, reduction, given_up)
        verdicts = []
        for index, bucket in enumerate(self.buckets):
            with self.stream(bucket.device):
                sums = reduction.sides.get(index, bucket.scratch()[-TAG_LENGTH:])
                verdicts.append(sums_agree(sums, reduction.tag, reduction.num_members))
        reduction.works.clear()
        if self.buckets[0].device.type == "cuda":
            self._defer(reduction, verdicts)
        elif not all(bool(verdict) for verdict in verdicts):
            raise GoneError("its members ran different operations at the same time (their tags differ)")
        self.recorder.end(reduction.operation)
        self.heartbeat.doing(f"finished {reduction.operation}")

    def refuse_if_gone(self, lookout: Lookout, step: int, round_: int) -> None:
        """For strategies in which nobody waits for all: now and then look whether the run can still end well.

        Raises:
            PeerLostError: a worker is gone; one who waited for it would find out, too.
        """
        if (why := lookout.gone()) is not None:
            raise self.failure(
                self.recorder.begin("look", step, round_, tuple(range(self.world.size)), 0), GoneError(why)
            )

    def failed(self, reduction: Reduction, error: Exception) -> UnavailableError:
        """The error for a failed reduction; see `failure`."""
        reduction.works.clear()
        return self.failure(reduction.operation, error)

    def failure(self, operation: Operation, error: Exception) -> UnavailableError:
        """Destroy all groups first, so that peers learn at once; then find out why and say it."""
        self.world.abandon()
        self.recorder.end(operation, f"failed: {error}")
        self.heartbeat.note("failed", f"gave up in {operation}")
        reason = str(error) if isinstance(error, GoneError) else self._why(operation, error)
        where = f"step {operation.step}, round {operation.round}: group {Group(operation.members)}"
        if (store_lost := self.heartbeat.store_lost()) is not None:
            return StoreLostError(f"{where}: {store_lost}")
        text = f"{where}: {reason}"
        self.heartbeat.record_failure(text)
        with contextlib.suppress(OSError):
            self.recorder.dump(text)
        return PeerLostError(text)

    def stream(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """The side stream of a CUDA device, after what the current stream has queued; nothing on CPU."""
        if device.type != "cuda":
            return contextlib.nullcontext()
        side = self._streams.get(device)
        if side is None:
            side = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(device)
        if current != side:
            side.wait_stream(current)
        return torch.cuda.stream(side)

    def rejoin(self) -> None:
        """Let the current streams wait for the side streams, after a commit."""
        for device, side in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(side)

    def _launch(self, reduction: Reduction, index: int, bucket: Bucket, *, gradients: bool) -> None:
        """Fill the bucket's scratch array and start reducing it.

        A large array on CPU goes in two pieces, an eighth and the rest, so that filling the rest hides behind the first
        piece's time on the wire. More pieces cost more in context switches than they hide.
        """
        scratch, communicator = bucket.scratch(), reduction.communicator
        # Every member contributes its share x / k, so that the sum is the mean: no pass over the result is needed and
        # half precision does not overflow. A division, since multiplying by a rounded 1/k would drift in one direction.
        divisor = reduction.num_members
        first = 0
        with torch.no_grad():
            if gradients:
                load_gradients(bucket, divisor)
            else:
                if bucket.num_bytes >= SPLIT_BYTES and bucket.device.type == "cpu":
                    first = bucket.size // 8
                    torch.div(bucket.flat[:first], divisor, out=scratch[:first])
                    reduction.works.append(communicator.all_reduce(scratch[:first]))
                torch.div(bucket.flat[first:], divisor, out=scratch[first : bucket.size])
            load_riders(bucket, scratch, divisor, is_first=communicator.is_first)
            if bucket.note is not None and not gradients:
                torch.div(bucket.note, divisor, out=scratch[bucket.tail : bucket.tail + len(bucket.note)])
            if bucket.exact:
                scratch[-TAG_LENGTH:].copy_(torch.tensor(reduction.tag, dtype=bucket.dtype), non_blocking=True)
            reduction.works.append(communicator.all_reduce(scratch[first:]))
            if not bucket.exact:
                side = torch.tensor(reduction.tag, dtype=torch.float32, device=bucket.device)
                reduction.sides[index] = side
                reduction.works.append(communicator.all_reduce(side))

    def _await(self, work: RunningWork, reduction: Reduction, given_up: Callable[[], str | None] | None = None) -> None:
        """Wait for one collective; give up early when a member's note, or `given_up`, says that it cannot come."""
        if self.buckets and self.buckets[0].device.type == "cuda":
            work.wait()
            return
        start = time.monotonic()
        members, round_ = reduction.group.members, reduction.operation.round
        self.heartbeat.doing(f"entered {reduction.operation}", members)
        lookout = Lookout(self.heartbeat, members)
        end = start + self.timeout
        while not work.is_completed():
            now = time.monotonic()
            if lookout.is_due():
                if given_up is None:
                    why = self.heartbeat.gone(members, round_) or self.heartbeat.elsewhere(members, round_)
                else:
                    why = given_up()
                if why is not None:
                    raise RuntimeError(why)
            if now > end:
                end = start + self.timeout + DIAGNOSE_SECONDS
                if now > end or self.heartbeat.sees_silence(members):
                    raise GoneError(self.heartbeat.waits_for(members, self.timeout))
            if isinstance(work, OwnWork):
                work.ended_within(max(0.0, lookout.next - now))
            else:
                time.sleep(pause_after(now - start))
        work.wait()

    def _why(self, operation: Operation, error: Exception) -> str:
        """The best explanation of a failed collective: a note about a member, the first failure, or who went silent."""
        first = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        members = operation.members
        deadline = time.monotonic() + DIAGNOSE_SECONDS
        self.heartbeat.watch(members)
        timed_out = "imed out" in first or "timeout" in first.lower()
        while time.monotonic() < deadline and not (timed_out and self.heartbeat.sees_silence(members)):
            round_ = operation.round
            if (why := self.heartbeat.cause(members, round_) or self.heartbeat.elsewhere(members, round_)) is not None:
                return why
            time.sleep(0.05)
        return f"{self.heartbeat.waits_for(members, self.timeout if timed_out else None)} ({first})"

    def _defer(self, reduction: Reduction, verdicts: list[torch.Tensor]) -> None:
        """Remember to look at the device's verdict later; nothing here makes the host wait."""
        device = self.buckets[0].device
        with self.stream(device):
            reduction.ok = torch.stack([verdict.to(device) for verdict in verdicts]).all()
            host = torch.empty((), dtype=torch.bool, pin_memory=True)
            host.copy_(reduction.ok, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._deferred.append((event, host, reduction.operation))

    def _look_at_deferred(self) -> None:
        """Check finished CUDA operations, and let at most a few be in flight.

        Raises:
            GoneError: one failed or did not finish within the timeout.
        """
        while self._deferred:
            event, host, operation = self._deferred[0]
            deadline = time.monotonic() + self.timeout
            while len(self._deferred) >= MAX_IN_FLIGHT and not event.query():  # type: ignore[no-untyped-call]
                if time.monotonic() > deadline:
                    raise GoneError(f"timed out: {operation} did not finish on the device")
                time.sleep(1e-4)
            if not event.query():  # type: ignore[no-untyped-call]
                return
            self._deferred.pop(0)
            if not bool(host):
                raise GoneError(f"in {operation} the members ran different operations (their tags differ)")
