"""Spanning trees of witnesses: the first group, in order of time, that joins each worker to the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from partreduce.topo.phase import Phase

Tree = list[list[int]]


def tree_of_phases(phases: Sequence[Phase]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Kruskal's tree of the edges (phase, smallest member, member) of all contracting groups, in order.

    Returns the edges, shape (num_edges, 3), and the component of every worker, shape (num_workers,). Each phase is one
    vectorised minimum spanning forest over the components that the earlier phases left. O(size · log size).
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

    num_workers = phases[0].num_workers
    component = np.arange(num_workers, dtype=np.int64)
    count = num_workers
    found: list[npt.NDArray[np.int64]] = []
    for t, phase in enumerate(phases):
        if count == 1:
            break
        heads, tails = _edges(phase)
        one, two = component[heads], component[tails]
        keep = np.flatnonzero(one != two)
        if not len(keep):
            continue
        low, high = np.minimum(one[keep], two[keep]), np.maximum(one[keep], two[keep])
        _, first = np.unique(low * count + high, return_index=True)
        # The weight is the place in the canonical order plus 1 (0 would read as "no edge"), so the minimum spanning
        # forest is unique and equals the one that a scan in order would choose.
        graph = csr_array((first + 1.0, (low[first], high[first])), shape=(count, count))
        chosen = keep[np.sort(minimum_spanning_tree(graph).data.astype(np.int64)) - 1]
        found.append(np.stack([np.full(len(chosen), t), heads[chosen], tails[chosen]], axis=1))
        count, labels = connected_components(graph, directed=False)
        component = labels[component].astype(np.int64)
    edges = np.concatenate(found) if found else np.zeros((0, 3), dtype=np.int64)
    return edges, component


def _edges(phase: Phase) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    heads = np.repeat(phase.members[phase.offsets[:-1]], phase.sizes).astype(np.int64)
    keep = np.ones(len(phase.members), dtype=bool)
    keep[phase.offsets[:-1]] = False
    if phase.relax is not None:
        good = np.array([0 < factor < 2 for factor in phase.relax], dtype=bool)
        keep &= np.repeat(good, phase.sizes)
    return heads[keep], phase.members[keep].astype(np.int64)


def tree_of_groups(vertices: Sequence[int], phases: Sequence[Sequence[Sequence[int]]]) -> tuple[Tree, list[set[int]]]:
    """The same by a plain scan, for the few vertices of a character class. Returns the edges and the components."""
    home = {v: {v} for v in vertices}
    edges: Tree = []
    for t, groups in enumerate(phases):
        for group in groups:
            for member in group[1:]:
                one, two = home[group[0]], home[member]
                if one is not two:
                    one |= two
                    for v in two:
                        home[v] = one
                    edges.append([t, group[0], member])
    distinct = {id(component): component for component in home.values()}
    return edges, sorted(distinct.values(), key=min)
