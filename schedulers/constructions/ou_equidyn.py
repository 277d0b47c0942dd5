"""OU-EquiDyn: random pairs a fixed distance apart, one distance a round."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.constructions.common import ROUNDS, SEED, symmetric
from preduce.schedulers.constructions.common import rounds as of_rounds
from preduce.schedulers.constructions.od_equidyn import draw, refuse
from preduce.schedulers.entry import Entry

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule
    from preduce.topo.strategies.neighbor import Round

ETA = Fraction(1, 2)


def matching(num_workers: int, distance: int, start: int) -> Round:
    """Walk from `start` through all workers; pair i with i + distance where both are still free.

    Each cycle of the shift is paired along its own direction from the first of its workers that the walk meets, so the
    walk needs no loop over workers: worker number k of its cycle pairs with number k + 1 for even k. O(n log n).
    """
    from math import gcd

    cycles = gcd(num_workers, distance)
    length = num_workers // cycles
    walk = (start + np.arange(cycles, dtype=np.int64)) % num_workers  # one first worker for each cycle
    steps = np.arange(0, length - 1, 2, dtype=np.int64)
    first = ((walk[:, None] + steps[None, :] * distance) % num_workers).reshape(-1)
    weight = ETA * Fraction(num_workers - 1, num_workers)
    return symmetric(num_workers, first, (first + distance) % num_workers, [weight], np.zeros(len(first), np.int64))


def make(cluster: Cluster, rounds: int, seed: int) -> Schedule:
    """Lazy matchings: partners keep 1 − η(n−1)/n of themselves, η = 1/2."""
    count = cluster.num_workers
    rng = np.random.default_rng(seed)
    distances = draw(count, rounds, rng)
    starts = rng.integers(0, count, size=rounds).tolist()
    listed = [matching(count, a, s) for a, s in zip(distances, starts, strict=True)]
    return of_rounds(ENTRY.label(rounds=rounds, seed=seed), cluster, listed)


ENTRY = Entry(
    name="ou-equidyn",
    summary="One random matching of workers a fixed distance apart a round: undirected, one partner each.",
    source="Song et al., Communication-efficient topologies for decentralized learning, NeurIPS 2022",
    kind="rounds",
    make=make,
    refuse=refuse,
    parameters=(ROUNDS, SEED),
    degree="1",
    period="rounds",
    figures="a rate that does not depend on n",
)
