"""Reject, at wrapping, optimizers, models and runs that cannot be averaged or that another library averages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel

from partreduce.runtime.averaging.bucket import drop_repetitions
from partreduce.runtime.averaging.buffer_rules import AVERAGED
from partreduce.runtime.averaging.dtensor_shards import Sharders, is_sharded, local
from partreduce.runtime.guard.table import Found, Moment, check, run_checks
from partreduce.runtime.transport.worlds import World
from partreduce.topo.errors import of_type
from partreduce.topo.schedule import Schedule

_SHARDS, _OWN_MOMENTUM = "shards its step over the workers", "averages momentum by itself"
_BROADCASTS = "steps its share of the parameters and broadcasts them to all workers"
WRITE_OTHERS = {"PostLocalSGDOptimizer": "averages parameters by itself"}
"""Optimizers whose step changes other workers' parameters or gradients: name of a base class, and what the step does.
They are from torch, fairscale, apex, Megatron and DeepSpeed; by name, since many repositories copy these classes."""
WRITE_OTHERS |= dict.fromkeys(("ZeroRedundancyOptimizer", "OSS"), _BROADCASTS)
WRITE_OTHERS |= dict.fromkeys(("DistributedOptimizer", "DeepSpeedOptimizer"), "communicates by itself")
WRITE_OTHERS |= dict.fromkeys(("DistributedFusedAdam", "DistributedFusedLAMB"), _SHARDS)
WRITE_OTHERS |= dict.fromkeys(("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"), _SHARDS)
WRITE_OTHERS |= dict.fromkeys(("OnebitAdam", "OnebitLamb", "ZeroOneAdam"), _OWN_MOMENTUM)

WAYS_OUT: dict[str, str] = {
    "transformers": "the Transformers Trainer wraps and moves models by itself wherever there are several workers; "
    "give it partreduce.transformers.ScheduleCallback in place of an optimizer of your own",
    "accelerate": "Accelerate's prepare() wraps and moves models; prepare the loaders only, and leave model and "
    "optimizer to partreduce",
    "lightning": "Lightning's strategies wrap and move models; give its Trainer "
    "strategy=partreduce.lightning.ScheduleStrategy(...) in place of an optimizer of your own",
    "deepspeed": "DeepSpeed's engine averages by itself; train the bare model",
}
WAYS_OUT["pytorch_lightning"] = WAYS_OUT["lightning"]

FOLLOWS = "follows_a_schedule"  # attribute that marks DistributedOptimizer, and the `step` that `attach` installs


def check_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer. Raises InputError if it follows a schedule, communicates, or is no torch optimizer."""
    run_checks(Moment.WRAP_OPTIMIZER, optimizer)
    return optimizer


