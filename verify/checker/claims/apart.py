"""Claims about workers that keep a gap: `deadlock-free`, `queues`, `gap`, `skip`, `staleness`, `memory`.

Their theorems stand in gaps/events.py, what they say in gaps/claims.py; here they are asked of the graph and the
setting in a schedule. A *step* there is a round here. Besides:

* `gap`: the most rounds that one end of an edge is ahead of the other, the largest of the bounds of `queues`; −1 where
  one of them claims none. `gap-of-pairs`: the same of two workers that are named.
* `staleness`: a reduce of round k averages updates of round k − `steps` at the earliest, and k + `ahead` at the latest:
  of no other round without staleness; with it, of one that the setting admits, and that a worker so far ahead can have
  sent. In the parallel order an update holds what its worker did before it entered the round, so one round less.
* `memory`: the most `places` for payloads that one worker has for all its in-neighbours, and its `connections`. An
  in-neighbour has as many places as updates of it can wait, by `queues`; under staleness one, because a newer update
  takes the place of an older one, and no reduce asks for any but the newest. Models in flight are not counted.

*They assume* that workers behave as the needs of events.py say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..gaps import claims
from ..gaps.events import NONE
from ..refusal import confirm, confirm_equal, require

if TYPE_CHECKING:
    from ..schedule import Schedule

Entry = dict[str, Any]


def check_live(schedule: Schedule, entry: Entry, place: str) -> None:
    """`ticks`."""
    claims.check_live(schedule.events, entry, place, is_live=False)
    schedule.events.is_live = True


def check_queues(schedule: Schedule, entry: Entry, place: str) -> None:
    """`bounds`, `support`, `update`, perhaps `token`."""
    claims.check_queues(schedule.events, entry, place, is_live=schedule.events.is_live)


def check_pair(schedule: Schedule, entry: Entry, place: str) -> None:
    """`from`, `to`, `bound`, `distances`."""
    claims.check_pair(schedule.events, entry, place, is_live=schedule.events.is_live)


def check_skip(schedule: Schedule, entry: Entry, place: str) -> None:
    """`longest`."""
    claims.check_skip(schedule.events, entry, place, is_live=schedule.events.is_live)


def _bounds(schedule: Schedule, place: str) -> dict[tuple[int, ...], list[int]]:
    """For every edge (u, v) the proved Step(u) − Step(v) and Step(v) − Step(u)."""
    bounds = schedule.events.proved_bounds
    if bounds is None:
        require(False, place, "stands behind the claim queues")
    return bounds or {}


def check_gap(schedule: Schedule, entry: Entry, place: str) -> None:
    """`bound`."""
    bounds = [bound for pair in _bounds(schedule, place).values() for bound in pair]
    confirm_equal(f"{place}.bound", entry["bound"], NONE if NONE in bounds else max(bounds, default=0))


def check_staleness(schedule: Schedule, entry: Entry, place: str) -> None:
    """`steps`, `ahead`."""
    bounds = _bounds(schedule, place)
    staleness = schedule.events.staleness
    ahead = max((pair[0] for pair in bounds.values()), default=0) if staleness else 0
    confirm(all(pair[0] != NONE for pair in bounds.values()), place, "staleness", "a bound for every update queue")
    confirm_equal(f"{place}.steps", entry["steps"], staleness + schedule.lag)
    confirm_equal(f"{place}.ahead", entry["ahead"], ahead)


def check_memory(schedule: Schedule, entry: Entry, place: str) -> None:
    """`places`, `connections`."""
    places = [0] * schedule.num_workers
    neighbours: list[set[int]] = [set() for _ in range(schedule.num_workers)]
    for (u, v), (ahead, _) in _bounds(schedule, place).items():
        confirm(ahead != NONE, place, "memory", "a bound for every update queue")
        places[v] += 1 if schedule.events.staleness else ahead + 1
        neighbours[u].add(v)
        neighbours[v].add(u)
    confirm_equal(f"{place}.places", entry["places"], max(places))
    confirm_equal(f"{place}.connections", entry["connections"], max(map(len, neighbours)))
