"""Exchange: what all workers do with their tables together: look rows up, bring gradients to owners, meet.

Each operation is one message from all to all (see `calls`) and then the rows; where rows are coalesced per node, the
same is done inside the node first: there the collector of a row asks, or sums, for all of its node. Nothing is changed
before everything has arrived.

Where a table has a codec (`row_code`), an owner codes the rows that it hands out, and a collector hands their codes on
as they came; who brings gradients across codes them, which is after they were summed in the node. Everybody decodes,
the owner its own, too. Who has numbers that do not fit says so to all: next to the rows that it hands out, in four
bytes that collectors pass on; of gradients before the next operation, which comes before a row changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch

from partreduce.runtime.sharding.calls import Call, Kind, Met
from partreduce.runtime.sharding.columns import (
    Part,
    Parts,
    asked_in,
    by_member,
    dealt,
    put_together,
    restored,
    width_of,
)
from partreduce.runtime.sharding.layout import Layout
from partreduce.runtime.sharding.row_code import RowCode
from partreduce.runtime.sharding.wire import Wire
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.store import Notes
from partreduce.topo.errors import InputError

Answer = Callable[[torch.Tensor], torch.Tensor]
"""Gives the rows at these places of this worker's array."""
Source = Callable[[Call], tuple[Layout, Answer]]
"""The layout of a lookup, and how this worker answers it."""

ID = torch.int32
"""How row numbers travel, and ranks."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an exchange has to know of a table: its name and an empty array like its rows.

    And its layout where it is sharded, and the code in which its rows cross, if they have one.
    """

    name: str
    like: torch.Tensor
    """[0, columns]"""
    layout: Layout | None
    code: RowCode | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an operation: what it was, all workers' calls, and the rows."""

    did: Call
    met: Met
    rows: torch.Tensor | None = None
    """Of a lookup: the rows asked for, in the order asked."""
    parts: Mapping[int, Part] | None = None
    """Of gradients: for each table that any worker brought gradients of, the sums of this worker's rows."""


