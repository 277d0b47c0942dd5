"""The configurations of partial collectives that the explorer is run on, and a covering array."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.explore.configuration import AT_ONCE, REORDERED, USUAL, WILD, Configuration, Explored
from benchmarks.explore.covering import Factors, Level
from benchmarks.explore.explorer import Network
from benchmarks.explore.partial import partial_properties
from partreduce.schedulers.protocols.partial import Partial
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.partial import LateGradientPolicy, MissedResultPolicy, PartialAllReduce, QuorumStart

Numbers = tuple[int, ...]


def quorum(
    name: str, setting: PartialAllReduce, calls: Numbers, initiators: Numbers | None = None, network: Network = USUAL
) -> Configuration:
    """`calls` says how many calls each worker makes, `initiators` who starts rounds."""
    machine = Partial(setting, len(calls), calls, initiators)
    return Configuration(name, machine, lambda machine, _: Explored(machine, partial_properties(machine)), network)


SOLO, MAJORITY = QuorumStart.SOLO, QuorumStart.MAJORITY
SOLO_1, SOLO_2 = PartialAllReduce(quorum=SOLO, staleness=1), PartialAllReduce(quorum=SOLO, staleness=2)
MAJORITY_1, MAJORITY_2 = PartialAllReduce(quorum=MAJORITY, staleness=1), PartialAllReduce(quorum=MAJORITY, staleness=2)
TWO_1, TWO_2 = PartialAllReduce(quorum=2, staleness=1), PartialAllReduce(quorum=2, staleness=2)
BY_CALL, LATEST = LateGradientPolicy.CALL, MissedResultPolicy.LATEST

SMALL = (
    quorum("solo, C 1, 2 workers", SOLO_1, (3, 2)),
    quorum("solo, C 2, 2 workers, at once", SOLO_2, (3, 2), network=AT_ONCE),
    quorum("solo by call, C 1, 2 workers", PartialAllReduce(quorum=SOLO, count=BY_CALL, staleness=1), (3, 3)),
    quorum("majority, C 1, 2 workers", MAJORITY_1, (2, 2), (0, 1)),
    quorum("majority by call, C 2, 2 workers",
           PartialAllReduce(quorum=MAJORITY, count=BY_CALL, staleness=2), (3, 3), (0, 0, 1)),
    quorum("majority, C 1, 3 workers, at once", MAJORITY_1, (2, 2, 1), (2, 0, 1), AT_ONCE),
    quorum("2 of 3, C 1, at once", TWO_1, (2, 2, 2), network=AT_ONCE),
    quorum("2 of 3 by call, C 1, at once",
           PartialAllReduce(quorum=2, count=BY_CALL, staleness=1), (3, 2, 2), network=AT_ONCE),
    quorum("2 of 2, C 1, reordered and doubled", TWO_1, (3, 2), network=WILD),
    quorum("solo, latest, synchronized every 2, 2 workers, at once",
           PartialAllReduce(quorum=SOLO, missed=LATEST, synchronize_every=2), (3, 2), network=AT_ONCE),
    quorum("solo by call, latest, synchronized every 2, 2 workers",
           PartialAllReduce(quorum=SOLO, count=BY_CALL, missed=LATEST, synchronize_every=2), (3, 3)),
    quorum("majority by call, latest, 2 workers",
           PartialAllReduce(quorum=MAJORITY, count=BY_CALL, missed=LATEST), (3, 2), (0, 1)),
    quorum("majority, C 1, 3 workers of 3 calls, at once", MAJORITY_1, (2, 1, 0), (1, 2), AT_ONCE),
    quorum("2 of 3, C 1, 2 calls", TWO_1, (1, 1, 0)),
    quorum("solo, C 1, 2 workers, reordered and doubled", SOLO_1, (1, 1), network=WILD),
)  # fmt: skip

LARGE = (
    quorum("solo, C 2, 2 workers", SOLO_2, (4, 2)),
    quorum("solo, C 1, 3 workers, at once", SOLO_1, (2, 2, 2), network=AT_ONCE),
    quorum("solo by call, C 2, 3 workers, at once",
           PartialAllReduce(quorum=SOLO, count=BY_CALL, staleness=2), (2, 2, 1), network=AT_ONCE),
    quorum("solo, 2 workers, reordered and doubled", SOLO_1, (2, 1), network=WILD),
    quorum("majority, C 1, 3 workers", MAJORITY_1, (1, 1, 1), (0, 1, 2)),
    quorum("majority, C 2, 3 workers, at once", MAJORITY_2, (2, 2, 1), (2, 0, 1), AT_ONCE),
    quorum("majority, C 2, 2 workers", MAJORITY_2, (4, 3), (1, 0)),
    quorum("majority by call, latest, 3 workers, at once",
           PartialAllReduce(quorum=MAJORITY, count=BY_CALL, missed=LATEST), (3, 3, 2), (0, 1, 2), AT_ONCE),
    quorum("2 of 3, C 1", TWO_1, (1, 1, 1)),
    quorum("2 of 3, C 2, at once", TWO_2, (3, 3, 2), network=AT_ONCE),
    quorum("2 of 4, C 1, at once", TWO_1, (2, 1, 1, 1), network=AT_ONCE),
    quorum("3 of 4, C 1, at once", PartialAllReduce(quorum=3, staleness=1), (2, 2, 2, 1), network=AT_ONCE),
    quorum("2 of 3, C 1, 4 calls", TWO_1, (2, 1, 1)),
    quorum("2 of 3, C 2", TWO_2, (2, 1, 1)),
    quorum("2 of 3, C 1, reordered and doubled", TWO_1, (1, 1, 0), network=WILD),
)  # fmt: skip


def _setting(chosen: dict[str, Any]) -> PartialAllReduce:
    missed, every = chosen["missed"]
    setting = PartialAllReduce(quorum=chosen["quorum"], count=chosen["count"], missed=missed, synchronize_every=every)
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


def _make(words: str, chosen: dict[str, Any]) -> Configuration:
    """The configuration that a row stands for."""
    setting = _setting(chosen)
    return quorum(words, setting, chosen["calls"], chosen["initiators"], chosen["wire"])


FACTORS = Factors(
    {
        "quorum": [Level(2, "2", 1), Level(QuorumStart.SOLO, "solo", 8), Level(QuorumStart.MAJORITY, "majority", 4)],
        "calls": [
            Level((3, 1), "calls 3 1"),
            Level((3, 3), "calls 3 3", 3),
            Level((5, 1), "calls 5 1", 3),
            Level((2, 2, 1), "calls 2 2 1", 20),
            Level((3, 2, 0), "calls 3 2 0", 20),
        ],
        "count": [Level(LateGradientPolicy.OPEN_ROUND), Level(LateGradientPolicy.CALL, "by call", 0.5)],
        "missed": [
            Level((MissedResultPolicy.EACH, 0)),
            Level((MissedResultPolicy.LATEST, 0), "latest", 3),
            Level((MissedResultPolicy.LATEST, 2), "latest, synchronized every 2", 3),
        ],
        "staleness": [Level(1), Level(2, "C 2", 5)],
        "initiators": [Level((0,)), Level((1, 0), "drawn in turn")],
        "wire": [
            Level(AT_ONCE, "at once", 0.2),
            Level(Network()),
            Level(REORDERED, "reordered", 2),
            Level(WILD, "reordered and doubled", 20),
        ],
    },
    _make,
    _possible,
)
"""A level of `calls` says how many gradients each worker computes."""
