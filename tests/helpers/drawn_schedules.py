"""Random schedules of all kinds that have metrics: rules, groups, graphs and all-reduce, in every setting."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    Averaging,
    DelayedAveraging,
    GroupPhases,
    NeighborAveraging,
    Round,
    RulePhases,
    StaticGroups,
    Synchronous,
)

SHAPES = [
    ((2,), 1), ((2,), 4), ((3,), 3), ((2, 2), 3), ((4,), 5), ((2, 3), 2), ((3, 2), 4), ((2, 2, 2), 2), ((5,), 3),
    ((2, 2, 3), 2), ((), 4), ((), 6), ((2, 4), 3), ((3, 3), 2), ((7,), 2),
]  # fmt: skip
RELAXATION = [Fraction(1), Fraction(1), Fraction(1), Fraction(1, 2), Fraction(4, 3), Fraction(3, 4), Fraction(9, 8)]


def random_rule(rng, relaxation=RELAXATION, *, uneven=False):
    """Return a rule of random shape: period 1 to 5, blocks on random ranks and digits, some relaxed, some late.

    Steps per round differ by local rank, or by worker if `uneven`.
    """
    radices, size = SHAPES[rng.integers(len(SHAPES))]
    phases = []
    for _ in range(rng.integers(1, 6)):
        ranks, blocks = list(rng.permutation(size)), []
        while ranks and rng.random() < 0.8:
            take = int(rng.integers(1, len(ranks) + 1))
            local, ranks = tuple(sorted(int(r) for r in ranks[:take])), ranks[take:]
            across = tuple(d for d in range(len(radices)) if rng.random() < 0.5)
            blocks.append(Block(local, across, relaxation[rng.integers(len(relaxation))]))
        phases.append(tuple(blocks))
    nodes = math.prod(radices)
    steps_per_round = int(rng.integers(1, 4))
    if rng.random() < 0.4:
        steps_per_round = tuple(int(p) for p in rng.integers(1, 6, size=size)) * nodes
    elif uneven and rng.random() < 0.3:
        steps_per_round = tuple(rng.integers(1, 4, size=size * nodes).tolist())
    strategy = StaticGroups(
        phases=RulePhases(radices, tuple(phases)),
        steps_per_round=steps_per_round,
        averaging=Averaging.STEP_NORMALIZED if rng.random() < 0.3 else Averaging.MEAN,
        sync=DelayedAveraging() if bool(rng.random() < 0.3) else Synchronous(),
    )
    return Schedule("random", Cluster.regular(nodes, size), strategy) if nodes * size > 1 else random_rule(rng)


def random_groups(rng, relaxation=RELAXATION):
    """Return groups of up to 16 workers on nodes of different sizes; some workers skip."""
    cluster = _cluster(rng)
    n, phases = cluster.num_workers, []
    for _ in range(rng.integers(1, 5)):
        labels = rng.integers(-1, max(2, n // 2), size=n)
        phases.append(Phase.from_labels(labels, {k: relaxation[rng.integers(len(relaxation))] for k in range(n)}))
    return Schedule("random", cluster, StaticGroups(phases=GroupPhases(tuple(phases)), **_setting(rng, n)))


def random_graph(rng):
    """Return a graph with directed, symmetric or constant weights; not all of them preserve the mean."""
    cluster = _cluster(rng)
    n, rounds = cluster.num_workers, []
    for _ in range(rng.integers(1, 4)):
        if (kind := rng.random()) < 0.4:
            shifts = rng.choice(np.arange(1, n), size=min(n - 1, 3), replace=False).tolist()
            edges = {(i, (i + shift) % n): Fraction(1, 5) for i in range(n) for shift in shifts}
        else:
            pairs = [(i, j) for i, j in rng.integers(0, n, size=(2 * n, 2)).tolist() if i != j]
            edges = {pair: Fraction(int(rng.integers(1, 4)), 4 * n) for pair in pairs}
            if kind < 0.8:
                edges |= {(j, i): weight for (i, j), weight in edges.items()}
        rounds.append(Round.from_edges(n, [(i, j, weight) for (i, j), weight in edges.items()]))
    return Schedule("random", cluster, NeighborAveraging(rounds=tuple(rounds), **_setting(rng, n)))


def random_allreduce(rng):
    cluster = _cluster(rng)
    return Schedule("random", cluster, AllReduce(**_setting(rng, cluster.num_workers)))


def _cluster(rng):
    n = int(rng.integers(2, 17))
    if rng.random() < 0.5:
        size = int(rng.choice([d for d in range(1, n + 1) if n % d == 0]))
        return Cluster.regular(n // size, size)
    ranks = rng.permutation(n).tolist()
    cuts = sorted(rng.choice(np.arange(1, n), size=rng.integers(1, n), replace=False).tolist())
    return Cluster.irregular([ranks[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)])


def _setting(rng, n):
    steps = int(rng.integers(1, 4)) if rng.random() < 0.6 else tuple(rng.integers(1, 6, size=n).tolist())
    return {
        "steps_per_round": steps,
        "averaging": Averaging.STEP_NORMALIZED if rng.random() < 0.3 else Averaging.MEAN,
        "sync": DelayedAveraging() if bool(rng.random() < 0.3) else Synchronous(),
    }


KINDS = {"rule": random_rule, "groups": random_groups, "graph": random_graph, "allreduce": random_allreduce}


def draw_schedules(*kinds):
    return st.builds(
        lambda kind, seed: kind(np.random.default_rng(seed)),
        st.sampled_from(kinds or list(KINDS.values())),
        st.integers(0, 2**32 - 1),
    )
