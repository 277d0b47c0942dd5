"""Job: what the planner is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from preduce.topo.errors import InputError
from preduce.topo.strategies.axes import Form
from preduce.topo.timing.compute import ComputeTimes
from preduce.topo.timing.cost import bytes_of

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.hardware import Hardware
    from preduce.topo.timing.compute import Disturbance


class Data(StrEnum):
    """How the samples are spread; it decides whether disagreement or drift stretches the training."""

    SHUFFLED = "shuffled"
    """Every worker sees the same mixture."""

    PER_WORKER = "per-worker"
    """Every worker sees its own kind of data."""

    PER_NODE = "per-node"
    """The workers of one node see the same mixture, nodes differ."""


class Objective(StrEnum):
    """What the pick minimises; the front is the same for all."""

    BALANCED = "balanced"
    """Predicted time to a loss: seconds per step times the predicted stretch in steps."""

    COMMUNICATION = "communication"
    """Communication seconds per step, among schedules that mix well enough (see `pick`)."""

    DISAGREEMENT = "disagreement"
    """Disagreement within the communication budget."""

    DRIFT = "drift"
    """Drift, for the way the data is spread, within the communication budget."""

    WAITING = "waiting"
    """Seconds per step with slow and jittering workers."""

    EXACT = "exact"
    """Exact consensus in every period, in the fewest rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A cluster with its hardware, what matters, and the limits.

    `max_communication` is in seconds per step; `max_period` counts phases; `time_limit` is for the search, in seconds.
    `drift_correction` allows schedules to be picked for training with it, which needs plain SGD.
    """

    cluster: Cluster
    objective: Objective = Objective.BALANCED
    data: Data = Data.SHUFFLED
    drift_correction: bool = False
    max_communication: float | None = None
    max_disagreement: float | None = None
    max_period: int = 24
    max_group: int | None = None
    max_distinct_phases: int | None = None
    form: Form = Form.RING
    disturbance: Disturbance | None = None
    time_limit: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse jobs that cannot be planned.

        Raises:
            InputError: one worker, no links, no model size, or limits that nothing can meet.
        """
        n = self.cluster.num_workers
        if n < 2:
            raise InputError(
                f"cluster {self.cluster}: has 1 worker and nobody to average with; 2 workers are the least"
            )
        bytes_of(self.hardware, None)
        if not self.time_limit > 0:
            raise InputError(f"time-limit: is {self.time_limit} s; give the search some time, such as 30s")
        for name, least in (("time_limit", 0.0), ("max_communication", 0.0), ("max_disagreement", 0.0)):
            value = getattr(self, name)
            if value is not None and not least <= value < float("inf"):
                raise InputError(f"{name.replace('_', '-')}: is {value}; it is a finite number >= 0")
        if self.max_group is not None and not 2 <= self.max_group <= n:
            raise InputError(f"max-group: is {self.max_group}; it lies between 2 and the number of workers, {n}")
        if self.max_period < 1:
            raise InputError(f"period: is {self.max_period}; a period has at least 1 phase")

    @property
    def hardware(self) -> Hardware:
        """The cluster's hardware.

        Raises:
            InputError: the cluster has none.
        """
        if self.cluster.hardware is None:
            raise InputError(
                f"cluster {self.cluster}: its links are unknown; give --nic-bandwidth and --intra-bandwidth, or a "
                "cluster file (`preduce profile` measures one)"
            )
        return self.cluster.hardware

    @property
    def push(self) -> str:
        """Which drift matters: `worker` or `node`."""
        return "node" if self.data is Data.PER_NODE else "worker"

    def compute_times(self) -> ComputeTimes:
        """How long the workers compute (no time at all when the hardware does not say)."""
        return replace(ComputeTimes.of(self.hardware), disturbance=self.disturbance)
