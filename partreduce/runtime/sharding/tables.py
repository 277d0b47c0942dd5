"""Manage all separately placed embedding tables of a run on one worker, and exchange their rows between all workers.

Each operation is one message from every worker to every other (see `Wire.meet`), and then the rows. If rows are merged
per node, the same happens inside the node first. No state changes before everything has arrived.

With a codec, an owner encodes the rows that it sends, and a worker that merges requests for its node forwards the
encoded rows. Gradients are summed in the node, then encoded by their sender. A worker with values outside the codec's
range reports it to all: together with the rows that it sends, or, for gradients, in the next operation, which precedes
any change of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple, NoReturn, Protocol

import torch

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.liveness.heartbeat import TOGETHER
from partreduce.runtime.sharding.table import Layout, Part, Parts, RowCode, Staging, Table
from partreduce.runtime.sharding.table_collectives import Call, CollectiveCalls, Kind, Wire, width_of
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.store import Notes
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.payload import Gradient

Answer = Callable[[torch.Tensor], torch.Tensor]  # returns the rows at these indices of this worker's array
Source = Callable[[Call], tuple[Layout, Answer]]  # layout of a lookup's rows, and function that reads this worker's

ID = torch.int32  # dtype of row numbers and ranks in messages
LOOKUPS = (Kind.LOOKUP, Kind.WHOLE)


class Outcome(NamedTuple):
    """Result of a table operation: what all workers did (`did`), their calls (`met`), and rows or gradients."""

    did: Call
    met: CollectiveCalls
    rows: torch.Tensor | None = None  # of a lookup: the requested rows, in order of the request
    parts: Mapping[int, Part] | None = None  # of gradients: summed gradients of this worker's rows, by table


class Exchange:
    """One worker's table operations (lookups, gradients, norms); all workers must start them in the same order."""

    def __init__(self, wire: Wire, tables: Sequence[Table]) -> None:
        self.wire, self.tables = wire, tables
        self._notes = Notes(wire.reducer.world.store, f"tables/{wire.reducer.key}")
        self._num_problems = 0
        self._problem = ""  # problem with gradients that this worker sent, until reported to all

    def perform(self, call: Call, parts: Parts, source: Source, problem: str = "") -> Outcome:
        """Run one table operation, which each worker describes by its `call`, together with all workers.

        `parts` has, by table index, the row numbers to look up or the gradients to send, each row once. `source`
        returns, for a lookup, the table's layout and a function that reads this worker's rows for others. `problem` is
        a user's mistake in words, "" for none. All workers raise InputError if one has a problem or their calls differ.
        """
        with self.wire.reducer.heartbeat.exchange():
            return self._perform(self._with_problem(call, problem or self._problem), parts, source)

    def _perform(self, call: Call, parts: Parts, source: Source) -> Outcome:
        node, bring, doing, inside, mates = self.wire.node, parts, call, None, None
        if node is not None:
            unowned = {table: part.ids % node.size for table, part in parts.items()}
            targets = unowned | self._targets(parts, source, call, self.wire.collectors)
            inside = Leg(self, node, call, parts, targets=targets)
            mates = inside.met
            bring, doing, inverse = self._collect_requests(inside, call)
        if doing.kind is Kind.REDUCE:
            bring = {table: self._encode_part(table, part) for table, part in bring.items()}
        targets = self._targets(bring, source, doing, self.wire.places)
        leg = Leg(self, self.wire.owners, call, bring, targets=targets, mates=mates)
        if (rank := leg.met.with_problem) is not None:
            self._stop(rank)
        if (did := leg.met.agreed) is None:
            raise InputError(f"tables: {leg.met.difference([table.name for table in self.tables])}")
        if did.kind in LOOKUPS:
            rows, odd = self._answer(leg, did, source)
            if inside is not None:
                rows, odd = inside.hand(did, rows[inverse], odd)
            if odd is not None:
                self._stop(odd)
            code = self.code_of_rows(did)
            return Outcome(did, leg.met, rows=rows if code is None else code.decode(rows))
        return Outcome(did, leg.met, parts=self._sum_parts(leg, did) if did.kind is Kind.REDUCE else None)

    def _targets(self, parts: Parts, source: Source, call: Call, places: torch.Tensor) -> dict[int, torch.Tensor]:
        """Return, by sharded table, the member of the group to which each row's request or gradient is sent.

        `places` has the member by owner of a row; `source` gives the layout of a lookup's rows.
        """
        lookup = source(call)[0] if call.kind in LOOKUPS else None
        layouts = {table: lookup or self.tables[table].layout for table in parts}
        return {t: places[layout.owner_of(parts[t].ids)] for t, layout in layouts.items() if layout is not None}

    def _collect_requests(self, inside: Leg, call: Call) -> tuple[Parts, Call, torch.Tensor]:
        """Merge the rows that this node's workers request or send, so that each row crosses nodes once.

        Returns the merged rows, the operation, and for a lookup the index of each requested row among the merged ones.
        """
        did, nobody = inside.met.agreed, torch.empty(0, dtype=torch.int64)
        if did is None or inside.met.with_problem is not None:
            return {}, call, nobody  # reported when all workers exchange calls
        if did.kind in LOOKUPS:
            ids, inverse = torch.unique(inside.exchange_row_ids(did), return_inverse=True)
            return {did.table: Part(ids)}, did, inverse
        arrived = inside.exchange_gradients(
            did, inside.tables_with_gradients(), lambda table: self.tables[table].nothing()
        )
        return {table: part.coalesced() for table, part in arrived.items()}, did, nobody

    def _with_problem(self, call: Call, problem: str) -> Call:
        if problem:
            self._notes.write(f"problem/{self._num_problems}/{self.wire.rank}", problem)
        return replace(call, has_problem=bool(problem))

    def _stop(self, rank: int) -> NoReturn:
        text = self._notes.wait_for(f"problem/{self._num_problems}/{rank}")
        self._num_problems, self._problem = self._num_problems + 1, ""
        raise InputError(f"worker {rank}: {text}")

    def _encode_part(self, table: int, part: Part) -> Part:
        """Encode `part`, gradients to send; values beyond the codec's range are reported in the next operation."""
        code = self.tables[table].code
        if code is None or part.rows is None:
            return part
        rows = code.encode(part.rows)
        problem = code.problem(self.tables[table].name, "a gradient that it brings", part.rows, rows)
        self._problem = self._problem or problem
        return Part(part.ids, rows)

    def code_of_rows(self, did: Call) -> RowCode | None:
        """Return the codec of the rows in operation `did`: the table's for a lookup, None for any other operation."""
        return self.tables[did.table].code if did.kind is Kind.LOOKUP else None

    def _answer(self, leg: Leg, did: Call, source: Source) -> tuple[torch.Tensor, int | None]:
        """Send the rows that other workers request, read by `source`, and receive those that this worker requests.

        `leg` and `did` are the operation's part and call. Returns the received rows, encoded if there is a codec, and
        the lowest rank that sent values outside the codec's range (None: no rank).
        """
        layout, answer = source(did)
        rows = answer(layout.place_of(leg.exchange_row_ids(did)))
        code, odd = self.code_of_rows(did), None
        if code is not None:
            plain, rows = rows, code.encode(rows)
            problem = code.problem(self.tables[did.table].name, "a row that it hands out", plain, rows)
            odd = self.wire.rank if self._with_problem(did, problem).has_problem else None
        return leg.hand(did, rows, odd)

    def _sum_parts(self, leg: Leg, did: Call) -> dict[int, Part]:
        """Send gradients to the owners of their rows; return the sums of those received, by table."""
        sums: dict[int, Part] = {}
        passed = leg.tables_with_gradients()
        for of_owners in (True, False):
            tables = [table for table in passed if self.tables[table].is_sharded is of_owners]
            arrived = leg.exchange_gradients(
                did, tables, lambda t: self._encode_part(t, self.tables[t].nothing()), to_all=not of_owners
            )
            for table, part in arrived.items():
                code, rows = self.tables[table].code, part.rows
                plain = part if code is None or rows is None else Part(part.ids, code.decode(rows))
                sums[table] = plain.coalesced()
        return sums


