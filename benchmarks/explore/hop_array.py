"""Configurations of Hop's worker from a covering array: every setting with every other, in pairs or triples."""

from __future__ import annotations

from typing import Any

from benchmarks.explore.covering import Factors, Level
from benchmarks.explore.hop_suite import PATH, HopConfiguration, both_ways, diamond, ring
from partreduce.schedulers.protocols.hop import check_setting
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.gap import Gap, Reducing, Skip
from partreduce.verify.explore import Network


def _possible(chosen: dict[str, Any]) -> bool:
    """What Hop refuses is left out, what may halt by its own rules, and what has no end of states."""
    graph, setting = chosen["graph"], _setting(chosen)
    try:
        check_setting(graph, setting)
    except InputError:
        return False
    backed = any(setting.backups(graph.num_workers))
    if backed and (setting.max_ig is None or not graph.is_symmetric):
        return False  # gaps without bound, or updates that wait without bound beside tokens that do not
    if graph == diamond() and (setting.skip is not None or setting.max_ig == 2 or chosen["suspicions"]):
        return False  # more states than the others together
    # An update that nobody needs may be overtaken for ever, or lie before a worker that has ended.
    lasting = backed or setting.skip is not None
    return not (lasting and chosen["suspicions"]) and not ((lasting or setting.staleness) and chosen["wire"])


def _setting(chosen: dict[str, Any]) -> Gap:
    graph, backup = chosen["graph"], chosen["backup"]
    spare = tuple(int(backup == "all" or (backup == "one" and v == 0)) for v in range(graph.num_workers))
    return Gap(
        max_ig=chosen["max_ig"],
        staleness=chosen["staleness"],
        backup=spare,
        notify_ack=chosen["notify_ack"],
        skip=chosen["skip"],
        reduce=chosen["reduce"],
        inquire=chosen["inquire"],
    )


def _make(words: str, chosen: dict[str, Any]) -> HopConfiguration:
    """The configuration that a row stands for."""
    network = Network(reorder=chosen["wire"], suspicions=chosen["suspicions"])
    return HopConfiguration(words, chosen["graph"], _setting(chosen), network, chosen["fine"], chosen["symmetry"])


FACTORS = Factors(
    {
        "graph": [
            Level(ring(3), "ring of 3", 100),
            Level(PATH, "path of 3", 100),
            Level(both_ways(3), "undirected ring of 3", 400),
            Level(diamond(), "diamond", 2000),
        ],
        "max_ig": [Level(None), Level(1, "tokens max_ig 1", 3), Level(2, "tokens max_ig 2", 10)],
        "staleness": [Level(0), Level(1, "staleness 1", 3)],
        "backup": [Level(""), Level("one", "a backup for worker 0", 3), Level("all", "backup 1", 10)],
        "notify_ack": [Level(False), Level(True, "NOTIFY-ACK", 3)],
        "skip": [Level(None), Level(Skip(limit=2), "skips up to 2", 3)],
        "reduce": [Level(Reducing.RECEIVED), Level(Reducing.NEWEST, "the newest again")],
        "inquire": [Level(False), Level(True, "inquiry")],
        "fine": [Level(False), Level(True, "fine steps", 3)],
        "wire": [Level(False), Level(True, "reordered", 2)],
        "suspicions": [Level(0), Level(1, "one taken for dead", 10)],
        "symmetry": [Level(False), Level(True, "folded", 0.5)],
    },
    _make,
    _possible,
)
