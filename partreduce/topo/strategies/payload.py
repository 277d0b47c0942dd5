"""The *payload* axis: embedding tables exchanged separately (Parallax); outer steps and fragments of the rest (DiLoCo).

Sources: Kim et al., Parallax: automatic data-parallel training of deep neural networks, 2018 (arXiv 1808.02621), and
EuroSys 2019. Outer steps: Douillard et al., DiLoCo: distributed low-communication training of language models, 2023
(arXiv 2311.08105), Algorithm 1. Fragments, each averaged once per round at its own step: Douillard et al., Streaming
DiLoCo with overlapping communication, 2025 (arXiv 2501.18512), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import groupby
from typing import ClassVar, NamedTuple

from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.fields import Choice, Count, Exact, Index, JsonObject, Title, take_numbers
from partreduce.topo.strategies.axes import Codec


class OuterOptimizer(Choice):
    """The outer optimizer, which turns the workers' mean change of parameters into the next model."""

    SGD = "sgd"
    """torch.optim.SGD, without weight decay and dampening."""


class OuterParams(Choice):
    """Which workers share the outer parameters from which an outer step starts."""

    SHARED = "shared"
    """All workers share them: only averages over all workers take outer steps, smaller groups take plain means."""
    PER_WORKER = "per_worker"
    """Each worker keeps its own: averages over any group take outer steps (NoLoCo, arXiv 2506.10911)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterStep(JsonObject):
    """The outer step after a round: the next model, from the workers' mean m and the outer parameters a.

    With the movement d = m - a and the momentum b, which begins as 0: b <- momentum * b + d, then
    a <- a + lr * (d + momentum * b) with `nesterov`, a <- a + lr * b without. Every worker continues from a.
    Plain averaging is lr 1 and momentum 0, since a then becomes m. With outer parameters per group or worker, m is the
    mean of the group's models and each worker has its own a and b; this is NoLoCo's step with beta = gamma = lr.

    Numbers may be given as decimals: `OuterStep(lr=0.7)` is 7/10.
    """

    place: ClassVar[str] = "payload.outer."

    optimizer: OuterOptimizer = OuterOptimizer.SGD
    lr: Exact = Fraction(1)
    momentum: Exact = Fraction(0)
    nesterov: bool = False
    outer_params: OuterParams = OuterParams.SHARED

    def __post_init__(self) -> None:
        JsonObject.__post_init__(self)
        take_numbers(self, "lr", "momentum")

    @property
    def is_plain(self) -> bool:
        """Whether the outer step is plain averaging: the mean is the next model."""
        return self.lr == 1 and self.momentum == 0

    @property
    def has_own_outer_params(self) -> bool:
        """Whether each worker has its own outer parameters (`OuterParams.PER_WORKER`)."""
        return self.outer_params is OuterParams.PER_WORKER

    @property
    def in_words(self) -> str:
        if self.is_plain:
            return ""
        momentum = f", {'Nesterov ' if self.nesterov else ''}momentum {float(self.momentum):g}" if self.momentum else ""
        own = ", own outer parameters" if self.has_own_outer_params else ""
        return f"outer {str(self.optimizer).upper()} {float(self.lr):g}{momentum}{own}"

    def check(self) -> None:
        if self.lr <= 0:
            raise ScheduleError(f"payload.outer.lr: is {self.lr}; a learning rate is above 0")
        if not 0 <= self.momentum < 1:
            raise ScheduleError(f"payload.outer.momentum: is {self.momentum}; a momentum is at least 0 and below 1")
        if self.has_own_outer_params and self.is_plain:
            raise ScheduleError(
                "payload.outer.outer_params: is per_worker; plain averaging has no outer parameters; leave it out"
            )
        if self.nesterov and not self.momentum:
            raise ScheduleError("payload.outer.nesterov: is true; there is no momentum that it could look ahead with")


PLAIN = OuterStep()
"""Plain averaging: the mean is the next model."""

Fragments = Count | tuple[tuple[Title, ...], ...]
"""The number of fragments, cut between layers, or the name patterns of each fragment's parameters."""


