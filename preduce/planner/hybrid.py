"""A plan beside which tables go their own way: the pick for everything else, and the ways that are best beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from preduce.planner.plan import Plan, plan
from preduce.planner.routes import Chosen, Table, choose_routes
from preduce.topo.schedule import Schedule
from preduce.topo.strategies.allreduce import AllReduce
from preduce.topo.strategies.routes import Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from preduce.planner.job import Job
    from preduce.planner.model_tables import ModelFacts
    from preduce.verify.base import Proof

MAX_PLANS = 2
"""Times that everything else is planned for: the ways of tables decide how much that is, and what is picked for it
decides the ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """The plan for what the strategy averages, the ways of the tables, and the schedule of both with its proof."""

    planned: Plan
    chosen: Chosen
    schedule: Schedule
    proof: Proof
    num_steps: int

    @property
    def cautions(self) -> list[str]:
        """What the plan does not know of tables."""
        strategy = self.schedule.strategy
        if not strategy.what.apart:
            return []
        said = []
        if not strategy.steps_once:
            said.append(
                f"rows are exchanged in each of the {strategy.pace} steps of a round, and all workers meet for that: "
                "averaging less often saves bytes, but no waiting"
            )
        if not self.num_steps:
            said.append("what a step touches was said, not measured; batches from build() would show it")
        return said

    def to_json(self) -> dict[str, Any]:
        """The plan as `preduce design --json` prints it, and the tables."""
        tables = self.chosen.to_json() | {"measured_steps": self.num_steps, "cautions": self.cautions}
        return self.planned.to_json() | {"tables": tables}


def plan_hybrid(job: Job, model: ModelFacts, *, progress: Callable[[str], None] | None = None) -> Hybrid:
    """Plan for the bytes that the strategy averages, and choose the ways of the tables beside the pick.

    All competitors take part whose workers have common steps. Where the pick changes which tables go densely, it is
    planned once more for these bytes; then tables keep on the side on which they are.

    Raises:
        InputError: the job cannot be, such as a gap or a quorum beside tables.
        InfeasibleError: as `plan` says.
        UnknownError: as `plan` says.
    """
    from preduce.verify.prove import prove

    tables, hardware = model.tables, job.hardware
    first = Schedule("all-reduce", job.cluster, AllReduce())
    chosen = choose_routes(tables, first, hardware, dense_bytes=model.dense_bytes)
    for number in range(MAX_PLANS):
        averaged = max(1, chosen.dense_bytes)
        cluster = replace(job.cluster, hardware=replace(hardware, model_bytes=averaged))
        apart = bool(chosen.routes.apart)
        planned = plan(replace(job, cluster=cluster, tables=apart), progress=progress)
        kept = tables if number < MAX_PLANS - 1 else tuple(_on_its_side(table, chosen) for table in tables)
        again = choose_routes(kept, planned.pick.schedule, hardware, dense_bytes=model.dense_bytes)
        is_settled = again.dense_bytes == chosen.dense_bytes
        chosen = again
        if is_settled:
            break
    strategy = replace(planned.pick.schedule.strategy, what=chosen.routes)
    schedule = replace(planned.pick.schedule, strategy=strategy, certificate=None)
    proof = prove(schedule) if tables else planned.proof
    return Hybrid(planned=planned, chosen=chosen, schedule=schedule, proof=proof, num_steps=model.num_steps)


def _on_its_side(table: Table, chosen: Chosen) -> Table:
    """The same table, which goes densely if it was to do so, and its own way if not."""
    route = chosen.routes.table(table.parameter)
    is_dense = route is not None and route.way is Way.DENSE
    return replace(table, ways=tuple(way for way in table.allowed if (way is Way.DENSE) == is_dense))
