"""Distribute a single-device training script over many workers; find a model's embedding tables and place each."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from partreduce.planner.steps_model import Optimizer
from partreduce.planner.tables import APPLYING, IN_ORDER, Table, TableChoice, check_unpriced, choose_routes
from partreduce.runtime.arguments import checked_timeout, read_schedule
from partreduce.runtime.guard.wrapping import check_module, check_optimizer, schedule_for_other_workers
from partreduce.runtime.liveness.store_collectives import broadcast_decision
from partreduce.runtime.optimizer import DEFAULT_TIMEOUT, DistributedOptimizer
from partreduce.runtime.sharding.placement import check_route, embeddings_of, looks_at_whole_tensors
from partreduce.runtime.sharding.row_access import (
    OtherUses,
    SampledRows,
    gather_texts,
    message_of,
    sample_row_access,
    shares,
)
from partreduce.runtime.sharding.table import Embeddings
from partreduce.runtime.transport.rendezvous import default_world, is_alone
from partreduce.runtime.transport.worlds import World
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.document.schedule import dump_schedule, schedule_of
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import USUAL, Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, Codec
from partreduce.topo.strategies.payload import ROW_CODECS, Gradient, Placement
from partreduce.topo.timing.tables import RowAccess

BATCHES = 4
"""Batches of each worker that are inspected for the rows that they look up."""
PATIENCE = 2.0
"""Seconds, added to the timeout, that other workers wait for worker 0, which first waits for them."""
UNKNOWN = (
    "it is not known how many of its rows a step touches: let build() return (model, batches), or say "
    "--set touched=TABLE:0.8%"
)

_log = logging.getLogger("partreduce")
_counts: WeakKeyDictionary[World, int] = WeakKeyDictionary()
"""Number of calls of `parallelize_embeddings` in each world, equal on all workers; makes store keys unique."""


def kind_of(optimizer: torch.optim.Optimizer) -> Optimizer | None:
    """Return the kind of a torch optimizer; None if the steps model has no such kind."""
    if "Adam" in type(optimizer).__name__:
        return Optimizer.ADAM
    if type(optimizer).__name__ != "SGD":
        return None
    return Optimizer.MOMENTUM if any(group["momentum"] for group in optimizer.param_groups) else Optimizer.SGD


def tables_of(
    model: torch.nn.Module,
    touched: Mapping[str, RowAccess],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    other_uses: Mapping[str, str] | None = None,
) -> tuple[tuple[Table, ...], int]:
    """Return (the trained tables of embeddings, the bytes of all other trained parameters).

    Args:
        model: the model; parameters with `requires_grad=False` are left out.
        touched: the known fractions of rows that a step touches, by the table's parameter name.
        optimizer: the optimizer of the tables, if known; one that reads whole tensors excludes sharding.
        other_uses: by table, the function to which forward() hands its weight other than for a lookup (`OtherUses`).

    Raises:
        InputError: a table with a sparse gradient that may only be dense.
    """
    found = {name: parts for name, parts in embeddings_of(model).items() if parts[0].requires_grad}
    tables = []
    for name, (parameter, modules) in found.items():
        rows, columns = parameter.shape
        is_sparse = any(module.sparse for module in modules)
        table = Table(
            parameter=name, rows=rows, columns=columns, touched=touched.get(name),
            gradient=Gradient.SPARSE if is_sparse else Gradient.DENSE, element_bytes=parameter.element_size(),
        )  # fmt: skip
        ways: tuple[Placement, ...] = (Placement.DENSE,)
        because = UNKNOWN
        if (use := (other_uses or {}).get(name)) is not None:
            because = f"forward() hands its weight to {use}, too, which needs all rows"
        elif table.touched is not None:
            ways, because = _possible_ways(model, table, parameter, modules, optimizer)
        if is_sparse and ways == (Placement.DENSE,):
            raise InputError(f"table {name!r}: has a sparse gradient, which way dense does not know; {because}")
        tables.append(replace(table, ways=ways, because=because))
    apart = {parameter for parameter, _ in found.values()}
    dense = (p for p in model.parameters() if p.requires_grad and p not in apart)
    return tuple(tables), sum(p.numel() * p.element_size() for p in dense)


def _possible_ways(
    model: torch.nn.Module,
    table: Table,
    parameter: torch.nn.Parameter,
    modules: tuple[Embeddings, ...],
    optimizer: torch.optim.Optimizer | None,
) -> tuple[tuple[Placement, ...], str]:
    """Return (the placements that the runtime allows, why it forbids another one; empty if it allows all).

    A table with `max_norm` may be dense only if it cannot be sharded: each worker would shorten the rows that it looks
    up, and the copies would diverge.
    """
    ways, against = [Placement.DENSE], ""
    for way in IN_ORDER[1:]:
        try:
            check_route(model, table.route(way), parameter, modules)
        except InputError as error:
            against = against or str(error).removeprefix(f"parameter {table.parameter!r}: ")
        else:
            ways.append(way)
    if Placement.SHARDED in ways and optimizer is not None and (kind := looks_at_whole_tensors(optimizer, parameter)):
        ways.remove(Placement.SHARDED)
        against = f"{kind} looks at whole tensors, of which a worker would have some rows"
    if Placement.SHARDED in ways and any(module.max_norm is not None for module in modules):
        ways.remove(Placement.DENSE)
        against = "max_norm shortens rows where they are looked up, so that copies would part"
    return tuple(ways), against


def parallelize_embeddings(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    where: Cluster | Schedule | str | Path,
    *,
    batches: Iterable[Any] | None = None,
    forward: Callable[[torch.nn.Module, Any], object] | None = None,
    hardware: Hardware | None = None,
    table_codec: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    world: World | None = None,
    **settings: Any,  # noqa: ANN401 - DistributedOptimizer's own
) -> tuple[torch.nn.Module, DistributedOptimizer]:
    """Train a model of one device on many workers: dense parameters by a schedule, each table by its best placement.

    All workers call it with the same model. They count the rows that a few of their batches touch, by which worker 0
    chooses the placements (`planner.tables.choose_routes`). The choice is in `optimizer.reasons`, one line per table,
    in `optimizer.schedule`, and in the log "partreduce" at level INFO. The model stays the same object.

    Args:
        model: the model as for one device.
        optimizer: the optimizer that trains it.
        where: a schedule or its file; or a cluster, such as "4x4", whose dense parameters then use all-reduce. A
            schedule that places its tables (`payload`) is used unchanged.
        batches: some of this worker's batches, or its loader; the first few are inspected, and an iterator loses them.
            Entries beyond the arguments of the model's `forward` are ignored.
        forward: `forward(model, batch)`, if the model is not called with the batch's entries.
        hardware: links of the cluster, if `where` does not state them.
        table_codec: `float16`, `bfloat16` or `int8`, used for rows where it pays; no codec by default.
        timeout: seconds to wait for the other workers.
        world: the connection to them; found from the environment by default.
        **settings: arguments of DistributedOptimizer.

    Returns:
        The model, and the DistributedOptimizer to train it with.

    Raises:
        InputError: embeddings without batches, a codec for tables that the schedule already places, or arguments that
            DistributedOptimizer rejects.
        PartreduceError: as DistributedOptimizer's.
    """
    model, optimizer = check_module(model), check_optimizer(optimizer)
    schedule, links = _schedule(where)
    codecs = _codecs(table_codec, schedule)
    reasons: tuple[str, ...] = ()
    if not is_alone(world) and not schedule.strategy.payload:
        # All workers take part, so that the error names a worker whose model has no tables.
        uses, limit = OtherUses(model), timedelta(seconds=checked_timeout(timeout))
        reached = world or default_world(_device_of(model), limit, lambda _s, _r, _n: None)
        schedule_for_other_workers(reached, schedule)

        def sample() -> SampledRows:
            """Return the rows that the first of this worker's `batches` look up; none if no embedding is trained."""
            trained = [parameter for parameter, _ in embeddings_of(model).values() if parameter.requires_grad]
            if not trained:
                return SampledRows({}, [])
            if batches is None:
                raise InputError(
                    f"parallelize: the model has {len(trained)} embeddings and it is not known which rows a step "
                    "touches; give batches=..., such as the data loader, or a schedule that says payload.tables"
                )
            with uses:
                return sample_row_access(model, batches, forward, BATCHES)

        def place(touched: Mapping[str, RowAccess]) -> tuple[Schedule, tuple[str, ...]]:
            if not touched:
                return schedule, ()
            tables, dense_bytes = tables_of(model, touched, optimizer, other_uses=uses.found)
            return _place_tables(schedule, partial(
                choose_routes, tables, hardware=hardware or links or USUAL, dense_bytes=dense_bytes,
                applying=APPLYING[kind_of(optimizer)], codecs=codecs,
            ))  # fmt: skip

        decision = _decide(reached, timeout, schedule, sample, place)
        schedule, reasons = schedule_of(decision["schedule"]), tuple(decision["reasons"])
    distributed = DistributedOptimizer(optimizer, model, schedule, timeout=timeout, world=world, **settings)
    distributed.reasons = reasons
    if distributed.rank == 0:
        for reason in reasons:
            _log.info(reason)
    return model, distributed


