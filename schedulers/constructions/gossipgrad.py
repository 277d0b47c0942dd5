"""GossipGraD: dissemination partners, with virtual ranks that are shuffled after each sweep."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.constructions.common import SEED, rounds
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.arithmetic.whole_numbers import ceil_log
from preduce.topo.strategies.neighbor import Round

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, sweeps: int, seed: int) -> Schedule:
    """A sweep sends to virtual rank + 2^r for r < ⌈log₂ n⌉; the first keeps the ranks, later ones shuffle them."""
    count = cluster.num_workers
    rng = np.random.default_rng(seed)
    listed = []
    for sweep in range(sweeps):
        ranks = np.arange(count) if sweep == 0 else rng.permutation(count)
        for r in range(ceil_log(count)):
            targets = np.roll(ranks, -(2**r))
            listed.append(Round.from_arrays(count, ranks, targets, [Fraction(1, 2)], np.zeros(count, np.int32)))
    return rounds(ENTRY.label(sweeps=sweeps, seed=seed), cluster, listed)


def refuse(cluster: Cluster, sweeps: int, seed: int) -> str | None:
    """Any cluster, but a period that stays a sensible length."""
    del seed
    edges = sweeps * cluster.num_workers * ceil_log(cluster.num_workers)
    return None if edges <= 10**8 else f"{sweeps} sweeps have {edges} edges in a period; use fewer"


ENTRY = Entry(
    name="gossipgrad",
    summary="Dissemination in log₂ n rounds; shuffled virtual ranks spread what each worker learns.",
    source="Daily et al., GossipGraD: scalable deep learning using gossip communication, 2018",
    kind="rounds",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(
            name="sweeps", default=2, minimum=1, maximum=1000, help="sweeps in a period; the first is unshuffled"
        ),
        SEED,
    ),
    degree="1",
    period="sweeps × ⌈log₂ n⌉",
    figures="exact for n = 2^c",
)
