"""Run strategy `allreduce` for gradients: average over all workers before the step, as in DDP, or in a pipeline.

Pipe-SGD (Li et al., NeurIPS 2018, Algorithm 1): x[s+1] = x[s] - U(g[s-K+1]), where g[s] is the mean gradient taken at
x[s], K the width of the pipeline and U the update of the wrapped optimizer. All workers apply the same gradients in the
same order, so their models stay bitwise equal.
"""

from __future__ import annotations

import torch

from partreduce.runtime.averaging.bucket import Bucket, commit_piggybacked, snapshot_piggybacked
from partreduce.runtime.averaging.bucketed_gradients import LayerSender
from partreduce.runtime.averaging.gradients import Snapshot, clear_gradients, commit_gradients
from partreduce.runtime.averaging.in_flight import KEY, Flight, State, Sums, restore_flights, state_of
from partreduce.runtime.averaging.reduction import Content
from partreduce.runtime.codecs import Codings
from partreduce.runtime.liveness.settings import settings_of
from partreduce.runtime.strategies.base import (
    DIFFERENT,
    ON_TIME,
    AveragedGradients,
    Run,
    Runner,
    StepRequest,
    StepResult,
)
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group
from partreduce.topo.strategies.axes import WIDER, DrainPolicy, GradientBuckets, Pipeline

KIND = "gradient average"


