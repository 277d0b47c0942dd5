"""List the explicit phases of any cluster: all partitions for up to 8 workers, patterns beyond."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.alphabet import Alphabet
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.hints import group_rounds
from partreduce.schedulers.synthesis.partitions import Groups, PartitionCosts, labels_of
from partreduce.schedulers.synthesis.problem import Problem
from partreduce.schedulers.synthesis.scoring import Space
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import above
from partreduce.topo.metrics.sectors import RoundSteps
from partreduce.topo.mixing import Operators
from partreduce.topo.phase import Phase
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.timing import loads

Floats = npt.NDArray[np.float64]

MAX_ALL_PARTITIONS = 8
"""Workers up to which all partitions are listed."""
MAX_SUBSET_RANKS = 4
"""Local ranks up to which patterns cross nodes with every set of them; beyond, with aligned spans."""
MAX_SUBSET_NODES = 5
"""Nodes up to which patterns use every partition of them; beyond, interleaved and consecutive parts."""
MAX_PATTERNS = 900
"""Patterns kept; more are drawn from at random."""
FIRST_PATTERNS = 64
"""Patterns that are listed however little time there is."""
MAX_WIDTHS = 32
"""Nodes up to which every number of interleaved or consecutive parts is a pattern; beyond, so many numbers of parts."""
MAX_ENTRIES = 12_000_000
"""Entries of all mixing matrices together; there are fewer patterns where that would not hold them."""
MAX_EXPLICIT_WORKERS = 512
"""Workers up to which explicit phases are searched: every one of them is a dense n×n matrix."""
PER_WORKER = 1.5e-6
"""Nominal seconds of one worker of a pattern: to list it, to cost it and to write its matrix."""


def partitions(items: tuple[int, ...]) -> Iterator[Groups]:
    """Every partition of `items`; Bell(8) = 4140."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for size in range(len(rest) + 1):
        for members in combinations(rest, size):
            left = tuple(item for item in rest if item not in members)
            for others in partitions(left):
                yield ((first, *members), *others)


def explicit_space(num_workers: int, worker_steps: npt.NDArray[np.int64]) -> Space:
    """One class (C = 1, G = n): all workers, the mean projected out. A round adds pace_i steps of noise at worker i."""
    center = np.eye(num_workers) - 1.0 / num_workers  # (n, n)
    steps = RoundSteps.of(worker_steps, worker_steps[None] / 1, Averaging.MEAN, int(worker_steps.max()))
    inner = float(steps.partial.sum()) * (1 - 1 / num_workers)
    return Space(num_workers, np.ones(1), (center @ np.diag(steps.noise[0]) @ center)[None], inner, steps.instants)


def partition_cost(groups: Groups, problem: Problem) -> float:
    """Seconds of one phase."""
    phase = Phase.from_groups(problem.cluster.num_workers, groups)
    link_loads = loads.of_phase(
        phase, problem.cluster, problem.hardware, model_bytes=problem.size, algorithm=problem.algorithm.value
    )
    return float(link_loads.seconds().max(initial=0.0))


def rack_splits(cluster: Cluster) -> list[Groups]:
    """The partitions of the nodes that the switches above them state, one a level; nodes under none stay alone."""
    if cluster.hardware is None:
        return []
    alone = np.arange(cluster.num_nodes)
    rows = above(cluster.hardware.shared_switches(cluster.num_nodes), cluster.num_nodes)
    splits = []
    for row in rows:
        labels = np.where(row < 0, -1 - alone, row)
        splits.append(tuple(tuple(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)))
    return splits


