"""The groups that a schedule needs made at start, and whether a worker can afford them."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from partreduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partreduce.topo.schedule import Schedule

SPARE_DESCRIPTORS = 64


def member_sets(schedule: Schedule, rank: int) -> set[tuple[int, ...]]:
    """The distinct groups of one worker over prologue and period; none for strategies whose file does not say groups.

    O(period · group size) for rules.
    """
    if not schedule.is_phased:
        return set()
    rounds = range(schedule.phased.period + (1 if schedule.prologue else 0))
    first = max(schedule.prologue - 1, 0)
    groups = (schedule.group_of(rank, first + index) for index in rounds)
    return {group.members for group in groups if group is not None}


def check_budget(name: str, groups: Iterable[tuple[int, ...]], max_groups: int) -> None:
    """Refuse a schedule that needs more groups or file descriptors than one worker may have."""
    member_lists = list(groups)
    if len(member_lists) > max_groups:
        raise InputError(
            f"schedule {name!r}: puts this worker into {len(member_lists)} distinct groups, and each costs it sockets "
            f"and a thread; at most {max_groups} are allowed; repeat groups within the period"
        )
    needed = sum(len(members) + 2 for members in member_lists) + SPARE_DESCRIPTORS
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit not in (resource.RLIM_INFINITY, -1) and needed > limit:
        raise InputError(
            f"schedule {name!r}: its groups need about {needed} file descriptors in each worker and the limit is "
            f"{limit}; raise it with `ulimit -n {2 * needed}`"
        )
