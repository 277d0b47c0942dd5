"""What survivors run when workers are lost: planned beforehand and proved, or All-Reduce over all who are left."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice
from partreduce.topo.losses import Loss, Symmetries, losses_of_nodes
from partreduce.topo.phase import Group, Phase
from partreduce.topo.rule import Block
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import Sending
from partreduce.topo.strategies.outer import PLAIN
from partreduce.topo.strategies.routes import ALIKE
from partreduce.topo.strategies.static import GroupPhases, RulePhases, Static

if TYPE_CHECKING:
    from partreduce.topo.schedule import Schedule


class Survivors(Choice):
    """Who averages with whom, where no phases are written for the survivors."""

    REMAINING = "remaining"
    """The schedule's own groups without the lost workers; who is left alone in a group skips."""

    ALL = "all"
    """All survivors in one group, in every round."""


Groups = Survivors | RulePhases | GroupPhases


@dataclass(frozen=True, slots=True)
class Contingency:
    """What survivors run after the loss of these workers, or of any that the schedule's symmetries map to these.

    `lost` represents its class (`topo.losses`). Only the groups change: pace, averaging, prologue and how payload
    travels stay what they are. Phases number the survivors anew, 0 … m − 1, in ascending order of their ranks.
    """

    lost: Loss
    groups: Groups = Survivors.REMAINING


def by_loss(contingency: Contingency) -> tuple[int, Loss]:
    """The order of contingencies: smaller losses first."""
    return len(contingency.lost), contingency.lost


def check_contingencies(schedule: Schedule) -> None:
    """Refuse contingencies that nobody could run. Whether they cover all losses and reach consensus, `verify` says.

    Raises:
        ScheduleError: the place, the value and the rule.
    """
    check_covered(schedule)
    n, seen = schedule.num_workers, set()
    for index, (lost, groups) in enumerate((one.lost, one.groups) for one in schedule.contingencies):
        place = f"contingencies[{index}]"
        if not lost or list(lost) != sorted(set(lost)) or not 0 <= lost[0] <= lost[-1] < n or n - len(lost) < 2:
            raise ScheduleError(
                f"{place}.lost: is {list(lost[:12])}; it names workers of 0..{n - 1}, ascending, and leaves 2 or more"
            )
        if lost in seen:
            raise ScheduleError(f"{place}.lost: {list(lost[:12])} has a contingency already; keep one of them")
        seen.add(lost)
        if groups is Survivors.REMAINING:
            continue
        if not isinstance(schedule.strategy, Static):
            raise ScheduleError(f"{place}.groups: All-Reduce goes on with all who are left; leave it out")
        if not isinstance(groups, Survivors):
            if not len(groups):
                raise ScheduleError(f"{place}.phases: is empty; there is at least 1 phase")
            try:
                left = schedule.cluster.without(lost)
                replace(schedule.strategy, phases=groups, pace=_paces_left(schedule, frozenset(lost))).check(left)
            except ScheduleError as error:
                raise ScheduleError(f"{place}: {error}") from None


def after_loss(schedule: Schedule, lost: Collection[int]) -> Schedule:
    """What the survivors of a loss run, numbered 0 … m − 1 in ascending order of their ranks in `schedule`.

    It is the file's contingency for the loss, else All-Reduce over the survivors. Every worker that holds the file
    finds the same. After a further loss, ask again with the first schedule and all ranks that it has lost by then.

    Raises:
        ScheduleError: a rank that the schedule does not have, fewer than two survivors, or a schedule of which no
            contingency can be made (`check_covered`).
    """
    check_covered(schedule)
    gone = frozenset(lost)
    if outside := sorted(rank for rank in gone if not 0 <= rank < schedule.num_workers):
        raise ScheduleError(f"lost worker {outside[0]}: is out of range; ranks are 0..{schedule.num_workers - 1}")
    if schedule.num_workers - len(gone) < 2:
        raise ScheduleError(f"{len(gone)} of {schedule.num_workers} workers are lost; a schedule needs at least 2")
    groups = _planned(schedule, gone)
    return _continued(schedule, gone, Survivors.ALL if groups is None else groups)


