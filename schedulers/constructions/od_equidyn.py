"""OD-EquiDyn: one random cyclic shift a round."""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.constructions.common import ROUNDS, SEED, shift
from preduce.schedulers.constructions.common import rounds as of_rounds
from preduce.schedulers.entry import Entry

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule

ETA = Fraction(1, 2)


def draw(num_workers: int, count: int, rng: np.random.Generator) -> list[int]:
    """Shifts uniform in 1..n−1; the last is drawn again, in the end set to 1, until together they connect all."""
    drawn: list[int] = rng.integers(1, num_workers, size=count).tolist()
    for _ in range(100):
        if gcd(num_workers, *drawn) == 1:
            return drawn
        drawn[-1] = int(rng.integers(1, num_workers))
    return [*drawn[:-1], 1]


def make(cluster: Cluster, rounds: int, seed: int) -> Schedule:
    """Rounds (1−η)I + η·A^(a) with A^(a) = (n−1)/n·S^a + I/n and η = 1/2."""
    count = cluster.num_workers
    drawn = draw(count, rounds, np.random.default_rng(seed))
    weight = ETA * Fraction(count - 1, count)
    return of_rounds(ENTRY.label(rounds=rounds, seed=seed), cluster, [shift(count, a, weight) for a in drawn])


def refuse(cluster: Cluster, rounds: int, seed: int) -> str | None:
    """Any cluster, but a period that stays a sensible size."""
    del seed
    edges = rounds * cluster.num_workers
    return None if edges <= 10**8 else f"{rounds} rounds have {edges} edges in a period; use fewer"


ENTRY = Entry(
    name="od-equidyn",
    summary="One random shift a round, directed: one message a worker and a rate that does not depend on n.",
    source="Song et al., Communication-efficient topologies for decentralized learning, NeurIPS 2022",
    kind="rounds",
    make=make,
    refuse=refuse,
    parameters=(ROUNDS, SEED),
    degree="1",
    period="rounds",
    figures="expected factor of the squared distance per round: 1/2 − 1/(2n)",
)