class Leg:
    """One part of a table operation, inside one group: members exchange calls and requests, then rows.

    An operation has one part between nodes, after one inside the node if rows are merged there.
    """

    def __init__(
        self,
        exchange: Exchange,
        group: Communicator,
        call: Call,
        parts: Parts,
        *,
        targets: Mapping[int, torch.Tensor],
        mates: CollectiveCalls | None = None,
    ) -> None:
        """Exchange calls with the group.

        `targets` has, for each row of a table, the group's member that gets it; rows of other tables go to all. `mates`
        has the calls of this node, if rows were merged there first.
        """
        self._exchange, self._wire, self._group = exchange, exchange.wire, group
        self._is_node = group is exchange.wire.node
        counts = torch.zeros(group.size, len(exchange.tables), dtype=torch.int64)  # 0: none sent; else rows + 1
        self._parts = dict(parts)
        self._orders: dict[int, torch.Tensor] = {}
        for table, part in parts.items():
            counts[:, table] = len(part.ids) + 1
            if (target := targets.get(table)) is not None:
                self._orders[table] = order = torch.argsort(target, stable=True)
                self._parts[table] = part.taken(order)
                counts[:, table] = torch.bincount(target, minlength=group.size) + 1
        self._sends = (counts - 1).clamp(min=0)
        brings = torch.zeros(group.size, dtype=torch.int64)
        if not self._is_node:
            for table in self._orders:
                if (rows := self._parts[table].rows) is not None:
                    brings += self._sends[:, table] * (ID.itemsize + width_of(rows))
        requested = next((part.ids for part in self._parts.values() if part.rows is None), None)
        self.met = self._wire.meet(group, call, counts, requested, brings=int(brings.max()), mates=mates)
        self._receives = (self.met.counts - 1).clamp(min=0)

    def tables_with_gradients(self) -> list[int]:
        found: list[int] = (self.met.counts > 0).any(0).nonzero().view(-1).tolist()
        return found

    def exchange_row_ids(self, did: Call) -> torch.Tensor:
        if self.met.ids is not None:
            return self.met.ids
        ids = self._parts[did.table].ids if did.table in self._parts else torch.empty(0)
        what = f"rows asked for {'in a node' if self._is_node else f'of {self._exchange.tables[did.table].name}'}"
        one, columns, longest = [did.table], [ids.to(ID)], self.met.longest * ID.itemsize
        sends, receives = self._sends[:, one], self._receives[:, one]
        (ids,) = self._wire.swap(what, self._group, did.step, columns, sends=sends, receives=receives, longest=longest)
        return ids.long()

    def hand(self, did: Call, rows: torch.Tensor, odd: int | None) -> tuple[torch.Tensor, int | None]:
        """Send `rows`, those that other members requested, and receive those requested here.

        `odd` is a rank whose rows exceeded the codec's range, or None. Returns the rows, and the lowest `odd` of all.
        """
        what = f"rows of {self._exchange.tables[did.table].name}{' in a node' if self._is_node else ''}"
        one, columns, longest = [did.table], [rows], self.met.longest * width_of(rows)
        sends, receives = self._receives[:, one], self._sends[:, one]
        if self._exchange.code_of_rows(did) is not None:
            # All members must learn of a problem, also those that request nothing here.
            word = torch.full((self._group.size, 1), -1 if odd is None else odd, dtype=ID)
            ones = torch.ones_like(sends)
            columns, sends, receives = [word, rows], torch.cat([ones, sends], 1), torch.cat([ones, receives], 1)
            longest = longest and ID.itemsize + longest
        *words, rows = self._wire.swap(
            what, self._group, did.step, columns, sends=sends, receives=receives, longest=longest
        )
        order = self._orders.get(did.table)
        if order is not None:
            arrived, rows = rows, torch.empty_like(rows)
            rows[order] = arrived
        return rows, min((rank for word in words for rank in word.view(-1).tolist() if rank >= 0), default=None)

    def exchange_gradients(
        self, did: Call, tables: list[int], nothing: Callable[[int], Part], *, to_all: bool = False
    ) -> dict[int, Part]:
        """Exchange gradients of `tables` (indices) with the group in operation `did`; return those received, by table.

        Each member sends each row's gradient to the member that the leg's `targets` name; with `to_all`, to all. For a
        table of which this worker has no gradient it sends `nothing(table)`, a part without rows.
        """
        if not tables:
            return {}
        parts = [self._parts.get(table) or nothing(table) for table in tables]
        # Each table has two columns: row numbers and rows.
        columns = [part.ids.to(ID) for part in parts] + [part.rows for part in parts if part.rows is not None]
        sends, receives = self._sends[:, tables].repeat(1, 2), self._receives[:, tables].repeat(1, 2)
        if to_all:
            arrived = self._wire.gather("gathered gradients", did.step, columns, receives)
        else:
            what, longest = "gradients of tables", self.met.longest
            arrived = self._wire.swap(
                what, self._group, did.step, columns, sends=sends, receives=receives, longest=longest
            )
        ids, rows = arrived[: len(tables)], arrived[len(tables) :]
        return {table: Part(ids[place].long(), rows[place]) for place, table in enumerate(tables)}


