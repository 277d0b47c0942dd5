"""`queues` of weighted graphs, by the rules of rounds: how far workers can be apart, and what waits on an edge.

*The gap.* No worker is ever more than `gap` rounds ahead of another: the R of meetings.py, with its proof; −1 where
some worker never hears of another.

*The queues.* Let worker u send over an edge (u, v) in some rounds of the period, and let v be in round s, whose
message it has not read. Messages of rounds before s are read. Worker v has begun no exchange of round s + 1, so by
the theorem of meetings.py u is in round s + d at most, if d successive rounds from round s + 1 on lead from v to u.
*Theorem:* of this edge there wait at most as many messages as the rounds s … s + d have that use it; `capacities`
holds the largest such number over all s, for every edge of the period in the order of (target, source), −1 where v
never reaches u. For one round this is d(v → u) + 1, Hop's bound for a standard queue (Luo et al., ASPLOS 2019).

*Assumed of the program:* a worker exchanges with its neighbors of a round before it leaves that round. An edge of
weight 0 sends messages here and holds nobody up, so the numbers are bounds whether it is used or not.
"""

from __future__ import annotations

from ..meetings import reached_sets, rounds_to_meet
from ..refusal import Work
from ..schedule import Numbers, Schedule

NONE = -1
"""There is no bound."""


def numbers(schedule: Schedule, work: Work) -> Numbers | None:
    """`gap`, and `capacities` (a number for each edge)."""
    if schedule.form != "graph":
        return None
    gap = rounds_to_meet(schedule, work)
    return {"gap": NONE if gap is None else gap, "capacities": _capacities(schedule, work)}


def _capacities(schedule: Schedule, work: Work) -> list[int]:
    """The largest number of waiting messages of every edge, in the order of (target, source)."""
    uses: dict[tuple[int, int], list[bool]] = {}
    for t, edges in enumerate(schedule.rounds):
        for target, source, _ in edges:
            uses.setdefault((target, source), [False] * schedule.period)[t] = True
    largest = dict.fromkeys(uses, 0)
    for s in range(schedule.period):
        left = dict(uses)
        for number, arrived in enumerate(reached_sets(schedule, s + 1, work), 1):
            work.spend(len(left) * (20 + 5 * number))
            for target, source in [edge for edge in left if arrived[edge[1]] >> edge[0] & 1]:
                used = left.pop((target, source))
                waiting = sum(used[t % schedule.period] for t in range(s, s + number + 1))
                largest[target, source] = max(largest[target, source], waiting)
        for edge in left:
            largest[edge] = NONE
    return [largest[edge] for edge in sorted(largest)]
