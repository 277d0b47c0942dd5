"""The five claims about iteration gaps; the theorems stand in events.py.

* `live`: some event can always happen, and an event that waits happens at last. Ticks grow along every arc without
  tokens. Of the events with the smallest count take the one with the earliest tick: nothing that it waits for is
  missing.
* `pair`: Step(to) − Step(from) ≤ bound, by all distances from the one that stands still. A step counts from its enter.
* `every-pair`: the largest of all such differences, by the distances from every worker.
* `queues`: both differences over every edge, each by the part of the distances that it rests on, and with them the
  capacities of the queues of an edge (u, v), which stand at v: updates of the steps Step(v) … Step(u), at most
  (Step(u) − Step(v)) + 1; tokens max_ig + Step(v) − Step(u).
* `skip`: for every worker the most steps that it skips at once. It passes no out-neighbour, so none is skipped further
  than an out-neighbour can be ahead, by the bounds of `queues`; the reduce before it enters needs an update of its last
  step, at most `staleness` older, from all in-neighbours but the backup workers, which have at most so many.

That a bound is attained, and that there is none, is said only behind a proved `live`.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

from ..refusal import confirm, confirm_equal, require
from ..strict_json import as_integer, as_integers, as_list
from .events import FAR, LIMIT, NONE

if TYPE_CHECKING:
    from .events import EventGraph

Entry = dict[str, Any]


def check_live(events: EventGraph, entry: Entry, place: str, *, is_live: bool) -> str:  # noqa: ARG001 - as the others
    """`ticks`: for every event 1 + the largest tick among its sources without tokens, 0 without such sources."""
    ticks = as_integers(entry["ticks"], f"{place}.ticks", 0, FAR)
    require(len(ticks) == events.num_events, f"{place}.ticks", f"needs {events.num_events} numbers")
    for event, needs in enumerate(events.needs):
        before = [ticks[source] for need in needs if need.tokens == 0 for source in need.sources]
        expected = 1 + max(before, default=-1)
        confirm(ticks[event] == expected, f"{place}.ticks[{event}] ({events.name(event)})", ticks[event], expected)
    return "some event can always happen, and each that waits does"


def check_pair(events: EventGraph, entry: Entry, place: str, *, is_live: bool) -> str:
    """`from`, `to`, `bound`, `distances` (from the enter of `from`)."""
    start = as_integer(entry["from"], f"{place}.from", 0, events.num_workers)
    end = as_integer(entry["to"], f"{place}.to", 0, events.num_workers)
    distances = events.confirm_all_distances(start, entry["distances"], f"{place}.distances")
    bound = as_integer(entry["bound"], f"{place}.bound", NONE, FAR)
    confirm_equal(f"{place}.bound", bound, distances[end])
    return _statement(f"Step({end}) - Step({start})", bound, place, is_live=is_live)


def check_every_pair(events: EventGraph, entry: Entry, place: str, *, is_live: bool) -> str:
    """`bound`, `distances` (a list from every worker's enter)."""
    rows = as_list(entry["distances"], f"{place}.distances")
    require(len(rows) == events.num_workers, f"{place}.distances", f"needs {events.num_workers} lists")
    enters = [events.confirm_all_distances(start, row, f"{place}.distances[{start}]") for start, row in enumerate(rows)]
    largest = NONE if any(NONE in row for row in enters) else max(map(max, enters))
    bound = as_integer(entry["bound"], f"{place}.bound", NONE, FAR)
    confirm_equal(f"{place}.bound", bound, largest)
    return _statement("the largest Step(i) - Step(j)", bound, place, is_live=is_live)


def _statement(what: str, bound: int, place: str, *, is_live: bool) -> str:
    if bound == NONE:
        confirm(is_live, f"{place}.bound", bound, "the claim live before one of no bound")
        return f"{what} has no bound"
    return f"{what} <= {bound}, attained" if is_live else f"{what} <= {bound}"


def check_queues(events: EventGraph, entry: Entry, place: str, *, is_live: bool) -> str:  # noqa: ARG001 - as the others
    """`bounds`: for edge (u, v) the pair Step(u) − Step(v), Step(v) − Step(u); `support`, `update`, perhaps `token`."""
    known = _confirm_support(events, entry["support"], f"{place}.support")
    bounds = [[known[v].get(u, NONE), known[u].get(v, NONE)] for u, v in events.edges]
    given = as_list(entry["bounds"], f"{place}.bounds")
    for number, pair in enumerate(given):
        as_integers(pair, f"{place}.bounds[{number}]", NONE, FAR)
    confirm_equal(f"{place}.bounds", given, bounds)
    update = [NONE if ahead == NONE else ahead + 1 for ahead, _ in bounds]
    confirm_equal(f"{place}.update", as_integers(entry["update"], f"{place}.update", NONE, FAR), update)
    require(("token" in entry) == (events.max_ig is not None), place, "token goes with max_ig in the setting")
    if events.max_ig is not None:
        token = [NONE if back == NONE else back + events.max_ig for _, back in bounds]
        confirm_equal(f"{place}.token", as_integers(entry["token"], f"{place}.token", NONE, FAR), token)
    events.proved_bounds = dict(zip(map(tuple, events.edges), bounds, strict=True))
    unbounded = sum(pair.count(NONE) for pair in bounds)
    return f"every bound and capacity given; {unbounded} of {2 * len(bounds)} gaps have none"


def check_skip(events: EventGraph, entry: Entry, place: str, *, is_live: bool) -> str:  # noqa: ARG001 - as the others
    """`longest`: a number for every worker, 0 for one that never skips."""
    require(events.skip is not None, place, "goes with skip in the setting")
    require(events.proved_bounds is not None, place, "stands behind the claim queues")
    bounds, (limit, trigger) = events.proved_bounds or {}, events.skip or (0, 0)
    leads: list[list[float]] = [[] for _ in range(events.num_workers)]
    sent: list[list[float]] = [[] for _ in range(events.num_workers)]
    for (u, v), (ahead, back) in bounds.items():
        sent[v].append(inf if ahead == NONE else ahead)
        leads[u].append(inf if back == NONE else back)
    longest = []
    for worker, spare in enumerate(events.backup):
        needed = len(sent[worker]) - spare
        served = [sorted(sent[worker])[-needed] + 1 + events.staleness] if needed else []
        most = min([limit, *leads[worker], *served])
        longest.append(int(most) if leads[worker] and most >= trigger else 0)
    confirm_equal(f"{place}.longest", as_integers(entry["longest"], f"{place}.longest", 0, LIMIT), longest)
    return f"no worker skips more than {max(longest)} steps at once, and none passes an out-neighbour"


def _confirm_support(events: EventGraph, given: object, place: str) -> list[dict[int, int]]:
    """For every worker the distances that its bounds rest on, as [event, distance] in order."""
    support = as_list(given, place)
    require(len(support) == events.num_workers, place, f"needs {events.num_workers} lists")
    known: list[dict[int, int]] = []
    for start, listed in enumerate(support):
        at = f"{place}[{start}]"
        rows = [as_integers(row, f"{at}[{number}]", 0, FAR) for number, row in enumerate(as_list(listed, at))]
        are_pairs = all(len(row) == 2 and row[0] < events.num_events and row[0] != start for row in rows)
        require(are_pairs, at, "holds pairs of an event, not the one that it starts from, and a distance")
        in_order = all(row[0] < later[0] for row, later in pairwise(rows))
        require(in_order, at, "must be sorted, each event once")
        known.append({start: 0} | {row[0]: row[1] for row in rows})
        events.confirm_distances(start, known[start], at)
    return known
