"""Describe a schedule in one line, in the field's terms: `describe(schedule)`.

Each kind of strategy has a function that yields the parts of the line, the most important first. A part may have
shorter forms; the line takes the long ones as far as they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from partreduce.topo.argument_types import check_arguments
from partreduce.topo.cluster import Cluster
from partreduce.topo.graphs import Graph, named
from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.rule import RulePhase, RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import (
    CodecScope,
    DelayedAveraging,
    GradientBuckets,
    GradientReduction,
    Pipeline,
    Transport,
)
from partreduce.topo.strategies.base import Averaging, Strategy
from partreduce.topo.strategies.dynamic_groups import DynamicGroups, GroupSplit, SlowWorkerPolicy
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap, UpdateOrder
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import LateGradientPolicy, PartialAllReduce, QuorumStart
from partreduce.topo.strategies.server import Server
from partreduce.topo.strategies.static import StaticGroups, partition_of

LONGEST = 100
"""The largest number of characters of a line."""
SHORT = 44
"""The most characters for the list of groups in the short form of a `static` schedule's line."""
PUBLISHED_RATE = 0.7
"""DiLoCo's outer learning rate; the line names only other rates."""
MOST_LEVELS = 3
"""The largest number of kinds of groups (`Level`) that a line names one by one."""

Part = str | tuple[str, ...]
"""A part of the line: one text, or a text followed by shorter forms of it."""


@check_arguments
def describe(schedule: Schedule) -> str:
    """Describe what a schedule averages and when, in one line of at most 100 characters.

    The failure plan and the all-reduce algorithm are left out: they change no average.

    Args:
        schedule: any Schedule.

    Returns:
        One line without a line break.
    """
    strategy = schedule.strategy
    found = [*KINDS[strategy.kind](schedule, strategy), *_delays(schedule, strategy), *_describe_codec(strategy)]
    parts = [(part,) if isinstance(part, str) else part for part in found]
    shown = [part[0] for part in parts]
    for form in range(max(map(len, parts))):
        for place in (0, *range(len(parts) - 1, 0, -1)):
            shown[place] = parts[place][min(form, len(parts[place]) - 1)]
            if len(line := ", ".join(shown)) <= LONGEST:
                return line
    return f"{line[: LONGEST - 1]}…"


def _all_reduce(schedule: Schedule, strategy: AllReduce) -> Iterator[Part]:
    sync, every = strategy.sync, _every(schedule)
    if isinstance(sync, PartialAllReduce):
        yield from _partial(sync, schedule.num_workers)
    elif strategy.averages_gradients:
        yield "All-Reduce of gradients in every step" + " (Pipe-SGD)" * isinstance(sync, Pipeline)
    elif not strategy.payload.outer.is_plain:
        yield f"DiLoCo: {every}"
    else:
        yield f"average all workers {every}" + " (local SGD)" * (not strategy.steps_once), f"all workers {every}"


def _partial(sync: PartialAllReduce, num_workers: int) -> Iterator[Part]:
    who, name = f"{sync.quorum} of {num_workers} workers are ready", "eager-SGD"
    if isinstance(sync.quorum, QuorumStart):
        first = "the first" if sync.quorum is QuorumStart.SOLO else "a random"
        who, name = f"{first} worker is ready", f"eager-SGD {sync.quorum}"
    yield f"All-Reduce of gradients once {who} ({name})", f"All-Reduce once {who} ({name})", f"All-Reduce once {who}"
    if sync.keeps_equal:
        yield f"others up to {sync.staleness} rounds late", f"≤ {sync.staleness} late"
    else:
        every = sync.synchronize_every
        yield "newest result only" + (f", equalized every {every}" if every else "")
    if sync.count is LateGradientPolicy.CALL:
        yield "one result a call"
    if sync.grace:
        yield f"grace {sync.grace} us"


def _static(schedule: Schedule, strategy: StaticGroups) -> Iterator[Part]:
    outer, found = strategy.payload.outer, levels(schedule)
    names = {level.what for level in found}
    together = _together(schedule, found)
    line = _in_turn(schedule, found) if len(found) <= MOST_LEVELS else together
    short = line if len(line) <= SHORT else together
    if not outer.is_plain:
        name = "NoLoCo" if outer.has_own_outer_params else "DiLoCo"
        yield f"{name}: {line}", f"{name}: {line}", f"{name}: {short}"
    else:
        named = ""
        if names == {EVERYONE}:
            named = " (local SGD)" * (not line.endswith(" step"))
        elif names == {IN_NODES, EVERYONE} and strategy.phases.are_plain():
            named = " (hierarchical local SGD)"
        yield f"average {line}{named}", f"average {line}", f"average {short}"
    if strategy.prologue:
        yield f"first {strategy.prologue} over all workers", f"first {strategy.prologue} over all"
    if not strategy.phases.are_plain():
        factors = [f"{float(factor):.4g}" for factor in sorted(strategy.phases.relaxations())]
        yield f"relaxation {', '.join(factors)}" if len(factors) < 3 else f"{len(factors)} relaxations"


