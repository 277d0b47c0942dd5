"""Exact gap bounds against exhaustive exploration on random strongly connected digraphs, in every setting."""

import os
import random

import pytest

from benchmarks.explore.explorer import Network, explore
from benchmarks.explore.hop import longest_skips
from benchmarks.explore.reductions import Hop
from helpers.gap_bounds import attained, published
from partreduce.errors import InputError
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import Advance
from partreduce.strategies import IterationGap, SkipPolicy
from partreduce.verify.gap_bounds import capacities_of, exact_bounds

SETTINGS = (
    "standard", "staleness", "tokens", "staleness and tokens", "NOTIFY-ACK", "NOTIFY-ACK and tokens", "backup",
    "backup and tokens", "hybrid", "hybrid and tokens", "skips",
)  # fmt: skip
PER_SETTING = int(os.environ.get("PARTREDUCE_TEST_GRAPHS", "40"))
"""Random graphs for each setting, the same in every run; set the variable to 100 for more than a thousand in all."""
LARGEST = {"standard": 6, "tokens": 6, "backup": 6, "backup and tokens": 6}


def random_digraph(rng, n):
    """A random Hamiltonian cycle and up to 2n more edges: strongly connected."""
    order = rng.sample(range(n), n)
    edges = {(order[i], order[(i + 1) % n]) for i in range(n)}
    edges |= {(rng.randrange(n), rng.randrange(n)) for _ in range(rng.randrange(2 * n + 1))}
    return Digraph.of(n, edges)


def random_setting(rng, name, graph):
    backup = tuple(rng.randrange(len(sources) + 1) for sources in graph.sources)
    max_ig, staleness = rng.randrange(1, 4), rng.randrange(1, 3)
    skip, strict = SkipPolicy(limit=rng.randrange(2, 7)), staleness * (rng.random() < 0.5 or not any(backup))
    return {
        "standard": IterationGap(),
        "staleness": IterationGap(staleness=staleness),
        "tokens": IterationGap(max_ig=max_ig),
        "staleness and tokens": IterationGap(staleness=staleness, max_ig=max_ig),
        "NOTIFY-ACK": IterationGap(notify_ack=True),
        "NOTIFY-ACK and tokens": IterationGap(notify_ack=True, max_ig=max_ig),
        "backup": IterationGap(backup=backup),
        "backup and tokens": IterationGap(backup=backup, max_ig=max_ig),
        "hybrid": IterationGap(backup=backup, staleness=staleness),
        "hybrid and tokens": IterationGap(backup=backup, staleness=staleness, max_ig=max_ig),
        "skips": IterationGap(backup=backup, staleness=strict, max_ig=max_ig, skip=skip),
    }[name]


def at_most(matrix, limit):
    return all(
        b is None or (a is not None and a <= b)
        for row, limits in zip(matrix, limit, strict=True)
        for a, b in zip(row, limits, strict=True)
    )


def runaways(graph, backups, behind):
    """The workers that can get ahead of worker `behind` without bound when there are no token queues.

    They are the greatest set S without `behind` in which every worker has all its in-neighbors but its backups inside
    S. Inside S nobody ever waits for anyone outside; and a worker that is thrown out while S shrinks waits in every
    step for at least one that was thrown out before it. Exact, also under staleness. O(edges).
    """
    missing = [0] * graph.num_workers
    outside = {behind}
    waiting = [behind]
    while waiting:
        for v in graph.targets[waiting.pop()]:
            missing[v] += 1
            if v not in outside and missing[v] > backups[v]:
                outside.add(v)
                waiting.append(v)
    return frozenset(range(graph.num_workers)) - outside


@pytest.mark.parametrize("graphs", [PER_SETTING // 4, pytest.param(PER_SETTING, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SETTINGS)
def test_exact_bound_is_what_exploration_attains(name, graphs, record_property):
    rng = random.Random(f"gaps {name}")
    states = below_paper = 0
    for _ in range(graphs):
        graph = random_digraph(rng, rng.randrange(2, LARGEST.get(name, 5) + 1))
        setting = random_setting(rng, name, graph)
        exact, paper = exact_bounds(graph, setting), published(graph, setting)
        reached, search = attained(graph, setting, exact)
        assert reached == exact, (graph.edges, setting)
        assert at_most(exact, paper), (graph.edges, setting)
        below_paper += exact != paper
        states += search.states
    record_property("states", states)
    record_property("graphs on which the published bound is not tight", below_paper)
    # Standard and bounded staleness: the published bounds are exact, so it would be news if they were not.
    if name in {"standard", "staleness"} or graphs == PER_SETTING:
        assert (below_paper == 0) == (name in {"standard", "staleness"})


class Watched(Hop):
    """Tells how far its workers skip."""

    def step(self, process, state, event):
        if isinstance(event, Advance) and event.by > 1:
            self.told[process] = max(self.told[process], event.by)
        return super().step(process, state, event)


def test_every_worker_skips_as_far_as_it_is_proved_to_at_most():
    rng = random.Random("longest skips")
    for _ in range(60):
        graph = random_digraph(rng, rng.randrange(2, 5))
        setting = random_setting(rng, "skips", graph)
        machine = Watched(graph, setting)
        object.__setattr__(machine, "told", [0] * graph.num_workers)
        found = explore(machine, properties=(), network=Network(delay=False), symmetry=False)
        assert found.complete
        assert machine.told == longest_skips(machine), (graph, setting)


def plus(bound, amount):
    return None if bound is None else bound + amount


def test_one_workers_capacities_are_those_of_all_pairs():
    """Its queues, its tokens and its out-neighbors' queues for it, on graphs with and without ways back."""
    rng = random.Random("one worker")
    for _ in range(200):
        n = rng.randrange(2, 9)
        graph = random_digraph(rng, n) if rng.random() < 0.5 else Digraph.of(n, random_digraph(rng, n).edges[: 2 * n])
        setting = random_setting(rng, rng.choice(SETTINGS), graph)
        exact = exact_bounds(graph, setting)
        for w in range(n):
            updates = {u: plus(exact[u][w], 1) for u in graph.sources[w]}
            sent = {v: plus(exact[w][v], 1) for v in graph.targets[w]}
            if None in {*updates.values(), *sent.values()}:
                with pytest.raises(InputError, match="without limit"):
                    capacities_of(graph, setting, w)
                continue
            capacities = capacities_of(graph, setting, w)
            assert (capacities.updates, capacities.sent) == (updates, sent)
            assert capacities.slots == ({u: 1 for u in updates} if setting.staleness else updates)
            tokens = {} if setting.max_ig is None else {v: plus(exact[v][w], setting.max_ig) for v in graph.targets[w]}
            assert capacities.tokens == tokens


def test_unbounded_pairs_are_the_greatest_set():
    rng = random.Random("greatest set")
    for _ in range(300):
        graph = random_digraph(rng, rng.randrange(2, 9))
        setting = random_setting(rng, rng.choice(("backup", "hybrid")), graph)
        exact = exact_bounds(graph, setting)
        for j in range(graph.num_workers):
            ahead = {i for i in range(graph.num_workers) if exact[i][j] is None}
            assert ahead == runaways(graph, setting.backups(graph.num_workers), j)
