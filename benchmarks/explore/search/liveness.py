"""Liveness under weak fairness: a fair endless run without progress is a reachable fair cycle, so look for one."""

from __future__ import annotations

import numpy as np

from benchmarks.explore.search.breadth import Breadth
from benchmarks.explore.search.properties import Progress
from benchmarks.explore.search.system import Label, State

MISHAPS = ("lose", "repeat", "crash", "cut")
Edge = tuple[int, "Label"]


def starving_loop(search: Breadth, goal: Progress) -> tuple[int, list[Label]] | None:
    """A stored state and the labels of a fair cycle through it on which the goal never happens, or None.

    Builds the graph of all transitions that are not the goal, takes its strongly connected components and keeps those
    that are fair: every process event and every channel that can move in *all* states of the component also moves on
    an edge inside it. O(states + transitions). Needs a search without symmetry, in which names do not change.

    Raises:
        AssertionError: the search folded symmetric states.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    assert search.folding is None, "fairness is per process: explore without symmetry"
    index_of = {state: number for number, state in enumerate(search.states)}
    edges: list[list[Edge]] = []
    owed: list[frozenset[object]] = []
    for state in search.states:
        moves = search.system.successors(state)
        owed.append(frozenset(_action(label) for label, _ in moves if label.verb not in MISHAPS))
        targets = ((index_of.get(search.normal(after)), label) for label, after in moves if not goal.goal(label))
        edges.append([(t, label) for t, label in targets if t is not None])
    rows = np.repeat(np.arange(len(edges)), [len(e) for e in edges])
    columns = np.array([t for e in edges for t, _ in e], dtype=np.int64)
    graph = coo_matrix((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(len(edges), len(edges)))
    _, component = connected_components(graph, directed=True, connection="strong")
    members: dict[int, list[int]] = {}
    for number, name in enumerate(component.tolist()):
        members.setdefault(name, []).append(number)
    for name, inside in members.items():
        kept = {s: [(t, label) for t, label in edges[s] if component[t] == name] for s in inside}
        taken = {_action(label) for out in kept.values() for _, label in out}
        if taken and frozenset.intersection(*(owed[s] for s in inside)) <= taken:
            return _fair_cycle(kept, frozenset.intersection(*(owed[s] for s in inside)), owed)
    return None


def _action(label: Label) -> object:
    """What fairness counts: the events of one process, and the deliveries of one channel."""
    return ("channel", label.channel) if label.channel >= 0 else ("process", label.process)


def _fair_cycle(
    kept: dict[int, list[Edge]], everywhere: frozenset[object], owed: list[frozenset[object]]
) -> tuple[int, list[Label]]:
    """Walk through the component: take every action owed everywhere, pass a state for each other one, and return."""
    start = min(kept)
    labels: list[Label] = []
    here = start

    def walk(accept: object, *, to: int | None = None) -> None:
        nonlocal here
        queue: list[int] = [here]
        came: dict[int, tuple[int, Label]] = {}
        for state in queue:
            for target, label in kept[state]:
                hit = (to is None and _action(label) == accept) or (to is not None and target == to)
                if hit or (target not in came and target != here):
                    if hit:
                        path, at = [label], state
                        while at != here:
                            at, step = came[at]
                            path.append(step)
                        labels.extend(reversed(path))
                        here = target
                        return
                    came[target] = (state, label)
                    queue.append(target)

    for action in sorted(everywhere, key=str):
        walk(action)
    others = frozenset.union(*(owed[s] for s in kept)) - everywhere
    for action in sorted(others, key=str):
        resting = next(s for s in kept if action not in owed[s])
        if resting != here:
            walk(None, to=resting)
    if here != start or not labels:
        walk(None, to=start)
    return start, labels


def replay_loop(search: Breadth, start: State, labels: list[Label]) -> tuple[list[Label], list[State]]:
    """The true labels and states along a cycle of labels from a true state."""
    taken, states = [], [start]
    for label in labels:
        key = (label.verb, label.process, label.channel)
        found, after = next(
            (found, after)
            for found, after in search.system.successors(states[-1])
            if (found.verb, found.process, found.channel) == key and (key[2] >= 0 or found.event == label.event)
        )
        taken.append(found)
        states.append(after)
    return taken, states
