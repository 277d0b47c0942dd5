"""Long periods composed of decided phases: pieces between full averages, whose costs and distances simply add up.

After a full average the past is forgotten, so costs and consensus distances of the pieces between full averages are
sums: how often each stands in a period of given length is a knapsack with an exact objective, as of renewal cycles.
Pieces come from a beam search over the few phases that the model decided on, a full average and a silent phase; the
knapsack is solved for the whole front at once by dynamic programming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.choices import Choices, Period
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.arithmetic.pareto import non_dominated

Floats = npt.NDArray[np.float64]
Indices = tuple[int, ...]

WIDTH, PER_COST, PRICES, MAX_ENTRIES = 480, 4, 16, 12_000_000
"""Beginnings that the beam search continues with: all, of one cost, prices they suit, entries of their matrices."""
BINS = 240
"""Bins of cost that the dearest piece spans in the dynamic program."""
PER_BEGINNING, PER_ENTRY, PER_TRIAL, PER_PLACE = 2e-5, 4e-10, 6e-6, 1.4e-9
"""Nominal seconds of one beginning, of each entry that it multiplies, of trying a piece, and of each of its places."""


class Piece(NamedTuple):
    """Phases from consensus to consensus: their indices, cost in seconds, and sum of consensus distances."""

    indices: Indices
    cost: float
    value: float


def compositions(
    choices: Choices, phases: Period, worker_steps: Sequence[int], clock: Clock, until: float
) -> Iterator[tuple[Period, float, float]]:
    """Good periods of these phases with their seconds and consensus distance per step; the last phase averages all.

    Beam search from consensus keeps the beginnings with the least distance at many prices; shapes: B of them, A phases.
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
        clock.charge(len(begun) * (PER_BEGINNING + PER_ENTRY * (full + 4) * len(scale)))
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
    found = _composed(pieces, limits.max_period, clock, lambda: clock.passed(begun_at + 0.9 * left))
    for indices, value in found.items():
        seconds = float(costs[list(indices)].mean()) / space.instants
        yield tuple(phases[index] for index in indices), seconds, space.floor + value / len(indices)


def _worth_extending(spent: Floats, ahead: Floats, width: int) -> npt.NDArray[np.int64]:
    """The best few of each cost; of too many, the best over a range of prices of communication."""
    order = np.lexsort((ahead, cents := np.round(spent * 1e7).astype(np.int64)))
    _, first, rank = np.unique(cents[order], return_index=True, return_inverse=True)
    kept = order[np.arange(len(order)) - first[rank] < PER_COST]
    if len(kept) > width:
        prices = (*np.geomspace(0.05, 200.0, PRICES - 1) / max(float(spent.max()), 1e-12), 1e9)
        scores = (ahead[kept] + price * spent[kept] for price in prices)
        kept = kept[np.unique([np.argsort(score, kind="stable")[: width // PRICES] for score in scores])]
    return kept


def _composed(pieces: Sequence[Piece], longest: int, clock: Clock, expired: Callable[[], bool]) -> dict[Indices, float]:
    """Good compositions at every cost, with the sums of values, by dynamic programming on (period, cost).

    Costs are rounded to bins, so single entries may miss the optimum. O(period² · pieces · bins).
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
