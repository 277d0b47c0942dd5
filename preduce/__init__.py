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

from preduce.house import check_house

if TYPE_CHECKING:
    from preduce.api import catalogue as catalogue
    from preduce.api import design as design
    from runtime import DistributedOptimizer as DistributedOptimizer
    from runtime import RoundSampler as RoundSampler
    from runtime import ScheduleAverager as ScheduleAverager
    from runtime import ScheduleHookState as ScheduleHookState
    from runtime import load_checkpoint as load_checkpoint
    from runtime import merge_traces as merge_traces
    from runtime import p_reduce as p_reduce
    from runtime import save_checkpoint as save_checkpoint
    from runtime import schedule_hook as schedule_hook
    from runtime import shard as shard
    from runtime.virtual import Timeline as Timeline
    from runtime.virtual import simulate as simulate
    from topo.cluster import Cluster as Cluster
    from topo.document import dump_schedule as dump_schedule
    from topo.document import load_cluster as load_cluster
    from topo.document import load_schedule as load_schedule
    from topo.document import parse_schedule as parse_schedule
    from topo.document import schedule_sha256 as schedule_sha256
    from topo.document import write_cluster as write_cluster
    from topo.document import write_schedule as write_schedule
    from topo.errors import DocumentError as DocumentError
    from topo.errors import FencedError as FencedError
    from topo.errors import FileProblem as FileProblem
    from topo.errors import HandshakeError as HandshakeError
    from topo.errors import InputError as InputError
    from topo.errors import MissingFeatureError as MissingFeatureError
    from topo.errors import PeerLostError as PeerLostError
    from topo.errors import PreduceError as PreduceError
    from topo.errors import RefutedError as RefutedError
    from topo.errors import ScheduleError as ScheduleError
    from topo.errors import UnavailableError as UnavailableError
    from topo.errors import UnknownError as UnknownError
    from topo.figures import Figures as Figures
    from topo.figures import figures as figures
    from topo.hardware import Hardware as Hardware
    from topo.hardware import Link as Link
    from topo.hardware import Switch as Switch
    from topo.phase import Group as Group
    from topo.phase import Phase as Phase
    from topo.rule import Block as Block
    from topo.schedule import Schedule as Schedule
    from topo.strategies import AllReduce as AllReduce
    from topo.strategies import Neighbor as Neighbor
    from topo.strategies import Round as Round
    from topo.strategies import Static as Static
    from topo.timing.compute import ComputeTimes as ComputeTimes
    from verify.base import Proof as Proof
    from verify.prove import prove as prove

__version__ = "0.1.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "preduce.api": ("catalogue", "design"),
    "runtime": (
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
    "runtime.virtual": ("Timeline", "simulate"),
    "topo.cluster": ("Cluster",),
    "topo.document": (
        "dump_schedule",
        "load_cluster",
        "load_schedule",
        "parse_schedule",
        "schedule_sha256",
        "write_cluster",
        "write_schedule",
    ),
    "topo.errors": (
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
    "topo.figures": ("Figures", "figures"),
    "topo.hardware": ("Hardware", "Link", "Switch"),
    "topo.phase": ("Group", "Phase"),
    "topo.rule": ("Block",),
    "topo.schedule": ("Schedule",),
    "topo.strategies": ("AllReduce", "Neighbor", "Round", "Static"),
    "topo.timing.compute": ("ComputeTimes",),
    "verify.base": ("Proof",),
    "verify.prove": ("prove",),
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
        ImportError: one of the packages that lie beside this one is missing or shadowed; both paths are named.
    """
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'preduce' has no attribute {name!r}")
    check_house()
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, "__version__"])
