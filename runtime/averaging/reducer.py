"""Reduction: one group operation in a scratch array, tagged, waited for with a deadline, and checked before any commit.

Nothing that a user sees changes until every sum has arrived and every tag agrees: a worker that is killed in
mid-operation leaves partial sums in the scratch arrays of its peers, never in their parameters. On CUDA the host waits
for nothing: the commit itself looks at the tag on the device, and a violation is reported a few rounds later.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import torch

from preduce.runtime.averaging.tags import TAG_LENGTH, sums_agree, tag_of
from preduce.runtime.transport.pauses import pause_after
from preduce.topo.errors import InputError, PeerLostError, UnavailableError
from preduce.topo.phase import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preduce.runtime.averaging.flat_model import Lane
    from preduce.runtime.liveness.heartbeat import Watch
    from preduce.runtime.recorder import Operation, Recorder
    from preduce.runtime.transport.communicators import Communicator, World
    from preduce.runtime.transport.torch_api import Work

LOOK_SECONDS = 1.0
DIAGNOSE_SECONDS = 1.5
MAX_IN_FLIGHT = 2
SPLIT_BYTES = 4 * 2**20
MAX_NAMED_BEATS = 64


class GoneError(Exception):
    """A member that can no longer come; the text says why."""


class Reduction:
    """One running or finished group operation."""

    def __init__(self, communicator: Communicator, group: Group, operation: Operation, tag: tuple[int, ...]) -> None:
        self.communicator, self.group, self.operation, self.tag = communicator, group, operation, tag
        self.works: list[Work] = []
        self.sides: dict[int, torch.Tensor] = {}
        self.ok: torch.Tensor | None = None

    @property
    def num_members(self) -> int:
        """k, the members of the group."""
        return len(self.group.members)


class Reducer:
    """Runs the group operations of one worker, one at a time, in the order of its rounds."""

    def __init__(
        self, world: World, lanes: Sequence[Lane], recorder: Recorder, watch: Watch, *, key: str, timeout: float
    ) -> None:
        self.world, self.lanes, self.recorder, self.watch = world, lanes, recorder, watch
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
            for lane in self.lanes:
                lane.let_go()
            self.recorder.end(reduction.operation, f"failed: {error}")
            self.watch.doing(f"went on without {reduction.operation}")
            return None
        return reduction

    def _announced(self, kind: str, step: int, round_: int, group: Group) -> Reduction:
        """A new operation, known to the recorder and the watch."""
        communicator = self.world.communicator(group.members)
        num_bytes = sum(lane.num_bytes for lane in self.lanes)
        operation = self.recorder.begin(kind, step, round_, group.members, num_bytes)
        self.watch.doing(f"entered {operation}")
        return Reduction(communicator, group, operation, tag_of(self.key, kind, round_, group, "sum"))

    def _start(self, reduction: Reduction, *, gradients: bool = False) -> None:
        self._look_at_deferred()
        for index, lane in enumerate(self.lanes):
            with self.stream(lane.device):
                self._launch(reduction, index, lane, gradients=gradients)

    def agree(self, kind: str, round_: int, group: Group, *fields: object) -> None:
        """Compare `fields` over the group with one tiny operation, before an operation whose sizes might differ.

        Raises:
            PeerLostError: members differ, or one is gone.
        """
        communicator = self.world.communicator(group.members)
        operation = self.recorder.begin(kind, round_, round_, group.members, 16)
        reduction = Reduction(communicator, group, operation, ())
        tag = tag_of(self.key, kind, round_, group, *fields)
        device = self.lanes[0].device if self.lanes else torch.device("cpu")
        sums = torch.tensor(tag, dtype=torch.float32, device=device)
        try:
            self._await(communicator.all_reduce(sums), reduction)
            if not bool(sums_agree(sums, tag, reduction.num_members)):
                raise GoneError("its members called it with different tensors, relax factors or order of calls")
        except (RuntimeError, GoneError, UnavailableError) as error:
            raise self.failed(reduction, error) from None
        self.recorder.end(operation)

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
        for index, lane in enumerate(self.lanes):
            with self.stream(lane.device):
                sums = reduction.sides.get(index, lane.scratch()[-TAG_LENGTH:])
                verdicts.append(sums_agree(sums, reduction.tag, reduction.num_members))
        reduction.works.clear()
        if self.lanes[0].device.type == "cuda":
            self._defer(reduction, verdicts)
        elif not all(bool(verdict) for verdict in verdicts):
            raise GoneError("its members ran different operations at the same time (their tags differ)")
        self.recorder.end(reduction.operation)
        self.watch.doing(f"finished {reduction.operation}")

    def failed(self, reduction: Reduction, error: Exception) -> PeerLostError:
        """The error for a failed reduction; see `failure`."""
        reduction.works.clear()
        return self.failure(reduction.operation, error)

    def failure(self, operation: Operation, error: Exception) -> PeerLostError:
        """Destroy all groups first, so that peers learn at once; then find out why and say it."""
        self.world.abandon()
        self.recorder.end(operation, f"failed: {error}")
        self.watch.note("failed", f"gave up in {operation}")
        reason = str(error) if isinstance(error, GoneError) else self._why(operation, error)
        text = f"step {operation.step}, round {operation.round}: group {Group(operation.members)}: {reason}"
        self.watch.record_failure(text)
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

    def _launch(self, reduction: Reduction, index: int, lane: Lane, *, gradients: bool) -> None:
        """Fill the lane's scratch array and start reducing it.

        A large array on CPU goes in two pieces, an eighth and the rest, so that filling the rest hides behind the first
        piece's time on the wire. More pieces cost more in context switches than they hide.
        """
        scratch, communicator = lane.scratch(), reduction.communicator
        # Every member contributes its share x / k, so that the sum is the mean: no pass over the result is needed and
        # half precision does not overflow. A division, since multiplying by a rounded 1/k would drift in one direction.
        divisor = reduction.num_members
        first = 0
        with torch.no_grad():
            if gradients:
                _load_gradients(lane, scratch, divisor)
                _load_presence(lane, scratch)
            else:
                if lane.num_bytes >= SPLIT_BYTES and lane.device.type == "cpu":
                    first = lane.size // 8
                    torch.div(lane.flat[:first], divisor, out=scratch[:first])
                    reduction.works.append(communicator.all_reduce(scratch[:first]))
                torch.div(lane.flat[first:], divisor, out=scratch[first : lane.size])
            load_riders(lane, scratch, divisor, is_first=communicator.is_first)
            if lane.note is not None and not gradients:
                torch.div(lane.note, divisor, out=scratch[lane.tail : lane.tail + len(lane.note)])
            if lane.exact:
                scratch[-TAG_LENGTH:].copy_(torch.tensor(reduction.tag, dtype=lane.dtype), non_blocking=True)
            reduction.works.append(communicator.all_reduce(scratch[first:]))
            if not lane.exact:
                side = torch.tensor(reduction.tag, dtype=torch.float32, device=lane.device)
                reduction.sides[index] = side
                reduction.works.append(communicator.all_reduce(side))

    def _await(self, work: Work, reduction: Reduction, given_up: Callable[[], str | None] | None = None) -> None:
        """Wait for one collective; give up early when a member's note, or `given_up`, says that it cannot come."""
        if self.lanes and self.lanes[0].device.type == "cuda":
            work.wait()
            return
        start = time.monotonic()
        look = start + LOOK_SECONDS
        ended_within: Callable[[float], bool] | None = getattr(work, "ended_within", None)
        while not work.is_completed():
            now = time.monotonic()
            if now > look:
                members, round_ = reduction.group.members, reduction.operation.round
                if given_up is None:
                    why = self.watch.gone(members, round_) or self.watch.elsewhere(members, round_)
                else:
                    why = given_up()
                if why is not None:
                    raise RuntimeError(why)
                if len(reduction.group.members) <= MAX_NAMED_BEATS:
                    for rank in reduction.group.members:
                        self.watch.last_seen(rank)
                look = now + LOOK_SECONDS
            if now > start + self.timeout + DIAGNOSE_SECONDS:
                raise GoneError(self._waits_for(reduction.group.members, self.timeout))
            if ended_within is not None:
                ended_within(look - now)
            else:
                time.sleep(pause_after(now - start))
        work.wait()

    def _why(self, operation: Operation, error: Exception) -> str:
        """The best explanation of a failed collective: a note about a member, the first failure, or who went silent."""
        first = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        members = operation.members
        deadline = time.monotonic() + DIAGNOSE_SECONDS
        for rank in members:
            self.watch.last_seen(rank)
        while time.monotonic() < deadline:
            round_ = operation.round
            if (why := self.watch.cause(members, round_) or self.watch.elsewhere(members, round_)) is not None:
                return why
            time.sleep(0.05)
        timed_out = "imed out" in first or "timeout" in first.lower()
        return f"{self._waits_for(members, self.timeout if timed_out else None)} ({first})"

    def _waits_for(self, members: Sequence[int], seconds: float | None) -> str:
        others = [rank for rank in members if rank != self.world.rank]
        seen = {rank: self.watch.last_seen(rank) for rank in others}
        silent = [rank for rank in others if "no sign of life" in seen[rank]]
        named = (silent or others)[:4]
        clauses = "; ".join(f"worker {rank}, which {seen[rank]}" for rank in named)
        return f"waits for {clauses}" + (f", for more than {seconds:g} s" if seconds is not None else "")

    def _defer(self, reduction: Reduction, verdicts: list[torch.Tensor]) -> None:
        """Remember to look at the device's verdict later; nothing here makes the host wait."""
        device = self.lanes[0].device
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


