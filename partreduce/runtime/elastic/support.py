"""Whether a run continues after failures, and why it does not."""

from __future__ import annotations

import os
from collections.abc import Sequence

from partreduce.runtime.environment import MAX_FAILED
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.rendezvous import may_be_started_again
from partreduce.runtime.transport.worlds import World
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import InputError, MissingDependencyError, ScheduleError
from partreduce.topo.failure_plan import BY_NAME, check_covered
from partreduce.topo.metrics.outer_steps import check_unstable
from partreduce.topo.schedule import Schedule
from partreduce.topo.survivors import after_failure


def supports_elastic(schedule: Schedule, world: World, key: str, replica: Sequence[int]) -> bool:
    """Whether the launcher lets this run continue after failures."""
    if not os.environ.get(MAX_FAILED):
        if schedule.failure_plan is not None and not world.rank and not may_be_started_again():
            warn_user(
                f"schedule {schedule.name!r}: plans for failures, and a run continues after one only under "
                "`partreduce run --tolerate-failures K` or `run --schedule FILE` with this file, or begins again under "
                "torchrun with --max-restarts; here a failure ends it"
            )
        return False
    refusals = {
        "a second DistributedOptimizer": key != "1",
        "sharded replicas": bool(replica),
        "groups of NCCL": not isinstance(world, GlooWorld),
    }
    if refusal := refusal_of(schedule) or next((BY_NAME[name].words for name, holds in refusals.items() if holds), ""):
        raise MissingDependencyError(
            f"schedule {schedule.name!r}: {refusal}, and no such run continues after a failure yet; run it with "
            "--tolerate-failures 0, and with --max-restarts R all begin again from their last checkpoint"
        )
    return True


def refusal_of(schedule: Schedule) -> str:
    """What of a schedule keeps it from continuing after a failure, as a clause; empty where nothing does."""
    try:
        check_covered(schedule.strategy)
        if schedule.num_workers > 2 and schedule.strategy.payload.outer.has_own_outer_params:
            check_unstable(after_failure(schedule, {0}))
    except (ScheduleError, InputError) as error:
        return str(error)
    return ""
