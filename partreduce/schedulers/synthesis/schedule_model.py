"""Find schedules with CP-SAT: a model of the groups in each phase under the limits, with a bound on all schedules.

Boolean x[k, b] says that block b (explicit groups, or those of a rule) is in phase k of a period of K phases. A worker
is in at most one group of a phase. A phase lasts at least as long as each of its groups, and as the total load of its
groups on each NIC, uplink and bus. The phases together keep a budget in seconds. Within a period a group crosses every
cut of the workers (cuts are added when a solution violates them), and nodes as often as a limit demands.

The consensus distance is not linear in x; the model minimizes a linear lower bound. Of the noise of one round the two
phases p and q that follow leave tr(W_p) − 1, the number of groups minus one, and tr(W_p W_q) − 1 (all later terms are
≥ 0). With groups of at most S workers each entry of W_p is 0 or at least 1/S. So, with u = 1/(group size) on the
diagonal, the second trace is at least Σ_i (u_p,i + u_q,i)/S − n/S², plus 2/S² for every pair of workers that shares a
group in both phases; Σ_i u_i is the number of groups. Grids and hypercubes attain the bound. The argument is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, compress, pairwise
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.choices import Choices
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.problem import Period
from partreduce.topo.errors import MissingDependencyError
from partreduce.topo.extras import load

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

TICKS, LARGEST = 10_000, 1e9
"""Time units in the duration of the slowest group; and approximate largest coefficient of the metric."""
SOLVE, PER_LITERAL, PER_SECOND = 2.0, 4e-6, 1.3
"""CP-SAT's deterministic seconds per model; nominal seconds to write one literal, and per deterministic second."""


class Decision(NamedTuple):
    """The best period found (`phases`, () if none was), and a lower bound on the consensus distance of any allowed one.

    `bound` is infinite if it is proved that no period keeps the limits and budgets.
    """

    phases: Period
    bound: float


def cp_sat() -> Any:  # noqa: ANN401 - a module
    """Return OR-Tools' module of CP-SAT; raise MissingDependencyError if it is not installed or does not load."""
    try:
        return load("ortools.sat.python.cp_model", "synthesis")
    except ImportError as error:
        # Other packages that bring the same solver libraries, such as cvxpy, can keep OR-Tools' own from loading.
        raise MissingDependencyError(
            f"synthesis needs OR-Tools, which is installed but does not load ({error}); import ortools before other "
            "packages with solvers"
        ) from None


