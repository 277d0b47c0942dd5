"""Build long periods of decided phases: compose them between full averages, and improve them phase by phase.

After a full average all workers are equal, whatever happened before. So the cost and the consensus distance of a period
are sums over its pieces between full averages, and how often to use each piece is a knapsack with an exact objective.
Pieces come from a beam search over the decided phases, a full average and a silent phase; dynamic programming solves
the knapsack for the whole front at once.

An exchange replaces one phase (or all phases of one kind) by another, inserts a phase, or removes one. The covariance
that enters a phase, and the effect of all later rounds on the covariance that leaves it, are known matrices, so every
exchange has an estimate, exact except for the recurrence of the exchange in later periods. The best are then scored
exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.choices import Choices
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.problem import Period
from partreduce.topo.arithmetic.lyapunov import steady_state
from partreduce.topo.arithmetic.pareto import non_dominated
from partreduce.topo.rule import RulePhase

Floats = npt.NDArray[np.float64]
Indices = tuple[int, ...]

WIDTH, PER_COST, PRICES, MAX_ENTRIES = 480, 4, 16, 12_000_000
"""Beam width: most prefixes in all, and of one cost; prices of communication to try; and most matrix entries in
memory."""
BINS = 240
"""Bins of cost that the most expensive piece spans in the dynamic program."""
TRIED, SCORED = 48, 24
"""Most phases that are estimated in each position, and most exchanges scored exactly."""
NEGLIGIBLE, MAX_DOUBLINGS, UNSETTLED = 1e-9, 12, 1e-3
"""A period reaches consensus if at most a share UNSETTLED of any difference is left after 2^MAX_DOUBLINGS periods, and
the computation ends early once all entries left are at most NEGLIGIBLE."""
PER_PREFIX, PER_ENTRY, PER_TRIAL, PER_PLACE = 2e-5, 4e-10, 6e-6, 1.4e-9
"""Nominal seconds in the beam search, per prefix and per matrix entry; in the dynamic program, per piece and bin."""
PER_CALL, PER_MATRIX, PER_PRODUCT = 5e-5, 5e-7, 4e-10
"""Nominal seconds of one operation on a stack, of each matrix in it, and of each of its G³ products."""


class Piece(NamedTuple):
    """The phases up to and including a full average (one over all workers), all workers being equal before them.

    `indices` count in the list of phases to compose; `cost` is in seconds, `value` the sum of the rounds' consensus
    distances.
    """

    indices: Indices
    cost: float
    value: float


def compositions(
    choices: Choices, phases: Period, worker_steps: Sequence[int], clock: Clock, until: float
) -> Iterator[tuple[Period, float]]:
    """Yield good periods of these phases with their consensus distances; the last phase must average over all workers.

    A beam search that starts with equal workers keeps, at many costs, the prefixes of least distance. Shapes in
    comments: B prefixes, A phases, C classes and G local ranks (`choices.Space`).
    """
    begun_at, left = clock.position(), until - clock.position()
    space, limits, matrices = choices.space(worker_steps), choices.problem.limits, choices.matrices(phases)
    longest = limits.max_period if limits.max_gap is None else (limits.max_gap + 1) // space.instants
    costs, full = np.array([choices.cost(phase) for phase in phases]), len(phases) - 1
    scale = np.repeat(space.weight, space.fresh[0].size)  # (C·G²,)
    gains = (matrices.swapaxes(-1, -2) @ matrices).reshape(len(phases), -1) * scale  # (A, C·G²): WᵀW
    covariance = np.zeros((1, *space.fresh.shape))  # (B, C, G, G), before the next phase
    spent, values = np.zeros(1), np.zeros(1)  # (B,)
    begun: list[Indices] = [()]
    pieces: list[Piece] = []
    for length in range(1, longest + 1):
        clock.charge(len(begun) * (PER_PREFIX + PER_ENTRY * (full + 4) * len(scale)))
        closed = [
            Piece((*indices, full), cost + float(costs[full]), value)
            for indices, cost, value in zip(begun, spent.tolist(), values.tolist(), strict=True)
        ]
        pieces += non_dominated(closed, lambda piece: (piece.cost, piece.value))
        if length == longest or clock.passed(begun_at + 0.5 * left):
            break
        grown = covariance + space.fresh
        after = grown.reshape(len(begun), -1) @ gains.T  # (B, A): consensus distance after each next phase
        keep = _worth_extending(
            (spent[:, None] + costs).ravel(),
            (values[:, None] + 2 * after).ravel(),  # what is still in the workers comes back in the next round
            min(WIDTH, max(PRICES, MAX_ENTRIES // len(scale))),
        )
        parent, phase = np.divmod(keep, len(phases))
        begun = [(*begun[p], a) for p, a in zip(parent.tolist(), phase.tolist(), strict=True)]
        covariance = matrices[phase] @ grown[parent] @ matrices[phase].swapaxes(-1, -2)
        spent, values = spent[parent] + costs[phase], values[parent] + after[parent, phase]
    found = _compose(pieces, limits.max_period, clock, lambda: clock.passed(begun_at + 0.9 * left))
    for indices, value in found.items():
        yield tuple(phases[index] for index in indices), space.floor + value / len(indices)


def _worth_extending(spent: Floats, ahead: Floats, width: int) -> npt.NDArray[np.int64]:
    """Return the indices of the beam's prefixes to extend: the best few of each cost, at most about `width` in all.

    `spent` are the prefixes' costs in seconds, `ahead` the sums of their rounds' consensus distances and of an estimate
    for the next round. Of too many, those are kept that minimize distance + price · cost at one of several prices.
    """
    order = np.lexsort((ahead, cents := np.round(spent * 1e7).astype(np.int64)))
    _, first, rank = np.unique(cents[order], return_index=True, return_inverse=True)
    kept = order[np.arange(len(order)) - first[rank] < PER_COST]
    if len(kept) > width:
        prices = (*np.geomspace(0.05, 200.0, PRICES - 1) / max(float(spent.max()), 1e-12), 1e9)
        scores = (ahead[kept] + price * spent[kept] for price in prices)
        kept = kept[np.unique([np.argsort(score, kind="stable")[: width // PRICES] for score in scores])]
    return kept


def _compose(pieces: Sequence[Piece], longest: int, clock: Clock, expired: Callable[[], bool]) -> dict[Indices, float]:
    """Join pieces to periods of 1 to `longest` phases, and return good ones at every cost.

    A period is given by its phases' indices, with the sum of its rounds' consensus distances as the value. Dynamic
    programming over states (number of phases, cost); costs are rounded to bins, so single results may miss the optimum.
    It ends early once `expired()` is true, and charges its work to `clock`. O(longest² · pieces · bins).
    """
    unit = max(piece.cost for piece in pieces) / BINS or 1.0  # where links are free, all costs are 0
    places = longest * BINS + 1
    # Entry (p, b): the least sum of consensus distances of p phases of costs in bin b, and the piece that ends them.
    table = np.full((longest + 1, places), np.inf)
    choice = np.full((longest + 1, places), -1, dtype=np.int64)
    table[0, 0] = 0.0
    steps = [round(piece.cost / unit) for piece in pieces]
    found: dict[Indices, float] = {}
    for period in range(1, longest + 1):
        if expired():
            break
        clock.charge(sum(len(piece.indices) <= period for piece in pieces) * (PER_TRIAL + PER_PLACE * places))
        for index, (piece, step) in enumerate(zip(pieces, steps, strict=True)):
            if len(piece.indices) <= period:
                trial = table[period - len(piece.indices), : places - step] + piece.value
                better = trial < table[period, step:] - 1e-12
                table[period, step:][better] = trial[better]
                choice[period, step:][better] = index
        least = np.inf
        for place in np.flatnonzero(np.isfinite(table[period])).tolist():
            if table[period, place] < least - 1e-9:
                least, indices, rest, at = float(table[period, place]), (), period, place
                while rest > 0:
                    piece, step = pieces[choice[rest, at]], steps[choice[rest, at]]
                    indices, rest, at = (*indices, *piece.indices), rest - len(piece.indices), at - step
                found[indices] = least
    return found


class Exchanges:
    """Local search on a period: replace a phase by another of a given set, insert one, or remove one.

    Each of the A phases has mixing matrices (A, C, G, G), one for each of C classes of functions of the node's index,
    over G local ranks (`choices.Space`), and a cost in seconds (A,); in phase 0 no worker averages.
    """

    def __init__(self, choices: Choices, worker_steps: Sequence[int], phases: Iterable[RulePhase], seed: int) -> None:
        """Precompute the matrices and costs of as many of the phases as memory holds."""
        self.choices, self.worker_steps, self.space = choices, worker_steps, choices.space(worker_steps)
        self.rng = np.random.default_rng(seed)
        most = max(TRIED, MAX_ENTRIES // self.space.fresh.size)
        self.phases = tuple(dict.fromkeys(((), *phases)))[:most]
        self.place = {phase: index for index, phase in enumerate(self.phases)}
        self.matrices = choices.matrices(self.phases)
        self.silent = float(choices.step_seconds([((),)], worker_steps)[0]) * self.space.instants  # a round's computing
        # What a phase adds to a period lies between its slowest group's seconds and those of all workers on average.
        self.costs = np.array([(one.max() + one.diagonal().mean()) / 2 for one in map(choices.times, self.phases)])

    def better(
        self, period: Period, front: Sequence[tuple[float, float]], clock: Clock
    ) -> Iterator[tuple[Period, tuple[float, float]]]:
        """Yield periods one exchange away that may improve `front`, with their (seconds per step, consensus distance).

        `front` lists such pairs of the Pareto front in ascending order of seconds.
        """
        if not self.place.keys() >= set(period):
            return
        found = self._likely(tuple(self.place[phase] for phase in period), front, clock)
        for length in sorted({len(indices) for indices in found}):
            table = [indices for indices in found if len(indices) == length]
            periods = [tuple(self.phases[index] for index in indices) for indices in table]
            clock.charge(self._work(len(table) * self.space.fresh.size, length))
            seconds = self.choices.step_seconds(periods, self.worker_steps)
            values = self.distances(np.array(table), clock)
            yield from zip(periods, zip(seconds.tolist(), values.tolist(), strict=True), strict=True)

    def distances(self, table: npt.NDArray[np.int64], clock: Clock) -> Floats:
        """Return the consensus distances, (N,), of N periods of T phase indices, (N, T); infinite without consensus."""
        space, noise = self.space, np.zeros((len(table), *self.space.fresh.shape))
        product = noise + np.eye(noise.shape[-1])
        clock.charge(self._work(noise.size, 4 * table.shape[1] + 24))
        for phases in table.T:
            matrices = self.matrices[phases]
            noise = matrices @ (noise + space.fresh) @ matrices.swapaxes(-1, -2)
            product = matrices @ product
        covariance, left = steady_state(product, noise, negligible=NEGLIGIBLE, max_doublings=MAX_DOUBLINGS)
        total = np.zeros(len(table))
        for phases in table.T:
            matrices = self.matrices[phases]
            covariance = matrices @ (covariance + space.fresh) @ matrices.swapaxes(-1, -2)
            total += np.trace(covariance, axis1=-2, axis2=-1) @ space.weight
        settled = np.abs(left).max(axis=(1, 2, 3)) < UNSETTLED
        return np.where(settled, space.floor + total / table.shape[1], np.inf)

    def _likely(self, own: Indices, front: Sequence[tuple[float, float]], clock: Clock) -> list[Indices]:
        """Return periods, as indices of phases, one exchange away from the period `own`.

        First those estimated to improve the front most, then those that replace all occurrences of one phase.
        """
        limits, size, kinds = self.choices.problem.limits, len(own), sorted(set(own) - {0})
        others = self.rng.permutation(len(self.phases))[:TRIED].tolist()
        is_full = limits.max_distinct_phases is not None and len(kinds) >= limits.max_distinct_phases
        pool = np.unique([0, *kinds, *([] if is_full else others)])
        period = tuple(self.phases[index] for index in own)
        whole = float(self.choices.step_seconds([period], self.worker_steps)[0]) * size * self.space.instants
        spent, extra = self.costs[list(own)], self.costs[pool]
        total, replaced, inserted, removed = self._estimates(own, pool, clock)
        options: list[tuple[float, float, Indices]] = []  # seconds and sum of distances of the period
        for t in range(size):
            rest = whole - spent[t] - self.silent
            options.append((rest, total + removed[t], (*own[:t], *own[t + 1 :])))
            for a, cost in enumerate(extra.tolist()):
                phase = int(pool[a])
                options.append((rest + self.silent + cost, total + replaced[t, a], (*own[:t], phase, *own[t + 1 :])))
                options.append((whole + self.silent + cost, total + inserted[t, a], (*own[:t], phase, *own[t:])))
        options = [one for one in options if 1 <= len(one[2]) <= limits.max_period and one[2] != own]
        lengths = np.array([len(indices) for _, _, indices in options])
        costs = np.array([cost for cost, _, _ in options]) / (lengths * self.space.instants)
        values = self.space.floor + np.array([value for _, value, _ in options]) / lengths
        at = np.searchsorted([seconds * (1 + 1e-9) for seconds, _ in front[1:]], costs)
        best = np.argsort(values / np.maximum(1e-12, [value for _, value in front])[at], kind="stable")
        chosen = [options[index][2] for index in best[:SCORED].tolist()]
        for kind, other in zip(self.rng.permutation(kinds).tolist(), others, strict=False):
            chosen.append(tuple(other if phase == kind else phase for phase in own))
        return list(dict.fromkeys(chosen))

    def _estimates(
        self, own: Indices, pool: npt.NDArray[np.int64], clock: Clock
    ) -> tuple[float, Floats, Floats, Floats]:
        """Return the sum of the consensus distances of a period's rounds, and its estimated change by each exchange.

        `own` are the T phases of the period and `pool` the A phases to try, as indices into `self.phases`. The changes
        are those by a replacement, (T, A), an insertion before a phase, (T, A), and a removal, (T,). `clock` is charged
        for the work.
        """
        space, size, chosen, tried = self.space, len(own), self.matrices[list(own)], self.matrices[pool]
        clock.charge(self._work(tried.size * size, 3))
        eye = np.broadcast_to(np.eye(chosen.shape[-1]), space.fresh.shape)
        product, noise, weight = eye, np.zeros_like(eye), np.zeros_like(eye)
        for one in chosen:
            weight = weight + product.swapaxes(-1, -2) @ product
            noise, product = one @ (noise + space.fresh) @ one.swapaxes(-1, -2), one @ product
        before = [steady_state(product, noise, negligible=NEGLIGIBLE, max_doublings=MAX_DOUBLINGS).covariance]
        turned = product.swapaxes(-1, -2)
        after = [steady_state(turned, weight, negligible=NEGLIGIBLE, max_doublings=MAX_DOUBLINGS).covariance]
        for one in chosen:  # `before[t]`: the covariance that phase t finds
            before.append(one @ (before[-1] + space.fresh) @ one.swapaxes(-1, -2))
        for one in chosen[::-1]:  # `after[t]`: the weight, now and later, on what reaches phase t
            after.insert(0, eye + one.swapaxes(-1, -2) @ after[0] @ one)

        def weigh(covariance: Floats, weights: Floats) -> Floats:
            return np.asarray((covariance * weights).sum(axis=(-2, -1)) @ space.weight)

        replaced, inserted, removed = np.empty((size, len(pool))), np.empty((size, len(pool))), np.empty(size)
        for t in range(size):
            left = tried @ (before[t] + space.fresh) @ tried.swapaxes(-1, -2)
            mine, skipped = weigh(before[t + 1], after[t + 1]), weigh(before[t], after[t + 1] - eye)
            replaced[t], removed[t] = weigh(left, after[t + 1]) - mine, skipped - mine
            inserted[t] = weigh(left, after[t]) - weigh(before[t], after[t] - eye)
        total = sum(float(weigh(one, eye)) for one in before[1:])
        return total, replaced, inserted, removed

    def work(self, period: Period) -> float:
        """Return the approximate nominal seconds that `better` takes for a period."""
        size, length = self.space.fresh.size, len(period)
        return self._work(TRIED * length * size, 3) + self._work(SCORED * size, 4 * length + 24)

    def _work(self, entries: int, operations: int) -> float:
        size = self.matrices.shape[-1]
        return float(operations * (PER_CALL + entries / size**2 * (PER_MATRIX + PER_PRODUCT * size**3)))
