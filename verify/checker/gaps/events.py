"""The event graph of a graph and a setting: who waits for whom, and how far events can run ahead.

Worker v has three events: v is its *enter* (of a step), n + v its *send*, 2n + v its *reduce*. N(x) counts how often
event x has happened; all counts start at 0. A *need* of x lists sources y, a number of tokens and a number `spare`: x
may happen for the (N+1)-th time when N + 1 ≤ N(y) + tokens holds for all sources but `spare` of them. The needs below
are the definition of docs/gaps.md:

| need | for | sources | tokens | spare |
|---|---|---|---|---|
| send v | every v | enter v | 1 | 0 |
| reduce v | every v | send v | 0 | 0 |
| enter v | every v | reduce v | 0 | 0 |
| reduce v | every v with backup < number of in-neighbours | send u, all in-neighbours u | staleness | backup of v |
| send u (NOTIFY-ACK) | every edge (u, v) | reduce v | 1 | 0 |
| enter u (token queues) | every edge (u, v) | enter v | max_ig | 0 |

A worker that *skips* d steps enters all of them at once. Count their updates as sent and their reduces as done at that
instant: it took d tokens of each out-neighbour, and it has what the last of these reduces needs, updates of step k + d
− 1 less `staleness` or newer; whoever sent one of those counts as having sent all before. So the counts obey the needs
above, and the theorem below holds. A skip passes no out-neighbour: each update that it leaves out is of a step that all
who could reduce it have left. Whoever waits therefore waits for an event that has not happened, as the last paragraph
asks.

**Why a distance is a bound.** Let D(x) ≥ 0 be given distances from worker j's enter, with D(enter j) = 0, and let each
other finite D(x) *equal* the smallest, over the needs of x, of the (spare+1)-th smallest D(y) + tokens over the
sources y, missing ones being infinite. *Theorem:* N(x) ≤ N(enter j) + D(x) at every instant. It holds at the start,
where all counts are 0. An event at j's enter raises the right side only. When x happens, one of the spare + 1 sources
y of that need with D(y) + tokens ≤ D(x) is not spared, so N(x) ≤ N(y) + tokens ≤ N(enter j) + D(y) + tokens ≤ N(enter
j) + D(x). The argument needs neither liveness nor all distances: entries that are left out count as infinite, and can
only lose bounds.

**Why it is attained,** once `live` is proved and *all* distances are given: hold j in step 0 and let everybody else run
until nothing moves. The counts X then solve the same equations, which have one solution: of the events with X(x) < D(x)
take one with the smallest count and, among those, the earliest tick; the sources that stop it have smaller counts or
earlier ticks, so theirs are not below D, and D(x) ≤ X(x) after all.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from ..refusal import confirm, require
from ..strict_json import as_choice, as_integer, as_integers, as_list, as_object

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT = 2**31
FAR = 2**53
NONE = -1
"""Stands for an infinite distance and a missing bound: certificates have no null."""


class Need(NamedTuple):
    """An event waits for all of `sources` but `spare`; each carries the same number of tokens."""

    tokens: int
    spare: int
    sources: list[int]


class EventGraph:
    """`needs[x]` are the needs of event x; `edges` are those of the graph, (source, target)."""

    def __init__(self, graph: object, setting: object) -> None:
        """Read graph and setting from a certificate, and build every need.

        Raises:
            Refusal: they are not what they must be, or do not go together.
        """
        members = as_object(graph, "graph", ("num_workers", "edges"))
        self.num_workers = n = as_integer(members["num_workers"], "graph.num_workers", 1, LIMIT)
        edges = enumerate(as_list(members["edges"], "graph.edges"))
        self.edges = [as_integers(edge, f"graph.edges[{number}]", 0, LIMIT) for number, edge in edges]
        are_pairs = all(len(edge) == 2 and edge[0] != edge[1] and max(edge) < n for edge in self.edges)
        require(are_pairs, "graph.edges", "edges are pairs of two different ranks of workers")
        in_order = all(edge < later for edge, later in pairwise(self.edges))
        require(in_order, "graph.edges", "must be sorted, each edge once")

        options = as_object(setting, "setting", ("staleness", "backup", "notify_ack"), ("max_ig", "skip"))
        staleness = as_integer(options["staleness"], "setting.staleness", 0, LIMIT)
        backup = as_integers(options["backup"], "setting.backup", 0, LIMIT)
        require(len(backup) == n, "setting.backup", f"needs a number for each of the {n} workers")
        as_choice(options["notify_ack"], "setting.notify_ack", (0, 1))
        notify_ack = options["notify_ack"] == 1
        goes_together = not (notify_ack and (staleness or any(backup)))
        require(goes_together, "setting", "NOTIFY-ACK goes with neither staleness nor backup workers")
        self.max_ig = as_integer(options["max_ig"], "setting.max_ig", 0, LIMIT) if "max_ig" in options else None

        self.staleness, self.backup, self.skip = staleness, backup, self._skip_of(options, notify_ack=notify_ack)
        self.proved_bounds: dict[tuple[int, ...], list[int]] | None = None
        self.is_live = False

        self.needs = self._needs_of_every_setting()
        self._add_updates(staleness, backup)
        if notify_ack:
            for u, v in self.edges:
                self.needs[n + u].append(Need(1, 0, [2 * n + v]))
        if self.max_ig is not None:
            for u, v in self.edges:
                self.needs[u].append(Need(self.max_ig, 0, [v]))

    def _skip_of(self, options: Mapping[str, object], *, notify_ack: bool) -> tuple[int, int] | None:
        """The longest skip and the shortest that the setting allows, None without skips."""
        if "skip" not in options:
            return None
        pair = as_integers(options["skip"], "setting.skip", 2, LIMIT)
        require(len(pair) == 2 and pair[0] >= pair[1], "setting.skip", "is the longest and the shortest skip")
        goes_together = self.max_ig is not None and not notify_ack
        require(goes_together, "setting", "skips need token queues, and do not go with NOTIFY-ACK")
        return pair[0], pair[1]

    @property
    def num_events(self) -> int:
        """Three a worker."""
        return 3 * self.num_workers

    def _needs_of_every_setting(self) -> list[list[Need]]:
        """A step is entered, then its update is sent, then it is reduced, then the next is entered."""
        n = self.num_workers
        enters = [[Need(0, 0, [2 * n + v])] for v in range(n)]
        sends = [[Need(1, 0, [v])] for v in range(n)]
        reduces = [[Need(0, 0, [n + v])] for v in range(n)]
        return enters + sends + reduces

    def _add_updates(self, staleness: int, backup: list[int]) -> None:
        """A reduce waits for the updates of all in-neighbours but the backup workers; `staleness` are its tokens."""
        n = self.num_workers
        updates: list[list[int]] = [[] for _ in range(n)]
        for u, v in self.edges:
            updates[v].append(n + u)
        for v, spare in enumerate(backup):
            num_sources = len(updates[v])
            require(spare <= num_sources, f"setting.backup[{v}]", f"worker {v} has {num_sources} in-neighbours")
            if spare < num_sources:
                self.needs[2 * n + v].append(Need(staleness, spare, updates[v]))

    def name(self, event: int) -> str:
        """As people say it: `enter 3`."""
        kind, worker = divmod(event, self.num_workers)
        return f"{('enter', 'send', 'reduce')[kind]} {worker}"

    def confirm_distances(self, start: int, known: Mapping[int, int], place: str) -> None:
        """Each known distance from a worker's enter is what the theorem asks of it; unknown ones are infinite.

        Raises:
            Refusal: one differs, with the number that it should be.
        """
        for event, value in known.items():
            expected = 0 if event == start else min(self._allowed(need, known) for need in self.needs[event])
            shown = "no finite number" if expected == inf else int(expected)
            confirm(value == expected, f"{place} ({self.name(event)})", value, shown)

    def _allowed(self, need: Need, known: Mapping[int, int]) -> float:
        """The (spare+1)-th smallest distance of the sources of a need, plus its tokens."""
        distances = sorted(known.get(source, inf) for source in need.sources)
        return distances[need.spare] + need.tokens

    def confirm_all_distances(self, start: int, given: object, place: str) -> list[int]:
        """The distances of all events, the infinite ones too; returns those of the enters.

        Raises:
            Refusal: one is wrong.
        """
        distances = as_integers(given, place, NONE, FAR)
        require(len(distances) == self.num_events, place, f"needs {self.num_events} numbers")
        known = {event: distance for event, distance in enumerate(distances) if distance != NONE}
        confirm(start in known, f"{place} ({self.name(start)})", NONE, 0)
        self.confirm_distances(start, known, place)
        for event in range(self.num_events):
            if event not in known:
                is_infinite = all(self._allowed(need, known) == inf for need in self.needs[event])
                confirm(is_infinite, f"{place} ({self.name(event)})", NONE, "a finite number")
        return distances[: self.num_workers]
