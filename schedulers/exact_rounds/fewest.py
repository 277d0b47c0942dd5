"""Exact consensus in the fewest rounds known, with the bound that proves it best or shows how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from partreduce.schedulers.exact_rounds.known_rounds import WeightedRound
from partreduce.schedulers.exact_rounds.lower_bounds import (
    RoundsBound,
    pair_bound,
    refuse_senseless,
)
from partreduce.schedulers.exact_rounds.pair_constructions import pair_rounds
from partreduce.schedulers.synthesis.problem import Status
from partreduce.topo.arithmetic.whole_numbers import ceil_log, divisors, fewest_factors
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group, Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases
from partreduce.topo.strategies.static import Static

MAX_WORKERS = 4096


@dataclass(frozen=True, slots=True)
class ExactAnswer:
    """The phases (None if impossible or unknown), how many, why no fewer are possible, and how they were made."""

    num_workers: int
    max_group: int
    phases: tuple[Phase, ...] | None
    status: Status
    bound: RoundsBound
    how: str

    @property
    def num_rounds(self) -> int | None:
        return None if self.phases is None else len(self.phases)

    def schedule(self, cluster: Cluster | None = None) -> Schedule:
        """The answer as a schedule; all workers on one node unless a cluster is given.

        Raises:
            InputError: there are no phases, or the cluster has another number of workers.
        """
        if self.phases is None:
            raise InputError(f"exact rounds for {self.num_workers} workers: {self.how}")
        cluster = cluster if cluster is not None else Cluster.regular(1, self.num_workers)
        if cluster.num_workers != self.num_workers:
            raise InputError(
                f"cluster {cluster}: has {cluster.num_workers} workers; the rounds are for {self.num_workers}"
            )
        name = f"exact-{self.num_workers}-in-{len(self.phases)}-rounds"
        return Schedule(name, cluster, Static(phases=GroupPhases(self.phases)))


def phases_of_pairs(num_workers: int, rounds: tuple[WeightedRound, ...]) -> tuple[Phase, ...]:
    """Weighted pairs as phases: weight a is relax 2a."""
    return tuple(Phase.from_groups(num_workers, [Group((i, j), 2 * w) for i, j, w in pairs]) for pairs in rounds)


def phases_of_factors(factors: tuple[int, ...]) -> tuple[Phase, ...]:
    """Mixed radix: round l averages the workers that agree on all digits but l. One plain mean per factor."""
    num_workers = prod(factors)
    phases, stride = [], 1
    for factor in factors:
        labels = [i - i // stride % factor * stride for i in range(num_workers)]
        phases.append(Phase.from_labels(labels))
        stride *= factor
    return tuple(phases)


def fewest_rounds(num_workers: int, max_group: int = 2) -> ExactAnswer:
    """Relaxed groups ≤ g: the fewest rounds known here.

    Raises:
        InputError: fewer than 2 workers, groups of fewer than 2, or more than MAX_WORKERS workers.
    """
    check_size(num_workers, max_group)
    bound = RoundsBound(ceil_log(num_workers, max_group), "log") if max_group > 2 else pair_bound(num_workers)
    phases, how = _smooth_times_pairs(num_workers, max_group)
    status = Status.OPTIMAL if len(phases) == bound.rounds else Status.FEASIBLE
    return ExactAnswer(num_workers, max_group, phases, status, bound, how)


def _smooth_times_pairs(num_workers: int, max_group: int) -> tuple[tuple[Phase, ...], str]:
    """N = a·b: mixed radix on a with plain means ≤ g, relaxed pairs on b; the split with the fewest rounds."""
    best: tuple[int, int] | None = None
    for a in divisors(num_workers):
        factors = fewest_factors(a, max_group, even=False)
        if factors is None:
            continue
        length = len(factors) + len(pair_rounds(num_workers // a)[0])
        if best is None or length < best[0]:
            best = (length, a)
    assert best is not None, "a = 1 always works"
    a = best[1]
    b = num_workers // a
    factors = fewest_factors(a, max_group, even=False)
    rounds, how = pair_rounds(b)
    assert factors is not None
    along = phases_of_factors(factors) if a > 1 else ()
    spread = [_copies(phase, b, num_workers, outer=True) for phase in along]
    paired = [_copies(phase, b, num_workers, outer=False) for phase in phases_of_pairs(b, rounds)]
    named = [*(["mixed radix " + " x ".join(map(str, factors))] if a > 1 else []), *([how] if b > 1 else [])]
    return (*spread, *paired), ", then ".join(named)


def _copies(phase: Phase, num_inner: int, num_workers: int, *, outer: bool) -> Phase:
    """The phase in every row or column of the grid worker = x · num_inner + y."""
    groups = []
    for group in phase:
        for k in range(num_inner if outer else num_workers // num_inner):
            members = tuple((w * num_inner + k) if outer else (k * num_inner + w) for w in group.members)
            groups.append(Group(members, group.relax))
    return Phase.from_groups(num_workers, groups)


def check_size(num_workers: int, max_group: int) -> None:
    """Refuse numbers that make no sense, and more workers than rounds are built for."""
    refuse_senseless(num_workers, max_group)
    if num_workers > MAX_WORKERS:
        raise InputError(f"num_workers: is {num_workers}; exact rounds are built for at most {MAX_WORKERS} workers")
