"""The strategy kinds that are put under faults, each with a reference of its own for what every worker must hold.

Four workers. Worker w adds 1 to row w of its parameters in each step and nothing to the last row, which begins as
ones; so a row tells how much of one worker entered an average, and the last row whether its weights summed to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.cluster import Cluster
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduceAlgorithm,
    Codec,
    DelayedAveraging,
    DelayedMerge,
    GradientBuckets,
    GroupPhases,
    OuterParams,
    OuterStep,
    Payload,
    Pipeline,
    Synchronous,
    Transport,
)
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.base import Strategy
from partreduce.topo.strategies.dynamic_groups import DynamicGroups, GroupSplit
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap, SkipPolicy, UpdateOrder
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import LateGradientPolicy, PartialAllReduce, QuorumStart
from partreduce.topo.strategies.server import Server
from partreduce.topo.strategies.static import StaticGroups

WORKERS, NODES = 4, 2
PLAIN = OuterStep()
DILOCO = OuterStep(lr=Fraction(7, 10), momentum=Fraction(9, 10), nesterov=True)
NOLOCO = OuterStep(lr=Fraction(7, 10), momentum=Fraction(1, 2), outer_params=OuterParams.PER_WORKER)
LAYERS = Transport(gradient_buckets=GradientBuckets.PER_LAYER)
DPSGD = UpdateOrder.DPSGD
HIERARCHICAL = Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL)
PAIRS = ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
ALL = np.full((WORKERS, WORKERS), 1 / WORKERS)


@dataclass(frozen=True)
class Kind:
    """A schedule with what is known of its results.

    `rounds` are the mixing matrices of one period, written down here and not asked of the schedule; None where meetings
    are decided while the run lasts. A round has `steps_a_round` steps, and gradients are `lag` steps late. A kind that
    `keeps_gap` lets nobody take more than a few steps without the others. Where one step `takes_several` averages,
    nobody takes a step without the others, though not all are at the same step. Under `partreduce run` the others
    continue after `max_failures` workers failed; their `views` say who is in which round.
    """

    strategy: Strategy
    rounds: tuple[npt.NDArray[np.float64], ...] | None
    law: str
    late: bool = False
    gradients: bool = False
    lag: int = 0
    steps_a_round: int = 1
    num_nodes: int = 1
    keeps_gap: bool = False
    takes_several: bool = False
    outer: OuterStep = PLAIN
    fragments: int = 1
    late_steps: int = 0
    kept: float = 0.0
    max_failures: int = 0

    @property
    def is_free(self) -> bool:
        """Whether some workers may go on for long without noticing that another one is lost or stands still."""
        return self.rounds is None and not self.keeps_gap and not self.takes_several

    @property
    def lasts_after(self) -> bool:
        """Whether a run may last for long after a fault."""
        return self.is_free or self.max_failures > 0

    @property
    def schedule(self) -> Schedule:
        cluster = Cluster.regular(self.num_nodes, WORKERS // self.num_nodes)
        rule = SurvivorRule.ALL_REDUCE if self.strategy.averages_everyone else SurvivorRule.KEEP_GROUPS
        is_planned = self.max_failures and not (self.kept or self.outer.has_own_outer_params)
        plan = FailurePlan(rule, self.max_failures) if is_planned else None
        return Schedule("under-faults", cluster, self.strategy, failure_plan=plan)

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """(fragments,): after how many of a round's steps each has its turn, when its share of them is done."""
        return np.arange(1, self.fragments + 1) * self.steps_a_round // self.fragments

    def is_due(self, step: int) -> npt.NDArray[np.bool_]:
        """(rows,): which have their turn after a step."""
        return np.repeat(self.ends, rows_of(self.fragments))[:WORKERS] == step % self.steps_a_round + 1

    def turn_of(self, step: int) -> int:
        """The turn that is next when a step is taken."""
        round_, before = divmod(step, self.steps_a_round)
        return round_ * self.fragments + int((self.ends <= before).sum())

    def states(self, steps: int) -> npt.NDArray[np.float64]:
        """(steps + 1, workers, rows): what each worker holds after so many steps of a run without faults."""
        assert self.rounds is not None
        if not self.outer.is_plain:
            return self._outer_states(steps)
        x = np.zeros((steps + 1, WORKERS, WORKERS))
        for step in range(steps):
            ends = (step + 1) % self.steps_a_round == 0
            w = self.rounds[step // self.steps_a_round % len(self.rounds)] if ends else np.eye(WORKERS)
            own = np.eye(WORKERS) * (step >= self.lag)
            x[step + 1] = w @ x[step] + own if self.late else w @ (x[step] + own)
        return x

    def _outer_states(self, steps: int) -> npt.NDArray[np.float64]:
        """As Algorithm 1 of DiLoCo (arXiv 2311.08105) has it, from each worker's anchor, which may be all others' too.

        Merged late (arXiv 2501.18512): what is averaged is `late_steps` old, and `kept` of each worker's own stays.
        Rows of a fragment have their turn when its share of the round's steps is done, if it was sent by then.
        """
        lr, momentum = float(self.outer.lr), float(self.outer.momentum)
        x = np.zeros((steps + 1, WORKERS, WORKERS))
        outer_params, b = np.zeros((WORKERS, WORKERS)), np.zeros((WORKERS, WORKERS))
        assert self.rounds is not None, "asked before"
        for step in range(steps):
            x[step + 1] = x[step] + np.eye(WORKERS)
            w = self.rounds[step // self.steps_a_round % len(self.rounds)]
            for row in np.flatnonzero(self.is_due(step) & (step + 1 > self.late_steps)):
                movement = w @ x[step + 1 - self.late_steps, :, row] - outer_params[:, row]
                b[:, row] = momentum * b[:, row] + movement
                ahead = movement + momentum * b[:, row] if self.outer.nesterov else b[:, row]
                outer_params[:, row] += lr * ahead
                x[step + 1, :, row] = self.kept * x[step + 1, :, row] + (1 - self.kept) * outer_params[:, row]
        return x


def rows_of(fragments: int) -> list[int]:
    """How many rows each fragment has: one for each worker and the last, which begins as ones."""
    return [len(part) for part in np.array_split(np.arange(WORKERS + 1), fragments)]


def _means(groups: list[list[int]]) -> npt.NDArray[np.float64]:
    w = np.eye(WORKERS)
    for group in groups:
        w[np.ix_(group, group)] = 1 / len(group)
    return w


def _one_peer(hop: int) -> Round:
    """Every worker takes half of the model of the one `hop` places before it."""
    edges = [((target - hop) % WORKERS, target, Fraction(1, 2)) for target in range(WORKERS)]
    return Round.from_edges(WORKERS, edges)


def _peer_matrix(hop: int) -> npt.NDArray[np.float64]:
    return (np.eye(WORKERS) + np.roll(np.eye(WORKERS), hop, axis=0)) / 2


def _gap(**options: object) -> Kind:
    """Workers on a ring in both directions, that go on by themselves within what their queues let them."""
    edges = [((target + hop) % WORKERS, target, Fraction(1, 3)) for target in range(WORKERS) for hop in (1, -1)]
    gap = IterationGap(**options)  # type: ignore[arg-type] - of many types
    rounds = (_RING,) if gap.takes_all else None
    strategy = NeighborAveraging(rounds=(Round.from_edges(WORKERS, edges),), sync=gap)
    late = gap.update_order is UpdateOrder.DPSGD
    return Kind(strategy, rounds, "reference" if rounds else "convex", late=late, keeps_gap=True)


def _quorum(**options: object) -> Kind:
    """Sums that start without the late; a step takes all that are there."""
    quorum = PartialAllReduce(**options)  # type: ignore[arg-type] - of many types
    return Kind(AllReduce(sync=quorum), None, "sums", gradients=True, takes_several=True)


def _outer_steps(*, fragments: int = 1, late_steps: int = 0, kept: float = 0.0) -> Kind:
    """DiLoCo: every third step the workers' mean movement is the gradient of an outer optimizer; merged late or not."""
    sync = DelayedMerge(steps=late_steps, alpha=Fraction(kept)) if late_steps else Synchronous()
    patterns = tuple((f"rows{part}",) for part in range(fragments)) if fragments > 1 else 1
    strategy = AllReduce(steps_per_round=3, sync=sync, payload=Payload(outer=DILOCO, fragments=patterns))
    turns = {"fragments": fragments, "late_steps": late_steps, "kept": kept}
    return Kind(strategy, (ALL,), "reference", steps_a_round=3, outer=DILOCO, **turns)


def _elastic(strategy: Strategy, **options: object) -> Kind:
    """All average, and survivors continue."""
    return Kind(strategy, (ALL,), "views", max_failures=2, **options)  # type: ignore[arg-type] - of many types


def _elastic_outer_steps(**turns: Any) -> Kind:  # noqa: ANN401 - of many types
    return replace(_outer_steps(**turns), law="views", max_failures=2)


def _own_outer_params(phases: GroupPhases) -> Kind:
    """NoLoCo: the same of groups."""
    strategy = StaticGroups(phases=phases, steps_per_round=2, payload=Payload(outer=NOLOCO))
    return Kind(strategy, _PAIR_MEANS, "reference", steps_a_round=2, outer=NOLOCO)


def _phases() -> GroupPhases:
    return GroupPhases(tuple(Phase.from_groups(WORKERS, groups) for groups in PAIRS))


_PAIR_MEANS = tuple(_means(groups) for groups in PAIRS)
_RING = (np.eye(WORKERS) + np.roll(np.eye(WORKERS), 1, axis=0) + np.roll(np.eye(WORKERS), -1, axis=0)) / 3
_PEERS = (_peer_matrix(1), _peer_matrix(2))
_ROUNDS = (_one_peer(1), _one_peer(2))

KINDS = {
    "static": Kind(StaticGroups(phases=_phases()), _PAIR_MEANS, "reference"),
    "static late": Kind(StaticGroups(phases=_phases(), sync=DelayedAveraging()), _PAIR_MEANS, "reference", late=True),
    "allreduce": Kind(AllReduce(), (ALL,), "reference", gradients=True),
    "elastic allreduce": _elastic(AllReduce(), gradients=True),
    "elastic pipeline": _elastic(AllReduce(sync=Pipeline()), gradients=True, lag=1),
    "elastic late": _elastic(AllReduce(sync=DelayedAveraging()), late=True),
    "elastic codec": _elastic(AllReduce(transport=Transport(codec=Codec.BFLOAT16)), gradients=True),
    "elastic stages": _elastic(AllReduce(transport=HIERARCHICAL), gradients=True, num_nodes=2),
    "elastic layers": _elastic(AllReduce(transport=LAYERS), gradients=True),
    "elastic outer": _elastic_outer_steps(),
    "elastic merged late": _elastic_outer_steps(late_steps=1, kept=0.5),
    "elastic fragments": _elastic_outer_steps(fragments=2),
    "elastic fragments merged late": _elastic_outer_steps(fragments=2, late_steps=2),
    "elastic own outer": replace(_own_outer_params(GroupPhases((Phase.from_groups(WORKERS, [range(WORKERS)]),))),
                                 law="views", rounds=(ALL,), max_failures=2),
    "allreduce pipeline": Kind(AllReduce(sync=Pipeline()), (ALL,), "reference", gradients=True, lag=1),
    "allreduce every 2": Kind(AllReduce(steps_per_round=2), (ALL,), "reference", steps_a_round=2),
    "outer": _outer_steps(),
    "outer merged late": _outer_steps(late_steps=1, kept=0.5),
    "outer of pairs": _own_outer_params(_phases()),
    "fragments": _outer_steps(fragments=2),
    "fragments merged late": _outer_steps(fragments=2, late_steps=2, kept=0.5),
    "allreduce late": Kind(AllReduce(sync=DelayedAveraging()), (ALL,), "reference", late=True),
    "quorum solo": _quorum(quorum=QuorumStart.SOLO),
    "quorum majority": _quorum(quorum=QuorumStart.MAJORITY, count=LateGradientPolicy.CALL, staleness=2),
    "quorum of three": _quorum(quorum=3, grace=2000),
    "hierarchical": Kind(
        AllReduce(steps_per_round=2, transport=HIERARCHICAL), (ALL,), "reference", steps_a_round=2, num_nodes=2
    ),
    "neighbor": Kind(NeighborAveraging(rounds=_ROUNDS), _PEERS, "reference"),
    "neighbor late": Kind(NeighborAveraging(rounds=_ROUNDS, sync=DelayedAveraging()), _PEERS, "reference", late=True),
    "gap standard": _gap(),
    "gap standard parallel": _gap(update_order=DPSGD),
    "gap tokens": _gap(max_ig=2),
    "gap tokens parallel": _gap(max_ig=1, update_order=DPSGD),
    "gap notify-ack": _gap(notify_ack=True),
    "gap notify-ack parallel": _gap(notify_ack=True, update_order=DPSGD),
    "gap backup": _gap(max_ig=3, backup=1),
    "gap backup parallel": _gap(max_ig=3, backup=1, update_order=DPSGD),
    "gap staleness": _gap(staleness=2),
    "gap staleness parallel": _gap(max_ig=4, staleness=2, weights=EdgeWeighting.ITERATION, update_order=DPSGD),
    "gap skip": _gap(max_ig=4, backup=1, skip=SkipPolicy(limit=4)),
    "gap skip parallel": _gap(max_ig=5, staleness=3, backup=1, skip=SkipPolicy(limit=3), update_order=DPSGD),
    "dynamic_groups": Kind(
        DynamicGroups(group_size=2, division=GroupSplit.GLOBAL, slow_threshold=None), None, "groups"
    ),
    "pairwise": Kind(Pairwise(active=(0, 2)), None, "convex"),
    "pairwise late": Kind(Pairwise(active=(0, 2), sync=DelayedAveraging()), None, "convex", late=True),
    "server": Kind(Server(hosts=(1,)), (ALL,), "reference", gradients=True),
    "server asynchronous": Kind(Server(hosts=(1,), synchronous=False), None, "counts"),
    "server asynchronous late": Kind(
        Server(hosts=(1,), synchronous=False, sync=DelayedAveraging()), None, "counts", late=True
    ),
}  # fmt: skip
