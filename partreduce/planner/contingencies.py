"""What survivors run after a loss, planned beforehand: the schedule's own groups where these still do, or better ones.

One loss of each class is planned for (`topo.losses`). Its survivors keep the schedule's groups, without the lost, if
they reach consensus and their predicted time to the loss is at most FACTOR of the best that is known: all survivors in
one group, and on clusters of up to ANEW workers what the planner finds for the cluster that is left. A schedule that
was given, rather than found, may be as slow as it was before. A large rule is compared on fewer nodes, of which each
lost one is a larger part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, prod

from partreduce.planner.job import EFFORTS, Job
from partreduce.planner.lateness import Lateness
from partreduce.planner.measuring import measure
from partreduce.topo.cluster import Cluster
from partreduce.topo.contingency import Contingency, Groups, Survivors, after_loss, check_covered, sends_whole
from partreduce.topo.document.contingencies import MAX_CONTINGENCIES
from partreduce.topo.errors import InputError, PartreduceError, ScheduleError
from partreduce.topo.hardware import Hardware, Switch
from partreduce.topo.losses import Loss, Symmetries, losses_of_nodes
from partreduce.topo.rule import digit_of, strides_of
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Pace
from partreduce.topo.strategies.static import RulePhases, Static
from partreduce.verify.survives import apart_after

FACTOR = 1.1
"""Groups are kept if they take at most so many times the best predicted time to the loss."""
ANEW = 64
"""Workers up to which the planner looks for better groups, once for each shape of the cluster that is left."""
CLUSTERS = 6
"""Shapes of clusters for which it does so at the most."""
OFFERED = 4
"""Schedules of each such search that are measured at the schedule's own pace."""
COMPARED = 128
"""Workers of a rule on as many nodes as figures are compared on; explicit groups of more are not measured."""


@dataclass(frozen=True, slots=True)
class Survival:
    """A schedule with its contingencies, and in words what survivors do."""

    schedule: Schedule
    words: str


def goes_on(schedule: Schedule) -> bool:
    """Whether contingencies of the schedule can be made, and run."""
    try:
        _check_runs(schedule)
    except ScheduleError:
        return False
    return True


def _check_runs(schedule: Schedule) -> None:
    """Refuse what the run-time ends with the first loss, whatever is planned (`runtime.worker.goes_on.refusal_of`)."""
    check_covered(schedule)
    if not sends_whole(schedule):
        raise ScheduleError("strategy.how.sending: only what is sent whole goes on after a loss yet; leave it out")


def survival(
    schedule: Schedule, job: Job, *, is_given: bool = False, say: Callable[[str], None] = lambda _: None
) -> Survival:
    """Plan for the loss of up to `job.survive` workers, and of one node; `is_given`: the planner did not find it.

    Raises:
        ScheduleError: contingencies of such a schedule cannot be made.
        InputError: there are more classes of losses than a file holds.
    """
    _check_runs(schedule)
    bare = replace(schedule, contingencies=(), certificate=None)
    symmetries = Symmetries.of(bare)
    losses: set[Loss] = set(losses_of_nodes(bare, symmetries))
    for count in range(1, job.survive + 1):
        losses |= set(symmetries.classes(count, most=MAX_CONTINGENCIES))
        if len(losses) > MAX_CONTINGENCIES:
            raise InputError(
                f"survive: losses of {count} workers fall into over {MAX_CONTINGENCIES} classes, which no file holds; "
                f"take {count - 1}; more are followed by one group of all survivors"
            )
    say(f"planning for {len(losses)} classes of losses")
    planned = [Contingency(lost) for lost in sorted(losses)]
    if isinstance(bare.strategy, Static):
        apart = apart_after(replace(bare, contingencies=tuple(planned)))
        rivals = _Rivals(bare, job, is_given=is_given)
        planned = [Contingency(lost, rivals.best(lost, may_remain=lost not in apart)) for lost in sorted(losses)]
    return Survival(replace(bare, contingencies=tuple(planned)), _words(bare, planned, job.survive))


def _words(schedule: Schedule, planned: list[Contingency], workers: int) -> str:
    lost = f"after the loss of {'up to ' * (workers > 1)}{workers} worker{'s' * (workers > 1)} or of one node survivors"
    if not isinstance(schedule.strategy, Static):
        return f"{lost} go on with All-Reduce" + " in a pipeline" * schedule.strategy.when.delays_gradients
    kept = Counter(one.groups.value if isinstance(one.groups, Survivors) else "own" for one in planned)
    said = {"remaining": "keep their groups", "all": "average all together", "own": "have groups of their own"}
    each = ", ".join(f"in {kept[key]} they {words}" for key, words in said.items() if kept[key])
    return f"{lost} go on: of {len(planned)} classes of losses, {each}"


