"""The half of an operation on tables that goes on inside a node, where its rows are coalesced before they cross."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from partreduce.runtime.sharding.calls import Kind
from partreduce.runtime.sharding.columns import Part, asked_in, restored

if TYPE_CHECKING:
    from partreduce.runtime.sharding.calls import Call
    from partreduce.runtime.sharding.columns import Parts
    from partreduce.runtime.sharding.exchange import Exchange, Source


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
