"""Profile bound: a proved lower bound for all schedules of plain means on a cluster, however many workers it has.

No phase is listed. A phase W = I − R of plain means, R a projection, is summed up by what its seconds allow at most:

* `rank`, the rank of R: workers minus blocks;
* `joined`, by how many dimensions it shrinks the vectors that are constant on every node and stay as they are, and
* `moved`, ‖R N‖², where N projects on the node-constant vectors without the mean (dimension m − 1).

Noise that a window of phases has averaged has squared norm ‖W_a…W_1 P‖², P = I − J. What all phases of the window leave
as it is lies in the intersection of their ranges, so it is at least n − 1 − Σ rank. P splits into N and the rest, whose
squares add up: the rest keeps at least n − m − Σ rank, N at least m − 1 − Σ joined, and also at least
(√(m−1) − Σ √moved)², because each phase moves W_{i−1}…W_1 N no further from N than ‖R_i N‖. These terms replace the
phases' own in the age bound (see `age_bound`), over a short list of cost levels.

With paces the noise is D = diag(pace) ⪰ min(pace) I, and k dimensions hold at least the k least eigenvalues of PDP.
Costs are bounded below by bandwidth alone: a group of k workers moves what its form says through every NIC it crosses,
its slowest NIC included, and the groups that cross one NIC add up. Phases that cost as much as the full average are
dominated by it. The argument is ours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import ceil, floor, sqrt

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.age_bound import AgeTables, DualBound, lines_of
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.explicit_alphabet import explicit_space, partition_cost, plain_means
from partreduce.schedulers.synthesis.problem import Problem
from partreduce.topo.strategies.axes import Form

Floats = npt.NDArray[np.float64]

SIZES = ((14, 5), (10, 6))
"""(cost levels, greatest age) of the tables: many levels matter at large budgets, many ages at small ones."""
MAX_WORKERS = 4096
MAX_TIMES, MAX_NODE_TIMES = 400, 40_000
"""Times at which phases are summed up: at most, and at most for all nodes together."""
PER_TIME, PER_NODE = 3e-5, 1e-5
"""Nominal seconds to sum up the phases of one time, and for each node there."""
ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Level:
    """Phases of at least `seconds`, and less than the next level's: the most that any of them does."""

    seconds: float
    rank: float
    joined: float
    moved: float


def share(size: int, form: Form) -> float:
    """The least part of the model that a crossing group of `size` workers moves through each NIC it crosses."""
    flat = 2 * (size - 1) / size
    return min(flat, 1.0) if form is Form.HIERARCHICAL else flat


