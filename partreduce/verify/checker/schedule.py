"""Reading a schedule: what the claims speak about, and the SHA-256 that a certificate must name.

The document is brought into its canonical form (sorted members, shortest numbers, no member that equals its default,
no certificate) and hashed, so that layout and the order of groups in a file do not matter. Whoever computes another
hash has read another schedule; the certificate is then refused before any claim is looked at.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain, repeat
from math import lcm, prod
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from .averages import PLAIN, Average, Edge
from .axes import Sync, read_sync, read_transport
from .events import EventGraph
from .failure_plans import FailurePlan, read_failure_plan
from .kept_gap import KeptGap, event_graph, require_fit
from .quorum import StartedRounds
from .refusal import require
from .strict_json import as_choice, as_integer, as_integers, as_list, as_number, as_object, as_text, shortest
from .tables import Tables, read_payload

LIMIT = 2**31
"""No rank, number of workers, radix or steps_per_round reaches this."""

MAX_PERIOD = 2**18
"""Phases of a period, repetitions counted."""
MAX_UNROLLED = 2**24
"""Ranks that repeated phases stand for in all."""
MAX_COMMON_BITS = 2**14
"""The common denominator of the factors or weights of one phase may have so many bits."""

DEFAULTS: dict[str, object] = {
    "steps_per_round": 1,
    "averaging": "mean",
    "sync": "synchronous",
    "transport": {},
    "prologue": 0,
}


Numbers = dict[str, Any]
"""What is stated of a schedule, by the names of its numbers."""

Mode = Literal["rounds", "gap", "lossy gap", "rounds by quorum", "own outer parameters"]
"""Synchronous, late or in a pipeline; a gap whose reduces take all updates, or some; rounds of all, or of groups; outer
steps of groups, whose rounds are no matrices."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a schedule of any kind may say.

    `worker_steps` holds one number, or one a worker. Where it `averages_gradients` these come late in a `pipeline`
    (empty otherwise); elsewhere parameters are averaged, a round late where `is_late`. `gap` is what workers keep
    that go on by themselves, None in rounds. `tables` go their own way in each step. With `late_steps` a round averages
    what workers had so many steps before its end, where they keep the share `kept` of their own.
    """

    prologue: int
    worker_steps: list[int]
    is_late: bool
    averages_gradients: bool
    pipeline: dict[str, Any]
    is_step_normalized: bool
    transport: dict[str, Any]
    gap: KeptGap | None
    quorum: StartedRounds | None
    tables: Tables
    late_steps: int
    kept: Fraction


@dataclass(frozen=True, kw_only=True)
class Schedule(Options):
    """A schedule in the form `rule`, `groups` (explicit groups) or `graph` (weighted neighbors).

    The first two have `phases` and the third has `rounds`; the other list is empty. Both are where a `quorum` starts
    rounds, since what these sum is decided as the job runs. `radices` are those of a rule. `workers_per_node` is
    0 where nodes are unequal. `nodes` are the nodes as the file lists them, empty where it says only that each has
    `node_size` workers, in the order of ranks.
    """

    form: Literal["rule", "groups", "graph"]
    num_workers: int
    workers_per_node: int
    sha256: str
    nodes: list[list[int]]
    node_size: int
    failure_plan: FailurePlan | None = None
    radices: list[int] = field(default_factory=list)
    phases: list[list[Average]] = field(default_factory=list)
    rounds: list[list[Edge]] = field(default_factory=list)

    @property
    def takes_turns(self) -> bool:
        """Whether what is averaged at the end of a round, of any fragment, lacks the newest steps."""
        return self.tables.num_fragments > 1 or self.late_steps > 0

    @property
    def mode(self) -> Mode:
        """How workers wait for one another, which decides what can be said."""
        if self.quorum is not None:
            return "rounds by quorum"
        if self.gap is None:
            return "own outer parameters" if self.tables.outer.has_own_outer_params else "rounds"
        return "gap" if self.gap.takes_all else "lossy gap"

    @cached_property
    def events(self) -> EventGraph:
        """The events of workers that keep a gap."""
        assert self.gap is not None, "asked of nothing else"
        return event_graph(self.gap, self.num_workers, self.rounds[0])

    @property
    def period(self) -> int:
        """After so many rounds it repeats."""
        return len(self.phases) or len(self.rounds)

    @property
    def lag(self) -> int:
        """By how many rounds what an average gives comes late."""
        return int(self.pipeline["width"]) - 1 if self.pipeline else int(self.is_late)

    @property
    def width(self) -> int:
        """The size of the matrices that decide about it: of all workers, or for a rule of one node's."""
        return self.workers_per_node if self.form == "rule" else self.num_workers

    @cached_property
    def averages_of_all(self) -> dict[int, Fraction]:
        """The relaxation of every phase that is one average over all workers."""
        shape = (self.width, len(self.radices))
        listed = ((t, average) for t, phase in enumerate(self.phases) for average in phase)
        return {t: relaxation for t, (members, across, relaxation) in listed if (len(members), len(across)) == shape}

    def on_nodes(self, average: Average | None) -> tuple[int, int]:
        """(members on each node, nodes) of an average; (members, 0) where nodes have unequal numbers.

        None stands for a group of all workers.
        """
        sizes = set(map(len, self.nodes)) or {self.node_size}
        if average is None:
            everywhere = len(self.nodes) or self.num_workers // self.node_size
            return (sizes.pop(), everywhere) if len(sizes) == 1 else (self.num_workers, 0)
        members, across, _ = average
        size = len(members) * prod(self.radices[digit] for digit in across)
        if size == self.num_workers:
            return self.on_nodes(None)
        if self.form == "rule":
            return len(members), size // len(members)
        counts = Counter(self.nodes_of(members))
        each = set(counts.values())
        return (each.pop(), len(counts)) if len(each) == 1 else (size, 0)

    def nodes_of(self, workers: Iterable[int]) -> list[int]:
        """The node that each of some workers stands on."""
        if self.nodes:
            return list(map(self._node_of.__getitem__, workers))
        size = self.node_size
        return [worker // size for worker in workers]

    @cached_property
    def _node_of(self) -> dict[int, int]:
        return {worker: number for number, node in enumerate(self.nodes) for worker in node}

    def group_sizes(self) -> list[set[tuple[int, Fraction]]]:
        """The different (workers in a group, relaxation) of every phase; a group of one worker is none."""
        result = []
        for phase in self.phases:
            # Plain groups are collected apart, because hashing a million fractions would take most of the time.
            plain = {(len(members), tuple(across)) for members, across, relaxation in phase if relaxation is PLAIN}
            shapes = {(size, across, PLAIN) for size, across in plain}
            shapes |= {
                (len(members), tuple(across), relaxation)
                for members, across, relaxation in phase
                if relaxation is not PLAIN
            }
            sizes = {
                (size * prod(self.radices[digit] for digit in across), relaxation)
                for size, across, relaxation in shapes
            }
            result.append({(size, relaxation) for size, relaxation in sizes if size > 1})
        return result


class _Cluster(NamedTuple):
    num_workers: int
    num_nodes: int
    workers_per_node: int
    nodes: list[list[int]]


def read_schedule(document: object) -> Schedule:
    """Read a parsed document, which is brought into canonical form in place.

    Raises:
        Refusal: it is not a schedule of fixed groups or of a weighted graph.
    """
    needed = ("format", "version", "name", "cluster", "strategy")
    raw = as_object(document, "schedule", needed, ("certificate", "failure_plan"))
    as_choice(raw["format"], "schedule.format", ("partreduce.schedule",))
    as_choice(raw["version"], "schedule.version", (1,))
    name = as_text(raw["name"], "schedule.name")
    is_name = 0 < len(name) <= 1000 and name.isprintable()
    require(is_name, "schedule.name", "has 1 to 1000 printable characters")
    require(isinstance(raw.pop("certificate", {}), dict), "schedule.certificate", "must be an object")
    require(isinstance(raw["cluster"], dict), "schedule.cluster", "must be an object")
    require(isinstance(raw["strategy"], dict), "schedule.strategy", "must be an object")
    cluster = _read_cluster(raw["cluster"])
    if cluster.workers_per_node:
        raw["cluster"] = {"num_nodes": cluster.num_nodes, "workers_per_node": cluster.workers_per_node}
    parts = _read_strategy(raw["strategy"], cluster)
    options = _read_options(raw["strategy"], cluster)
    if options.quorum is not None:
        parts["phases"] = []  # what a round sums is decided as the job runs
    if options.kept:
        parts["phases"] = [[Average([0], [0], 1 - options.kept)]]
    plan = _read_failure_plan(raw, cluster, options, parts.get("phases", [])) if "failure_plan" in raw else None
    canonical = json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()
    schedule = Schedule(
        num_workers=cluster.num_workers,
        sha256=hashlib.sha256(canonical).hexdigest(),
        nodes=cluster.nodes,
        node_size=cluster.workers_per_node,
        failure_plan=plan,
        **vars(options),
        **{"workers_per_node": cluster.workers_per_node, **parts},
    )
    if schedule.gap is not None:
        is_fixed = len(schedule.rounds) == len(schedule.worker_steps) == 1
        require(is_fixed, "strategy.sync.iteration_gap", "goes with 1 weighted graph, and 1 steps_per_round for all")
        require_fit(schedule.gap, schedule.num_workers, schedule.rounds[0])
    outer = schedule.tables.outer
    may_meet = outer.has_own_outer_params or bool(schedule.averages_of_all)  # graphs have no such round
    may_step = outer.is_plain or (may_meet and not schedule.is_late)  # a pipeline and a quorum sum gradients
    require(
        may_step, "strategy.payload.outer", "acts where a round of the period averages over all workers, synchronously"
    )
    is_static = raw["strategy"]["kind"] == "static" and schedule.transport["codec"] == "none"
    may_be_own = is_static and all(average.relaxation == 1 for phase in schedule.phases for average in phase)
    require(
        may_be_own or not outer.has_own_outer_params,
        "strategy.payload.outer.outer_params",
        "per_worker goes with plain fixed groups",
    )
    may_round = schedule.transport["codec"] == "none" or schedule.averages_of_all
    require(
        may_round, "strategy.transport.codec", "parameters are rounded where a round of the period averages over all"
    )
    return schedule


def _read_cluster(raw: dict[str, Any]) -> _Cluster:
    """Which worker runs where; `workers_per_node` is 0 unless all nodes have as many, in the order of ranks."""
    if "nodes" in raw:
        as_object(raw, "cluster", ("nodes",))
        nodes = [as_integers(node, "cluster.nodes", 0, LIMIT) for node in as_list(raw["nodes"], "cluster.nodes")]
        require(all(nodes), "cluster.nodes", "every node holds a worker")
        ranks = list(chain.from_iterable(nodes))
        in_order = list(range(len(ranks)))
        require(sorted(ranks) == in_order, "cluster.nodes", "ranks are 0..n-1, each once")
        is_regular = len(set(map(len, nodes))) == 1 and ranks == in_order
        cluster = _Cluster(len(ranks), len(nodes), len(nodes[0]) if is_regular else 0, nodes)
    else:
        as_object(raw, "cluster", ("num_nodes", "workers_per_node"))
        num_nodes = as_integer(raw["num_nodes"], "cluster.num_nodes", 1, LIMIT)
        size = as_integer(raw["workers_per_node"], "cluster.workers_per_node", 1, LIMIT)
        cluster = _Cluster(num_nodes * size, num_nodes, size, [])
    require(1 < cluster.num_workers < LIMIT, "cluster", "needs 2 to 2147483647 workers")
    return cluster


def _read_strategy(raw: dict[str, Any], cluster: _Cluster) -> dict[str, Any]:
    """Form, radices, and phases or rounds."""
    options = ("steps_per_round", "averaging", "sync", "payload", "transport")
    kind = raw.get("kind")
    as_choice(kind, "strategy.kind", ("static", "neighbor", "allreduce"))
    if kind == "allreduce":
        # One block across all nodes, on a cluster that is seen as one worker a node: a rule that fits every cluster.
        as_object(raw, "strategy", ("kind",), options)
        phases = [[Average([0], [0], PLAIN)]]
        return {"form": "rule", "workers_per_node": 1, "radices": [cluster.num_workers], "phases": phases}
    if kind == "neighbor":
        as_object(raw, "strategy", ("kind", "rounds"), options)
        rounds = enumerate(_nonempty(raw["rounds"], "strategy.rounds"))
        read_rounds = [_read_edges(item, cluster.num_workers, f"strategy.rounds[{t}]") for t, item in rounds]
        return {"form": "graph", "rounds": read_rounds}
    as_object(raw, "strategy", ("kind", "phases"), (*options, "prologue", "node_radices"))
    form, radices, phases = _read_phases(
        raw, cluster.num_workers, cluster.num_nodes, cluster.workers_per_node, "strategy"
    )
    return {"form": form, "radices": radices, "phases": phases}


def _read_phases(
    raw: dict[str, Any], num_workers: int, num_nodes: int, size: int, place: str
) -> tuple[Literal["groups", "rule"], list[int], list[list[Average]]]:
    """Form, radices and phases, of groups or, where nodes have `size` workers each, of rules."""
    counts = _take_repeats(raw, f"{place}.phases")
    listed = enumerate(raw["phases"])
    if "node_radices" not in raw:
        groups = [_read_groups(item, num_workers, f"{place}.phases[{t}]") for t, item in listed]
        sizes = (sum(len(average.members) for average in phase) for phase in groups)
        unrolled = sum(count * size for count, size in zip(counts, sizes, strict=True) if count > 1)
        require(unrolled <= MAX_UNROLLED, f"{place}.phases", f"repeats at most {MAX_UNROLLED} ranks")
        return "groups", [], _unroll(raw, groups, counts)
    radices = as_integers(raw["node_radices"], f"{place}.node_radices", 2, LIMIT)
    fits = size and len(radices) < 32 and prod(radices) == num_nodes
    require(fits, f"{place}.node_radices", "needs equal nodes, and a product of num_nodes")
    blocks = [_read_blocks(item, size, len(radices), f"{place}.phases[{t}]") for t, item in listed]
    return "rule", radices, _unroll(raw, blocks, counts)


def _take_repeats(raw: dict[str, Any], place: str) -> list[int]:
    """How often each entry of `phases` repeats; in place each becomes a plain phase."""
    counts, plain = [], []
    for t, item in enumerate(_nonempty(raw["phases"], place)):
        phase, count = item, 1
        if isinstance(item, dict):
            entry = as_object(item, f"{place}[{t}]", ("phase", "repeat"))
            phase, count = entry["phase"], as_integer(entry["repeat"], f"{place}[{t}].repeat", 2, MAX_PERIOD + 1)
        counts.append(count)
        plain.append(as_list(phase, f"{place}[{t}]"))
    require(sum(counts) <= MAX_PERIOD, place, f"has at most {MAX_PERIOD} phases")
    raw["phases"] = plain
    return counts


def _unroll(raw: dict[str, Any], phases: list[list[Average]], counts: list[int]) -> list[list[Average]]:
    """The phases one by one, as the canonical form has them, in place."""
    raw["phases"] = [item for item, count in zip(raw["phases"], counts, strict=True) for _ in range(count)]
    return [phase for phase, count in zip(phases, counts, strict=True) for _ in range(count)]


def _read_failure_plan(
    raw: dict[str, Any], cluster: _Cluster, options: Options, phases: list[list[Average]]
) -> FailurePlan:
    """What survivors run: of groups that average models, whole or in turns, or gradients, on time or late.

    Where the schedule has a round of all, as a codec and outer steps need it, survivors have one of all survivors,
    whatever the rule.
    """
    tables = options.tables
    is_whole = not (tables.listed or tables.outer.has_own_outer_params or options.kept)
    is_by_steps = options.is_step_normalized and len(set(options.worker_steps)) > 1
    is_layered = bool(options.pipeline) and options.transport["gradient_buckets"] == "per_layer"
    is_repeatable = not (options.quorum or is_layered or (options.is_late and is_by_steps))
    require(
        raw["strategy"]["kind"] != "neighbor" and is_whole and is_repeatable,
        "failure_plan",
        "is for static and allreduce; no quorum, tables, layers in a pipeline, late averages by steps, own outer steps",
    )
    plan = read_failure_plan(raw, cluster.num_workers)
    for t, phase in enumerate(phases if plan.rule != "all_reduce" else ()):
        workers = list(chain.from_iterable(average.members for average in phase))
        is_disjoint = len(set(workers)) == len(workers)
        require(is_disjoint, f"failure_plan.rule: strategy.phases[{t}]", "has groups that share a worker")
    return plan


def _nonempty(value: object, place: str) -> list[Any]:
    items = as_list(value, place)
    require(items, place, "must hold at least 1")
    return items


def _read_options(raw: dict[str, Any], cluster: _Cluster) -> Options:
    """Check the members that every kind may have, and leave out what equals its default.

    Most claims speak about the groups of a round, and members meet by round number (docs/certificates.md says for each
    claim why); the head of each that uses steps_per_round, averaging, delay or codec says how. Other values of `sync`
    and `transport` are refused, since for them nobody has said so.
    """
    steps_per_round = raw.get("steps_per_round", 1)
    worker_steps = as_integers(
        steps_per_round if isinstance(steps_per_round, list) else [steps_per_round],
        "strategy.steps_per_round",
        1,
        LIMIT,
    )
    needed = cluster.num_workers if isinstance(steps_per_round, list) else 1
    require(len(worker_steps) == needed, "strategy.steps_per_round", "needs 1 number, or 1 a worker")
    raw["steps_per_round"] = worker_steps if len(set(worker_steps)) > 1 else worker_steps[0]
    as_choice(raw.get("averaging", "mean"), "strategy.averaging", ("mean", "step-normalized"))
    sync = read_sync(raw, cluster.num_workers)
    is_late, pipeline, gap, quorum, late_steps, kept = sync
    tables = read_payload(raw, cluster.num_workers)
    is_plain = tables.outer.is_plain and not kept
    averages_gradients = raw["kind"] == "allreduce" and set(worker_steps) == {1} and not is_late and is_plain
    if tables.num_fragments > 1 or late_steps or kept:
        _require_turns(raw, worker_steps, sync, tables)
    fits = averages_gradients or not (pipeline or quorum)
    require(fits, "strategy.sync", "a pipeline and a quorum go with allreduce at steps_per_round 1")
    repeats_sums = raw["kind"] == "allreduce" and not is_late
    transport = read_transport(raw, averages_gradients=averages_gradients, repeats_sums=repeats_sums)
    is_whole = transport["codec"] == "none" and transport["gradient_buckets"] == "single"
    require(quorum is None or is_whole, "strategy.transport", "what a quorum sums goes as it is, when it is whole")
    has_common_steps = gap is None and quorum is None and len(set(worker_steps)) == 1
    require(has_common_steps or not tables.listed, "strategy.payload", "tables are exchanged in steps that all share")
    prologue = as_integer(raw.get("prologue", 0), "strategy.prologue", 0, 2**53)
    for name, default in DEFAULTS.items():
        if raw.get(name) == default:
            del raw[name]
    return Options(
        prologue=prologue,
        worker_steps=worker_steps,
        is_late=is_late,
        averages_gradients=averages_gradients,
        pipeline=pipeline,
        is_step_normalized=raw.get("averaging", "mean") != "mean",
        transport=transport,
        gap=gap,
        quorum=quorum,
        tables=tables,
        late_steps=late_steps,
        kept=kept,
    )


def _require_turns(raw: dict[str, Any], worker_steps: list[int], sync: Sync, tables: Tables) -> None:
    """Every fragment has a turn in each round, merged before it is sent again; and outer parameters stay near the mean.

    With e = mean - outer parameters and the outer momentum b, r the rate, μ the momentum's factor and α what workers
    keep, a round without gradients maps (e, b) to (α·(e - s), b'), where b' = μ·b + e and s = r·b', or Nesterov's r·(e
    + μ·b'). Its trace T is α·(1 - r·ν) + μ with ν = 1, or 1 + μ, and its determinant D is α·μ, or α·μ·(1 - r). The
    spectral radius is below 1 if and only if |D| < 1 and |T| < 1 + D (Jury). T < 1 + D and |D| < 1 follow from 0 <= α,
    μ < 1, r > 0 and the rest, -T < 1 + D, which is α·r < (1 + α)·(1 + μ), or Nesterov's α·r·(1 + 2μ) < (1 + α)·(1 + μ).
    """
    is_merged = sync.steps or sync.kept
    is_of_groups = raw["kind"] == "static" and not (is_merged or tables.outer.has_own_outer_params)
    is_known = raw["kind"] == "allreduce" or is_of_groups
    is_timed = len(worker_steps) == 1 or not is_merged
    is_alike = is_known and is_timed and raw.get("averaging", "mean") == "mean"
    is_plain = is_alike and not sync.is_late  # a pipeline and a quorum go with steps_per_round 1, which has no turns
    place = "strategy.payload.fragments" if tables.num_fragments > 1 else "strategy.sync.merge"
    rule = "goes with allreduce or groups, plain means and, merged late, 1 steps_per_round for all, without other delay"
    require(is_plain, place, rule)
    require(tables.num_fragments <= min(worker_steps), place, "every fragment has a turn in each round")
    require(sync.steps < worker_steps[0], "strategy.sync.merge.steps", "merged before it is sent again")
    _, momentum, nesterov, _ = tables.outer
    pull = sync.kept * tables.outer.lr * (1 + 2 * momentum * nesterov)
    is_stable = pull < (1 + sync.kept) * (1 + momentum)
    require(is_stable, "strategy.payload.outer.lr", "outer parameters and models diverge")


def _read_groups(raw: object, num_workers: int, place: str) -> list[Average]:
    """One explicit phase. Files hold millions of groups, so everything is asked of all of them at once, in C."""
    listed = as_list(raw, place)
    require(set(map(type, listed)) <= {dict}, place, "must be a list of objects")
    keys = {("group",), ("group", "relaxation"), ("relaxation", "group")}
    require(set(map(tuple, listed)) <= keys, place, "the object of a group holds group and perhaps relaxation")
    groups = list(map(itemgetter("group"), listed))
    has_pairs = set(map(type, groups)) <= {list} and min(map(len, groups), default=2) >= 2
    require(has_pairs, place, "groups of 2 or more")
    workers = as_integers(list(chain.from_iterable(groups)), place, 0, num_workers)
    require(sum(map(len, map(set, groups))) == len(workers), place, "a worker stands twice in a group")
    for group in groups:
        group.sort()
    listed.sort(key=itemgetter("group"))
    factors = [_read_relaxation(item, place) if len(item) > 1 else PLAIN for item in listed]
    _require_common_denominator(factors, place)
    return list(map(Average._make, zip(map(itemgetter("group"), listed), repeat(()), factors, strict=False)))


def _read_blocks(raw: object, num_local_ranks: int, num_digits: int, place: str) -> list[Average]:
    """One rule phase."""
    blocks = as_list(raw, place)
    averages: list[Average] = []
    for number, block in enumerate(blocks):
        at = f"{place}[{number}]"
        as_object(block, at, ("local", "across"), ("relaxation",))
        for name, high in (("local", num_local_ranks), ("across", num_digits)):
            numbers = as_integers(block[name], f"{at}.{name}", 0, high)
            require(len(set(numbers)) == len(numbers), at, f"{name} names one twice")
            numbers.sort()
        require(block["local"], at, "a block names at least 1 local rank")
        averages.append(Average(block["local"], block["across"], _read_relaxation(block, f"{at}.relaxation")))
    order = sorted(range(len(blocks)), key=lambda k: (*averages[k][:2], str(averages[k].relaxation)))
    blocks[:] = [blocks[k] for k in order]
    _require_common_denominator([average.relaxation for average in averages], place)
    return [averages[k] for k in order]


def _read_relaxation(item: dict[str, Any], place: str) -> Fraction:
    """The factor of a group or block, put into canonical form where it stands."""
    relaxation = as_number(item.pop("relaxation", 1), place)
    if relaxation == 1:
        return PLAIN
    item["relaxation"] = shortest(relaxation)
    return relaxation


def _read_edges(raw: object, num_workers: int, place: str) -> list[Edge]:
    """One round of weighted edges; the file gives (source, target) and one weight for all or one each."""
    given = as_object(raw, place, ("edges", "weights"))
    listed = enumerate(as_list(given["edges"], f"{place}.edges"))
    pairs = [as_integers(pair, f"{place}.edges[{i}]", 0, num_workers) for i, pair in listed]
    weights = given["weights"] if isinstance(given["weights"], list) else [given["weights"]] * len(pairs)
    numbers = [as_number(weight, f"{place}.weights[{i}]") for i, weight in enumerate(weights)]
    fits = len(numbers) == len(pairs) and set(map(len, pairs)) <= {2}
    require(fits, place, "edges are pairs, each with a weight")
    edges = sorted(Edge(target, source, weight) for (source, target), weight in zip(pairs, numbers, strict=True))
    require(len({edge[:2] for edge in edges}) == len(edges), place, "an edge is given twice")
    require(all(edge.target != edge.source for edge in edges), place, "an edge joins a worker to itself")
    _require_common_denominator([edge.weight for edge in edges], place)
    spelled = [shortest(edge.weight) for edge in edges]
    given["edges"] = [[edge.source, edge.target] for edge in edges]
    given["weights"] = spelled[0] if len(set(spelled)) == 1 else spelled
    return edges


def _require_common_denominator(values: Iterable[Fraction], place: str) -> None:
    """Refuse numbers without a common denominator of reasonable length, whose sums would never end."""
    common = 1
    for denominator in {value.denominator for value in values}:
        common = lcm(common, denominator)
        bits = common.bit_length()
        require(bits <= MAX_COMMON_BITS, place, f"the common denominator has over {MAX_COMMON_BITS} bits")