def after_loss_of_nodes(schedule: Schedule, count: int) -> Schedule:
    """The file's contingency for the loss of so many whole nodes, whichever they are.

    Raises:
        ScheduleError: the nodes are not alike, so that it matters which are lost; or no such loss is planned.
    """
    cluster = schedule.cluster
    if not schedule.contingencies:
        raise ScheduleError("it plans for no loss (design --survive)")
    symmetries, paces = Symmetries.of(schedule), schedule.paces().reshape(cluster.num_nodes, -1)
    are_alike = (paces == paces[0]).all() and len(losses_of_nodes(schedule, symmetries)) == 1
    if not cluster.is_regular or not are_alike or (count > 1 and len(symmetries.radices) > 1):
        raise ScheduleError("its nodes are not all alike, and which are lost is not known")
    lost = frozenset(range(cluster.num_workers - count * len(paces[0]), cluster.num_workers))
    if _planned(schedule, lost) is None:
        raise ScheduleError(f"it plans for no loss of {count} nodes" if count > 1 else "it plans for no loss of a node")
    return after_loss(schedule, lost)


def _planned(schedule: Schedule, lost: frozenset[int]) -> Groups | None:
    """The groups of the contingency for a loss, for its own survivors; None where none is planned."""
    if len(lost) not in {len(contingency.lost) for contingency in schedule.contingencies}:
        return None
    symmetries = Symmetries.of(schedule)
    like = symmetries.representative(lost)
    found = next((one.groups for one in schedule.contingencies if one.lost == like), None)
    if not isinstance(found, GroupPhases):
        return found  # a rule is for equal nodes, whichever they are
    to, left = symmetries.mapping(lost), [worker for worker in range(schedule.num_workers) if worker not in lost]
    place = {worker: number for number, worker in enumerate(sorted(to[worker] for worker in left))}
    order = [place[to[worker]] for worker in left]
    return GroupPhases(
        tuple(Phase.from_labels(phase.labels()[order], dict(enumerate(phase.relax or ()))) for phase in found.phases)
    )


def check_covered(schedule: Schedule) -> None:
    """Refuse schedules with which survivors cannot go on yet.

    Raises:
        ScheduleError: the place, and what is not covered.
    """
    strategy = schedule.strategy
    if strategy.kind not in ("static", "allreduce"):
        raise ScheduleError(f"strategy.kind: is {strategy.kind}; contingencies are for static and allreduce")
    what = strategy.what
    has_one_anchor = replace(what, outer=PLAIN, fragments=1) == ALIKE and not what.outer.has_own_anchors
    is_timely = strategy.when.word in ("lockstep", "pipeline", "late")
    for name, is_covered in (("when", is_timely), ("what", has_one_anchor)):
        if not is_covered:
            raise ScheduleError(
                f"strategy.{name}: contingencies are for what is averaged in lockstep, in a pipeline of gradients or "
                f"late by a round, without tables or anchors of each worker's own; leave {name} out"
            )
    if strategy.mixes_late and strategy.how.codec.rounds:
        raise ScheduleError(
            f"strategy.how.codec: is {strategy.how.codec}; contingencies are for late averages without one; leave out "
            "codec, or when"
        )


