"""Decides whether claims about runs are true: by executing rounds, stopping workers, and leaving workers out.

It shares no code or idea with prover or checker. Ages come from a run in which every worker records the newest round of
each worker that its parameters contain; gaps from runs in which one worker stops; survivors from their matrices.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from functools import lru_cache
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.forgery.dense import sync_of, weighted_edges, worker_steps, workers_of_nodes

if TYPE_CHECKING:
    from benchmarks.forgery.dense import Groups, Matrix

Waits = tuple[tuple[frozenset[int], ...], ...]
"""For every round of the period and every worker, the workers that it waits for."""

TOLERANCE = 1e-9
TOPS = {"int8": 127, "int4": 7}
"""Codecs whose neighboring numbers share a scale, and their largest level."""


def partners(raw: dict[str, Any], listed: Groups, n: int) -> Waits:
    result = []
    for phase in raw["strategy"]["rounds"] if listed is None else listed:
        waits: list[set[int]] = [set() for _ in range(n)]
        if listed is None:
            for source, target, weight in weighted_edges(phase):
                waits[target] |= {source} if weight else set()
        else:
            for members, relaxation in phase:
                for worker in members if relaxation else ():
                    waits[worker] = set(members) - {worker}
        result.append(tuple(map(frozenset, waits)))
    return tuple(result)


def held_back(waits: Waits, held: int, at: int, cap: int, delay: int = 0) -> list[int]:
    """Return every worker's round once nothing moves, if `held` stops in its exchange of round `at`.

    A worker that can continue for ever stops `cap` + 1 rounds ahead. With `delay` a round's exchange is waited for that
    many rounds later.
    """
    n, period = len(waits[0]), len(waits)
    rounds = [at] * n
    moved = True
    while moved:
        moved = False
        for worker in range(n):
            if worker == held:
                continue
            while rounds[worker] <= at + cap and all(
                rounds[other] >= rounds[worker] - delay for other in waits[rounds[worker] % period][worker]
            ):
                rounds[worker] += 1
                moved = True
    return rounds


@lru_cache(maxsize=4096)
def largest_gap(waits: Waits, delay: int = 0) -> int | None:
    """Return the most rounds that a worker gets ahead of one that stops; None if unbounded."""
    n, period = len(waits[0]), len(waits)
    cap = (n + 1) * period + delay
    gap = max(max(held_back(waits, held, at, cap, delay)) - at for held in range(n) for at in range(period))
    return gap if gap <= cap else None


def delay_of(raw: dict[str, Any]) -> int:
    """Return by how many steps a pipeline's gradients are late."""
    pipeline = sync_of(raw, "pipeline")
    return 0 if pipeline is None else int(pipeline.get("width", 2)) - 1


def mixes_late(raw: dict[str, Any]) -> bool:
    gap = sync_of(raw, "iteration_gap")
    if gap is not None:
        return bool(gap.get("update_order") == "dpsgd")
    return isinstance(raw["strategy"].get("sync"), dict) and all(sync_of(raw, o) is None for o in ("merge", "pipeline"))


