"""Strategy `static`: groups fixed in the file, repeated every period (Prague's static schedule)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from partreduce.topo.argument_types import check_fields
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Bulk, Rounds
from partreduce.topo.phase import Group, Phase
from partreduce.topo.rule import RulePhase, RuleView, check_rule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Synchronous
from partreduce.topo.strategies.base import HasGroups

MAX_EXPLICIT_WORKERS = 2**24
"""The most workers of a schedule with explicit groups, which need memory and time per worker and phase."""


@dataclass(frozen=True, slots=True)
class RulePhases(Bulk):
    """Phases given by rules over node digits with these `node_radices`, for any number of nodes (`topo.rule`)."""

    node_radices: tuple[int, ...]
    phases: tuple[RulePhase, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        if any(isinstance(phase, Phase) for phase in self.phases):  # Python does not check the types of items
            raise ScheduleError("phases: rule phases are expected with node_radices; use GroupPhases for groups")

    def __len__(self) -> int:
        return len(self.phases)

    def check(self, cluster: Cluster) -> None:
        check_rule(self.phases, cluster, self.node_radices)

    def relaxations_of_all(self, cluster: Cluster) -> set[Fraction]:
        everyone = tuple(range(cluster.workers_per_node or 0)), tuple(range(len(self.node_radices)))
        return {
            b.relaxation
            for phase in self.phases
            for b in phase
            if (tuple(sorted(b.local)), tuple(sorted(b.across))) == everyone
        }

    def view(self, cluster: Cluster) -> RuleView:
        assert cluster.workers_per_node is not None, "check() refuses rules on uneven clusters"
        return RuleView(self.node_radices, self.phases, cluster.workers_per_node)

    def phase(self, index: int, cluster: Cluster) -> Phase:
        """Return the explicit groups of phase `index`. O(num_workers log num_workers) once, then cached."""
        view = self.view(cluster)
        return _expand(RuleView(view.radices, (view.phases[index],), view.workers_per_node))

    def group_of(self, worker: int, index: int, cluster: Cluster) -> Group | None:
        return self.view(cluster).group_of(worker, index)

    def are_plain(self) -> bool:
        return self.relaxations() <= {1}

    def relaxations(self) -> set[Fraction]:
        return {block.relaxation for phase in self.phases for block in phase}

    def num_distinct(self) -> int:
        return len({partition for phase in self.phases if (partition := partition_of(phase))})


def partition_of(phase: RulePhase) -> frozenset[tuple[frozenset[int], frozenset[int]]]:
    """Return the set of (local ranks, digits averaged over) of the blocks that form groups in a rule's phase.

    Two phases have the same groups if the sets are equal; empty if no block forms a group.
    """
    return frozenset((frozenset(block.local), frozenset(block.across)) for block in phase if block.makes_groups)


@lru_cache(maxsize=64)
def _expand(one_phase: RuleView) -> Phase:
    return one_phase.expand(0)


@dataclass(frozen=True, slots=True)
class GroupPhases(Bulk):
    """Phases given by explicit lists of groups, for any cluster."""

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        if not all(isinstance(phase, Phase) for phase in self.phases):
            raise ScheduleError("phases: explicit groups are expected; use RulePhases for rules")

    def __len__(self) -> int:
        return len(self.phases)

    def check(self, cluster: Cluster) -> None:
        if cluster.num_workers > MAX_EXPLICIT_WORKERS:
            raise ScheduleError(
                f"phases: list groups of {cluster.num_workers} workers; explicit groups are for at most "
                f"{MAX_EXPLICIT_WORKERS}; write larger schedules as rules, with node_radices"
            )
        for index, phase in enumerate(self.phases):
            if phase.num_workers != cluster.num_workers:
                raise ScheduleError(
                    f"phases[{index}]: is for {phase.num_workers} workers, the cluster has {cluster.num_workers}"
                )

    def relaxations_of_all(self, cluster: Cluster) -> set[Fraction]:
        n = cluster.num_workers
        of_all = (phase for phase in self.phases if len(phase) == 1 and len(phase.members) == n)
        return {relaxation for phase in of_all for relaxation in phase.relaxation or (Fraction(1),)}

    def view(self, cluster: Cluster) -> None:  # noqa: ARG002 - the face that rules have
        return

    def phase(self, index: int, cluster: Cluster) -> Phase:  # noqa: ARG002 - groups name their workers
        return self.phases[index]

    def group_of(self, worker: int, index: int, cluster: Cluster) -> Group | None:  # noqa: ARG002 - as above
        phase = self.phases[index]
        label = int(phase.labels()[worker])
        return None if label < 0 else phase[label]

    def are_plain(self) -> bool:
        return self.relaxations() <= {1}

    def relaxations(self) -> set[Fraction]:
        return {relaxation for phase in self.phases if len(phase) for relaxation in phase.relaxation or (Fraction(1),)}

    def num_distinct(self) -> int:
        return len({phase.members.tobytes() + phase.offsets.tobytes() for phase in self.phases if len(phase)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticGroups(HasGroups):
    """Phases of groups that repeat periodically, given by rules or as explicit groups.

    The first `prologue` rounds average over all workers before the first period.
    """

    kind: ClassVar[str] = "static"
    algorithms: ClassVar[tuple[AllReduceAlgorithm, ...]] = (AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL)

    phases: RulePhases | GroupPhases
    prologue: Rounds = 0

    def codec_unsupported_reason(self, cluster: Cluster) -> str:
        """Return the reason (no round of all workers) why the strategy cannot use a lossy codec; empty if it can."""
        if self.relaxations_of_all(cluster):
            return ""
        return (
            "only what workers added since they were all equal may be rounded, and no round of the period averages "
            "over all workers; add one, or leave it out"
        )

    def relaxations_of_all(self, cluster: Cluster) -> set[Fraction]:
        return self.phases.relaxations_of_all(cluster)

    def fragments_unsupported_reason(self) -> str:
        """Return the reason why the model cannot be averaged in fragments, as a clause; empty if it can.

        It cannot if every worker has its own outer parameters, or with any `sync` but the synchronous one.
        """
        if self.payload.outer.has_own_outer_params:
            return "outer steps from each worker's own outer parameters are for whole models; leave one of the two out"
        return "" if isinstance(self.sync, Synchronous) else f"sync.{self.sync.word} is for whole models; leave it out"

    def own_outer_params_unsupported_reason(self) -> str:
        """Return the reason (codec, relaxation) why workers cannot have own outer parameters; empty if they can."""
        if self.transport.codec.rounds:
            return f"codec {self.transport.codec} measures from one that all share; leave one of the two out"
        if not self.phases.are_plain():
            return "a group has a relaxation, whose part the outer rate has here; leave relaxation out"
        return ""

    def check_kind(self, cluster: Cluster) -> None:
        if not len(self.phases):
            raise ScheduleError("phases: is empty; a static schedule has at least 1 phase")
        self.phases.check(cluster)

    @property
    def period(self) -> int:
        return len(self.phases)

    def phase(self, index: int, cluster: Cluster) -> Phase:
        return self.phases.phase(index, cluster)

    def group_of(self, worker: int, index: int, cluster: Cluster) -> Group | None:
        return self.phases.group_of(worker, index, cluster)

    def rule(self, cluster: Cluster, *, by_node: bool = False) -> RuleView | None:  # noqa: ARG002 - rules know nodes
        return self.phases.view(cluster)

    def num_distinct_phases(self, cluster: Cluster) -> int:  # noqa: ARG002 - distinct on all clusters
        return self.phases.num_distinct()
