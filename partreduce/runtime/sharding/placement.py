"""Find the tables that a schedule names, check that they can be placed as it says, and distribute their rows."""

from __future__ import annotations

import weakref
import zlib
from difflib import get_close_matches
from functools import partial

import torch

from partreduce.runtime.sharding.modules import Handle, handle_of, route_module
from partreduce.runtime.sharding.table import DEVICES, Embeddings, OnFirst, RowLayout, Table
from partreduce.runtime.sharding.tables import Tables
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.payload import Gradient, Placement, TablePlacement

ROUTABLE = (torch.nn.Embedding, torch.nn.EmbeddingBag)
WHOLE_TENSOR = ("Adafactor", "LBFGS", "Muon")
"""Optimizers of torch whose step of one number depends on the others of its tensor, so that rows cannot lie apart."""


def embeddings_of(model: torch.nn.Module) -> dict[str, tuple[torch.nn.Parameter, tuple[Embeddings, ...]]]:
    """The parameters that embeddings look up, by their first name, and all modules that do."""
    modules: dict[torch.nn.Parameter, list[Embeddings]] = {}
    names: dict[torch.nn.Parameter, str] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, ROUTABLE) and isinstance(module.weight, torch.nn.Parameter):
            modules.setdefault(module.weight, []).append(module)
            names.setdefault(module.weight, f"{prefix}.weight".lstrip("."))
    return {name: (parameter, tuple(modules[parameter])) for parameter, name in names.items()}


def find_tables(model: torch.nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule) -> Tables:
    """The tables of a schedule that travel apart from the strategy's averaging."""
    routes = schedule.strategy.payload
    known = embeddings_of(model)
    found = []
    for index, route in enumerate(routes.apart):
        if route.parameter not in known:
            close = get_close_matches(route.parameter, list(known), n=1) or list(known)[:4]
            near = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise InputError(
                f"schedule {schedule.name!r}: payload.tables names parameter {route.parameter!r}, which no "
                f"nn.Embedding or nn.EmbeddingBag of the model has{near}"
            )
        parameter, modules = known[route.parameter]
        check_route(model, route, parameter, modules)
        n = schedule.num_workers
        rows = RowLayout.of(routes, route, n) if route.way is Placement.SHARDED else None
        found.append(Table(index, route, parameter, modules, n, average=routes.average, layout=rows))
    if found and isinstance(optimizer, torch.optim.LBFGS):
        raise InputError("optimizer: LBFGS sees all parameters as one vector; separately placed tables need another")
    for table in found:
        if table.is_sharded and (kind := looks_at_whole_tensors(optimizer, table.parameter)):
            raise InputError(
                f"parameter {table.name!r}: is sharded, and {kind} looks at whole tensors, of which a worker would "
                "have some rows; give it way 'gather' or 'dense', or take another optimizer"
            )
    return Tables(found, coalesces=routes.local_aggregation)


def looks_at_whole_tensors(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> str:
    """The name of a parameter's optimizer if it is one of torch's that looks at whole tensors; empty if it is none.

    Of several optimizers as one, which it holds in attributes or in lists of them, each counts for what it trains.
    """
    held = [value if isinstance(value, (list, tuple)) else [value] for value in vars(optimizer).values()]
    parts = [optimizer, *(one for values in held for one in values if isinstance(one, torch.optim.Optimizer))]
    for one in parts:
        if any(each is parameter for group in one.param_groups for each in group["params"]):
            kinds = [kind for kind in type(one).__mro__ if kind.__module__.split(".")[:2] == ["torch", "optim"]]
            if (name := next((kind.__name__ for kind in kinds if kind.__name__ in WHOLE_TENSOR), "")) != "":
                return name
    return ""


def layout_of(tables: Tables) -> dict[torch.nn.Parameter, str]:
    """One line for each table, equal on all workers that run the same model."""
    lines = {}
    for table in tables:
        module = table.modules[0]
        size = "×".join(map(str, table.parameter.shape))
        facts = f"padding {module.padding_idx} max_norm {module.max_norm} sparse {module.sparse}"
        lines[table.parameter] = f"{table.name} {size} {table.parameter.dtype} {table.parameter.device.type} {facts}"
    return lines


def check_other_shapes(tables: Tables, schedule: Schedule) -> None:
    """Refuse tables that are not as the schedule says; called once all workers are known to have the same model."""
    for table in tables:
        route, shape = table.route, tuple(table.parameter.shape)
        if shape != (route.rows, route.columns):
            raise InputError(
                f"schedule {schedule.name!r}: parameter {table.name!r} is a table of {route.rows}×{route.columns} in "
                f"payload.tables and of {shape[0]}×{shape[1]} in the model; use the schedule that was made for this "
                "model"
            )


def check_route(
    model: torch.nn.Module, route: TablePlacement, parameter: torch.nn.Parameter, modules: tuple[Embeddings, ...]
) -> None:
    """Raise InputError where a parameter's embeddings would not give on this route what they give on one device."""
    if any(handle_of(module) is not None for module in modules):
        raise InputError(
            f"parameter {route.parameter!r}: its rows are spread by a DistributedOptimizer already; build the model "
            "again, load the whole table that state_dict() saved, and wrap that"
        )
    _check_uses(model, route, parameter, modules)
    for module in modules:
        _check_module(route, module)
    norms = {(module.max_norm, module.norm_type if module.max_norm is not None else 0) for module in modules}
    if len(norms) > 1:
        raise InputError(
            f"parameter {route.parameter!r}: its {len(modules)} embeddings differ in max_norm or norm_type, and an "
            "owner shortens rows in one way; make them equal"
        )


def _check_uses(
    model: torch.nn.Module, route: TablePlacement, parameter: torch.nn.Parameter, modules: tuple[Embeddings, ...]
) -> None:
    """A row is handed out by lookups only, so nothing else may use the parameter."""
    for prefix, module in model.named_modules():
        for name, other in module.named_parameters(recurse=False):
            if other is parameter and module not in modules:
                place = f"{prefix}.{name}".lstrip(".")
                raise InputError(
                    f"parameter {route.parameter!r}: is used by {place!r} ({type(module).__name__}), too, which needs "
                    "all rows; give it way 'dense', or separate parameters"
                )
    if parameter.device.type not in (*DEVICES, "meta"):
        raise InputError(
            f"parameter {route.parameter!r}: lies on {parameter.device}; rows of tables travel from the CPU and from "
            "CUDA devices; move it to one, or give it way 'dense'"
        )
    if parameter.is_meta and route.way is not Placement.SHARDED:
        raise InputError(f"parameter {route.parameter!r}: has no numbers (device meta); only sharded tables are drawn")
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):  # noqa: SLF001 - no public way
        raise InputError(
            f"parameter {route.parameter!r}: has hooks on its gradient, which is made by all workers together and "
            "passes no hook; look at parameter.grad after backward() instead"
        )


