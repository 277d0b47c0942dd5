"""Nodes left: torchrun starts the workers of those nodes again that are left, and they follow the file's failure plan.

torchrun numbers the nodes that are left from 0 and does not say which are lost. So this is for nodes that are all
alike, where what the others run is the same after every loss of so many.
"""

from __future__ import annotations

import os

from partreduce.runtime.environment import LOCAL_WORLD_SIZE
from partreduce.runtime.transport.rendezvous import may_be_started_again, place
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.schedule import Schedule
from partreduce.topo.survivors import after_failure_of_nodes


def schedule_for_present_nodes(schedule: Schedule) -> Schedule:
    """What the workers run that torchrun has started: the schedule, or what it plans for the nodes that are left."""
    size, wanted = place()[1], schedule.num_workers
    if not may_be_started_again() or not 1 < size < wanted:
        return schedule
    try:
        return _of_nodes_left(schedule, size, int(os.environ.get(LOCAL_WORLD_SIZE, "0")))
    except ScheduleError as error:
        raise InputError(
            f"schedule {schedule.name!r}: is for {wanted} workers, and torchrun has started {size}: {error}; start "
            f"{wanted}, or design a schedule for {size} and load the checkpoint with allow_different_run=True"
        ) from None


def warn_nodes_missing(schedule: Schedule, started: Schedule) -> None:
    """One line, for one worker to say."""
    have, had = started.cluster.num_nodes, schedule.cluster.num_nodes
    if have < had:
        warn_user(
            f"schedule {schedule.name!r}: torchrun has started {have} of its {had} nodes, and they follow its "
            f"failure plan for the loss of {had - have}"
        )


def is_planned(schedule: Schedule, num_workers: int, sha256: str) -> bool:
    """Whether so many workers run the schedule of this hash under this one: all do, or those of the nodes left."""
    if num_workers == schedule.num_workers:
        return schedule_sha256(schedule) == sha256
    try:
        left = _of_nodes_left(schedule, num_workers, schedule.cluster.workers_per_node or 0)
    except ScheduleError:
        return False
    return schedule_sha256(left) == sha256


def _of_nodes_left(schedule: Schedule, size: int, on_each: int) -> Schedule:
    cluster = schedule.cluster
    missing, rest = divmod(cluster.num_workers - size, cluster.workers_per_node or cluster.num_workers)
    if rest or not missing or missing < 0 or on_each != cluster.workers_per_node:
        raise ScheduleError("those are not whole nodes of its cluster")
    return after_failure_of_nodes(schedule, missing)
