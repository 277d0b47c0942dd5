"""preduce: design, prove and run the averaging schedule of a distributed training job.

Everything public is a name of this package and is imported on first use, so that `import preduce` costs nothing:

    import preduce

    schedule = preduce.design("4x4", using="prague-figure-10")
    assert preduce.prove(schedule).verdict == "proved"
    preduce.write_schedule("schedule.json", schedule)
    optimizer = preduce.DistributedOptimizer(optimizer, model, "schedule.json")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preduce.api import catalogue as catalogue
    from preduce.api import design as design
    from preduce.runtime import DistributedOptimizer as DistributedOptimizer
    from preduce.runtime import RoundSampler as RoundSampler
    from preduce.runtime import ScheduleAverager as ScheduleAverager
    from preduce.runtime import ScheduleHookState as ScheduleHookState
    from preduce.runtime import load_checkpoint as load_checkpoint
    from preduce.runtime import merge_traces as merge_traces
    from preduce.runtime import p_reduce as p_reduce
    from preduce.runtime import save_checkpoint as save_checkpoint
    from preduce.runtime import schedule_hook as schedule_hook
    from preduce.runtime import shard as shard
    from preduce.runtime.virtual_time.simulate import simulate as simulate
    from preduce.runtime.virtual_time.timeline import Timeline as Timeline
    from preduce.topo.cluster import Cluster as Cluster
    from preduce.topo.document import dump_schedule as dump_schedule
    from preduce.topo.document import load_cluster as load_cluster
    from preduce.topo.document import load_schedule as load_schedule
    from preduce.topo.document import parse_schedule as parse_schedule
    from preduce.topo.document import schedule_sha256 as schedule_sha256
    from preduce.topo.document import write_cluster as write_cluster
    from preduce.topo.document import write_schedule as write_schedule
    from preduce.topo.errors import DocumentError as DocumentError
    from preduce.topo.errors import FencedError as FencedError
    from preduce.topo.errors import FileProblem as FileProblem
    from preduce.topo.errors import HandshakeError as HandshakeError
    from preduce.topo.errors import InputError as InputError
    from preduce.topo.errors import MissingFeatureError as MissingFeatureError
    from preduce.topo.errors import PeerLostError as PeerLostError
    from preduce.topo.errors import PreduceError as PreduceError
    from preduce.topo.errors import RefutedError as RefutedError
    from preduce.topo.errors import ScheduleError as ScheduleError
    from preduce.topo.errors import UnavailableError as UnavailableError
    from preduce.topo.errors import UnknownError as UnknownError
    from preduce.topo.figures import Figures as Figures
    from preduce.topo.figures import figures as figures
    from preduce.topo.hardware import Hardware as Hardware
    from preduce.topo.hardware import Link as Link
    from preduce.topo.hardware import Switch as Switch
    from preduce.topo.phase import Group as Group
    from preduce.topo.phase import Phase as Phase
    from preduce.topo.rule import Block as Block
    from preduce.topo.schedule import Schedule as Schedule
    from preduce.topo.strategies import AllReduce as AllReduce
    from preduce.topo.strategies import Neighbor as Neighbor
    from preduce.topo.strategies import Round as Round
    from preduce.topo.strategies import Static as Static
    from preduce.topo.timing.compute import ComputeTimes as ComputeTimes
    from preduce.verify.base import Proof as Proof
    from preduce.verify.prove import prove as prove

__version__ = "0.1.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "preduce.api": ("catalogue", "design"),
    "preduce.runtime": (
        "DistributedOptimizer",
        "RoundSampler",
        "ScheduleAverager",
        "ScheduleHookState",
        "load_checkpoint",
        "merge_traces",
        "p_reduce",
        "save_checkpoint",
        "schedule_hook",
        "shard",
    ),
    "preduce.runtime.virtual_time.simulate": ("simulate",),
    "preduce.runtime.virtual_time.timeline": ("Timeline",),
    "preduce.topo.cluster": ("Cluster",),
    "preduce.topo.document": (
        "dump_schedule",
        "load_cluster",
        "load_schedule",
        "parse_schedule",
        "schedule_sha256",
        "write_cluster",
        "write_schedule",
    ),
    "preduce.topo.errors": (
        "DocumentError",
        "FencedError",
        "FileProblem",
        "HandshakeError",
        "InputError",
        "MissingFeatureError",
        "PeerLostError",
        "PreduceError",
        "RefutedError",
        "ScheduleError",
        "UnavailableError",
        "UnknownError",
    ),
    "preduce.topo.figures": ("Figures", "figures"),
    "preduce.topo.hardware": ("Hardware", "Link", "Switch"),
    "preduce.topo.phase": ("Group", "Phase"),
    "preduce.topo.rule": ("Block",),
    "preduce.topo.schedule": ("Schedule",),
    "preduce.topo.strategies": ("AllReduce", "Neighbor", "Round", "Static"),
    "preduce.topo.timing.compute": ("ComputeTimes",),
    "preduce.verify.base": ("Proof",),
    "preduce.verify.prove": ("prove",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AllReduce",
    "Block",
    "Cluster",
    "ComputeTimes",
    "DistributedOptimizer",
    "DocumentError",
    "FencedError",
    "Figures",
    "FileProblem",
    "Group",
    "HandshakeError",
    "Hardware",
    "InputError",
    "Link",
    "MissingFeatureError",
    "Neighbor",
    "PeerLostError",
    "Phase",
    "PreduceError",
    "Proof",
    "RefutedError",
    "Round",
    "RoundSampler",
    "Schedule",
    "ScheduleAverager",
    "ScheduleError",
    "ScheduleHookState",
    "Static",
    "Switch",
    "Timeline",
    "UnavailableError",
    "UnknownError",
    "catalogue",
    "design",
    "dump_schedule",
    "figures",
    "load_checkpoint",
    "load_cluster",
    "load_schedule",
    "merge_traces",
    "p_reduce",
    "parse_schedule",
    "prove",
    "save_checkpoint",
    "schedule_hook",
    "schedule_sha256",
    "shard",
    "simulate",
    "write_cluster",
    "write_schedule",
]


def __getattr__(name: str) -> object:
    """Import a public name on first use.

    Raises:
        AttributeError: no such public name.
    """
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'preduce' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, "__version__"])