EVERYONE, IN_NODES, SOME_NODES = "all workers", "inside each node", "inside some nodes"


class Level(NamedTuple):
    """One kind of averaging in a period, such as "inside each node", and the rounds that do it.

    `what` is its text in a description, `least` and `size` are the sizes of its smallest and largest group, `rounds`
    the indices of its rounds in the period, `ways` the number of different partitions into groups among these rounds.
    """

    what: str
    least: int
    size: int
    rounds: tuple[int, ...]
    ways: int


def levels(schedule: Schedule) -> list[Level]:
    """Return a `Level` for each kind of averaging in a period of a `static` schedule, in ascending order of group size.

    Rounds in which no worker averages belong to no level.
    """
    strategy, cluster = schedule.strategy, schedule.cluster
    assert isinstance(strategy, StaticGroups), "only static groups have levels"
    rounds: dict[tuple[str, int, int], list[int]] = {}
    ways: dict[tuple[str, int, int], set[object]] = {}
    known: dict[object, tuple[str, int, int]] = {}
    phases: Sequence[Phase | RulePhase] = strategy.phases.phases
    view = strategy.phases.view(cluster)
    for index, phase in enumerate(phases):
        key = _key(phase)
        if key not in known:
            known[key] = _sort_of(_shapes(phase, cluster, view), cluster)
        if known[key][0]:
            rounds.setdefault(known[key], []).append(index)
            ways.setdefault(known[key], set()).add(key)
    found = [Level(*sort, tuple(at), len(ways[sort])) for sort, at in rounds.items()]
    return sorted(found, key=lambda level: (level.size, level.rounds))


def _key(phase: Phase | RulePhase) -> object:
    if isinstance(phase, Phase):
        return phase.members.tobytes(), phase.offsets.tobytes()
    return partition_of(phase)


class _Shape(NamedTuple):
    """Groups of one round that have the same shape.

    Each has `workers` workers on `nodes` nodes; `whole`: it has all workers of these nodes. `members` counts the
    workers of all these groups together.
    """

    workers: int
    nodes: int
    whole: bool
    members: int


def _shapes(phase: Phase | RulePhase, cluster: Cluster, view: RuleView | None) -> list[_Shape]:
    """Return the shapes of a round's groups: each once for explicit groups, one per block for a rule's phase.

    `view` is the rule to which the phase belongs, None for explicit groups, which take O(members log members).
    """
    if not isinstance(phase, Phase):
        assert view is not None, "phases that are no explicit groups are rules"
        of = [(len(block.local), view.span(block)) for block in phase if block.makes_groups]
        per_node, num_nodes = view.workers_per_node, view.num_nodes
        return [_Shape(local * span, span, local == per_node, local * num_nodes) for local, span in of]
    sizes, node_sizes = phase.sizes, cluster.node_sizes()
    group = np.repeat(np.arange(len(phase)), sizes)
    pairs = np.unique(group * cluster.num_nodes + cluster.node_of()[phase.members])  # (group, node) incidences
    group, node = np.divmod(pairs, cluster.num_nodes)
    nodes, all_of_them = np.bincount(group), np.bincount(group, node_sizes[node])
    rows, counts = np.unique(np.stack([sizes, nodes, all_of_them == sizes], axis=1), axis=0, return_counts=True)
    return [
        _Shape(size, across, bool(whole), size * count)
        for (size, across, whole), count in zip(rows.tolist(), counts.tolist(), strict=True)
    ]


