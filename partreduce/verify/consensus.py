"""Claim `consensus`: whatever the workers start from, averaging alone brings them to their common mean.

A group with factor 0 ≤ t < 2 lengthens no vector, and keeps a vector's length only if it leaves the vector alone. So
a period keeps the length of a vector off the mean only if the vector is constant on every group with 0 < t < 2, and a
spanning tree of such groups leaves only constant vectors. Finitely many dimensions turn "shorter" into a factor < 1.
With t ≥ 2 or t < 0 anywhere the argument fails (t = 2 on a pair swaps it), and a norm below 1 is proved instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from partreduce.topo.phase import Phase
from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, not_proved, proved, refuted, some
from partreduce.verify.view import contracts, every_relaxation_tame, explicit_view, rule_view

NAME = "consensus"
GROUND = -1
"""The vertex that stands for the value 0 in the graph of a character class."""


def prove_consensus(schedule: Schedule) -> Claim:
    """Prove consensus by spanning-tree witnesses, or refute it by a set of workers that never meets the others.

    Explicit: O(size · log size), one tree over all workers. Rules: one small tree per digit, for every number of nodes.
    The trees are of all groups that do anything, which contract where every factor is tame.
    """
    rule = rule_view(schedule)
    found = _tree(explicit_view(schedule) or ()) if rule is None else _trees_of_classes(rule)
    return found if not found.holds or every_relaxation_tame(schedule) else _by_norm(schedule)


def _by_norm(schedule: Schedule) -> Claim:
    from partreduce.verify.contraction import prove_power

    return prove_power(schedule, NAME, max_periods=1) or not_proved(
        NAME,
        "a group has relaxation < 0 or >= 2, so witnesses of meeting do not suffice, and no norm below 1 was found.",
    )


def _tree(phases: tuple[Phase, ...]) -> Claim:
    edges, component = tree_of_phases(phases)
    if component.max() > 0:
        sizes = np.bincount(component)
        inside = np.flatnonzero(component == sizes.argmin()).tolist()
        text = f"the workers {some(inside)} share no group with any other worker in the whole period, so they never "
        text += "agree."
        return refuted(NAME, text, {"workers": inside[:1000], "num_inside": len(inside)})
    text = (
        f"{len(edges)} witnesses (phase, worker, worker) in groups with 0 < relaxation < 2 are a spanning tree of the "
        f"{phases[0].num_workers} workers, and every group has 0 <= relaxation < 2: every period strictly shortens "
        "every difference."
    )
    return proved(NAME, text, method="trees", trees=[edges.tolist()])


def class_groups(rule: RuleView, digits: set[int], *, moving_only: bool) -> list[list[list[int]]]:
    """The graph of one character class: local ranks, and the ground that blocks vanishing on the class tie to 0."""
    result = []
    for phase in rule.phases:
        grounded, groups = [GROUND], []
        for block in (b for b in phase if b.makes_groups):
            if contracts(block.relaxation) or (moving_only and block.relaxation != 0):
                if digits & set(block.across):
                    grounded.extend(block.local)
                else:
                    groups.append(sorted(block.local))
        result.append([sorted(grounded), *sorted(groups)])
    return result


def _trees_of_classes(rule: RuleView) -> Claim:
    trees = []
    for digits in (set(), *({digit} for digit in range(rule.num_digits))):
        vertices = ([GROUND] if digits else []) + list(range(rule.workers_per_node))
        edges, components = tree_of_groups(vertices, class_groups(rule, digits, moving_only=True))
        if len(components) > 1:
            inside = next(sorted(c) for c in reversed(components) if GROUND not in c)
            if digits:
                text = (
                    f"the local ranks {some(inside)} never average across digit {min(digits)} of the node index, nor "
                    "with a local rank that does: nodes that differ in this digit never agree on them."
                )
            else:
                text = f"the local ranks {some(inside)} share no block with any other local rank, so they never agree."
            return refuted(NAME, text, {"local_ranks": inside, "digits": sorted(digits)})
        trees.append(edges)
    text = (
        f"For every number of nodes with {rule.num_digits} digits: on the functions that do not vary between nodes the "
        "blocks join all local ranks; on those that vary along a digit every local rank is tied to 0 by a block that "
        "averages over it, and functions that vary along more digits are tied at least as much. So every period "
        "strictly shortens every difference."
    )
    return proved(NAME, text, method="trees", trees=trees)


Tree = list[list[int]]


def tree_of_phases(phases: Sequence[Phase]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Kruskal's tree of the edges (phase, smallest member, member) of all groups that do anything, in order.

    Returns the edges, shape (num_edges, 3), and the component of every worker, shape (num_workers,). Each phase is one
    vectorized minimum spanning forest over the components that the earlier phases left. O(size · log size).
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
    if phase.relaxation is not None:
        moving = np.array([factor != 0 for factor in phase.relaxation], dtype=bool)
        keep &= np.repeat(moving, phase.sizes)
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
