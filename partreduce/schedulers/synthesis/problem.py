"""Define the search's request (`Problem`, `Limits`) and its result (`Front`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from partreduce.topo.argument_types import check_fields
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import Hardware
from partreduce.topo.phase import Phase
from partreduce.topo.rule import RulePhase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing import loads
from partreduce.topo.timing.cost import bytes_of

Period = tuple[RulePhase, ...]


class Status(StrEnum):
    """What is proved about the result of a search.

    Optimal: no better schedule exists. Feasible: a better one may exist. Infeasible: it is proved that no schedule
    keeps the limits. Unknown: no schedule was found in time.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class Objective(StrEnum):
    """The quantity to minimize within the limits; balanced means the predicted time to a loss."""

    BALANCED = "balanced"
    COMMUNICATION = "communication"
    CONSENSUS_DISTANCE = "consensus-distance"
    DRIFT = "drift"
    WAITING = "waiting"


SEARCHED = frozenset({Objective.COMMUNICATION, Objective.CONSENSUS_DISTANCE})
"""The objectives that the search can minimize; for others the planner chooses among the search's candidates."""

ROUNDING = 1e-9
"""Values within this relative difference of a limit count as equal to the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits on a schedule; None means no limit. A fraction such as 8/7 is compared exactly.

    `max_communication` is in seconds per step, `max_period` in phases, `max_group` in workers; `max_distinct_phases`
    counts phases with different groups, each of which needs communicators; `max_gap` counts consecutive steps in which
    no group has workers of several nodes.
    """

    max_communication: float | None = None
    max_consensus_distance: float | Fraction | None = None
    max_period: int = 24
    max_group: int | None = None
    max_distinct_phases: int | None = None
    max_gap: int | None = None

    def __post_init__(self) -> None:
        """Raise InputError for limits that no schedule can keep on any cluster."""
        check_fields(self)
        for name in ("max_communication", "max_consensus_distance"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"{name.replace('_', '-')}: is {value}; it is a finite number >= 0")
        for name, least in (("max_period", 1), ("max_distinct_phases", 1), ("max_gap", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name.replace('_', '-')}: is {value}; the least possible value is {least}")

    @property
    def choose_groups(self) -> bool:
        """Return whether group size or distinct phases are limited, so that the groups themselves must be chosen."""
        return self.max_group is not None or self.max_distinct_phases is not None

    def allow_communication(self, seconds: float) -> bool:
        """Return whether `seconds` of communication per step are within the limit, up to rounding."""
        return self.max_communication is None or seconds <= up_to(self.max_communication)

    def allow_consensus_distance(self, value: float, exact: Callable[[], Fraction | None] = lambda: None) -> bool:
        """Return whether the consensus distance `value` is within the limit.

        A value that equals the limit up to rounding is within a limit given as a float. With a fraction as the limit,
        `exact()` is called for the exact value; None (unknown) counts as within.
        """
        if self.max_consensus_distance is None:
            return True
        limit = float(self.max_consensus_distance)
        if abs(value - limit) > ROUNDING * limit + 1e-12:
            return value < limit
        known = exact()
        # A float stands for the decimal or fraction that was meant, and is compared up to rounding.
        if known is None or isinstance(self.max_consensus_distance, float):
            return True
        return known <= self.max_consensus_distance

    def check(self, cluster: Cluster) -> None:
        """Raise InputError if no schedule on this cluster can keep the limit on groups."""
        n = cluster.num_workers
        if self.max_group is not None and not 2 <= self.max_group <= n:
            raise InputError(f"max-group: is {self.max_group}; it lies between 2 and the number of workers, {n}")


def up_to(limit: float) -> float:
    """Return the limit plus a tolerance for rounding errors."""
    return limit * (1 + ROUNDING) + 1e-12


def check_cluster(cluster: Cluster) -> Hardware:
    """Return the hardware of a cluster; raise InputError for one worker, unknown links or no model size."""
    if cluster.num_workers < 2:
        raise InputError(f"cluster {cluster}: has 1 worker and no other to average with; 2 workers are the least")
    if cluster.hardware is None:
        raise InputError(
            f"cluster {cluster}: its links are unknown; give --set nic=… and --set inside=…, or a "
            "cluster file (`partreduce measure` writes one)"
        )
    bytes_of(cluster.hardware, None)
    return cluster.hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The request to a search; `PlanRequest` checks cluster and limits, and the objective is one of `SEARCHED`.

    `algorithm` is the all-reduce algorithm of the groups.
    """

    cluster: Cluster
    objective: Objective = Objective.CONSENSUS_DISTANCE
    limits: Limits = field(default_factory=Limits)
    algorithm: AllReduceAlgorithm = AllReduceAlgorithm.RING

    @property
    def hardware(self) -> Hardware:
        """Return the cluster's hardware."""
        return check_cluster(self.cluster)

    def groups(self, phase: RulePhase) -> Phase:
        """Return the groups of a phase whose blocks are explicit groups."""
        return Phase.from_groups(self.cluster.num_workers, [block.local for block in phase])

    def link_loads(self, phase: RulePhase, radices: Sequence[int] = ()) -> loads.Loads:
        """Return the loads of a phase on the links; with `radices` it is a rule's, else each block is one group."""
        size, algorithm = bytes_of(self.hardware, None), self.algorithm.value
        if radices:
            return loads.of_rule(phase, radices, self.cluster, self.hardware, model_bytes=size, algorithm=algorithm)
        return loads.of_phase(self.groups(phase), self.cluster, self.hardware, model_bytes=size, algorithm=algorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A schedule that the search found, with approximate costs, which the planner computes again.

    Costs are rounded to 12 decimals, so that equal ones compare equal.

    `step_seconds` is the time of a step with computing, communication and waiting. It is less than the sum of these
    where groups of successive rounds share no worker and so overlap.
    """

    schedule: Schedule
    period: Period
    step_seconds: float
    communication_seconds_per_step: float
    consensus_distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The result of a search: candidates in the order in which to evaluate them, and what is proved about all others.

    `best`, the one within the limits with the least objective, is first; the others are spread over the Pareto front of
    step time, or communication, and consensus distance. No schedule of synchronous group averages within the limits, in
    which all workers have equal steps per round, has an objective below `bound`, which is 0 if nothing is proved.
    `reason` explains an infeasible result in one line, and is empty for others.
    """

    candidates: tuple[Candidate, ...] = ()
    best: Candidate | None = None
    status: Status = Status.UNKNOWN
    bound: float = 0.0
    reason: str = ""