def _sort_of(shapes: Sequence[_Shape], cluster: Cluster) -> tuple[str, int, int]:
    """Return the text of a round's groups, such as "all workers", and the sizes of the smallest and the largest.

    `shapes` are those of the round's groups; without any the result is ("", 0, 0).
    """
    if not shapes:
        return "", 0, 0
    n, sizes = cluster.num_workers, cluster.node_sizes()
    flat = cluster.num_nodes == 1 or int(sizes.max()) == 1
    places: dict[str, list[_Shape]] = {}
    for shape in shapes:
        places.setdefault(_place(shape, cluster, flat=flat), []).append(shape)
    words = []
    for place, here in sorted(places.items(), key=lambda one: max(shape.workers for shape in one[1])):
        if place == EVERYONE:
            words.append(EVERYONE)
        elif place == IN_NODES:
            lonely = int((sizes == 1).sum())
            everywhere = sum(shape.members for shape in here) == n - lonely or len(places) > 1
            words.append(IN_NODES if everywhere else SOME_NODES)
        else:
            counts = [shape.nodes if place == "of nodes" else shape.workers for shape in here]
            words.append(" ".join(filter(None, ("in", _groups(min(counts), max(counts)), place))))
    idle = n - sum(shape.members for shape in shapes)
    skip = f" ({idle} skip)" if idle and words not in ([IN_NODES], [SOME_NODES]) else ""
    workers = [shape.workers for shape in shapes]
    return " and ".join(words) + skip, min(workers), max(workers)


def _place(shape: _Shape, cluster: Cluster, *, flat: bool) -> str:
    if shape.workers == cluster.num_workers:
        return EVERYONE
    if flat:
        return ""
    if shape.nodes == 1:
        return IN_NODES if shape.whole else "inside nodes"
    return "of nodes" if shape.whole else "across nodes"


def _groups(least: int, most: int) -> str:
    if least == most:
        return "pairs" if least == 2 else f"groups of {least}"
    return f"groups of {least} to {most}"


def _in_turn(schedule: Schedule, levels: Sequence[Level]) -> str:
    """Return how often each kind of averaging happens: "inside each node every 3 steps, all workers every 27"."""
    assert isinstance(schedule.strategy, StaticGroups), "only static groups have levels"
    period = schedule.strategy.period
    if not levels:
        return "no workers"
    words, is_said = [], False
    for level in levels:
        rounds = set(level.rounds)
        for other in levels:  # an average over all workers, or over whole nodes, also averages each group inside
            if other.what == EVERYONE or (level.what == IN_NODES and other.what.endswith("of nodes")):
                rounds |= set(other.rounds)
        gap = spacing(rounds, period)
        steps = schedule.largest_steps_per_round
        often = _every(schedule, gap) if gap else f"{len(rounds)} times in {_count(period * steps, 'step')}"
        if is_said and gap * steps > 1:
            often = often.rpartition(" ")[0]
        is_said = is_said or not often.endswith("step")
        words.append(f"{level.what} {often}" + (f" ({level.ways} in turn)" if level.ways > 1 else ""))
    return ", ".join(words)


def spacing(rounds: Collection[int], period: int) -> int:
    """Return the distance between successive `rounds`, indices in a period that repeats; 0 if distances differ."""
    gap, rest = divmod(period, len(rounds))
    return 0 if rest or any((index + gap) % period not in rounds for index in rounds) else gap


def _together(schedule: Schedule, levels: Sequence[Level]) -> str:
    assert isinstance(schedule.strategy, StaticGroups), "only static groups have levels"
    if not levels:
        return "no workers"
    groups = _groups(min(level.least for level in levels), max(level.size for level in levels))
    return f"in {groups}, {_count(schedule.strategy.period, 'round')} in turn, {_every(schedule)}"


def _neighbor(schedule: Schedule, strategy: NeighborAveraging) -> Iterator[Part]:
    names = list(dict.fromkeys(map(graph_of, dict.fromkeys(strategy.rounds))))
    graph, every, count = names[0] if len(names) == 1 else "graphs", _every(schedule), len(strategy.rounds)
    if isinstance(strategy.sync, IterationGap):
        yield f"neighbor averaging on {graph} {every} (Hop)", f"Hop on {graph} {every}"
        yield from _gap(strategy.sync)
    elif count == 1:
        yield f"neighbor averaging on {graph} (D-PSGD) {every}", f"{graph} {every}"
    else:
        yield f"neighbor averaging on {graph} {every}, {count} graphs in turn", f"{graph} {every}, {count} in turn"


