"""Matchings for exact consensus by CP-SAT: every sequence of rounds that can carry each worker's value to every other.

Necessary conditions on the matchings of T rounds of relaxed pairs, whatever the weights, and how they are written down:

- One partner. Every round is a maximum matching: a pair that should not be there has weight 0.
- Reach. After the last round every worker depends on all; a worker depends on a source after round t iff it or its
  partner did before. (Hence the workers that depend on a source at most double per round, and must be ⌈n / 2^(T−t)⌉
  after round t; this is added to make the solver's work shorter.)
- First and last round average: their weights may be taken to be 1/2, so sources are the groups of the first round.
- Counting equations against weights is no condition: 6 workers in 3 rounds have 4 equations, 3 weights and a solution.

Symmetry. Any renumbering of the workers keeps exactness. The union of the first two rounds is a set of even cycles
and, for odd n, one path; they are fixed to one numbering for each cycle type, and all types are tried. What symmetry is
left, and reading the rounds backwards, is removed from the answers by `canonical`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partreduce.schedulers.synthesis.cp_sat import new_model, solve
from partreduce.schedulers.synthesis.problem import Status
from partreduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ortools.sat.python import cp_model

    Partners = tuple[tuple[int, ...], ...]

REACH = "reach"
"""Name of the bound: no sequence of maximum matchings lets every value reach every worker in so few rounds."""


@dataclass(frozen=True, slots=True)
class Matchings:
    """Sequences of matchings up to renumbering and time reversal.

    optimal: `sequences` are all there are; infeasible: there are none; feasible: some, time ran out; unknown: none yet.
    A sequence lists, for each round, every worker's partner (itself if idle).
    """

    status: Status
    sequences: tuple[Partners, ...]
    num_solutions: int
    seconds: float


def parts(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """The partitions of a number, largest part first."""
    if total == 0:
        yield ()
    for part in range(min(total, largest), 0, -1):
        for rest in parts(total - part, part):
            yield (part, *rest)


def openings(num_workers: int) -> Iterator[Partners]:
    """The first two rounds, one pair of matchings for each isomorphism type.

    Round one is (0 1)(2 3)…; round two closes each part of k of these pairs to a cycle of 2k workers. For odd n one
    part (maybe empty) is a path instead that ends in the last worker, who is idle first.
    """
    half, odd = divmod(num_workers, 2)
    first = tuple(min(i ^ 1, num_workers - 1) for i in range(num_workers - odd)) + (num_workers - 1,) * odd
    for path in range(half + 1) if odd else (0,):
        for cycles in parts(half - path, half):
            second, start = list(range(num_workers)), 0
            for size in cycles:
                members = list(range(start, start + 2 * size))
                for i, j in zip(members[1::2], members[2::2] + members[:1], strict=True):
                    second[i], second[j] = j, i
                start += 2 * size
            line = range(start, num_workers)
            for i, j in zip(line[1::2], line[2::2], strict=False):
                second[i], second[j] = j, i
            yield first, tuple(second)


def canonical(sequence: Sequence[Sequence[int]]) -> Partners:
    """The least renumbering of a connected sequence, forwards or backwards. O(n · n·T).

    A round is a colour with at most one edge at each worker, so a start fixes the numbering: walk breadth first and
    visit partners in the order of rounds.
    """
    best: Partners | None = None
    for rounds in (sequence, sequence[::-1]):
        for root in range(len(rounds[0])):
            order, place = [root], {root: 0}
            for worker in order:
                for partners in rounds:
                    if (other := partners[worker]) not in place:
                        place[other] = len(order)
                        order.append(other)
            code = tuple(tuple(place[partners[worker]] for worker in order) for partners in rounds)
            if best is None or code < best:
                best = code
    assert best is not None
    return best


class _Model:
    """The variables of one opening: who meets whom in each later round, who depends on which source after it."""

    def __init__(self, opening: Partners, num_rounds: int) -> None:
        self.opening, self.num_rounds = opening, num_rounds
        self.num_workers = n = len(opening[0])
        self.model: cp_model.CpModel = new_model()
        self.sources = sorted({frozenset((i, opening[0][i])) for i in range(n)}, key=min)
        true = self.model.new_constant(1)
        depends: list[list[cp_model.IntVar]] = [
            [true if i in source or opening[1][i] in source else self.model.new_constant(0) for source in self.sources]
            for i in range(n)
        ]
        self.meets: list[dict[tuple[int, int], cp_model.IntVar]] = []
        for t in range(2, num_rounds):
            self.meets.append(self._matching(t))
            depends = self._reach(t, depends)

    def _matching(self, t: int) -> dict[tuple[int, int], cp_model.IntVar]:
        """Everybody has one partner; only for odd n is one worker idle, and has itself."""
        n = self.num_workers
        meets = {
            (i, j): self.model.new_bool_var(f"meet_{t}_{i}_{j}") for i in range(n) for j in range(i + 1 - n % 2, n)
        }
        for i in range(n):
            self.model.add_exactly_one(v for pair, v in meets.items() if i in pair)
        if n % 2:
            self.model.add_exactly_one(meets[i, i] for i in range(n))
        return meets

    def _reach(self, t: int, before: list[list[cp_model.IntVar]]) -> list[list[cp_model.IntVar]]:
        """A worker depends on a source iff it or its partner did; after the last round on all of them."""
        n, model, last = self.num_workers, self.model, t == self.num_rounds - 1
        after = [
            [model.new_constant(1) if last else model.new_bool_var(f"depends_{t}_{i}_{s}") for s in range(len(row))]
            for i, row in enumerate(before)
        ]
        for (i, j), meet in self.meets[-1].items():
            for s in range(len(self.sources)):
                old, other, new, equal = before[i][s], before[j][s], after[i][s], after[j][s]
                model.add_bool_or(meet.negated(), new.negated(), old, other)
                model.add_bool_or(meet.negated(), old.negated(), equal)
                model.add_bool_or(meet.negated(), other.negated(), new)
                if i != j:
                    model.add_bool_or(meet.negated(), new.negated(), equal)
                    model.add_bool_or(meet.negated(), equal.negated(), new)
        needed = -(-n // 2 ** (self.num_rounds - 1 - t))
        for s in range(len(self.sources)):
            model.add(sum(row[s] for row in after) >= needed)
            for i in range(n):
                model.add_implication(before[i][s], after[i][s])
        return after

    @property
    def variables(self) -> list[cp_model.IntVar]:
        return [variable for meets in self.meets for variable in meets.values()]

    def sequence(self, values: Sequence[int]) -> Partners:
        """The rounds that the values of `variables` stand for."""
        rounds, position = list(self.opening), 0
        for meets in self.meets:
            partners = list(range(self.num_workers))
            for i, j in meets:
                if values[position]:
                    partners[i], partners[j] = j, i
                position += 1
            rounds.append(tuple(partners))
        return tuple(rounds)


def all_matchings(
    num_workers: int,
    num_rounds: int,
    *,
    time_limit: float,
    seed: int = 0,
) -> Matchings:
    """Every sequence of matchings that meets the necessary conditions, one of each orbit.

    An opening is called infeasible only after a second run of the solver without its symmetry detection; time limit
    kept to within one solution.

    Raises:
        InputError: fewer than 3 rounds or workers.
    """
    if num_rounds < 3 or num_workers < 3:
        raise InputError(
            f"matchings: {num_workers} workers in {num_rounds} rounds; there is something to choose from 3 workers and "
            "3 rounds on"
        )
    start = time.monotonic()
    sequences: dict[Partners, None] = {}
    counted, complete = 0, True

    for opening in openings(num_workers):
        left = time_limit - (time.monotonic() - start)
        if left <= 0:
            complete = False
            break
        model = _Model(opening, num_rounds)
        first = solve(model.model, model.variables, time_limit=left, seed=seed)
        if first.status is Status.INFEASIBLE:
            continue

        def take_values(values: Sequence[int], model: _Model = model) -> None:
            nonlocal counted
            counted += 1
            sequences[canonical(model.sequence(values))] = None

        left = time_limit - (time.monotonic() - start)
        complete &= enumerate_all(model.model, model.variables, take_values, time_limit=left, seed=seed)
    if complete:
        status = Status.OPTIMAL if sequences else Status.INFEASIBLE
    else:
        status = Status.FEASIBLE if sequences else Status.UNKNOWN
    return Matchings(status, tuple(sequences), counted, time.monotonic() - start)


def enumerate_all(
    model: cp_model.CpModel,
    variables: Sequence[cp_model.IntVar],
    take: Callable[[tuple[int, ...]], None],
    *,
    time_limit: float,
    seed: int = 0,
) -> bool:
    """Give the values of every solution to `take`; whether the enumeration came to its end.

    A model without solutions ends at once; ask `solve` first, which confirms that.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.enumerate_all_solutions = True
    solver.parameters.num_workers = 1
    solver.parameters.symmetry_level = 0
    solver.parameters.random_seed = seed
    solver.parameters.max_time_in_seconds = max(0.01, time_limit)

    class Take(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            take(tuple(int(self.value(variable)) for variable in variables))

    return solver.solve(model, Take()) in {cp_model.OPTIMAL, cp_model.INFEASIBLE}
