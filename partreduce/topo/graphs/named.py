"""Graph families: textbook graphs, sparse directed graphs, Hop's graphs, graphs of clustered nodes, random graphs.

Source of `ring_based`, `double_ring`, `hop_figure_21` and `clustered_graph`: Luo, Lin, Zhuo, Qian, Hop:
heterogeneity-aware decentralized training, ASPLOS 2019 (Figure 21: section 7.3.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import lcm

import numpy as np

from partreduce.topo.errors import ScheduleError
from partreduce.topo.graphs import Graph


def ring(num_workers: int) -> Graph:
    """Return the undirected ring, edges (i, i+1).

    With weights 1/3 its spectral gap is 1 − max_k |1 + 2cos(2πk/n)|/3 ≈ 4π²/(3n²).
    """
    i = np.arange(num_workers)
    return Graph.undirected(num_workers, i, (i + 1) % num_workers)


def star(num_workers: int) -> Graph:
    """Return the undirected star, edges (0, i). Worker 0, the hub, sends and receives n − 1 messages a round."""
    i = np.arange(1, num_workers)
    return Graph.undirected(num_workers, np.zeros_like(i), i)


def complete(num_workers: int) -> Graph:
    """Return the complete graph, n(n−1)/2 undirected edges; with weights 1/n one round reaches exact consensus."""
    i, j = np.triu_indices(num_workers, 1)
    return Graph.undirected(num_workers, i, j)


def grid(rows: int, columns: int) -> Graph:
    """Return the undirected grid: worker r·columns + c, at (r, c), has edges to (r, c+1) and (r+1, c) if they exist."""
    i = np.arange(rows * columns)
    right, down = i[i % columns < columns - 1], i[i // columns < rows - 1]
    return Graph.undirected(rows * columns, np.concatenate([right, down]), np.concatenate([right + 1, down + columns]))


def torus(rows: int, columns: int) -> Graph:
    """Return the torus: a `grid` with edges also from last to first in each row and column, degree 4; both sizes ≥ 3.

    With weights 1/5 its spectral gap is 1 − max |1 + 2cos(2πi/rows) + 2cos(2πj/columns)|/5 over (i, j) ≠ (0, 0).
    """
    i = np.arange(rows * columns)
    r, c = i // columns, i % columns
    others = np.concatenate([r * columns + (c + 1) % columns, (r + 1) % rows * columns + c])
    return Graph.undirected(rows * columns, np.concatenate([i, i]), others)


def hypercube(dimension: int) -> Graph:
    """Return the hypercube of 2^d workers for d = `dimension`, edges (i, i xor 2^k).

    With weights 1/(d+1) its spectral gap is 2/(d+1).
    """
    i = np.arange(2**dimension)
    others = [i ^ (1 << k) for k in range(dimension)]
    return Graph.undirected(2**dimension, np.tile(i, dimension), np.concatenate([i[:0], *others]))


def exponential(num_workers: int) -> Graph:
    """Return the static exponential graph: directed edges i → i + 2^k (mod n) for k < c = ⌈log₂ n⌉.

    With weights 1/(c+1) its spectral gap is 2/(1+c) for even n, larger for odd n.
    Source: Ying et al., Exponential graph is provably efficient for decentralized deep training, NeurIPS 2021.
    """
    i = np.arange(num_workers)
    hops = [2**k for k in range((num_workers - 1).bit_length())]
    others = [(i + hop) % num_workers for hop in hops]
    return Graph.directed(num_workers, np.tile(i, len(hops)), np.concatenate([i[:0], *others]))


def de_bruijn(base: int, length: int) -> Graph:
    """Return the De Bruijn graph of n = base^length workers: directed edges i → base·i + a (mod n) for a < base.

    It has no self-loops. With weight 1/base on every edge and the rest on the worker itself, W^length = J exactly
    although ‖W − J‖₂ = 1. Source: Delvenne, Carli, Zampieri, Optimal strategies in the average consensus problem, 2009.
    """
    count = base**length
    i = np.arange(count, dtype=np.int64)
    others = [(base * i + a) % count for a in range(base)]
    return Graph.directed(count, np.tile(i, base), np.concatenate(others))


MACHINES = ((0, 1, 2, 3), (4, 5), (6, 7))
"""The workers of each machine in settings b and c of Hop's Figure 21."""

LINKS = {"b": ((0, 4), (4, 6), (6, 0)), "c": ((1, 4), (5, 6), (7, 0))}
"""The edges between machines in settings b and c of Hop's Figure 21."""


