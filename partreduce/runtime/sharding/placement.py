"""Find the tables that a schedule names, check that they can be placed as it says, and distribute their rows.

The user's embedding modules, their parameters and the optimizer's references to these stay the same objects. Only a
module's class is replaced (as in torch's `fully_shard`), by one that looks rows up on other workers. A lookup fetches
every needed row once and computes its result by torch's own functions.
"""

from __future__ import annotations

import copy
import weakref
import zlib
from difflib import get_close_matches
from functools import partial
from typing import Any, SupportsIndex, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch.autograd.function import once_differentiable

from partreduce.runtime.averaging.flat_model import strip_compiled
from partreduce.runtime.sharding.table import DEVICES, Embeddings, OnFirst, RowLayout, Table
from partreduce.runtime.sharding.table_state import gather_full_table, local_rows
from partreduce.runtime.sharding.tables import Tables
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.payload import Gradient, Placement, TablePlacement

ATTRIBUTE = "_partreduce_table"


class Handle:
    """An embedding module's access to its Table: fetches the rows for each lookup.

    A deep copy of the module gets a handle with another `copy` number; 0 is the module that is trained.
    """

    def __init__(self, tables: Tables, table: Table, module: Embeddings, copy: int) -> None:
        self.tables, self.table, self.copy = tables, table, copy
        self.module = weakref.ref(module)
        self._trains = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        """Return a handle for the module's copy in `memo`, as `torch.optim.swa_utils.AveragedModel` makes one."""
        module = memo[id(self.module())]
        self.table.copies.append(weakref.ref(module))
        return Handle(self.tables, self.table, module, len(self.table.copies) - 1)

    def rows(self, weight: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """Fetch the rows of a lookup from their owners, each row once.

        Returns the rows, [rows, columns]; for each entry of `indices` the index of its row among these; and the index
        of the padding row (None without one). `weight` is the module's parameter.
        """
        module = self.module()
        assert module is not None, "a module calls its own handle"
        ids, inverse, padding = torch.empty(0, dtype=torch.int64), indices, None
        if not (problem := _problem(self.table, weight, indices)):
            unique, inverse = torch.unique(indices.long(), return_inverse=True)  # ascending
            ids = self.table.staging.to_host(unique)
            problem = _out_of_range(self.table, ids)
        if module.padding_idx is not None:
            place = int(torch.searchsorted(ids, module.padding_idx))
            padding = place if place < len(ids) and int(ids[place]) == module.padding_idx else None
        self._trains = torch.is_grad_enabled() and weight.requires_grad and self.copy == 0
        ids = ids[:0] if problem else ids
        rows: torch.Tensor = _Lookup.apply(weight, self, ids, problem, padding)  # type: ignore[no-untyped-call]
        return rows, inverse, padding

    def found(self, ids: torch.Tensor, problem: str) -> torch.Tensor:
        """Return the rows numbered `ids`, which holds no number twice, on the device of the module's weight.

        A `problem`, if not empty, describes a user's mistake: it is raised as InputError, if possible on all workers.
        """
        module, staging = self.module(), self.table.staging
        assert module is not None, "a module calls its own handle"
        weight = module.weight.detach()
        if self.table.is_sharded:
            rows = self.tables.fetch(self.table, self.copy, ids, trains=self._trains, problem=problem)
            return staging.to_device(rows, weight.device)
        if problem:
            self.tables.stop_for(problem, trains=self._trains)
        return weight[staging.to_device(ids, weight.device)]


def _problem(table: Table, weight: torch.Tensor, indices: torch.Tensor) -> str:
    """Describe what is wrong with the dtype or device of a lookup's `indices`; empty if nothing is."""
    if indices.dtype not in (torch.int32, torch.int64):
        return f"parameter {table.name!r}: is looked up with {indices.dtype}; indices are int32 or int64"
    if indices.device != weight.device:
        return (
            f"parameter {table.name!r}: lies on {weight.device} and is looked up with indices on {indices.device}; "
            f"look up with indices.to('{weight.device}')"
        )
    return ""


def _out_of_range(table: Table, ids: torch.Tensor) -> str:
    """Describe a row number that is out of range; empty if none is. `ids` are ascending, in host memory."""
    last = table.route.rows - 1
    for index in ids[[0, -1]].tolist() if len(ids) else ():
        if not 0 <= index <= last:
            return f"parameter {table.name!r}: index {index} is out of range; its rows are 0..{last}"
    return ""


class _Lookup(torch.autograd.Function):
    """Autograd function of a table lookup; all workers exchange its gradients at the end of the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context
        _weight: torch.Tensor,
        handle: Handle,
        ids: torch.Tensor,
        problem: str,
        padding: int | None,
    ) -> torch.Tensor:
        """Return the rows of a table numbered `ids`, which all workers exchange.

        `problem` describes a user's mistake (empty: none); `padding` is the index in `ids` of the row without gradient.
        Only with a weight as argument does autograd call `backward`.
        """
        ctx.handle, ctx.ids, ctx.padding = handle, ids, padding
        return handle.found(ids, problem)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None, None, None]:  # noqa: ANN401 - as above
        """Store `gradient`, one row per row looked up, without the padding row, and start copying it to the host."""
        handle, ids = ctx.handle, ctx.ids
        if handle.copy:
            raise InputError(f"parameter {handle.table.name!r}: a copy of the model was trained; wrap it by itself")
        if (place := ctx.padding) is not None:
            ids, gradient = (torch.cat([one[:place], one[place + 1 :]]) for one in (ids, gradient))
        handle.table.pending.append((ids, handle.table.staging.begin(gradient.contiguous())))
        handle.tables.exchange_after_backward()
        return None, None, None, None, None


class _SavedWhole(torch.nn.Module):
    """Base of embedding modules that look rows up on other workers; their state dict contains the whole table."""

    weight: torch.Tensor

    def __reduce_ex__(self, _protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle the user's original module instead; raise InputError if its rows are sharded."""
        if (handle := handle_of(self)) is not None and handle.table.is_sharded:
            raise InputError(
                f"parameter {handle.table.name!r}: its rows are spread over the workers, so the model cannot be "
                "pickled; save model.state_dict(), which all workers call"
            )
        own = next(kind for kind in type(self).__mro__ if not issubclass(kind, _SavedWhole))
        plain = own.__new__(own)
        plain.__dict__.update({name: value for name, value in self.__dict__.items() if name != ATTRIBUTE})
        # Protocol 1 allows a class other than this object's.
        return plain.__reduce_ex__(1)  # type: ignore[return-value]  # a module's is a tuple

    def __deepcopy__(self, memo: dict[int, Any]) -> _SavedWhole:
        """Copy the module with its class and its handle, so that the copy also looks up rows on other workers."""
        if (copy_as_user_does := getattr(super(), "__deepcopy__", None)) is not None:
            return cast("_SavedWhole", copy_as_user_does(memo))
        memo[id(self)] = copied = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        handle = handle_of(self)
        if handle is not None and handle.table.is_sharded:
            destination[f"{prefix}weight"] = gather_full_table(
                handle.tables, handle.table, self.weight.detach(), -handle.copy
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:  # noqa: ANN401 - torch's
        handle, name = handle_of(self), f"{prefix}weight"
        if handle is not None and handle.table.is_sharded and name in state_dict:
            state_dict = state_dict | {name: local_rows(handle.table, state_dict[name])}
        super()._load_from_state_dict(state_dict, prefix, *rest)


class TableEmbedding(_SavedWhole, torch.nn.Embedding):
    """`nn.Embedding` whose lookups fetch rows from the workers that own them."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        handle: Handle = getattr(self, ATTRIBUTE)
        rows, inverse, padding = handle.rows(self.weight, input)
        return F.embedding(inverse, rows, padding)


class TableEmbeddingBag(_SavedWhole, torch.nn.EmbeddingBag):
    """`nn.EmbeddingBag` whose lookups fetch rows from the workers that own them."""

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - torch's name
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        handle: Handle = getattr(self, ATTRIBUTE)
        rows, inverse, padding = handle.rows(self.weight, input)
        return F.embedding_bag(
            inverse,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )


def route_module(module: Embeddings, handle: Handle) -> None:
    """Make an embedding fetch rows through `handle`: replace its class by TableEmbedding or TableEmbeddingBag."""
    setattr(module, ATTRIBUTE, handle)
    routed = TableEmbedding if isinstance(module, torch.nn.Embedding) else TableEmbeddingBag
    kind = type(module)
    # For a user's subclass, the new class is a subclass of it, so its methods and `isinstance` still work.
    is_plain = kind in (torch.nn.Embedding, torch.nn.EmbeddingBag) or issubclass(kind, routed)
    module.__class__ = routed if is_plain else type(kind.__name__, (routed, kind), {})


def is_routed(module: Embeddings) -> bool:
    """Return whether a module's `forward` is still the one that fetches rows from other workers."""
    forward = type(module).forward
    return forward in (TableEmbedding.forward, TableEmbeddingBag.forward) and "forward" not in module.__dict__


def handle_of(module: torch.nn.Module) -> Handle | None:
    """Return the Handle by which a module fetches rows; None if its weight is no separately placed table."""
    handle = module.__dict__.get(ATTRIBUTE)
    return handle if isinstance(handle, Handle) else None


ROUTABLE = (torch.nn.Embedding, torch.nn.EmbeddingBag)
WHOLE_TENSOR = ("Adafactor", "LBFGS", "Muon")  # optimizers whose update of an element depends on others in its tensor


def embeddings_of(model: torch.nn.Module) -> dict[str, tuple[torch.nn.Parameter, tuple[Embeddings, ...]]]:
    """Return, by its first name in the model, the weight of each embedding with all modules that use it."""
    modules: dict[torch.nn.Parameter, list[Embeddings]] = {}
    names: dict[torch.nn.Parameter, str] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, ROUTABLE) and isinstance(module.weight, torch.nn.Parameter):
            modules.setdefault(module.weight, []).append(module)
            names.setdefault(module.weight, strip_compiled(f"{prefix}.weight"))
    return {name: (parameter, tuple(modules[parameter])) for parameter, name in names.items()}


def find_tables(model: torch.nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule) -> Tables:
    """Return the embedding tables that the schedule places separately: sharded, or with gathered gradients.

    Raises InputError if the schedule's tables do not fit the model or the optimizer.
    """
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
    """Return the name of the parameter's optimizer if its update needs whole tensors (as Muon's does); else ""."""
    held = [value if isinstance(value, (list, tuple)) else [value] for value in vars(optimizer).values()]
    parts = [optimizer, *(one for values in held for one in values if isinstance(one, torch.optim.Optimizer))]
    for one in parts:
        if any(each is parameter for group in one.param_groups for each in group["params"]):
            kinds = [kind for kind in type(one).__mro__ if kind.__module__.split(".")[:2] == ["torch", "optim"]]
            if (name := next((kind.__name__ for kind in kinds if kind.__name__ in WHOLE_TENSOR), "")) != "":
                return name
    return ""


def layout_of(tables: Tables) -> dict[torch.nn.Parameter, str]:
    """Describe each table in one line, by parameter; the handshake compares the lines between workers."""
    lines = {}
    for table in tables:
        module = table.modules[0]
        size = "×".join(map(str, table.parameter.shape))
        facts = f"padding {module.padding_idx} max_norm {module.max_norm} sparse {module.sparse}"
        lines[table.parameter] = f"{table.name} {size} {table.parameter.dtype} {table.parameter.device.type} {facts}"
    return lines


def check_other_shapes(tables: Tables, schedule: Schedule) -> None:
    """Raise InputError if a table's shape is not the schedule's; called once the workers' models were compared."""
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
    """Raise InputError if lookups in `modules` would give other values with placement `route` than on one device."""
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
    """Raise InputError if another module or a gradient hook uses the parameter, or its device is not supported."""
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
    """Raise InputError if the embedding uses a feature of torch that the placement `route` does not support."""
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
    """Keep only this worker's rows of sharded tables and their optimizer states, and route lookups to the owners.

    All workers call it. With `broadcast` all tables first take worker 0's values.
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
                # Only Adagrad has a state before its first step, with the same value in all elements.
                state[key] = torch.full_like(table.parameter, optimizer.defaults.get("initial_accumulator_value", 0.0))


def _draw_rows(table: Table, own: torch.Tensor, rank: int) -> torch.Tensor:
    """Return random initial values of the rows `own`, as `nn.Embedding` draws them, with a seed by table and `rank`."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{table.name} of worker {rank}".encode()))
    shard = torch.empty(len(own), table.route.columns, dtype=table.parameter.dtype)
    shard.normal_(generator=generator)
    padding = table.modules[0].padding_idx
    if padding is not None:
        shard[own == padding] = 0
    return shard
