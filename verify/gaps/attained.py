"""What is attained: the gaps that exhaustive exploration of Hop's worker reaches."""

from __future__ import annotations

from collections import deque

from partreduce.schedulers.protocols.base import Received, Send
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import Advance, Hop
from partreduce.topo.strategies.gap import Gap
from partreduce.verify.explore import Exploration, Network, NoDeadlock, explore
from partreduce.verify.gaps.paper import Length, Matrix


def attained_gaps(
    graph: Digraph, setting: Gap, bounds: Matrix, *, max_states: int = 100_000
) -> tuple[Matrix | None, Exploration]:
    """Entry [i][j] is the largest Step(i) − Step(j) over all reachable states; None where it grows without limit.

    Messages are delivered at once: a late message only delays, so the same gaps are reached (the tests compare the two
    where both can be explored). Where some pair is unbounded the states are those in which nobody is further ahead of
    the slowest than one step more than the largest finite bound; a pair that reaches this fence counts as unbounded.
    The matrix is None when `max_states` did not suffice.
    """
    finite = [value for row in bounds for value in row if value is not None]
    unbounded = any(value is None for row in bounds for value in row)
    fence = max(finite, default=0) + 1

    found = explore(
        Hop(graph, setting),
        properties=(NoDeadlock(),),
        network=Network(delay=False),
        max_states=max_states,
        symmetry=False,
        max_gap=fence if unbounded else None,
    )
    if not found.complete or found.gaps is None:
        return None, found
    gaps = tuple(tuple(None if unbounded and gap >= fence else gap for gap in row) for row in found.gaps)
    return gaps, found


def gaps_by_holding_back(graph: Digraph, setting: Gap, bounds: Matrix) -> Matrix:
    """Entry [i][j] is Step(i) when worker j never enters step 1 and everybody else runs until nothing moves.

    Drives the same machine as the explorer through one run per j, so every entry is truly reached, for graphs of any
    size; only an exhaustive exploration shows that nothing larger is. None where i passes every finite bound.
    """
    machine = Hop(graph, setting)
    fence = max((value for row in bounds for value in row if value is not None), default=0) + 1
    columns = [_held_back(machine, j, fence) for j in range(graph.num_workers)]
    return tuple(tuple(column[i] for column in columns) for i in range(graph.num_workers))


def _held_back(machine: Hop, held: int, fence: int) -> list[Length]:
    n = machine.num_processes
    started = [machine.start(v) for v in range(n)]
    states = [state for state, _ in started]
    post = deque((v, a) for v, (_, actions) in enumerate(started) for a in actions if isinstance(a, Send))
    waiting = deque(range(n))
    while waiting or post:
        if post:
            source, send = post.popleft()
            worker = send.to
            event: object = Received(source, send.message)
        else:
            worker = waiting.popleft()
            stays = worker == held or states[worker].step > fence
            ready = [e for e in machine.ready(worker, states[worker]) if not (stays and isinstance(e, Advance))]
            if not ready:
                continue
            event = ready[0]
        states[worker], actions = machine.step(worker, states[worker], event)
        post.extend((worker, action) for action in actions if isinstance(action, Send))
        waiting.append(worker)
    return [None if state.step >= fence else state.step for state in states]
