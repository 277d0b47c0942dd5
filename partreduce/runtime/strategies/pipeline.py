"""Strategy `allreduce` with a pipeline: Pipe-SGD (Li et al., NeurIPS 2018, Algorithm 1).

While the sum of a step's gradients travels, the next K - 1 steps are computed: x[s+1] = x[s] - U(g[s-K+1]), where g[s]
is the mean gradient taken at x[s], K the width and U whatever the wrapped optimizer does, momentum and decay included.
All workers apply the same gradients in the same order, so their models stay equal bit for bit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.gradients import clear_gradients, commit_gradients
from partreduce.runtime.averaging.piggybacked import commit_piggybacked, snapshot_piggybacked
from partreduce.runtime.averaging.reduction import Reduction
from partreduce.runtime.strategies.base import Arrived, Run
from partreduce.runtime.strategies.gradient_means import KIND, ON_TIME, TAKEN_ELSEWHERE, GradientMeans
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.axes import WIDER, DrainPolicy, GradientReduction, Pipeline

Before = list[list[torch.Tensor | None]]
"""What rode along, by bucket, as it was when gradients left; empty where only these are taken from the sums."""


@dataclass(slots=True, eq=False, kw_only=True)
class Flight:
    """The gradients of one step on their way to the step that applies them."""

    step: int
    piggybacked: Before = field(default_factory=list)
    scaled: bool = False
    """Whether a GradScaler was at work, so that a gradient that is not finite must be looked for."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Sent(Flight):
    reduction: Reduction
    waited: bool = False


AnyFlight = TypeVar("AnyFlight", bound=Flight)


