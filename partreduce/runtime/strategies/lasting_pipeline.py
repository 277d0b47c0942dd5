"""A pipeline of gradients in a run that continues after failures.

What all do or nobody does is to apply the mean gradient of a step (see `elastic.generations`). Its sum is begun K - 1
steps ahead of that, and dropped with the generation (see `elastic.sums_ahead`). So each worker keeps the gradients that
it gives until their mean is applied. A mean is over those who are left when it is applied, and took the step that it is
of: who has joined since has nothing to give.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch

from partreduce.runtime.averaging.gradients import KeptGradients, clear_gradients, commit_gradients, load_gradients
from partreduce.runtime.averaging.piggybacked import commit_piggybacked
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reduction import Reduction
from partreduce.runtime.elastic.generations import Begin, Commit
from partreduce.runtime.elastic.sums_ahead import Sums
from partreduce.runtime.strategies.base import Arrived, Run
from partreduce.runtime.strategies.gradient_means import ON_TIME, Contribution
from partreduce.runtime.strategies.pipeline import Flight, LateGradients, before_of, saved
from partreduce.topo.phase import Group
from partreduce.topo.strategies.axes import DrainPolicy, Pipeline


@dataclass(slots=True, eq=False, kw_only=True)
class _Kept(Flight):
    given: Contribution
    sums: list[torch.Tensor] = field(default_factory=list)
    """By bucket, where a checkpoint held them, and no group is asked any more."""
    absent: Mapping[int, frozenset[int]] = field(default_factory=dict)


class _Operation(Protocol):
    def __call__(self, begin: Begin, commit: Commit, alone: Callable[[], object], *, ahead: int | None) -> None: ...


class ElasticPipeline(LateGradients[_Kept]):
    """As `GradientPipeline`, with an operation of all in each step, that of a step without a mean yet a sum of nothing.

    Keeps up to K - 1 copies of the gradients more.
    """

    def __init__(self, sync: Pipeline, run: Run) -> None:
        super().__init__(sync, run)
        assert run.generations is not None, "as said"
        self._generations = run.generations

    def average(self, step: int) -> Arrived:
        """Put the gradients of K - 1 steps ago in place, and let this step's go; in the warm-up average them."""
        if step < self.sync.warm_up:
            return super().average(step)
        newest = _Kept(step=step, given=self._kept())
        arrived = ON_TIME

        def operation(begin: Begin, commit: Commit, alone: Callable[[], object], *, ahead: int | None) -> None:
            self._generations.carry_out(step, begin, commit, alone, ahead=ahead)

        if len(self._flights) < self.sync.lag:
            operation(lambda _: [], _nothing, _nothing, ahead=None)
            clear_gradients(self.run.flat.buckets)
        else:
            oldest = self._flights[0]
            self._merge(oldest, operation, lambda arrays, absent: self._put(oldest, arrays, absent))
            arrived = Arrived(scaled=oldest.scaled)
        self._flights.append(newest)
        self._begin_ahead(newest)
        return arrived

    def connected(self) -> None:
        """All have dropped the same sums."""
        for flight in self._flights:
            self._begin_ahead(flight)

    def settle(self) -> None:
        """What is in flight neither hinders a mean nor is changed by it."""
        self.run.reducer.flush()

    def conclude(self) -> None:
        """As `GradientPipeline`; a worker that joins the others takes no part in this."""
        while self._flights:
            flight = self._flights[0]
            apply = partial(self._apply, flight)
            self._merge(flight, self._generations.meet, apply)

    def drain(self) -> str:
        """Drop the gradients in flight: what is loaded next has not seen them."""
        lost = self._in_flight()
        self._generations.drop_ahead()
        while self._flights:
            self._release(self._flights.popleft())
        super().drain()
        return lost

    def state(self) -> dict[str, torch.Tensor]:
        """For a checkpoint the sums in flight, which are waited for; for who joins what it needs to know of them."""
        named = super().state()
        for place, flight in enumerate(list(self._flights)):
            prefix = f"late/{place}"
            if flight.sums:
                named |= saved(flight, prefix, self.run.flat.buckets, flight.sums, flight.absent)
            elif self._generations.is_between:
                named[f"{prefix}/facts"] = torch.tensor([flight.step, int(flight.scaled), 0])
                told = json.dumps([flight.given.kind, flight.given.settings]).encode()
                named[f"{prefix}/told"] = torch.frombuffer(bytearray(told), dtype=torch.uint8)
            else:
                named |= saved(flight, prefix, self.run.flat.buckets, *self._sums_of(flight))
        return named

    def _restored(self, state: Mapping[str, torch.Tensor], prefix: str) -> _Kept:
        step, scaled, with_piggybacked = map(int, state[f"{prefix}/facts"])
        buckets = self.run.flat.buckets
        none = [KeptGradients.none(bucket) for bucket in buckets]
        if f"{prefix}/told" in state:
            kind, settings = _tuples(json.loads(bytes(state[f"{prefix}/told"].tolist())))
            return _Kept(step=step, scaled=bool(scaled), given=Contribution(kind, settings, none))
        sums = [bucket.lend() for bucket in buckets]
        for index, (bucket, array) in enumerate(zip(buckets, sums, strict=True)):
            array[: bucket.tail + len(bucket.slots)].copy_(state[f"{prefix}/sums/{index}"])
        return _Kept(
            step=step,
            scaled=bool(scaled),
            piggybacked=before_of(state, prefix, buckets) if with_piggybacked else [],
            given=Contribution("", (), none),
            sums=sums,
            absent={index: frozenset(state[f"{prefix}/absent/{index}"].tolist()) for index in range(len(buckets))},
        )

    def _kept(self) -> Contribution:
        return replace(self.contribution(), gradients=[KeptGradients.of(bucket) for bucket in self.run.flat.buckets])

    def _begin(self, flight: _Kept, group: Group) -> Sums:
        """Begin the sum of a step's gradients; what rides along is as it is now."""
        flight.piggybacked = self._before(flight.step)
        given = flight.given
        if given.divisor is None:
            given = replace(given, divisor=max(1, self._generations.givers(flight.step)))
        return [(self.run.reducer, self.send(flight.step, group, given))]

    def _begin_ahead(self, flight: _Kept) -> None:
        if not flight.sums:
            turn = flight.step + self.sync.lag
            self._generations.begin_ahead(flight.step, turn, lambda group: self._begin(flight, group))

    def _merge(
        self,
        flight: _Kept,
        operation: _Operation,
        put: Callable[[Sequence[torch.Tensor], Mapping[int, frozenset[int]]], None],
    ) -> None:
        """Carry out the operation of the oldest flight, and `put` in place its sums, by the slots without one here."""

        def commit(_: Reducer, reduction: Reduction) -> None:
            put(reduction.arrays, reduction.absent)
            reduction.release()

        def alone() -> None:
            arrays, absent = self._own(flight)
            put(arrays, absent)
            self._give_back(arrays)

        try:
            if flight.sums:
                operation(lambda _: [], commit, _nothing, ahead=None)
                put(flight.sums, flight.absent)
            else:
                operation(lambda group: self._begin(flight, group), commit, alone, ahead=flight.step)
        finally:  # also where all refuse it
            self._flights.popleft()
        self._release(flight)

    def _put(self, flight: _Kept, arrays: Sequence[torch.Tensor], absent: Mapping[int, frozenset[int]]) -> None:
        """Make the sums the parameters' gradients, and correct the buffers by what has become known of them."""
        self._correct(flight, arrays)
        with torch.no_grad():
            for index, (bucket, sums) in enumerate(zip(self.run.flat.buckets, arrays, strict=True)):
                commit_gradients(bucket, sums, None, absent[index])

    def _apply(self, flight: _Kept, arrays: Sequence[torch.Tensor], absent: Mapping[int, frozenset[int]]) -> None:
        """Step with the sums, or drop them, as the schedule says."""
        if self.sync.drain is DrainPolicy.APPLY:
            self.run.applier.apply(lambda: self._put(flight, arrays, absent), check_finite=flight.scaled)
        else:
            self._correct(flight, arrays)

    def _correct(self, flight: _Kept, arrays: Sequence[torch.Tensor]) -> None:
        if flight.piggybacked:
            with torch.no_grad():
                for bucket, sums, before in zip(self.run.flat.buckets, arrays, flight.piggybacked, strict=True):
                    commit_piggybacked(bucket, sums, None, before)

    def _sums_of(self, flight: _Kept) -> tuple[Sequence[torch.Tensor], Mapping[int, frozenset[int]]]:
        turn = flight.step + self.sync.lag
        found = self._generations.arrived_ahead(flight.step, turn, lambda group: self._begin(flight, group))
        if found:
            return found[0][1].arrays, found[0][1].absent
        arrays, absent = self._own(flight)
        copies = [array.clone() for array in arrays]
        self._give_back(arrays)
        return copies, absent

    def _own(self, flight: _Kept) -> tuple[Sequence[torch.Tensor], Mapping[int, frozenset[int]]]:
        """What the sums of a worker are that is the only one left."""
        flight.piggybacked = []
        assert flight.given.gradients is not None, "kept for as long as there are no sums"
        arrays = [bucket.lend() for bucket in self.run.flat.buckets]
        every = zip(self.run.flat.buckets, arrays, flight.given.gradients, strict=True)
        absent = [load_gradients(bucket, array, 1, kept=kept) for bucket, array, kept in every]
        return arrays, dict(enumerate(absent))

    def _release(self, flight: _Kept) -> None:
        for bucket, kept in zip(self.run.flat.buckets, flight.given.gradients or (), strict=True):
            kept.release(bucket)
        self._give_back(flight.sums)

    def _give_back(self, arrays: Sequence[torch.Tensor]) -> None:
        for bucket, array in zip(self.run.flat.buckets, arrays, strict=bool(arrays)):
            bucket.give_back(array)


def _nothing(*_: object) -> None:
    pass


def _tuples(value: Any) -> Any:  # noqa: ANN401 - what JSON holds
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
