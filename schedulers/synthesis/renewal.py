"""Periods that return to consensus: segments by beam search, put together exactly by CP-SAT.

After a full average the past is forgotten, so costs and disagreements of the segments between full averages simply add
up: choosing how often each stands in a period of given length is a small integer program with an exact objective.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.synthesis import scoring
from preduce.schedulers.synthesis.constraints import SCALE, CostAtMost, DistinctPhasesAtMost, PeriodIs, ValueAtMost
from preduce.schedulers.synthesis.solve import new_model, solve
from preduce.schedulers.synthesis.variables import CompositionVariables, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from preduce.schedulers.synthesis.alphabet import Alphabet
    from preduce.schedulers.synthesis.problem import Limits, Status

    Floats = npt.NDArray[np.float64]

PER_COST = 4
BINS_PER_SEGMENT = 120
BEAM = 160


def segments_of(alphabet: Alphabet, max_length: int, expired: Callable[[], bool], *, beam: int = BEAM) -> list[Segment]:
    """Good segments of every length up to `max_length`, ending in the full average; [] if there is none.

    Beam search from consensus: at each length, for each cost, the few stretches with the least disagreement so far and
    the least still in the workers are kept.
    """
    full = alphabet.full_average()
    if full is None:
        return []
    space = alphabet.space
    seen = alphabet.matrices.swapaxes(-1, -2) @ alphabet.matrices
    close = float(alphabet.costs[full])
    spread = np.zeros((1, *space.fresh.shape))
    costs, values = np.zeros(1), np.zeros(1)
    letters: list[tuple[int, ...]] = [()]
    found: list[Segment] = []
    for _ in range(max_length):
        found += _least(
            [
                Segment((*made, full), c + close, v)
                for made, c, v in zip(letters, costs.tolist(), values.tolist(), strict=True)
            ]
        )
        if expired() or len(letters[0]) + 1 >= max_length:
            break
        traces = scoring.weighed(space, spread + space.fresh, seen)
        new_costs, new_values = costs[:, None] + alphabet.costs, values[:, None] + traces
        keep = worth_extending(new_costs.ravel(), new_values.ravel(), traces.ravel(), beam)
        parent, letter = np.divmod(keep, len(alphabet))
        letters = [(*letters[p], int(new)) for p, new in zip(parent.tolist(), letter.tolist(), strict=True)]
        moved = alphabet.matrices[letter]
        spread = moved @ (spread[parent] + space.fresh) @ moved.swapaxes(-1, -2)
        costs, values = new_costs.ravel()[keep], new_values.ravel()[keep]
    return found


def worth_extending(costs: Floats, values: Floats, later: Floats, beam: int) -> npt.NDArray[np.int64]:
    """The entries worth extending: for each distinct cost the best few, then the best over a range of prices.

    Best is the least of `values`, what was paid so far, and `later`, an estimate of what is to come.
    """
    ahead = values + later
    rounded = np.round(costs * 1e7).astype(np.int64)
    order = np.lexsort((ahead, rounded))
    first = np.r_[True, np.diff(rounded[order]) != 0]
    rank = np.arange(len(order)) - np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    kept = order[rank < PER_COST]
    if len(kept) <= beam:
        return np.asarray(kept, dtype=np.int64)
    scale = max(float(costs.max()), 1e-12)
    chosen: set[int] = set()
    for price in (*np.geomspace(0.05, 200.0, 15) / scale, 1e9):
        score = ahead[kept] + price * costs[kept]
        chosen.update(kept[np.argsort(score)[: beam // 16]].tolist())
    return np.array(sorted(chosen), dtype=np.int64)


def _least(segments: Sequence[Segment]) -> list[Segment]:
    """The non-dominated segments of one length."""
    result: list[Segment] = []
    for segment in sorted(segments, key=lambda s: (s.cost, s.value)):
        if not result or segment.value < result[-1].value - 1e-12:
            result.append(segment)
    return result


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
) -> tuple[Status, tuple[int, ...]]:
    """The best period of exactly `period` phases made of segments: its status and letters.

    Best is the least disagreement within a budget of seconds per round, or the least communication at a disagreement
    of at most `value`.
    """
    model = new_model()
    variables = CompositionVariables.of(model, [s for s in segments if len(s.letters) <= period], period)
    PeriodIs(period).apply(model, variables)
    if limits.max_distinct_phases is not None:
        DistinctPhasesAtMost(limits.max_distinct_phases, free).apply(model, variables)
    if budget is not None:
        CostAtMost(budget * period).apply(model, variables)
        weights = [round(s.value * SCALE) for s in variables.segments]
    else:
        assert value is not None
        ValueAtMost(value * period).apply(model, variables)
        weights = [round(s.cost * SCALE) for s in variables.segments]
    model.minimize(sum(w * c for w, c in zip(weights, variables.counts, strict=True)))
    outcome = solve(model, variables.counts, time_limit=time_limit, seed=seed)
    letters = tuple(
        letter
        for segment, count in zip(variables.segments, outcome.values, strict=False)
        for _ in range(count)
        for letter in segment.letters
    )
    return outcome.status, letters


def compositions(
    segments: Sequence[Segment],
    limits: Limits,
    *,
    budget: float | None = None,
    value: float | None = None,
    periods: Sequence[int] | None = None,
    deadline: float,
    seed: int,
    free: frozenset[int] = frozenset(),
) -> list[tuple[int, ...]]:
    """The best composition of each of `periods`, in that order, as long as time (`time.monotonic()`) is left.

    All periods within the limits if none are given, the longest first.
    """
    result = []
    for period in periods if periods is not None else range(limits.max_period, limits.min_period - 1, -1):
        left = deadline - time.monotonic()
        if left < 0.1 or not segments:
            break
        _, letters = compose(
            segments, period, limits, budget=budget, value=value, time_limit=min(2.0, left), seed=seed, free=free
        )
        if letters:
            result.append(letters)
    return result


def sketch_front(
    segments: Sequence[Segment], limits: Limits, expired: Callable[[], bool] = lambda: False
) -> list[tuple[int, ...]]:
    """Good compositions over the whole range of costs at once, by dynamic programming on (period, cost).

    Costs are rounded to bins, so single entries may miss the optimum that `compositions` finds. O(P · S · bins).
    Periods that the time does not reach are left out.
    """
    if not segments:
        return []
    longest = limits.max_period
    unit = max(s.cost for s in segments) / BINS_PER_SEGMENT
    bins = longest * BINS_PER_SEGMENT + 1
    table = np.full((longest + 1, bins), np.inf)
    choice = np.full((longest + 1, bins), -1, dtype=np.int64)
    table[0, 0] = 0.0
    steps = [round(s.cost / unit) for s in segments]
    for period in range(1, longest + 1):
        if expired():
            longest = period - 1
            break
        for index, segment in enumerate(segments):
            length, step = len(segment.letters), steps[index]
            if length > period:
                continue
            trial = table[period - length, : bins - step] + segment.value
            better = trial < table[period, step:] - 1e-12
            table[period, step:][better] = trial[better]
            choice[period, step:][better] = index
    found: dict[tuple[int, ...], None] = {}
    for period in range(limits.min_period, longest + 1):
        least = np.inf
        for place in np.flatnonzero(np.isfinite(table[period])).tolist():
            if table[period, place] < least - 1e-9:
                least = float(table[period, place])
                found[_traced(segments, choice, steps, period, place)] = None
    return list(found)


def _traced(
    segments: Sequence[Segment], choice: npt.NDArray[np.int64], steps: Sequence[int], period: int, place: int
) -> tuple[int, ...]:
    letters: tuple[int, ...] = ()
    while period > 0:
        index = int(choice[period, place])
        letters = (*letters, *segments[index].letters)
        period, place = period - len(segments[index].letters), place - steps[index]
    return letters