class LateGradients(GradientMeans, Generic[AnyFlight]):
    """What pipelines have in common, whether the run ends with a failure or continues (see `lasting_pipeline`)."""

    def __init__(self, sync: Pipeline, run: Run) -> None:
        super().__init__(run, divisor=1 if sync.total is GradientReduction.SUM else None)
        self.sync = sync
        self._flights: deque[AnyFlight] = deque()
        if sync.width > 2 and run.rank == 0:
            text = f"partreduce: schedule {run.schedule.name!r} has a pipeline of {sync.width}: {WIDER}"
            warn_user(text)

    def end_step(self, step: int) -> None:
        """Undo the step where the device found that the gradients are no means."""
        if self._flights and self._flights[-1].step == step:
            self._flights[-1].scaled = self.run.applier.scaled
        super().end_step(step)

    def _before(self, step: int) -> Before:
        """What rides along now, with gradients of these steps only."""
        return [snapshot_piggybacked(bucket) for bucket in self.run.flat.buckets] if step % self.sync.lag == 0 else []

    def _in_flight(self) -> str:
        """That the steps whose gradients are in flight are dropped."""
        if not self._flights:
            return ""
        first, last = self._flights[0].step, self._flights[-1].step
        which = f"step {first}" if first == last else f"steps {first} to {last}"
        return f"partreduce: the gradients of {which}, which were in flight, are dropped: the load came after them"

    def harm_of_loading(self, round_: int, *, first: bool) -> str:  # noqa: ARG002 - the signature of all
        """While gradients are in flight, which a model that was loaded by itself has not seen."""
        return TAKEN_ELSEWHERE if self._flights else ""

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` gave: sums that have arrived and wait to be applied.

        Raises:
            InputError: it is not what a pipeline saves.
        """
        late = {name: tensor for name, tensor in state.items() if name.startswith("late/")}
        if rest := {name: tensor for name, tensor in state.items() if name not in late}:
            super().load_state(rest)
        try:
            count = len({name.split("/")[1] for name in late})
            flights = [self._restored(state, f"late/{place}") for place in range(count)]
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            raise InputError(
                f"load_checkpoint: the file holds {', '.join(sorted(late)[:3])} and so on, which are not the late "
                f"gradients of this model ({error})"
            ) from None
        if len(flights) > self.sync.lag:
            raise InputError(
                f"load_checkpoint: the file holds the late gradients of {len(flights)} steps, and a pipeline of "
                f"{self.sync.width} has {self.sync.lag}"
            )
        self._flights = deque(flights)

    @abstractmethod
    def _restored(self, state: Mapping[str, torch.Tensor], prefix: str) -> AnyFlight:
        """One of them."""


class GradientPipeline(LateGradients[_Sent]):
    """Every worker steps with the mean gradient of K - 1 steps ago, whose sum ran while it computed.

    A step waits for the oldest sum, lets the newest gradients go and then applies the oldest: at most K - 1 operations
    are in flight, in K arrays of model size. Where nothing has come back yet (the first K - 1 steps, those after the
    warm-up, and after a load) a gradient of zero goes through the optimizer, as in Algorithm 1; parameters that nobody
    trains get one, too. Buffers that are averaged become x + (mean of K - 1 steps ago - own value then); they
    ride with every (K - 1)-th gradient, as correcting them again before a correction has arrived would oscillate.
    """

    def __init__(self, sync: Pipeline, run: Run) -> None:
        super().__init__(sync, run)
        if self.layers is not None:
            self.layers.may_begin = self._has_room

    def average(self, step: int) -> Arrived:
        """Let this step's gradients go and put those of K - 1 steps ago in their place; in the warm-up average them."""
        if step < self.sync.warm_up:
            return super().average(step)
        arrived = None
        if len(self._flights) == self.sync.lag:
            arrived = self._flights.popleft()
            self._wait(arrived)
            # Before this step's leave: they are to be what the others will see corrected.
            self._commit_piggybacked(arrived)
        self._send(step)
        if arrived is None:
            clear_gradients(self.run.flat.buckets)
            return ON_TIME
        self._commit(arrived)
        self.run.applier.remember(arrived.reduction.ok)
        return Arrived(scaled=arrived.scaled)

    def _has_room(self) -> bool:
        """Whether another sum may begin: fewer than K - 1 are in flight, or the oldest has arrived."""
        return len(self._flights) < self.sync.lag or all(
            work.is_completed() for work in self._flights[0].reduction.works
        )

    def settle(self) -> None:
        """Wait for the sums in flight, which stay for the steps that apply them.

        Raises:
            PeerFailedError: a worker is gone.
        """
        for flight in list(self._flights):
            self._wait(flight)
        self.run.reducer.flush()

    def conclude(self) -> None:
        """Apply the gradients that are still late, one after the other, or drop them, as the schedule says."""
        while self._flights:
            flight = self._flights.popleft()
            self._wait(flight)
            self._commit_piggybacked(flight)
            if self.sync.drain is DrainPolicy.APPLY:
                self.run.applier.apply(lambda one=flight: self._commit(one), check_finite=flight.scaled)  # type: ignore[misc]
            else:
                flight.reduction.release()

    def drain(self) -> str:
        """Drop the gradients in flight: what is loaded next has not seen them."""
        lost = self._in_flight()
        super().drain()
        for flight in self._flights:
            flight.reduction.release()
        self._flights.clear()
        return lost

    def state(self) -> dict[str, torch.Tensor]:
        """The sums in flight, which are waited for, with all that belongs to them."""
        for flight in list(self._flights):
            self._wait(flight)
        named = super().state()
        for place, flight in enumerate(self._flights):
            reduction = flight.reduction
            named |= saved(flight, f"late/{place}", reduction.buckets, reduction.arrays, reduction.absent)
        return named

    def _restored(self, state: Mapping[str, torch.Tensor], prefix: str) -> _Sent:
        step, scaled, with_piggybacked = map(int, state[f"{prefix}/facts"])
        reducer, group = self.run.reducer, self.group
        operation = reducer.recorder.begin(KIND, step, step, group.members, 0)
        reducer.recorder.end(operation, "restored")
        communicator = reducer.world.communicator(group.members)
        reduction = Reduction(communicator, group, operation, (), self.run.flat.buckets)
        for index, (bucket, array) in enumerate(zip(reduction.buckets, reduction.arrays, strict=True)):
            array[: bucket.tail + len(bucket.slots)].copy_(state[f"{prefix}/sums/{index}"])
            reduction.absent[index] = frozenset(state[f"{prefix}/absent/{index}"].tolist())
        before = before_of(state, prefix, reduction.buckets) if with_piggybacked else []
        return _Sent(step=step, reduction=reduction, piggybacked=before, scaled=bool(scaled), waited=True)

    def _send(self, step: int) -> None:
        before = self._before(step)
        self._flights.append(_Sent(step=step, reduction=self.send(step), piggybacked=before))

    def _wait(self, flight: _Sent) -> None:
        if flight.waited:
            return
        try:
            self.run.reducer.wait(flight.reduction)
        except InputError:
            if flight in self._flights:
                self._flights.remove(flight)
            raise
        flight.waited = True

    def _commit_piggybacked(self, flight: _Sent) -> None:
        """Correct the buffers by what has become known of how they differed."""
        reducer, reduction = self.run.reducer, flight.reduction
        if not flight.piggybacked:
            return
        with torch.no_grad():
            for bucket, sums, before in zip(reduction.buckets, reduction.arrays, flight.piggybacked, strict=True):
                with reducer.stream(bucket.device):
                    commit_piggybacked(bucket, sums, reduction.ok, before)
        reducer.rejoin()

    def _commit(self, flight: _Sent) -> torch.Tensor | None:
        """Make the sums the parameters' gradients; the check on them."""
        reduction = flight.reduction

        def commit(index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
            commit_gradients(bucket, sums, ok, reduction.absent[index])

        self.run.reducer.commit(reduction, commit)
        return reduction.ok


def saved(
    flight: Flight,
    prefix: str,
    buckets: Sequence[Bucket],
    arrays: Sequence[torch.Tensor],
    absent: Mapping[int, frozenset[int]],
) -> dict[str, torch.Tensor]:
    """A flight whose sums have arrived, by the names that they have in a file."""
    named = {f"{prefix}/facts": torch.tensor([flight.step, int(flight.scaled), len(flight.piggybacked)])}
    for index, (bucket, sums) in enumerate(zip(buckets, arrays, strict=True)):
        named[f"{prefix}/sums/{index}"] = sums[: bucket.tail + len(bucket.slots)]
        named[f"{prefix}/absent/{index}"] = torch.tensor(sorted(absent[index]), dtype=torch.int64)
    for index, values in enumerate(flight.piggybacked):
        named |= {f"{prefix}/piggybacked/{index}/{at}": v for at, v in enumerate(values) if v is not None}
    return named


def before_of(state: Mapping[str, torch.Tensor], prefix: str, buckets: Sequence[Bucket]) -> Before:
    """What rode along with a flight that was saved so."""
    found: Before = []
    for index, bucket in enumerate(buckets):
        values = (state.get(f"{prefix}/piggybacked/{index}/{at}") for at in range(len(bucket.piggybacked)))
        found.append([None if value is None else value.to(bucket.device) for value in values])
    return found
