"""Runs a schedule: `torch.distributed` strategies, handshake, recorder, launcher, and the virtual-time engine.

Users import these names from `preduce`; torch is imported with the first of them that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preduce.runtime.adapters.averager import ScheduleAverager as ScheduleAverager
    from preduce.runtime.adapters.ddp_hook import ScheduleHookState as ScheduleHookState
    from preduce.runtime.adapters.ddp_hook import schedule_hook as schedule_hook
    from preduce.runtime.averaging.p_reduce import p_reduce as p_reduce
    from preduce.runtime.data.sampler import RoundSampler as RoundSampler
    from preduce.runtime.data.sharding import shard as shard
    from preduce.runtime.optimizer import DistributedOptimizer as DistributedOptimizer
    from preduce.runtime.recorder import merge_traces as merge_traces
    from preduce.runtime.state.checkpoint import load_checkpoint as load_checkpoint
    from preduce.runtime.state.checkpoint import save_checkpoint as save_checkpoint

if __name__ != "preduce.runtime":  # the folder's own name would make a second copy of every class in it
    raise ImportError("this folder is the package preduce.runtime; import it by that name")

_HOMES = {
    "DistributedOptimizer": "optimizer",
    "RoundSampler": "data.sampler",
    "ScheduleAverager": "adapters.averager",
    "ScheduleHookState": "adapters.ddp_hook",
    "load_checkpoint": "state.checkpoint",
    "merge_traces": "recorder",
    "p_reduce": "averaging.p_reduce",
    "save_checkpoint": "state.checkpoint",
    "schedule_hook": "adapters.ddp_hook",
    "shard": "data.sharding",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"preduce.runtime.{_HOMES[name]}"), name)
