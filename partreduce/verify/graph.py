"""Claims about weighted graphs (strategy `neighbor`): sums, consensus and contraction.

Consensus of non-negative rows that sum to 1: with positive weights on oneself, support only grows in a product, so a
worker from which all others are reached gives, after enough periods, a matrix with a positive column, and every such
matrix shrinks the spread max − min. Without them connection is not enough: a cyclic shift is doubly stochastic and
strongly connected and never converges, so a power with a norm below 1 is asked for.
"""

from __future__ import annotations

from collections import defaultdict, deque
from fractions import Fraction
from math import gcd

import numpy as np
import numpy.typing as npt

from partreduce.topo.mixing import has_negative_entries
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Round
from partreduce.verify.base import Claim, not_proved, proved, refuted, some
from partreduce.verify.consensus_distance import prove_consensus_distance
from partreduce.verify.contraction import prove_contraction, prove_power
from partreduce.verify.exact_consensus import prove_exact
from partreduce.verify.stated import Stated
from partreduce.verify.stochastic import sums_of_graph

Rounds = tuple[Round, ...]

NAME = "consensus"
MAX_POWER = 12
MAX_SUPPORT = 2000
"""Workers up to which the support of a period's product is formed to refute consensus."""


def prove_graph(schedule: Schedule, stated: Stated) -> tuple[Claim, ...]:
    """All claims about the matrices of a `neighbor` schedule."""
    rounds = schedule.strategy.graphs
    sums = sums_of_graph(rounds, stated)
    claims: list[Claim | None] = [sums, _consensus(schedule)]
    if sums.holds:
        claims.append(prove_contraction(schedule))
        claims.append(prove_consensus_distance(schedule))
        claims.append(prove_exact(schedule))
    return tuple(claim for claim in claims if claim is not None)


def out_tree_of(schedule: Schedule, *, counts_weights: bool = True) -> Claim:
    """Consensus by a tree of edges alone; without `counts_weights` every edge weighs something, whatever the file says.

    What follows from the tree is for the caller to say.
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


def _consensus(schedule: Schedule) -> Claim:
    return by_tree_or_apart(schedule) or (
        prove_power(schedule, NAME, MAX_POWER)
        or not_proved(
            NAME, "neither positive weights on oneself with a root, nor a power with a norm below 1, were found."
        )
    )


def by_tree_or_apart(schedule: Schedule) -> Claim | None:
    """Consensus of a `neighbor` schedule by a tree of edges, or refuted by sets that stay apart; None if neither."""
    found, rounds = out_tree_of(schedule), schedule.strategy.graphs
    if found.holds:
        return found
    is_followed = schedule.num_workers <= MAX_SUPPORT and not any(map(has_negative_entries, rounds))
    return _refutation(schedule.num_workers, rounds) if is_followed else None


def _out_tree(num_workers: int, rounds: Rounds, *, counts_weights: bool) -> tuple[int, list[list[int]]] | None:
    """A root that reaches everyone over edges of positive weight, with the first edges of a breadth-first search."""
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

    # The last worker that a sweep of searches starts from reaches everyone, if any worker does.
    seen: set[int] = set()
    root = 0
    for worker in range(num_workers):
        if worker not in seen:
            root = worker
            seen |= {worker, *(edge[2] for edge in search(worker))}
    edges = search(root)
    return (root, edges) if len(edges) == num_workers - 1 else None


def support_of_period(num_workers: int, rounds: Rounds) -> npt.NDArray[np.bool_]:
    """Entry [i, j]: whether worker i holds a share of worker j's start after one period. Non-negative weights only."""
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


def _refutation(num_workers: int, rounds: Rounds) -> Claim | None:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    support = support_of_period(num_workers, rounds)
    count, home = connected_components(csr_array(support.astype(np.int8)), directed=True, connection="strong")
    closed = [c for c in range(count) if not support[np.ix_(home == c, home != c)].any()]
    if len(closed) > 1:
        sets = [np.flatnonzero(home == c).tolist() for c in closed[:2]]
        text = (
            f"over a period the workers {some(sets[0])} take weight from themselves only, and so do the workers "
            f"{some(sets[1])}: each keeps its own mean for ever."
        )
        return refuted(NAME, text, {"closed_sets": sets})
    members = np.flatnonzero(home == closed[0])
    parts = _cyclic_parts(support[np.ix_(members, members)])
    if len(parts) > 1:
        sets = [members[part].tolist() for part in parts]
        text = (
            f"over a period the workers {some(sets[1])} take all their weight from the workers {some(sets[0])}, and so "
            f"on round a cycle of {len(sets)} sets: their values turn for ever and never meet."
        )
        return refuted(NAME, text, {"cycle_of_sets": sets})
    return None


def _cyclic_parts(support: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
    """The cyclic classes of a strongly connected support, in the order in which values travel."""
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
