"""Option: one schedule with everything that decides whether to take it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preduce.planner.job import Data
from preduce.planner.steps_model import CORRECTED
from preduce.topo.errors import PreduceError
from preduce.topo.timing.cost import communication
from preduce.topo.timing.event_graph import cycle_time
from preduce.topo.timing.sampling import sample

if TYPE_CHECKING:
    from preduce.planner.job import Job
    from preduce.topo.figures.base import Figure
    from preduce.topo.schedule import Schedule
    from preduce.topo.strategies.axes import Form

MAX_SAMPLED_WORKERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A schedule on the job's cluster. Seconds are per step of the workers with the largest pace.

    `step_seconds` includes computing, waiting and communication; `stretch` is the predicted number of steps to a loss
    over All-Reduce's; `status` is the search's word (`optimal`, `feasible`) or `catalogue`; `bound` the least
    disagreement that any schedule of the searched class can have at this communication, where that is proved.
    `corrected` says that the stretch is the one with drift correction.
    """

    name: str
    schedule: Schedule
    form: Form
    period: int
    communication: float
    nic_bytes: float
    step_seconds: float
    waiting: float
    disagreement: Figure
    drift: Figure
    contraction: Figure
    stretch: float
    extrapolated: bool
    status: str
    bound: float | None = None
    bound_class: str = ""
    corrected: bool = False

    @property
    def time(self) -> float:
        """Predicted seconds to a loss, per step that All-Reduce would need."""
        return self.step_seconds * self.stretch

    @property
    def is_exact(self) -> bool:
        """Whether one period reaches exact consensus (up to rounding)."""
        return self.contraction.value is not None and self.contraction.value < 1e-9

    def to_json(self) -> dict[str, Any]:
        """Finite numbers only; null where a figure is infinite or unknown."""
        return {
            "name": self.name,
            "form": str(self.form),
            "communication_seconds_per_step": self.communication,
            "nic_bytes_per_step": self.nic_bytes,
            "disagreement": self.disagreement.json_value(),
            "drift": self.drift.json_value(),
            "contraction": self.contraction.json_value(),
            "step_seconds": self.step_seconds,
            "waiting_seconds_per_step": self.waiting,
            "stretch": self.stretch if math.isfinite(self.stretch) else None,
            "drift_correction": "auto" if self.corrected else None,
            "period": self.period,
            "status": self.status,
            "bound": self.bound,
            **({"bound_class": self.bound_class} if self.bound_class else {}),
        }


def measure(
    schedule: Schedule,
    job: Job,
    *,
    name: str | None = None,
    form: Form | None = None,
    status: str = "catalogue",
    bound: float | None = None,
    bound_class: str = "",
) -> Option:
    """All figures of one schedule for a job.

    Raises:
        PreduceError: the schedule has no fixed phases, or a figure could not be found within its limit.
    """
    from preduce.topo.figures import contraction, disagreement, drift
    from preduce.topo.figures.correction import is_correctable

    chosen = form or job.form
    schedule = schedule.travelling(chosen)  # the file then says how it is to be run
    cost = communication(schedule, job.hardware, form=chosen)
    step_seconds, computing = _step_seconds(schedule, job, chosen)
    spread = disagreement(schedule)
    push = drift(schedule, job.push)
    noise = math.inf if spread.value is None else spread.value
    pushed = 0.0 if job.data is Data.SHUFFLED else (math.inf if push.value is None else push.value)
    corrected = pushed > 0 and job.drift_correction and is_correctable(schedule)
    late, model = schedule.strategy.overlap, job.steps_model
    if corrected and CORRECTED.stretch(noise, pushed) < model.stretch(noise, pushed, late=late):
        model = CORRECTED
    return Option(
        name=name or schedule.name,
        schedule=schedule,
        form=chosen,
        period=schedule.period,
        communication=cost.per_step,
        nic_bytes=cost.nic_bytes_per_step,
        step_seconds=step_seconds,
        waiting=_waiting(step_seconds, computing, 0.0 if late else cost.per_step),
        disagreement=spread,
        drift=push,
        contraction=contraction(schedule),
        stretch=model.stretch(noise, pushed, late=late),
        extrapolated=model.extrapolates(noise, pushed),
        corrected=model is CORRECTED,
        status=status,
        bound=bound,
        bound_class=bound_class,
    )


def _waiting(step_seconds: float, computing: float, communicating: float) -> float:
    """What is left of a step, without the rounding of the three terms."""
    left = step_seconds - computing - communicating
    return left if left > 1e-9 * step_seconds else 0.0


def _step_seconds(schedule: Schedule, job: Job, form: Form) -> tuple[float, float]:
    """Seconds per step, and the seconds that the fastest workers compute of it."""
    compute = job.compute_times()
    if not compute.is_fixed:
        if schedule.num_workers > MAX_SAMPLED_WORKERS:
            raise PreduceError(
                f"jitter: {schedule.num_workers} workers are too many to sample (at most {MAX_SAMPLED_WORKERS})"
            )
        sampled = sample(schedule, job.hardware, compute, form=form, seed=job.seed)
        return sampled.per_step, sampled.compute
    return cycle_time(schedule, job.hardware, compute, form=form).per_step, compute.base
