"""Claim `consensus-after-a-loss`: whichever one worker is lost, the schedule brings the others to consensus.

A property and no fault: most schedules that people run lack it in some form (a star, heads of nodes), so a refutation
does not refute the schedule. The theorems stand in `verify/checker/claims/after_a_loss.py`: groups and rules are
certified by an st-numbering (Even and Tarjan 1976, in the form of Tarjan 1986), weighted graphs by a root for every
lost worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from partreduce.topo.phase import ONE
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, not_proved, proved, refuted, some
from partreduce.verify.consensus import GROUND
from partreduce.verify.stochastic import keeps_something
from partreduce.verify.view import contracts, every_relax_tame, explicit_view, rule_view

NAME = "consensus-after-a-loss"
MAX_MEMBERS = 200_000
"""Workers in all groups of a period up to which an order is looked for: about a second."""

MAX_VISITS = 2 * 10**6
"""Edges that are followed for all lost workers of a weighted graph: about a second."""

Adjacency = dict[int, list[int]]


def prove_after_a_loss(schedule: Schedule) -> Claim:
    """Prove it, or refute it by a worker and the survivors that its loss cuts off.

    For schedules whose consensus is proved; others have nothing to lose. Rules: for every number of nodes.
    """
    return replace(_prove(schedule), is_property=True)


def _prove(schedule: Schedule) -> Claim:
    if schedule.strategy.graphs:
        return _of_graphs(schedule)
    if not every_relax_tame(schedule):
        return not_proved(NAME, "a group has relax < 0 or relax >= 2, so witnesses of meeting do not suffice.")
    rule = rule_view(schedule)
    if rule is not None:
        ground = [GROUND] if rule.num_digits else []
        groups = [
            [*block.local, *(ground if block.across else ())]
            for phase in rule.phases
            for block in phase
            if contracts(block.relax)
        ]
        vertices = [*ground, *range(rule.workers_per_node)]
        unit, where = "local rank", f", for every number of nodes with {rule.num_digits} digits"
    else:
        phases = explicit_view(schedule) or ()
        if sum(len(phase.members) for phase in phases) > MAX_MEMBERS:
            return not_proved(NAME, f"an order is looked for up to {MAX_MEMBERS} members of all groups of a period.")
        groups = [
            phase.members[low:high].tolist()
            for phase in phases
            for low, high, relax in zip(
                phase.offsets.tolist(), phase.offsets.tolist()[1:], phase.relax or (ONE,) * len(phase), strict=False
            )
            if 0 < relax < 2
        ]
        vertices = list(range(schedule.num_workers))
        unit, where = "worker", ""
    order, cut = st_order(vertices, groups)
    if cut is None:
        text = (
            f"In the given order every {unit} but the first shares a group with an earlier one, every one but the last "
            f"with a later one, and the two ends share one: so the others stay connected whichever is lost{where}."
        )
        return proved(NAME, text, method="order", order=order)
    lost, apart = cut
    inside = [vertex for vertex in apart if vertex != GROUND]
    text = (
        f"without {unit} {lost} the {unit}s {some(inside)} share no group with anybody else, so they would never agree "
        f"with the others{where}."
    )
    return refuted(NAME, text, {unit.replace(" ", "_"): lost, f"{unit}s".replace(" ", "_"): inside[:1000]})


def _of_graphs(schedule: Schedule) -> Claim:
    n, rounds = schedule.num_workers, schedule.strategy.graphs
    if not all(keeps_something(graph) for graph in rounds):
        text = "a weight is negative, or a worker keeps nothing of its own, so connection does not suffice."
        return not_proved(NAME, text)
    edges = {(source, target) for graph in rounds for source, target, weight in graph.edges() if weight}
    if n * (n + len(edges)) > MAX_VISITS:
        return not_proved(NAME, f"survivors of every loss are followed up to {MAX_VISITS} edges in all.")
    onward: Adjacency = {worker: [] for worker in range(n)}
    for source, target in sorted(edges):
        onward[source].append(target)
    roots = []
    for lost in range(n):
        root, reached = _root(onward, lost)
        if len(reached) < n - 1:
            inside = sorted(reached)
            others = [worker for worker in range(n) if worker != lost and worker not in reached]
            text = (
                f"without worker {lost} no survivor leads to all the others: worker {root} does not lead to "
                f"{some(others)}, and none of these to it, so some survivors never agree."
            )
            witness = {"worker": lost, "root": root, "reached": inside[:1000], "others": others[:1000]}
            return refuted(NAME, text, witness)
        roots.append(root)
    text = (
        "Own weights are positive and only grow by a loss, and for every lost worker the named survivor leads to all "
        "the others: so they come to one value."
    )
    return proved(NAME, text, method="roots", roots=roots)


def _root(onward: Adjacency, lost: int) -> tuple[int, set[int]]:
    """The only survivor that may lead to all others, and whom it reaches: the last start of a sweep of searches."""
    seen: set[int] = {lost}
    root = 0
    for worker in onward:
        if worker not in seen:
            root = worker
            seen |= _reached(onward, worker, seen)
    return root, _reached(onward, root, {lost})


def _reached(onward: Adjacency, start: int, without: set[int]) -> set[int]:
    reached, waiting = {start}, [start]
    while waiting:
        for target in onward[waiting.pop()]:
            if target not in reached and target not in without:
                reached.add(target)
                waiting.append(target)
    return reached


def st_order(
    vertices: Sequence[int], groups: Iterable[Sequence[int]]
) -> tuple[list[int], tuple[int, list[int]] | None]:
    """An order in which every vertex shares groups with an earlier and a later one (but the ends, which share one).

    Where there is none: a vertex whose loss cuts the returned others off. O(members of all groups). Each group stands
    as a circle of its members, which stays connected without any one of them, as the group does.
    """
    adjacent: Adjacency = {vertex: [] for vertex in vertices}
    for group in groups:
        for one, other in zip(group, [*group[1:], *group[:1]] if len(group) > 2 else group[1:], strict=False):
            adjacent[one].append(other)
            adjacent[other].append(one)
    first = vertices[0]
    preorder, parent, low = _depth_first(adjacent, first)
    number = {vertex: place for place, vertex in enumerate(preorder)}
    for vertex in preorder[2:]:
        above = parent[vertex]
        if above == first or number[low[vertex]] >= number[above]:
            # Only `above` joins what hangs below `vertex` to the rest.
            last = number[vertex]
            while last + 1 < len(preorder) and number[parent[preorder[last + 1]]] >= number[vertex]:
                last += 1
            return [], (above, sorted(preorder[number[vertex] : last + 1]))
    # A list as links, so that inserting beside a vertex costs nothing.
    second = preorder[1]
    after, before = {first: second}, {second: first}
    goes_before = {first: True}
    for vertex in preorder[2:]:
        above, is_before = parent[vertex], goes_before.get(low[vertex], False)
        left = before[above] if is_before else above
        right = above if is_before else after.get(above)
        after[left], before[vertex] = vertex, left
        if right is not None:
            after[vertex], before[right] = right, vertex
        goes_before[above] = not is_before
    order = [first]
    while order[-1] in after:
        order.append(after[order[-1]])
    return order, None


def _depth_first(adjacent: Adjacency, first: int) -> tuple[list[int], dict[int, int], dict[int, int]]:
    """Vertices in the order of a depth-first search, their parents, and the first vertex that each subtree leads to."""
    number, parent, low = {first: 0}, {first: first}, {first: first}
    preorder, stack = [first], [(first, iter(adjacent[first]))]
    while stack:
        vertex, others = stack[-1]
        for other in others:
            if other not in number:
                number[other], parent[other], low[other] = len(preorder), vertex, vertex
                preorder.append(other)
                stack.append((other, iter(adjacent[other])))
                break
            if number[other] < number[low[vertex]]:
                low[vertex] = other
        else:
            stack.pop()
            above = parent[vertex]
            if number[low[vertex]] < number[low[above]]:
                low[above] = low[vertex]
    return preorder, parent, low