def number_of(fragments: Fragments) -> int:
    """Return the number of fragments, given as this number or as one tuple of name patterns per fragment."""
    return fragments if isinstance(fragments, int) else len(fragments)


def round_ends(num_fragments: int, steps_per_round: int) -> tuple[int, ...]:
    """Return, for each fragment p of P, the step of a round after which it is averaged.

    That is floor((p + 1) * steps_per_round / P): if P <= steps_per_round, steps ascend and the last ends the round.
    """
    return tuple((number + 1) * steps_per_round // num_fragments for number in range(num_fragments))


class Move(NamedTuple):
    """An operation after `taken` steps of each round: `fragment`, a number, is sent or, if `merges`, merged."""

    taken: int
    fragment: int
    merges: bool


def moves(num_fragments: int, steps_per_round: int, late: int) -> tuple[Move, ...]:
    """Return the sends and merges of fragments in one round, in order; they are the same on all workers.

    Each fragment is merged `late` steps after it is sent, which may be in the next round; the first round then has
    nothing to merge. With P fragments up to ceil(late * P / steps_per_round) are in flight at once, as a merge happens
    before the next fragment is sent.
    """
    ends = round_ends(num_fragments, steps_per_round)
    merges = [Move(end, number, merges=True) for number, end in enumerate(ends)]
    sends = [Move((end - late - 1) % steps_per_round + 1, number, merges=False) for number, end in enumerate(ends)]
    return tuple(sorted(sends + merges, key=lambda move: (move.taken, move.merges is (late == 0))))


def check_fragments(fragments: Fragments) -> None:
    """Raise ScheduleError for an invalid list of fragments: too short, an empty entry, or a pattern used twice."""
    if isinstance(fragments, int):
        return
    if len(fragments) < 2:
        raise ScheduleError(f"payload.fragments: has {len(fragments)} entries; leave it out, or give at least 2")
    seen: dict[str, int] = {}
    for place, patterns in enumerate(fragments):
        if not patterns:
            raise ScheduleError(
                f"payload.fragments[{place}]: is empty; give the names of its parameters, such as 'head.*'"
            )
        for pattern in patterns:
            if pattern in seen:
                raise ScheduleError(
                    f"payload.fragments[{place}]: has {pattern!r}, as fragment {seen[pattern]} has; "
                    "a parameter is in one fragment"
                )
            seen[pattern] = place


def assign(fragments: Fragments, parameters: Sequence[tuple[tuple[str, ...], int]]) -> list[int]:
    """Return the fragment of each parameter; a parameter is given as (its names, its number of elements).

    Tied weights have several names. A number of fragments cuts the model between layers (modules that hold parameters)
    so that the largest fragment is as small as possible. Patterns are shell patterns: `*` also matches dots. Raises
    InputError if the model has too few layers, or patterns do not divide its parameters.
    """
    if isinstance(fragments, int):
        return _cut(fragments, parameters)
    result: list[int] = []
    for names, _ in parameters:
        found = {
            number: pattern
            for number, patterns in enumerate(fragments)
            for pattern in patterns
            if any(fnmatchcase(name, pattern) for name in names)
        }
        if len(found) != 1:
            listed = " and ".join(f"{number} ({pattern!r})" for number, pattern in found.items())
            listed = f"fragments {listed}" if found else "no fragment"
            rule = "payload.fragments of the schedule has each parameter in exactly one"
            raise InputError(f"model: parameter {names[0]!r} is in {listed}; {rule}")
        result += found
    for number, patterns in enumerate(fragments):
        if number not in result:
            raise InputError(
                f"model: has no parameter for payload.fragments[{number}] of the schedule ({', '.join(patterns)}); "
                "leave that fragment out"
            )
    return result


def _cut(count: int, parameters: Sequence[tuple[tuple[str, ...], int]]) -> list[int]:
    layers = [list(layer) for _, layer in groupby(parameters, key=lambda one: one[0][0].rpartition(".")[0])]
    if len(layers) < count:
        raise InputError(
            f"model: has {len(layers)} layers with parameters, fewer than the {count} fragments of the schedule; "
            "take fewer, or give payload.fragments as lists of names"
        )
    sizes = [sum(size for _, size in layer) for layer in layers]
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _parts(sizes, middle, 1)[-1] < count else (middle + 1, high)
    return [number for number, layer in zip(_parts(sizes, low, count), layers, strict=True) for _ in layer]


def _parts(sizes: Sequence[int], room: int, least: int) -> list[int]:
    """Return the fragment of each layer, of `sizes` elements; a fragment takes layers while they fit into `room`.

    A new fragment begins earlier if otherwise fewer than `least` fragments would get a layer.
    """
    numbers, number, filled = [], 0, 0
    for place, size in enumerate(sizes):
        is_full = filled + size > room
        is_scarce = len(sizes) - place <= least - 1 - number
        if place and (is_full or is_scarce):
            number, filled = number + 1, 0
        filled += size
        numbers.append(number)
    return numbers


class Placement(Choice):
    """How the gradient of an embedding table reaches all workers."""

    DENSE = "dense"
    """The strategy averages it whole, as any other parameter. Best if a step touches most rows."""
    GATHER = "gather"
    """Every worker holds the table and receives the touched rows of all workers with their gradients (as in Horovod).
    """
    SHARDED = "sharded"
    """Each row is held by one worker, which sends it and receives its gradients, by all-to-all (a parameter server)."""


class Gradient(Choice):
    """The form of a sharded or gathered table's gradient that the optimizer receives."""

    SPARSE = "sparse"
    """Only the rows that a worker touched."""
    DENSE = "dense"
    """All rows, zero where no worker touched the row, as from `Embedding(sparse=False)`: Adam's moments decay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlacement(JsonObject):
    """Where an embedding table of `rows` x `columns` numbers is held and how it is exchanged; `parameter` is its name.

    Sharded: row r is in part r mod `partitions`, and part p on worker `hosts[p mod len(hosts)]`. By default hosts are
    all workers and there are as many partitions as hosts. So neighboring rows (frequent words come first) are spread.

    `codec` encodes rows and gradients on the wire, with one rounding of each number; int8 has one scale per row. Rows
    and optimizer state are stored unrounded. With local aggregation gradients are added inside nodes before they are
    encoded.
    """

    place: ClassVar[str] = "payload.tables."

    parameter: Title
    rows: Count
    columns: Count
    way: Placement = Placement.SHARDED
    gradient: Gradient = Gradient.DENSE
    hosts: tuple[Index, ...] = ()
    partitions: Count | None = None
    codec: Codec = Codec.NONE

    @property
    def in_words(self) -> str:
        return f"{self.way} in {self.codec}" if self.codec.rounds else str(self.way)


ROW_CODECS = tuple(codec for codec in Codec if codec is not Codec.INT4)
"""The codecs that rows of a table may use, the most precise first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload(JsonObject):
    """What a schedule averages: embedding tables, exchanged separately in every step, and all other parameters.

    The other parameters take `outer` steps and are averaged in `fragments`, in turn.

    `local_aggregation`: the gradients of a row are first summed inside each node, and cross between nodes once.
    `average`: a table's gradient is the mean of the workers' gradients, else their sum; `average_dense`: the same for
    other parameters whose gradients are averaged over all workers, synchronously. Tables are exchanged in this order.
    """

    place: ClassVar[str] = "payload."

    tables: tuple[TablePlacement, ...] = ()
    local_aggregation: bool = True
    average: bool = True
    average_dense: bool = True
    outer: OuterStep = PLAIN
    fragments: Fragments = 1

    def __bool__(self) -> bool:
        """Whether any embedding table is listed."""
        return bool(self.tables)

    @property
    def in_words(self) -> str:
        ways = [(route.way, route.in_words) for route in self.apart]
        words = sorted(set(ways), key=lambda one: (one[0] is Placement.GATHER, ways.index(one)))
        return ", ".join(f"{ways.count(one)} {one[1]}" for one in words)

    @property
    def num_fragments(self) -> int:
        """The number of fragments into which parameters that are not in tables are divided."""
        return number_of(self.fragments)

    @property
    def apart(self) -> tuple[TablePlacement, ...]:
        """The tables that are exchanged separately, in order: those with another placement than dense."""
        return tuple(route for route in self.tables if route.way is not Placement.DENSE)

    def table(self, parameter: str) -> TablePlacement | None:
        """Return the placement of the table with this parameter name; None for parameters that are no tables."""
        return next((route for route in self.tables if route.parameter == parameter), None)

    def hosts(self, route: TablePlacement, num_workers: int) -> tuple[int, ...]:
        """Return the ranks that hold a sharded table, by default all; part p is on entry p modulo their number."""
        return route.hosts or tuple(range(num_workers))

    def partitions(self, route: TablePlacement, num_workers: int) -> int:
        """Return the number of parts of a sharded table."""
        return route.partitions or len(self.hosts(route, num_workers))

    def owner(self, route: TablePlacement, row: int, num_workers: int) -> int:
        """Return the rank that holds row `row` of a sharded table."""
        num_hosts = len(route.hosts) or num_workers
        place = row % (route.partitions or num_hosts) % num_hosts
        return route.hosts[place] if route.hosts else place

    def check(self, num_workers: int) -> None:
        self.outer.check()
        check_fragments(self.fragments)
        default = Payload()
        for name in ("local_aggregation", "average", "average_dense"):
            if not self.tables and getattr(self, name) != getattr(default, name):
                raise ScheduleError(f"payload.{name}: is false; there is no table that it could be for; leave it out")
        seen: dict[str, int] = {}
        for place, route in enumerate(self.tables):
            where = f"payload.tables[{place}]"
            if route.parameter in seen:
                raise ScheduleError(
                    f"{where}.parameter: is {route.parameter!r}, as in tables[{seen[route.parameter]}]; "
                    "a parameter has one route"
                )
            seen[route.parameter] = place
            _check_route(route, where, num_workers)


def _check_route(route: TablePlacement, where: str, num_workers: int) -> None:
    """Raise ScheduleError for hosts that do not exist, and for settings without effect; `where` is the path."""
    if route.way is not Placement.SHARDED and (route.hosts or route.partitions is not None):
        raise ScheduleError(f"{where}: way {route.way} has no hosts and no partitions; leave them out")
    if route.way is Placement.DENSE and route.gradient is not Gradient.DENSE:
        raise ScheduleError(
            f"{where}.gradient: is {route.gradient}; way dense averages all rows and hands the optimizer all of them; "
            "leave it out, or choose gather"
        )
    if route.way is Placement.DENSE and route.codec.rounds:
        raise ScheduleError(
            f"{where}.codec: is {route.codec}; way dense is averaged with everything else, for which transport.codec "
            "is; leave it out"
        )
    if route.codec not in ROW_CODECS:
        raise ScheduleError(f"{where}.codec: is {route.codec}, which is for sums; rows have int8 for their shortest")
    for host in route.hosts:
        if not 0 <= host < num_workers:
            raise ScheduleError(f"{where}.hosts: has {host}; workers are 0..{num_workers - 1}")
    if len(set(route.hosts)) < len(route.hosts):
        raise ScheduleError(f"{where}.hosts: has a worker twice; parts are dealt to each in turn")
    least = len(route.hosts) or num_workers
    if route.partitions is not None and not least <= route.partitions <= route.rows:
        rule = f"at least one for each of {least} hosts, and at most one for each of {route.rows} rows"
        raise ScheduleError(f"{where}.partitions: is {route.partitions}; {rule}")


PLAIN_PAYLOAD = Payload()
"""The default payload: the strategy averages all parameters."""
