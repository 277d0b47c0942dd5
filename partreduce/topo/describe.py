"""What a schedule does, as one line in the field's words: `describe(schedule)`.

Each kind of strategy has a function that gives the parts of the line, the most important first. A part may have a
shorter form; the line takes long forms as far as they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from partreduce.topo.argument_types import check_arguments
from partreduce.topo.cluster import Cluster
from partreduce.topo.graphs import classic, directed, hop
from partreduce.topo.graphs.base import Graph
from partreduce.topo.phase import ONE, Phase
from partreduce.topo.round import Round
from partreduce.topo.rule import RulePhase, RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import CodecScope, DelayedAveraging, GradientBuckets, GradientReduction, Pipeline
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.dynamic_groups import DynamicGroups, GroupSplit, SlowWorkerPolicy
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap, UpdateOrder
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import (
    LateGradientPolicy,
    PartialAllReduce,
    QuorumStart,
)
from partreduce.topo.strategies.server import Server
from partreduce.topo.strategies.static import GroupPhases, RulePhases, StaticGroups

LONGEST = 100
"""Characters of a line at most."""
SHORT = 44
"""Characters of the groups of a schedule that has other settings, too, at most."""
MOST_LEVELS = 3
"""Kinds of groups that are named one by one."""

Part = tuple[str, ...]
"""A clause, and shorter forms of it."""


@check_arguments
def describe(schedule: Schedule) -> str:
    """Say what a schedule averages and when, in one line of at most 100 characters.

    The failure plan and how sums travel (but for a codec) are left out: they change no average.
    """
    parts: list[Part] = [*KINDS[schedule.strategy.kind](schedule), *_settings(schedule)]
    forms = [0] * len(parts)
    for form in range(max(map(len, parts))):
        for place in (0, *range(len(parts) - 1, 0, -1)):
            forms[place] = min(form, len(parts[place]) - 1)
            line = ", ".join(part[number] for part, number in zip(parts, forms, strict=True))
            if len(line) <= LONGEST:
                return line
    return f"{line[: LONGEST - 1]}…"


def _all_reduce(schedule: Schedule) -> list[Part]:
    strategy = schedule.strategy
    sync, every = strategy.sync, _every(schedule)
    if isinstance(sync, PartialAllReduce):
        return _partial(sync, schedule.num_workers)
    if strategy.averages_gradients:
        head = "All-Reduce of gradients in every step"
        return [_same(head + " (Pipe-SGD)" * isinstance(sync, Pipeline))]
    if not strategy.payload.outer.is_plain:
        return [_same(f"DiLoCo: {every}")]
    return [(f"average all workers {every}" + " (local SGD)" * (not strategy.steps_once), f"all workers {every}")]


def _partial(sync: PartialAllReduce, num_workers: int) -> list[Part]:
    if sync.quorum is QuorumStart.SOLO:
        who, name = "the first worker is ready", "eager-SGD solo"
    elif sync.quorum is QuorumStart.MAJORITY:
        who, name = "a random worker is ready", "eager-SGD majority"
    else:
        who, name = f"{sync.quorum} of {num_workers} workers are ready", "eager-SGD"
    parts: list[Part] = [(f"All-Reduce of gradients once {who} ({name})", f"All-Reduce once {who}")]
    if sync.keeps_equal:
        parts.append((f"others up to {sync.staleness} rounds late", f"≤ {sync.staleness} late"))
    else:
        every = sync.synchronize_every
        parts.append(_same(f"newest result only, equalized every {every}" if every else "newest result only"))
    if sync.count is LateGradientPolicy.CALL:
        parts.append(_same("one result a call"))
    return parts + ([_same(f"grace {sync.grace} us")] if sync.grace else [])


def _static(schedule: Schedule) -> list[Part]:
    strategy = schedule.strategy
    assert isinstance(strategy, StaticGroups), "the table names the kind"
    outer, found = strategy.payload.outer, levels(schedule)
    names = {level.what for level in found}
    line = _in_turn(schedule, found) if len(found) <= MOST_LEVELS else _together(schedule, found)
    short = line if len(line) <= SHORT else _together(schedule, found)
    parts: list[Part]
    if outer.is_plain:
        named = ""
        if names == {EVERYONE}:
            named = " (local SGD)" * (not line.endswith(" step"))
        elif names == {IN_NODES, EVERYONE} and strategy.phases.are_plain():
            named = " (hierarchical local SGD)"
        parts = [(f"average {line}{named}", f"average {line}", f"average {short}")]
    else:
        name = "NoLoCo" if outer.has_own_outer_params else "DiLoCo"
        parts = [(f"{name}: {line}", f"{name}: {line}", f"{name}: {short}")]
    if strategy.prologue:
        parts.append((f"first {strategy.prologue} over all workers", f"first {strategy.prologue} over all"))
    factors = _relaxation_factors(strategy)
    if factors:
        parts.append(_same(f"relaxation {', '.join(factors)}" if len(factors) < 3 else f"{len(factors)} relaxations"))
    return parts


EVERYONE, IN_NODES, SOME_NODES = "all workers", "inside each node", "inside some nodes"


class Level(NamedTuple):
    """Groups of one sort: in which rounds of the period they average, and in how many different ways."""

    what: str
    least: int
    size: int
    rounds: tuple[int, ...]
    ways: int


def levels(schedule: Schedule) -> list[Level]:
    """The sorts of rounds of one period, small groups first; rounds in which nobody averages are left out."""
    strategy, cluster = schedule.strategy, schedule.cluster
    assert isinstance(strategy, StaticGroups), "only static groups have levels"
    rounds: dict[tuple[str, int, int], list[int]] = {}
    ways: dict[tuple[str, int, int], set[object]] = {}
    known: dict[object, tuple[str, int, int]] = {}
    phases: Sequence[Phase | RulePhase] = strategy.phases.phases
    for index, phase in enumerate(phases):
        key = _key(phase)
        if key not in known:
            view = strategy.phases.view(cluster)
            shapes = _explicit_shapes(phase, cluster) if isinstance(phase, Phase) else _rule_shapes(index, view)
            known[key] = _sort_of(shapes, cluster)
        if known[key][0]:
            rounds.setdefault(known[key], []).append(index)
            ways.setdefault(known[key], set()).add(key)
    found = [Level(*sort, tuple(at), len(ways[sort])) for sort, at in rounds.items()]
    return sorted(found, key=lambda level: (level.size, level.rounds))


def _key(phase: Phase | RulePhase) -> object:
    if isinstance(phase, Phase):
        return phase.members.tobytes(), phase.offsets.tobytes()
    return frozenset((frozenset(block.local), frozenset(block.across)) for block in phase if block.makes_groups)


class _Shape(NamedTuple):
    """Groups of one shape: workers and nodes of each, whether these have no other workers, and members of all."""

    workers: int
    nodes: int
    whole: bool
    members: int


def _rule_shapes(index: int, view: RuleView | None) -> list[_Shape]:
    assert view is not None, "phases that are no explicit groups are rules"
    return [
        _Shape(
            len(block.local) * view.span(block),
            view.span(block),
            len(block.local) == view.workers_per_node,
            len(block.local) * view.num_nodes,
        )
        for block in view.phases[index]
        if block.makes_groups
    ]


def _explicit_shapes(phase: Phase, cluster: Cluster) -> list[_Shape]:
    """O(members · log)."""
    node_of, node_sizes = cluster.node_of(), cluster.node_sizes()
    found: dict[tuple[int, int, bool], int] = {}
    nodes_of = node_of[phase.members]
    for start, end in zip(phase.offsets[:-1].tolist(), phase.offsets[1:].tolist(), strict=True):
        nodes = np.unique(nodes_of[start:end])
        shape = end - start, len(nodes), int(node_sizes[nodes].sum()) == end - start
        found[shape] = found.get(shape, 0) + shape[0]
    return [_Shape(*shape, members) for shape, members in found.items()]


def _sort_of(shapes: Sequence[_Shape], cluster: Cluster) -> tuple[str, int, int]:
    """What a round averages, and the sizes of its smallest and largest groups; 0 where nobody averages."""
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
    if shape.whole:
        return "of nodes"
    return "across nodes" if shape.workers == shape.nodes else f"on {shape.nodes} nodes"


def _groups(least: int, most: int) -> str:
    if least == most:
        return "pairs" if least == 2 else f"groups of {least}"
    return f"groups of {least} to {most}"


def _in_turn(schedule: Schedule, levels: Sequence[Level]) -> str:
    """Each sort of groups with how often it averages, the unit said once; or all of them as one, if they are many."""
    assert isinstance(schedule.strategy, StaticGroups), "only static groups have levels"
    period = schedule.strategy.period
    if not levels:
        return "no workers"
    words, is_said = [], False
    for level in levels:
        rounds = set(level.rounds)
        for other in levels:  # the average of all is one of each group, too, and that of whole nodes one of each node
            if other.what == EVERYONE or (level.what == IN_NODES and other.what.endswith("of nodes")):
                rounds |= set(other.rounds)
        gap = spacing(rounds, period)
        often = _every(schedule, gap) if gap else f"{len(rounds)} times in {_steps(schedule, period)}"
        if is_said and gap * _length(schedule) > 1:
            often = often.rpartition(" ")[0]
        is_said = is_said or not often.endswith(("step", "round"))
        words.append(f"{level.what} {often}" + (f" ({level.ways} in turn)" if level.ways > 1 else ""))
    return ", ".join(words)


def spacing(rounds: Collection[int], period: int) -> int:
    """Rounds from each of these to the next, where that is always the same; else 0."""
    gap, rest = divmod(period, len(rounds))
    return 0 if rest or any((index + gap) % period not in rounds for index in rounds) else gap


def _together(schedule: Schedule, levels: Sequence[Level]) -> str:
    """All sorts of groups as one, where they are many."""
    assert isinstance(schedule.strategy, StaticGroups), "only static groups have levels"
    if not levels:
        return "no workers"
    groups = _groups(min(level.least for level in levels), max(level.size for level in levels))
    return f"in {groups}, {_count(schedule.strategy.period, 'round')} in turn, {_every(schedule)}"


def _relaxation_factors(strategy: StaticGroups) -> list[str]:
    """The relaxations of its groups, where one is none of a plain mean."""
    if strategy.phases.are_plain():
        return []
    if isinstance(strategy.phases, RulePhases):
        factors = {block.relaxation for phase in strategy.phases.phases for block in phase}
    else:
        assert isinstance(strategy.phases, GroupPhases), "rules, or groups"
        factors = {factor for phase in strategy.phases.phases for factor in phase.relaxation or (ONE,)}
    return [f"{float(factor):.4g}" for factor in sorted(factors)]


def _neighbor(schedule: Schedule) -> list[Part]:
    strategy = schedule.strategy
    assert isinstance(strategy, NeighborAveraging), "the table names the kind"
    distinct = list(dict.fromkeys(strategy.rounds))
    names = list(dict.fromkeys(map(graph_of, distinct)))
    graph = names[0] if len(names) == 1 else "graphs"
    several = "" if len(strategy.rounds) == 1 else f", {len(strategy.rounds)} graphs in turn"
    if isinstance(strategy.sync, IterationGap):
        return [
            (f"neighbor averaging on {graph} {_every(schedule)} (Hop)", f"Hop on {graph} {_every(schedule)}"),
            *_gap(strategy.sync),
        ]
    named = " (D-PSGD)" * (not several)
    return [
        (f"neighbor averaging on {graph}{named} {_every(schedule)}{several}", f"{graph} {_every(schedule)}{several}")
    ]


def _gap(sync: IterationGap) -> list[Part]:
    parts: list[Part] = []
    if sync.max_ig is not None:
        parts.append((f"gap up to {sync.max_ig}", f"gap {sync.max_ig}"))
    if sync.staleness:
        parts.append((f"staleness up to {sync.staleness}", f"stale {sync.staleness}"))
    if sync.has_backup:
        spare = str(sync.backup) if isinstance(sync.backup, int) else f"{min(sync.backup)}-{max(sync.backup)}"
        parts.append(_same(f"backup {spare}"))
    if sync.skip is not None:
        when = f" from {sync.skip.behind} behind" if sync.skip.behind > 2 else ""
        when += f", {sync.skip.trigger} at least" if sync.skip.trigger > 2 else ""
        parts.append((f"skips up to {sync.skip.limit}{when}", f"skip {sync.skip.limit}{when}"))
    parts += [_same("notify-ack")] * sync.notify_ack
    parts += [("combine, then adapt", "combine first")] * (sync.update_order is UpdateOrder.DPSGD)
    parts += [_same(f"{sync.weights} weights")] * (sync.weights is not EdgeWeighting.GRAPH)
    return parts


def graph_of(edges: Round) -> str:
    """What a graph is called, with its article; else how many neighbors a worker has."""
    n, count = edges.num_workers, len(edges)
    shifts = np.unique((edges.targets.astype(np.int64) - edges.sources) % n) if count else np.zeros(0, dtype=np.int64)
    name = ""
    if not count:
        name = "no edges"
    elif count == n * (n - 1):
        name = "a complete graph"
    elif len(shifts) == 1 and count == n:
        name = f"a directed ring (shift {shifts[0]})" if shifts[0] > 1 else "a directed ring"
    else:
        for known, builds in GRAPHS.items():
            if any(
                len(graph) == count
                and np.array_equal(graph.sources, edges.sources)
                and np.array_equal(graph.targets, edges.targets)
                for graph in builds(n)
            ):
                name = known
                break
    degrees = np.bincount(edges.targets, minlength=n)
    if not name:
        low, high = int(degrees.min()), int(degrees.max())
        named = f"{low}" if low == high else f"{low} to {high}"
        kind = "" if Graph(n, edges.sources, edges.targets).is_undirected else "directed "
        name = f"a {kind}graph of {named} neighbors"
    usual = 1 / (1 + np.maximum(degrees[edges.targets], degrees[edges.sources])) if count else np.zeros(0)
    if np.allclose(edges.edge_weights(), usual, rtol=1e-6):
        return name
    if len(edges.weights) == 1:
        return f"{name}, weight {float(edges.weights[0]):.4g}"
    return f"{name}, {len(edges.weights)} weights"


def _grids(of: Callable[[int, int], Graph], least: int) -> Callable[[int], list[Graph]]:
    return lambda n: [of(rows, n // rows) for rows in range(least, n // least + 1) if n % rows == 0]


GRAPHS: dict[str, Callable[[int], list[Graph]]] = {
    "a ring": lambda n: [classic.ring(n)],
    "a star": lambda n: [classic.star(n)],
    "a ring with opposite workers": lambda n: [hop.ring_based(n)] if n % 2 == 0 and n >= 4 else [],
    "a double ring": lambda n: [hop.double_ring(n)] if n % 4 == 0 and n >= 8 else [],
    "a hypercube": lambda n: [classic.hypercube(n.bit_length() - 1)] if n & (n - 1) == 0 else [],
    "an exponential graph": lambda n: [directed.exponential(n)],
    "a torus": _grids(classic.torus, 3),
    "a grid": _grids(classic.grid, 2),
}
"""Graphs with a name, and how they are built for so many workers."""


def _dynamic(schedule: Schedule) -> list[Part]:
    strategy = schedule.strategy
    assert isinstance(strategy, DynamicGroups), "the table names the kind"
    groups, every = _groups(strategy.group_size, strategy.group_size), _every(schedule)
    what = {
        GroupSplit.RANDOM: f"random {groups} on request",
        GroupSplit.GLOBAL: f"{groups} of all idle workers on request",
        GroupSplit.INTER_INTRA: f"{groups} on request, across nodes, then inside",
        GroupSplit.NODE_THEN_ALL: f"idle workers of a node on request, all every {strategy.all_every} rounds",
    }[strategy.division]
    parts: list[Part] = [(f"{what} {every} (Prague)", f"{what} {every}")]
    if strategy.slow_threshold is not None:
        late = strategy.slow_threshold
        parts.append((f"without workers {late} rounds behind", f"slow: {late}"))
    if strategy.slow_worker_policy is not SlowWorkerPolicy.PAIR_LOCALLY:
        parts.append(_same(f"slow workers: {str(strategy.slow_worker_policy).replace('_', ' ')}"))
    if strategy.max_known != DynamicGroups.__dataclass_fields__["max_known"].default:
        limit = "any number of groups" if strategy.max_known is None else f"at most {strategy.max_known} groups each"
        parts.append(_same(limit))
    return parts


def _pairwise(schedule: Schedule) -> list[Part]:
    strategy = schedule.strategy
    assert isinstance(strategy, Pairwise), "the table names the kind"
    active = f"{len(strategy.active)} of {schedule.num_workers} workers ask"
    edges = "" if strategy.edges is None else f" along {len(strategy.edges)} edges"
    return [
        (f"random pairs average {_every(schedule)} (AD-PSGD)", f"AD-PSGD {_every(schedule)}"),
        _same(active + edges),
    ]


def _server(schedule: Schedule) -> list[Part]:
    strategy = schedule.strategy
    assert isinstance(strategy, Server), "the table names the kind"
    hosts = f"worker {strategy.hosts[0]}" if len(strategy.hosts) == 1 else f"{len(strategy.hosts)} workers"
    if strategy.synchronous:
        what = "gradients" if strategy.averages_gradients else "parameters"
        return [(f"synchronous parameter server on {hosts}, mean of {what} {_every(schedule)}", f"server on {hosts}")]
    parts: list[Part] = [
        (f"asynchronous parameter server on {hosts}, {_every(schedule)}", f"asynchronous server on {hosts}")
    ]
    if strategy.staleness is not None:
        parts.append((f"workers at most {strategy.staleness} rounds apart", f"≤ {strategy.staleness} apart"))
    return parts


KINDS: dict[str, Callable[[Schedule], list[Part]]] = {
    "allreduce": _all_reduce,
    StaticGroups.kind: _static,
    NeighborAveraging.kind: _neighbor,
    DynamicGroups.kind: _dynamic,
    Pairwise.kind: _pairwise,
    Server.kind: _server,
}
"""By kind of strategy, the parts of the line that are its own."""


def _settings(schedule: Schedule) -> list[Part]:
    """What every kind may have: unequal steps, delay, outer steps, fragments, codec, tables."""
    strategy = schedule.strategy
    sync, transport, payload, outer = strategy.sync, strategy.transport, strategy.payload, strategy.payload.outer
    parts = _unequal_steps(schedule)
    if isinstance(sync, DelayedAveraging):
        parts.append(("applied one round late", "one round late"))
    if isinstance(sync, Pipeline):
        parts.append(_same(f"applied {_count(sync.lag, 'step')} late"))
        parts += [_same(f"first {sync.warm_up} synchronous")] * bool(sync.warm_up)
        parts += [_same("summed")] * (sync.total is GradientReduction.SUM)
    if not outer.is_plain:
        parts += [_same(f"lr {float(outer.lr):g}")] * (float(outer.lr) != 0.7)
        if outer.momentum:
            parts.append(_same(f"{'Nesterov' if outer.nesterov else 'momentum'} {float(outer.momentum):g}"))
    if payload.num_fragments > 1:
        parts.append((f"{payload.num_fragments} fragments in turn", f"{payload.num_fragments} fragments"))
    if sync.late_steps:
        parts.append((f"merged {_count(sync.late_steps, 'step')} late", f"{sync.late_steps} late"))
    if sync.kept:
        parts.append((f"keeps {float(sync.kept):g} of its own", f"keeps {float(sync.kept):g}"))
    if transport.codec.rounds:
        where = " between nodes" * (transport.where is CodecScope.ACROSS_NODES)
        parts.append(_same(f"{transport.codec}{where}"))
        parts += [_same(f"blocks of {transport.block}")] * (transport.codec.has_blocks and transport.block != 256)
        parts += [_same("error feedback")] * transport.error_feedback
    if transport.gradient_buckets is GradientBuckets.PER_LAYER:
        parts.append(("sent layer by layer", "by layer"))
    if payload.apart:
        parts.append((f"tables {payload.in_words} (Parallax)", f"tables {payload.in_words}"))
        parts += [_same("tables summed")] * (not payload.average) + [_same("summed")] * (not payload.average_dense)
    if strategy.averaging is Averaging.STEP_NORMALIZED:
        parts.append(("progress per step", "normalized"))
    return parts


def _unequal_steps(schedule: Schedule) -> list[Part]:
    if schedule.has_one_steps_per_round:
        return []
    steps, most = schedule.worker_steps(), schedule.largest_steps_per_round
    slow = np.flatnonzero(steps < most).tolist()
    if len(slow) == 1:
        return [(f"worker {slow[0]} takes {steps[slow[0]]} of {most}", f"worker {slow[0]}: {steps[slow[0]]} of {most}")]
    least, more = int(steps.min()), int(steps[slow].max())
    takes = f"{least}" if least == more else f"{least} to {more}"
    return [(f"{len(slow)} slower workers take {takes} of {most}", f"{len(slow)} slower: {takes} of {most}")]


def _length(schedule: Schedule) -> int:
    """Steps of a round, of the workers that take most."""
    return schedule.largest_steps_per_round


def _every(schedule: Schedule, rounds: int = 1) -> str:
    steps = rounds * _length(schedule)
    return "every step" if steps == 1 else f"every {steps} steps"


def _steps(schedule: Schedule, rounds: int) -> str:
    return _count(rounds * _length(schedule), "step")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _same(words: str) -> Part:
    return (words,)