def missing_rounds(raw: dict[str, Any]) -> int:
    """Return how many of the newest rounds an average lacks, in whole or in part, because it or fragments are late.

    An average that is merged after `end` steps of a round lacks all rounds from the one in which it was sent.
    """
    parts, late, _ = turns_of(raw)
    if (parts, late) == (1, 0):
        return int(mixes_late(raw))
    steps_per_round = max(worker_steps(raw, 1))
    ends = [
        step
        for part in range(parts)
        for step in range(1, steps_per_round + 1)
        if _ends(step, part, parts, steps_per_round)
    ]
    return max(-(-(steps_per_round - end + late) // steps_per_round) for end in ends)


def turns_of(raw: dict[str, Any]) -> tuple[int, int, float]:
    """Return (number of fragments, steps by which each is merged late, weight of a worker's own values)."""
    fragments, merge = raw["strategy"].get("payload", {}).get("fragments", 1), sync_of(raw, "merge") or {}
    parts = len(fragments) if isinstance(fragments, list) else fragments
    return parts, merge.get("steps", 0), float(Fraction(merge.get("alpha", 0)))


def _fragments(entry: dict[str, Any], raw: dict[str, Any], listed: Groups, matrices: list[Matrix]) -> bool:
    """Check by taking four rounds step by step: averages in flight, and the age of a worker's fragments."""
    (parts, late, kept), n = turns_of(raw), len(matrices[0])
    seen = [
        _turns_of_steps_per_round(parts, late, steps_per_round) for steps_per_round in sorted(set(worker_steps(raw, n)))
    ]
    age, flying, apart = max(one[0] for one in seen), max(one[1] for one in seen), min(one[2] for one in seen)
    steps_per_round = max(worker_steps(raw, n))
    expected = {"claim": "fragments", "fragments": parts, "every": steps_per_round, "late": late}
    if len(matrices) == 1 and listed is not None and [len(members) for members, _ in listed[0]] == [n]:
        expected |= {"age": age, "equal": kept == 0 and listed[0][0][1] == 1}
    else:
        expected |= {"period": steps_per_round * len(matrices)}
    is_right = all(one[3] for one in seen) and len({one[4] for one in seen}) == 1
    bounds = 0 < entry["apart"] <= apart and entry["flying"] >= max(1, flying)
    return is_right and bounds and entry == expected | {name: entry[name] for name in ("apart", "flying")}


def _turns_of_steps_per_round(
    parts: int, late: int, steps_per_round: int
) -> tuple[int, int, int, bool, tuple[int, ...]]:
    """Return (age, most in flight, fewest steps between turns, whether each has one per round, order of turns)."""
    turns = [
        [step for step in range(1, 4 * steps_per_round + 1) if _ends(step, p, parts, steps_per_round)]
        for p in range(parts)
    ]
    order = sorted((step - late, step, number) for number, steps in enumerate(turns) for step in steps)
    once = all(
        len([s for s in steps if lo < s <= lo + steps_per_round]) == 1
        for steps in turns
        for lo in range(0, 4 * steps_per_round, steps_per_round)
    )
    again = all(first < second - late for steps in turns for first, second in pairwise(steps))
    flying = max(sum(begin <= step < end for begin, end, _ in order) for step in range(1, 3 * steps_per_round + 1))
    apart = min(second[1] - first[1] for first, second in pairwise(order)) if len(order) > 1 else steps_per_round
    age = max(second - (first - late) for steps in turns for first, second in pairwise(steps))
    return age, flying, apart, once and again, tuple(number for _, _, number in order)


def _ends(step: int, number: int, parts: int, steps_per_round: int) -> bool:
    """Return whether a fragment's turn ends with a step, the last one in its share of the round's steps."""
    place = (step - 1) % steps_per_round + 1
    return place * parts <= (number + 1) * steps_per_round < (place + 1) * parts


def takes_gradients(raw: dict[str, Any]) -> bool:
    steps_per_round = raw["strategy"].get("steps_per_round", 1)
    once = set(steps_per_round) == {1} if isinstance(steps_per_round, list) else steps_per_round == 1
    whole = not outer_of(raw) and turns_of(raw)[2] == 0
    return raw["strategy"]["kind"] == "allreduce" and once and not mixes_late(raw) and whole


def outer_of(raw: dict[str, Any]) -> dict[str, float]:
    """Return rate, momentum, `nesterov`, and `own` (outer parameters per worker); empty for plain averages."""
    outer = raw["strategy"].get("payload", {}).get("outer", {})
    numbers = {name: float(Fraction(outer.get(name, default))) for name, default in (("lr", 1), ("momentum", 0))}
    if numbers == {"lr": 1, "momentum": 0}:
        return {}
    return numbers | {"nesterov": outer.get("nesterov", False), "own": outer.get("outer_params") == "per_worker"}


def oldest_age(matrices: list[Matrix], *, late: int, delay: int = 0) -> int | None:
    """Return the most rounds by which parameters lag behind any worker's newest round in the long run.

    None if unbounded. A round's progress is averaged with it, or `late` rounds after it; late gradients `delay` rounds.
    """
    n, period = len(matrices[0]), len(matrices)
    newest = np.full((n, n), -1)  # entry [i, j]: the newest round of j that i's parameters hold
    np.fill_diagonal(newest, 0)
    before = deque([newest] * late, maxlen=late)
    whole_since: int | None = None
    worst = 0
    for r in count():
        taken = matrices[r % period] > TOLERANCE
        if not late:
            np.fill_diagonal(newest, r - delay)
        sent = before[0] if late else newest
        newest = np.array([sent[taken[i]].max(axis=0) for i in range(n)])
        if late:
            np.fill_diagonal(newest, r)
            before.append(newest)
        if whole_since is None:
            if (newest >= 0).all():
                whole_since = r
            elif r > (n + 1) * period + delay:
                return None
            continue
        worst = max(worst, r - int(newest.min()))
        if r >= whole_since + (n + 2) * period:
            return worst
    raise AssertionError


def busiest(raw: dict[str, Any], listed: Groups, n: int) -> dict[str, int]:
    """Return the largest numbers of groups, connections, splits and arrays of any worker."""
    strategy = raw["strategy"]
    transport = strategy.get("transport", {})
    keeps = int(mixes_late(raw) or strategy.get("averaging") == "step-normalized")
    outer = outer_of(raw)
    keeps += delay_of(raw) + int((transport.get("codec", "none") != "none" or bool(outer)) and not takes_gradients(raw))
    keeps += bool(outer.get("momentum"))
    keeps += 2 * int(transport.get("error_feedback", False))
    if listed is None:
        near: list[set[int]] = [set() for _ in range(n)]
        sources, splits = 0, set()
        for graph in strategy["rounds"]:
            for source, target in graph["edges"]:
                near[source].add(target)
                near[target].add(source)
            sources = max([sources, *(sum(t == worker for _, t in graph["edges"]) for worker in range(n))])
            splits.add(frozenset(weighted_edges(graph)))
        num_splits = len(splits - {frozenset()})
        return {"groups": 0, "connections": max(map(len, near)), "splits": num_splits, "arrays": 1 + keeps + sources}
    own: list[set[tuple[int, ...]]] = [set() for _ in range(n)]
    if strategy.get("prologue", 0):
        for groups in own:
            groups.add(tuple(range(n)))
    for phase in listed:
        for members, _ in phase:
            for worker in members:
                own[worker].add(tuple(sorted(members)))
    different = {frozenset(tuple(sorted(members)) for members, _ in phase) for phase in listed}
    times = {group: communicators(raw, group) for groups in own for group in groups}
    return {
        "groups": max(sum(times[group] for group in groups) for groups in own),
        "connections": max(sum(times[group] * (len(group) - 1) for group in groups) for groups in own),
        "splits": len(different - {frozenset()}),
        "arrays": 1 + keeps,
    }


def nodes_of(raw: dict[str, Any]) -> list[int]:
    node_of = {worker: node for node, workers in enumerate(workers_of_nodes(raw)) for worker in workers}
    return [node_of[worker] for worker in sorted(node_of)]


def communicators(raw: dict[str, Any], group: tuple[int, ...]) -> int:
    """Return how many communicators a group has: one, and one more for int8 or int4 sums without stages."""
    transport = raw["strategy"].get("transport", {})
    return 1 + int(transport.get("codec") in TOPS and not has_stages(raw, group))


def has_stages(raw: dict[str, Any], group: tuple[int, ...]) -> bool:
    """Return whether a group is summed inside its nodes and then across them."""
    nodes = [nodes_of(raw)[worker] for worker in group]
    each = {nodes.count(node) for node in nodes}
    is_even = len(each) == 1 and min(each) > 1 and len(set(nodes)) > 1
    return is_even and raw["strategy"].get("transport", {}).get("algorithm") == "hierarchical"


def _staleness(entry: dict[str, Any], raw: dict[str, Any], listed: Groups, matrices: list[Matrix]) -> bool:
    n, late, delay = len(matrices[0]), missing_rounds(raw), delay_of(raw)
    outer = raw["strategy"].get("payload", {}).get("outer", {})
    if outer.get("outer_params") == "per_worker":
        if outer.get("momentum"):
            return False
        matrices = [np.eye(n) + float(Fraction(outer["lr"])) * (w - np.eye(n)) for w in matrices]
    if any(w.min() < -TOLERANCE or w.diagonal().min() < TOLERANCE for w in matrices):
        return False
    age, steps_per_round = oldest_age(matrices, late=late, delay=delay), max(worker_steps(raw, n))
    gap = largest_gap(partners(raw, listed, n))
    bounds = age is not None and gap is not None and entry["age"] >= age and entry["reach"] >= gap
    lag = late + delay
    return (
        bounds
        and entry["age_steps"] >= age * steps_per_round
        and entry["steps"] >= lag * steps_per_round
        and entry["late"] == lag
    )


def _end(entry: dict[str, Any], raw: dict[str, Any], listed: Groups, matrices: list[Matrix]) -> bool:
    n = len(matrices[0])
    gap = largest_gap(partners(raw, listed, n), delay_of(raw))
    is_bound = entry["behind"] == -1 or (gap is not None and entry["behind"] >= gap)
    return is_bound and entry["steps"] == sum(worker_steps(raw, n))


def _memory(entry: dict[str, Any], raw: dict[str, Any], listed: Groups, matrices: list[Matrix]) -> bool:
    return {name: value for name, value in entry.items() if name != "claim"} == busiest(raw, listed, len(matrices[0]))


JUDGES = {"staleness": _staleness, "fragments": _fragments, "end": _end, "memory": _memory}
