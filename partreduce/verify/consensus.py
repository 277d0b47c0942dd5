"""Prove whether averaging alone brings the workers to their common mean: row and column sums, and `consensus`.

A group with factor 0 ≤ t < 2 lengthens no vector, and keeps a vector's length only if it leaves the vector unchanged.
So a period keeps the length of a vector off the mean only if the vector is constant on every group with 0 < t < 2, and
a spanning tree of such groups leaves only constant vectors. Finitely many dimensions turn "shorter" into a factor < 1.
With t ≥ 2 or t < 0 anywhere the argument fails (t = 2 on a pair swaps it), and a norm below 1 is proved instead.

Weighted graphs have non-negative rows that sum to 1: with positive weights on oneself, support only grows in a product,
so a worker from which all others are reached gives, after enough periods, a matrix with a positive column, and every
such matrix shrinks the spread max − min. Without positive self-weights connection is not enough: a cyclic shift is
doubly stochastic and strongly connected and never converges, so a power with a norm below 1 is required.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from fractions import Fraction
from math import gcd

import numpy as np
import numpy.typing as npt

from partreduce.topo.mixing import has_negative_entries
from partreduce.topo.phase import Phase
from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Round
from partreduce.verify.base import SHOWN, Claim, not_proved, proved, refuted, some
from partreduce.verify.contraction import explicit_view, prove_power, rule_view
from partreduce.verify.facts import If, ScheduleFacts

NAME = "consensus"
DOUBLY, SUMS = "doubly-stochastic", "unit-sums"
GROUND = -1
"""The vertex for the value 0 in the graph of a character class."""
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
    """Prove that every mixing matrix has unit row and column sums, and whether an entry is negative.

    With a negative entry the claim is `unit-sums` instead, which suffices for the mean. In weighted graphs rows sum to
    1 because each worker keeps the rest; a column may not.
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
    """Prove consensus by spanning-tree witnesses, or refute it by a set of workers that never meets the others.

    Explicit: O(size · log size), one tree over all workers. Rules: one small tree per digit, for every number of nodes.
    The trees use all groups with an effect, which contract if every factor is tame.
    """
    rule = rule_view(schedule)
    found = _tree(explicit_view(schedule) or ()) if rule is None else _trees_of_classes(rule)
    if not found.holds or every_relaxation_tame(schedule):
        return found
    text = "a group has relaxation < 0 or >= 2, so witnesses of meeting do not suffice, and no norm below 1 was found."
    return prove_power(schedule, NAME, max_periods=1) or not_proved(NAME, text)


def is_tame(relaxation: Fraction) -> bool:
    """Return whether a group of this factor lengthens no vector and keeps the length only of unchanged vectors."""
    return 0 <= relaxation < 2


def every_relaxation_tame(schedule: Schedule) -> bool:
    """Return whether 0 ≤ relaxation < 2 in every group."""
    rule = rule_view(schedule)
    if rule is not None:
        return all(is_tame(block.relaxation) for phase in rule.phases for block in phase if block.makes_groups)
    return all(is_tame(factor) for phase in explicit_view(schedule) or () for factor in set(phase.relaxation or ()))


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


def class_groups(rule: RuleView, digits: set[int]) -> list[list[list[int]]]:
    """Return the graph of one character class: local ranks, and the ground for blocks that vanish on the class."""
    result = []
    for phase in rule.phases:
        grounded, groups = [GROUND], []
        for block in (b for b in phase if b.makes_groups):
            if block.relaxation != 0:
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
        edges, components = tree_of_groups(vertices, class_groups(rule, digits))
        if len(components) > 1:
            inside = next(sorted(c) for c in reversed(components) if GROUND not in c)
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


Tree = list[list[int]]


