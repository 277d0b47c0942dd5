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

from itertools import chain

from ..averages import Average
from ..refusal import confirm
from ..schedule import Schedule


def conflict(schedule: Schedule) -> tuple[int, int, list[Average]] | None:
    """The first worker (or local rank) in two groups of a phase: the phase, the worker, the two; None without any."""
    for t, phase in enumerate(schedule.phases):
        workers = list(chain.from_iterable(members for members, _, _ in phase))
        if len(set(workers)) < len(workers):
            seen: set[int] = set()
            for worker in workers:
                if worker in seen:
                    return t, worker, [average for average in phase if worker in average.members][:2]
                seen.add(worker)
    return None


def confirm_disjoint(schedule: Schedule) -> None:
    """Refuse a schedule in which somebody stands in two groups of a phase.

    Raises:
        Refusal: names the first, and the two groups.
    """
    if (found := conflict(schedule)) is not None:
        t, worker, both = found
        groups = [average.members for average in both]
        confirm(False, f"schedule: phase {t}", groups, f"groups that do not share worker {worker}")
