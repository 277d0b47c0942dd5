"""Choose schedules by CP-SAT: one model of groups × phases, for clusters whose phases cannot all be listed.

Boolean x[k, g] says that group g stands in phase k of a period of K phases. A worker is in at most one group of a
phase; a phase lasts at least as long as each of its groups alone and as what they put together on each NIC, uplink and
bus; the phases keep a budget; every cut of the workers is crossed by a group within the period (else they never agree;
cuts are added as they turn out to be missing), and nodes meet as often as a limit says.

The consensus distance is not linear in x, but this is, and it is nowhere above it. Of the noise of one round the phases
p and q that follow leave tr(W_p) − 1, blocks minus one, and tr(W_p W_q) − 1 (all later terms are ≥ 0). With groups of
at most S workers each entry of W_p is 0 or at least 1/S. So, with u = 1/(group size) on the diagonal, the trace is at
least Σ_i (u_p,i + u_q,i)/S − n/S², plus 2/S² for every pair of workers that meets in both; Σ_i u_i is the number of
blocks. Grids and hypercubes meet that value. The argument is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations, pairwise
from math import comb, floor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.cp_sat import new_model, solve
from partreduce.schedulers.synthesis.partitions import Groups, PartitionCosts, labels_of
from partreduce.schedulers.synthesis.problem import Problem
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.static import GroupPhases, StaticGroups

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Floats = npt.NDArray[np.float64]

MAX_GROUPS = 3000
"""Groups that are variables in one phase, about."""
MAX_WORKERS = 64
"""Workers up to which schedules are decided: meetings are counted pair by pair."""
TICKS = 10_000
"""Units of time in the seconds of the slowest group."""
MAX_PHASES = 4
"""Phases of the longest period that is decided."""
TIGHTER = 0.7
"""Each next budget as a share of what the last schedule took."""
SOLVE = 2.0
"""CP-SAT's deterministic seconds for one model."""
PER_LITERAL = 4e-6
"""Nominal seconds to write one appearance of a variable."""


def groups_of(problem: Problem) -> tuple[Groups, bool]:
    """The groups to choose among, and whether they are all that the limit on groups allows.

    All sizes, smallest first, as far as there is room; then any part of a node, and one local rank on any nodes.
    """
    cluster, most = problem.cluster, problem.limits.max_group or problem.cluster.num_workers
    n, listed, size = cluster.num_workers, 0, 1
    while size < most and listed + comb(n, size + 1) <= MAX_GROUPS:
        size += 1
        listed += comb(n, size)
    found = {group for k in range(2, size + 1) for group in combinations(range(n), k)}
    nodes = [cluster.workers_of(v) for v in range(cluster.num_nodes)]
    ranks = [tuple(node[r] for node in nodes if r < len(node)) for r in range(max(map(len, nodes)))]
    for k in range(size + 1, most + 1):
        for row in (*nodes, *ranks):
            if comb(len(row), k) <= MAX_GROUPS // (len(nodes) + len(ranks)):
                found.update(combinations(row, k))
    if most == n:
        found.add(tuple(range(n)))
    return tuple(sorted(found, key=lambda group: (len(group), group))), size == most


