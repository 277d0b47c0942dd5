"""Define what a search may put into a phase: explicit groups (of any workers), or the blocks of a rule.

Both are blocks (local ranks L, digits D) of `topo.rule`: an explicit group is a block without digits of a single node
that holds all workers, so one model and one search serve both. Letters of array shapes: B blocks, S links that groups
share (NICs, uplinks, buses), C = 2^k sets of the k digits, G local ranks (all workers if groups are explicit).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations, combinations_with_replacement
from math import comb, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.cluster_shape import MAX_EXPLICIT_WORKERS, node_radices
from partreduce.schedulers.synthesis.problem import Period, Problem
from partreduce.topo.arithmetic.whole_numbers import divisors
from partreduce.topo.metrics.sectors import RoundSteps
from partreduce.topo.mixing import Operators
from partreduce.topo.rule import Block, RulePhase, RuleView, every_class
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.static import GroupPhases, RulePhases, StaticGroups
from partreduce.topo.timing.compute import ComputeTimes

Floats = npt.NDArray[np.float64]
Place = tuple[int, ...]

MAX_GROUPS, MAX_BLOCKS = 1000, 512
"""Most explicit groups (approximately), and most blocks of a rule. Each is a solver variable in every phase."""
MAX_WIDTH = 4
"""Largest number of nodes that `Choices.aligned` groups cross, unless they cross all nodes."""
MAX_TIMED, WARM = 64, 2
"""Most workers (of a rule: local ranks) for which waiting is simulated; and the periods simulated before as many more
are measured."""
MAX_PLACES, MAX_RULE_PLACES, FEW_WORKERS = 64, 16, 8
"""Most places (`Choices`) of explicit groups, and of a rule; and most workers that always get explicit groups."""


class Space(NamedTuple):
    """Data from which the consensus distance of a period is computed, for each of C classes of characters.

    A character is a Fourier mode over the nodes, and its class the set of node digits on which it depends. A rule mixes
    each class by one G×G matrix over local ranks. `weight` (C,) is the number of characters of a class divided by the
    number of workers. `fresh` (C, G, G) is the covariance of the noise that the steps of a round add, less the noise of
    the mean model. A round has `instants` steps; `floor` is the part of any period's consensus distance that noise
    within a round causes.
    """

    weight: Floats
    fresh: Floats
    floor: float = 0.0
    instants: int = 1


@dataclass(frozen=True, eq=False)
class Choices:
    """The blocks from which a search composes phases; `radices` are the rule's, () for explicit groups.

    A block (local ranks L, digits D) forms one group for every setting of the node digits outside D. The `places`
    partition the local ranks; a block contains each place wholly or not at all. If `is_complete`, the blocks are all
    groups that the limits allow, so a proof about these blocks holds for all schedules.
    """

    problem: Problem
    radices: tuple[int, ...]
    places: tuple[Place, ...]
    blocks: tuple[Block, ...]
    is_complete: bool
    _known: dict[RulePhase, Floats] = field(default_factory=dict, init=False)

    @cached_property
    def num_ranks(self) -> int:
        """Return the number of local ranks of a node, or of all workers if groups are explicit."""
        return sum(map(len, self.places))

    def size(self, block: Block) -> int:
        """Return the number of workers in one group of a block."""
        return len(block.local) * prod(self.radices[d] for d in block.across)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the number of workers in one group of each block, shape (B,)."""
        return np.array(list(map(self.size, self.blocks)), dtype=np.int64)

    @cached_property
    def joined(self) -> Floats:
        """Return how many fewer groups a phase has with each block, shape (B,); a lone worker counts as a group."""
        members = np.array([len(block.local) for block in self.blocks]) * prod(self.radices)
        return np.asarray(members / self.sizes * (self.sizes - 1))

    def crosses(self, phase: RulePhase) -> bool:
        """Return whether some group of the phase has workers of several nodes."""
        if self.radices:
            return any(block.across for block in phase)
        node_of = self.problem.cluster.node_of()
        return any(len(set(node_of[list(block.local)].tolist())) > 1 for block in phase)

    @cached_property
    def within(self) -> list[list[int]]:
        """Return for each block the indices of the places that it contains."""
        home = {rank: place for place, ranks in enumerate(self.places) for rank in ranks}
        return [sorted({home[rank] for rank in block.local}) for block in self.blocks]

    @cached_property
    def meetings(self) -> list[tuple[float, tuple[int, ...]]]:
        """Return (count, indices of blocks), where `count` pairs of workers share a group in exactly these blocks."""
        meeting: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
        for b, block in enumerate(self.blocks):
            for one, other in combinations_with_replacement(self.within[b], 2):
                for differing in (c for k in range(len(block.across) + 1) for c in combinations(block.across, k)):
                    meeting.setdefault((one, other, differing), []).append(b)
        pairs: dict[tuple[int, ...], float] = {}
        for (one, other, differing), blocks in meeting.items():
            offsets = prod(self.radices[d] - 1 for d in differing) * prod(self.radices)
            count = len(self.places[one]) * (len(self.places[other]) - (one == other and not differing)) * offsets
            pairs[tuple(blocks)] = pairs.get(tuple(blocks), 0.0) + count / (1 + (one == other))
        return [(count, blocks) for blocks, count in pairs.items() if count]

    @cached_property
    def seconds_and_loads(self) -> tuple[Floats, Floats]:
        """Return the seconds of each block alone, (B,), and its load in seconds on each shared link, (B, S).

        The loads of a phase's blocks on a link add up.
        """
        found, num_blocks = self.problem.link_loads(self.blocks, self.radices), len(self.blocks)
        block = self._block_of(self.blocks, len(found.latency))
        seconds, tables = np.zeros(num_blocks), list[Floats]()
        for one in (found, *found.other_links):
            table, place = np.zeros((num_blocks, 1 + one.node.max(initial=0))), (block[one.group], one.node)
            # The groups of a block send equal pieces over a link: sharing it fairly, they end together.
            np.add.at(table, place, one.bytes_ / one.num_nics * one.inverse)
            lanes, alone = np.minimum(one.lanes, one.num_nics), one.inside.copy()
            np.maximum.at(alone, one.group, np.maximum(one.bytes_ / lanes * one.inverse, table[place]))
            np.maximum.at(seconds, block, alone + one.latency)
            tables.append(table[:, np.unique(one.node)])
        return seconds, np.unique(np.hstack(tables), axis=1)

    def cost(self, phase: RulePhase) -> float:
        """Return the seconds of communication of a phase, those of its slowest group."""
        return float(self.times(phase).max())

    def step_seconds(self, periods: Sequence[Period], worker_steps: Sequence[int]) -> Floats:
        """Return approximate seconds per step of N periods of equal length, shape (N,), with computing and waiting.

        `worker_steps` are the steps per round of each worker, or a single number for all of them. A group begins when
        its last member arrives; with more than MAX_TIMED workers all wait for all. The result is a mean over a few
        simulated periods; `topo.timing.event_graph` computes the exact cycle time of a single schedule.
        """
        phases = {phase: index for index, phase in enumerate(dict.fromkeys(chain.from_iterable(periods)))}
        times = np.stack(list(map(self.times, phases)))  # (A, m, m)
        table = np.array([[phases[phase] for phase in period] for period in periods])  # (N, T)
        steps = self._compute * (np.array(worker_steps) if len(worker_steps) == len(self._compute) else worker_steps[0])
        arrival = ends = np.zeros((len(table), len(steps)))
        for repeat in range(2 * WARM):
            ends = arrival if repeat == WARM else ends
            for column in table.T:
                arrival = (times[column] + (arrival + steps)[:, None]).max(axis=2)  # (N, m)
        rounds = WARM * table.shape[1] * max(worker_steps)
        return np.asarray((arrival.max(axis=1) - ends.max(axis=1)) / rounds)

    @cached_property
    def _compute(self) -> Floats:
        """Return the compute seconds per step of each local rank, or only of the slowest if there are > MAX_TIMED."""
        seconds = ComputeTimes.of(self.problem.hardware).fixed(self.problem.cluster.num_workers)
        return seconds[: self.num_ranks] if self.num_ranks <= MAX_TIMED else seconds.max(keepdims=True)

    def times(self, phase: RulePhase) -> Floats:
        """Return the seconds that a worker (row) communicates after the worker of the column has arrived.

        The shape is (m, m) for the m entries of `_compute`; -inf for two workers that share no group.
        """
        if phase not in self._known:
            count, found = len(self._compute), self.problem.link_loads(phase, self.radices).seconds()
            groups = [list(block.local) for block in phase]
            seconds = found[np.unique(self._block_of(phase, len(found)), return_index=True)[1]]  # equal in a block
            if count == 1:
                groups, seconds = [[0]], seconds.max(initial=0.0, keepdims=True)
            times = np.where(np.eye(count, dtype=bool), 0.0, -np.inf)
            for group, spent in zip(groups, seconds.tolist(), strict=True):
                times[np.ix_(group, group)] = spent
            self._known[phase] = times
        return self._known[phase]

    def _block_of(self, phase: RulePhase, num_groups: int) -> npt.NDArray[np.int64]:
        """Return the index in `phase` of the block of each group of `Problem.link_loads`, shape (num_groups,)."""
        order = np.arange(len(phase))
        if not self.radices:
            return np.array(sorted(order, key=lambda b: phase[b].local), dtype=np.int64)
        if num_groups == len(phase):
            return order
        return np.repeat(order, [prod(self.radices) * len(b.local) // self.size(b) for b in phase])

    def everybody(self) -> RulePhase | None:
        """Return the phase that averages over all workers; None if a limit forbids it."""
        return next(((b,) for b in self.blocks if self.size(b) == self.problem.cluster.num_workers), None)

    def schedule(self, period: Period, worker_steps: Sequence[int]) -> Schedule:
        """Return the schedule of a period, with a descriptive name such as `node-every-2-all-every-6`."""
        rounds: dict[str, list[int]] = {}
        nodes = 1 if self.radices else self.problem.cluster.num_nodes
        for t, phase in ((t, phase) for t, phase in enumerate(period) if phase):
            largest = max(map(self.size, phase))
            whole = sum(len(block.local) - 1 for block in phase) == self.num_ranks - nodes
            word = "node" if whole else f"node-parts-of-{largest}"
            if self.crosses(phase):
                word = f"groups-of-{largest}"
            rounds.setdefault("all" if largest == self.problem.cluster.num_workers else word, []).append(t)
        parts = []
        for word, steps in rounds.items():
            gaps = set(np.diff([*steps, steps[0] + len(period)]).tolist())
            parts.append(f"{word}-every-{gaps.pop()}" if len(gaps) == 1 else f"{word}-{len(steps)}-of-{len(period)}")
        explicit = () if self.radices else tuple(map(self.problem.groups, period))
        phases = RulePhases(self.radices, period) if self.radices else GroupPhases(explicit)
        per_round = tuple(worker_steps) if len(set(worker_steps)) > 1 else worker_steps[0]
        return Schedule("-".join(parts), self.problem.cluster, StaticGroups(phases=phases, steps_per_round=per_round))

    def aligned(self) -> Iterator[Period]:
        """Yield periods of explicit groups: some ranks of each node in turn average across nodes, the rest inside.

        They differ in how many nodes a group crosses, and how many local ranks it has of each.
        """
        cluster, most = self.problem.cluster, self.problem.limits.max_group or self.problem.cluster.num_workers
        if self.radices or self.num_ranks > MAX_PLACES:
            return
        nodes = [list(cluster.workers_of(v)) for v in range(cluster.num_nodes)]

        def phase(groups: Iterable[Sequence[int]]) -> RulePhase:
            return tuple(Block(tuple(sorted(group))) for group in groups if len(group) > 1)

        inside = phase(part for node in nodes for part in _split(node, most))
        longest, wide = max(map(len, nodes)), {*range(2, min(len(nodes), MAX_WIDTH) + 1), len(nodes)} - {1}
        for width, k in ((w, k) for w in sorted(wide) for k in range(1, longest + 1) if w * k <= most):
            apart = sorted(range(len(nodes)), key=lambda v: v % -(-len(nodes) // width))
            turns = width if k == 1 and width < len(nodes) else 1
            for order in (apart, *([*range(start, len(nodes)), *range(start)] for start in range(turns))):
                period = []
                for r in range(0, longest, k):
                    across = [[rank for v in part for rank in nodes[v][r : r + k]] for part in _split(order, width)]
                    crossing = {rank for group in across for rank in group}
                    rest = ([rank for rank in node if rank not in crossing] for node in nodes)
                    period.append(phase([*across, *(part for row in rest for part in _split(row, most))]))
                yield (*period, inside)

    def matrices(self, phases: Period) -> Floats:
        """Return the mixing matrices of A phases for each class (`Space`), shape (A, C, G, G).

        Those of class 0 are less the matrix that averages all workers.
        """
        view = RuleView(self.radices, phases, self.num_ranks)
        matrices = Operators.of_rule(view, list(every_class(len(self.radices)))).matrices()
        matrices[:, 0] -= 1 / self.num_ranks
        return matrices

    def space(self, worker_steps: Sequence[int]) -> Space:
        """Return the `Space` for rounds with these steps of each worker (ignored for a rule: one step per round)."""
        classes, eye = list(every_class(len(self.radices))), np.eye(self.num_ranks)
        center = eye - 1 / self.num_ranks  # the mean lives in the class of the empty set alone
        weight = np.array([prod(self.radices[d] - 1 for d in c) for c in classes]) / self.problem.cluster.num_workers
        if self.radices:
            return Space(weight, np.stack([eye if c else center for c in classes]))
        counts = np.array(worker_steps, dtype=np.int64)
        steps = RoundSteps.of(counts, counts[None] / 1, Averaging.MEAN, int(counts.max()))
        inner = float(steps.partial.sum()) * (1 - 1 / self.num_ranks) / (self.num_ranks * steps.instants)
        return Space(weight, (center @ np.diag(steps.noise[0]) @ center)[None], inner, steps.instants)


def _split(row: Sequence[int], size: int) -> list[Place]:
    return [tuple(row[start : start + size]) for start in range(0, len(row), size)]


def choices_of(problem: Problem) -> list[Choices]:
    """Return the sets of blocks to search: rules for even clusters; explicit groups for uneven or small ones.

    The result is empty if the cluster is too large for either.
    """
    rules = [rule_blocks(problem)] if node_radices(problem.cluster) else []
    most = MAX_EXPLICIT_WORKERS
    if rules:
        most = MAX_PLACES if problem.limits.choose_groups else FEW_WORKERS
    return [*rules, *([explicit_groups(problem)] if problem.cluster.num_workers <= most else [])]


def rule_blocks(problem: Problem) -> Choices:
    """Return the blocks of the cluster's rules whose groups keep the limit `max_group`."""
    size, radices = problem.cluster.workers_per_node, node_radices(problem.cluster)
    assert size is not None, "rules need a regular cluster"
    unit = next(d for d in divisors(size) if size // d <= MAX_RULE_PLACES)
    places = tuple(_split(range(size), unit))
    most, digits = problem.limits.max_group or problem.cluster.num_workers, list(every_class(len(radices)))
    sets: Iterable[tuple[Place, ...]] = chain(*(combinations(places, k) for k in range(1, len(places) + 1)))
    if (2 ** len(places) - 1) * len(digits) > MAX_BLOCKS:
        sets = (places[start : start + k] for k in divisors(len(places)) for start in range(0, len(places), k))
    blocks = [Block(tuple(chain(*chosen)), across) for chosen in sets for across in digits]
    every = Choices(problem, radices, places, tuple(blocks), is_complete=False)
    return replace(every, blocks=tuple(b for b in blocks if b.makes_groups and every.size(b) <= most))


def explicit_groups(problem: Problem) -> Choices:
    """Return all small groups, at most MAX_GROUPS of them, and larger groups of nodes, whole or in part."""
    cluster, n = problem.cluster, problem.cluster.num_workers
    most, unit = problem.limits.max_group or n, -(-n // MAX_PLACES)
    nodes = [_split(cluster.workers_of(v), unit) for v in range(cluster.num_nodes)]  # the places of each node
    places = [*chain(*nodes)]
    listed, size = 0, 1
    while size * unit < most and listed + comb(len(places), size + 1) <= MAX_GROUPS:
        size += 1
        listed += comb(len(places), size)
    is_complete = size >= most and unit == 1
    found = [group for k in range(1, size + 1) for group in combinations(places, k)]
    found += [] if is_complete else _groups_of_nodes(problem, nodes, size)
    groups = {tuple(sorted(chain(*group))) for group in found}
    kept = sorted((group for group in groups if 2 <= len(group) <= most), key=lambda group: (len(group), group))
    return Choices(problem, (), tuple(places), tuple(map(Block, kept)), is_complete)


def _groups_of_nodes(problem: Problem, nodes: list[list[Place]], size: int) -> Iterator[tuple[Place, ...]]:
    """Yield groups, as tuples of places: nodes and sets of nodes, whole or only their first local ranks, and parts.

    `nodes` has the places of each node. Groups of up to `size` places are listed by the caller.
    """
    every = range(len(nodes))
    ranks = [[node[r] for node in nodes if r < len(node)] for r in range(max(map(len, nodes)))]
    below = [switch.nodes for switch in problem.hardware.shared_switches(len(nodes))]
    some = (chosen for k in every[2:] if comb(len(nodes), k) <= MAX_PLACES // 2 for chosen in combinations(every, k))
    for chosen in (every, *((v,) for v in every), *below, *some):
        for k in range(1, len(ranks) + 1):
            yield tuple(place for v in chosen for place in nodes[v][:k])
    for row in (*nodes, *ranks):
        yield from (tuple(row[len(row) // 2 :]), tuple(row[: (len(row) + 1) // 2]))
        for k in range(size + 1, len(row) + 1):
            if comb(len(row), k) <= MAX_GROUPS // (len(nodes) + len(ranks)):
                yield from combinations(row, k)
