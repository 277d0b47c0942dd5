"""Segments: periods that return to consensus are cut after every full average, and the pieces simply add up.

After a full average the past is forgotten, so costs and consensus distances of the segments between full averages are
sums: choosing how often each stands in a period of given length is a small integer program with an exact objective (a
renewal argument, as for the cycles of a renewal process). Segments come from a beam search, compositions of them from
CP-SAT exactly or from dynamic programming for the whole front at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.constraints import Composition, Segment, cost_of, value_of
from partreduce.schedulers.synthesis.cp_sat import new_model, solve
from partreduce.schedulers.synthesis.problem import Limits, Status
from partreduce.topo.arithmetic.pareto import non_dominated

Floats = npt.NDArray[np.float64]

PER_COST = 4
"""Beginnings of each cost that a beam search goes on with at the least."""
BINS_PER_SEGMENT = 120
"""Bins of cost that the dearest segment spans in the dynamic program."""
BEAM = 160
"""Beginnings that a beam search goes on with, about."""
PER_VARIABLE = 3e-5
"""Nominal seconds that one segment costs in building and presolving the integer program."""
LEAST_SOLVE, MAX_SOLVE = 0.05, 2.0
"""Seconds that one integer program is given at the least, and at the most."""
PER_BEGINNING = 2e-5
"""Nominal seconds of one beginning of a beam search, beside its matrices."""
PER_TRIAL, PER_ENTRY = 6e-6, 1.4e-9
"""Nominal seconds of trying one segment in the dynamic program, and of each of its entries."""


def segments_of(
    alphabet: Alphabet, max_length: int, expired: Callable[[], bool], *, beam: int = BEAM, per_cost: int = PER_COST
) -> list[Segment]:
    """Good segments of every length up to `max_length`, ending in the full average; [] if there is none.

    Beam search from consensus: at each length, for each cost, the few beginnings (`per_cost`) with the least
    consensus distance so far and the least still in the workers are kept. Shapes: B beginnings in the beam, A phases in
    the alphabet.
    """
    full = alphabet.full_average()
    if full is None:
        return []
    space = alphabet.space
    gains = alphabet.matrices.swapaxes(-1, -2) @ alphabet.matrices  # (A, C, G, G): WᵀW, what W leaves of a covariance
    close = float(alphabet.costs[full])
    covariance = np.zeros((1, *space.fresh.shape))  # (B, C, G, G), before the next phase
    costs, values = np.zeros(1), np.zeros(1)  # (B,)
    begun: list[Indices] = [()]
    segments: list[Segment] = []
    for _ in range(max_length):
        if space.clock is not None:
            space.clock.charge(PER_BEGINNING * len(begun) * (1 + len(alphabet) / 100))
        closed = [
            Segment((*indices, full), cost + close, value)
            for indices, cost, value in zip(begun, costs.tolist(), values.tolist(), strict=True)
        ]
        segments += non_dominated(closed, lambda segment: (segment.cost, segment.value))
        if expired() or len(begun[0]) + 1 >= max_length:
            break
        left = scoring.weighed(
            space, covariance + space.fresh, gains
        )  # (B, A): consensus distance after each next phase
        new_costs, new_values = costs[:, None] + alphabet.costs, values[:, None] + left
        keep = worth_extending(new_costs.ravel(), new_values.ravel(), left.ravel(), beam, per_cost)
        parent, phase = np.divmod(keep, len(alphabet))
        begun = [(*begun[p], a) for p, a in zip(parent.tolist(), phase.tolist(), strict=True)]
        matrices = alphabet.matrices[phase]
        covariance = matrices @ (covariance[parent] + space.fresh) @ matrices.swapaxes(-1, -2)
        costs, values = new_costs.ravel()[keep], new_values.ravel()[keep]
    return segments


def worth_extending(
    costs: Floats, values: Floats, later: Floats, beam: int, per_cost: int = PER_COST
) -> npt.NDArray[np.int64]:
    """The entries worth extending: for each distinct cost the best few, then the best over a range of prices.

    Best is the least of `values`, what was paid so far, and `later`, an estimate of what is to come.
    """
    ahead = values + later
    rounded = np.round(costs * 1e7).astype(np.int64)
    # By cost, then by what is ahead; `rank` counts from 0 within each run of equal costs.
    order = np.lexsort((ahead, rounded))
    first = np.r_[True, np.diff(rounded[order]) != 0]
    rank = np.arange(len(order)) - np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    kept = order[rank < per_cost]
    if len(kept) <= beam:
        return np.asarray(kept, dtype=np.int64)
    scale = max(float(costs.max()), 1e-12)
    chosen: set[int] = set()
    for price in (*np.geomspace(0.05, 200.0, 15) / scale, 1e9):
        score = ahead[kept] + price * costs[kept]
        chosen.update(kept[np.argsort(score)[: beam // 16]].tolist())
    return np.array(sorted(chosen), dtype=np.int64)


def compose(
    segments: Sequence[Segment],
    period: int,
    limits: Limits,
    *,
    budget: float | None = None,
    value: float | None = None,
    time_limit: float,
    seed: int,
    free: frozenset[int] = frozenset(),
    clock: Clock | None = None,
    max_work: float | None = None,
) -> tuple[Status, Indices]:
    """The best period of exactly `period` phases made of segments: the status and the indices of its phases.

    Best is the least consensus distance within a budget of seconds per round, or the least communication at a consensus
    distance of at most `value`.
    """
    model = new_model()
    composition = Composition.of(model, [s for s in segments if len(s.indices) <= period], period)
    if limits.max_distinct_phases is not None:
        composition.distinct_phases_at_most(limits.max_distinct_phases, free)
    if budget is not None:
        composition.at_most(cost_of, budget * period)
        model.minimize(composition.total(value_of))
    else:
        assert value is not None
        composition.at_most(value_of, value * period)
        model.minimize(composition.total(cost_of))
    outcome = solve(model, composition.counts, time_limit=time_limit, seed=seed, max_deterministic_time=max_work)
    if clock is not None:
        clock.charge(PER_VARIABLE * len(composition.segments) + outcome.work)
    indices = tuple(
        phase
        for segment, count in zip(composition.segments, outcome.values, strict=False)
        for _ in range(count)
        for phase in segment.indices
    )
    return outcome.status, indices


def compositions(
    segments: Sequence[Segment],
    limits: Limits,
    *,
    budget: float | None = None,
    value: float | None = None,
    periods: Sequence[int] | None = None,
    clock: Clock,
    until: float,
    seed: int,
    free: frozenset[int] = frozenset(),
) -> list[Indices]:
    """The best composition of each of `periods`, in that order, until the clock's position `until`.

    All periods within the limits if none are given, the longest first.
    """
    result = []
    for period in periods if periods is not None else range(limits.max_period, limits.min_period - 1, -1):
        if not segments or not clock.fits(PER_VARIABLE * len(segments) + LEAST_SOLVE, until):
            break
        left, work = clock.left(until), clock.work_left(until)
        _, indices = compose(
            segments,
            period,
            limits,
            budget=budget,
            value=value,
            # Counted work decides where there is any, and seconds are then the whole of the cap that is left.
            time_limit=left if work < inf else min(MAX_SOLVE, left),
            seed=seed,
            free=free,
            clock=clock,
            max_work=min(MAX_SOLVE, work) if work < inf else None,
        )
        clock.passed(until)
        if indices:
            result.append(indices)
    return result


def sketch_front(
    segments: Sequence[Segment],
    limits: Limits,
    expired: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
    *,
    bins_per_segment: int = BINS_PER_SEGMENT,
) -> dict[Indices, float]:
    """Good compositions over the whole range of costs at once, by dynamic programming on (period, cost).

    Costs are rounded to bins, so single entries may miss the optimum that `compositions` finds. O(P · S · bins).
    Periods that the time does not reach are left out. With each goes the sum of its segments' values.
    """
    if not segments:
        return {}
    longest = limits.max_period
    unit = max(s.cost for s in segments) / bins_per_segment
    bins = longest * bins_per_segment + 1
    # Entry (p, b): the least sum of consensus distances of p phases of costs in bin b, and the segment that ends them.
    table = np.full((longest + 1, bins), np.inf)
    choice = np.full((longest + 1, bins), -1, dtype=np.int64)
    table[0, 0] = 0.0
    steps = [round(s.cost / unit) for s in segments]
    for period in range(1, longest + 1):
        if expired():
            longest = period - 1
            break
        if clock is not None:
            clock.charge(sum(len(s.indices) <= period for s in segments) * (PER_TRIAL + PER_ENTRY * bins))
        for index, segment in enumerate(segments):
            length, step = len(segment.indices), steps[index]
            if length > period:
                continue
            trial = table[period - length, : bins - step] + segment.value
            better = trial < table[period, step:] - 1e-12
            table[period, step:][better] = trial[better]
            choice[period, step:][better] = index
    sketch: dict[Indices, float] = {}
    for period in range(limits.min_period, longest + 1):
        least = np.inf
        for place in np.flatnonzero(np.isfinite(table[period])).tolist():
            if table[period, place] < least - 1e-9:
                least = float(table[period, place])
                sketch[_traced(segments, choice, steps, period, place)] = least
    return sketch


def _traced(
    segments: Sequence[Segment], choice: npt.NDArray[np.int64], steps: Sequence[int], period: int, place: int
) -> Indices:
    indices: Indices = ()
    while period > 0:
        index = int(choice[period, place])
        indices = (*indices, *segments[index].indices)
        period, place = period - len(segments[index].indices), place - steps[index]
    return indices
