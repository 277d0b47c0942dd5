"""Strategy `static`: groups read from the file, the same every period (Prague's static schedule)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from preduce.topo.errors import ScheduleError
from preduce.topo.phase import Phase
from preduce.topo.rule import RulePhase, check_rule
from preduce.topo.strategies.base import Averaging, Pace

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster

MAX_EXPLICIT_WORKERS = 2**24
"""Explicit groups cost memory and time per worker and phase; a small file must not ask for more than a machine has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """Phases that repeat for ever, as rules (`node_radices` set) or as explicit groups (`node_radices` None).

    `pace` is steps per round (one number or one per worker); the first `prologue` rounds average over all workers
    before the period starts. With `overlap` the averaging of step k's snapshot runs while step k computes:
    x_{k+1} = W_k x_k + u_k(x_k).
    """

    kind: ClassVar[str] = "static"
    phases: tuple[RulePhase, ...] | tuple[Phase, ...]
    node_radices: tuple[int, ...] | None = None
    pace: Pace = 1
    prologue: int = 0
    overlap: bool = False
    averaging: Averaging = Averaging.MEAN

    @property
    def is_rule(self) -> bool:
        """Whether the phases are rules."""
        return self.node_radices is not None

    def check(self, cluster: Cluster) -> None:
        """Refuse phases that do not fit the cluster; overlaps are left to `verify`.

        Raises:
            ScheduleError: no phases, phases of the wrong form or size, or a bad pace or prologue.
        """
        if not self.phases:
            raise ScheduleError("phases: is empty; a static schedule has at least 1 phase")
        if self.prologue < 0:
            raise ScheduleError(f"prologue: is {self.prologue}; it is a number of rounds >= 0")
        check_pace(self.pace, cluster)
        if self.node_radices is not None:
            check_rule(self.rule_phases(), cluster, self.node_radices)
            return
        if cluster.num_workers > MAX_EXPLICIT_WORKERS:
            raise ScheduleError(
                f"phases: list groups of {cluster.num_workers} workers; explicit groups are for at most "
                f"{MAX_EXPLICIT_WORKERS}; write larger schedules as rules, with node_radices"
            )
        for t, phase in enumerate(self.explicit_phases()):
            if phase.num_workers != cluster.num_workers:
                raise ScheduleError(
                    f"phases[{t}]: is for {phase.num_workers} workers, the cluster has {cluster.num_workers}"
                )

    def rule_phases(self) -> tuple[RulePhase, ...]:
        """The phases of a rule.

        Raises:
            ScheduleError: the phases are explicit.
        """
        phases = tuple(phase for phase in self.phases if not isinstance(phase, Phase))
        if self.node_radices is None or len(phases) != len(self.phases):
            raise ScheduleError("phases: rule phases are expected when node_radices is given")
        return phases

    def explicit_phases(self) -> tuple[Phase, ...]:
        """The phases of an explicit schedule.

        Raises:
            ScheduleError: the phases are rules.
        """
        phases = tuple(phase for phase in self.phases if isinstance(phase, Phase))
        if self.node_radices is not None or len(phases) != len(self.phases):
            raise ScheduleError("phases: explicit groups are expected when node_radices is absent")
        return phases


def check_pace(pace: Pace, cluster: Cluster) -> None:
    """Refuse paces that are not one positive number, or one per worker.

    Raises:
        ScheduleError: as said.
    """
    values = (pace,) if isinstance(pace, int) else pace
    if not isinstance(pace, int) and len(pace) != cluster.num_workers:
        raise ScheduleError(
            f"pace: has {len(pace)} entries; give 1 number or 1 for each of {cluster.num_workers} workers"
        )
    for value in values:
        if value < 1:
            raise ScheduleError(f"pace: {value} is not a number of steps >= 1")