def _schedule(where: Cluster | Schedule | str | Path) -> tuple[Schedule, Hardware | None]:
    """Return the schedule of the dense parameters, all-reduce for a cluster, and the cluster's hardware if known."""
    if isinstance(where, Schedule):
        return where, None
    if isinstance(where, str | Path):
        try:
            found = json.loads(Path(where).read_text()) if Path(where).is_file() else None
        except (OSError, ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and ("strategy" in found or found.get("format") == "partreduce.schedule"):
            return read_schedule(where), None  # it is, or is meant as, a schedule rather than a cluster
    cluster = where if isinstance(where, Cluster) else load_cluster(where)
    return build("allreduce", cluster), cluster.hardware


def _codecs(table_codec: str | None, schedule: Schedule) -> tuple[Codec, ...]:
    if table_codec is None:
        return (Codec.NONE,)
    codec = next((one for one in ROW_CODECS if one == table_codec), None)
    if codec is None:
        raise InputError(f"parallelize: table_codec {table_codec!r} is not one of {', '.join(ROW_CODECS)}")
    if schedule.strategy.payload:
        raise InputError(
            f"parallelize: table_codec is {codec}, and schedule {schedule.name!r} says itself how its tables travel; "
            "leave it out, or change payload.tables there"
        )
    return (Codec.NONE, codec) if codec.rounds else (codec,)


def _device_of(model: torch.nn.Module) -> torch.device:
    """Return the device of the first trained parameter that is no embedding table; the CPU without one."""
    tables = {parameter for parameter, _ in embeddings_of(model).values()}
    dense = (one for one in model.parameters() if one.requires_grad and one not in tables)
    return next((parameter.device for parameter in dense), torch.device("cpu"))


def _decide(
    world: World,
    timeout: float,
    schedule: Schedule,
    sample: Callable[[], SampledRows],
    place: Callable[[Mapping[str, RowAccess]], tuple[Schedule, tuple[str, ...]]],
) -> dict[str, Any]:
    """Return worker 0's choice, {"schedule": file content, "reasons": lines}, from all workers' counts of rows.

    `sample` counts the rows that this worker touches, `place` chooses the tables' placements from the shares by table.
    An error on any worker stops all with the same line.
    """
    _counts[world] = _counts.get(world, 0) + 1
    key = str(_counts[world])
    try:
        mine = message_of(world.rank, sample())
    except InputError as error:
        mine = message_of(world.rank, str(error))

    def decide() -> dict[str, Any]:
        chosen, reasons = place(shares(gather_texts(world, key, mine, timeout), schedule.cluster))
        return {"schedule": dump_schedule(chosen), "reasons": reasons}

    if world.rank != 0:
        gather_texts(world, key, mine, timeout)
    # Worker 0 itself may have timed out while waiting for a worker, which its error names.
    patience = timeout + PATIENCE
    found: dict[str, Any] = broadcast_decision(world, f"parallelize/{key}", decide, patience, who="parallelize")
    return found


def _place_tables(schedule: Schedule, choose: Callable[[Schedule], TableChoice]) -> tuple[Schedule, tuple[str, ...]]:
    """Return the schedule with a placement for every embedding table, and the reasons for the placements.

    `choose` returns the cheapest placements of all tables under a schedule. A schedule that is not synchronous stays as
    it is, with dense tables; the reasons say what these cost in synchronous rounds.

    Raises:
        ScheduleError: the schedule is not synchronous, and in synchronous rounds a table would not be dense.
    """
    strategy = schedule.strategy
    if not strategy.tables_unsupported_reason():
        chosen = choose(schedule)
        return replace(schedule, strategy=replace(strategy, payload=chosen.routes), certificate=None), chosen.reasons
    chosen = choose(replace(schedule, strategy=replace(strategy, sync=SYNCHRONOUS), certificate=None))
    if any(route.way is not Placement.DENSE for route in chosen.routes.tables):
        check_unpriced(schedule)
    return schedule, (*chosen.reasons, f"these are prices of synchronous rounds, without sync.{strategy.sync.word}")
