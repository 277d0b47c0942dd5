"""The base classes of strategies: any strategy, one with fixed mixing matrices, and one with phases of groups.

A strategy is one frozen dataclass with all its properties. Code that needs fixed rounds or groups takes the strategy
from `Schedule.mixing` or `Schedule.phased`, which raise an error if there are none, instead of comparing kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice, Count, JsonObject
from partreduce.topo.phase import Group, Phase
from partreduce.topo.round import MixingStep, Round
from partreduce.topo.rule import RuleView
from partreduce.topo.strategies.axes import (
    RING,
    SYNCHRONOUS,
    AllReduceAlgorithm,
    Codec,
    DelayedAveraging,
    DelayedMerge,
    GradientBuckets,
    Sync,
    Synchronous,
    Transport,
)
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.payload import PLAIN_PAYLOAD, Payload

StepsPerRound = Count | tuple[Count, ...]
"""Steps per round: one number for all workers, or one per worker."""


class Averaging(Choice):
    """How a group weighs its members' progress if their steps per round differ."""

    MEAN = "mean"
    """The plain mean of the members' parameters: favors the data of workers that took more steps."""
    STEP_NORMALIZED = "step-normalized"
    """Each member's progress is multiplied by (the group's mean steps_per_round) / (its own steps_per_round)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(JsonObject, ABC):
    """How workers synchronize: a frozen dataclass whose fields, with `kind`, are the members of its JSON object."""

    kind: ClassVar[str]
    sync_types: ClassVar[tuple[type[Sync], ...]] = (Synchronous, DelayedAveraging)
    """The types of `sync` that this kind supports."""
    algorithms: ClassVar[tuple[AllReduceAlgorithm, ...]] = (AllReduceAlgorithm.RING,)
    """The all-reduce algorithms that this kind supports."""
    is_on_request: ClassVar[bool] = False
    """Whether workers request each average at run time, by a protocol, instead of having common rounds."""
    needs_generator: ClassVar[bool] = False
    """Whether a run needs the group generator, the service that forms dynamic groups."""
    averages_everyone: ClassVar[bool] = False
    """Whether every round averages over all workers."""

    steps_per_round: StepsPerRound = 1
    sync: Sync = SYNCHRONOUS
    payload: Payload = PLAIN_PAYLOAD
    transport: Transport = RING
    averaging: Averaging = Averaging.MEAN

    def check(self, cluster: Cluster) -> None:
        """Raise ScheduleError if the strategy cannot run on the cluster."""
        if not isinstance(self.steps_per_round, int) and len(self.steps_per_round) != cluster.num_workers:
            rule = f"give 1 number or 1 for each of {cluster.num_workers} workers"
            raise ScheduleError(f"steps_per_round: has {len(self.steps_per_round)} entries; {rule}")
        if not isinstance(self.sync, self.sync_types):
            raise ScheduleError(f"sync: strategy {self.kind!r} has no {self.sync.called}; leave it out")
        self.sync.check()
        self.payload.check(cluster.num_workers)
        if not self.payload.outer.is_plain:
            self._check_outer(cluster)
        if self.takes_turns:
            self._check_turns()
        if self.sync.delays_gradients and not self.averages_gradients:
            raise ScheduleError(
                f"sync.{self.sync.word}: goes with steps_per_round 1, where gradients are averaged; steps_per_round "
                f"is {self.steps_per_round}"
            )
        if self.transport.algorithm not in self.algorithms:
            known = " or ".join(self.algorithms)
            raise ScheduleError(
                f"transport.algorithm: is {self.transport.algorithm}; strategy {self.kind!r} travels as {known}"
            )
        self._check_transport(cluster)
        self._check_payload()
        self.check_kind(cluster)

    def _check_transport(self, cluster: Cluster) -> None:
        self.transport.check()
        if self.transport.gradient_buckets is GradientBuckets.PER_LAYER and not self.sends_layers:
            raise ScheduleError(
                f"transport.gradient_buckets: is {self.transport.gradient_buckets}; gradients of allreduce at "
                "steps_per_round 1 can go layer by layer, while parameters are there all at once"
            )
        if self.transport.codec is not Codec.NONE and (reason := self.codec_unsupported_reason(cluster)):
            raise ScheduleError(f"transport.codec: is {self.transport.codec}; {reason}")
        repeats_sums = self.averages_gradients or (self.averages_everyone and not self.mixes_late)
        if self.transport.error_feedback and not repeats_sums:
            raise ScheduleError(
                "transport.error_feedback: is true; only where every round is of all workers, and none is late, each "
                "sum has a next one of the same numbers, to which what rounding took can be added; leave it out"
            )

    def _check_payload(self) -> None:
        if self.payload and (reason := self.tables_unsupported_reason()):
            raise ScheduleError(
                f"payload.tables: a table's rows are exchanged in every step, synchronously, and {reason}"
            )
        if not self.payload.average_dense and not (self.averages_gradients and isinstance(self.sync, Synchronous)):
            raise ScheduleError(
                "payload.average_dense: is false; only gradients of all workers in each step, synchronously, can be "
                "summed (a pipeline has sync.pipeline.total for it), and parameters are averaged; leave it out"
            )

    def _check_outer(self, cluster: Cluster) -> None:
        if not isinstance(self.sync, Synchronous | DelayedMerge):
            raise ScheduleError(
                f"payload.outer: takes what workers moved until all meet, and sync.{self.sync.word} brings it later; "
                "leave one of the two out"
            )
        if self.payload.outer.has_own_outer_params:
            if reason := self.own_outer_params_unsupported_reason():
                raise ScheduleError(f"payload.outer.outer_params: is per_worker; {reason}")
        elif not (relaxations := self.relaxations_of_all(cluster)):
            raise ScheduleError(
                "payload.outer: acts where all workers meet, so that they continue from one model, and strategy "
                f"{self.kind!r} has no such round here; take allreduce, or static with a phase of one group of all"
            )
        else:
            self.check_outer_settles(relaxations)

    def check_outer_settles(self, relaxations: Collection[Fraction]) -> None:
        """Raise ScheduleError unless shared outer parameters are sure to converge to the workers' mean.

        `relaxations` are those of the rounds that average over all workers; with momentum they must be equal. With
        e = mean - outer parameters, outer momentum b and alpha = 1 - relaxation, a round of all workers without
        gradients maps (e, b) linearly; by Jury's criterion the spectral radius of the map is below 1 if and only if
        alpha * lr < (1 + alpha) * (1 + momentum), with alpha * lr * (1 + 2 momentum) on the left under Nesterov.
        Without momentum this also holds for rounds with different relaxations in turn.
        """
        outer = self.payload.outer
        for alpha in sorted(1 - relaxation for relaxation in relaxations):
            if not 0 <= alpha < 1:
                raise ScheduleError(
                    f"payload.outer: acts where all workers meet; expected 0 < relaxation <= 1 there, got {1 - alpha}; "
                    "leave it out"
                )
            pull = alpha * outer.lr * (1 + 2 * outer.momentum * outer.nesterov)
            if pull >= (1 + alpha) * (1 + outer.momentum):
                most = (1 + alpha) * (1 + outer.momentum) / (pull / outer.lr)
                raise ScheduleError(
                    f"payload.outer.lr: is {outer.lr}; with alpha {alpha} and this momentum outer parameters and "
                    f"models diverge from a rate of {most} on; take a smaller one"
                )
        if outer.momentum and len(relaxations) > 1:
            raise ScheduleError(
                "payload.outer.momentum: expected one relaxation where all workers meet, got "
                f"{', '.join(map(str, sorted(relaxations)))}; give these groups the same one"
            )

    def _check_turns(self) -> None:
        """Raise ScheduleError unless each fragment can be averaged once per round and merged before its next one."""
        sync, count = self.sync, self.payload.num_fragments
        if count > 1 and (reason := self.fragments_unsupported_reason()):
            raise ScheduleError(f"payload.fragments: are {count}; {reason}")
        if isinstance(sync, DelayedMerge) and not isinstance(self.steps_per_round, int):
            raise ScheduleError("sync.merge: goes with the same steps_per_round for all workers; give it as a number")
        if self.averaging is not Averaging.MEAN:
            place = "payload.fragments" if count > 1 else "sync.merge"
            raise ScheduleError(f"{place}: goes with plain means; leave averaging out")
        least = min(self.step_counts)
        if count > least:
            raise ScheduleError(
                f"payload.fragments: {count} fragments need at least {count} steps per round, and a worker has {least}"
            )
        if sync.late_steps >= least:
            raise ScheduleError(
                f"sync.merge.steps: is {sync.late_steps}; what is averaged every {least} steps is merged before "
                "it is sent again; take fewer"
            )

    def fragments_unsupported_reason(self) -> str:
        """Return the reason why the model cannot be averaged in fragments in turn, as a clause; empty if it can."""
        return f"strategy {self.kind!r} averages whole models; take allreduce or static, or leave them out"

    def own_outer_params_unsupported_reason(self) -> str:
        """Return the reason why workers cannot have their own outer parameters, as a clause; empty if they can."""
        return f"workers of strategy {self.kind!r} have no fixed groups, or share the outer parameters; take static"

    def tables_unsupported_reason(self) -> str:
        """Return the reason why embedding tables cannot be exchanged separately, as a clause; empty if they can."""
        if self.protocol:
            waiting = f"with sync.{self.sync.word}" if self.sync.protocol else f"of strategy {self.kind!r}"
            return f"workers {waiting} have no common steps; take allreduce, static or neighbor, synchronously"
        if len(self.step_counts) > 1:
            return "workers with unequal steps_per_round have no common steps; give one number for all"
        return ""

    def codec_unsupported_reason(self, cluster: Cluster) -> str:  # noqa: ARG002 - some kinds look at their groups
        """Return the reason why the strategy cannot use a lossy codec on this cluster, as a clause; empty if it can."""
        return (
            f"strategy {self.kind!r} sends parameters, and rounded parameters lose every update that is smaller than "
            "their last digit (static and allreduce have rounds of all, and round what was added since); leave it out"
        )

    @abstractmethod
    def check_kind(self, cluster: Cluster) -> None:
        """Raise ScheduleError if a rule is broken that only this kind of strategy has; `check` calls it."""

    @property
    def step_counts(self) -> tuple[int, ...]:
        """Steps per round as a tuple: one entry if all workers have the same number, else one per worker."""
        steps = self.steps_per_round
        return (steps,) if isinstance(steps, int) else steps[:1] if len(set(steps)) == 1 else steps

    @property
    def steps_once(self) -> bool:
        """Whether every worker takes one step per round, given as 1 or as a list of ones."""
        return self.step_counts == (1,)

    @property
    def is_delayed(self) -> bool:
        """Whether averages, of parameters or gradients, are applied at least one round late."""
        return self.sync.lag > 0

    @property
    def takes_turns(self) -> bool:
        """Whether averages are sent or merged inside a round, because of fragments or of a delayed merge."""
        return self.payload.num_fragments > 1 or isinstance(self.sync, DelayedMerge)

    @property
    def lacks_newest(self) -> bool:
        """Whether a round sends some parameters before its last step; their average then lacks the newest steps."""
        return self.payload.num_fragments > 1 or self.sync.late_steps > 0

    @property
    def mixes_late(self) -> bool:
        """Whether parameters, not gradients, are averaged a round late: x_{k+1} = W_k x_k + u_k."""
        return self.is_delayed and not self.sync.delays_gradients

    @property
    def protocol(self) -> str:
        """The name of the protocol by which workers average at run time; empty if rounds are fixed."""
        return self.kind if self.is_on_request else self.sync.protocol

    @property
    def averages_gradients(self) -> bool:
        """Whether gradients are averaged rather than parameters."""
        return False

    @property
    def sends_layers(self) -> bool:
        """Whether gradients may be sent layer by layer during the backward pass (`GradientBuckets.PER_LAYER`)."""
        return False

    def relaxations_of_all(self, cluster: Cluster) -> set[Fraction]:  # noqa: ARG002 - some kinds look at their groups
        """Return the relaxations (`Group`) of a period's averages over all workers; empty if there are none."""
        return {1 - self.sync.kept} if self.averages_everyone else set()

    @property
    def tolerates_absence(self) -> bool:
        """Whether workers continue for some rounds after a worker has failed, until they need its messages.

        They do under an iteration gap; its backup, staleness and tokens limit how long.
        """
        return isinstance(self.sync, IterationGap)

    @property
    def graphs(self) -> tuple[Round, ...]:
        """The weighted graphs of one period; empty for strategies that average in groups."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HasMixingMatrix(Strategy):
    """A strategy with a period of phases or graphs; with most settings it has mixing matrices (`Schedule.is_mixing`).

    `steps` and `phase` raise ScheduleError for a rule phase whose blocks overlap.
    """

    @property
    @abstractmethod
    def period(self) -> int:
        """The number of rounds in one period."""

    @property
    def prologue(self) -> int:
        """The number of rounds before the first period, all of which average over all workers."""
        return 0

    @abstractmethod
    def steps(self, cluster: Cluster) -> tuple[MixingStep, ...]:
        """Return the phases of groups, or rounds over a graph, of one period."""

    @abstractmethod
    def num_distinct_phases(self, cluster: Cluster) -> int:
        """Return the number of distinct non-empty rounds in a period, each of which needs its own communicators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HasGroups(HasMixingMatrix):
    """A strategy whose rounds are phases of disjoint groups, which every worker can compute locally."""

    @abstractmethod
    def phase(self, index: int, cluster: Cluster) -> Phase:
        """Return the explicit groups of phase `index`, 0 ≤ index < period. O(num_workers)."""

    @abstractmethod
    def group_of(self, worker: int, index: int, cluster: Cluster) -> Group | None:
        """Return the group of one worker in phase `index`, None if the worker skips. O(size of the group) for rules."""

    @abstractmethod
    def rule(self, cluster: Cluster, *, by_node: bool = False) -> RuleView | None:
        """Return the phases as a rule, groups given by node digits (`topo.rule`); None for explicit groups.

        With `by_node` the rule's nodes are those of the cluster, as needed for steps per round and links; otherwise a
        rule over all workers may count every worker as a node, which keeps proofs small.
        """

    def steps(self, cluster: Cluster) -> tuple[Phase, ...]:
        """Return the explicit phases of one period."""
        return tuple(self.phase(index, cluster) for index in range(self.period))
