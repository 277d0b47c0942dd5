"""Claim `conflict-free`: in every phase each worker is in at most one group, and all members agree on the group.

**Explicit groups.** All workers read the same list of groups, so they agree on it. No worker stands in two groups of a
phase iff the members of all groups, counted together, are as many as the different workers among them.

**Rules.** Two workers of one block share a group iff their nodes agree in all digits outside `across`. Agreeing is an
equivalence, so the groups of a block are its classes, which are disjoint. Hence a phase is free of conflicts, for every
number of nodes, iff no local rank stands in two of its blocks.

*The check is sound because* it counts in the schedule itself; the entry only repeats the counts. It assumes nothing.
Every other claim about groups rests on it: without it there is no mixing matrix to speak about.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from ..refusal import confirm, confirm_equal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..schedule import Average, Schedule

SKIPS = -1
"""The block of a local rank that stands in none."""


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`phases`: for explicit groups [groups, workers in groups]; for rules the block of every local rank."""
    confirm(schedule.form != "graph", place, "conflict-free", "a schedule of groups")
    expected: list[list[int]] = []
    for t, phase in enumerate(schedule.phases):
        workers = list(chain.from_iterable(members for members, _, _ in phase))
        if len(set(workers)) < len(workers):
            _refuse_conflict(phase, f"schedule: phase {t}")
        if schedule.form == "groups":
            expected.append([len(phase), len(workers)])
            continue
        given = entry["phases"][t] if isinstance(entry["phases"], list) and t < len(entry["phases"]) else None
        size = schedule.workers_per_node
        as_long = isinstance(given, list) and len(given) == size  # asked before a list as long is built
        confirm(as_long, f"{place}.phases[{t}]", "…", f"a list of {size}")
        block_of = {rank: number for number, block in enumerate(phase) for rank in block.members}
        expected.append([block_of.get(rank, SKIPS) for rank in range(size)])
    confirm_equal(f"{place}.phases", entry["phases"], expected)


def _refuse_conflict(phase: Sequence[Average], place: str) -> None:
    """Name the first worker (or local rank) that stands in two groups, and the two."""
    seen: set[int] = set()
    for average in phase:
        for worker in average.members:
            if worker in seen:
                both = [other.members for other in phase if worker in other.members][:2]
                confirm(False, place, both, f"groups that do not share worker {worker}")
            seen.add(worker)