class Steps(Protocol):
    """Interface of a worker's training engine as tables use it: the numbers of the current step and round.

    `declare` informs the workers without data (inside `join`) that this worker trains in the current round.
    """

    @property
    def steps(self) -> int: ...
    @property
    def round(self) -> int: ...
    def declare(self) -> None: ...


class Tables:
    """All separately placed tables of a run on one worker, in the order in which they are exchanged.

    Methods that exchange rows raise InputError, equal on all workers, if a user made a mistake or workers' operations
    differ, and PeerFailedError if a worker is gone.
    """

    def __init__(self, tables: Sequence[Table] = (), *, coalesces: bool = False) -> None:
        self.tables, self._coalesces = tuple(tables), coalesces
        self.rank, self.num_workers = 0, 1
        self._exchange: Exchange | None = None
        self._guard: Callable[[Callable[[], Outcome]], Outcome] = lambda action: action()
        self._engine: Steps | None = None
        self.clips = False  # whether the script clips by the global norm, for which all workers exchange
        self._step = 0
        self._reduced = False
        self._closed = False
        self._without_clipping: list[int] = []  # workers without data that cannot clip
        self.device = torch.device("cpu")  # of the model's other parameters, and of tables initialized here

    def __bool__(self) -> bool:
        return bool(self.tables)

    def __iter__(self) -> Iterator[Table]:
        return iter(self.tables)

    @property
    def bytes_across(self) -> int:
        """Bytes that this worker has sent to other nodes in table operations."""
        return 0 if self._exchange is None else self._exchange.wire.bytes_across

    def of(self, parameter: torch.Tensor) -> Table | None:
        return next((table for table in self.tables if table.parameter is parameter), None)

    def connect(
        self, reducer: Reducer, cluster: Cluster, guard: Callable[[Callable[[], Outcome]], Outcome], engine: Steps
    ) -> None:
        """Connect the workers' tables; all workers call it. `guard` runs each operation; `engine` counts steps."""
        self.rank, self.num_workers = reducer.world.rank, reducer.world.size
        self._guard, self._engine = guard, engine
        checks = torch.sparse.check_sparse_tensor_invariants
        if any(table.route.gradient is Gradient.SPARSE for table in self.tables) and not checks.is_enabled():  # type: ignore[no-untyped-call]
            # Disable torch's checks of sparse tensors explicitly (the default); otherwise torch warns during a step.
            checks.disable()  # type: ignore[no-untyped-call]
        reducer.heartbeat.unequal = TOGETHER
        if reducer.buckets:
            self.device = reducer.buckets[0].device
        staging = Staging(reducer.world.streams)
        for table in self.tables:
            table.staging = staging
        gathers = any(not table.is_sharded for table in self.tables)
        host = _on_host(reducer)
        wire = Wire(host, cluster, lambda: engine.round, coalesces=self._coalesces, gathers=gathers)
        self._exchange = Exchange(wire, self.tables)

    @property
    def is_connected(self) -> bool:
        return self._exchange is not None

    def check_other_use(self, table: Table, gradient: torch.Tensor | None) -> None:
        """Gradient hook that raises InputError for a gradient of anything but a lookup, such as a weight penalty."""
        if gradient is not None:
            self._end(
                f"parameter {table.name!r}: the script trains it by more than lookups of its embedding (such as "
                "F.linear with its weight, or a penalty on it), and all rows are not here, or not in step; give it "
                "way 'dense'"
            )

    def _end(self, problem: str) -> None:
        def end() -> Outcome:
            raise InputError(problem)

        self._guard(end)

    def broadcast(self) -> None:
        """Broadcast worker 0's values of the tables that are not sharded."""
        for table in self.tables:
            if self._exchange is not None and not table.is_sharded:
                whole = table.parameter.detach()
                for first, last in table.blocks():
                    block = whole[first:last]
                    rows = table.staging.to_host(block)
                    self._exchange.wire.broadcast(rows)
                    if rows is not block:
                        block.copy_(table.staging.to_device(rows, block.device))

    def block(
        self, table: Table, ids: torch.Tensor, layout: Layout, array: torch.Tensor, number: int = 0
    ) -> torch.Tensor:
        """Fetch the rows `ids` of an array to the host, in an exchange of all workers, who answer from their `array`.

        `layout` says which worker owns which row; `number` identifies the array, 0 being the table's weights.
        """
        self._step = self._current_step()  # so that workers without data take part, and the error names them

        def answer(places: torch.Tensor) -> torch.Tensor:
            return table.staging.to_host(array[table.staging.to_device(places, array.device)])

        call = Call(Kind.WHOLE, self._step, table.index, number)
        return self._looked_up(call, ids, source=lambda _call: (layout, answer))

    def with_advice(self, advice: str) -> AbstractContextManager[None]:
        assert self._exchange is not None, "tables are connected before their blocks are asked for"
        return self._exchange.wire.reducer.heartbeat.with_advice(advice)

    def fetch(self, table: Table, copy: int, ids: torch.Tensor, *, trains: bool, problem: str = "") -> torch.Tensor:
        """Return the rows `ids` (distinct) of a sharded table, in CPU memory; all workers call it, even without rows.

        `copy` is the number of the model's copy that looks them up, 0 the trained one; `trains` says whether gradients
        will follow; a `problem`, a user's mistake, is raised on all workers.
        """
        self._step, self._closed = self._current_step(), False
        return self._looked_up(Call(Kind.LOOKUP, self._step, table.index, copy, trains), ids, problem=problem)

    def stop_for(self, problem: str, *, trains: bool) -> None:
        """Raise InputError for a user's mistake, `problem`, on all workers, at the next exchange of gradients.

        If the lookup does not train there is none, so only this worker raises it, at once.
        """
        if not trains:
            raise InputError(f"worker {self.rank}: {problem}")
        self._perform(Call(Kind.REDUCE, self._current_step()), problem=problem)

    def exchange_after_backward(self) -> None:
        """Let all workers exchange their tables' gradients at the end of the current backward pass."""
        # Queued for each lookup; the first callback exchanges the gradients of all lookups.
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)  # noqa: SLF001 - as torch's DDP

    def _end_backward(self) -> None:
        if any(table.pending for table in self.tables):
            self._reduce()

    def _reduce(self) -> None:
        self._step, self._closed = self._current_step(), False
        parts = {table.index: part for table in self.tables if (part := table.taken()) is not None}
        self._take(self._perform(Call(Kind.REDUCE, self._step), parts))

    def _take(self, outcome: Outcome) -> None:
        self._reduced = True
        for index, part in (outcome.parts or {}).items():
            self.tables[index].add(part)

    def close_step(self, value: Callable[[], float] | None = None) -> list[float] | None:
        """End a step's lookups, before dense gradients are averaged or the optimizer steps.

        `value()`, called after gradients are exchanged, returns this worker's part of a norm. Returns all workers'
        values; None without `value`, or if they must be exchanged yet (closed before, or a worker has no data).
        """
        if not self.tables or self._closed:
            return None
        if not self._reduced:
            self._reduce()
        self._step = self._current_step()
        self.clips = self.clips or value is not None
        mine = 0.0 if value is None else value()
        met = self._perform(Call(Kind.STEP, self._step, trains=value is not None, value=mine)).met
        ended = met.without_data
        self._without_clipping = [rank for rank, call in ended.items() if not call.value]
        self._reduced, self._closed = False, True
        return None if ended or value is None else [call.value for call in met.calls.values()]

    def stepped(self) -> None:
        self._closed = False

    def serve(self, *, changes_means: bool) -> bool:
        """Take part in one step's exchanges as a worker without data; return whether any worker took the step.

        `changes_means` says whether this worker can change averaged gradients like the script, for example clip them.
        """
        self._step = self._current_step()
        while True:
            outcome = self._perform(Call(Kind.ANY, self._step, value=float(changes_means)))
            if outcome.did.kind is Kind.REDUCE:
                self._take(outcome)
            elif outcome.did.kind in (Kind.STEP, Kind.ANY):
                self._reduced, self._closed = False, True
                return outcome.did.kind is Kind.STEP

    def exchange_norm(self, value: float) -> list[float]:
        """Send `value`, this worker's part of a norm, to all workers; return every worker's, in order of ranks."""
        self.clips = True
        if self._without_clipping:
            self._end(
                f"clip_grad_norm_: the data of worker {self._without_clipping[0]} ended, and it would continue with "
                "mean gradients as they are; give what this script does to them as a function, "
                "join(after_averaging=...)"
            )
        outcome = self._perform(Call(Kind.NORM, self._step, value=value))
        return [call.value for call in outcome.met.calls.values()]

    def _current_step(self) -> int:
        """Return this worker's current step, after informing workers without data that the step has started."""
        assert self._engine is not None, "tables are connected before they are used"
        self._engine.declare()
        return self._engine.steps

    def _looked_up(
        self, call: Call, ids: torch.Tensor, *, source: Source | None = None, problem: str = ""
    ) -> torch.Tensor:
        rows = self._perform(call, {call.table: Part(ids)}, source=source, problem=problem).rows
        assert rows is not None, "a lookup gives rows"
        return rows

    def _perform(
        self, call: Call, parts: Parts | None = None, *, source: Source | None = None, problem: str = ""
    ) -> Outcome:
        exchange = self._exchange
        if exchange is None:
            raise InputError("tables: were not connected")
        return self._guard(lambda: exchange.perform(call, parts or {}, source or self._source, problem))

    def _source(self, call: Call) -> tuple[Layout, Answer]:
        """Return the layout of the rows in a lookup by `call`, and a function that reads this worker's rows for it.

        The function scales rows down to the module's `max_norm`. Raises InputError if this worker has no such module.
        """
        table = self.tables[call.table]
        module = table.copies[call.copy]() if call.copy < len(table.copies) else None
        if module is None or table.layout is None:
            raise InputError(f"parameter {table.name!r}: this worker has no copy {call.copy} of it")
        weight, max_norm, norm_type = module.weight.detach(), module.max_norm, module.norm_type

        def answer(places: torch.Tensor) -> torch.Tensor:
            here = table.staging.to_device(places, weight.device)
            if max_norm is not None and len(places):
                torch.embedding_renorm_(weight, here, max_norm, norm_type)
            return table.staging.to_host(weight[here])

        return table.layout, answer


def _on_host(reducer: Reducer) -> Reducer:
    """Return a reducer that waits in the host, not in a device's stream, as table exchanges need."""
    world = reducer.world.on_host()
    is_host = world is reducer.world and not reducer.streams.runs_ahead
    return reducer if is_host else reducer.of((), world=world)  # shares its watch, for error messages