def _gap(sync: IterationGap) -> Iterator[Part]:
    if sync.max_ig is not None:
        yield f"gap up to {sync.max_ig}", f"gap {sync.max_ig}"
    if sync.staleness:
        yield f"staleness up to {sync.staleness}", f"stale {sync.staleness}"
    if sync.has_backup:
        yield f"backup {sync.backup if isinstance(sync.backup, int) else f'{min(sync.backup)}-{max(sync.backup)}'}"
    if sync.skip is not None:
        when = f" from {sync.skip.behind} behind" if sync.skip.behind > 2 else ""
        when += f", {sync.skip.trigger} at least" if sync.skip.trigger > 2 else ""
        yield f"skips up to {sync.skip.limit}{when}", f"skip {sync.skip.limit}{when}"
    if sync.notify_ack:
        yield "notify-ack"
    if sync.update_order is UpdateOrder.DPSGD:
        yield "combine, then adapt", "combine first"
    if sync.weights is not EdgeWeighting.GRAPH:
        yield f"{sync.weights} weights"


def graph_of(edges: Round) -> str:
    """Return the name of a round's graph, such as "a ring", with its weights unless they are Metropolis weights.

    A graph without a name is described by its number of neighbors.
    """
    n, count = edges.num_workers, len(edges)
    if not count:
        return "no edges"
    shifts, degrees = np.unique((edges.targets - edges.sources) % n), np.bincount(edges.targets, minlength=n)
    ends = edges.sources.tobytes(), edges.targets.tobytes()
    if count == n * (n - 1):
        name = "a complete graph"
    elif len(shifts) == 1 and count == n:
        name = "a directed ring" + (f" (shift {shifts[0]})" if shifts[0] > 1 else "")
    else:
        low, high = int(degrees.min()), int(degrees.max())
        kind = "" if Graph(n, edges.sources, edges.targets).is_undirected else "directed "
        named = (
            known
            for known, builds in GRAPHS.items()
            if any((graph.sources.tobytes(), graph.targets.tobytes()) == ends for graph in builds(n))
        )
        name = next(named, f"a {kind}graph of {low if low == high else f'{low} to {high}'} neighbors")
    usual = 1 / (1 + np.maximum(degrees[edges.targets], degrees[edges.sources]))  # Metropolis weights
    if np.allclose(edges.edge_weights(), usual, rtol=1e-6):
        return name
    if len(edges.weights) == 1:
        return f"{name}, weight {float(edges.weights[0]):.4g}"
    return f"{name}, {len(edges.weights)} weights"


