"""Run rounds that end with an average of parameters: `static`, `allreduce`, `neighbor`, outer steps, and fragments.

A `Part` runs the averages of one fragment of the model, or of all of it, at steps that depend only on the schedule. All
workers thus run the same operations in the same order, even with several in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from partreduce.runtime.averaging.bucket import (
    Bucket,
    commit_delayed,
    commit_mean,
    commit_piggybacked,
    copy_to,
    rescale_progress,
    snapshot_piggybacked,
)
from partreduce.runtime.averaging.flat_model import BufferPolicy
from partreduce.runtime.averaging.gradients import Snapshot
from partreduce.runtime.averaging.in_flight import KEY, Flight, State, Sums, restore_flights, state_of
from partreduce.runtime.averaging.neighbor_reducer import Neighborhood, PeerReducer
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reduction import Content, Reduction
from partreduce.runtime.averaging.reference import OuterOptimizer, Reference
from partreduce.runtime.codecs import Codings
from partreduce.runtime.strategies.base import ON_TIME, AveragedGradients, Run, Runner, StepResult, check_kept
from partreduce.topo.errors import InputError
from partreduce.topo.metrics.stability import check_unstable
from partreduce.topo.phase import Group
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import CodecScope
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.topo.strategies.payload import Move, moves, round_ends
from partreduce.topo.strategies.static import StaticGroups


class Part:
    """Averaging of one fragment of the model, or the whole: x ← x + relaxation · (mean − x) over the round's group.

    With a delay the mean is of parameters at the start of the round and is computed during the round: x_{k+1} = W_k x_k
    + u_k(x_k), where W_k averages over the groups of round k and u_k is the worker's change in it. With step-normalized
    averaging each change is first scaled by `Run.progress_factor`. Either needs one more copy of the parameters.

    With a codec or outer steps, workers hold reference parameters, bitwise equal on all: they send x − reference, and
    the mean over all workers is the next reference. Outer steps (DiLoCo) use the mean change as the gradient of an
    outer optimizer. With separate outer parameters per worker (NoLoCo), whole models are sent, and each member takes an
    outer step from its own. This needs two more arrays: reference and momentum.
    """

    def __init__(self, run: Run, reducer: Reducer, number: int, groups: Sequence[Group | None]) -> None:
        strategy = run.schedule.strategy
        transport, outer, self._count = strategy.transport, strategy.payload.outer, strategy.payload.num_fragments
        self.run, self.reducer, self._number, self._groups = run, reducer, number, groups
        self.membership = membership = run.membership
        self.name = f"average of fragment {number}" if self._count > 1 else "average"
        self.is_delayed = strategy.is_delayed and not strategy.takes_turns
        self.normalizes = strategy.averaging is Averaging.STEP_NORMALIZED
        self._codings = Codings.of(transport, len(reducer.buckets))
        if self._codings is not None:
            # The rounding errors are of shards that other members own then, and a repeated all-reduce rounds again.
            membership.changed.append(self._codings.clear)
        membership.changed.append(lambda: self._rescale(self._starts, 1.0))
        self._nodes = run.schedule.cluster.node_of().tolist() if transport.where is CodecScope.ACROSS_NODES else None
        self._is_own, self._is_outer = outer.has_own_outer_params, not outer.is_plain
        self._measures = transport.codec.rounds or self._is_outer
        self._reference_name = "outer_params" if self._is_own else "reference"
        self._has_equal_steps = run.schedule.has_one_steps_per_round
        self.outer = OuterOptimizer(outer, reducer.buckets, run.host)
        self.reference: Reference | None = None
        self._starts_made = 0
        self._starts: list[torch.Tensor] = []  # parameters at the start of the round, to rescale progress
        self._factor = 1.0  # factor by which progress has been rescaled, until it is merged
        self.flight: Flight | None = None
        self._started = -1
        self._is_inside = False
        self._is_of_all = False  # whether all members at its start take part in the operation in flight

    def open(self, step: int, round_: int, *, first: bool) -> None:
        """Before a round's `first` step, copy parameters if needed and, with a delay, start the round's average."""
        self._is_inside = True
        if (first or (self._is_outer and self.reference is None)) and self._started < round_:
            self._begin_round(step, round_)

    def end_round(self, step: int, round_: int) -> bool:
        """Run or complete a round's average and write it to the model; return whether all models are equal now."""
        if self._started < round_:
            self._begin_round(step, round_)
        self._is_inside = False
        if not self.is_delayed:
            self.send(step, round_)
        equal = self.merge(round_)
        if self.is_delayed:
            self._begin_round(step, round_ + 1)
        return equal

    def send(self, step: int, round_: int, *, early: bool = False, due: int | None = None) -> None:
        """Start an average in step `step`; with `early` it runs during further steps, until `merge` in round `due`."""
        self.flight = Flight(
            kind=self.name, turn=self._turn(round_ if due is None else due), step=step, round=round_,
            start=self._start, group=self._group(round_),
        )  # fmt: skip
        if self.is_delayed or (early and self.membership.may_change):
            self.flight.kept = [Snapshot.copy(bucket, bucket.flat) for bucket in self.reducer.buckets]
        if early or self.is_delayed:
            self.membership.begin(self.flight)

    def merge(self, round_: int) -> bool:
        """Complete the average in flight and write it to the model; return whether all models are now equal.

        If none is in flight, only count the schedule's operation in round `round_`, so that all members count equally.
        """
        if (flight := self.flight) is None:
            self.membership.skip(self._turn(round_))
            return False
        equal = False
        try:
            self.membership.wait(flight)
        finally:  # not earlier, since a joining worker copies it
            self.flight = None
        for _, reduction in flight.sums or ():
            if self.normalizes:
                self._normalize(flight, reduction.group)
            self._commit(flight, reduction)
            equal = self._makes_equal(reduction.group)
        flight.release_kept()
        self._factor = 1.0
        return equal

    def drop(self) -> None:
        """Discard the average in flight, outer momentum, and the parameters from which the round's change is counted.

        The next step counts from its own parameters.
        """
        self.flight, self._started, self._is_inside = None, -1, False
        self.reference, self._starts = None, []
        self.outer.clear()
        if self._codings is not None:
            self._codings.clear()

    # Saved state.

    @property
    def is_measured(self) -> bool:
        begun = self.flight is not None or (self.normalizes and self._is_inside and self._started >= 0)
        return begun or self.reference is not None

    def state(self) -> State:
        """Return, for a checkpoint: reference, momentum, rounding errors, the round's first parameters, flights."""
        joins, named = self.membership.is_between, dict[str, torch.Tensor]()
        if self.run.host is not None:
            self.run.host.settle()
        # Between two rounds an average restarts from the model; with unequal steps, others may be inside a round.
        is_kept = self._is_inside or joins or not self._has_equal_steps
        flight = self.flight if self.flight in self.membership.flights else None
        if flight is not None and not joins and (is_kept or self.reference is not None):
            self.membership.arrive(flight)
        if flight is not None and is_kept:
            named |= state_of(flight, KEY, self.reducer.buckets, joins=joins)
        if self._is_inside and self.normalizes and not self.is_delayed:
            named |= {f"start/{index}": start for index, start in enumerate(self._starts)}
        if self.reference is not None:
            self.reducer.flush()
            named |= self.reference.state(self._reference_name) | self.outer.state()
            named |= {} if self._codings is None else self._codings.state()
        return named

    def load(self, state: State) -> None:
        buckets, rest, reference = self.reducer.buckets, dict(state), self.reference
        left = {name: rest.pop(name) for name in state if name.startswith("feedback")}
        flight = {name: rest.pop(name) for name in state if name.startswith(f"{KEY}/")}
        starts = {name: rest.pop(name) for name in state if name.startswith("start/")}
        momenta = {name: rest.pop(name) for name in self.outer.names & rest.keys()}
        if not self._measures:
            check_kept(rest | left)
        if self._measures:
            feedback = self._codings is not None and self.run.schedule.strategy.transport.error_feedback
            if bool(left) != feedback:
                raise InputError("the file and this run do not both have error feedback")
            reference = Reference.restored(self._reference_name, rest, buckets, self.run.host)
            if momenta.keys() != self.outer.names:
                raise InputError("the file and this run do not both have an outer momentum")
        try:
            begun = [starts[f"start/{index}"].to(b.device, copy=True) for index, b in enumerate(buckets) if starts]
            self.reference, sent = reference, None
            if flight:
                lag = int(self.is_delayed)
                sent = restore_flights(flight, KEY, self.reducer, self._start, self._group, lag=lag, since=self._since)
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            self.reference = None
            raise InputError(
                f"the file holds {', '.join(sorted(flight | starts)[:3])} and so on, which this run "
                f"does not keep ({error})"
            ) from None
        if reference is not None:
            self._starts_made = reference.starts
            self.outer.load_state(momenta)
            if self._codings is not None:
                self._codings.load_state(left)
        self._starts, self.flight = begun, sent
        if sent is not None:
            self._is_of_all = sent.group is not None and self._has_all(sent.group)
            if self.membership.may_change and sent.kept:
                sent.abandon("is repeated by the present members")
                sent.is_restored = False
            self.membership.flights.append(sent)
        self._is_inside = bool(starts or flight)

    def resume(self, step: int, round_: int) -> None:
        """Continue with step `step` after `load`: start the average that was in flight, if its result was not saved."""
        if not self._is_inside:
            if self.is_delayed:
                self._begin_round(step, round_)
            return
        self._started = round_
        if self.flight is not None and self.flight.sums is None and not self.membership.is_between:
            self.membership.flights.remove(self.flight)
            self.membership.begin(self.flight)

    # All-reduce.

    def _start(self, flight: Flight, group: Group) -> Sums:
        """Start the all-reduce of `flight` in `group`: of the parameters, or of their change since the reference."""
        if self.normalizes and not self.is_delayed:
            self._normalize(flight, group)
        if flight in self.membership.flights:
            flight.before = [snapshot_piggybacked(bucket) for bucket in self.reducer.buckets]
        self._is_of_all = self._has_all(group)
        codings = self._codings.of_buckets if self._codings is not None and self._is_coded(group) else None
        content = Content(kept=flight.kept, lag=int(self.is_delayed), codings=codings, since=self._since(group))
        return [(self.reducer, self.reducer.begin(self.name, flight.step, flight.round, group, content))]

    def _has_all(self, group: Group) -> bool:
        return len(group.members) == len(self.membership.members)

    def _is_coded(self, group: Group) -> bool:
        return self._nodes is None or len({self._nodes[member] for member in group.members}) > 1

    def _since(self, group: Group) -> Reference | None:
        is_measured = self._is_coded(group) or (self._is_outer and self._has_all(group))
        return self.reference if is_measured and not self._is_own else None

    def _commit(self, flight: Flight, reduction: Reduction) -> None:
        relaxation, is_alone = float(reduction.group.relaxation), reduction.num_members == 1

        def commit(index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
            if self.reference is not None:
                self._measure(index, sums[: bucket.size], reduction, self.reference)
            if not is_alone:
                commit_piggybacked(bucket, sums, ok, flight.before[index] if flight.before else None)
            start = flight.kept[index].array if flight.kept and self.is_delayed else None
            if start is not None:
                commit_delayed(bucket, sums, start, relaxation, ok)
            else:
                commit_mean(bucket, sums, relaxation, ok, swap=True)

        self.reducer.commit(reduction, commit)

    def _measure(self, index: int, mean: torch.Tensor, reduction: Reduction, reference: Reference) -> None:
        """Turn `mean`, the members' mean change of bucket `index`, into new parameters, by an outer step if needed.

        If all workers took part, the result is the new reference.
        """
        if self._is_own:
            self.outer.step(index, mean.sub_(reference.arrays[index].on_device()), reduction.ok)
            reference.complete(index, mean)
            reference.take(index, mean, reduction.ok)
            return
        if reduction.content.since is not None:
            if self._is_of_all:
                self.outer.step(index, mean, reduction.ok)
            reference.complete(index, mean)
        if self._is_of_all:
            reference.take(index, mean, reduction.ok)
            reference.round = reduction.operation.round

    # Rounds.

    def _turn(self, round_: int) -> int:
        """Return the index of this part's operation in a round, counted over the whole run and all fragments."""
        return round_ * self._count + self._number

    def _group(self, round_: int) -> Group | None:
        if self._groups:
            return self._groups[round_ % len(self._groups)]
        return self.run.schedule.group_of(self.run.rank, round_)

    def _begin_round(self, step: int, round_: int) -> None:
        if self._measures and self.reference is None:
            self._starts_made += 1
            starts, reducer, host = self._starts_made, self.reducer, self.run.host
            if self._is_own:
                self.reference = Reference.of([b.flat.detach().clone() for b in reducer.buckets], starts, host)
            else:
                name, start = self.name, self.membership.common_start
                self.reference = start(reducer, step, round_, name=name, starts=starts, host=host)
        self._started = round_
        if self.is_delayed:
            self.send(step, round_)
        elif self.normalizes:
            self._starts = copy_to(self._starts, self.reducer.buckets)

    def _makes_equal(self, group: Group) -> bool:
        """Return whether all workers have the same parameters and buffers after an average over this group."""
        return self._has_all(group) and group.relaxation == 1 and not (
            self.run.flat.keeps_buffers or self.is_delayed or self._is_own or self._groups
        )  # fmt: skip

    def _normalize(self, flight: Flight, group: Group) -> None:
        """Rescale this worker's change to the mean steps per round of `group`, or of all workers if groups overlap."""
        members = self.membership.members if self._groups else group.members
        starts = [one.array for one in flight.kept if one.array is not None] if self.is_delayed else self._starts
        self._rescale(starts, self.run.progress_factor(members))

    def _rescale(self, starts: Sequence[torch.Tensor], factor: float) -> None:
        if factor != self._factor:
            for bucket, start in zip(self.reducer.buckets, starts, strict=True):
                rescale_progress(bucket, start, factor / self._factor)
            self._factor = factor


class ParameterAverage(Runner):
    """Runner whose rounds end with an average of parameters, of the whole model or of fragments in turn.

    Fragments (Streaming DiLoCo): each is sent once per round of `steps_per_round` steps and merged `sync.late_steps`
    steps later, at the steps that `topo.strategies.payload.moves` defines. A worker without a group in the round, or
    that has not sent a fragment, merges nothing.

    Neighbors (D-PSGD), with the weights W_k of round k and the worker's change u in it: x ← W_k (x + u) after each
    round; with a delay x ← W_k x + u(x): Hop's serial and parallel order (its Figure 2). A worker without edges in a
    round keeps its parameters. Step-normalized averaging scales every worker's progress to the mean steps per round of
    all, since neighborhoods overlap.
    """

    def __init__(self, strategy: StaticGroups | AllReduce | NeighborAveraging, run: Run) -> None:
        super().__init__(run)
        outer, count = strategy.payload.outer, strategy.payload.num_fragments
        if outer.has_own_outer_params:
            check_unstable(run.schedule)
        reducer, groups = run.reducer, list[Group | None]()
        if isinstance(strategy, NeighborAveraging):
            if run.flat.buffer_policy is BufferPolicy.BROADCAST:
                raise InputError("buffers='broadcast': neighbors have no common first worker; use 'average' or 'local'")
            near = [Neighborhood(strategy, index, run.rank) for index in range(len(strategy.rounds))]
            reducer, groups = PeerReducer(run.reducer, near), [one.group for one in near]
        self._takes_turns, self._late = strategy.takes_turns, strategy.sync.late_steps
        if strategy.takes_turns:
            self.reducers = tuple(reducer.of(run.flat.fragment(one), f"fragment {one}") for one in range(count))
        self.parts = [Part(run, own, number, groups) for number, own in enumerate(self.reducers or [reducer])]
        self._moves: dict[int, list[Move]] = {}
        self._ends = round_ends(count, run.steps_per_round)
        if strategy.takes_turns:
            for move in moves(count, run.steps_per_round, self._late):
                self._moves.setdefault(move.taken, []).append(move)

    def before_step(self, step: int) -> AveragedGradients:
        round_, taken = divmod(step, self.run.steps_per_round)
        for part in self.parts:  # all of them, since a run may resume inside a round
            part.open(step, round_, first=taken == 0 or self._takes_turns)
        return ON_TIME

    def after_step(self, step: int) -> StepResult:
        round_, taken = divmod(step, self.run.steps_per_round)
        for move in self._moves.get(taken + 1, ()):
            part = self.parts[move.fragment]
            if move.merges:
                part.merge(round_)
            else:
                self.before_step(step)  # for workers without data, which take no steps
                part.send(step, round_, early=self._late > 0, due=round_ + (move.taken > self._ends[move.fragment]))
        is_over = taken + 1 == self.run.steps_per_round and not self._takes_turns
        return StepResult(are_equal=is_over and self.parts[0].end_round(step, round_))

    def drain(self) -> str:
        """Drop averages in flight; the next round starts from the parameters at its start. Returns "", no warning."""
        self.membership.drop()
        self.settle()
        for part in self.parts:
            part.drop()
        return ""

    @property
    def is_measured(self) -> bool:
        return any(part.is_measured for part in self.parts)

    def state(self) -> State:
        """Return the state of each fragment's `Part`; names start with the fragment's number if there are several."""
        if not self._takes_turns:
            return self.parts[0].state()
        named = ((number, part.state()) for number, part in enumerate(self.parts))
        return {f"{number}/{name}": tensor for number, state in named for name, tensor in state.items()}

    def load(self, state: State, step: int) -> None:
        """Restore what `state` returned, and restart operations in flight whose results were not saved."""
        for number, part in enumerate(self.parts):
            prefix = f"{number}/" if self._takes_turns else ""
            own = {name.removeprefix(prefix): one for name, one in state.items() if name.startswith(prefix)}
            if own:
                part.load(own)
            part.resume(step, step // self.run.steps_per_round)
        if self.membership.is_between:  # the other members restart operations in flight in this order
            self.membership.flights = deque(sorted(self.membership.flights, key=lambda flight: flight.turn))