class Exchange:
    """One worker's part in the operations of all tables of a run.

    Args:
        wire: its collectives.
        shapes: the tables, in the order in which they are exchanged.
        round_: the round that this worker is in, for reports.
    """

    def __init__(self, wire: Wire, shapes: Sequence[Shape], round_: Callable[[], int]) -> None:
        self.wire, self.shapes, self.round = wire, shapes, round_
        self._names = [shape.name for shape in shapes]
        self.collectors, self._places = wire.collectors(), wire.places_among_owners()
        self._notes = Notes(wire.reducer.world.store, f"tables/{wire.reducer.key}")
        self._num_problems = 0
        self._problem = ""
        """What was wrong with gradients that this worker brought, until all have heard of it."""

    def perform(
        self,
        call: Call,
        parts: Parts | None = None,
        *,
        source: Source,
        problem: str = "",
    ) -> Outcome:
        """Do one operation together with all workers.

        Args:
            call: what this worker does.
            parts: what it asks for, or brings; without repetitions. Lookups concern one table.
            source: the layout of a lookup, and how this worker answers it.
            problem: a mistake of this worker's user, for which all stop.

        Raises:
            InputError: workers do different things, or one found a mistake; the same line on all of them.
            PeerFailedError: a worker is gone.
        """
        with self.wire.reducer.heartbeat.exchange():
            return self._perform(self._with_problem(call, problem or self._problem), parts, source)

    def _perform(self, call: Call, parts: Parts | None, source: Source) -> Outcome:
        inside = Inside(self, call, parts or {}, source) if self.wire.node is not None else None
        bring, doing, mates = (parts or {}, call, None) if inside is None else (inside.bring, inside.doing, inside.met)
        if doing.kind is Kind.REDUCE:
            bring = self._coded(bring)
        owners = self.wire.owners
        counts, ordered, orders = self.addressed(owners, bring, self._owners(bring, source, doing))
        brings = self._brings(ordered, counts) if doing.kind is Kind.REDUCE else 0
        met = self.wire.meet(owners, call, counts, self.round(), asked_in(ordered), brings=brings, mates=mates)
        did = self._agreed(met)
        if did.kind in (Kind.LOOKUP, Kind.WHOLE):
            rows, odd = self._answered(did, ordered, counts, met, source)
            if did.table in orders:
                rows = restored(rows, orders[did.table])
            if inside is not None:
                rows, odd = inside.handed_out(did, rows, odd)
            if odd is not None:
                self._stop(odd)
            code = self.code_of_rows(did)
            return Outcome(did, met, rows=rows if code is None else code.decode(rows))
        if did.kind is Kind.REDUCE:
            return Outcome(did, met, parts=self._brought(did, bring, ordered, counts, met))
        return Outcome(did, met)

    def _with_problem(self, call: Call, problem: str) -> Call:
        """The call of a worker that has found a mistake of its user, or none."""
        if problem:
            self._notes.write(f"problem/{self._num_problems}/{self.wire.rank}", problem)
        return replace(call, has_problem=bool(problem))

    def _stop(self, rank: int) -> NoReturn:
        """Stop for what another worker, or this one, has found."""
        text = self._notes.wait_for(f"problem/{self._num_problems}/{rank}")
        self._num_problems, self._problem = self._num_problems + 1, ""
        raise InputError(f"worker {rank}: {text}")

    def _coded(self, bring: Parts) -> Parts:
        """Gradients as they cross; what is wrong with numbers that do not fit is kept for the next operation."""
        coded = dict(bring)
        for table, part in bring.items():
            shape = self.shapes[table]
            if shape.code is not None and part.rows is not None:
                rows = shape.code.encode(part.rows)
                coded[table] = Part(part.ids, rows)
                problem = shape.code.problem(shape.name, "a gradient that it brings", part.rows, rows)
                self._problem = self._problem or problem
        return coded

    def code_of_rows(self, did: Call) -> RowCode | None:
        """How rows that are handed out travel: those of a lookup coded, whole tables as they are."""
        return self.shapes[did.table].code if did.kind is Kind.LOOKUP else None

    def _owners(self, bring: Parts, source: Source, doing: Call) -> dict[int, torch.Tensor | None]:
        """The place of the owner that each row goes to; None for rows that go to all."""
        if doing.kind in (Kind.LOOKUP, Kind.WHOLE):
            layout = source(doing)[0]
            return {table: self._places[layout.owner_of(part.ids)] for table, part in bring.items()}
        layouts = {table: self.shapes[table].layout for table in bring}
        return {
            table: None if (one := layouts[table]) is None else self._places[one.owner_of(part.ids)]
            for table, part in bring.items()
        }

    def addressed(
        self, group: Communicator, parts: Parts, targets: Mapping[int, torch.Tensor | None]
    ) -> tuple[torch.Tensor, Parts, dict[int, torch.Tensor]]:
        """What to tell each member, int64 [members, tables]: 0 for a table not brought, else 1 more than its rows.

        And the parts in order of the members that they go to, with these orders.
        """
        counts = torch.zeros(group.size, len(self.shapes), dtype=torch.int64)
        ordered: Parts = {}
        orders: dict[int, torch.Tensor] = {}
        for table, part in parts.items():
            target = targets[table]
            if target is None:
                counts[:, table], ordered[table] = len(part.ids) + 1, part
            else:
                ordered[table], orders[table], count = by_member(part, target, group.size)
                counts[:, table] = count + 1
        return counts, ordered, orders

    def _agreed(self, met: Met) -> Call:
        rank, did = met.with_problem, met.agreed
        if rank is not None:
            self._stop(rank)
        if did is None:
            raise InputError(f"tables: {met.difference(self._names)}")
        return did

    def _answered(
        self,
        did: Call,
        asked: Parts,
        counts: torch.Tensor,
        met: Met,
        source: Source,
    ) -> tuple[torch.Tensor, int | None]:
        """Ask the owners unless they know, answer who asks, and return the rows, or their codes, in order of owners.

        And the first worker that said that its rows do not fit their codec.
        """
        layout, answer = source(did)
        sends = (counts[:, did.table] - 1).clamp(min=0).tolist()
        receives = (met.counts[:, did.table] - 1).clamp(min=0).tolist()
        wanted = met.ids
        wire, owners = self.wire, self.wire.owners
        name, moment = self.shapes[did.table].name, (did.step, self.round())
        if wanted is None:
            ids = asked[did.table].ids if did.table in asked else torch.empty(0, dtype=torch.int64)
            what = f"rows asked for of {name}"
            wanted = wire.swap(what, owners, ids.to(ID), sends, receives, moment=moment, longest=met.longest).long()
        rows = answer(layout.place_of(wanted))
        code, odd = self.code_of_rows(did), None
        if code is not None:
            plain, rows = rows, code.encode(rows)
            problem = code.problem(name, "a row that it hands out", plain, rows)
            odd = wire.rank if self._with_problem(did, problem).has_problem else None
        return self.handed(did, owners, rows, (receives, sends), odd, longest=met.longest)

    def handed(
        self,
        did: Call,
        group: Communicator,
        rows: torch.Tensor,
        counts: tuple[list[int], list[int]],
        odd: int | None,
        *,
        longest: int = 0,
    ) -> tuple[torch.Tensor, int | None]:
        """Hand a lookup's rows to a group, so many to each member and from each; with codes goes who has odd rows.

        Returns:
            Theirs, and the lowest rank that was heard of.
        """
        what = f"rows of {self.shapes[did.table].name}{' in a node' if group is self.wire.node else ''}"
        moment = did.step, self.round()
        if self.code_of_rows(did) is None:
            return self.wire.swap(what, group, rows, *counts, moment=moment, longest=longest), None
        # Everybody has to know, also who asks for nothing here.
        rows, said = self.wire.swap_with_word(
            what, group, rows, *counts, word=-1 if odd is None else odd, moment=moment, longest=longest
        )
        return rows, min((rank for rank in said if rank >= 0), default=None)

    def _brings(self, ordered: Parts, counts: torch.Tensor) -> int:
        """The most bytes that this worker brings to one owner."""
        total = torch.zeros(len(counts), dtype=torch.int64)
        for table, part in ordered.items():
            if part.rows is not None and self.shapes[table].layout is not None:
                total += (counts[:, table] - 1) * (ID.itemsize + width_of(part.rows))
        return int(total.max())

    def _brought(self, did: Call, bring: Parts, ordered: Parts, counts: torch.Tensor, met: Met) -> dict[int, Part]:
        """Bring gradients where they belong and add up what came; for tables that some worker brought."""
        sums: dict[int, Part] = {}
        said = met.counts
        some = (said > 0).any(0).tolist()
        theirs = (said - 1).clamp(min=0)
        to_owners = [t for t, shape in enumerate(self.shapes) if some[t] and shape.layout is not None]
        to_all = [t for t, shape in enumerate(self.shapes) if some[t] and shape.layout is None]
        mine = (counts - 1).clamp(min=0)
        if to_owners:
            parts = [ordered.get(t) or self._nothing_coded(t) for t in to_owners]
            came = self.swapped(
                self.wire.owners, did, parts, mine[:, to_owners], theirs[:, to_owners], longest=met.longest
            )
            sums |= {t: self._decoded(t, part).coalesced() for t, part in zip(to_owners, came, strict=True)}
        if to_all:
            parts = [bring.get(t) or self._nothing_coded(t) for t in to_all]
            came = self._gathered(did, parts, theirs[:, to_all])
            sums |= {t: self._decoded(t, part).coalesced() for t, part in zip(to_all, came, strict=True)}
        return sums

    def swapped(
        self,
        group: Communicator,
        did: Call,
        parts: Sequence[Part],
        mine: torch.Tensor,
        theirs: torch.Tensor,
        *,
        longest: int = 0,
    ) -> list[Part]:
        """Exchange parts of several tables with a group; what came of each, from all members in turn."""
        columns = columns_of(parts)
        # As one array of bytes for each member; each table is two columns, its row numbers and its rows.
        message, sends = dealt(columns, mine.repeat(1, len(columns) // len(parts)))
        counts = theirs.repeat(1, len(columns) // len(parts))
        sizes = counts * torch.tensor([width_of(column) for column in columns])
        came = self.wire.swap(
            "gradients of tables" if len(columns) > len(parts) else "rows asked for in a node",
            group,
            message,
            sends,
            sizes.sum(1).tolist(),
            moment=(did.step, self.round()),
            longest=longest,
        )
        return parts_of(put_together(came, counts, columns), len(parts))

    def _gathered(self, did: Call, parts: Sequence[Part], theirs: torch.Tensor) -> list[Part]:
        """Everybody's parts of several tables, in order of workers."""
        columns = columns_of(parts)
        counts = theirs.repeat(1, 2)
        widths = torch.tensor([width_of(column) for column in columns])
        message, _ = dealt(columns, torch.tensor([[len(column) for column in columns]]))
        lengths = (counts * widths).sum(1).tolist()
        came = self.wire.gather("gathered gradients", message, lengths, moment=(did.step, self.round()))
        return parts_of(put_together(torch.cat(came), counts, columns), len(parts))

    def nothing(self, table: int) -> Part:
        return Part(torch.empty(0, dtype=torch.int64), self.shapes[table].like)

    def _nothing_coded(self, table: int) -> Part:
        return self._coded({table: self.nothing(table)})[table]

    def _decoded(self, table: int, part: Part) -> Part:
        code = self.shapes[table].code
        return part if code is None or part.rows is None else Part(part.ids, code.decode(part.rows))


class Inside:
    """The first half of an operation, inside a node: its collectors learn what all of the node ask for or bring."""

    def __init__(
        self,
        exchange: Exchange,
        call: Call,
        parts: Parts,
        source: Source,
    ) -> None:
        node = exchange.wire.node
        assert node is not None, "made only where there is one"
        self._exchange, self._node = exchange, node
        self.doing = call
        self.bring: Parts = {}
        self._inverse = torch.empty(0, dtype=torch.int64)
        lookup = call.kind in (Kind.LOOKUP, Kind.WHOLE)
        targets: dict[int, torch.Tensor | None] = {}
        for table, part in parts.items():
            layout = source(call)[0] if lookup else exchange.shapes[table].layout
            collector = part.ids % node.size if layout is None else exchange.collectors[layout.owner_of(part.ids)]
            targets[table] = collector
        counts, ordered, self._orders = exchange.addressed(node, parts, targets)
        self.met = met = exchange.wire.meet(node, call, counts, exchange.round(), asked_in(ordered))
        self._counts, self._theirs = (counts - 1).clamp(min=0), (met.counts - 1).clamp(min=0)
        if met.agreed is None or met.with_problem is not None:
            return  # everybody hears of it when all workers meet
        self.doing = met.agreed
        tables = (met.counts > 0).any(0).nonzero().view(-1).tolist()
        if not tables:
            return
        if met.ids is not None:
            ids, self._inverse = torch.unique(met.ids, return_inverse=True)
            self.bring = {tables[0]: Part(ids)}
            return
        nothing = [exchange.nothing(t) for t in tables]
        if self.doing.kind is not Kind.REDUCE:
            nothing = [Part(part.ids) for part in nothing]
        sent = [ordered.get(t) or none for t, none in zip(tables, nothing, strict=True)]
        came = exchange.swapped(node, self.doing, sent, self._counts[:, tables], self._theirs[:, tables])
        if self.doing.kind is Kind.REDUCE:
            self.bring = {t: part.coalesced() for t, part in zip(tables, came, strict=True)}
        else:
            ids, self._inverse = torch.unique(came[0].ids, return_inverse=True)
            self.bring = {tables[0]: Part(ids)}

    def handed_out(self, did: Call, rows: torch.Tensor, odd: int | None) -> tuple[torch.Tensor, int | None]:
        """The rows that this worker asked for, from the collectors of its node; it hands out what it collected.

        And the first worker whose rows do not fit, of which this one or another of the node has heard.
        """
        exchange = self._exchange
        mine, theirs = self._counts[:, did.table].tolist(), self._theirs[:, did.table].tolist()
        rows, odd = exchange.handed(did, self._node, rows[self._inverse], (theirs, mine), odd)
        return restored(rows, self._orders[did.table]) if did.table in self._orders else rows, odd


def columns_of(parts: Sequence[Part]) -> list[torch.Tensor]:
    """Row numbers of all parts, then their rows where they have any."""
    ids = [part.ids.to(ID) for part in parts]
    return ids + [part.rows for part in parts if part.rows is not None]


def parts_of(columns: Sequence[torch.Tensor], num_parts: int) -> list[Part]:
    """The inverse of `columns_of`."""
    ids, rows = columns[:num_parts], columns[num_parts:]
    return [Part(one.long(), rows[place] if rows else None) for place, one in enumerate(ids)]