class GradientAverage(Runner):
    """Runner in which every worker steps with the averaged gradient of this step, or, in a pipeline, of an earlier one.

    With a `divisor` of 1 gradients are summed. With a `pipeline` of width K a step waits for the oldest all-reduce,
    starts that of the newest gradients, and applies the oldest, of K - 1 steps ago: at most K - 1 are in flight, in K
    arrays of model size, and K - 1 more if workers may fail or join. The first K - 1 steps apply zeros, as in Algorithm
    1. An averaged buffer x becomes x + (mean - own value), both of K - 1 steps ago. Buffers are sent with every (K -
    1)-th gradient only: a second correction before the first has arrived would oscillate.
    """

    def __init__(self, run: Run, *, divisor: int | None = None, pipeline: Pipeline | None = None) -> None:
        super().__init__(run)
        self._divisor, self._pipeline = divisor, pipeline
        self._lag = 0 if pipeline is None else pipeline.lag
        self._due = run.schedule.strategy.sync.due
        group = run.schedule.group_of(run.rank, 0)
        assert group is not None, "all-reduce has every worker in its group"
        self.group = group
        transport = run.schedule.strategy.transport
        self.layers: LayerSender | None = None
        if transport.gradient_buckets is GradientBuckets.PER_LAYER:
            self.layers = LayerSender(run.reducer, run.flat.model.parameters(), KIND, self.membership, divisor=divisor)
            self.membership.changed.append(self.layers.restart)
            self.layers.clock = lambda: run.progress.step
            self.layers.settings = lambda: settings_of(run.applier.optimizer)
            if pipeline is not None:
                self.layers.may_begin = self._has_room
        num_parts = len(run.flat.buckets) if self.layers is None else len(self.layers.segments)
        self._codings = Codings.of(transport, num_parts)
        if self._codings is not None:
            # The rounding errors are of shards that other members own then, and a repeated all-reduce rounds again.
            self.membership.changed.append(self._codings.clear)
        if self.layers is not None:
            self.layers.codings = self._codings
        if pipeline is not None and pipeline.width > 2 and run.rank == 0:
            warn_user(f"partreduce: schedule {run.schedule.name!r} has a pipeline of {pipeline.width}: {WIDER}")

    def before_step(self, step: int) -> AveragedGradients:
        membership, applier = self.membership, self.run.applier
        newest = Flight(
            # Part of the tag, so that an error tells if only some workers clipped in the last step.
            kind=f"{KIND} after a changed mean" if applier.changes_means else KIND,
            turn=self._due(step), step=step, round=step, start=self._start, group=self.group,
            settings=settings_of(applier.optimizer),
        )  # fmt: skip
        if newest.turn == step:
            self._commit(membership.wait(newest))
            return ON_TIME
        if membership.may_change:
            newest.kept = [Snapshot.of_gradients(bucket) for bucket in self.run.flat.buckets]
        arrived = None
        if len(membership.flights) >= self._lag:  # more after a failed step, or a loaded state of another pipeline
            oldest = membership.flights[0]
            oldest.turn = step
            arrived = membership.wait(oldest)
            # Before this step's buffers are sent, so that those are corrected.
            self._correct_buffers(arrived)
        else:
            membership.skip(step)
        membership.begin(newest)
        if arrived is None:
            clear_gradients(self.run.flat.buckets)
            return ON_TIME
        self._commit(arrived)
        return AveragedGradients(scaled=arrived.scaled)

    def _start(self, flight: Flight, group: Group) -> Sums:
        """Start the all-reduce of the gradients of `flight` in `group`, or of those that no backward pass has sent."""
        is_late, flight.before = flight.turn > flight.step, ()
        if is_late and flight.step % self._lag == 0 and len(group.members) > 1:
            flight.before = [snapshot_piggybacked(bucket) for bucket in self.run.flat.buckets]
        if self.layers is not None:
            return [(self.run.reducer, self.layers.finish(flight.step))]
        divisor = self._divisor or (self.membership.givers(flight.step) if self.membership.may_change else None)
        codings = None if self._codings is None else self._codings.of_buckets
        content = Content(gradients=True, kept=flight.kept, divisor=divisor, codings=codings, settings=flight.settings)
        return [(self.run.reducer, self.run.reducer.begin(flight.kind, flight.step, flight.round, group, content))]

    def _commit(self, flight: Flight) -> None:
        if (ok := self._put(flight)) is not None:
            self.run.applier.remember(ok)

    def _put(self, flight: Flight, *, changes: bool = False) -> torch.Tensor | None:
        """Write `flight`'s averages into the parameters' gradients; with `changes` call the script's `after_averaging`.

        Returns whether they are valid, as a 0-d bool tensor on the device; None if the host has checked that already.
        """
        is_late, ok = flight.turn > flight.step, None
        for reducer, reduction in flight.sums or ():

            def commit(index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
                commit_gradients(bucket, sums, ok, reduction.absent[index])  # noqa: B023 - called here
                if bucket.piggybacked and not is_late:
                    commit_piggybacked(bucket, sums, ok)

            reducer.commit(reduction, commit)
            ok = reduction.ok
        flight.release_kept()
        if changes and (change := self.run.applier.after_averaging) is not None:
            change()
        return ok

    def _correct_buffers(self, flight: Flight) -> None:
        """Add to each averaged buffer (mean − own value) of the step in which `flight` started."""
        for reducer, reduction in flight.sums if flight.sums and flight.before else ():
            with torch.no_grad():
                for bucket, sums, before in zip(reduction.buckets, reduction.arrays, flight.before, strict=True):
                    with reducer.stream():
                        commit_piggybacked(bucket, sums, reduction.ok, before)
            reducer.rejoin()

    def _has_room(self) -> bool:
        """Return whether another all-reduce may start: fewer than K - 1 are in flight, or the oldest is done."""
        flights = self.membership.flights
        return len(flights) < self._lag or all(
            work.is_completed() for _, reduction in flights[0].sums or () for work in reduction.works
        )

    def after_step(self, step: int) -> StepResult:
        """Undo the step if a check on the device found its averaged gradients invalid (only on CUDA)."""
        if self._lag and (flights := self.membership.flights) and flights[-1].step == step:
            flights[-1].scaled = self.run.applier.scaled
        if self.run.reducer.streams.runs_ahead:
            self.run.applier.undo()
        if self.layers is not None:
            self.layers.reopen()
        return DIFFERENT

    def check_step(self, request: StepRequest) -> None:
        """Raise InputError for a step that would change gradients which the backward pass has sent by layers."""
        if self.layers is None:
            return
        if request.skip:
            self.pause("skip")
        if request.scaled:
            raise InputError(
                "GradScaler: divides gradients after backward(), when they have left already, since they are sent by "
                "layers; let gradients travel whole, or use bfloat16, which needs no scaler"
            )
        if request.early:
            self.layers.check_late()

    def pause(self, place: str, *, apply: bool = True) -> int:
        """Return 0; with `apply`, raise InputError (for operation `place`) if sent gradients wait for their step."""
        if apply and self.layers is not None and self.layers.is_under_way:
            raise InputError(
                f"{place}: this step's gradients have left during backward(), since they are sent by layers; "
                "call step() first, or let gradients travel whole"
            )
        return 0

    def settle(self, *, ends: bool = False) -> None:
        """Wait for operations in flight; if the run `ends`, apply or drop delayed gradients, as the schedule says."""
        while ends and (flights := self.membership.flights):
            flight = self.membership.wait(flights[0], meets=True)
            self._correct_buffers(flight)
            if self._pipeline is not None and self._pipeline.drain is DrainPolicy.APPLY:
                self.run.applier.apply(lambda one=flight: self._put(one, changes=True), check_finite=flight.scaled)  # type: ignore[misc]
            else:
                flight.release()
        super().settle()

    @property
    def is_measured(self) -> bool:
        """Whether gradients are in flight, which do not fit a model that is loaded now."""
        return bool(self.membership.flights)

    def drain(self) -> str:
        """Drop gradients in flight and codecs' rounding errors, before a model is loaded.

        Returns a warning that names the steps whose gradients are lost; empty if there are none.
        """
        lost = ""
        if flights := self.membership.flights:
            first, last = flights[0].step, flights[-1].step
            which = f"step {first}" if first == last else f"steps {first} to {last}"
            lost = f"partreduce: the gradients of {which}, which were in flight, are dropped: the load came after them"
        if self.layers is not None:
            self.layers.drop()
        self.membership.drop()
        self.settle()
        if self._codings is not None:
            self._codings.clear()
        return lost

    def close(self, *, failed: bool = False) -> None:
        if self.layers is not None:
            self.layers.close()
        super().close(failed=failed)

    def state(self) -> State:
        membership, joins = self.membership, self.membership.is_between
        if not joins:
            for flight in tuple(membership.flights):
                membership.arrive(flight)
        named = {} if self._codings is None else self._codings.state()
        for place, flight in enumerate(membership.flights):
            named |= state_of(flight, f"{KEY}/{place}", self.run.flat.buckets, joins=joins)
        return named

    def load(self, state: State, step: int) -> None:
        late = {name for name in state if name.startswith(f"{KEY}/")}
        if rest := {name: tensor for name, tensor in state.items() if name not in late}:
            if self._codings is None or not self._codings.state():
                super().load(rest, step)
            else:
                self._codings.load_state(rest)
        try:
            count = len({name.split("/")[1] for name in late})
            flights = [
                restore_flights(state, f"{KEY}/{place}", self.run.reducer, self._start, lambda _: self.group)
                for place in range(count)
            ]
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            raise InputError(
                f"the file holds {', '.join(sorted(late)[:3])} and so on, which are not the late "
                f"gradients of this model ({error})"
            ) from None
        if len(flights) > self._lag:
            raise InputError(
                f"the file holds the late gradients of {len(flights)} steps, and a pipeline of "
                f"{self._lag + 1} has {self._lag}"
            )
        self.membership.flights.extend(flights)
