"""Prove that averaging alone brings all workers to their mean: `doubly-stochastic`, `unit-sums` and `consensus`.

The theorems stand in `verify/checker/consensus.py`. This module searches for the evidence that they need: a spanning
tree of groups, a tree of edges from one worker to all others, or a power of the period's matrix with a norm below 1.
Otherwise it searches for sets of workers that never average with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from partreduce.topo.mixing import Operators, has_negative_entries, relaxations
from partreduce.topo.phase import Phase
from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Round
from partreduce.verify.base import SHOWN, Claim, not_proved, proved, refuted, some
from partreduce.verify.contraction import prove_power, rule_view
from partreduce.verify.facts import If, ScheduleFacts

NAME = "consensus"
DOUBLY, SUMS = "doubly-stochastic", "unit-sums"
GROUND = -1
MAX_POWER = 12
MAX_SUPPORT = 2000
"""Most workers for which the support of a period's product is computed to refute consensus."""

SUMS_SENTENCE = (
    If(
        lambda s, _: s.strategy.graphs,
        "Rows sum to 1 by construction and columns by exact addition",
        "Every group's weights are symmetric and each row sums to 1, so rows and columns sum to 1",
    ),
    "; the smallest weight is {smallest_weight}, so ",
    If(
        lambda _, n: n["smallest_weight"].startswith("-"),
        "the mean is preserved although a weight is negative.",
        "none is negative.",
    ),
)


def prove_sums(facts: ScheduleFacts) -> Claim:
    """Prove that the rows and columns of every mixing matrix sum to 1, or refute it by a column of a weighted graph.

    The claim is `doubly-stochastic`, or `unit-sums` if an entry is negative; both preserve the mean. In
    weighted graphs rows sum to 1 because each worker keeps the remaining weight; a column need not.
    """
    for t, listed in enumerate(facts.schedule.strategy.graphs):
        for worker, surplus in sorted(listed.surplus().items()):
            text = (
                f"in round {t} the weights that others give to worker {worker}, and its own, sum to {1 + surplus}, not "
                "to 1: the mean of the parameters moves."
            )
            return refuted(DOUBLY, text, {"round": t, "worker": worker, "column_sum": str(1 + surplus)})
    made = (facts.claim(name, SUMS_SENTENCE) for name in (DOUBLY, SUMS))
    return next((claim for claim in made if claim is not None), not_proved(DOUBLY, "a column does not sum to 1."))


def prove_consensus(schedule: Schedule) -> Claim:
    """Prove consensus of groups by spanning trees, or refute it by a set of workers that no group joins to the others.

    Explicit groups: one tree over all workers, O(size · log size). Rules (groups given by node digits): one small tree
    per digit of the node index, valid for every number of nodes. Trees suffice if 0 ≤ relaxation < 2 in every group;
    otherwise the period's matrix must have a norm below 1, too.
    """
    rule = rule_view(schedule)
    found = _trees_of_classes(rule) if rule is not None else _tree(schedule.phased.steps(schedule.cluster))
    if not found.holds or every_relaxation_tame(schedule):
        return found
    text = "a group has relaxation < 0 or >= 2, so witnesses of meeting do not suffice, and no norm below 1 was found."
    return prove_power(schedule, NAME, max_periods=1) or not_proved(NAME, text)


def every_relaxation_tame(schedule: Schedule) -> bool:
    """Return whether 0 ≤ relaxation < 2 in every group."""
    return all(0 <= relaxation < 2 for relaxation in relaxations(schedule))


def _tree(phases: tuple[Phase, ...]) -> Claim:
    edges, component = tree_of_phases(phases)
    if component.max() > 0:
        sizes = np.bincount(component)
        inside = np.flatnonzero(component == sizes.argmin()).tolist()
        outside = np.flatnonzero(component != sizes.argmin()).tolist()
        text = f"workers {some(inside)} share no group with any other worker in the whole period."
        summary = f"workers {some(inside, SHOWN)} never average with {some(outside, SHOWN)}"
        return refuted(NAME, text, {"workers": inside[:1000], "num_inside": len(inside)}, summary)
    text = (
        f"{len(edges)} witnesses (phase, worker, worker) in groups with 0 < relaxation < 2 are a spanning tree of the "
        f"{phases[0].num_workers} workers, and every group has 0 <= relaxation < 2: every period shortens every "
        "difference."
    )
    return proved(NAME, text, method="trees", trees=[edges.tolist()])


