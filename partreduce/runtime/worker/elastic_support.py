"""Whether a run continues after failures, and why it does not."""

from __future__ import annotations

import os
from collections.abc import Sequence

from partreduce.runtime.environment import MAX_FAILED
from partreduce.runtime.sharding.tables import Tables
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.rendezvous import may_be_started_again
from partreduce.runtime.transport.worlds import World
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import MissingDependencyError, ScheduleError
from partreduce.topo.failure_plan import check_covered
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.survivors import sends_whole


def supports_elastic(schedule: Schedule, world: World, key: str, tables: Tables, replica: Sequence[int]) -> bool:
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
        "it belongs to the second DistributedOptimizer of this process": key != "1",
        "its replicas are sharded": bool(replica),
        "its tables are spread over the workers": bool(tables),
        "its groups are not gloo's": not isinstance(world, GlooWorld),
    }
    if refusal := refusal_of(schedule) or next((why for why, holds in refusals.items() if holds), ""):
        raise MissingDependencyError(
            f"schedule {schedule.name!r}: {refusal}, and no such run continues after a failure yet; run it with "
            "--tolerate-failures 0, and with --max-restarts R all begin again from their last checkpoint"
        )
    return True


def refusal_of(schedule: Schedule) -> str:
    """What of a schedule keeps it from continuing after a failure, as a clause; empty where nothing does."""
    strategy = schedule.strategy
    try:
        check_covered(schedule.strategy)
    except ScheduleError as error:
        return str(error)
    if not sends_whole(schedule):
        return "its gradients leave by layers"
    if strategy.averaging is not Averaging.MEAN and len(set(schedule.worker_steps().tolist())) > 1:
        return "it averages by steps, over unequal steps per round"
    return ""