def patterns(cluster: Cluster) -> Iterator[Groups]:
    """Phases that cross nodes with one set of local ranks each, on any partition of the nodes; the rest inside."""
    sizes = cluster.node_sizes()
    most, num_nodes = int(sizes.max()), cluster.num_nodes
    if most <= MAX_SUBSET_RANKS:
        ranks = [c for k in range(1, most + 1) for c in combinations(range(most), k)]
    else:
        ranks = [tuple(range(s, s + k)) for k in range(1, most + 1) if most % k == 0 for s in range(0, most, k)]
    if num_nodes <= MAX_SUBSET_NODES:
        splits = [p for p in partitions(tuple(range(num_nodes))) if max(map(len, p)) > 1]
    else:
        splits = [
            tuple(tuple(v for v in range(num_nodes) if v // step % width == r) for r in range(width))
            for width in _widths(num_nodes)
            for step in (1, max(1, num_nodes // max(width, 1)))
        ]
    racks = rack_splits(cluster)
    splits = [*racks, *splits]
    inside = [cluster.workers_of(v) for v in range(num_nodes)]
    yield ()
    yield tuple(inside)
    for split in racks:
        yield tuple(tuple(worker for v in part for worker in inside[v]) for part in split)
    yield tuple(half for node in inside for half in (node[: (len(node) + 1) // 2], node[(len(node) + 1) // 2 :]))
    for split in splits:
        for local in ranks:
            groups: list[tuple[int, ...]] = []
            crossing: set[int] = set()
            for part in split:
                members = tuple(inside[v][r] for v in part for r in local if r < len(inside[v]))
                if len(part) > 1 and len(members) > 1:
                    groups.append(members)
                    crossing.update(members)
            rest = tuple(tuple(w for w in node if w not in crossing) for node in inside)
            yield (*groups, *rest)
            yield tuple(groups)
            yield (*groups, *(half for node in rest for half in (node[: len(node) // 2], node[len(node) // 2 :])))


def _widths(num_nodes: int) -> list[int]:
    """Numbers of parts of the nodes: all of them, or some over the whole range."""
    if num_nodes <= MAX_WIDTHS:
        return list(range(1, num_nodes))
    return sorted({int(width) for width in np.geomspace(1, num_nodes - 1, MAX_WIDTHS)})


def hinted_groups(problem: Problem) -> Iterator[Groups]:
    """The phases of the problem's hints, of plain means only (the search's matrices are projections)."""
    for hint in problem.hints:
        for phase in group_rounds(hint) or ():
            if phase.relaxation is None:
                yield tuple(group.members for group in phase)


def explicit_alphabet(
    problem: Problem,
    steps_per_round: Sequence[int],
    *,
    seed: int,
    expired: Callable[[], bool],
    clock: Clock | None = None,
) -> Alphabet:
    """Explicit phases for the problem with these steps of each worker, pruned; all partitions up to 8 workers."""
    cluster, n = problem.cluster, problem.cluster.num_workers
    complete = n <= MAX_ALL_PARTITIONS
    everyone = tuple(range(n))
    phases: dict[Groups, None] = {(everyone,): None}  # a set that keeps the order
    source: Iterator[Groups] = partitions(everyone) if complete else patterns(cluster)
    for index, groups in enumerate(source):
        phases[_canonical(groups)] = None
        if clock is not None:
            clock.charge(PER_WORKER * n)
        if not complete and index >= FIRST_PATTERNS and expired():
            break
    if not complete:
        most = min(MAX_PATTERNS, MAX_ENTRIES // n**2)
        if len(phases) > most:
            keep = np.random.default_rng(seed).choice(len(phases), most, replace=False)
            names, always = list(phases), range(3 + len(rack_splits(cluster)))
            phases = {names[i]: None for i in sorted({*always, *keep.tolist()})}
        for phase in hinted_groups(problem):
            phases[_canonical(phase)] = None
    limit = problem.limits.max_group
    kept = [groups for groups in phases if limit is None or max(map(len, groups), default=0) <= limit]
    rows = labels_of(n, kept)  # (A, n)
    costs = PartitionCosts(problem).seconds(rows)
    # What costs as much as the full average is pruned (see `Alphabet.prune`), here before anything is made of it.
    full = (rows == 0).all(axis=1)
    cheap = np.flatnonzero(full | (costs < costs[full].min(initial=np.inf)))
    worker_steps = np.array(steps_per_round, dtype=np.int64)
    node_of = cluster.node_of()
    made = tuple(Phase.from_groups(n, kept[i]) for i in cheap.tolist())
    alphabet = Alphabet(
        cluster,
        explicit_space(n, worker_steps),
        made,
        Operators(made).matrices() - 1 / n,
        costs[cheap],
        (node_of[rows[cheap]] != node_of).any(axis=1),
        steps_per_round=tuple(int(p) for p in worker_steps) if len(set(steps_per_round)) > 1 else int(worker_steps[0]),
    )
    return alphabet.prune()


def _canonical(groups: Groups) -> Groups:
    return tuple(sorted(tuple(sorted(group)) for group in groups if len(group) > 1))