def _check_module(route: TablePlacement, module: Embeddings) -> None:
    """What torch's embeddings can do and this table's route cannot."""
    name = route.parameter
    if type(module).forward not in (torch.nn.Embedding.forward, torch.nn.EmbeddingBag.forward):
        raise InputError(
            f"parameter {name!r}: belongs to {type(module).__name__}, which looks up in its own forward(); "
            "only nn.Embedding's and nn.EmbeddingBag's is known; put an nn.Embedding inside it"
        )
    if module.scale_grad_by_freq:
        raise InputError(
            f"parameter {name!r}: scale_grad_by_freq divides by how often a row occurs in the whole batch, of which a "
            "worker knows a part; leave it out"
        )
    if module.max_norm is not None and route.way is not Placement.SHARDED:
        raise InputError(
            f"parameter {name!r}: max_norm shortens rows when they are looked up, and each worker looks up others; "
            "with way 'gather' the copies would part; use way 'sharded'"
        )
    if module.sparse != (route.gradient is Gradient.SPARSE):
        raise InputError(
            f"parameter {name!r}: its embedding has sparse={module.sparse} and its route gradient {route.gradient}; "
            "the optimizer would take another step than on one device; make them equal"
        )


def spread(tables: Tables, optimizer: torch.optim.Optimizer, *, broadcast: bool) -> None:
    """Keep this worker's rows only, of each sharded table and of its optimizer's state so far; all workers call it.

    With `broadcast` the values are those of worker 0's table, block by block, rather than this worker's own.
    """
    assert tables.is_connected, "tables are connected before they are spread"
    for table in tables:
        if table.layout is not None:
            _spread_rows(tables, table, broadcast=broadcast)
            _keep_own_state(table, optimizer)
        table.copies = [weakref.ref(table.modules[0])]
        for module in table.modules:
            route_module(module, Handle(tables, table, module, 0))
        if table.parameter.requires_grad:
            table.parameter.register_hook(partial(tables.check_other_use, table))  # type: ignore[no-untyped-call]
    if broadcast:
        tables.broadcast()


def _spread_rows(tables: Tables, table: Table, *, broadcast: bool) -> None:
    assert table.layout is not None, "only sharded tables lie apart"
    whole, table.own = table.parameter.detach(), table.layout.rows_of(tables.rank)
    if whole.is_meta:
        shard = torch.empty(len(table.own), table.route.columns, dtype=whole.dtype, device=tables.device)
        shard.copy_(_draw_rows(table, table.own, tables.rank))
        drawn = torch.nn.Parameter(shard, table.parameter.requires_grad)
        torch.utils.swap_tensors(table.parameter, drawn)  # type: ignore[no-untyped-call]
        return
    shard = whole[table.staging.to_device(table.own, whole.device)]
    for first, last in table.blocks() if broadcast else ():
        mine = table.own[(table.own >= first) & (table.own < last)]
        of_block = OnFirst(lambda rows, first=first: rows - first)  # type: ignore[misc]
        table.put(shard, mine, tables.block(table, mine, of_block, whole[first:last]))
    table.parameter.data = shard


def _keep_own_state(table: Table, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state.get(table.parameter, {})
    for key, value in state.items():
        if table.is_whole(value):
            state[key] = table.shard_of(value)
            if value.is_meta:
                # Only Adagrad has a state before its first step: one number in all places.
                state[key] = torch.full_like(table.parameter, optimizer.defaults.get("initial_accumulator_value", 0.0))


def _draw_rows(table: Table, own: torch.Tensor, rank: int) -> torch.Tensor:
    """Rows of a table that was made on the device `meta`, drawn on the host as `nn.Embedding` draws its own."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{table.name} of worker {rank}".encode()))
    shard = torch.empty(len(own), table.route.columns, dtype=table.parameter.dtype)
    shard.normal_(generator=generator)
    padding = table.modules[0].padding_idx
    if padding is not None:
        shard[own == padding] = 0
    return shard