def with_groups(schedule: Schedule, lost: Collection[int], groups: Groups) -> Schedule:
    """What `after_loss` would give if the file's contingency were this one; of no loss, the schedule with these groups.

    All-Reduce that averages parameters becomes a schedule with groups.

    Raises:
        ScheduleError: the groups do not fit the cluster, or no contingency can be made of such a schedule.
    """
    check_covered(schedule)
    strategy = schedule.strategy
    if isinstance(strategy, AllReduce) and not strategy.averages_gradients:
        how = replace(strategy.how, error_feedback=False)  # which groups do not have
        phases = _one_group(schedule.cluster)
        grouped = Static(
            phases=phases,
            pace=strategy.pace,
            when=strategy.when,
            what=strategy.what,
            how=how,
            averaging=strategy.averaging,
        )
        schedule = replace(schedule, strategy=grouped, contingencies=())
    return _continued(schedule, frozenset(lost), groups)


def check_switch(now: Schedule, then: Schedule) -> None:
    """Refuse what workers cannot go over to between two rounds: only who averages with whom may differ.

    Raises:
        ScheduleError: the place, and what differs.
    """
    check_covered(then)
    ways = {
        "num_workers": (now.num_workers, then.num_workers),
        "strategy.pace": (now.paces().tolist(), then.paces().tolist()),
        "strategy.what": (now.strategy.what, then.strategy.what),
        "strategy.how": (now.strategy.how, then.strategy.how),
        "strategy.averaging": (now.strategy.averaging, then.strategy.averaging),
        "what is averaged": (now.strategy.averages_gradients, then.strategy.averages_gradients),
    }
    for place, (has, gets) in ways.items():
        if has != gets:
            raise ScheduleError(f"{place}: is {has}, and would be {gets} after a switch, which changes groups only")


def sends_whole(schedule: Schedule) -> bool:
    """Whether its sums are sent whole: with no others the run-time lets survivors go on yet."""
    return schedule.strategy.how.sending is Sending.WHOLE


def _paces_left(schedule: Schedule, lost: frozenset[int]) -> int | tuple[int, ...]:
    """Steps per round, of the survivors."""
    pace = schedule.strategy.pace
    return pace if isinstance(pace, int) else tuple(own for worker, own in enumerate(pace) if worker not in lost)


def _continued(schedule: Schedule, lost: frozenset[int], groups: Groups) -> Schedule:
    """The schedule of the survivors, whose groups are these."""
    cluster, strategy = schedule.cluster.without(lost), schedule.strategy
    pace = _paces_left(schedule, lost)
    strategy = replace(strategy, pace=pace)
    if isinstance(strategy, Static):
        if groups is Survivors.REMAINING:
            groups = _remaining(schedule, lost)
        elif groups is Survivors.ALL:
            groups = _one_group(cluster)
        strategy = replace(strategy, phases=groups)
    elif strategy.averages_gradients and not schedule.strategy.averages_gradients:
        # Their models differ, so they average models, also where only workers of pace 1 are left.
        how = replace(strategy.how, error_feedback=False)  # which groups do not have
        strategy = Static(phases=_one_group(cluster), pace=pace, how=how, averaging=strategy.averaging)
    return replace(schedule, cluster=cluster, strategy=strategy, certificate=None, contingencies=())


def _one_group(cluster: Cluster) -> RulePhases | GroupPhases:
    """One phase with one group of all workers."""
    if cluster.workers_per_node is None:
        everyone = Group(tuple(range(cluster.num_workers)))
        return GroupPhases((Phase.from_groups(cluster.num_workers, [everyone]),))
    radices = (cluster.num_nodes,) if cluster.num_nodes > 1 else ()
    return RulePhases(radices, ((Block(tuple(range(cluster.workers_per_node)), tuple(range(len(radices)))),),))


def _remaining(schedule: Schedule, lost: frozenset[int]) -> GroupPhases:
    """The schedule's groups without the lost workers, survivors renumbered. O(period · num_workers)."""
    gone = np.zeros(schedule.num_workers, dtype=bool)
    gone[list(lost)] = True
    phases = []
    for index in range(schedule.period):
        phase = schedule.phase(index)
        factors = dict(enumerate(phase.relax or ()))
        phases.append(Phase.from_labels(phase.labels()[~gone], factors))
    return GroupPhases(tuple(phases))
