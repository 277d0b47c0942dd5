"""Run one all-reduce of a group in scratch arrays, with a tag, a deadline, and a check before the result is committed.

Parameters change only after every sum has arrived and every tag agrees: a killed worker leaves partial sums in its
peers' scratch arrays, never in their parameters. On CUDA the commit checks the tag on the device, and a failure is
reported a few rounds later, at the latest by `flush`. There the tag is summed in a separate all-reduce after the
payload, because an aborted all-reduce may have summed the end of an array and not its start.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NoReturn, Protocol

import torch

from partreduce.runtime.averaging.bucket import Bucket, load_piggybacked
from partreduce.runtime.averaging.device_checks import DeviceChecks
from partreduce.runtime.averaging.gradients import load_gradients
from partreduce.runtime.averaging.reduction import PARAMETERS, Alone, CodecInput, CodedPart, Content, Reduction
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.recorder import Operation, Recorder
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.tags import TAG_LENGTH, Tail, agreement, sums_agree, tag_of
from partreduce.runtime.transport.waiting import DIAGNOSE_SECONDS, GLANCE_SECONDS, PeerGoneError, PeerWatch, Wait
from partreduce.runtime.transport.work import Work
from partreduce.runtime.transport.worlds import World
from partreduce.topo.errors import InputError, PeerFailedError, StoreLostError, UnavailableError
from partreduce.topo.phase import Group

# bucket's index, bucket, sums, device's check
Committing = Callable[[int, Bucket, torch.Tensor, torch.Tensor | None], None]
_NOTHING = contextlib.nullcontext()
SPLIT_BYTES = 4 * 2**20


class FailureHandler(Protocol):
    """Policy of a run that may continue after failed operations; waits look for failures every `glance` seconds."""

    glance: float  # seconds between two checks for failed workers while waiting

    def stop_reason(self, operation: Operation) -> str | None:
        """Return why an operation cannot complete, or None to keep waiting."""

    def broke(self, operation: Operation, error: Exception) -> UnavailableError:
        """Return the error to raise for a failed operation, of which `error` is the cause."""


class Reducer:
    """One worker's interface for all-reduces of its buckets (flat arrays) over groups, with deadlines; thread-safe.

    All members of a group must start their operations in the same order. Each sends a tag, which shows whether all run
    the same operation. After that check `commit` writes the result to the model. `key` distinguishes the operations of
    several reducers in their tags; `timeout` is in seconds.
    """

    sums_up = True  # whether a received array is the sum over all members

    def __init__(
        self, world: World, buckets: Sequence[Bucket], recorder: Recorder, heartbeat: Heartbeat, *, key: str,
        timeout: float,
    ) -> None:  # fmt: skip
        self.world, self.buckets, self.recorder, self.heartbeat = world, buckets, recorder, heartbeat
        self.key, self.timeout = key, timeout
        self._lines: dict[tuple[int, ...], tuple[Group, str, Communicator]] = {}  # cache by members
        self.outlives: FailureHandler | None = None  # handles failed operations; if None, a failure ends the run
        self.checks = DeviceChecks(world, recorder, heartbeat, timeout=timeout)

    def of(self, buckets: Sequence[Bucket], name: str = "", world: World | None = None) -> Reducer:
        """Return a Reducer of other buckets, possibly over another world (set of groups); its key ends with `name`."""
        key = f"{self.key} {name}".rstrip()
        part = Reducer(world or self.world, buckets, self.recorder, self.heartbeat, key=key, timeout=self.timeout)
        part.checks = self.checks
        return part

    @cached_property
    def streams(self) -> Streams:
        return self.world.streams(self.buckets[0].device if self.buckets else torch.device("cpu"))

    def begin(self, kind: str, step: int, round_: int, group: Group, content: Content = PARAMETERS) -> Reduction:
        """Copy parameters (or gradients, by `content`) into scratch arrays and start their all-reduce over the group.

        `kind`, `step` and `round_` identify the operation in traces and errors; its tag has `kind` and `round_`. Like
        all methods that start or await an operation, it raises PeerFailedError if a member is gone.
        """
        reduction = self.announce(kind, step, round_, group, content)
        self.send(reduction, lambda: self._start(reduction))
        return reduction

    def begin_parts(self, kind: str, step: int, group: Group, content: Content) -> Reduction:
        """Start an operation (see `begin`) of round `step`, whose parts all members send by `send` in one order."""
        reduction = self.announce(kind, step, step, group, content)
        self.send(reduction, lambda: self._look(reduction.operation))
        return reduction

    def send(self, reduction: Reduction, action: Callable[[], None]) -> None:
        try:
            action()
            self._fills_first()
        except (PeerGoneError, UnavailableError) as error:
            raise self.failed(reduction, error) from None

    def attempt(
        self, kind: str, step: int, round_: int, group: Group, *, abort_reason: Callable[[], str | None]
    ) -> Reduction | None:
        """Run an all-reduce (see `begin`) whose failure affects only its group, and return it; None after a failure.

        `abort_reason` returns why to stop waiting, or None. After a failure the caller must destroy the group, so that
        the other members notice.
        """
        reduction = self.announce(kind, step, round_, group)
        try:
            self._start(reduction, watched=False)
            self._fills_first()
            self._complete(reduction, abort_reason)
            if self.streams.runs_ahead:
                self.checks.flush(abort_reason)
        except (RuntimeError, PeerGoneError, UnavailableError) as error:
            self.checks.drop(reduction.operation)
            self.recorder.end(reduction.operation, f"failed: {error}")
            self._lines.pop(group.members, None)
            reduction.abandon()
            self.heartbeat.doing(f"continued without {reduction.operation}")
            return None
        return reduction

    def announce(
        self,
        kind: str,
        step: int,
        round_: int,
        group: Group,
        content: Content = PARAMETERS,
        *,
        num_bytes: int | None = None,
    ) -> Reduction:
        """Create an operation (see `begin`) without sending; it is traced with `num_bytes` (default: all buckets')."""
        self._check_after_abort()
        name, communicator, copies = self._line_of(group, round_)
        num_bytes = sum([bucket.num_bytes for bucket in self.buckets]) * copies if num_bytes is None else num_bytes
        operation = self.recorder.begin(kind, step, round_, group.members, num_bytes, lag=content.lag)
        self.heartbeat.now = operation.entered, ()
        reference = () if content.since is None else (content.since.version,)
        tag = tag_of(self.key, kind, round_, name, content.settings or "sum", *reference)
        return Reduction(communicator, group, operation, tag, self.buckets, content=content)

    def _line_of(self, group: Group, round_: int) -> tuple[str, Communicator, int]:  # noqa: ARG002 - of neighbors
        """Return the group's name in tags, its communicator, and how often this worker sends its arrays (here 1)."""
        line = self._lines.get(group.members)
        if line is None or line[2].is_closed or (line[0] is not group and line[0] != group):
            is_alone = len(group.members) == 1
            communicator = Alone(self.world.rank) if is_alone else self.world.communicator(group.members)
            line = self._lines[group.members] = group, str(group), communicator
        return line[1], line[2], 1

    def _start(self, reduction: Reduction, *, watched: bool = True) -> None:
        self._look(reduction.operation, watched=watched)
        for index, bucket in enumerate(reduction.buckets):
            with self.stream():
                self._launch(reduction, index, bucket)

    def _look(self, operation: Operation, *, watched: bool = True) -> None:
        """On CUDA, read the checks of finished operations and queue this one (see `DeviceChecks.begun`)."""
        if self.streams.runs_ahead:
            self.checks.check()
            self.checks.begun(operation, self.streams, watched=watched)

    def _check_after_abort(self) -> None:
        if self.checks.why is not None:
            raise self.failure(self.recorder.last()[-1], PeerGoneError(self.checks.why))

    def _fills_first(self) -> None:
        """Make the current stream, which will change the parameters, wait until scratch arrays are filled from them."""
        self.rejoin()

    def agree(self, kind: str, round_: int, group: Group, *fields: object, deferred: bool = False) -> None:
        """Raise PeerFailedError unless operation `kind`, its round and `fields` are equal on all members of the group.

        Their hashes are all-reduced. With `deferred` a CUDA device checks, and a later call raises.
        """
        if len(group.members) == 1:
            return
        self._check_after_abort()
        communicator = self.world.communicator(group.members)
        operation = self.recorder.begin(kind, round_, round_, group.members, 16)
        reduction = Reduction(communicator, group, operation, ())
        tag = tag_of(self.key, kind, round_, group, *fields)
        streams, complaint = self.streams, "its members called it with different tensors, relaxation or order of calls"
        try:
            if streams.runs_ahead:
                self._agree_on_device(reduction, tag, complaint)
                if not deferred:
                    self.checks.flush()
                return
            sums = streams.upload(tag, torch.float32)
            self.wait_for(communicator.all_reduce(sums), operation)
            if not sums_agree(sums, tag, reduction.num_members):
                raise PeerGoneError(complaint)
        except (RuntimeError, PeerGoneError, UnavailableError) as error:
            raise self.failed(reduction, error) from None
        self.recorder.end(operation)
        self.heartbeat.doing(operation.finished)

    def _agree_on_device(self, reduction: Reduction, tag: tuple[int, ...], complaint: str) -> None:
        streams = self.streams
        self._look(reduction.operation)
        with streams.side():
            sums = streams.upload(tag, torch.float32)
            work = reduction.communicator.all_reduce(sums)
        work.wait()
        with streams.side():
            check = agreement(sums, tag, reduction.num_members, streams.upload)
            reduction.ok = self.checks.add(reduction.operation, [check], streams, complaint)
        streams.rejoin()

    def flush(self) -> None:
        """Wait for a CUDA device's checks of all operations; raise the first failure as a PeerFailedError."""
        try:
            self.checks.flush()
        except PeerGoneError as error:
            raise self.failure(self.recorder.last()[-1], error) from None

    def wait(self, reduction: Reduction) -> None:
        """Wait for the sums and check that all members ran the same operation; raise PeerFailedError otherwise.

        On CUDA the host does not wait: the device checks, and a later call raises. Raises InputError, on all members,
        if their optimizers' settings differ or a sum exceeds the codec's range.
        """
        try:
            self._complete(reduction)
        except (RuntimeError, PeerGoneError) as error:
            raise self.failed(reduction, error) from None

    def _complete(self, reduction: Reduction, abort_reason: Callable[[], str | None] | None = None) -> None:
        for work in reduction.works:
            self.wait_for(work, reduction.operation, abort_reason)
        reduction.works.clear()
        checks: list[torch.Tensor] = []
        agree, streams, summed = True, self.streams, reduction.num_members if self.sums_up else 1
        for index in range(len(reduction.buckets)):
            with self.stream():
                for tags in self._tags(reduction, index):
                    if not streams.runs_ahead:
                        agree = sums_agree(tags, reduction.tag, summed) and agree
                        continue
                    assert isinstance(tags, torch.Tensor), "a device's tags travel apart"
                    checks.append(agreement(tags, reduction.tag, summed, streams.upload))
                self._arrive(reduction, index, checks)
        self._judge(reduction, agree, checks)

    def _tags(self, reduction: Reduction, index: int) -> Sequence[torch.Tensor | Tail]:
        """Return the sums of the members' tags that an operation has received with bucket `index`."""
        if index in reduction.coded:
            return (reduction.coded[index].take_back(),)
        if index in reduction.sides:
            return (reduction.sides[index],)
        return (reduction.buckets[index].tail_of(reduction.arrays[index])[-TAG_LENGTH:],)

    def _arrive(self, reduction: Reduction, index: int, checks: list[torch.Tensor]) -> None:
        """Turn the arrays received for bucket `index` into the result to commit; on CUDA add its check to `checks`."""
        if self.streams.runs_ahead and index in reduction.coded:
            checks.append(reduction.coded[index].stays_in_range())

    def _reject(self, reduction: Reduction, why: str, place: str) -> NoReturn:
        """Release an operation with an unusable sum and raise InputError with text `place: why`, as all members do."""
        self.recorder.end(reduction.operation, f"failed: {why}")
        reduction.release()
        raise InputError(f"{place}: {why}")

    def commit(self, reduction: Reduction, action: Committing) -> None:
        """Call `action(index, bucket, sums, device's check)` for each bucket, then return the scratch arrays."""
        with torch.no_grad():
            for index, (bucket, sums) in enumerate(zip(reduction.buckets, reduction.arrays, strict=True)):
                with self.stream():
                    action(index, bucket, sums, reduction.ok)
        self.rejoin()
        reduction.release()

    def _judge(self, reduction: Reduction, agree: bool, checks: list[torch.Tensor]) -> None:
        """Mark an operation as successful if its tags `agree`, so all members ran the same one; otherwise raise.

        On CUDA the device decides from `checks`, and a later call raises.
        """
        if self.streams.runs_ahead:
            with self.streams.side():
                reduction.ok = self.checks.add(reduction.operation, checks, self.streams, reduction.complaint())
        elif agree:
            operation = reduction.operation
            for part in reduction.coded.values():
                if beyond := part.beyond_range():
                    self._reject(reduction, beyond, f"step {operation.step}, round {operation.round}")
            self.recorder.end(operation)
        else:
            members, step, settings = reduction.operation.members, reduction.operation.step, reduction.content.settings
            if (why := self.heartbeat.not_in_gathering(members, reduction.operation.rounds_before)) is not None:
                raise PeerGoneError(why)
            if settings and (why := self.heartbeat.differing_settings(members, step, settings)):
                self._reject(reduction, why, f"step {step}")
            raise PeerGoneError(reduction.complaint())
        self.heartbeat.now = reduction.operation.finished, ()

    @contextlib.contextmanager
    def recorded(
        self, kind: str, step: int, round_: int, members: tuple[int, ...], num_bytes: int = 0, *, lag: int = 0
    ) -> Iterator[Operation]:
        """Context that records its block as operation `kind`, `lag` rounds late; an error in it destroys all groups."""
        operation = self.recorder.begin(kind, step, round_, members, num_bytes, lag=lag)
        try:
            yield operation
        except (RuntimeError, PeerGoneError, UnavailableError) as error:
            raise self.failure(operation, error) from None
        self.recorder.end(operation)
        self.heartbeat.doing(operation.finished)

    def check_if_gone(self, watch: PeerWatch, step: int, round_: int) -> None:
        """Raise PeerFailedError if a worker of `watch` has failed; for strategies that do not wait for all others."""
        if (why := watch.failure_reason()) is not None:
            operation = self.recorder.begin("look", step, round_, tuple(range(self.world.size)), 0)
            raise self.failure(operation, PeerGoneError(why))

    def failed(self, reduction: Reduction, error: Exception) -> UnavailableError:
        reduction.works.clear()
        if self.outlives is not None:
            return self.outlives.broke(reduction.operation, error)
        return self.failure(reduction.operation, error)

    def failure(self, operation: Operation, error: Exception) -> UnavailableError:
        """Destroy all groups, so that members notice a failure at once; return the error to raise, with its cause."""
        self.world.abandon()
        self.checks.close()
        self.recorder.end(operation, f"failed: {error}")
        self.heartbeat.note("failed", f"gave up in {operation}")
        reason = str(error) if isinstance(error, PeerGoneError) else self.checks.why or self._why(operation, error)
        where = f"step {operation.step}, round {operation.round}: group {Group(operation.members)}"
        if (store_lost := self.heartbeat.store_lost()) is not None:
            return StoreLostError(f"{where}: {store_lost}")
        text = f"{where}: {reason}"
        self.heartbeat.record_failure(text)
        with contextlib.suppress(OSError):
            self.recorder.dump(text)
        return PeerFailedError(text + self.heartbeat.survival_hint(reason))

    def stream(self) -> contextlib.AbstractContextManager[object]:
        """Return a context for a CUDA device's side stream, after the current stream's work; no effect on CPU."""
        streams = self.streams
        return streams.side() if streams.runs_ahead else _NOTHING

    def rejoin(self) -> None:
        """Make the current CUDA stream wait for the side stream's work; no effect on CPU."""
        if self.streams.runs_ahead:
            self.streams.rejoin()

    def _launch(self, reduction: Reduction, index: int, bucket: Bucket) -> None:
        """Fill the scratch array of bucket `index` and start its all-reduce, in two pieces for a large one on CPU."""
        scratch, communicator, content = reduction.arrays[index], reduction.communicator, reduction.content
        coding, kept = content.codings[index] if content.codings else None, content.kept_of(index)
        # Every member contributes x / k, so the sum is the mean: no pass over the result is needed, and half precision
        # does not overflow. Division, because multiplying by a rounded 1/k would bias repeated means.
        first, given = 0, None
        with torch.no_grad():
            if content.gradients:
                divisor, tail = content.divisor or reduction.num_members, self.tail(bucket, scratch)
                reduction.absent[index] = load_gradients(bucket, scratch, divisor, tail, kept)
            else:
                if bucket.size and bucket.num_bytes >= SPLIT_BYTES and not self.streams.runs_ahead and coding is None:
                    first = bucket.size // 8
                    reduction.load(index, slice(0, first), kept)
                    reduction.works.append(communicator.all_reduce(scratch[:first]))
                if bucket.size:
                    reduction.load(index, slice(first, bucket.size), kept)
            if coding is not None:
                values = scratch[: bucket.size]
                given = CodecInput.of(bucket.slots, scratch, values, coding, self.streams)
                reduction.works.append(communicator.all_reduce(values, coding))
            self.send_rest(reduction, index, first, reduction.tag, given)

    def tail(self, bucket: Bucket, array: torch.Tensor) -> Tail | None:
        """Return the presence flags and tag at the end of a CPU array; None if the tag is sent separately."""
        return None if self.streams.runs_ahead or not bucket.exact else bucket.tail_of(array)

    def send_rest(
        self, reduction: Reduction, index: int, start: int, tag: tuple[int, ...], given: CodecInput | None = None
    ) -> None:
        """Write buffers, optimizer state and tag into bucket `index`'s array; start the all-reduce of `array[start:]`.

        The elements before `start` are being sent already; with a codec, `given` describes the encoded values.
        """
        bucket, array, works = reduction.buckets[index], reduction.arrays[index], reduction.works
        communicator = reduction.communicator
        if bucket.piggybacked:
            is_first = communicator.is_first
            load_piggybacked(bucket, array, reduction.num_members, is_first=is_first, rank=self.world.rank)
        if (tail := self.tail(bucket, array)) is not None:
            tail[-TAG_LENGTH:] = tag
        if given is not None:
            part = reduction.coded[index] = CodedPart.made(bucket, array, tag, given, self.streams)
            works += [communicator.all_reduce(one) for one in part.sent()]
            return
        if len(rest := array[start:] if start else array):
            works.append(communicator.all_reduce(rest))
        if tail is None:
            side = reduction.sides[index] = self.streams.upload(tag, torch.float32)
            works.append(communicator.all_reduce(side))

    def wait_for(self, work: Work, operation: Operation, abort_reason: Callable[[], str | None] | None = None) -> None:
        """Wait for `work`, part of `operation`; on CUDA only the current stream waits.

        Raises RuntimeError once `abort_reason`, by default the run's failure handler or the heartbeat, returns a
        reason.
        """
        members, round_ = operation.members, operation.rounds_before
        if not self.streams.runs_ahead:
            self.heartbeat.now = operation.entered, members
        glance = GLANCE_SECONDS if self.outlives is None else self.outlives.glance
        if self.streams.runs_ahead or work.ends_soon(glance):
            work.wait()  # on CUDA the current stream waits, not the host
            return

        def why() -> str | None:
            if abort_reason is not None:
                reason = abort_reason()
            elif self.outlives is not None:
                reason = self.outlives.stop_reason(operation)
            else:
                reason = self.heartbeat.failure_reason(members, round_) or self.heartbeat.in_other_gathering(
                    members, round_
                )
            if reason is not None:
                raise RuntimeError(reason)  # `_why` may replace it by the cause behind it
            return None

        work.wait(Wait(self.heartbeat, members, self.timeout, why=why, glance=glance).check)

    def _why(self, operation: Operation, error: Exception) -> str:
        """Return why a collective failed: the failure of a member if one is known, else which members are silent."""
        first = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        members = operation.members
        deadline = time.monotonic() + DIAGNOSE_SECONDS
        self.heartbeat.watch(members)
        timed_out = "imed out" in first or "timeout" in first.lower()
        ours = timed_out and "Connection timed out" not in first  # the kernel's message for a cut link
        while time.monotonic() < deadline and self.heartbeat.store_lost() is None:
            if timed_out and self.heartbeat.is_diagnosed(members):
                break
            round_ = operation.rounds_before
            if (
                why := self.heartbeat.cause(members, round_) or self.heartbeat.in_other_gathering(members, round_)
            ) is not None:
                return why
            time.sleep(0.05)
        return f"{self.heartbeat.describe_wait(members, self.timeout if ours else None)} ({first})"