def allowed(problem: Problem, seconds: float) -> Level:
    """The most that a phase of at most so many seconds can do, short of the full average. O(n + m)."""
    cluster, hardware = problem.cluster, problem.hardware
    sizes, n, m = cluster.node_sizes(), cluster.num_workers, cluster.num_nodes
    budget, lanes = seconds * ROUNDING, hardware.num_nics
    nics = [hardware.nic_of(v).seconds_per_byte * problem.size for v in range(m)]
    capacity = [budget * hardware.num_nics / (share(2, problem.form) * x) if x > 0 else float("inf") for x in nics]
    slots = [min(int(size), floor(min(room, n))) for size, room in zip(sizes, capacity, strict=True)]
    able = [v for v in range(m) if slots[v] > 0]
    reach = int(sizes[able].sum()) if len(able) > 1 else 0
    alone = _fastest(able, nics, sizes)
    # The seconds rise with the group's size, so that the sizes within the budget are the first ones.
    largest = bisect_right(range(2, reach + 1), budget * lanes, key=lambda k: share(k, problem.form) * alone[k]) + 1
    largest = largest if largest >= 2 else 0
    groups = min(sum(slots) // 2, n // 2) if largest else 0
    crossing = min(reach, groups * largest)
    across = min(crossing - ceil(crossing / largest), groups * (largest - 1)) if crossing else 0
    inner = [_largest_inside(problem, v, budget) for v in range(m)]
    inside = sum(int(s) - ceil(int(s) / k) for s, k in zip(sizes.tolist(), inner, strict=True))
    rank = min(across + inside, n - ceil(n / max(largest, *inner)), n - 1)
    joined = min(across, len(able) - 1, m - 1) if crossing else 0
    spread = min(largest, len(able))
    moved = min(crossing * (1 - 1 / spread) / int(sizes[able].min()), len(able) - 1.0) if crossing else 0.0
    return Level(seconds, rank, joined, moved)


def _fastest(able: Sequence[int], nics: Sequence[float], sizes: npt.NDArray[np.int64]) -> list[float]:
    """By the size of a crossing group: the seconds of the model on the slowest NIC that it cannot avoid."""
    result: list[float] = []
    for count, v in enumerate(sorted(able, key=lambda v: nics[v]), 1):
        result += [nics[v]] * int(sizes[v])
        if count == 2:
            result = [nics[v]] * len(result)  # it crosses two nodes at least
    return [0.0, *result]


def _largest_inside(problem: Problem, node: int, budget: float) -> int:
    inverse, form = problem.hardware.inside_of(node).seconds_per_byte * problem.size, problem.form
    most = int(problem.cluster.node_sizes()[node])
    flat = Form.RING if form is Form.HIERARCHICAL else form
    return bisect_right(range(2, most + 1), budget, key=lambda k: share(k, flat) * inverse) + 1


def levels_of(problem: Problem, count: int) -> list[Level]:
    """At most `count` levels, the full average last; each stands for the phases up to the next one's seconds."""
    n, m = problem.cluster.num_workers, problem.cluster.num_nodes
    full = partition_cost((tuple(range(n)),), problem)
    times = _times(problem, full * (1 - 1e-9))
    ends = [*times[1:], full]
    levels = [
        replace(allowed(problem, end / ROUNDING**2), seconds=begin) for begin, end in zip(times, ends, strict=True)
    ]
    kept = [levels[0]]
    for level in levels[1:]:  # times at which nothing new becomes possible are no levels
        if (level.rank, level.joined, level.moved) != (kept[-1].rank, kept[-1].joined, kept[-1].moved):
            kept.append(level)
    while len(kept) > count - 1:
        # The two neighbours with the nearest costs become one: the cost of the cheaper, the powers of the dearer.
        i = min(range(1, len(kept) - 1), key=lambda i: kept[i + 1].seconds - kept[i].seconds)
        kept[i : i + 2] = [replace(kept[i + 1], seconds=kept[i].seconds)]
    return [*kept, Level(full, n - 1, m - 1, m - 1.0)]


def num_times(problem: Problem) -> int:
    """How many times are looked at: fewer where there are many nodes, since each costs O(nodes)."""
    return max(20, min(MAX_TIMES, MAX_NODE_TIMES // problem.cluster.num_nodes))


def _times(problem: Problem, below: float) -> list[float]:
    """Seconds at which phases can do more, rising from 0. Any list is right; these are the ones that matter."""
    n, m, hardware = problem.cluster.num_workers, problem.cluster.num_nodes, problem.hardware
    parts = {share(k, form) for k in range(2, n + 1) for form in {problem.form, Form.RING}}
    links = {hardware.nic_of(v).seconds_per_byte * problem.size for v in range(m)}
    links |= {hardware.inside_of(v).seconds_per_byte * problem.size for v in range(m)}
    times = {p * x / rails for p in parts for x in links for rails in {1, hardware.num_nics}}
    times |= {k * x * share(2, problem.form) / hardware.num_nics for k in range(1, 9) for x in links}
    ordered = sorted({0.0, *(t for t in times if t < below)})
    step = -(-len(ordered) // num_times(problem))
    return ordered[::step]


def profile_tables(
    problem: Problem, levels: Sequence[Level], pace: Sequence[int], depth: int, clock: Clock | None = None
) -> AgeTables:
    """The age tables of the levels. O(levels^depth)."""
    n, m = problem.cluster.num_workers, problem.cluster.num_nodes
    paces = np.array(pace, dtype=np.int64)
    if len(set(pace)) == 1:
        spectrum, floor_, instants = np.full(n - 1, float(pace[0])), (1 - 1 / n) * (pace[0] - 1) / 2, pace[0]
    else:
        space = explicit_space(n, paces, problem.cluster.node_of(), problem.push)
        spectrum, floor_, instants = np.linalg.eigvalsh(space.fresh[0])[1:].clip(0.0), space.floor, space.instants
    held = np.concatenate([[0.0], np.cumsum(np.sort(spectrum))])  # (n,): the least noise that k dimensions hold
    # One entry per level, (L,); the outer sums over a window of `age` phases have `age` axes, (L, …, L).
    rank = np.array([level.rank for level in levels])
    joined = np.array([level.joined for level in levels])
    moved = np.array([sqrt(level.moved) for level in levels])
    tables = []
    for age in range(1, depth + 1):
        ranks, joins, moves = (reduce(np.add.outer, [one] * age) for one in (rank, joined, moved))
        kept = np.maximum(0.0, n - m - ranks)
        kept += np.maximum(np.maximum(0.0, m - 1 - joins), np.maximum(0.0, sqrt(m - 1) - moves) ** 2)
        whole = held[np.maximum(0, n - 1 - ranks).astype(np.int64)]
        tables.append((np.maximum(whole, int(paces.min()) * kept) / n).astype(np.float32))
    costs = np.array([level.seconds for level in levels]) / instants
    return AgeTables(tuple(tables), costs, floor_, clock)


def profile_bound(
    problem: Problem,
    pace: Sequence[int],
    expired: Callable[[], bool],
    *,
    budgets: Sequence[float] = (),
    clock: Clock | None = None,
) -> DualBound | None:
    """The bound for all schedules of plain means with these paces; None where communication costs nothing."""
    described = plain_means(pace)
    lines: list[tuple[float, float]] = []
    reached = 0
    if problem.cluster.num_workers > MAX_WORKERS:
        return None
    for count, depth in SIZES:
        if lines and expired():
            break
        levels = levels_of(problem, count)
        if clock is not None:
            clock.charge(PER_TIME * MAX_TIMES + PER_NODE * num_times(problem) * problem.cluster.num_nodes)
        if not levels[-1].seconds > 0:
            return None
        tables = profile_tables(problem, levels, pace, depth, clock)
        lines += lines_of(tables, float(tables.costs[-1]), expired, budgets=budgets)
        reached = max(reached, depth)
    return DualBound(tuple(lines), reached, described)