def _load_gradients(lane: Lane, scratch: torch.Tensor, divisor: int) -> None:
    """Each gradient's share; zeros for a parameter without one."""
    present = [slot for slot in lane.slots if slot.parameter.grad is not None]
    for slot in present:
        if slot.parameter.grad is not None and slot.parameter.grad.layout is not torch.strided:
            raise InputError(f"gradient of {slot.names[0]!r}: is sparse; use sparse=False in its embedding")
    if len(present) < len(lane.slots):
        for slot in lane.slots:
            if slot.parameter.grad is None:
                slot.view(scratch).zero_()
    if lane.device.type == "cuda" and present:
        targets = [slot.view(scratch) for slot in present]
        torch._foreach_copy_(targets, [slot.parameter.grad for slot in present])  # type: ignore[misc]
        scratch[: lane.size].div_(divisor)
        return
    for slot in present:
        gradient = slot.parameter.grad
        assert gradient is not None, "present slots have one"
        torch.div(gradient, divisor, out=slot.view(scratch))


def load_riders(lane: Lane, scratch: torch.Tensor, divisor: int, *, is_first: bool) -> None:
    """Copy what rides along into the scratch array, divided by the number of members; zero where there is nothing."""
    for rider in lane.riders:
        value = rider.fetch()
        part = rider.view(scratch)
        if value is None or (rider.broadcast and not is_first):
            part.zero_()
        elif rider.broadcast:
            part.copy_(value)
        else:
            torch.div(value.detach(), divisor, out=part)


def _load_presence(lane: Lane, scratch: torch.Tensor) -> None:
    """One number per parameter: 1 if it has a gradient here."""
    presence = scratch[lane.tail : lane.tail + len(lane.slots)]
    flags = [slot.parameter.grad is not None for slot in lane.slots]
    presence.copy_(torch.tensor(flags, dtype=lane.dtype), non_blocking=True)