class ScheduleModel:
    """The variables of one period of K phases and what it must keep."""

    def __init__(self, problem: Problem, groups: Groups, costs: PartitionCosts) -> None:
        """Price every group alone; nothing is solved yet. O(groups · workers)."""
        self.problem, self.groups = problem, groups
        self.num_workers = problem.cluster.num_workers
        self.largest = max(map(len, groups))
        alone = labels_of(self.num_workers, [(group,) for group in groups])
        self.seconds, self.loads = costs.seconds_and_loads(alone)  # (G,), (G, places)
        self.tick = float(self.seconds.max()) / TICKS or 1.0
        node_of = problem.cluster.node_of()
        self.crosses = [len(set(node_of[list(group)].tolist())) > 1 for group in groups]
        self.cuts = [frozenset({worker}) for worker in range(self.num_workers)]

    @cached_property
    def with_pair(self) -> dict[tuple[int, int], list[int]]:
        """The groups in which two workers meet."""
        found: dict[tuple[int, int], list[int]] = {pair: [] for pair in combinations(range(self.num_workers), 2)}
        for g, group in enumerate(self.groups):
            for pair in combinations(group, 2):
                found[pair].append(g)
        return found

    @cached_property
    def with_worker(self) -> list[list[int]]:
        return [[g for g, group in enumerate(self.groups) if w in group] for w in range(self.num_workers)]

    def decide(
        self,
        num_phases: int,
        *,
        clock: Clock,
        until: float,
        seed: int,
        budget: float | None = None,
        hint: Sequence[Groups] = (),
        work: float = SOLVE,
    ) -> tuple[Groups, ...]:
        """The phases with the least value found within `budget` seconds for the period; none if none were found."""
        while True:
            model, x = self._model(num_phases, budget, hint)
            clock.charge(PER_LITERAL * self.largest * len(x) * 2)
            solution = solve(
                model,
                x,
                time_limit=max(0.05, clock.left(until)),
                seed=seed,
                max_deterministic_time=min(work, max(0.01, clock.work_left(until))),
            )
            clock.charge(solution.work)
            phases = self._phases(solution.values, num_phases)
            if not phases or not (missing := self._missing(phases)):
                return phases
            self.cuts += missing
            if clock.passed(until):
                return ()

    def _phases(self, values: Sequence[int], num_phases: int) -> tuple[Groups, ...]:
        if not values:
            return ()
        table = np.array(values, dtype=bool).reshape(num_phases, len(self.groups))
        return tuple(tuple(self.groups[g] for g in np.flatnonzero(row).tolist()) for row in table)

    def _missing(self, phases: Sequence[Groups]) -> list[frozenset[int]]:
        """The cuts that no group crosses: the workers that are joined, one cut for each component."""
        import networkx as nx

        graph = nx.empty_graph(self.num_workers)
        for groups in phases:
            for group in groups:
                nx.add_path(graph, group)
        components = [frozenset(component) for component in nx.connected_components(graph)]
        return components if len(components) > 1 else []

    def _model(
        self, num_phases: int, budget: float | None, hint: Sequence[Groups]
    ) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
        """The model and all x[k, g], phase by phase."""
        from ortools.sat.python.cp_model import LinearExpr

        model = new_model()
        x = [[model.new_bool_var("") for _ in self.groups] for _ in range(num_phases)]
        spans = [self._span(model, phase) for phase in x]
        if budget is not None:
            model.add(LinearExpr.sum(spans) <= floor(budget / self.tick * (1 + 1e-9)))
        for cut in self.cuts:
            model.add_bool_or(phase[g] for phase in x for g in self._across(cut))
        gap = self.problem.limits.max_gap
        if gap is not None and gap + 1 < num_phases:
            for start in range(num_phases):
                window = [x[(start + k) % num_phases] for k in range(gap + 1)]
                model.add_bool_or(phase[g] for phase in window for g, over in enumerate(self.crosses) if over)
        self._break_symmetry(model, x[0], spans)
        model.minimize(self._metric(model, x))
        for phase, known in zip(x, hint, strict=False):
            chosen = set(known)
            for one, group in zip(phase, self.groups, strict=True):
                model.add_hint(one, group in chosen)
        return model, [one for phase in x for one in phase]

    def _span(self, model: cp_model.CpModel, phase: Sequence[cp_model.IntVar]) -> cp_model.IntVar:
        """The ticks of one phase, at least: the groups of a worker exclude each other, those at a place add up."""
        from ortools.sat.python.cp_model import LinearExpr

        alone, shared = (np.floor(one / self.tick).astype(np.int64) for one in (self.seconds, self.loads))
        span = model.new_int_var(0, int(alone.max() + shared.sum()), "")
        for groups in self.with_worker:
            model.add_at_most_one(phase[g] for g in groups)
            model.add(span >= LinearExpr.weighted_sum([phase[g] for g in groups], alone[groups].tolist()))
        for place in shared.T:
            users = np.flatnonzero(place)
            model.add(span >= LinearExpr.weighted_sum([phase[g] for g in users.tolist()], place[users].tolist()))
        return span

    def _across(self, cut: frozenset[int]) -> list[int]:
        return [g for g, group in enumerate(self.groups) if 0 < len(cut.intersection(group)) < len(group)]

    def _metric(self, model: cp_model.CpModel, x: Sequence[Sequence[cp_model.IntVar]]) -> cp_model.LinearExprT:
        """What two phases leave of the noise, times S² and a weight; pairs that meet again later decide between equals.

        What older noise leaves depends on these.
        """
        from ortools.sat.python.cp_model import LinearExpr

        n, largest, num_phases = self.num_workers, self.largest, len(x)
        met = [self._meetings(model, phase) for phase in x]
        pairs = combinations(range(num_phases), 2)
        again = {(one, two): self._again(model, met[one], met[two]) for one, two in pairs}
        joined = [len(group) - 1 for group in self.groups]
        terms = []
        for k in range(num_phases):
            following = (k + 1) % num_phases
            kept = again[min(k, following), max(k, following)] if num_phases > 1 else met[0]
            here, there = (n - LinearExpr.weighted_sum(x[t], joined) for t in (k, following))  # blocks
            terms += [largest**2 * (here - 2), largest * (here + there) - n, 2 * LinearExpr.sum(kept)]
        later = LinearExpr.sum([one for both in again.values() for one in both])
        weight = (num_phases * n) ** 2  # more than all pairs that can meet again in any two phases
        return weight * LinearExpr.sum(terms) + later

    def _meetings(self, model: cp_model.CpModel, phase: Sequence[cp_model.IntVar]) -> list[cp_model.IntVar]:
        """Whether each pair of workers meets in one phase."""
        met = []
        for groups in self.with_pair.values():
            met.append(model.new_bool_var(""))
            model.add(sum(phase[g] for g in groups) == met[-1])
        return met

    def _again(
        self, model: cp_model.CpModel, first: Sequence[cp_model.IntVar], second: Sequence[cp_model.IntVar]
    ) -> list[cp_model.IntVar]:
        """The pairs that meet in both phases, at least."""
        both = [model.new_bool_var("") for _ in first]
        for one, other, two in zip(first, second, both, strict=True):
            model.add(one + other <= 1 + two)
        return both

    def _break_symmetry(
        self, model: cp_model.CpModel, first: Sequence[cp_model.IntVar], spans: Sequence[cp_model.IntVar]
    ) -> None:
        """The longest phase comes first, and there the workers of a node are ordered by the size of their group."""
        for span in spans[1:]:
            model.add(spans[0] >= span)
        sizes = [sum(len(self.groups[g]) * first[g] for g in groups) for groups in self.with_worker]
        cluster = self.problem.cluster
        for v in range(cluster.num_nodes):
            for one, other in pairwise(cluster.workers_of(v)):
                model.add(sizes[one] >= sizes[other])


