"""Windows built anew: large-neighbourhood search that knows what comes before and after the window torn out.

The rest of the period stays, so the covariance that enters the window and the weight of every later phase on what
leaves it are known matrices, and a window costs a sum of terms, one a phase, and one linear term at its end. A beam
search over the phases finds good windows for many prices of communication at once, one phase shorter and longer ones
too. Both matrices belong to the old period, so what comes out is scored exactly before it counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.alphabet import Indices
from partreduce.schedulers.synthesis.scored_periods import ScoredPeriods, Target
from partreduce.schedulers.synthesis.scoring import CovarianceMap
from partreduce.schedulers.synthesis.segments import worth_extending

Floats = npt.NDArray[np.float64]

WINDOW = 4
"""Phases that are torn out at most."""
BEAM = 32
"""Beginnings of a window that the beam search goes on with, about."""
RESCORED = 48
"""Windows of each length that are scored exactly."""


def rebuild(scored: ScoredPeriods, indices: Indices, target: Target, maps: CovarianceMap) -> Indices:
    """The best for `target` among the period and those with one window built anew; all go to the archive.

    O(window · beam · A · C·G³) for A phases.
    """
    length = len(indices)
    width = int(scored.rng.integers(1, min(WINDOW, length) + 1))
    start = int(scored.rng.integers(length))
    turned = (*indices[start:], *indices[:start])
    options = [turned]
    for window in windows(scored, turned, width, maps):
        made = (*window, *turned[width:])
        if scored.min_period <= len(made) <= scored.max_period:
            options.append(made)
    values, costs = scored.figures_of(options, maps)
    return options[int(np.argmin(target.energy(costs, values)))]


def windows(scored: ScoredPeriods, turned: Indices, width: int, maps: CovarianceMap) -> list[Indices]:
    """Good replacements of the first `width` phases of the period, of width−1 to width+1 phases each.

    Shapes: A phases in the sample, B beginnings in the beam, C classes of size G.
    """
    space, alphabet = scored.alphabet.space, scored.alphabet
    rest = scoring.compose_all(space, [maps[i] for i in turned[width:]])
    old = scoring.compose_all(space, [maps[i] for i in turned[:width]])
    # What enters the window, and the weight of everything later on what leaves it: both of the old period, (C, G, G).
    entering, later = scoring.steady(scoring.compose(space, old, rest))
    leaving = rest.weight + rest.product.swapaxes(-1, -2) @ later @ rest.product
    pool = scored.sample()  # (A,)
    matrices = alphabet.matrices[pool]  # (A, C, G, G)
    own_weight = matrices.swapaxes(-1, -2) @ matrices  # what the phase's own round adds to the figure
    end_weight = matrices.swapaxes(-1, -2) @ leaving @ matrices  # what all later rounds add if the window ends with it
    covariance, costs, values = entering[None], np.zeros(1), np.zeros(1)  # (B, C, G, G), (B,), (B,)
    begun: list[Indices] = [()]
    replacements: list[Indices] = [()] if width == 1 else []
    for depth in range(1, width + 2):
        here = scoring.weighed(space, covariance + space.fresh, own_weight)  # (B, A)
        ahead = scoring.weighed(space, covariance + space.fresh, end_weight)  # (B, A)
        new_costs, new_values = costs[:, None] + alphabet.costs[pool], values[:, None] + here
        keep = worth_extending(new_costs.ravel(), new_values.ravel(), ahead.ravel(), BEAM)
        parent, phase = np.divmod(keep, len(pool))
        begun = [(*begun[p], int(pool[a])) for p, a in zip(parent.tolist(), phase.tolist(), strict=True)]
        covariance = matrices[phase] @ (covariance[parent] + space.fresh) @ matrices[phase].swapaxes(-1, -2)
        costs, values = new_costs.ravel()[keep], new_values.ravel()[keep]
        if depth >= width - 1:
            order = np.argsort(values + ahead.ravel()[keep])[:RESCORED]
            replacements += [begun[i] for i in order.tolist()]
        if scored.expired():
            break
    return replacements
