"""What follows from a schedule alone: computed here, stated as a fact, and in no certificate.

A function states one fact, with its proof above it or at the top of its file, and answers None where there is nothing
to state. What holds of every program that obeys a protocol's rules, and of none that does not, is no fact about the
file but an assumption about what runs: it is stated as following from the rules (`FOLLOWS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import codec_error, gaps, groups, quorum, rounds, survives, tables, traffic
from .refusal import TooLarge, Work
from .schedule import Mode, Numbers, Schedule

Stated = Callable[[Schedule, Work], Numbers | None]

MAX_WORK = 10**9
"""What one fact may cost: seconds. One that costs more is left out, and said to be."""


class Fact(NamedTuple):
    """`numbers` are those of its file, None where they cost too much; `follows`: from the rules, not from the file."""

    name: str
    numbers: Numbers | None
    follows: bool


SUMS: dict[str, Stated] = {"doubly-stochastic": groups.doubly_stochastic, "unit-sums": groups.unit_sums}
GAP: dict[str, Stated] = {
    "deadlock-free": gaps.live,
    "queues": gaps.queues,
    "gap": gaps.gap,
    "gap-of-pairs": gaps.gap_of_pairs,
    "memory": gaps.memory,
}
RUNS: dict[str, Stated] = {
    "deadlock-free": rounds.deadlock_free,
    "staleness": rounds.staleness,
    "end": rounds.end,
    "queues": rounds.queues,
    "fragments": rounds.fragments,
    "equal-replicas": rounds.equal_replicas,
    "codec-error": codec_error.codec_error,
    "memory": traffic.memory,
    "sent-bytes": traffic.sent_bytes,
    "one-owner": tables.one_owner,
    "table-order": tables.table_order,
    "nic-bytes": tables.nic_bytes,
    "row-error": tables.row_error,
    "mean-moved": survives.mean_moved,
}
OWN = ("deadlock-free", "staleness", "end", "memory", "sent-bytes")
FACTS: dict[Mode, dict[str, Stated]] = {
    "rounds": SUMS | RUNS,
    "own outer parameters": {name: RUNS[name] for name in OWN},
    "gap": SUMS | GAP | {"staleness": rounds.staleness, "end": rounds.end},
    "lossy gap": GAP | {"consensus": gaps.consensus, "skip": gaps.skip, "staleness": gaps.staleness},
    "rounds by quorum": quorum.FACTS,
}
"""What is stated of a schedule, by how its workers wait for one another."""

OF_THE_FILE = SUMS.keys() | {
    "codec-error",
    "memory",
    "sent-bytes",
    "one-owner",
    "nic-bytes",
    "row-error",
    "mean-moved",
}
"""Facts. All others follow from the rules of a protocol, and so does all that is said of a gap but sums."""


def fact(schedule: Schedule, name: str, limit: int | None = None) -> Fact | None:
    """One fact of a schedule whose groups are disjoint, for so much work; None where there is nothing to state."""
    stated = FACTS[schedule.mode].get(name)
    if stated is None:
        return None
    follows = name not in OF_THE_FILE or stated in GAP.values()
    try:
        numbers = stated(schedule, Work(name, limit or MAX_WORK))
    except TooLarge:
        return Fact(name, None, follows)
    return None if numbers is None else Fact(name, numbers, follows)


def facts(schedule: Schedule) -> Iterator[Fact]:
    """Everything that can be stated of a schedule."""
    groups.confirm_disjoint(schedule)
    if schedule.phases:
        yield Fact("conflict-free", {}, follows=False)
    for name in FACTS[schedule.mode]:
        if (found := fact(schedule, name)) is not None:
            yield found
