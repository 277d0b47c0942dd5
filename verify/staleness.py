"""Claims `staleness`, `queues` and `end`: how old what is averaged can be, who is how far ahead, how a run ends.

All three rest on one number, the rounds after which everybody has met everybody (`verify.meetings`). Their theorems
stand in the files of `verify/checker/facts/` with the same names.
"""

from __future__ import annotations

import numpy as np

from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, follows, not_proved
from partreduce.verify.meetings import Meetings, NeverMeetError, TooManyRoundsError, rounds_to_meet
from partreduce.verify.stochastic import explicit_pairs, keeps_something, rule_pairs
from partreduce.verify.view import rule_view

NONE = -1
"""No bound is claimed: certificates have no null."""

MAX_PAIRS = 5 * 10**6
"""Edges times rounds that are followed for the queues of a graph."""


def prove_meetings(schedule: Schedule) -> tuple[Claim, ...]:
    """`staleness` and `end`, and for weighted graphs `queues`. Rules: milliseconds at any number of nodes."""
    why = ""
    try:
        reach = rounds_to_meet(schedule)
    except NeverMeetError as error:
        deaf, unheard = error.args
        unit = "worker" if rule_view(schedule) is None else "local rank"
        reach, why = NONE, f"{unit} {deaf} never hears of {unit} {unheard}, on whatever way."
    except TooManyRoundsError:
        reach, why = NONE, "following what every worker hears of, round by round, would take over a second."
    claims = [_staleness(schedule, reach) if reach != NONE else not_proved("staleness", why), _end(schedule, reach)]
    if schedule.strategy.graphs:
        claims.append(_queues(schedule, reach))
    return tuple(claims)


def _staleness(schedule: Schedule, reach: int) -> Claim:
    if not _keeps_own(schedule):
        text = "a weight is negative, or a worker gives up all of its own value, so what has arrived may leave again."
        return not_proved("staleness", text)
    strategy, pace = schedule.strategy, int(schedule.paces().max())
    begins_before = strategy.when.late_steps > pace // strategy.what.num_fragments
    late = strategy.when.lag + int(strategy.lacks_newest) + int(begins_before)
    age = reach - 1 + late
    direct = "An average takes the parameters of its members after all their steps of the round"
    if strategy.when.delays_gradients:
        direct = (
            f"An average is applied {late} steps after its gradients were taken: it lacks those of the newest {late}"
        )
    elif strategy.lacks_newest:
        where = "up to a round before its own" if begins_before else "inside its round"
        direct = f"An average begins {where} and lacks the steps behind that place"
    elif late:
        direct = (
            "A late average takes the parameters with which its round began: it lacks the newest round of every "
            f"member, at most {late * pace} steps"
        )
    text = (
        f"{direct}. Any {reach} successive rounds lead from everybody to everybody, and what has arrived "
        f"somewhere stays there. So at the end of a round everybody's parameters hold all that anybody did up to {age} "
        f"rounds before, at most {age * pace} steps of a worker."
    )
    return follows("staleness", text, late=late, steps=late * pace, reach=reach, age=age, age_steps=age * pace)


def _keeps_own(schedule: Schedule) -> bool:
    """Whether no weight is negative and every worker keeps a positive one on itself."""
    if schedule.strategy.graphs:
        return all(map(keeps_something, schedule.strategy.graphs))
    rule = rule_view(schedule)
    pairs = rule_pairs(rule) if rule is not None else explicit_pairs(schedule)
    return all(relax >= 0 and relax * (size - 1) < size for size, relax in pairs)


def _end(schedule: Schedule, reach: int) -> Claim:
    steps = int(schedule.paces().sum())
    text = (
        "The operations of any number of rounds complete if every worker carries out that number. So they do with data "
        f"dealt by pace: a round of all takes {steps} batches, so N batches are N div {steps} rounds for everybody. So "
        "they do in join mode, whatever the data: every worker takes part in exactly the rounds that anybody began, "
        "and leaves when all data have ended."
    )
    when = schedule.strategy.when
    behind = reach if reach == NONE or not when.delays_gradients else reach + when.lag
    if when.delays_gradients:
        text += " The operations in flight then have been begun by all, and complete as the pipeline drains."
    if behind != NONE:
        text += f" Without either, one that leaves early holds up everybody at most {behind} rounds later."
    return follows("end", text, steps=steps, behind=behind)


def _queues(schedule: Schedule, reach: int) -> Claim:
    period = schedule.period
    uses: dict[tuple[int, int], list[bool]] = {}
    for t, graph in enumerate(schedule.strategy.graphs):
        for source, target, _ in graph.edges():
            uses.setdefault((target, source), [False] * period)[t] = True
    edges = sorted(uses)
    used = np.array([uses[edge] for edge in edges], dtype=np.int64).reshape(len(edges), period)
    most = np.zeros(len(edges), dtype=np.int64)
    unbounded = np.zeros(len(edges), dtype=bool)
    spent = 0
    try:
        meetings = Meetings(schedule)
        for s in range(period):
            left = list(range(len(edges)))
            for number, heard in enumerate(meetings.heard(s + 1), 1):
                spent += len(left)
                if spent > MAX_PAIRS:
                    raise TooManyRoundsError
                told = [e for e in left if heard[edges[e][1]] >> edges[e][0] & 1]
                if told:
                    inside = np.arange(s, s + number + 1) % period
                    most[told] = np.maximum(most[told], used[told][:, inside].sum(axis=1))
                    left = [e for e in left if not heard[edges[e][1]] >> edges[e][0] & 1]
                if not left:
                    break
            unbounded[left] = True
    except TooManyRoundsError:
        return not_proved("queues", "following what every worker hears of, round by round, would take over a second.")
    capacities = np.where(unbounded, NONE, most).tolist()
    free = int(unbounded.sum())
    text = f"No worker is ever more than {reach} rounds ahead of another. " if reach != NONE else ""
    text += (
        f"At most {max(capacities, default=0)} messages wait on an edge" + (" that has a bound" if free else "") + "."
    )
    if free:
        text += f" {free} of {len(edges)} edges have none: their target never reaches their source."
    return follows("queues", text, gap=reach, capacities=capacities)
