"""Schema: what is asked of the synthesiser, within which limits, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from preduce.topo.errors import InputError
from preduce.topo.strategies.axes import Form
from preduce.topo.timing.cost import bytes_of

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.hardware import Hardware
    from preduce.topo.schedule import Schedule

Push = Literal["worker", "node"]


class Status(StrEnum):
    """What is known about an answer. The four are never merged."""

    OPTIMAL = "optimal"
    """Proved: nothing better exists within the stated class and limits; `bound` says so."""

    FEASIBLE = "feasible"
    """A valid answer; better ones may exist, down to `bound`."""

    INFEASIBLE = "infeasible"
    """Proved: no answer exists, by a named bound or by two runs, one of them without symmetry breaking."""

    UNKNOWN = "unknown"
    """The limit was reached before an answer was."""


class Objective(StrEnum):
    """What the search minimises under the limits."""

    DISAGREEMENT = "disagreement"
    DRIFT = "drift"
    COMMUNICATION = "communication"
    WEIGHTED = "weighted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a schedule may cost; None means no limit.

    `max_communication` is in seconds per step, `max_period` in phases, `max_group` in workers, `max_distinct_phases`
    counts communicator splits, `max_gap` is the most steps in a row in which no group crosses nodes ("sync frequency").
    """

    max_communication: float | None = None
    max_disagreement: float | None = None
    min_period: int = 1
    max_period: int = 24
    max_group: int | None = None
    max_distinct_phases: int | None = None
    max_gap: int | None = None

    def __post_init__(self) -> None:
        """Refuse limits that no schedule can meet, whatever the cluster."""
        for name in ("max_communication", "max_disagreement"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"{name}: is {value}; it is a finite number >= 0")
        if self.min_period < 1 or self.max_period < self.min_period:
            raise InputError(
                f"max_period: is {self.max_period} with min_period {self.min_period}; "
                "a period has at least 1 phase, and max_period >= min_period"
            )
        for name, least in (("max_group", 2), ("max_distinct_phases", 1), ("max_gap", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name}: is {value}; the least possible value is {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A cluster with its hardware, what to minimise, and the limits.

    `form` is how a group carries out its all-reduce (it decides the cost). For `Objective.WEIGHTED` the search
    minimises communication + disagreement_weight · disagreement + drift_weight · drift (weights in seconds).
    `paces` lists pace vectors to try; None lets the search derive them from the workers' slowdowns. `hints` are known
    schedules of the same cluster: the search starts from them and looks hardest at what they communicate.
    """

    cluster: Cluster
    objective: Objective = Objective.DISAGREEMENT
    limits: Limits = field(default_factory=Limits)
    form: Form = Form.RING
    push: Push = "worker"
    disagreement_weight: float = 1.0
    drift_weight: float = 0.0
    paces: tuple[tuple[int, ...], ...] | None = None
    model_bytes: int | None = None
    hints: tuple[Schedule, ...] = ()

    def __post_init__(self) -> None:
        """Refuse problems without a cluster worth scheduling.

        Raises:
            InputError: one worker, no hardware, no model size, a group limit above n, or paces of the wrong length.
        """
        num_workers = self.cluster.num_workers
        if num_workers < 2:
            raise InputError(f"cluster {self.cluster}: has 1 worker; there is nobody to average with below 2 workers")
        if self.cluster.hardware is None:
            raise InputError("hardware: is not given; communication cannot be weighed without link speeds")
        bytes_of(self.cluster.hardware, self.model_bytes)
        if self.limits.max_group is not None and self.limits.max_group > num_workers:
            raise InputError(
                f"max_group: is {self.limits.max_group} but the cluster has {num_workers} workers; "
                f"the largest possible group is {num_workers}"
            )
        for hint in self.hints:
            if hint.cluster.node_sizes().tolist() != self.cluster.node_sizes().tolist():
                raise InputError(f"hints: {hint.name} is for the cluster {hint.cluster}, not for {self.cluster}")
        for pace in self.paces or ():
            if len(pace) != num_workers or min(pace) < 1:
                raise InputError(f"paces: {pace} is not 1 number of steps >= 1 for each of {num_workers} workers")

    @property
    def hardware(self) -> Hardware:
        """The cluster's hardware (checked at construction)."""
        assert self.cluster.hardware is not None
        return self.cluster.hardware

    @property
    def size(self) -> int:
        """Bytes of the model."""
        return bytes_of(self.hardware, self.model_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One schedule with its figures.

    `bound` is a proved lower bound on the disagreement of every schedule of `bound_class` that communicates no more,
    None if there is none; drift is for the problem's push.
    """

    schedule: Schedule
    name: str
    communication_seconds_per_step: float
    disagreement: float
    drift: float
    step_seconds: float
    period: int
    status: Status
    bound: float | None = None
    bound_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The non-dominated candidates, by rising communication; `status` is about the problem as a whole.

    `best` is the candidate that the objective prefers within the limits (None when there is none), `reason` one line
    about an infeasible or unknown answer with the nearest possible thing, `proof` what the bound covers.
    """

    candidates: tuple[Candidate, ...]
    best: Candidate | None
    status: Status
    seconds: float
    seed: int
    reason: str = ""
    proof: str = ""
