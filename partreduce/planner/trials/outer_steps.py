"""Outer steps (DiLoCo): workers train alone, or with their node, and an outer optimizer applies what all moved.

They answer links that are slower than computing. Their seconds are those of the event graph, with the window in which a
late fragment is hidden; their price in steps is what a measured setting needed (`planner.outer_prices`), and no other
setting is proposed. Fragments were measured as two: the price of more is taken to be that, and said to be a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from partreduce.console import size
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.limits import within_limits
from partreduce.planner.measuring import Label, measure
from partreduce.planner.option import CandidateSchedule, Facts
from partreduce.planner.outer_prices import ERRORS, MEASURED, Measured
from partreduce.planner.outer_prices import FRAGMENTS as MEASURED_FRAGMENTS
from partreduce.planner.steps_model import Optimizer
from partreduce.planner.trials.kit import Kind, Trial, Trials
from partreduce.planner.trials.on_request import is_open
from partreduce.planner.work import work_of
from partreduce.schedulers import registry
from partreduce.topo.errors import PartreduceError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.timing.cost import communication
from partreduce.verify.stated import Stated

FRAGMENTS = (2, 4, 8)
"""Into how many a model is cut where its fragments are merged late, as far as they fit into a round."""


class OuterSteps(Kind):
    """DiLoCo's kind, whole or streamed, over everybody or above nodes that average in each step."""

    word, name, share, samples_distance = "outer", "outer steps", 0.1, False

    def weighs(self, job: PlanRequest) -> bool:
        return not why_not_weighed(job) and is_thin(job)

    def options(self, trials: Trials) -> list[CandidateSchedule]:
        job = trials.job
        listed = [
            (schedule.name, Trial(schedule.name, work_of(schedule, job), partial(_priced, schedule, one, job)))
            for one in MEASURED[Optimizer(job.optimizer or "")]
            for schedule in _schedules(one, job)
        ]
        trials.try_all(listed, in_any_case=False)
        return list(trials.options.values())

    def reasons(self, chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:  # noqa: ARG002
        facts, model = chosen.facts, job.hardware.model_bytes or 1
        assert facts is not None, "chosen is one of this kind"
        sent = (
            f"the step that sends most sends {size(facts.peak)} out of a node, and a step {size(chosen.nic_bytes)} on "
            f"average; a worker keeps {facts.memory_bytes / model:.3g} models beside its parameters"
        )
        needed = (
            f"its steps are those of networks that were measured: {min(facts.by_task):.2f} to "
            f"{max(facts.by_task):.2f} times All-Reduce's"
        )
        if facts.rate != 1:
            needed += f", with {facts.rate:g} times the learning rate that was best for All-Reduce"
        return [sent, needed]

    def cautions(self, chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
        assert chosen.facts is not None, "chosen is one of this kind"
        said = (
            "outer steps were measured on small networks with 16 workers, in runs of 200 to 1,000 steps, and may lose "
            "in shorter ones: tune the outer learning rate and momentum of the file on your job"
        )
        return [said, *super().cautions(chosen, job)]


def is_thin(job: PlanRequest) -> bool:
    """Whether the sums of one step take longer than its computing."""
    everyone = Schedule("all", job.cluster, AllReduce())
    return communication(everyone, job.hardware, algorithm=job.algorithms[-1]).per_step > job.compute_times().base


def why_not_weighed(job: PlanRequest) -> str:
    """Why they have no price here, as a clause; empty where they have one, or something else is asked for."""
    if not is_open(job):
        return "another kind is asked for"
    if job.pilot is not None:
        return "a pilot does not price them"
    if job.data is not Data.SHUFFLED:
        return "they were measured on shuffled data"
    if job.optimizer not in MEASURED:
        return f"they were measured under {', '.join(MEASURED)}, which --optimizer can say"
    return ""


def _schedules(measured: Measured, job: PlanRequest) -> Iterator[Schedule]:
    """Those that a setting was measured for; none where the cluster or the limits have no such."""
    outer: dict[str, object] = {
        "every": measured.every,
        "lr": float(measured.outer.lr),
        "momentum": float(measured.outer.momentum),
    }
    listed: list[tuple[str, dict[str, object]]] = [("diloco", {})]
    if measured.in_nodes:
        listed = [("regions-diloco", {})]
    elif measured.late:
        late: dict[str, object] = {"late": measured.late, "alpha": float(measured.alpha)}
        listed = [("diloco", late | {"fragments": count}) for count in FRAGMENTS]
    for name, more in listed:
        try:
            schedule = registry.build(name, job.cluster, **outer, **more)
        except PartreduceError:
            continue
        if within_limits(schedule, job.limits):
            yield schedule


def _priced(schedule: Schedule, measured: Measured, job: PlanRequest) -> CandidateSchedule:
    """With the seconds of the event graph, or of samples where step times vary, and the measured price."""
    optimizer = Optimizer(job.optimizer or "")
    option = measure(schedule, job, label=Label(name=schedule.name))
    arrays = Stated(option.schedule).numbers("memory")["arrays"]
    cost = communication(option.schedule, job.hardware, algorithm=option.algorithm)
    basis = "9 of 10 measured outer steps on kinds of networks held out"
    return replace(
        option,
        steps_ratio=measured.ratio,
        model=replace(option.model, errors=((str(job.data), ERRORS[optimizer]),), late_errors=(), basis=basis),
        extrapolated=option.schedule.strategy.payload.num_fragments > MEASURED_FRAGMENTS,
        facts=Facts(
            kind=OuterSteps.word,
            words=schedule.name,
            memory_bytes=arrays * (job.hardware.model_bytes or 0),
            least_share=1.0,
            gradients=float(schedule.num_workers),
            peak=cost.peak_nic_bytes,
            by_task=measured.by_task(optimizer),
            rate=measured.share,
        ),
    )