def decided_schedules(problem: Problem, clock: Clock, until: float, *, seed: int) -> Iterator[Schedule]:
    """Schedules for the search to start from: short periods, each within a tighter budget than the one before it."""
    limits, n = problem.limits, problem.cluster.num_workers
    if n > MAX_WORKERS:
        return
    costs = PartitionCosts(problem)
    model = ScheduleModel(problem, groups_of(problem)[0], costs)
    most = min(MAX_PHASES, limits.max_period, limits.max_distinct_phases or MAX_PHASES)
    # A single phase agrees only as one group of all.
    lengths = range(1 if model.largest == n else 2, most + 1)
    known = {num_phases: by_digits(n, model.largest, num_phases) for num_phases in lengths}
    for phases in known.values():
        yield schedule_of(problem, phases)
    budget: dict[int, float] = {}
    while known and not clock.passed(until):
        for num_phases, hint in list(known.items()):
            phases = model.decide(
                num_phases, clock=clock, until=until, seed=seed, budget=budget.get(num_phases), hint=hint
            )
            if not phases:
                del known[num_phases]
                continue
            known[num_phases] = phases
            budget[num_phases] = TIGHTER * float(costs.seconds(labels_of(n, phases)).sum())
            yield schedule_of(problem, phases)
            if clock.passed(until):
                return


def schedule_of(problem: Problem, phases: Sequence[Groups]) -> Schedule:
    """The schedule that repeats these phases."""
    chosen = tuple(Phase.from_groups(problem.cluster.num_workers, groups) for groups in phases)
    return Schedule(f"decided-{len(phases)}-phases", problem.cluster, StaticGroups(phases=GroupPhases(chosen)))


def by_digits(num_workers: int, base: int, num_phases: int) -> tuple[Groups, ...]:
    """Where a search may start: phase k joins the workers whose numbers differ in digit k of `base` alone."""
    phases = []
    for k in range(num_phases):
        groups: dict[tuple[int, int], list[int]] = {}
        for worker in range(num_workers):
            groups.setdefault((worker // base ** (k + 1), worker % base**k), []).append(worker)
        phases.append(tuple(tuple(group) for group in groups.values() if len(group) > 1))
    return tuple(phases)
