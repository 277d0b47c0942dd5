"""Foreign: other libraries that average, shard or move what a schedule averages, named where they are noticed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from partreduce.topo.errors import InputError

WRITE_OTHERS: dict[str, str] = {
    "ZeroRedundancyOptimizer": "steps its share of the parameters and broadcasts them to all workers",
    "OSS": "steps its share of the parameters and broadcasts them to all workers",
    "PostLocalSGDOptimizer": "averages parameters by itself",
    "DistributedOptimizer": "communicates by itself",
    "DistributedFusedAdam": "shards its step over the workers",
    "DistributedFusedLAMB": "shards its step over the workers",
    "DeepSpeedOptimizer": "communicates by itself",
    "DeepSpeedZeroOptimizer": "shards its step over the workers",
    "DeepSpeedZeroOptimizer_Stage3": "shards its step over the workers",
    "OnebitAdam": "averages momentum by itself",
    "OnebitLamb": "averages momentum by itself",
    "ZeroOneAdam": "averages momentum by itself",
}
"""Optimizers whose step writes other workers' parameters or gradients, by the name of a class in their ancestry.

Of torch, fairscale, apex, Megatron and DeepSpeed; by name, since copies of these classes lie in many repositories.
"""

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

FOLLOWS = "follows_a_schedule"
"""Marks the step of an optimizer to which a schedule is attached."""


def check_foreign_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuse optimizers that write other workers' parameters, also inside a wrapper."""
    for one in with_inner(optimizer):
        if hasattr(one, "skip_synchronize"):  # a class made for each optimizer, with the name of the inner one
            name, does = "Horovod's DistributedOptimizer", "averages gradients by itself"
        else:
            known = [base.__name__ for base in type(one).__mro__ if base.__name__ in WRITE_OTHERS]
            if not known:
                continue
            name, does = known[0], WRITE_OTHERS[known[0]]
        raise InputError(
            f"optimizer: {name} {does}, so what the schedule averages would be no worker's own step; pass the plain "
            "optimizer, such as torch.optim.AdamW(model.parameters())"
        )


def averaged_elsewhere(module: torch.nn.Module) -> bool:
    """Inside a forward pass of `module`: whether a DistributedDataParallel around it averages what backward makes."""
    wrapper: Any = getattr(DistributedDataParallel, "_active_ddp_module", None)
    return (
        wrapper is not None and wrapper.require_backward_grad_sync and any(one is module for one in wrapper.modules())
    )


def check_averaged_gradients() -> None:
    """Raise where gradients are the same on all workers already."""
    raise InputError(
        "model: its forward pass, or a part's, runs inside a DistributedDataParallel, which has averaged the "
        f"gradients before step(), so the schedule would do nothing; {way_out() or 'train the bare model'}"
    )


def way_out() -> str:
    """What to do instead, where a framework that is known to wrap models calls us; empty otherwise."""
    callers = set(_callers())
    state = sys.modules.get("accelerate.state")
    if state is not None and state.PartialState._shared_state:  # noqa: SLF001 - set while an Accelerator lives
        callers.add("accelerate")
    return next((WAYS_OUT[name] for name in WAYS_OUT if name in callers), "")


def wrapped_by(module: torch.nn.Module) -> str:
    """Who replaced a module's parameters, and what to do instead, if it is known; empty otherwise."""
    if getattr(module, "_is_fsdp_managed_module", False):
        return (
            "FullyShardedDataParallel has sharded the model after DistributedOptimizer was made; "
            "shard it by fully_shard, and before that"
        )
    return way_out()


def _callers() -> Iterator[str]:
    """The packages whose functions are being called, from here to the script."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads source files, too
    while frame is not None:
        yield str(frame.f_globals.get("__name__", "")).partition(".")[0]
        frame = frame.f_back  # type: ignore[assignment]


def with_inner(optimizer: object) -> Iterator[object]:
    """An optimizer and those that it keeps, under whatever name, by itself or among others; each once."""
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
