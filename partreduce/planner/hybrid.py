"""A plan for tables that go their own way, and for everything else that the model has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from partreduce.console import size as in_bytes
from partreduce.planner.job import PlanRequest
from partreduce.planner.model_tables import ModelFacts
from partreduce.planner.plan import Plan, plan
from partreduce.planner.predict import predict
from partreduce.planner.routes import Chosen, choose_routes
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.verify.base import Proof
from partreduce.verify.prove import prove

MAX_PLANS = 2
"""Times that everything else is planned for: the ways of tables decide how much that is, and what is recommended for it
decides the ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """The plan for what the strategy averages, the ways of the tables, and the schedule of both with its proof.

    `job` is that of the plan, and `num_steps` from how many steps it was measured what is touched.
    `step_seconds` and `nic_bytes` are of a whole step, the tables' exchange among them.
    """

    planned: Plan
    chosen: Chosen
    schedule: Schedule
    proof: Proof
    job: PlanRequest
    num_steps: int
    step_seconds: float
    nic_bytes: float

    @property
    def cautions(self) -> list[str]:
        """What the plan does not know of tables."""
        strategy = self.schedule.strategy
        if not strategy.payload.apart:
            return []
        said, averaged = [], self.job.hardware.model_bytes or 0
        if max(1, self.chosen.dense_bytes) != averaged:
            said.append(
                f"everything else was planned for {in_bytes(averaged)}; with the tables that go densely beside this "
                f"recommendation it is {in_bytes(self.chosen.dense_bytes)}"
            )
        if not strategy.steps_once:
            said.append(
                f"rows are exchanged in each of the {strategy.steps_per_round} steps of a round, and all workers "
                "meet for that: "
                "averaging less often saves bytes, but no waiting"
            )
        if not self.num_steps:
            said.append("what a step touches was said, not measured; batches from build() would show it")
        return said

    def to_json(self) -> dict[str, Any]:
        """The plan as `partreduce design --json` prints it, and the tables."""
        tables = {
            **self.chosen.to_json(),
            "measured_steps": self.num_steps,
            "step_seconds": self.step_seconds,
            "nic_bytes": self.nic_bytes,
            "verdict": self.proof.verdict,
            "cautions": self.cautions,
        }
        return self.planned.to_json() | {"tables": tables}


def plan_hybrid(job: PlanRequest, model: ModelFacts, *, progress: Callable[[str], None] | None = None) -> Hybrid:
    """Plan for the bytes that the strategy averages, and choose the ways of the tables beside the recommendation.

    All competitors take part whose workers have common steps. Rows may travel in the codecs that sums may.
    Where the recommendation changes which tables go densely, it is planned once more for these bytes.

    Raises:
        InputError: the job cannot be, such as a gap or a quorum beside tables.
        InfeasibleError: as `plan` says.
        UndecidedError: as `plan` says.
    """
    tables, hardware = model.tables, job.hardware
    first = Schedule("all-reduce", job.cluster, AllReduce())
    chosen = choose_routes(tables, first, hardware, dense_bytes=model.dense_bytes, codecs=job.codecs)
    for _ in range(MAX_PLANS):
        averaged = max(1, chosen.dense_bytes)
        cluster = replace(job.cluster, hardware=replace(hardware, model_bytes=averaged))
        has_tables = bool(chosen.routes.apart)
        gap = False if has_tables and job.gap is None else job.gap
        quorum = False if tables and job.quorum is None else job.quorum
        beside = replace(job, cluster=cluster, gap=gap, quorum=quorum, tables=has_tables)
        planned = plan(beside, progress=progress)
        recommendation = planned.recommendation.schedule
        chosen = choose_routes(tables, recommendation, hardware, dense_bytes=model.dense_bytes, codecs=job.codecs)
        if max(1, chosen.dense_bytes) == averaged:
            break
    strategy = replace(planned.recommendation.schedule.strategy, payload=chosen.routes)
    schedule = replace(planned.recommendation.schedule, strategy=strategy, certificate=None)
    apart = {route.parameter for route in chosen.routes.apart}
    whole = predict(
        schedule,
        replace(hardware, model_bytes=max(1, chosen.dense_bytes)),
        compute=job.compute_times(),
        seed=job.seed,
        touched={table.parameter: table.shares for table in tables if table.parameter in apart},
    )
    return Hybrid(
        planned=planned,
        chosen=chosen,
        schedule=schedule,
        proof=prove(schedule) if tables else planned.proof,
        job=beside,
        num_steps=model.num_steps,
        step_seconds=whole.step_seconds,
        nic_bytes=whole.nic_bytes,
    )
