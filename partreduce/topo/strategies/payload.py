"""The *payload* axis: tables of which a step touches few rows go their own way (Parallax); outer steps for the rest.

Source: Kim et al., Parallax: automatic data-parallel training of deep neural networks, 2018 (arXiv 1808.02621), and
EuroSys 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice, Count, Index, JsonObject, Title
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.fragments import Fragments, check_fragments, number_of
from partreduce.topo.strategies.outer import PLAIN, OuterStep


class Placement(Choice):
    """How the gradient of one table reaches all workers."""

    DENSE = "dense"
    """As every other parameter: the strategy averages it whole. For a table of which a step touches most rows."""
    GATHER = "gather"
    """Every worker holds the table and gets all workers' touched rows with their gradients (Horovod's way)."""
    SHARDED = "sharded"
    """A row lives on one worker, which hands it out and takes its gradients, as parameter servers do; by all-to-all."""


class Gradient(Choice):
    """What the optimizer sees of a table's gradient, where the table is sharded or gathered."""

    SPARSE = "sparse"
    """The touched rows only."""
    DENSE = "dense"
    """All rows, zeros where no worker touched one, as an embedding with `sparse=False` has it: Adam's moments decay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlacement(JsonObject):
    """The way of one table of `rows` x `columns` numbers; `parameter` is its name in the model.

    Sharded: row r lies in part r mod `partitions`, and part p on worker `hosts[p mod len(hosts)]`; without hosts on all
    workers, without `partitions` as many as hosts. So neighboring rows (frequent words come first) are spread.

    `codec` is for what crosses between those who hand a row out, or bring its gradient, and those who get it: each
    number is rounded once. Rows and optimizer state stay as they are where they live. With local aggregation gradients
    are added inside nodes as they are, before they are coded. int8 has one scale for each row.
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
        """Its way, and its codec where it has one."""
        return f"{self.way} in {self.codec}" if self.codec.rounds else str(self.way)


ROW_CODECS = tuple(codec for codec in Codec if codec is not Codec.INT4)
"""What a table's rows may travel in, the finest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload(JsonObject):
    """What travels apart from the strategy's own averaging, in every step and synchronously.

    All else takes `outer` steps, in `fragments` that take turns.

    `local_aggregation`: workers of one node first agree on each row that several of them touch, and it crosses to
    another node once. `average`: whether a table's gradient is the workers' mean, or their sum;
    `average_dense`: the same of everything else, where that is gradients of all workers, synchronously.
    Tables are exchanged in the order in which they stand here.
    """

    word: ClassVar[str] = "routes"
    place: ClassVar[str] = "payload."

    tables: tuple[TablePlacement, ...] = ()
    local_aggregation: bool = True
    average: bool = True
    average_dense: bool = True
    outer: OuterStep = PLAIN
    fragments: Fragments = 1

    def __bool__(self) -> bool:
        """Whether anything travels apart."""
        return bool(self.tables)

    @property
    def in_words(self) -> str:
        """How many tables go which way, but for those that go densely; in a few words."""
        ways = [(route.way, route.in_words) for route in self.apart]
        words = sorted(set(ways), key=lambda one: (one[0] is Placement.GATHER, ways.index(one)))
        return ", ".join(f"{ways.count(one)} {one[1]}" for one in words)

    @property
    def num_fragments(self) -> int:
        """Into how many parts what does not travel apart is cut."""
        return number_of(self.fragments)

    @property
    def turns_in_words(self) -> str:
        """Of how many fragments; empty where there is one."""
        return f"{self.num_fragments} fragments" if self.num_fragments > 1 else ""

    @property
    def apart(self) -> tuple[TablePlacement, ...]:
        """The tables that the strategy does not average itself, in their order."""
        return tuple(route for route in self.tables if route.way is not Placement.DENSE)

    def table(self, parameter: str) -> TablePlacement | None:
        """The route of a parameter; None where it goes by the strategy."""
        return next((route for route in self.tables if route.parameter == parameter), None)

    def hosts(self, route: TablePlacement, num_workers: int) -> tuple[int, ...]:
        """The workers on which a sharded table lies, in the order in which parts are dealt."""
        return route.hosts or tuple(range(num_workers))

    def partitions(self, route: TablePlacement, num_workers: int) -> int:
        """Into how many parts a sharded table is cut."""
        return route.partitions or len(self.hosts(route, num_workers))

    def owner(self, route: TablePlacement, row: int, num_workers: int) -> int:
        """The one worker on which a row lies."""
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
    """Refuse hosts that do not exist, and settings that mean nothing for the table's way."""
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
        raise ScheduleError(
            f"{where}.partitions: is {route.partitions}; at least one for each of {least} hosts, and at most one for "
            f"each of {route.rows} rows"
        )


PLAIN_PAYLOAD = Payload()
"""Everything goes by the strategy."""