class ScheduleModel:
    """A CP-SAT model of a period of `num_phases` phases under the limits, which `decide` solves within a budget.

    With `agree`, only periods are allowed whose groups together connect all workers, so that they reach consensus.
    """

    def __init__(self, choices: Choices, num_phases: int, *, agree: bool = True) -> None:
        """Write the model. O(phases² · entries of `choices.meetings` + phases · blocks · links)."""
        self.choices, self.num_phases, self.agree = choices, num_phases, agree
        self.seconds, self.loads = choices.seconds_and_loads
        self.tick = float(self.seconds.max(initial=0.0)) / TICKS or 1.0
        self.cp_sat = cp_sat()
        self.model: cp_model.CpModel = self.cp_sat.CpModel()
        self.weighted_sum = self.cp_sat.LinearExpr.weighted_sum
        self.x = [[self.model.new_bool_var("") for _ in choices.blocks] for _ in range(num_phases)]
        self.at = [[b for b, within in enumerate(choices.within) if p in within] for p in range(len(choices.places))]
        self.spans = [self._span(phase) for phase in self.x]
        crossing, gap = [choices.crosses((block,)) for block in choices.blocks], choices.problem.limits.max_gap
        if agree:
            for place in range(len(choices.places)):
                self._cross(frozenset({place}))
            for digit in range(len(choices.radices)):
                self._some(digit in block.across for block in choices.blocks)
            window = num_phases if gap is None else gap + 1
            for start in range(num_phases) if window < num_phases else ():
                self._some(crossing, [(start + k) % num_phases for k in range(window)])
        sizes = [sum(int(choices.sizes[b]) * self.x[0][b] for b in blocks) for blocks in self.at]
        for node in map(choices.problem.cluster.workers_of, range(choices.problem.cluster.num_nodes)):
            for one, other in pairwise(node) if choices.is_complete else ():  # workers of a node are equal
                self.model.add(sizes[one] >= sizes[other])
        for span in self.spans[1:]:
            self.model.add(self.spans[0] >= span)  # a period may begin anywhere
        self._minimize_distance()

    def decide(self, *, clock: Clock, until: float, seed: int, budget: float = inf, below: float = inf) -> Decision:
        """Find a period of least consensus distance, below `below`, whose phases take at most `budget` seconds in all.

        The solver stops at the clock's position `until`, and starts from the random `seed`.
        """
        while True:
            model = self.model.clone()
            if budget < inf:
                model.add(sum(self.spans) <= floor(budget / self.tick * (1 + 1e-9)))
            if below < inf:
                model.add(self.metric <= ceil(below * self.unit - 1e-6) - 1)
            clock.charge(PER_LITERAL * self.num_phases * sum(map(len, self.choices.within)) * (2 + self.loads.shape[1]))
            found = self._solve(model, clock, until, seed)
            if not found.phases or not self.agree or len(apart := self._components(found.phases)) < 2:
                return found
            for cut in apart:
                self._cross(cut)
            if clock.passed(until):
                return Decision((), found.bound)

    def forbid(self, phases: Period) -> None:
        """Exclude the period of these phases, in this order, from later solutions."""
        self.model.add_bool_or(
            ~one if block in here else one
            for row, here in zip(self.x, map(set, phases), strict=True)
            for one, block in zip(row, self.choices.blocks, strict=True)
        )

    def _solve(self, model: cp_model.CpModel, clock: Clock, until: float, seed: int) -> Decision:
        """Solve with one thread, so that within the deterministic time only the seed determines the result."""
        solver = self.cp_sat.CpSolver()
        solver.parameters.random_seed = seed
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = max(0.05, clock.left(until))
        solver.parameters.max_deterministic_time = max(0.01, min(SOLVE, clock.work_left(until) / 3))
        solver.parameters.cp_model_presolve = False  # it takes longer than the search where there are many groups
        solver.parameters.catch_sigint_signal = False  # an interrupt ends the search, not just one model
        status = solver.solve(model)
        if status == self.cp_sat.MODEL_INVALID:
            raise AssertionError(model.validate())
        clock.charge(PER_SECOND * float(solver.response_proto.deterministic_time))
        if status == self.cp_sat.INFEASIBLE:
            return Decision((), inf)
        bound = max(0, floor(solver.best_objective_bound / self.weight)) / self.unit
        if status == self.cp_sat.UNKNOWN:
            return Decision((), bound)
        chosen = [[solver.boolean_value(one) for one in row] for row in self.x]
        return Decision(tuple(tuple(compress(self.choices.blocks, row)) for row in chosen), bound)

    def _components(self, phases: Period) -> list[frozenset[int]]:
        """Return the sets of places (`Choices`) that the groups connect; no group joins two of these sets."""
        found = [frozenset({place}) for place in range(len(self.choices.places))]
        within = dict(zip(self.choices.blocks, self.choices.within, strict=True))
        for block in (block for phase in phases for block in phase):
            joined = [one for one in found if not one.isdisjoint(within[block])]
            found = [*(one for one in found if one not in joined), frozenset().union(*joined)]
        return found

    def _cross(self, cut: frozenset[int]) -> None:
        """Require a block with places (`Choices`) inside and outside the set `cut`; any block if it has all places."""
        whole = len(cut) == len(self.choices.places)
        self._some(whole or 0 < len(cut.intersection(within)) < len(within) for within in self.choices.within)

    def _some(self, blocks: Iterable[bool], phases: Iterable[int] | None = None) -> None:
        """Require at least one block that `blocks` marks True in at least one listed phase (None: in any phase)."""
        listed = np.flatnonzero(list(blocks)).tolist()
        self.model.add_bool_or(self.x[k][b] for k in phases or range(self.num_phases) for b in listed)

    def _span(self, phase: Sequence[cp_model.IntVar]) -> cp_model.IntVar:
        """Add a variable for a phase's duration, in ticks, and return it; `phase` has a Boolean per block.

        Constraints: the phase lasts at least as long as each of its groups alone and as all its groups' load on each
        link, and no worker is in two of its groups.
        """
        alone, shared = (np.floor(one / self.tick).astype(np.int64) for one in (self.seconds, self.loads))
        span = self.model.new_int_var(0, int(alone.max(initial=0) + shared.sum()), "")
        for blocks in self.at:
            self.model.add_at_most_one(phase[b] for b in blocks)
            self.model.add(span >= self.weighted_sum([phase[b] for b in blocks], alone[blocks].tolist()))
        for link in shared.T:
            self.model.add(span >= self.weighted_sum(phase, link.tolist()))
        return span

    def _minimize_distance(self) -> None:
        """Minimize the noise that two successive phases leave, then the pairs of workers that meet in two phases."""
        model, n, num_phases = self.model, self.choices.problem.cluster.num_workers, self.num_phases
        most = int(self.choices.sizes.max(initial=1))
        scale, rare = min(1.0, LARGEST / (most**2 * n)), min(1.0, 1e4 / n**2)
        pairs = np.array([count for count, _ in self.choices.meetings])
        met = [[model.new_bool_var("") for _ in pairs] for _ in self.x]  # whether each kind of pair meets
        for phase, here in zip(self.x, met, strict=True):
            for (_, blocks), one in zip(self.choices.meetings, here, strict=True):
                model.add(sum(phase[b] for b in blocks) == one)
        again = {}  # the pairs that meet in both of two phases, at least
        for k, m in combinations(range(num_phases), 2):
            again[k, m] = [model.new_bool_var("") for _ in pairs]
            for one, other, both in zip(met[k], met[m], again[k, m], strict=True):
                model.add(one + other <= 1 + both)

        def whole(values: npt.NDArray[np.float64]) -> list[int]:
            return [round(value) for value in values.tolist()]

        square, once = whole(most**2 * scale * self.choices.joined), whole(most * scale * self.choices.joined)
        twice, later = whole(2 * scale * pairs), whole(rare * pairs)
        terms = []
        for k in range(num_phases):
            following = (k + 1) % num_phases
            kept = again[min(k, following), max(k, following)] if num_phases > 1 else met[0]
            fewer = sum(self.weighted_sum(self.x[t], once) for t in (k, following))
            # S²(tr(W_p W_q) − 1), never below 0, at least the sum below; that is at most 3Sn: a worker meets S − 1.
            older = model.new_int_var(0, round(max(3, most) * most * scale * n) + 2, "")
            least = round((2 * most * n - n - most**2) * scale)
            model.add(older >= least - fewer + self.weighted_sum(kept, twice))
            terms += [round(most**2 * scale * (n - 1)) - self.weighted_sum(self.x[k], square), older]
        self.metric, self.unit = sum(terms), num_phases * most**2 * n * scale
        self.weight = ceil((num_phases * n) ** 2 * rare) + len(pairs)  # more than all pairs that can meet again
        model.minimize(self.weight * self.metric + sum(self.weighted_sum(both, later) for both in again.values()))
