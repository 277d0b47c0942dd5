"""Switches above the nodes: which one each node stands under, and when they form a regular tree."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from partreduce.topo.hardware import Switch, smallest_first


def above(switches: Sequence[Switch], num_nodes: int) -> npt.NDArray[np.int64]:
    """The switches over every node, shape (levels, num_nodes): an index into `switches`, −1 where there is none.

    A switch lies in one row only, one row higher than the highest switch below it. The switches nest.
    """
    largest: dict[int, int] = {}
    level: dict[int, int] = {}
    for index in smallest_first(switches):
        nodes = switches[index].nodes
        level[index] = 1 + max((level[largest[node]] for node in nodes if node in largest), default=-1)
        largest.update(dict.fromkeys(nodes, index))
    result = np.full((1 + max(level.values(), default=-1), num_nodes), -1, dtype=np.int64)
    for index, row in level.items():
        result[row, list(switches[index].nodes)] = index
    return result


@lru_cache(maxsize=64)
def regular_levels(switches: tuple[Switch, ...], num_nodes: int) -> tuple[int, ...] | None:
    """(…, racks in a pod, nodes in a rack) when the switches form a regular tree, else None.

    Regular means: on every level all switches hold equally many nodes with consecutive numbers, none is left out, and
    all uplinks of the level are equal. Then all nodes are equal, and the numbers are node radices of which the product
    of the first few counts the switches of a level. Without switches the answer is `(num_nodes,)`.
    """
    counts = [1]
    for row in above(switches, num_nodes)[::-1]:
        if (row < 0).any():
            return None
        starts = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
        count = len(set(row.tolist()))
        even = np.array_equal(starts, np.arange(count) * (num_nodes // count)) and num_nodes % count == 0
        if not even or count % counts[-1] or len({switches[index].uplink for index in row.tolist()}) > 1:
            return None
        counts.append(count)
    counts.append(num_nodes)
    return tuple(b // a for a, b in pairwise(counts) if b > a)
