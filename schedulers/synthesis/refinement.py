"""Refinement: what a search left on its front is taken apart and put together again, until the time is up.

A search over a whole alphabet finds the phases that are worth using, a few dozen of hundreds, long before it has found
the best orders of them. So rounds of three steps follow, all of them filling the same archive:

* the phases in use on the front alone, put together between full averages by a beam search that is the wider the fewer
  they are (`segments`);
* for explicit phases, `local_search`: new phases, worker by worker;
* windows of the periods on the front built anew, and short annealing, from the phases in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.synthesis.alphabet_search import COLD, HOT, within_limits
from preduce.schedulers.synthesis.annealing import Target, Walk
from preduce.schedulers.synthesis.local_search import LocalSearch
from preduce.schedulers.synthesis.segments import segments_of, sketch_front
from preduce.schedulers.synthesis.window_rebuilding import rebuild

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from preduce.schedulers.synthesis.alphabet import Alphabet
    from preduce.schedulers.synthesis.archive import Archive
    from preduce.schedulers.synthesis.local_search import Budget
    from preduce.schedulers.synthesis.problem import Problem

BEAMS = ((640, 4), (1600, 4), (1600, 32), (6400, 100))
"""Beginnings that the beam search goes on with in the first rounds, and how many of them for each cost."""
BINS_PER_SEGMENT = 480
"""Bins of cost for the dearest segment: four times as fine as where the search began."""
MAX_POOL = 96
"""Phases in use that are put together; of more, those that stand in most periods."""
NEWCOMERS = 48
"""Other phases, drawn at random, that are put together with those in use when these have not changed."""
DESCENTS = 12
"""Periods of the front that are improved in one round."""
REBUILDS = 4
"""Windows built anew for each of them."""


def refine(
    alphabet: Alphabet, problem: Problem, archive: Archive, *, budget: Budget, seed: int, targets: Sequence[Target] = ()
) -> Alphabet:
    """Improve the periods of an archive.

    Args:
        alphabet: the phases that the archive's indices speak of.
        problem: what is asked.
        archive: filled with what is better, in indices of the returned alphabet.
        budget: when to stop; with a number of evaluations alone the outcome depends on nothing but the seed.
        seed: of all random draws.
        targets: what to aim at besides what each period on the front communicates.

    Returns:
        The alphabet with new phases behind its own, if it has explicit ones.
    """
    rng = np.random.default_rng(seed)
    search = LocalSearch(alphabet, problem, archive, budget, rng) if alphabet.radices is None else None
    turn, composed = 0, set()
    while not budget() and (front := archive.front()):
        pool, beam = used_phases(alphabet, archive), BEAMS[min(turn, len(BEAMS) - 1)]
        if (pool.tobytes(), beam) in composed:  # nothing new came into use, so others are given a chance
            pool, beam = (
                np.union1d(pool, rng.choice(len(alphabet), min(NEWCOMERS, len(alphabet)), replace=False)),
                BEAMS[1],
            )
        composed.add((pool.tobytes(), beam))
        recompose(alphabet, problem, archive, pool, budget=budget, rng=rng, beam=beam)
        chosen = [Target(budget=front[i][1]) for i in rng.permutation(len(front))[:DESCENTS].tolist()]
        chosen = [t for pair in zip(chosen, [*targets, *chosen], strict=False) for t in pair] if targets else chosen
        if search is not None:
            for target in chosen:
                best = archive.best_for(target)
                if best is not None and not budget():
                    search.improve(best[2], target)
            search.grow()
            alphabet = search.alphabet
        shuffle(alphabet, problem, archive, chosen, budget=budget, rng=rng)
        turn += 1
    return alphabet


def used_phases(alphabet: Alphabet, archive: Archive) -> npt.NDArray[np.int64]:
    """The phases in use on the front, the full average among them, at most MAX_POOL; their indices, ascending."""
    full = alphabet.full_average()
    uses = np.zeros(len(alphabet), dtype=np.int64)
    for entry in archive.front():
        uses[list(set(entry[2]))] += 1
    if full is not None:
        uses[full] = len(archive.edges) + 1
    most = np.argsort(-uses, kind="stable")[:MAX_POOL]
    return np.sort(most[uses[most] > 0])


def recompose(
    alphabet: Alphabet,
    problem: Problem,
    archive: Archive,
    pool: npt.NDArray[np.int64],
    *,
    budget: Budget,
    rng: np.random.Generator,
    beam: tuple[int, int],
) -> None:
    """The phases of a pool put together anew between full averages, over the whole range of costs."""
    limits = problem.limits
    width, per_cost = beam
    segments = segments_of(alphabet.take(pool), limits.max_period, budget, beam=width, per_cost=per_cost)
    sketched = sketch_front(segments, limits, budget, bins_per_segment=BINS_PER_SEGMENT)
    options = [tuple(int(pool[i]) for i in indices) for indices in sketched]
    if options and not budget():
        walk_over(alphabet, problem, archive, pool, budget=budget, rng=rng).figures_of(
            options, alphabet.covariance_maps()
        )
        budget.spent += len(options)


def shuffle(
    alphabet: Alphabet,
    problem: Problem,
    archive: Archive,
    targets: Sequence[Target],
    *,
    budget: Budget,
    rng: np.random.Generator,
) -> None:
    """For each target windows of the best period built anew, and a short annealing, from the phases in use."""
    pool, maps = used_phases(alphabet, archive), alphabet.covariance_maps()
    walk = walk_over(alphabet, problem, archive, pool, budget=budget, rng=rng)
    for target in targets:
        best = archive.best_for(target)
        if best is None or budget():
            continue
        indices = best[2]
        for _ in range(REBUILDS):
            indices = rebuild(walk, indices, target, maps)
        walk.anneal(indices, target, num_sweeps=3, hot=HOT / 5, cold=COLD)
        budget.spent += (REBUILDS + 3 * len(indices)) * min(len(pool), walk.width)


def walk_over(
    alphabet: Alphabet,
    problem: Problem,
    archive: Archive,
    pool: npt.NDArray[np.int64],
    *,
    budget: Budget,
    rng: np.random.Generator,
) -> Walk:
    """A walk within the problem's limits over the phases of a pool."""
    return Walk(
        alphabet=alphabet,
        archive=archive,
        rng=rng,
        expired=budget,
        min_period=problem.limits.min_period,
        max_period=problem.limits.max_period,
        allowed=within_limits(alphabet, problem.limits),
        width=MAX_POOL,
        pool=pool,
    )
