"""The schedule that a file describes, and the SHA-256 that a certificate must name.

The one form that is read is the *canonical* one, which partreduce writes: members that equal their default are left
out, groups, blocks, edges and the ranks in them ascend, fractions are in lowest terms, and a value that all workers
share is given once. So the hash is that of the file itself, whatever its layout, with repeated phases listed one by
one and without a certificate.

`schema.py` checks types, ranges, words and unknown members. The further conditions here, and for iteration gaps in
`events.py`, are premises of the proof that is named there.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice, repeat
from math import lcm, prod
from operator import itemgetter, lt
from typing import Any, Literal, NamedTuple

from .events import EventGraph, KeptGap
from .refusal import require
from .schema import ONE_FORM, SCHEMA, as_choice, hold, with_defaults

LIMIT = 2**31
"""Every number of workers is below this limit."""
MAX_PERIOD = 2**18
"""Most phases of a period, repetitions counted."""
MAX_UNROLLED = 2**24
"""Most ranks in all repeated phases together, repetitions counted."""
MAX_COMMON_BITS = 2**14
"""Most bits of the common denominator of the relaxations or weights of one phase."""

PLAIN = Fraction(1)
"""The factor of a plain mean. Every plain average holds this very object, so that `is` tells it apart at once."""
BLOCKS = ("int8", "int4")
"""Codecs in which a block of neighboring numbers shares a scale."""
ELEMENT = {"none": 4, "float16": 2, "bfloat16": 2, "int8": 1}
"""Bytes that one number of a table takes when it is sent, by codec."""

Numbers = dict[str, Any]
"""The numbers of a fact, by name."""
Failure = tuple[int, ...]
"""The failed workers, ascending."""

Mode = Literal["rounds", "gap", "lossy gap", "rounds by quorum", "own outer parameters"]
"""How workers wait: fixed rounds (also late or pipelined); an iteration gap whose reduces take all updates, or some; a
quorum that starts rounds; fixed rounds of groups with outer parameters per worker, which are no mixing matrices."""


class Average(NamedTuple):
    """An average over groups of workers: x ← x + relaxation · (mean − x) on each member.

    In an explicit phase it is one group: `members` are its workers and `across` is empty. In a rule it is a block:
    `members` are local ranks, `across` are digits of the node's index, and there is one group for every setting of the
    digits that are not in `across`.
    """

    members: Sequence[int]
    across: Sequence[int]
    relaxation: Fraction

    @property
    def is_group(self) -> bool:
        """Return whether the average has an operation; a block of one local rank across no digit has none."""
        return len(self.members) > 1 or bool(self.across)


class Edge(NamedTuple):
    """An edge of a weighted graph: the target adds weight · (value of the source − its own value)."""

    target: int
    source: int
    weight: Fraction


class OuterStep(NamedTuple):
    """An outer step, with outer learning rate `lr` and momentum; with lr 1 and no momentum the result is the mean."""

    lr: Fraction
    momentum: Fraction
    nesterov: bool
    has_own_outer_params: bool

    @property
    def is_plain(self) -> bool:
        """Return whether the result of the outer step is the mean itself."""
        return self.lr == 1 and self.momentum == 0


class Table(NamedTuple):
    """An embedding table that is exchanged separately from the strategy's averages.

    Way `sharded`: row r belongs to part r mod `partitions`, and part p to worker `hosts[p mod len(hosts)]`. With way
    `gather`, and with way `dense`, which the strategy's own averages include, every worker holds the whole table.
    `codec` rounds the numbers of rows that are sent, as answers to lookups or as gradients.
    """

    parameter: str
    rows: int
    columns: int
    way: str
    hosts: Sequence[int]
    partitions: int
    codec: str

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row as it is sent, without its row number; int8 has a scale of 4 bytes for each row."""
        return ELEMENT[self.codec] * self.columns + (4 if self.codec == "int8" else 0)

    def rows_of(self, place: int) -> int:
        """Return the number of rows of `hosts[place]`, which has ⌈(k−place)/H⌉ of the first k parts; H = len(hosts)."""
        each, left = divmod(self.rows, self.partitions)
        parts, larger = (max(0, -(-(count - place) // len(self.hosts))) for count in (self.partitions, left))
        return each * parts + larger


class FailurePlan(NamedTuple):
    """The rule by which survivors get a schedule (`survives.py`) after up to `failures` workers, or one node, fail."""

    rule: Literal["keep_groups", "reapply_rule", "all_reduce"]
    failures: int


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule in the form `rule`, `groups` (explicit groups) or `graph` (weighted neighbors).

    The first two have `phases`, the third has `rounds`; the other list is empty. Both are empty if a `quorum` of
    workers starts a round, since its members are then decided at run time. `radices` are those of a rule.
    `workers_per_node` is 0 for nodes of unequal size. `nodes` lists the ranks on each node, empty if the file states
    only that each has `node_size` workers, in the order of ranks.

    `worker_steps` holds the steps per round: one number, or one for each worker. If `averages_gradients`, gradients are
    averaged, late by a `pipeline` (empty: not late); otherwise parameters are, a round late if `is_late`. `gap` is None
    unless the protocol is an iteration gap, and `quorum` empty unless a quorum starts rounds. `tables` are in the order
    of their exchange; if `aggregates`, the workers of a node first combine their rows. A round averages the values of
    `late_steps` steps before its end, and a worker keeps the share `kept` of its value.
    """

    form: Literal["rule", "groups", "graph"]
    num_workers: int
    workers_per_node: int
    sha256: str
    nodes: list[list[int]]
    node_size: int
    prologue: int
    worker_steps: list[int]
    is_late: bool
    averages_gradients: bool
    pipeline: dict[str, Any]
    is_step_normalized: bool
    transport: dict[str, Any]
    gap: KeptGap | None
    quorum: dict[str, Any]
    tables: list[Table]
    aggregates: bool
    outer: OuterStep
    num_fragments: int
    late_steps: int
    kept: Fraction
    failure_plan: FailurePlan | None
    radices: list[int] = field(default_factory=list)
    phases: list[list[Average]] = field(default_factory=list)
    rounds: list[list[Edge]] = field(default_factory=list)

    @property
    def mode(self) -> Mode:
        """Return how workers wait for one another, which determines the claims and facts that apply."""
        if self.quorum:
            return "rounds by quorum"
        if self.gap is None:
            return "own outer parameters" if self.outer.has_own_outer_params else "rounds"
        return "gap" if self.gap.takes_all else "lossy gap"

    @cached_property
    def events(self) -> EventGraph:
        """Return the event graph of an iteration gap; only for schedules that have one."""
        gap = self.gap
        assert gap is not None, "asked of nothing else"
        edges, backups = sorted((source, target) for target, source, _ in self.rounds[0]), gap.backups(self.num_workers)
        return EventGraph(edges, backups, staleness=gap.staleness, max_ig=gap.max_ig, notify_ack=gap.notify_ack)

    @property
    def period(self) -> int:
        """Return the number of rounds after which the schedule repeats."""
        return len(self.phases) or len(self.rounds)

    @property
    def lag(self) -> int:
        """Return by how many rounds the result of an average is late."""
        return int(self.pipeline["width"]) - 1 if self.pipeline else int(self.is_late)

    @property
    def width(self) -> int:
        """Return the size of the mixing matrices: the number of workers, or for a rule the number on one node."""
        return self.workers_per_node if self.form == "rule" else self.num_workers

    @cached_property
    def node_sizes(self) -> frozenset[int]:
        """Return the distinct numbers of workers on a node."""
        return frozenset(map(len, self.nodes)) or frozenset({self.node_size})

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.nodes) or self.num_workers // self.node_size

    @cached_property
    def averages_of_all(self) -> dict[int, Fraction]:
        """Return the relaxation of every phase that is one average over all workers, by the number of the phase."""
        found = {}
        for t, phase in enumerate(self.phases):
            if self.width in map(len, map(itemgetter(0), phase)):  # of millions of groups, in C
                for members, across, relaxation in phase:
                    if (len(members), len(across)) == (self.width, len(self.radices)):
                        found[t] = relaxation
        return found

    def on_nodes(self, average: Average | None) -> tuple[int, int]:
        """Return (members per node, nodes) of an average (None: over all workers); (members, 0) if nodes differ."""
        if average is None:
            return (min(self.node_sizes), self.num_nodes) if len(self.node_sizes) == 1 else (self.num_workers, 0)
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
        """Return the node of each of these workers."""
        if self.nodes:
            return list(map(self._node_of.__getitem__, workers))
        size = self.node_size
        return [worker // size for worker in workers]

    @cached_property
    def _node_of(self) -> dict[int, int]:
        return {worker: number for number, node in enumerate(self.nodes) for worker in node}

    def group_sizes(self) -> list[set[tuple[int, Fraction]]]:
        """Return for every phase the distinct (workers in a group, relaxation), without groups of one worker."""
        result = []
        for phase in self.phases:
            # Few factors are different objects, and hashing a million fractions would take most of the time.
            shapes = {(len(members), tuple(across), id(factor)): factor for members, across, factor in phase}
            sizes = {(size * prod(self.radices[d] for d in across), r) for (size, across, _), r in shapes.items()}
            result.append({(size, relaxation) for size, relaxation in sizes if size > 1})
        return result


def kept_weights(edges: Sequence[Edge]) -> Iterable[Fraction]:
    """Return the weight on itself that each target of a round's edges keeps; all other workers keep 1."""
    kept: dict[int, Fraction] = {}
    for target, _, weight in edges:
        kept[target] = kept.get(target, Fraction(1)) - weight
    return kept.values()


def keeps_something(edges: Sequence[Edge]) -> bool:
    """Return whether no weight of a round is negative, and every worker keeps a positive weight on itself."""
    return all(weight > 0 for weight in kept_weights(edges)) and all(edge.weight >= 0 for edge in edges)


def read_schedule(document: object) -> Schedule:
    """Read a parsed schedule file of kind `static`, `allreduce` or `neighbor` in canonical form.

    Args:
        document: the parsed JSON, which is not changed.

    Returns:
        The schedule with its hash, for which the premises of the proofs hold.

    Raises:
        Refusal: status 65 if the file is not of this form, or a premise does not hold.
    """
    given = document.get("strategy") if isinstance(document, dict) else None
    kind = given.get("kind") if isinstance(given, dict) else "static"
    as_choice(kind, "strategy.kind", ("static", "neighbor", "allreduce"))  # of no other kind are the groups known
    hold([document], SCHEMA, "")
    assert isinstance(document, dict), "by the schema"
    raw = {name: part for name, part in document.items() if name != "certificate"}
    strategy = with_defaults(raw["strategy"], SCHEMA["properties"]["strategy"])
    n, nodes, size = _read_cluster(raw["cluster"])
    parts: dict[str, Any]
    if kind == "allreduce":
        # One block across all nodes, on a cluster that is seen as one worker a node: a rule that fits every cluster.
        parts = {"form": "rule", "workers_per_node": 1, "radices": [n], "phases": [[Average([0], [0], PLAIN)]]}
    elif kind == "neighbor":
        rounds = [_read_edges(graph, n, f"strategy.rounds[{t}]") for t, graph in enumerate(strategy["rounds"])]
        parts = {"form": "graph", "workers_per_node": size, "rounds": rounds}
    else:
        parts, phases = _read_phases(strategy, n, size)
        raw["strategy"] = {**raw["strategy"], "phases": phases}
    canonical = json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()
    options = _read_options(strategy, n)
    if options["quorum"]:
        parts["phases"] = []  # what a round sums is decided as the job runs
    if options["kept"]:
        parts["phases"] = [[Average([0], [0], 1 - options["kept"])]]
    plan = FailurePlan(**raw["failure_plan"]) if "failure_plan" in raw else None
    hashed = hashlib.sha256(canonical).hexdigest()
    read = Schedule(num_workers=n, nodes=nodes, node_size=size, sha256=hashed, failure_plan=plan, **options, **parts)
    _require_premises(read, strategy)
    return read


def _read_cluster(raw: dict[str, Any]) -> tuple[int, list[list[int]], int]:
    """Return the number of workers, the listed nodes, and the node size (0: unequal nodes, or not in order)."""
    nodes, size = raw.get("nodes", []), raw.get("workers_per_node", 0)
    ranks = list(chain.from_iterable(nodes))
    require(sorted(ranks) == list(range(len(ranks))), "cluster.nodes", "ranks are 0..n-1, each once")
    is_regular = len(set(map(len, nodes))) == 1 and ranks == sorted(ranks)
    require(not is_regular, "cluster.nodes", f"num_nodes and workers_per_node say it: {ONE_FORM}")
    n = len(ranks) or raw["num_nodes"] * size
    require(1 < n < LIMIT, "cluster", f"needs 2 to {LIMIT - 1} workers")
    return n, nodes, size


def _read_phases(strategy: dict[str, Any], n: int, size: int) -> tuple[dict[str, Any], list[Any]]:
    """Return form, radices and phases of groups, or of a rule on nodes of `size` workers; and the phases as given."""
    place, radices = "strategy.phases", strategy.get("node_radices")
    counts = [entry["repeat"] if type(entry) is dict else 1 for entry in strategy["phases"]]
    require(sum(counts) <= MAX_PERIOD, place, f"has at most {MAX_PERIOD} phases")
    listed = [entry["phase"] if type(entry) is dict else entry for entry in strategy["phases"]]
    if radices is None:
        read = [_read_averages(phase, "group", n, f"{place}[{t}]") for t, phase in enumerate(listed)]
        sizes = (sum(len(average.members) for average in phase) for phase in read)
        ranks = sum(count * size for count, size in zip(counts, sizes, strict=True) if count > 1)
        require(ranks <= MAX_UNROLLED, place, f"repeats at most {MAX_UNROLLED} ranks")
    else:
        is_rule = size and prod(radices) * size == n
        require(is_rule, "strategy.node_radices", "needs equal nodes, and a product of num_nodes")
        read = [_read_averages(phase, "local", size, f"{place}[{t}]") for t, phase in enumerate(listed)]
        digits = max((digit for phase in read for block in phase for digit in block.across), default=-1)
        require(digits < len(radices), place, f"digits are 0..{len(radices) - 1}")
    form = {"form": "groups"} if radices is None else {"form": "rule", "radices": radices}
    phases, given = (list(chain.from_iterable(map(repeat, each, counts))) for each in (read, listed))
    return {**form, "workers_per_node": size, "phases": phases}, given


def _read_averages(phase: list[dict[str, Any]], key: str, high: int, place: str) -> list[Average]:
    """Return a phase of groups (`key` "group") or blocks ("local"), with ranks below `high` in ascending order."""
    members = list(map(itemgetter(key), phase))
    across = [block["across"] for block in phase] if key == "local" else repeat(())
    given = [item.get("relaxation", 1) for item in phase]
    factors = _exact_of(given, place)
    averages = list(map(Average._make, zip(members, across, map(factors.__getitem__, given), strict=False)))
    lists = members if key == "group" else [*members, *(block.across for block in averages)]
    require(_ascend(lists), place, f"the numbers of a list ascend, each once; {ONE_FORM}")
    require(max(map(itemgetter(-1), members), default=0) < high, place, f"ranks are 0..{high - 1}")
    by_text = (lambda one: (*one[:2], str(one.relaxation))) if key == "local" else None
    require(averages == sorted(averages, key=by_text), place, f"groups stand in ascending order; {ONE_FORM}")
    return averages


def _ascend(lists: list[list[int]]) -> bool:
    """Return whether each list of numbers ≥ 0 ascends strictly: with −1 before each, all are compared at once."""
    flat: list[int] = list(chain.from_iterable(map(chain, repeat((-1,)), lists)))
    larger: int = sum(map(lt, flat, islice(flat, 1, None)))
    return larger == len(flat) - len(lists)


def _read_edges(given: dict[str, Any], n: int, place: str) -> list[Edge]:
    """Return one round of edges; the file gives (source, target) pairs, and one weight for all or one for each."""
    pairs, weights = [(target, source) for source, target in given["edges"]], given["weights"]
    same = not isinstance(weights, list)
    fits = same or len(weights) == len(pairs)
    require(
        fits and max(chain.from_iterable(pairs), default=0) < n, place, f"workers 0..{n - 1}, a weight for each edge"
    )
    require(all(target != source for target, source in pairs), place, "an edge joins a worker to itself")
    is_short = bool(pairs) if same else len(set(map(str, weights))) != 1
    require(
        pairs == sorted(set(pairs)) and is_short, place, f"edges ascend by target, equal weights are one; {ONE_FORM}"
    )
    listed = [weights] * len(pairs) if same else weights
    numbers = _exact_of(listed, place)
    return [Edge(*pair, numbers[weight]) for pair, weight in zip(pairs, listed, strict=True)]


def exact(value: int | str, place: str) -> Fraction:
    """Return the number that a file states; raise a Refusal unless it has its shortest spelling."""
    number = Fraction(value)
    short = number.numerator if number.denominator == 1 and abs(number.numerator) < 2**53 else str(number)
    require(short == value, place, f"{value} is not in lowest terms; {ONE_FORM}")
    return PLAIN if number == 1 else number


def _exact_of(values: Iterable[int | str], place: str) -> dict[int | str, Fraction]:
    """Return each distinct value's exact number; raise a Refusal if the common denominator exceeds MAX_COMMON_BITS."""
    numbers = {value: exact(value, place) for value in set(values)}
    common = 1
    for denominator in {number.denominator for number in numbers.values()}:
        common = lcm(common, denominator)
        bits = common.bit_length()
        require(bits <= MAX_COMMON_BITS, place, f"the common denominator has over {MAX_COMMON_BITS} bits")
    return numbers


def _read_options(strategy: dict[str, Any], n: int) -> dict[str, Any]:
    """Return the options that every kind of strategy may have, as arguments of Schedule."""
    steps = strategy["steps_per_round"]
    worker_steps = steps if isinstance(steps, list) else [steps]
    fits = len(worker_steps) == n if isinstance(steps, list) else True
    require(fits, "strategy.steps_per_round", "needs 1 number, or 1 a worker")
    is_short = len(set(worker_steps)) > 1 or not isinstance(steps, list)
    require(is_short, "strategy.steps_per_round", f"equal numbers are written as one; {ONE_FORM}")
    sync, payload, place = strategy["sync"], strategy["payload"], "strategy.payload.outer"
    (word, wait), *_ = sync.items() if isinstance(sync, dict) else [(sync, {})]
    gap = KeptGap(**wait) if word == "iteration_gap" else None
    outer = payload["outer"]
    step = OuterStep(
        exact(outer["lr"], f"{place}.lr"),
        exact(outer["momentum"], f"{place}.momentum"),
        outer["nesterov"],
        outer["outer_params"] == "per_worker",
    )
    needed = wait["quorum"] if word == "partial" else ""  # a number, or a word for one worker
    is_startable = not isinstance(needed, int) or 1 < needed < n  # or no round ever starts
    require(is_startable, "strategy.sync.partial.quorum", f"must be an integer 2..{n - 1}")
    kept = exact(wait["alpha"], "strategy.sync.merge.alpha") if word == "merge" else Fraction(0)
    is_late = word == "delay" or (gap is not None and gap.update_order == "dpsgd")
    of_all = strategy["kind"] == "allreduce" and set(worker_steps) == {1}
    return {
        "prologue": strategy.get("prologue", 0),
        "worker_steps": worker_steps,
        "is_late": is_late,
        "averages_gradients": of_all and not is_late and step.is_plain and not kept,
        "pipeline": wait if word == "pipeline" else {},
        "is_step_normalized": strategy["averaging"] != "mean",
        "transport": strategy["transport"],
        "gap": gap,
        "quorum": wait if word == "partial" else {},
        "tables": [_read_table(table, n, f"strategy.payload.tables[{i}]") for i, table in enumerate(payload["tables"])],
        "aggregates": payload["local_aggregation"],
        "outer": step,
        "num_fragments": len(payload["fragments"]) if isinstance(payload["fragments"], list) else payload["fragments"],
        "late_steps": wait["steps"] if word == "merge" else 0,
        "kept": kept,
    }


def _read_table(table: dict[str, Any], n: int, place: str) -> Table:
    """Return an embedding table; raise a Refusal unless its hosts are distinct workers, as `one-owner` assumes."""
    named = table["hosts"]
    require(max(named, default=0) < n and len(set(named)) == len(named), f"{place}.hosts", "names workers, each once")
    require(table["codec"] in ELEMENT, f"{place}.codec", f"must be one of {list(ELEMENT)}")  # the bytes of a row
    may_round = table["way"] != "dense" or table["codec"] == "none"  # the strategy's averages include its rows
    require(may_round, f"{place}.codec", "way dense has the strategy's own codec")
    hosts: Sequence[int] = named or range(n)  # a range: there may be 2**31 of them
    rest = table["way"], hosts, table["partitions"] or len(hosts), table["codec"]
    return Table(table["parameter"], table["rows"], table["columns"], *rest)


def _require_premises(read: Schedule, strategy: dict[str, Any]) -> None:
    """Require the conditions on combinations of settings that proofs assume; comments name the proofs.

    *Stable outer steps.* Let e = mean - outer parameters, b the outer momentum, r the rate, μ the momentum's factor and
    α the share that workers keep where all average: 1 - relaxation. A round of all without gradients maps (e, b) to
    (α·(e - s), b'), where b' = μ·b + e and s = r·b', or Nesterov's r·(e + μ·b'); other rounds keep the mean. The trace
    T is α·(1 - r·ν) + μ with ν = 1, or 1 + μ, and the determinant D is α·μ, or α·μ·(1 - r). The spectral radius is
    below 1 if and only if |D| < 1 and |T| < 1 + D (Jury). T < 1 + D and |D| < 1 follow from 0 <= α, μ < 1, r > 0 and
    the rest, -T < 1 + D, which is α·r < (1 + α)·(1 + μ), or Nesterov's α·r·(1 + 2μ) < (1 + α)·(1 + μ). Different α in
    turn are stable without momentum, where each multiplies e by a number; with momentum a period has one. Under a
    failure plan any group may be one of all survivors.
    """
    kind, outer, kept, steps, gap = strategy["kind"], read.outer, read.kept, read.worker_steps, read.gap
    is_coded, meets = read.transport["codec"] != "none", bool(read.averages_of_all)
    place, in_turns = "strategy.payload.outer", "strategy.payload.fragments"

    # Stable outer steps: `staleness` asks |q| < 1, and a mean that is left can be followed.
    require(outer.lr > 0, f"{place}.lr", "above 0")
    require(0 <= outer.momentum < 1, f"{place}.momentum", "at least 0 and below 1")
    require(0 <= kept < 1, "strategy.sync.merge.alpha", "at least 0 and below 1")
    shares = set() if outer.is_plain or outer.has_own_outer_params else _shares_kept(read)
    for share in shares:
        require(0 <= share < 1, place, "goes with 0 < relaxation <= 1 where all workers average")
        pull = share * outer.lr * (1 + 2 * outer.momentum * outer.nesterov)
        require(pull < (1 + share) * (1 + outer.momentum), f"{place}.lr", "outer parameters and models diverge")
    has_one = len(shares) < 2 or outer.momentum == 0
    require(has_one, f"{place}.momentum", "goes with one relaxation where all workers average")

    # `lag`, `end`, `staleness` and all of a quorum: what is summed are gradients of all workers, of each step.
    is_by_step = read.averages_gradients or not (read.pipeline or read.quorum)
    require(is_by_step, "strategy.sync", "a pipeline and a quorum go with allreduce at steps_per_round 1")

    # `fragments`: 1 <= P <= H and τ < H; groups only on time; all have turns at the same steps, or α and τ are 0.
    require(read.num_fragments, in_turns, "there is no part")
    is_merged = read.late_steps > 0 or kept > 0
    if is_merged or read.num_fragments > 1:
        at = in_turns if read.num_fragments > 1 else "strategy.sync.merge"
        is_known = kind == "allreduce" or (kind == "static" and not (is_merged or outer.has_own_outer_params))
        is_even = is_known and not read.is_step_normalized and not read.is_late and (len(steps) == 1 or not is_merged)
        rule = "goes with allreduce or groups, plain means and, merged late, 1 steps_per_round for all"
        require(is_even, at, f"{rule}, without other delay")
        require(read.num_fragments <= min(steps), at, "every fragment has a turn in each round")
        require(read.late_steps < steps[0], "strategy.sync.merge.steps", "merged before it is sent again")

    # `equal-replicas` and claims about differences: a shared outer step moves all workers equally, at a round of all.
    may_step = outer.is_plain or ((outer.has_own_outer_params or meets) and not read.is_late)
    require(may_step, place, "acts where a round of the period averages over all workers, synchronously")

    # `outer-consensus` computes plain means of fixed groups.
    if outer.has_own_outer_params:
        is_plain = kind == "static" and not is_coded and all(a.relaxation == 1 for phase in read.phases for a in phase)
        require(is_plain, f"{place}.outer_params", "per_worker goes with plain fixed groups")

    # `codec-error`: what is rounded of parameters is their difference to a reference that all share.
    rule = "parameters are rounded where a round of the period averages over all"
    require(not is_coded or meets, "strategy.transport.codec", rule)

    # `one-route` and `table-order`: a name stands once; all workers have the same steps.
    names = [table.parameter for table in read.tables]
    require(len(set(names)) == len(names), "strategy.payload.tables", "a parameter has one route")
    has_common = not (read.gap or read.quorum) and len(steps) == 1
    require(has_common or not names, "strategy.payload", "tables are exchanged in steps that all share")

    if gap is not None:
        is_fixed = len(read.rounds) == len(steps) == 1
        require(is_fixed, "strategy.sync.iteration_gap", "goes with 1 weighted graph, and 1 steps_per_round for all")
        gap.require_fit(read.num_workers, read.rounds[0])
    if read.failure_plan is not None:
        _require_survivors(read, read.failure_plan, kind, "node_radices" in strategy)


def _shares_kept(read: Schedule) -> set[Fraction]:
    """Return the shares of their own values that workers keep in rounds that average all workers, or all survivors."""
    plan = read.failure_plan
    groups = chain.from_iterable(read.phases) if plan is not None and plan.rule != "all_reduce" else ()
    return {1 - factor for factor in (*read.averages_of_all.values(), *(group.relaxation for group in groups))}


def _require_survivors(read: Schedule, plan: FailurePlan, kind: str, has_rule: bool) -> None:
    """Require what `survives` assumes: two or more survivors, and settings that the rule of the plan can continue."""
    require(read.num_workers - plan.failures >= 2, "failure_plan.failures", "leaves 2 workers or more")
    fits = {"all_reduce": True, "keep_groups": kind == "static", "reapply_rule": has_rule}[plan.rule]
    rule = "reapply_rule goes with node_radices, and all_reduce alone with allreduce"
    require(fits, "failure_plan.rule", rule)
    is_whole = not (read.tables or read.outer.has_own_outer_params)
    is_by_steps = read.is_step_normalized and len(read.worker_steps) > 1
    is_layered = bool(read.pipeline) and read.transport["gradient_buckets"] == "per_layer"
    is_repeatable = not (read.quorum or is_layered or (read.is_late and is_by_steps))
    require(
        kind != "neighbor" and is_whole and is_repeatable,
        "failure_plan",
        "is for static and allreduce; no quorum, tables, layers in a pipeline, late averages by steps, own outer steps",
    )
