"""What every strategy answers, and two abilities that not every kind has: mixing in fixed rounds, and phases of groups.

A kind is one frozen value that says everything about itself. Whoever needs an ability asks the schedule for it
(`Schedule.mixing`, `Schedule.phased`) and gets a typed value or one named refusal; only registries name kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice, Closed, Count
from partreduce.topo.phase import Group, Phase
from partreduce.topo.round import MixingStep, Round
from partreduce.topo.rule import RuleView
from partreduce.topo.strategies.axes import LOCKSTEP, RING, Codec, Form, How, Late, Lockstep, Merge, Sending, When
from partreduce.topo.strategies.routes import ALIKE, Routes

Pace = Count | tuple[Count, ...]
"""Steps per round: one number for all, or one per worker."""


class Averaging(Choice):
    """How a group weighs its members' progress when their paces differ."""

    MEAN = "mean"
    """The plain mean of the members' parameters: favours the data of workers that took more steps."""

    STEP_NORMALISED = "step-normalised"
    """Each member's progress of the round is first divided by its pace and multiplied by the mean pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(Closed, ABC):
    """How workers synchronise. Frozen; its fields are the members of its JSON object, beside `kind`."""

    kind: ClassVar[str]
    whens: ClassVar[tuple[type[When], ...]] = (Lockstep, Late)
    """The values of the *when* axis that this kind goes with."""
    forms: ClassVar[tuple[Form, ...]] = (Form.RING,)
    """The forms of a sum that this kind goes with."""
    is_on_request: ClassVar[bool] = False
    """Whether its workers have no common rounds, but ask for each averaging, by a protocol of the kind's own."""

    pace: Pace = 1
    when: When = LOCKSTEP
    what: Routes = ALIKE
    how: How = RING
    averaging: Averaging = Averaging.MEAN

    def check(self, cluster: Cluster) -> None:
        """Refuse what cannot run on the cluster.

        Raises:
            ScheduleError: the place, the value and the rule.
        """
        self._check_pace(cluster)
        if not isinstance(self.when, self.whens):
            raise ScheduleError(f"when: strategy {self.kind!r} has no {self.when.called}; leave it out")
        self.when.check()
        self.what.check(cluster.num_workers)
        if not self.what.outer.is_plain:
            self._check_outer(cluster)
        if self.takes_turns:
            self._check_turns()
        if self.when.delays_gradients and not self.averages_gradients:
            raise ScheduleError(
                f"when.{self.when.word}: goes with pace 1, where gradients are averaged; pace is {self.pace}"
            )
        if self.how.form not in self.forms:
            known = " or ".join(self.forms)
            raise ScheduleError(f"how.form: is {self.how.form}; strategy {self.kind!r} travels as {known}")
        self._check_how(cluster)
        self._check_what()
        self.check_kind(cluster)

    def _check_how(self, cluster: Cluster) -> None:
        self.how.check()
        if self.how.sending is Sending.LAYERS and not self.sends_layers:
            raise ScheduleError(
                f"how.sending: is {self.how.sending}; gradients of allreduce at pace 1 can go layer by layer, while "
                "parameters are there all at once"
            )
        if self.how.codec is not Codec.NONE and (reason := self.refuses_codec(cluster)):
            raise ScheduleError(f"how.codec: is {self.how.codec}; {reason}")
        repeats_sums = self.averages_gradients or (self.averages_everyone and not self.mixes_late)
        if self.how.error_feedback and not repeats_sums:
            raise ScheduleError(
                "how.error_feedback: is true; only where every round is of all workers, and none is late, each sum has "
                "a next one of the same numbers, to which what rounding took can be added; leave it out"
            )

    def _check_what(self) -> None:
        if self.what and (reason := self.refuses_tables()):
            raise ScheduleError(f"what.tables: a table's rows are exchanged in every step, in lockstep, and {reason}")
        if not self.what.average_dense and not (self.averages_gradients and isinstance(self.when, Lockstep)):
            raise ScheduleError(
                "what.average_dense: is false; only gradients that meet over all workers in each step, in lockstep, "
                "can be summed (a pipeline has when.pipeline.total for it), and parameters are averaged; leave it out"
            )

    def _check_outer(self, cluster: Cluster) -> None:
        if not isinstance(self.when, Lockstep | Merge):
            raise ScheduleError(
                f"what.outer: takes what workers moved until all meet, and when.{self.when.word} brings it later; "
                "leave one of the two out"
            )
        if self.what.outer.has_own_anchors:
            if reason := self.refuses_own_anchors():
                raise ScheduleError(f"what.outer.anchor: is own; {reason}")
        elif not self.has_round_of_all(cluster):
            raise ScheduleError(
                "what.outer: acts where all workers meet, so that they go on from one model, and strategy "
                f"{self.kind!r} has no such round here; take allreduce, or static with a phase of one group of all"
            )

    def _check_turns(self) -> None:
        """Refuse fragments that do not all have a turn in each round, each merged before it is sent again.

        And merging that drives the anchor and what is left of the workers' mean apart. With e = mean - anchor and the
        outer momentum b a round without gradients maps (e, b) linearly; by Jury's criterion its spectral radius is
        below 1 if and only if alpha * lr < (1 + alpha) * (1 + momentum), with Nesterov's alpha * lr * (1 + 2 momentum).
        """
        when, count = self.when, self.what.num_fragments
        if count > 1 and (reason := self.refuses_fragments()):
            raise ScheduleError(f"what.fragments: are {count}; {reason}")
        if isinstance(when, Merge) and not isinstance(self.pace, int):
            raise ScheduleError("when.merge: goes with one pace for all workers; give pace as a number")
        if self.averaging is not Averaging.MEAN:
            place = "what.fragments" if count > 1 else "when.merge"
            raise ScheduleError(f"{place}: goes with plain means; leave averaging out")
        least = self.pace if isinstance(self.pace, int) else min(self.pace)
        if count > least:
            raise ScheduleError(f"what.fragments: are {count}, and each has its turn in a round of {least} steps")
        if when.late_steps >= least:
            raise ScheduleError(
                f"when.merge.steps: is {when.late_steps}; what is averaged every {least} steps is merged before "
                "it is sent again; take fewer"
            )
        if isinstance(when, Merge):
            factor = self.what.outer.momentum
            pull = when.alpha * self.what.outer.lr * (1 + 2 * factor * self.what.outer.nesterov)
            if pull >= (1 + when.alpha) * (1 + factor):
                most = (1 + when.alpha) * (1 + factor) / (pull / self.what.outer.lr)
                raise ScheduleError(
                    f"what.outer.lr: is {self.what.outer.lr}; with alpha {when.alpha} and this momentum anchors and "
                    f"models go apart from a rate of {most} on; take a smaller one"
                )

    def refuses_fragments(self) -> str:
        """Why parts of the model may not take turns; empty where they may."""
        return f"strategy {self.kind!r} averages whole models; take allreduce or static, or leave them out"

    def refuses_own_anchors(self) -> str:
        """Why groups may not make outer steps from anchors that differ; empty where they may."""
        return f"workers of strategy {self.kind!r} have no groups that are fixed, or all have one anchor; take static"

    def refuses_tables(self) -> str:
        """Why no table may go a way of its own; empty where all workers take the same steps together."""
        if self.protocol:
            waiting = f"with when.{self.when.word}" if self.when.protocol else f"of strategy {self.kind!r}"
            return f"workers {waiting} have no common steps; take allreduce, static or neighbor, in lockstep"
        if not isinstance(self.pace, int) and len(set(self.pace)) > 1:
            return "workers of unequal pace have no common steps; give one pace for all"
        return ""

    def refuses_codec(self, cluster: Cluster) -> str:  # noqa: ARG002 - some kinds look at their groups
        """Why nothing that this strategy sends may be rounded; empty where it may."""
        return (
            f"strategy {self.kind!r} sends parameters, and rounded parameters lose every update that is smaller than "
            "their last digit (static and allreduce have rounds of all, and round what was added since); leave it out"
        )

    @abstractmethod
    def check_kind(self, cluster: Cluster) -> None:
        """The part of `check` that belongs to one kind."""

    def _check_pace(self, cluster: Cluster) -> None:
        if not isinstance(self.pace, int) and len(self.pace) != cluster.num_workers:
            raise ScheduleError(
                f"pace: has {len(self.pace)} entries; give 1 number or 1 for each of {cluster.num_workers} workers"
            )

    @property
    def steps_once(self) -> bool:
        """Whether a round is one step of every worker; a list of ones says so, too, and has the same hash."""
        return self.pace == 1 if isinstance(self.pace, int) else set(self.pace) == {1}

    @property
    def overlap(self) -> bool:
        """Whether averaging runs while a round computes."""
        return self.when.lag > 0

    @property
    def takes_turns(self) -> bool:
        """Whether rounds have operations in the middle: of fragments, or of whole models that are merged later."""
        return self.what.num_fragments > 1 or isinstance(self.when, Merge)

    @property
    def lacks_newest(self) -> bool:
        """Whether what is averaged in a round, of any fragment, lacks steps that the round has when it ends."""
        return self.what.num_fragments > 1 or self.when.late_steps > 0

    @property
    def mixes_late(self) -> bool:
        """Whether what is averaged are parameters of before: x_{k+1} = W_k x_k + u_k, which changes every figure."""
        return self.overlap and not self.when.delays_gradients

    @property
    def protocol(self) -> str:
        """By which protocol workers agree as it comes; empty where rounds are fixed and nobody has to ask."""
        return self.kind if self.is_on_request else self.when.protocol

    @property
    def averages_gradients(self) -> bool:
        """Whether gradients are averaged rather than parameters."""
        return False

    @property
    def sends_layers(self) -> bool:
        """Whether what it sends becomes ready layer by layer."""
        return False

    @property
    def averages_everyone(self) -> bool:
        """Whether every round averages over all workers."""
        return False

    def has_round_of_all(self, cluster: Cluster) -> bool:  # noqa: ARG002 - some kinds look at their groups
        """Whether some round of the period averages over all workers."""
        return self.averages_everyone

    @property
    def needs_generator(self) -> bool:
        """Whether a run needs the group generator's service beside it."""
        return False

    @property
    def goes_on_without(self) -> bool:
        """Whether workers go on for some rounds without one that is gone, until they need what only that one sends."""
        return False

    @property
    def graphs(self) -> tuple[Round, ...]:
        """The weighted graphs of one period, empty for strategies that average in groups or on request."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing(Strategy):
    """A strategy whose rounds are fixed, one after the other: it has mixing matrices, figures and a period."""

    @property
    @abstractmethod
    def period(self) -> int:
        """The number of rounds after which they repeat."""

    @property
    def prologue(self) -> int:
        """First rounds that average over all workers before the period starts."""
        return 0

    @abstractmethod
    def steps(self, cluster: Cluster) -> tuple[MixingStep, ...]:
        """What the rounds of one period average.

        Raises:
            ScheduleError: a rule phase has overlapping blocks.
        """

    @abstractmethod
    def num_distinct_phases(self, cluster: Cluster) -> int:
        """Distinct rounds in a period: the communicator splits that a run needs; empty ones cost none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phased(Mixing):
    """A strategy whose rounds are phases: disjoint groups that every worker can compute for itself."""

    @abstractmethod
    def phase(self, index: int, cluster: Cluster) -> Phase:
        """The explicit groups of phase `index`, 0 ≤ index < period. O(num_workers).

        Raises:
            ScheduleError: a rule phase has overlapping blocks.
        """

    @abstractmethod
    def group_of(self, worker: int, index: int, cluster: Cluster) -> Group | None:
        """The group of one worker in phase `index`, None if it skips. O(size of the group) for rules."""

    @abstractmethod
    def rule(self, cluster: Cluster, *, by_node: bool = False) -> RuleView | None:
        """The same phases as rules, None for explicit groups.

        With `by_node` the rule's nodes are the cluster's own, as paces and links need it; otherwise a strategy that
        does not look at nodes may count every worker as one, which keeps proofs small.
        """

    def steps(self, cluster: Cluster) -> tuple[Phase, ...]:
        """The explicit phases of one period."""
        return tuple(self.phase(index, cluster) for index in range(self.period))
