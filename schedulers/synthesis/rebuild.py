"""Large-neighbourhood search: tear a window out of a period and build it anew, knowing what comes before and after.

The rest of the period stays, so the covariance that enters the window and the weight of every later phase on what
leaves it are known matrices, and a window costs a sum of terms, one a phase, and one linear term at its end. A beam
search over the letters finds good windows for many prices of communication at once, one phase shorter and longer ones
too. Both matrices belong to the old period, so what comes out is scored exactly before it counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.synthesis import scoring
from preduce.schedulers.synthesis.renewal import worth_extending

if TYPE_CHECKING:
    import numpy.typing as npt

    from preduce.schedulers.synthesis.scoring import Stretch
    from preduce.schedulers.synthesis.search import Letters, Target, Walk

    Floats = npt.NDArray[np.float64]

WINDOW = 4
BEAM = 32
RESCORED = 48


def rebuild(walk: Walk, letters: Letters, target: Target, stretches: Stretch) -> Letters:
    """The best for `target` among the period and those with one window built anew; all go to the archive.

    O(window · beam · letters · C·G³).
    """
    length = len(letters)
    width = int(walk.rng.integers(1, min(WINDOW, length) + 1))
    start = int(walk.rng.integers(length))
    turned = (*letters[start:], *letters[:start])
    options = [turned]
    for window in windows(walk, turned, width, stretches):
        made = (*window, *turned[width:])
        if walk.min_period <= len(made) <= walk.max_period:
            options.append(made)
    values, costs = walk.figures_of(options, stretches)
    return options[int(np.argmin(target.energy(costs, values)))]


def windows(walk: Walk, turned: Letters, width: int, stretches: Stretch) -> list[Letters]:
    """Good replacements of the first `width` letters, of width−1 to width+1 letters each."""
    space, alphabet = walk.alphabet.space, walk.alphabet
    rest = scoring.chain(space, [stretches[i] for i in turned[width:]])
    old = scoring.chain(space, [stretches[i] for i in turned[:width]])
    entering, later = scoring.steady(scoring.compose(space, old, rest))
    leaving = rest.weight + rest.product.swapaxes(-1, -2) @ later @ rest.product
    pool = walk.sample()
    matrices = alphabet.matrices[pool]
    seen = matrices.swapaxes(-1, -2) @ matrices
    passed_on = matrices.swapaxes(-1, -2) @ leaving @ matrices
    spread, costs, values = entering[None], np.zeros(1), np.zeros(1)
    made: list[Letters] = [()]
    found: list[Letters] = [()] if width == 1 else []
    for depth in range(1, width + 2):
        here = scoring.weighed(space, spread + space.fresh, seen)
        ahead = scoring.weighed(space, spread + space.fresh, passed_on)
        new_costs, new_values = costs[:, None] + alphabet.costs[pool], values[:, None] + here
        keep = worth_extending(new_costs.ravel(), new_values.ravel(), ahead.ravel(), BEAM)
        parent, letter = np.divmod(keep, len(pool))
        made = [(*made[p], int(pool[new])) for p, new in zip(parent.tolist(), letter.tolist(), strict=True)]
        spread = matrices[letter] @ (spread[parent] + space.fresh) @ matrices[letter].swapaxes(-1, -2)
        costs, values = new_costs.ravel()[keep], new_values.ravel()[keep]
        if depth >= width - 1:
            order = np.argsort(values + ahead.ravel()[keep])[:RESCORED]
            found += [made[i] for i in order.tolist()]
        if walk.expired():
            break
    return found