def tree_of_phases(phases: Sequence[Phase]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return Kruskal's tree of the edges (phase, smallest member, member) of all groups with an effect, in order.

    Returns the edges, shape (num_edges, 3), and the component of every worker, shape (num_workers,). Each phase is one
    vectorized minimum spanning forest over the components of the earlier phases. O(size · log size).
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
    """Return the same tree by a plain scan, for the few vertices of a character class, and the components."""
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


def out_tree_of(schedule: Schedule, *, counts_weights: bool = True) -> Claim:
    """Prove consensus by a tree of edges; without `counts_weights` every edge counts as positive.

    The caller states the consequence of the tree.
    """
    rounds = schedule.strategy.graphs
    if counts_weights and any(map(has_negative_entries, rounds)):
        return not_proved(NAME, "a weight is negative.")
    if counts_weights and not all(listed.keeps_something for listed in rounds):
        return not_proved(NAME, "a worker keeps no weight on itself.")
    tree = _out_tree(schedule.num_workers, rounds, counts_weights=counts_weights)
    if tree is None:
        return not_proved(NAME, "no worker reaches all others.")
    text = (
        "No weight is negative, every worker keeps a positive weight on itself in every round, and the "
        f"{len(tree[1])} witnesses (round, source, target) lead from worker {tree[0]} to everyone."
    )
    return proved(NAME, text, method="graph", root=tree[0], tree=tree[1])


def prove_consensus_of_graph(schedule: Schedule) -> Claim:
    """Prove consensus of a weighted graph by a tree or a power, or refute it by sets that stay apart."""
    text = "neither positive weights on oneself with a root, nor a power with a norm below 1, were found."
    return by_tree_or_apart(schedule) or prove_power(schedule, NAME, MAX_POWER) or not_proved(NAME, text)


def by_tree_or_apart(schedule: Schedule) -> Claim | None:
    """Prove consensus of a `neighbor` schedule by a tree of edges, or refute it by separate sets; else None."""
    found, rounds = out_tree_of(schedule), schedule.strategy.graphs
    if found.holds:
        return found
    is_followed = schedule.num_workers <= MAX_SUPPORT and not any(map(has_negative_entries, rounds))
    return _refutation(schedule.num_workers, rounds) if is_followed else None


def _out_tree(
    num_workers: int, rounds: tuple[Round, ...], *, counts_weights: bool
) -> tuple[int, list[list[int]]] | None:
    """Return a root that reaches all workers over positive edges, with the first edges of a breadth-first search."""
    onward: dict[int, list[tuple[int, int]]] = defaultdict(list)
    known: set[tuple[int, int]] = set()
    for t, listed in enumerate(rounds):
        for source, target, weight in listed.edges():
            if (weight > 0 or not counts_weights) and (source, target) not in known:
                known.add((source, target))
                onward[source].append((t, target))

    def search(root: int) -> list[list[int]]:
        seen, queue, edges = {root}, deque([root]), []
        while queue:
            source = queue.popleft()
            for t, target in onward[source]:
                if target not in seen:
                    seen.add(target)
                    queue.append(target)
                    edges.append([t, source, target])
        return edges

    # The last start of a sweep of searches reaches all workers, if any worker does.
    seen: set[int] = set()
    root = 0
    for worker in range(num_workers):
        if worker not in seen:
            root = worker
            seen |= {worker, *(edge[2] for edge in search(worker))}
    edges = search(root)
    return (root, edges) if len(edges) == num_workers - 1 else None


def support_of_period(num_workers: int, rounds: tuple[Round, ...]) -> npt.NDArray[np.bool_]:
    """Return entry [i, j]: whether i holds a share of j's start after one period. Non-negative weights only."""
    result = np.eye(num_workers, dtype=bool)
    for listed in rounds:
        taken: dict[int, Fraction] = defaultdict(Fraction)
        step = np.eye(num_workers, dtype=bool)
        for source, target, weight in listed.edges():
            taken[target] += weight
            step[target, source] = weight > 0
        for worker, total in taken.items():
            step[worker, worker] = total < 1
        result = (step.astype(np.float32) @ result.astype(np.float32)) > 0
    return result


def _refutation(num_workers: int, rounds: tuple[Round, ...]) -> Claim | None:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    support = support_of_period(num_workers, rounds)
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
    """Return the cyclic classes of a strongly connected support, in the order in which values propagate."""
    distance = np.full(len(support), -1)
    distance[0], queue, period = 0, deque([0]), 0
    while queue:
        source = queue.popleft()
        for target in np.flatnonzero(support[:, source]).tolist():
            if distance[target] < 0:
                distance[target] = distance[source] + 1
                queue.append(target)
            period = gcd(period, int(distance[source] + 1 - distance[target]))
    return [np.flatnonzero(distance % period == part) for part in range(period)] if period > 1 else []