def ring_based(num_workers: int) -> Graph:
    """Return Hop's ring-based graph, for even n: a ring plus the edges (i, i+n/2) between opposite workers.

    Every worker has degree 3.
    """
    i = np.arange(num_workers)
    others = np.concatenate([(i + 1) % num_workers, (i + num_workers // 2) % num_workers])
    return Graph.undirected(num_workers, np.concatenate([i, i]), others)


def double_ring(num_workers: int) -> Graph:
    """Return Hop's double ring, for n divisible by 4: two `ring_based(n/2)` joined by edges (i, i+n/2). Degree 4."""
    half = num_workers // 2
    one = ring_based(half)
    i = np.arange(half)
    ends = np.concatenate([one.sources, one.sources + half, i])
    return Graph.undirected(num_workers, ends, np.concatenate([one.targets, one.targets + half, i + half]))


def hop_figure_21(setting: str) -> Graph:
    """Return the graph over 8 workers of a `setting` in Hop's Figure 21, reconstructed from the printed spectral gaps.

    Setting `a` is the ring-based graph; `b` and `c` join machines of 4, 2 and 2 workers by a ring. In `b` one gateway
    worker of each machine has both links, in `c` each link has its own workers. Hop's spectral gaps are 2/3, 1 − r with
    45r³ − 20r − 3 = 0, and 1 − r with 24r³ − 2r² − 10r − 1 = 0; the paper prints 0.6667, 0.2682, 0.2688.
    """
    if setting == "a":
        return ring_based(8)
    pairs = [pair for machine in MACHINES for pair in combinations(machine, 2)]
    pairs.extend(LINKS[setting])
    return Graph.undirected(8, [a for a, _ in pairs], [b for _, b in pairs])


def clustered_graph(
    nodes: Sequence[Sequence[int]],
    *,
    inside: str = "complete",
    across: str = "ring",
    links: int = 1,
    ends: str = "spread",
) -> Graph:
    """Return an undirected graph that is dense inside nodes and sparse between them. O(edges).

    Settings b and c of Hop's Figure 21 have nodes of 4, 2 and 2 workers, complete inside, and a ring across, with
    `gateway` ends for b and `spread` ends for c.

    Args:
        nodes: the ranks of every node.
        inside: the graph over the workers of a node, `complete` or `ring`.
        across: the graph over the nodes, `complete` or `ring`.
        links: edges between two joined nodes, at most one for each pair of their workers.
        ends: with `spread` the workers of a node take its edges to other nodes in turn; with `gateway` its first worker
            takes all, so that two joined nodes have one edge and `links` has no effect.
    """
    pairs = [pair for node in nodes for pair in _join(node, inside)]
    used = [0] * len(nodes)  # edges across that end at each node so far; its workers take them in turn
    for a, b in _join(range(len(nodes)), across):
        if ends == "gateway":
            pairs.append((nodes[a][0], nodes[b][0]))
            continue
        here, there = len(nodes[a]), len(nodes[b])
        number = min(links, here * there)
        for link in range(number):
            again = link // lcm(here, there)  # after so many links the same pairs would repeat
            pairs.append((nodes[a][(used[a] + link) % here], nodes[b][(used[b] + link + again) % there]))
        used[a] += number
        used[b] += number
    return Graph.undirected(sum(map(len, nodes)), [a for a, _ in pairs], [b for _, b in pairs])


def _join(members: Sequence[int], shape: str) -> list[tuple[int, int]]:
    """Return the edges of a graph over these members; `shape` is "complete" or "ring". Two members have one edge."""
    if shape == "complete" or len(members) < 3:
        return list(combinations(members, 2))
    return [(members[i], members[(i + 1) % len(members)]) for i in range(len(members))]


TRIES = 200


def random_regular(num_workers: int, degree: int, seed: int) -> Graph:
    """Return a connected random `degree`-regular graph; n·degree must be even and degree < n. O(n·degree) expected.

    Configuration model: stubs are paired at random, and pairs that are loops or duplicates swap an end with random
    other pairs. Graphs with more than half of all edges are drawn as complements. Source: Bollobás, A probabilistic
    proof of an asymptotic formula for the number of labeled regular graphs, 1980. Raises ScheduleError if no draw is
    connected.
    """
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        if 2 * degree <= num_workers - 1:
            graph = _pairing(num_workers, degree, rng)
        else:
            graph = _complement(_pairing(num_workers, num_workers - 1 - degree, rng))
        if graph.is_connected:
            return graph
    raise ScheduleError(
        f"degree: no connected graph of degree {degree} over {num_workers} workers in {TRIES} draws; use 3 or more"
    )


def _pairing(count: int, degree: int, rng: np.random.Generator) -> Graph:
    stubs = rng.permutation(np.repeat(np.arange(count, dtype=np.int64), degree)).reshape(-1, 2)  # (edges, 2)
    while len(stubs):
        keys = np.minimum(stubs[:, 0], stubs[:, 1]) * count + np.maximum(stubs[:, 0], stubs[:, 1])  # one key per edge
        fresh = np.zeros(len(keys), dtype=bool)
        fresh[np.unique(keys, return_index=True)[1]] = True
        bad = np.flatnonzero(~fresh | (stubs[:, 0] == stubs[:, 1]))
        if not len(bad):
            break
        for index in bad.tolist():
            other = int(rng.integers(len(stubs)))
            stubs[index, 1], stubs[other, 1] = stubs[other, 1], stubs[index, 1]
    return Graph.undirected(count, stubs[:, 0], stubs[:, 1])


def _complement(graph: Graph) -> Graph:
    full = complete(graph.num_workers)
    n = np.int64(graph.num_workers)
    keep = ~np.isin(full.targets * n + full.sources, graph.targets * n + graph.sources)
    return Graph(graph.num_workers, full.sources[keep], full.targets[keep])
