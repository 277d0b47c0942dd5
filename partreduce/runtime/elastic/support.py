"""Decide whether a run can continue after failures, including the loss of whole nodes under torchrun.

torchrun restarts the workers of the remaining nodes, renumbered from 0, and does not tell which nodes failed. A run
under torchrun can therefore follow the schedule's failure plan only if all nodes are equal and the survivors' schedule
is the same whichever node fails.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from partreduce.runtime.environment import LOCAL_WORLD_SIZE, MAX_FAILED
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.rendezvous import may_be_started_again, place
from partreduce.runtime.transport.worlds import World
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.failure_plan import BY_NAME, check_covered
from partreduce.topo.metrics.stability import check_unstable
from partreduce.topo.schedule import Schedule
from partreduce.topo.survivors import after_failure, after_failure_of_nodes


def supports_elastic(schedule: Schedule, world: World, key: str, replica: Sequence[int]) -> bool:
    """Return whether this run can continue after failures, given launcher, schedule and transport.

    `key` is the optimizer's ("1" for the first of the process), `replica` the ranks of a sharded model. Raises
    InputError if the launcher is to tolerate failures and the run cannot; warns if it would not use a failure plan.
    """
    if not os.environ.get(MAX_FAILED):
        if schedule.failure_plan is not None and not world.rank and not may_be_started_again():
            warn_user(
                f"schedule {schedule.name!r}: plans for failures, and a run continues after one only under "
                "`partreduce run --tolerate-failures K` or `run --schedule FILE` with this file, or begins again under "
                "torchrun with --max-restarts; here a failure ends it"
            )
        return False
    if refusal := _blocker_of_run(schedule, world, key, replica):
        raise InputError(
            f"schedule {schedule.name!r}: {refusal}, and no such run continues after a failure yet; run it with "
            "--tolerate-failures 0, and with --max-restarts R all begin again from their last checkpoint"
        )
    return True


def way_to_continue(schedule: Schedule, world: World, key: str, replica: Sequence[int]) -> str:
    """Return a hint for errors if the run could survive under another launcher; parameters as of `supports_elastic`."""
    if os.environ.get(MAX_FAILED) or _blocker_of_run(schedule, world, key, replica):
        return ""
    return "; under `partreduce run --tolerate-failures K` the other workers continue after such a failure"


def _blocker_of_run(schedule: Schedule, world: World, key: str, replica: Sequence[int]) -> str:
    refusals = {
        "a second DistributedOptimizer": key != "1",
        "sharded replicas": bool(replica),
        "groups of NCCL": not isinstance(world, GlooWorld),
    }
    return elastic_blocker(schedule) or next((BY_NAME[name].words for name, holds in refusals.items() if holds), "")


def elastic_blocker(schedule: Schedule) -> str:
    """Return why runs of this schedule cannot continue after a failure, as a clause for an error; empty if they can."""
    try:
        check_covered(schedule.strategy)
        if schedule.num_workers > 2 and schedule.strategy.payload.outer.has_own_outer_params:
            check_unstable(after_failure(schedule, {0}))
    except (ScheduleError, InputError) as error:
        return str(error)
    return ""


def schedule_for_present_nodes(schedule: Schedule) -> Schedule:
    """Return the schedule for the workers that torchrun has started: the failure plan's if nodes are missing.

    Raises InputError if there is no plan for the present workers.
    """
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
    """Warn that the run follows `schedule`'s failure plan, if `started` is the plan's schedule for fewer nodes."""
    have, had = started.cluster.num_nodes, schedule.cluster.num_nodes
    if have < had:
        warn_user(
            f"schedule {schedule.name!r}: torchrun has started {have} of its {had} nodes, and they follow its "
            f"failure plan for the loss of {had - have}"
        )


def is_planned(schedule: Schedule, num_workers: int, sha256: str) -> bool:
    """Return whether `sha256` is the hash of this schedule, or of its failure plan for `num_workers` workers."""
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
