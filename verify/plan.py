"""Issue plans: the order in which every worker issues its group operations, checked against one global order.

Each worker issues a list of operations; the k-th time a member issues a communicator's operation meets the k-th time
of every other member (rendezvous). A plan completes iff ticks exist: one per operation, equal at its members and
strictly increasing along each worker. Otherwise some workers wait in a circle, and the circle is the witness.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preduce.topo.errors import InputError
from preduce.verify.base import Claim, proved, refuted, some
from preduce.verify.order import NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preduce.topo.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Plan:
    """`members[c]` are the workers of communicator c; `issued[w]` the communicators that worker w uses, in order.

    Creating a communicator that is itself collective is an operation like any other: list it over all workers that
    take part in it.
    """

    members: tuple[tuple[int, ...], ...]
    issued: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse plans that name unknown workers or communicators.

        Raises:
            InputError: as said.
        """
        for c, workers in enumerate(self.members):
            if len(set(workers)) != len(workers) or any(not 0 <= w < len(self.issued) for w in workers):
                raise InputError(
                    f"plan: communicator {c} has the members {list(workers)}; ranks are 0..{len(self.issued) - 1}"
                )
        for w, listed in enumerate(self.issued):
            for c in listed:
                if not 0 <= c < len(self.members) or w not in self.members[c]:
                    raise InputError(f"plan: worker {w} issues communicator {c}, of which it is no member")

    def name(self, communicator: int) -> str:
        """How a sentence calls a communicator."""
        label = self.names[communicator] if self.names else f"comm{communicator}"
        return f"{label} {some(self.members[communicator])}"


def prove_plan(plan: Plan) -> Claim:
    """Prove that the plan completes, with its canonical ticks, or refute it with the circle of waiting workers.

    O(number of issued operations): an operation runs as soon as all its members are at it, and the order of running
    does not matter, because running one never takes another's members away.
    """
    place = [0] * len(plan.issued)
    waiting: dict[int, set[int]] = defaultdict(set)
    last = [0] * len(plan.issued)
    ticks: list[list[int]] = [[] for _ in plan.members]
    ready = list(range(len(plan.issued)))
    while ready:
        worker = ready.pop()
        if place[worker] == len(plan.issued[worker]):
            continue
        here = plan.issued[worker][place[worker]]
        waiting[here].add(worker)
        if len(waiting[here]) == len(plan.members[here]):
            tick = 1 + max(last[w] for w in plan.members[here])
            ticks[here].append(tick)
            waiting[here] = set()
            for w in plan.members[here]:
                last[w] = tick
                place[w] += 1
                ready.append(w)
    stuck = [w for w in range(len(plan.issued)) if place[w] < len(plan.issued[w])]
    if stuck:
        return _circle(plan, place, stuck[0])
    text = f"{sum(map(len, ticks))} operations carry ticks from 1 to {max(last, default=0)}, strictly increasing along "
    return proved(NAME, text + "each worker, so the smallest unfinished operation is always ready.", ticks=ticks)


def _circle(plan: Plan, place: list[int], start: int) -> Claim:
    """Follow "waits for" from a stuck worker until it repeats or ends at a worker that has nothing left to issue."""
    order: dict[int, int] = {}
    chain: list[tuple[int, int, int]] = []
    worker = start
    while worker not in order:
        order[worker] = len(chain)
        here = plan.issued[worker][place[worker]]
        mine = plan.issued[worker][: place[worker]].count(here)
        absent = next(m for m in plan.members[here] if _is_absent(plan, place, m, here, mine))
        chain.append((worker, here, absent))
        if place[absent] == len(plan.issued[absent]):
            text = f"worker {worker} waits in {plan.name(here)} for worker {absent}, which never issues it again."
            return refuted(NAME, text, {"waits": {"worker": worker, "in": list(plan.members[here]), "for": absent}})
        worker = absent
    circle = chain[order[worker] :]
    text = "a cycle of waiting workers: " + "; ".join(
        f"worker {w} waits in {plan.name(c)} for worker {other}" for w, c, other in circle
    )
    cycle = [{"worker": w, "communicator": c, "members": list(plan.members[c]), "for": o} for w, c, o in circle]
    return refuted(NAME, text + ".", {"cycle": cycle})


def _is_absent(plan: Plan, place: list[int], worker: int, communicator: int, times: int) -> bool:
    """Whether a worker is not at (or past) the given use of a communicator."""
    here = place[worker]
    at_it = here < len(plan.issued[worker]) and plan.issued[worker][here] == communicator
    return not at_it or plan.issued[worker][:here].count(communicator) != times


def plan_of(schedule: Schedule, num_periods: int = 1) -> Plan:
    """What every worker of a schedule issues: all communicators made by all workers in one order, then its rounds.

    Communicators are the distinct groups in order of first use; each is made by everybody, as `new_group` demands.
    Every worker's rounds are read through `Schedule.group_of`, the function that it evaluates at run time, one worker
    at a time. O(num_workers² · num_communicators) in the worst case: for plans of up to some thousand workers.

    Raises:
        InputError: a worker's own group does not hold it (its members would wait for ever), or no fixed groups.
    """
    if not schedule.is_phased:
        raise InputError(f"strategy {schedule.strategy.kind!r}: has no groups to order")
    everyone = tuple(range(schedule.num_workers))
    rounds = schedule.prologue + num_periods * schedule.period
    number: dict[tuple[int, ...], int] = {}
    uses: list[list[int]] = [[] for _ in everyone]
    for round_ in range(rounds):
        for worker in everyone:
            group = schedule.group_of(worker, round_)
            if group is not None:
                uses[worker].append(number.setdefault(group.members, len(number)))
    made = len(number)
    members = (*(everyone for _ in range(made)), *number)
    names = (*(f"creation of group {c}" for c in range(made)), *(f"group {c}" for c in range(made)))
    issued = tuple((*range(made), *(made + c for c in uses[worker])) for worker in everyone)
    return Plan(members, issued, names)


def rotated_plan(groups: Sequence[Sequence[int]]) -> Plan:
    """Each worker issues its groups beginning with the one whose list it heads: the textbook way to a deadlock.

    With comm0 = {0,1}, comm1 = {1,2}, comm2 = {2,0} worker i begins with comm i and everyone waits for the next.
    """
    num_workers = 1 + max(max(group) for group in groups)
    issued = [
        [*(c for c, g in enumerate(groups) if g[0] == w), *(c for c, g in enumerate(groups) if w in g and g[0] != w)]
        for w in range(num_workers)
    ]
    return Plan(tuple(tuple(group) for group in groups), tuple(map(tuple, issued)))
