"""Graphs that know who shares a machine: dense inside each node, where links are wide, and few edges between nodes.

Settings b and c of Hop's Figure 21 are of this kind: on nodes of 4, 2 and 2 workers, complete inside and in a ring
across, c is what `clustered_graph` builds with spread ends, and b with gateways.

Source: Luo, Lin, Zhuo, Qian, Hop: heterogeneity-aware decentralized training, ASPLOS 2019, section 7.3.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import lcm

from partreduce.topo.graphs.base import Graph


def clustered_graph(
    nodes: Sequence[Sequence[int]],
    *,
    inside: str = "complete",
    across: str = "ring",
    links: int = 1,
    ends: str = "spread",
) -> Graph:
    """An undirected graph over the workers of these `nodes`, one list of ranks each. O(edges).

    Args:
        nodes: who runs where.
        inside: joins the workers of a node as a `complete` graph or as a `ring`.
        across: joins the nodes likewise.
        links: edges between two nodes that are joined, at most one for each pair of their workers.
        ends: `spread` gives every edge across its own workers as far as there are enough; `gateway` lets the first
            worker of a node have all of them, so that there is one edge between two nodes.
    """
    pairs = [pair for node in nodes for pair in _join(node, inside)]
    used = [0] * len(nodes)  # ends of edges across that each node has given to its workers, one after the other
    for a, b in _join(range(len(nodes)), across):
        if ends == "gateway":
            pairs.append((nodes[a][0], nodes[b][0]))
            continue
        here, there = len(nodes[a]), len(nodes[b])
        number = min(links, here * there)
        for link in range(number):
            again = link // lcm(here, there)  # from then on equal places would be the same pairs again
            pairs.append((nodes[a][(used[a] + link) % here], nodes[b][(used[b] + link + again) % there]))
        used[a] += number
        used[b] += number
    return Graph.undirected(sum(map(len, nodes)), [a for a, _ in pairs], [b for _, b in pairs])


def _join(members: Sequence[int], shape: str) -> list[tuple[int, int]]:
    """The edges of a complete graph or a ring over some members; of two members one."""
    if shape == "complete" or len(members) < 3:
        return list(combinations(members, 2))
    return [(members[i], members[(i + 1) % len(members)]) for i in range(len(members))]
