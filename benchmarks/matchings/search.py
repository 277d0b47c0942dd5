"""Search for exact consensus by relaxed pairs: cyclic rounds, matchings enumerated by CP-SAT, matchings at random."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.matchings.cyclic import search_cyclic
from benchmarks.matchings.enumeration import all_matchings
from benchmarks.matchings.weights import PairSearchReport, reaches_all, solve_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from benchmarks.matchings.enumeration import Partners
    from partreduce.schedulers.exact_rounds.known_rounds import WeightedRound

    Ints = npt.NDArray[np.int64]


def random_partners(rng: np.random.Generator, count: int, num_rounds: int, num_workers: int) -> Ints:
    """Random maximum matchings, shape (count, num_rounds, num_workers): each worker's partner (itself if idle)."""
    order = np.argsort(rng.random((count, num_rounds, num_workers)), axis=-1)
    partners = np.empty_like(order)
    even = num_workers - num_workers % 2
    left, right = order[..., 0:even:2], order[..., 1:even:2]
    np.put_along_axis(partners, left, right, axis=-1)
    np.put_along_axis(partners, right, left, axis=-1)
    if num_workers % 2:
        np.put_along_axis(partners, order[..., -1:], order[..., -1:], axis=-1)
    return partners


def search_pairs(
    num_workers: int,
    num_rounds: int,
    *,
    time_limit: float,
    seed: int = 0,
    batch: int = 512,
    progress: Callable[[int], None] | None = None,
) -> PairSearchReport:
    """Look for `num_rounds` relaxed matchings whose product is exactly the mean. Finding none proves nothing.

    The first round is fixed to (0 1)(2 3)… (any maximum matching is that one, after renumbering). n ≤ 63. Time limit
    kept to within one batch.
    """
    start = time.monotonic()
    rng = np.random.default_rng(seed)
    first = np.arange(num_workers)
    first[: num_workers - num_workers % 2] ^= 1
    tried = reachable = 0
    waiting: list[Ints] = []
    while time.monotonic() - start < time_limit:
        partners = random_partners(rng, batch * 8, num_rounds, num_workers)
        partners[:, 0] = first
        tried += len(partners)
        waiting.append(partners[reaches_all(partners)])
        reachable += len(waiting[-1])
        if sum(map(len, waiting)) < batch:
            continue
        rounds = solve_pairs(np.concatenate(waiting), rng)
        waiting = []
        if rounds is not None:
            return PairSearchReport(rounds, tried, reachable, time.monotonic() - start)
        if progress is not None:
            progress(tried)
    return PairSearchReport(None, tried, reachable, time.monotonic() - start)


def search_matchings(
    num_workers: int, num_rounds: int, *, time_limit: float, seed: int = 0, starts: int = 4, batch: int = 64
) -> PairSearchReport:
    """As `search_pairs`, with the matchings that CP-SAT enumerates, each of them once up to renumbering.

    Every sequence gets `starts` random starts of the weights. If the enumeration ends, all matchings have been tried;
    that none had weights is then strong evidence, and a proof only with `pair_weights.has_weights`.
    """
    start = time.monotonic()
    rng = np.random.default_rng(seed)
    waiting: list[Partners] = []
    solved: list[tuple[WeightedRound, ...]] = []

    def solve_waiting() -> None:
        if waiting:
            rounds = solve_pairs(np.repeat(np.array(waiting), starts, axis=0), rng)
            solved.extend([] if rounds is None else [rounds])
            waiting.clear()

    def take(sequence: Partners) -> bool:
        waiting.append(sequence)
        if len(waiting) == batch:
            solve_waiting()
        return bool(solved)

    matchings = all_matchings(num_workers, num_rounds, time_limit=time_limit, seed=seed, take=take)
    solve_waiting()
    rounds = solved[0] if solved else None
    return PairSearchReport(rounds, matchings.num_solutions, len(matchings.sequences), time.monotonic() - start)


def search_rounds(num_workers: int, num_rounds: int, *, time_limit: float, seed: int = 0) -> PairSearchReport:
    """All searches one after the other, each with an equal share of the time left. Finding none proves nothing.

    First the cyclic ones, largest turn first: where they find anything they find it soonest. 3 ≤ n ≤ 63, three rounds
    or more.
    """
    start = time.monotonic()
    turns = [turn for turn in range(num_workers // 2, 1, -1) if num_workers % turn == 0]
    searches: list[Callable[..., PairSearchReport]] = [partial(search_cyclic, turn=turn) for turn in turns]
    searches += [search_matchings, search_pairs]
    tried = reachable = 0
    for place, search in enumerate(searches):
        left = time_limit - (time.monotonic() - start)
        report = search(num_workers, num_rounds, time_limit=left / (len(searches) - place), seed=seed)
        tried, reachable = tried + report.tried, reachable + report.reachable
        if report.rounds is not None:
            break
    return PairSearchReport(report.rounds, tried, reachable, time.monotonic() - start)
