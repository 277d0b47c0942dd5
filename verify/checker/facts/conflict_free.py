"""Fact `conflict-free`: in every phase each worker is in at most one group, and all members agree on the group.

**Explicit groups.** All workers read the same list of groups, so they agree on it. No worker stands in two groups of a
phase iff the members of all groups, counted together, are as many as the different workers among them.

**Rules.** Two workers of one block share a group iff their nodes agree in all digits outside `across`. Agreeing is an
equivalence, so the groups of a block are its classes, which are disjoint. Hence a phase is free of conflicts, for every
number of nodes, iff no local rank stands in two of its blocks.

It assumes nothing. Everything else about groups rests on it, so it is asked before anything is: without it there is no
mixing matrix to speak about.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ..refusal import confirm
from ..schedule import Average, Schedule


def confirm_disjoint(schedule: Schedule) -> None:
    """Refuse a schedule in which somebody stands in two groups of a phase.

    Raises:
        Refusal: the first worker (or local rank) that does, and the two groups.
    """
    for t, phase in enumerate(schedule.phases):
        workers = list(chain.from_iterable(members for members, _, _ in phase))
        if len(set(workers)) < len(workers):
            _refuse_conflict(phase, f"schedule: phase {t}")


def _refuse_conflict(phase: Sequence[Average], place: str) -> None:
    """Name the first worker (or local rank) that stands in two groups, and the two."""
    seen: set[int] = set()
    for average in phase:
        for worker in average.members:
            if worker in seen:
                both = [other.members for other in phase if worker in other.members][:2]
                confirm(False, place, both, f"groups that do not share worker {worker}")
            seen.add(worker)