def _tree_of_class(rule: RuleView, digits: set[int]) -> tuple[list[list[int]], set[int]]:
    """Return a spanning tree of a rule's local ranks on one class, or a set of them that nothing joins to the others.

    The class holds the functions of nodes that vary along exactly `digits` of the node index. Edges are [phase, rank,
    rank], found by Kruskal's algorithm: a block of the rule joins its local ranks. A block that averages over one of
    these digits maps them to 0, so it joins them to the vertex GROUND, which stands for the value 0. The set is empty
    if the tree spans all.
    """
    home = {vertex: {vertex} for vertex in range(GROUND if digits else 0, rule.workers_per_node)}
    edges = []
    for t, phase in enumerate(rule.phases):
        moving = [block for block in phase if block.makes_groups and block.relaxation]
        zero = {rank for block in moving if digits & set(block.across) for rank in block.local}
        groups = (block.local for block in moving if not digits & set(block.across))
        for first, *others in ([GROUND, *sorted(zero)], *groups):
            for other in others:
                one, two = home[first], home[other]
                if one is not two:
                    one |= two
                    home.update(dict.fromkeys(two, one))
                    edges.append([t, first, other])
    last = max({id(part): part for part in home.values()}.values(), key=min)
    return edges, last if len(last) < len(home) else set()


def _trees_of_classes(rule: RuleView) -> Claim:
    trees = []
    for digits in (set(), *({digit} for digit in range(rule.num_digits))):
        edges, apart = _tree_of_class(rule, digits)
        if apart:
            inside = sorted(apart)
            if digits:
                text = (
                    f"the local ranks {some(inside)} never average across digit {min(digits)} of the node index, nor "
                    "with a local rank that does: they never agree between nodes that differ in this digit."
                )
                others = f"with those of nodes that differ in digit {min(digits)} of their index"
            else:
                text = f"the local ranks {some(inside)} share no block with any other local rank."
                others = "with any others"
            summary = f"the local ranks {some(inside, SHOWN)} never average {others}"
            return refuted(NAME, text, {"local_ranks": inside, "digits": sorted(digits)}, summary)
        trees.append(edges)
    text = (
        f"For every number of nodes with {rule.num_digits} digits: on the functions that do not vary between nodes the "
        "blocks join all local ranks; on those that vary along a digit every local rank is tied to 0 by a block that "
        "averages over it, and functions that vary along more digits are tied at least as much. So every period "
        "strictly shortens every difference."
    )
    return proved(NAME, text, method="trees", trees=trees)