class _Rivals:
    """What survivors of a loss may run instead of what remains, with what each costs."""

    def __init__(self, schedule: Schedule, job: Job, *, is_given: bool) -> None:
        self._schedule, self._job = _compared(schedule, job)
        self._full = schedule
        self._is_small = self._schedule.num_workers <= COMPARED
        self._anew: dict[Cluster, list[Groups]] = {}
        self._before = -inf  # the time to the loss that is good enough whatever else there is
        if is_given and self._is_small:
            with suppress(PartreduceError):
                here = self._schedule
                self._before = measure(here, self._job, form=here.strategy.how.form).time

    def best(self, lost: Loss, *, may_remain: bool) -> Groups:
        """The remaining groups where they will do, else what takes the least time to the loss."""
        if not self._is_small:
            return Survivors.REMAINING if may_remain else Survivors.ALL
        here = self._moved(lost)
        job = replace(self._job, cluster=survivors_of(self._job.cluster, here), survive=0, take=None)
        remaining = self._time(here, Survivors.REMAINING, job) if may_remain else inf
        if remaining <= FACTOR * self._before:
            return Survivors.REMAINING
        rivals: list[Groups] = [Survivors.ALL, *self._found(job)]
        times = [self._time(here, groups, job) for groups in rivals]
        least = min(times)
        if may_remain and remaining <= FACTOR * least:
            return Survivors.REMAINING
        return rivals[times.index(least)]

    def _time(self, lost: Loss, groups: Groups, job: Job) -> float:
        """The predicted time to the loss; infinite where there is none."""
        try:
            found = after_loss(replace(self._schedule, contingencies=(Contingency(lost, groups),)), lost)
            return measure(found, job, form=found.strategy.how.form).time
        except PartreduceError:
            return inf

    def _found(self, job: Job) -> list[Groups]:
        """Groups that the planner finds for the cluster that is left; none for large ones, and where it finds none."""
        if self._full.num_workers > ANEW or (job.cluster not in self._anew and len(self._anew) == CLUSTERS):
            return []
        if job.cluster not in self._anew:
            self._anew[job.cluster] = []
            with suppress(PartreduceError):
                self._anew[job.cluster] = groups_for(job, self._schedule.strategy.pace)
        return self._anew[job.cluster]

    def _moved(self, lost: Loss) -> Loss:
        """The same loss of the schedule that is compared: its nodes have digits that are there as well."""
        full, here = self._full.rule(by_node=True), self._schedule.rule(by_node=True)
        if full is None or here is None or full.radices == here.radices:
            return lost
        size, strides, fewer = full.workers_per_node, strides_of(full.radices), strides_of(here.radices)
        moved = []
        for worker in lost:
            node, rank = divmod(worker, size)
            digits = (digit_of(node, stride, radix) for stride, radix in zip(strides, full.radices, strict=True))
            moved.append(sum(digit * stride for digit, stride in zip(digits, fewer, strict=True)) * size + rank)
        return tuple(sorted(moved))


def groups_for(job: Job, pace: Pace) -> list[Groups]:
    """Groups that the planner finds for a cluster in a quick search, those that it would have at this pace first.

    Raises:
        PartreduceError: it finds none.
    """
    from partreduce.planner.plan import plan

    asked = replace(job, effort=EFFORTS["quick"], when=Lateness.LOCKSTEP, gap=False, quorum=False)
    options = sorted(plan(asked).options, key=lambda one: (one.pace != pace, one.time))
    found: list[Groups] = []
    for option in options:
        strategy = option.schedule.strategy
        if isinstance(strategy, Static) and goes_on(option.schedule) and strategy.phases not in found:
            found.append(strategy.phases)
    return found[:OFFERED]


def _compared(schedule: Schedule, job: Job) -> tuple[Schedule, Job]:
    """The schedule that figures are compared on: a large rule on fewer nodes, without what single ones have."""
    phases, size = getattr(schedule.strategy, "phases", None), schedule.cluster.workers_per_node
    is_large = schedule.num_workers > COMPARED and isinstance(phases, RulePhases) and size is not None
    if not is_large or not isinstance(schedule.strategy.pace, int):
        return schedule, job
    assert isinstance(phases, RulePhases), "asked above"
    assert isinstance(schedule.strategy, Static), "only these have phases"
    assert size is not None, "rules have equal nodes"
    radices = list(phases.node_radices)
    least = job.survive + 1
    while prod(radices) * size > COMPARED and max(radices) > least:
        largest = radices.index(max(radices))
        radices[largest] = max(least, radices[largest] // 2)
    hardware = replace(job.hardware, node_inside=(), node_nic=(), switches=(), slowdown=())
    cluster = Cluster.regular(prod(radices), size, hardware=hardware)
    strategy = replace(schedule.strategy, phases=RulePhases(tuple(radices), phases.phases))
    return Schedule(schedule.name, cluster, strategy), replace(job, cluster=cluster)


def survivors_of(cluster: Cluster, lost: Loss) -> Cluster:
    """The cluster that is left, with the hardware of its nodes and workers under their new numbers."""
    shape, hardware, gone = cluster.without(lost), cluster.hardware, frozenset(lost)
    if hardware is None:
        return shape
    kept = [node for node in range(cluster.num_nodes) if set(cluster.workers_of(node)) - gone]
    node = {old: new for new, old in enumerate(kept)}
    left = (worker for worker in range(cluster.num_workers) if worker not in gone)
    rank = {old: new for new, old in enumerate(left)} if hardware.slowdown else {}
    switches: dict[frozenset[int], Switch] = {}
    for switch in hardware.switches:
        below = frozenset(node[old] for old in switch.nodes if old in node)
        slowest = switches.get(below, switch).uplink
        uplink = max(slowest, switch.uplink, key=lambda link: (link.seconds_per_byte, link.latency))
        if below:
            switches[below] = Switch(tuple(below), uplink)
    left_over: Hardware = replace(
        hardware,
        node_inside=tuple((node[old], link) for old, link in hardware.node_inside if old in node),
        node_nic=tuple((node[old], link) for old, link in hardware.node_nic if old in node),
        switches=tuple(switches.values()),
        slowdown=tuple((rank[old], factor) for old, factor in hardware.slowdown if old in rank),
    )
    return Cluster(shape.num_nodes, shape.workers_per_node, shape.nodes, left_over)
