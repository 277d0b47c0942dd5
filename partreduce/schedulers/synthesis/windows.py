"""Rebuild a few phases of a period (a window) and keep the rest.

The rest stays, so the covariance that enters the window and the weight of every later phase on what leaves it are known
matrices, and a window costs a sum of terms, one a phase, and one linear term at its end. A beam search over the phases
finds good windows for many prices of communication at once, one phase shorter and longer ones too. Both matrices belong
to the old period, so what comes out is scored exactly before it counts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.segments import Beam, worth_extending

BEAM = Beam(32, 4)
RESCORED = 48
"""Replacements of each length that are scored exactly."""


def windows(
    alphabet: Alphabet,
    turned: Indices,
    width: int,
    pool: npt.NDArray[np.int64],
    *,
    expired: Callable[[], bool],
) -> list[Indices]:
    """Good replacements of the first `width` phases of the period, the best few of each length from width−1 to width+1.

    Shapes: A phases in the pool, B beginnings in the beam, C classes of size G.
    """
    space, maps = alphabet.space, alphabet.covariance_maps()
    rest = scoring.compose_all(space, [maps[i] for i in turned[width:]])
    old = scoring.compose_all(space, [maps[i] for i in turned[:width]])
    # What enters the window, and the weight of everything later on what leaves it: both of the old period, (C, G, G).
    entering, later = scoring.steady(scoring.compose(space, old, rest))
    leaving = rest.weight + rest.product.swapaxes(-1, -2) @ later @ rest.product
    matrices = alphabet.matrices[pool]  # (A, C, G, G)
    own_weight = matrices.swapaxes(-1, -2) @ matrices  # what the phase's own round adds to the metric
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
        if expired():
            break
    return replacements