def _grids(of: Callable[[int, int], Graph], least: int) -> Callable[[int], list[Graph]]:
    return lambda n: [of(rows, n // rows) for rows in range(least, n // least + 1) if n % rows == 0]


GRAPHS: dict[str, Callable[[int], list[Graph]]] = {
    "a ring": lambda n: [named.ring(n)],
    "a star": lambda n: [named.star(n)],
    "a ring with opposite workers": lambda n: [named.ring_based(n)] if n % 2 == 0 and n >= 4 else [],
    "a double ring": lambda n: [named.double_ring(n)] if n % 4 == 0 and n >= 8 else [],
    "a hypercube": lambda n: [named.hypercube(n.bit_length() - 1)] if n & (n - 1) == 0 else [],
    "an exponential graph": lambda n: [named.exponential(n)],
    "a torus": _grids(named.torus, 3),
    "a grid": _grids(named.grid, 2),
}
"""For each graph's name, a function that returns all graphs of that name on a given number of workers."""


def _dynamic(schedule: Schedule, strategy: DynamicGroups) -> Iterator[Part]:
    groups, every, late = _groups(strategy.group_size, strategy.group_size), _every(schedule), strategy.slow_threshold
    what = {
        GroupSplit.RANDOM: f"random {groups} on request",
        GroupSplit.GLOBAL: f"{groups} of all idle workers on request",
        GroupSplit.INTER_INTRA: f"{groups} on request, across nodes, then inside",
        GroupSplit.NODE_THEN_ALL: f"idle workers of a node on request, all every {strategy.all_every} rounds",
    }[strategy.division]
    yield f"{what} {every} (Prague)", f"{what} {every}"
    if late is not None:
        yield f"without workers {late} rounds behind", f"slow: {late}"
    if strategy.slow_worker_policy is not SlowWorkerPolicy.PAIR_LOCALLY:
        yield f"slow workers: {str(strategy.slow_worker_policy).replace('_', ' ')}"
    if strategy.max_known is None:
        yield "any number of groups"
    elif strategy.max_known != DynamicGroups().max_known:
        yield f"at most {strategy.max_known} groups each"


def _pairwise(schedule: Schedule, strategy: Pairwise) -> Iterator[Part]:
    every = _every(schedule)
    yield f"random pairs average {every} (AD-PSGD)", f"AD-PSGD {every}"
    edges = "" if strategy.edges is None else f" along {len(strategy.edges)} edges"
    yield f"{len(strategy.active)} of {schedule.num_workers} workers ask{edges}"


def _server(schedule: Schedule, strategy: Server) -> Iterator[Part]:
    hosts = f"worker {strategy.hosts[0]}" if len(strategy.hosts) == 1 else f"{len(strategy.hosts)} workers"
    every, what = _every(schedule), "gradients" if strategy.averages_gradients else "parameters"
    if strategy.synchronous:
        yield f"synchronous parameter server on {hosts}, mean of {what} {every}", f"server on {hosts}, {what} {every}"
    else:
        yield f"asynchronous parameter server on {hosts}, {every}", f"asynchronous server on {hosts}, {every}"
    if strategy.staleness is not None:
        yield f"workers at most {strategy.staleness} rounds apart", f"≤ {strategy.staleness} apart"


KINDS: dict[str, Callable[..., Iterator[Part]]] = {
    AllReduce.kind: _all_reduce,
    StaticGroups.kind: _static,
    NeighborAveraging.kind: _neighbor,
    DynamicGroups.kind: _dynamic,
    Pairwise.kind: _pairwise,
    Server.kind: _server,
}
"""For each kind of strategy, the function that yields the first parts of the line."""


def _delays(schedule: Schedule, strategy: Strategy) -> Iterator[Part]:
    """Yield the parts of the line for any kind: unequal steps per round, delays, outer steps and fragments."""
    sync, payload, outer = strategy.sync, strategy.payload, strategy.payload.outer
    if not schedule.has_one_steps_per_round:
        yield _unequal_steps(schedule)
    if isinstance(sync, DelayedAveraging):
        yield "applied one round late", "one round late"
    if isinstance(sync, Pipeline):
        yield f"applied {_count(sync.lag, 'step')} late"
        if sync.warm_up:
            yield f"first {sync.warm_up} synchronous"
        if sync.total is GradientReduction.SUM:
            yield "summed"
    if not outer.is_plain and float(outer.lr) != PUBLISHED_RATE:
        yield f"lr {float(outer.lr):g}"
    if outer.momentum:
        yield f"{'Nesterov' if outer.nesterov else 'momentum'} {float(outer.momentum):g}"
    if payload.num_fragments > 1:
        yield f"{payload.num_fragments} fragments in turn", f"{payload.num_fragments} fragments"
    if sync.late_steps:
        yield f"merged {_count(sync.late_steps, 'step')} late", f"{sync.late_steps} late"
    if sync.kept:
        yield f"keeps {float(sync.kept):g} of its parameters", f"keeps {float(sync.kept):g}"


def _describe_codec(strategy: Strategy) -> Iterator[Part]:
    """Yield the parts of the line about codecs, gradient buckets, embedding tables and the scaling of averages."""
    transport, payload = strategy.transport, strategy.payload
    if transport.codec.rounds:
        yield f"{transport.codec}" + " between nodes" * (transport.where is CodecScope.ACROSS_NODES)
    if transport.block != Transport().block:
        yield f"blocks of {transport.block}"
    if transport.error_feedback:
        yield "error feedback"
    if transport.gradient_buckets is GradientBuckets.PER_LAYER:
        yield "sent layer by layer", "by layer"
    if payload.apart:
        yield f"tables {payload.in_words} (Parallax)", f"tables {payload.in_words}"
    if not payload.average:
        yield "tables summed"
    if not payload.average_dense:
        yield "summed"
    if strategy.averaging is Averaging.STEP_NORMALIZED:
        yield "progress per step", "normalized"


def _unequal_steps(schedule: Schedule) -> Part:
    steps, most = schedule.worker_steps(), schedule.largest_steps_per_round
    slow = np.flatnonzero(steps < most).tolist()
    least, more = int(steps.min()), int(steps[slow].max())
    takes = f"{least}" if least == more else f"{least} to {more}"
    who, verb, short = f"{len(slow)} slower workers", "take", f"{len(slow)} slower"
    if len(slow) == 1:
        who, verb, short = f"worker {slow[0]}", "takes", f"worker {slow[0]}"
    others = "others take" if len(steps) - len(slow) > 1 else "other takes"
    plain = f"{who} {verb} {takes} step{'s' * (more > 1)}"
    return f"{plain} where the {others} {most}", f"{plain}, {others} {most}", f"{short}: {takes} of {most}"


def _every(schedule: Schedule, rounds: int = 1) -> str:
    steps = rounds * schedule.largest_steps_per_round
    return "every step" if steps == 1 else f"every {steps} steps"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
