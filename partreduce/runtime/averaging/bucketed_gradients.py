"""Send a step's gradients in segments during the backward pass, overlapped with the rest of it.

A segment is a range of a bucket's flat array. The ranges are sent from the end of the array toward its start, each once
all its parameters have gradients, in the same order on all workers. Gradients of unused parameters, piggybacked
buffers, presence flags and the tag follow at the end of the step. Changing a gradient that was already sent is an error
at `step()`; the all-reduce is then completed with a tag that matches no other, so that it fails on every worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from partreduce.runtime.averaging.bucket import Bucket, Slot
from partreduce.runtime.averaging.gradients import load_presence, load_some, sparse_gradient
from partreduce.runtime.averaging.in_flight import FixedMembership
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reduction import CodecInput, Content, Reduction
from partreduce.runtime.codecs import Coding, Codings
from partreduce.runtime.liveness.settings import Settings
from partreduce.runtime.transport.tags import tag_of
from partreduce.runtime.transport.torch_api import torch_compile_disable
from partreduce.topo.errors import InputError, PartreduceError, UnavailableError
from partreduce.topo.phase import Group

SEGMENT_BYTES = 128 * 2**10  # smaller layers share a segment: 5 ms at 200 Mbit/s, more than an operation's fixed cost


class Segment(NamedTuple):
    """The range `start:stop` of the array of bucket number `bucket`, sent together; `slots` are its parameters."""

    bucket: int
    start: int
    stop: int
    slots: tuple[int, ...]


def segments_of(buckets: Sequence[Bucket], order: Iterable[torch.nn.Parameter]) -> list[Segment]:
    """Return the segments in sending order, last layer first; `order` has the parameters from the first layer on."""
    places = {parameter: place for place, parameter in enumerate(order)}
    found: list[tuple[int, Segment]] = []
    for index, bucket in enumerate(buckets):
        stop, taken, mine = bucket.size, [], []
        for number in reversed(range(len(bucket.slots))):
            taken.append(number)
            start = bucket.slots[number].start
            if (stop - start) * bucket.dtype.itemsize >= SEGMENT_BYTES or number == 0:
                mine.append(Segment(index, start, stop, tuple(taken)))
                stop, taken = start, []
        if len(mine) > 1 and (mine[-1].stop - mine[-1].start) * bucket.dtype.itemsize < SEGMENT_BYTES:
            first, second = mine.pop(), mine.pop()
            mine.append(Segment(index, first.start, second.stop, second.slots + first.slots))
        # The backward pass reaches a segment's first layer last; only then is the segment complete.
        found += [(min(places[bucket.slots[slot].parameter] for slot in one.slots), one) for one in mine]
    return [segment for _, segment in sorted(found, key=lambda pair: -pair[0])]


class LayerSender:
    """Sender of the gradients of a reducer's buckets in segments (ranges of a flat array) during the backward pass.

    `order` has the parameters from the first to the last layer, `kind` names the operation in tags and traces, and
    gradients are divided by `divisor`, by default the number of members.
    """

    def __init__(
        self, reducer: Reducer, order: Iterable[torch.nn.Parameter], kind: str, membership: FixedMembership, *,
        divisor: int | None = None,
    ) -> None:  # fmt: skip
        self.reducer, self.kind, self.membership, self._divisor = reducer, kind, membership, divisor
        self.segments = segments_of(reducer.buckets, order)
        self.codings: Codings | None = None
        self.clock: Callable[[], int] = lambda: 0  # the step that the backward pass belongs to
        self.settings: Callable[[], Settings] = tuple  # the optimizer's settings for that step
        self.may_begin: Callable[[], bool] = lambda: True  # whether the first segment may be sent already
        self._of: dict[torch.Tensor, tuple[int, Slot]] = {
            reducer.buckets[segment.bucket].slots[slot].parameter: (number, reducer.buckets[segment.bucket].slots[slot])
            for number, segment in enumerate(self.segments)
            for slot in segment.slots
        }
        self._made: dict[torch.Tensor, tuple[int, int]] = {}  # id and version of each gradient of this step
        self._missing: list[int] = []
        self._reduction: Reduction | None = None
        self._coded: list[Coding] | None = None
        self._given: dict[int, CodecInput] = {}
        self._sent = 0
        self._closed = self._gives_up = False
        self._problem: PartreduceError | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
            for parameter in self._of
        ]

    @property
    def is_under_way(self) -> bool:
        """Whether a backward pass has sent gradients whose `step()` has not been taken yet."""
        return bool(self._made) and not self._closed

    def finish(self, step: int) -> Reduction:
        problem = self._problem or self._find_changed_gradient(step)
        if problem is not None:
            if isinstance(problem, InputError):
                self.drop()
            raise problem
        reduction = self._open_reduction(step)
        self.reducer.send(reduction, lambda: self._send_rest(reduction, reduction.tag))
        self._forget()
        self._closed = True
        return reduction

    def check_late(self) -> None:
        """Raise InputError if a backward pass added gradients after this step's were averaged and before `step()`."""
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem

    def reopen(self) -> None:
        """Start the next step: gradients of later backward passes belong to it."""
        self._closed = self._gives_up = False
        self._problem = None
        self._made.clear()

    def restart(self) -> None:
        """Discard the segments that were sent, since the membership changed; `finish` sends all gradients again."""
        if self._reduction is not None:
            self._reduction.abandon()
        self._forget()
        if isinstance(self._problem, UnavailableError):
            self._problem = None

    def drop(self) -> None:
        """Give up this step's gradients: send the rest with a tag that no other member sends; all members then fail."""
        if self.is_under_way:
            step, self._gives_up = self.clock(), True
            reduction = self._open_reduction(step)
            wrong = tag_of(self.reducer.key, self.kind, step, "given up")
            self.reducer.send(reduction, lambda: self._send_rest(reduction, wrong))
            self.reducer.recorder.end(reduction.operation, "given up")
        self._forget()
        self.reopen()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    @torch_compile_disable
    def _ready(self, parameter: torch.Tensor) -> None:
        """Autograd hook: record a complete gradient and send complete segments; keep errors for `step()`."""
        if self._problem is not None:
            return
        number, slot = self._of[parameter]
        if self._closed or parameter in self._made:
            when = "between average_gradients() and step()" if self._closed else "a second time before step()"
            self._problem = _usage_error(f"parameter {slot.names[0]!r} got a gradient {when}, after the first had left")
            return
        if parameter.grad is None:
            return
        if parameter.grad.layout is not torch.strided:
            self._problem = sparse_gradient(slot.names[0])
        if not self._made:
            self._missing = [
                sum(self.reducer.buckets[one.bucket].slots[i].parameter.requires_grad for i in one.slots)
                for one in self.segments
            ]
        self._made[parameter] = id(parameter.grad), parameter.grad._version  # noqa: SLF001 - torch has no public way
        self._missing[number] -= 1
        if self._problem is not None:
            return
        try:
            with self.membership.outliving():
                self._send_ready()
        except PartreduceError as error:
            self._problem = error

    def _send_ready(self) -> None:
        while self._sent < len(self.segments) and self._missing[self._sent] == 0:
            if self._reduction is None and not self.may_begin():
                return
            reduction = self._open_reduction(self.clock())
            self.reducer.send(reduction, lambda one=reduction: self._send_next(one))  # type: ignore[misc]

    def _open_reduction(self, step: int) -> Reduction:
        if self._reduction is None:
            group = Group(self.membership.members)
            self._reduction = self.reducer.begin_parts(self.kind, step, group, Content(settings=self.settings()))
            self._coded = None if self.codings is None else self.codings.of_buckets
            self._sent, self._given = 0, {}
        return self._reduction

    def _send_next(self, reduction: Reduction) -> None:
        segment = self.segments[self._sent]
        bucket, array = reduction.buckets[segment.bucket], reduction.arrays[segment.bucket]
        slots = [bucket.slots[slot] for slot in segment.slots]
        with self.reducer.stream(), torch.no_grad():
            part = array[segment.start : segment.stop]
            if self._gives_up:
                part.zero_()
            else:
                windows = bucket.windows(array)
                load_some(slots, [windows[slot] for slot in segment.slots], self._divisor or reduction.num_members)
            coding = None if self._coded is None else self._coded[self._sent]
            if coding is not None:
                given = CodecInput.of(slots, array, part, coding, self.reducer.streams)
                before = self._given.get(segment.bucket)
                self._given[segment.bucket] = given if before is None else before.together(given)
            reduction.works.append(reduction.communicator.all_reduce(part, coding))
        self._sent += 1

    def _send_rest(self, reduction: Reduction, tag: tuple[int, ...]) -> None:
        while self._sent < len(self.segments):
            self._send_next(reduction)
        for index, (bucket, array) in enumerate(zip(reduction.buckets, reduction.arrays, strict=True)):
            with self.reducer.stream(), torch.no_grad():
                absent = frozenset(place for place, slot in enumerate(bucket.slots) if slot.parameter.grad is None)
                load_presence(bucket, array, absent, self.reducer.tail(bucket, array))
                reduction.absent[index], given = absent, self._given.get(index)
                if given is None and self._coded is not None:
                    given = CodecInput(self._coded[0], torch.zeros(1, device=bucket.device))
                self.reducer.send_rest(reduction, index, bucket.size, tag, given)

    def _find_changed_gradient(self, step: int) -> InputError | None:
        for parameter, (tensor, version) in self._made.items():
            gradient = parameter.grad
            if gradient is None or id(gradient) != tensor or gradient._version != version:  # noqa: SLF001 - as above
                name = self._of[parameter][1].names[0]
                return _usage_error(
                    f"step {step}: the gradient of {name!r} was changed after backward(), when it had left"
                )
        return None

    def _forget(self) -> None:
        self._reduction, self._coded, self._sent, self._given = None, None, 0, {}


def _usage_error(what: str) -> InputError:
    return InputError(
        f"sending layers: {what}; call average_gradients() right after the one backward() and change the means, or let "
        "gradients travel whole, as accumulation and GradScaler need it"
    )
