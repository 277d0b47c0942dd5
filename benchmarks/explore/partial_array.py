"""Configurations of the partial all-reduce from a covering array: all settings with all others, in pairs or triples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.explore.covering import Factors, Level
from benchmarks.explore.partial_suite import AT_ONCE, PartialConfiguration
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.quorum import Counting, MissedResults, Quorum, QuorumStart
from partreduce.verify.explore import Network


def _setting(chosen: dict[str, Any]) -> Quorum:
    missed, every = chosen["missed"]
    setting = Quorum(quorum=chosen["quorum"], count=chosen["count"], missed=missed, synchronise_every=every)
    return replace(setting, staleness=chosen["staleness"]) if setting.keeps_equal else setting


def _possible(chosen: dict[str, Any]) -> bool:
    """What a quorum refuses is left out, and three workers whose messages take their time: too many states."""
    setting = _setting(chosen)
    if not setting.keeps_equal and chosen["staleness"] > 1:
        return False  # no queue whose length could vary
    try:
        setting.check()
    except InputError:
        return False
    if chosen["initiators"] != (0,) and setting.quorum is not QuorumStart.MAJORITY:
        return False  # nobody is drawn
    return len(chosen["calls"]) == 2 or bool(chosen["wire"] == AT_ONCE)


def _make(words: str, chosen: dict[str, Any]) -> PartialConfiguration:
    """The configuration that a row stands for."""
    setting = _setting(chosen)
    return PartialConfiguration(words, setting, chosen["calls"], chosen["initiators"], chosen["wire"])


FACTORS = Factors(
    {
        "quorum": [Level(2, "2", 1), Level(QuorumStart.SOLO, "solo", 8), Level(QuorumStart.MAJORITY, "majority", 4)],
        "calls": [
            Level((1, 1), "calls 1 1"),
            Level((2, 1), "calls 2 1", 3),
            Level((3, 0), "calls 3 0", 3),
            Level((1, 1, 1), "calls 1 1 1", 20),
            Level((2, 1, 0), "calls 2 1 0", 20),
        ],
        "count": [Level(Counting.OPEN_ROUND), Level(Counting.CALL, "by call", 0.5)],
        "missed": [
            Level((MissedResults.EACH, 0)),
            Level((MissedResults.LATEST, 0), "latest", 3),
            Level((MissedResults.LATEST, 2), "latest, synchronised every 2", 3),
        ],
        "staleness": [Level(1), Level(2, "C 2", 5)],
        "initiators": [Level((0,)), Level((1, 0), "drawn in turn")],
        "wire": [
            Level(AT_ONCE, "at once", 0.2),
            Level(Network()),
            Level(Network(reorder=True), "reordered", 2),
            Level(Network(reorder=True, duplicates=1), "reordered and doubled", 20),
        ],
    },
    _make,
    _possible,
)
"""A level of `calls` says how many gradients each worker computes."""
