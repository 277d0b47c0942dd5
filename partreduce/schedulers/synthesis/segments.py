"""Compose periods from segments between full averages, whose costs and consensus distances add up.

After a full average the past is forgotten, so costs and consensus distances of the segments between full averages are
sums: how often each stands in a period of given length is a knapsack with an exact objective (a renewal argument, as
for the cycles of a renewal process). Segments come from a beam search, compositions of them from dynamic programming
for the whole front at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.problem import Limits
from partreduce.topo.arithmetic.pareto import non_dominated

Floats = npt.NDArray[np.float64]

PER_BEGINNING = 2e-5
"""Nominal seconds of one beginning of a beam search, without its matrices."""
PER_TRIAL, PER_ENTRY = 6e-6, 1.4e-9
"""Nominal seconds of trying one segment in the dynamic program, and of each of its entries."""


class Beam(NamedTuple):
    """The approximate width of a beam search, and the minimum number of prefixes that it keeps per cost.

    `bins` is the number of cost bins that the most expensive segment spans in the dynamic program.
    """

    width: int
    per_cost: int
    bins: int = 120


@dataclass(frozen=True, slots=True)
class Segment:
    """Phases from consensus to consensus: their indices, cost in seconds, and sum of consensus distances."""

    indices: Indices
    cost: float
    value: float


def segments_of(alphabet: Alphabet, max_length: int, expired: Callable[[], bool], *, beam: Beam) -> list[Segment]:
    """Good segments of every length up to `max_length`, ending in the full average; [] if there is none.

    Beam search from consensus: at each length, for each cost, the few beginnings with the least consensus
    distance so far and the least still in the workers are kept. Shapes: B beginnings in the beam, A phases in the
    alphabet.
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
        keep = worth_extending(new_costs.ravel(), new_values.ravel(), left.ravel(), beam)
        parent, phase = np.divmod(keep, len(alphabet))
        begun = [(*begun[p], a) for p, a in zip(parent.tolist(), phase.tolist(), strict=True)]
        matrices = alphabet.matrices[phase]
        covariance = matrices @ (covariance[parent] + space.fresh) @ matrices.swapaxes(-1, -2)
        costs, values = new_costs.ravel()[keep], new_values.ravel()[keep]
    return segments


def worth_extending(costs: Floats, values: Floats, later: Floats, beam: Beam) -> npt.NDArray[np.int64]:
    """The entries worth extending: for each distinct cost the best few, then the best over a range of prices.

    Best is the least of `values`, what was paid so far, and `later`, an estimate of what is to come.
    """
    ahead = values + later
    rounded = np.round(costs * 1e7).astype(np.int64)
    # By cost, then by what is ahead; `rank` counts from 0 within each run of equal costs.
    order = np.lexsort((ahead, rounded))
    first = np.r_[True, np.diff(rounded[order]) != 0]
    rank = np.arange(len(order)) - np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    kept = order[rank < beam.per_cost]
    if len(kept) <= beam.width:
        return np.asarray(kept, dtype=np.int64)
    scale = max(float(costs.max()), 1e-12)
    chosen: set[int] = set()
    for price in (*np.geomspace(0.05, 200.0, 15) / scale, 1e9):
        score = ahead[kept] + price * costs[kept]
        chosen.update(kept[np.argsort(score)[: beam.width // 16]].tolist())
    return np.array(sorted(chosen), dtype=np.int64)


def sketch_front(
    segments: Sequence[Segment],
    limits: Limits,
    expired: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
    *,
    bins: int,
) -> dict[Indices, float]:
    """Good compositions over the whole range of costs at once, by dynamic programming on (period, cost).

    Costs are rounded to bins, so single entries may miss the optimum. O(P² · S · bins). Periods that the time does not
    reach are left out. With each goes the sum of its segments' values.
    """
    if not segments:
        return {}
    longest = limits.max_period
    unit = max(s.cost for s in segments) / bins or 1.0  # where links are free, all costs are 0
    places = longest * bins + 1
    # Entry (p, b): the least sum of consensus distances of p phases of costs in bin b, and the segment that ends them.
    table = np.full((longest + 1, places), np.inf)
    choice = np.full((longest + 1, places), -1, dtype=np.int64)
    table[0, 0] = 0.0
    steps = [round(s.cost / unit) for s in segments]
    for period in range(1, longest + 1):
        if expired():
            longest = period - 1
            break
        if clock is not None:
            clock.charge(sum(len(s.indices) <= period for s in segments) * (PER_TRIAL + PER_ENTRY * places))
        for index, segment in enumerate(segments):
            length, step = len(segment.indices), steps[index]
            if length > period:
                continue
            trial = table[period - length, : places - step] + segment.value
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