def check_module(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model. Raises InputError if it is no module, or a DistributedDataParallel."""
    of_type(model, torch.nn.Module, "model", "pass the torch.nn.Module whose parameters the optimizer trains")
    model_in_distributed_data_parallel(WrappedModel(model, {}))
    return model


class WrappedModel(NamedTuple):
    """A model that is about to be wrapped; `apart` has the parameters that are exchanged separately (tables)."""

    model: torch.nn.Module
    apart: Mapping[torch.nn.Parameter, str]
    optimizer: torch.optim.Optimizer | None = None

    def first(self, fits: Callable[[Any], bool]) -> Found:
        return next(({"name": name} for name, one in self.model.named_parameters() if fits(one)), None)


def check_model(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, apart: Mapping[torch.nn.Parameter, str]
) -> None:
    """Check a model and its optimizer before FlatModel moves the parameters. Raises InputError for a fault.

    `apart` has the parameters that are exchanged separately (tables), each with a description.
    """
    Sharders(model)  # reshards parameters that a forward pass may have left gathered
    run_checks(Moment.WRAP_MODEL, WrappedModel(model, apart, optimizer))


def check_run(world: World, optimizer: Any) -> None:  # noqa: ANN401 - a DistributedOptimizer, whose module imports this one
    """Raise InputError if the schedule is for another number of workers, or conflicts with another optimizer's."""
    run_checks(Moment.WRAP_RUN, world, optimizer.schedule, optimizer)


# The optimizer.


@check(Moment.WRAP_OPTIMIZER, refuses="optimizer: {found}")
def wrapped_twice(optimizer: torch.optim.Optimizer) -> Found:
    """Whether the optimizer is a DistributedOptimizer, or follows a schedule already by `partreduce.attach`."""
    if hasattr(type(optimizer), FOLLOWS):
        return {"found": "is a DistributedOptimizer already; wrap the plain optimizer once"}
    of_type(optimizer, torch.optim.Optimizer, "optimizer", "it must be one torch.optim.Optimizer")
    if hasattr(optimizer.step, FOLLOWS):
        return {"found": "follows a schedule already, by partreduce.attach; use what that returned"}
    return None


@check(
    Moment.WRAP_OPTIMIZER,
    refuses="optimizer: {name} {does}, so what the schedule averages would be no worker's own step; pass the plain "
    "optimizer, such as torch.optim.AdamW(model.parameters())",
)
def optimizer_that_communicates(optimizer: torch.optim.Optimizer) -> Found:
    """Whether the optimizer, or one inside it, communicates by itself, judged by the names of its classes."""
    for one in with_inner(optimizer):
        if hasattr(one, "skip_synchronize"):  # Horovod creates a class per optimizer, with the inner one's name
            return {"name": "Horovod's DistributedOptimizer", "does": "averages gradients by itself"}
        for base in type(one).__mro__:
            if base.__name__ in WRITE_OTHERS:
                return {"name": base.__name__, "does": WRITE_OTHERS[base.__name__]}
    return None


def with_inner(optimizer: object) -> Iterator[object]:
    """Yield an optimizer and all optimizers that its attributes hold, also in lists and dicts; each once."""
    waiting, seen = [optimizer], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        for held in getattr(one, "__dict__", {}).values():
            several = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else (held,)
            waiting += [inner for inner in several if hasattr(inner, "param_groups")]


# The model.


@check(
    Moment.WRAP_MODEL,
    refuses="model: is wrapped in DistributedDataParallel, which averages by itself; pass the bare module",
)
def model_in_distributed_data_parallel(wrapped: WrappedModel) -> Found:
    """Whether the model is a DistributedDataParallel."""
    return {} if isinstance(wrapped.model, DistributedDataParallel) else None


@check(Moment.WRAP_MODEL, refuses="model: parameter {name!r} is not initialized yet; run one forward pass, then wrap")
def uninitialized_parameter(wrapped: WrappedModel) -> Found:
    """Whether a lazy module has a parameter without values."""
    return wrapped.first(lambda one: isinstance(one, torch.nn.parameter.UninitializedParameter))


@check(
    Moment.WRAP_MODEL,
    refuses="model: parameter {name!r} is on the meta device and has no numbers; call model.to_empty(device=...), "
    "initialize it and make the optimizer, then wrap",
)
def parameter_on_the_meta_device(wrapped: WrappedModel) -> Found:
    """Whether a parameter is on the meta device; embedding tables that are exchanged separately may be."""
    return wrapped.first(lambda one: one.is_meta and one not in wrapped.apart)


@check(Moment.WRAP_MODEL, refuses="model: parameter {name!r} is sparse; make it dense, or a buffer if it is a constant")
def sparse_parameter(wrapped: WrappedModel) -> Found:
    """Whether a parameter is a sparse tensor."""
    return wrapped.first(lambda one: one.layout is not torch.strided)


@check(
    Moment.WRAP_MODEL,
    refuses="model: parameter {name!r} is {dtype}; only {averaged} are averaged, so convert it, or freeze it before "
    "wrapping",
)
def parameter_of_another_dtype(wrapped: WrappedModel) -> Found:
    """Whether a trainable parameter has a dtype that cannot be averaged."""
    for name, one in wrapped.model.named_parameters():
        if one.requires_grad and one.dtype not in AVERAGED:
            return {"name": name, "dtype": one.dtype, "averaged": ", ".join(map(str, AVERAGED))}
    return None


@check(
    Moment.WRAP_MODEL,
    refuses="model: is sharded by FullyShardedDataParallel; pass the bare module, whose parameters are whole",
)
def model_in_fully_sharded_data_parallel(wrapped: WrappedModel) -> Found:
    """Whether FSDP1 has marked a module as its own."""
    managed = any(getattr(module, "_is_fsdp_managed_module", False) for module in wrapped.model.modules())
    by_fully_shard = any(is_sharded(parameter) for parameter in wrapped.model.parameters())
    return {} if managed and not by_fully_shard else None


@check(
    Moment.WRAP_MODEL,
    refuses="model: lies on several devices ({first}); move all of it to one before wrapping, model.to(device)",
)
def model_on_several_devices(wrapped: WrappedModel) -> Found:
    """Whether parameters and buffers, which the same groups average, are on several devices."""
    first: dict[torch.device, str] = {}
    others = [(name, one) for name, one in wrapped.model.named_parameters() if one not in wrapped.apart]
    for kind, tensors in (("parameter", others), ("buffer", wrapped.model.named_buffers())):
        for name, tensor in tensors:
            first.setdefault(tensor.device, f"{kind} {name!r} on {tensor.device}")
    return {"first": ", ".join(first.values())} if len(first) > 1 else None


class _Place(NamedTuple):
    """Memory range of a tensor, from its first byte to behind its last; `trains`: it is a trainable parameter."""

    first: int
    last: int
    name: str
    tensor: torch.Tensor
    trains: bool


@check(
    Moment.WRAP_MODEL,
    refuses="model: {one} and {other} are two tensors in one memory, and wrapping would give each its own, so that "
    "they part; let both modules hold one and the same parameter (b.weight = a.weight), use the parameter itself in "
    "forward() (a.weight.t()), or make the other a copy",
)
def two_tensors_in_one_memory(wrapped: WrappedModel) -> Found:
    """Whether two tensors share memory and one is trainable: wrapping gives each parameter its own memory."""
    open_: list[_Place] = []
    for place in sorted(_places(wrapped.model), key=lambda place: place[:2]):
        open_ = [one for one in open_ if one.last > place.first]
        for one in open_:
            if (one.trains or place.trains) and one.tensor is not place.tensor and _overlap(one, place):
                return {"one": one.name, "other": place.name}
        open_.append(place)
    return None


def _places(model: torch.nn.Module) -> Iterator[_Place]:
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, whole in tensors:
            tensor = local(whole)
            if tensor.layout is torch.strided and tensor.numel() and not tensor.is_meta:
                reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
                first = tensor.data_ptr()
                last = first + (reach + 1) * tensor.element_size()
                yield _Place(first, last, f"{kind} {name!r}", tensor, kind == "parameter" and whole.requires_grad)


def _overlap(one: _Place, other: _Place) -> bool:
    """Return whether two tensors in overlapping memory share an element; two columns of one array do not."""
    size = one.tensor.element_size()
    if other.tensor.element_size() != size:
        return True
    begin = min(one.first, other.first)
    marks = torch.zeros((max(one.last, other.last) - begin) // size, dtype=torch.bool, device="cpu")
    views = [
        marks.as_strided(place.tensor.shape, place.tensor.stride(), (place.first - begin) // size)
        for place in (one, other)
    ]
    drop_repetitions(views[0]).fill_(True)
    return bool(drop_repetitions(views[1]).any())


@check(
    Moment.WRAP_MODEL,
    refuses="optimizer: parameter {place} of group {index}, shape {shape}, is not a parameter of the model; pass the "
    "model that the optimizer trains",
)
def optimizer_of_another_model(wrapped: WrappedModel) -> Found:
    """Whether the optimizer has a parameter that the model does not have."""
    known = set(wrapped.model.parameters())
    for index, group in enumerate(wrapped.optimizer.param_groups if wrapped.optimizer is not None else ()):
        for place, parameter in enumerate(group["params"]):
            if parameter not in known:
                return {"place": place, "index": index, "shape": list(parameter.shape)}
    return None


@check(Moment.WRAP_MODEL, refuses="model: has no trainable parameter{besides}; nothing could be averaged")
def nothing_to_train(wrapped: WrappedModel) -> Found:
    """Whether the model has no trainable parameter, tables that are exchanged separately not counted."""
    if any(one.requires_grad and one not in wrapped.apart for one in wrapped.model.parameters()):
        return None
    return {"besides": " besides its tables" if wrapped.apart else ""}


# The run.


@check(
    Moment.WRAP_RUN,
    refuses="schedule {name!r}: is for {planned} workers and this run has {size}; start {planned} or design a schedule "
    "for {size}",
)
def schedule_for_other_workers(world: World, schedule: Schedule, _optimizer: object = None) -> Found:
    """Whether the schedule is for another number of workers than the run has."""
    if schedule.num_workers == world.size:
        return None
    return {"name": schedule.name, "planned": schedule.num_workers, "size": world.size}


_running: WeakKeyDictionary[World, WeakSet[Any]] = WeakKeyDictionary()


@check(
    Moment.WRAP_RUN,
    refuses="schedule {mine!r}: its steps per round {own} and those of {other!r}, {theirs}, which runs in the same "
    "process, are not in one proportion, so workers would wait for each other in a circle; give both the same steps "
    "per round",
)
def rounds_of_several_optimizers(world: World, mine: Schedule, optimizer: object) -> Found:
    """Whether the ratio of this schedule's steps per round to those of another schedule differs between workers."""
    others = _running.setdefault(world, WeakSet())
    own = mine.worker_steps().tolist()
    for other in list(others):
        ending = other.__dict__.get("ending")
        if ending is None or not ending.is_running:
            others.discard(other)
            continue
        theirs = other.schedule.worker_steps().tolist()
        if len({Fraction(int(one), int(their)) for one, their in zip(own, theirs, strict=True)}) > 1:
            return {"mine": mine.name, "own": own, "other": other.schedule.name, "theirs": theirs}
    others.add(optimizer)
    return None


# Other libraries that wrap models.


def framework_advice() -> str:
    """Return advice if a framework that wraps models itself, such as Lightning, is among the callers; else empty."""
    callers = set(_callers())
    state = sys.modules.get("accelerate.state")
    if state is not None and state.PartialState._shared_state:  # noqa: SLF001 - set while an Accelerator lives
        callers.add("accelerate")
    return next((WAYS_OUT[name] for name in WAYS_OUT if name in callers), "")


def wrapped_by(module: torch.nn.Module) -> str:
    """Return which library has replaced a module's parameters, and what to do instead; empty if not known."""
    if getattr(module, "_is_fsdp_managed_module", False):
        return (
            "FullyShardedDataParallel has sharded the model after DistributedOptimizer was made; "
            "shard it by fully_shard, and before that"
        )
    return framework_advice()


def _callers() -> Iterator[str]:
    """Yield the top-level packages of all functions on the call stack, innermost first."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads source files, too
    while frame is not None:
        yield str(frame.f_globals.get("__name__", "")).partition(".")[0]
        frame = frame.f_back  # type: ignore[assignment]