def tree_of_phases(phases: Sequence[Phase]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return a spanning forest of the workers, with edges inside groups of nonzero relaxation, and their components.

    The edges (phase, smallest member, member), shape (num_edges, 3), are those of Kruskal's algorithm in the order of
    the phases. The components, shape (num_workers,), are a number for each worker. O(size · log size).
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


def why_no_average(rounds: tuple[Round, ...]) -> str:
    """Return a clause that a weight is negative or that some worker keeps no weight on itself; "" if neither is so."""
    if any(map(has_negative_entries, rounds)):
        return "a weight is negative."
    return "" if all(listed.keeps_something for listed in rounds) else "a worker keeps no weight on itself."


def out_tree_of(schedule: Schedule, *, counts_weights: bool = True) -> Claim:
    """Return the claim `consensus` of a `neighbor` schedule, proved by a tree of edges from one worker to all others.

    Without a tree it is not proved. Edges have positive weight, and every worker keeps weight on its own model;
    `counts_weights` = False allows any weights. The explanation describes only the tree; the caller adds the
    conclusion.
    """
    rounds = schedule.strategy.graphs
    if counts_weights and (why := why_no_average(rounds)):
        return not_proved(NAME, why)
    tree = _out_tree(schedule.num_workers, rounds, counts_weights=counts_weights)
    if tree is None:
        return not_proved(NAME, "no worker reaches all others.")
    text = (
        "No weight is negative, every worker keeps a positive weight on itself in every round, and the "
        f"{len(tree[1])} witnesses (round, source, target) lead from worker {tree[0]} to everyone."
    )
    return proved(NAME, text, method="graph", root=tree[0], tree=tree[1])


def prove_consensus_of_graph(schedule: Schedule) -> Claim:
    """Prove consensus of a `neighbor` schedule by a tree of edges or a matrix power, or refute it, or leave it open.

    Sets of workers refute it that receive nothing from outside, or that pass their values around in a cycle.
    """
    text = "neither positive weights on oneself with a root, nor a power with a norm below 1, were found."
    return by_tree_or_apart(schedule) or prove_power(schedule, NAME, MAX_POWER) or not_proved(NAME, text)


def by_tree_or_apart(schedule: Schedule) -> Claim | None:
    """Prove consensus by an out-tree of the graphs, or refute it; None if neither is found (powers are not tried)."""
    found, rounds = out_tree_of(schedule), schedule.strategy.graphs
    if found.holds:
        return found
    is_followed = schedule.num_workers <= MAX_SUPPORT and not any(map(has_negative_entries, rounds))
    return _refutation(rounds) if is_followed else None


def _out_tree(
    num_workers: int, rounds: tuple[Round, ...], *, counts_weights: bool
) -> tuple[int, list[list[int]]] | None:
    """Return a worker that reaches all others, and the tree of edges [round, source, target] of the search from it.

    Edges have positive weight, or with `counts_weights` False any weight. None if no worker reaches all others.
    """
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(num_workers))
    for t, listed in enumerate(rounds):
        for source, target, weight in listed.edges():
            if (weight > 0 or not counts_weights) and not graph.has_edge(source, target):
                graph.add_edge(source, target, round=t)
    # The last start of a sweep of searches reaches all workers, if any worker does.
    seen: set[int] = set()
    root = 0
    for worker in range(num_workers):
        if worker not in seen:
            root = worker
            seen |= {worker, *nx.descendants(graph, worker)}
    edges = [[graph.edges[edge]["round"], *edge] for edge in nx.bfs_edges(graph, root)]
    return (root, edges) if len(edges) == num_workers - 1 else None


def _refutation(rounds: tuple[Round, ...]) -> Claim | None:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    support = Operators(rounds).support()
    count, home = connected_components(csr_array(support.astype(np.int8)), directed=True, connection="strong")
    closed = [c for c in range(count) if not support[np.ix_(home == c, home != c)].any()]
    if len(closed) > 1:
        sets = [np.flatnonzero(home == c).tolist() for c in closed[:2]]
        text = (
            f"over a period workers {some(sets[0])} receive only from one another, and so do workers {some(sets[1])}: "
            "each set keeps its own value."
        )
        summary = f"workers {some(sets[0], SHOWN)} never average with {some(sets[1], SHOWN)}"
        return refuted(NAME, text, {"closed_sets": sets}, summary)
    members = np.flatnonzero(home == closed[0])
    parts = _cyclic_parts(support[np.ix_(members, members)])
    if len(parts) > 1:
        sets = [members[part].tolist() for part in parts]
        text = (
            f"over a period workers {some(sets[1])} take all their weight from workers {some(sets[0])}, and so on "
            f"around a cycle of {len(sets)} sets: their values rotate for ever."
        )
        summary = f"workers {' and '.join(some(one, SHOWN) for one in sets)} pass their values around and never agree"
        return refuted(NAME, text, {"cycle_of_sets": sets}, summary)
    return None


def _cyclic_parts(support: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
    """Return the cyclic classes of a strongly connected graph: values move from each set to the next, in this order.

    `support[i, j]` says whether worker j's value enters that of worker i in a period. A single set means no rotation.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    distance = shortest_path(csr_array(support.T.astype(np.int8)), unweighted=True, indices=0).astype(np.int64)
    targets, sources = np.nonzero(support)
    period = int(np.gcd.reduce(distance[sources] + 1 - distance[targets]))
    return [np.flatnonzero(distance % period == part) for part in range(period)]
