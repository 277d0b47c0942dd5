"""Manage all separately placed parameters of a run on one worker, from wrapping to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.liveness.heartbeat import TOGETHER
from partreduce.runtime.sharding.exchange import Answer, Exchange, Outcome, Source
from partreduce.runtime.sharding.table import Layout, Part, Parts, Staging, Table
from partreduce.runtime.sharding.table_collectives import Call, Kind, Wire
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.payload import Gradient


class Steps(Protocol):
    """Where this worker is in the run."""

    @property
    def steps(self) -> int: ...
    @property
    def round(self) -> int: ...
    def declare(self) -> None: ...


class Tables:
    """One worker's tables, in the order in which they are exchanged; found before the workers meet, connected after.

    What exchanges rows raises InputError where a worker's user made a mistake or workers do different things, with the
    same line on all of them, and PeerFailedError where a worker is gone.
    """

    def __init__(self, tables: Sequence[Table] = (), *, coalesces: bool = False) -> None:
        self.tables, self._coalesces = tuple(tables), coalesces
        self.rank, self.num_workers = 0, 1
        self._exchange: Exchange | None = None
        self._guard: Callable[[Callable[[], Outcome]], Outcome] = lambda action: action()
        self._engine: Steps | None = None
        self.clips = False  # whether the script clips by the norm over all workers, in which all of them take part
        self._step = 0
        self._reduced = False
        self._closed = False
        self._without_clipping: list[int] = []
        """Workers without data that take this step with mean gradients as they are."""
        self.device = torch.device("cpu")
        """Where the model's other parameters lie, and with them tables that are drawn here."""

    def __bool__(self) -> bool:
        return bool(self.tables)

    def __iter__(self) -> Iterator[Table]:
        return iter(self.tables)

    @property
    def bytes_across(self) -> int:
        """What this worker has sent of tables to other nodes; of a gather, what it hands to the next of the ring."""
        return 0 if self._exchange is None else self._exchange.wire.bytes_across

    def of(self, parameter: torch.Tensor) -> Table | None:
        return next((table for table in self.tables if table.parameter is parameter), None)

    def connect(
        self, reducer: Reducer, cluster: Cluster, guard: Callable[[Callable[[], Outcome]], Outcome], engine: Steps
    ) -> None:
        """Meet the others; all workers call it, after their groups were made. `guard` ends the run after a failure."""
        self.rank, self.num_workers = reducer.world.rank, reducer.world.size
        self._guard, self._engine = guard, engine
        checks = torch.sparse.check_sparse_tensor_invariants
        if any(table.route.gradient is Gradient.SPARSE for table in self.tables) and not checks.is_enabled():  # type: ignore[no-untyped-call]
            # Say explicitly that torch does not check sparse tensors, as now; else it warns in the middle of a step.
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
        """For a hook on the parameter: lookups hand it no gradient, so one is of another use, of one worker."""
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
        """Copy worker 0's tables to all workers, of those that every worker has."""
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
        """Rows of a block that others have, on the host; all workers ask for some, or none, and answer from `array`."""
        self._step = self._current_step()  # workers whose data ended come, and are named, rather than wait for a step

        def answer(places: torch.Tensor) -> torch.Tensor:
            return table.staging.to_host(array[table.staging.to_device(places, array.device)])

        call = Call(Kind.WHOLE, self._step, table.index, number)
        return self._looked_up(call, ids, source=lambda _call: (layout, answer))

    def together(self, advice: str) -> AbstractContextManager[None]:
        assert self._exchange is not None, "tables are connected before their blocks are asked for"
        return self._exchange.wire.reducer.heartbeat.together(advice)

    def fetch(self, table: Table, copy: int, ids: torch.Tensor, *, trains: bool, problem: str = "") -> torch.Tensor:
        """Rows of a sharded table, on the host, each asked for once; all workers look up some, or none."""
        self._step, self._closed = self._current_step(), False
        return self._looked_up(Call(Kind.LOOKUP, self._step, table.index, copy, trains), ids, problem=problem)

    def stop_for(self, problem: str, *, trains: bool) -> None:
        """Stop all workers, where they next exchange gradients, for a mistake here; without gradients only this one."""
        if not trains:
            raise InputError(f"worker {self.rank}: {problem}")
        self._perform(Call(Kind.REDUCE, self._current_step()), problem=problem)

    def exchange_after_backward(self) -> None:
        """Called inside a backward pass: at its end all workers exchange the gradients of their tables."""
        # Once for each lookup: the first of them exchanges what all have brought.
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
        """Before dense gradients are averaged, or the optimizer steps: no lookup of this step comes any more.

        `value` is what this worker says to all besides, such as its part of a norm, once gradients are there. Returns
        what each says; None where that takes another message: the step was closed before, or a worker has no data.
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
        """Take part in one step's exchanges without data, changing means or not; whether anybody took the step."""
        self._step = self._current_step()
        while True:
            outcome = self._perform(Call(Kind.ANY, self._step, value=float(changes_means)))
            if outcome.did.kind is Kind.REDUCE:
                self._take(outcome)
            elif outcome.did.kind in (Kind.STEP, Kind.ANY):
                self._reduced, self._closed = False, True
                return outcome.did.kind is Kind.STEP

    def exchange_norm(self, value: float) -> list[float]:
        """What each worker says in one message; one without data is not told what is done to means."""
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
        """The step that this worker is in; those without data learn that it has begun."""
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
        """How this worker answers a lookup: rows longer than the module's largest norm are shortened first."""
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
    """What waits for rows: where averages go over devices another reducer, whose waits the host does itself."""
    world = reducer.world.on_host()
    if world is reducer.world and not reducer.streams.runs_ahead:
        return reducer
    other = Reducer(world, (), reducer.recorder, reducer.heartbeat, key=reducer.key, timeout=reducer.timeout)
    other.checks = reducer.checks  # the watch over the device knows why a host waited for rows in vain
    return other
