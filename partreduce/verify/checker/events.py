"""The event graph of an iteration gap: which worker waits for which, and by how many rounds events can be ahead.

Worker v has three events: v is its *enter* (of a round), n + v its *send*, 2n + v its *reduce*. N(x) counts how often
event x has happened; all counts start at 0. A *need* of x lists sources y, a number of tokens and a number `spare`: x
may happen for the (N+1)-th time when N + 1 ≤ N(y) + tokens holds for all sources but `spare` of them. The needs below
are what the program is assumed to obey:

| need | for | sources | tokens | spare |
|---|---|---|---|---|
| send v | every v | enter v | 1 | 0 |
| reduce v | every v | send v | 0 | 0 |
| enter v | every v | reduce v | 0 | 0 |
| reduce v | every v | send u, all in-neighbors u | staleness | backup of v |
| send u (NOTIFY-ACK) | every edge (u, v) | reduce v | 1 | 0 |
| enter u (token queues) | every edge (u, v) | enter v | max_ig ≥ 1 | 0 |

A worker that *skips* d rounds enters all of them at once. Count their updates as sent and their reduces as done at that
instant: it took d tokens of each out-neighbor, and it has the updates that the last of these reduces needs, of round k
+ d − 1 less `staleness` or newer; a worker that sent one of those counts as having sent all before. So the counts obey
the needs above, and the theorems below hold. A skip passes no out-neighbor: each update that it leaves out is of a
round that all workers that could reduce the update have left. A waiting worker therefore waits for an event that has
not happened.

**No worker waits for ever.** Needs without tokens lead from a send to a reduce to an enter, and never back. Of the
events that have happened least often take the first in this order: all its needs are met.

**How far ahead.** Let D(x) ≥ 0 be defined for some events x, with D(enter j) = 0, and let every other such D(x) be the
smallest, over the needs of x, of the (spare+1)-th smallest D(y) + tokens over the sources y, those without a D being
infinite, and infinite where there are not so many. *Theorem:* N(x) ≤ N(enter j) + D(x) at every instant. It holds at
the start, where all counts are 0. An event at j's enter raises the right side only. When x happens, one of the spare +
1 sources y of that need with D(y) + tokens ≤ D(x) is not left out, so N(x) ≤ N(y) + tokens ≤ N(enter j) + D(y) + tokens
≤ N(enter j) + D(x). Such a D is what a search gives that settles the nearest event first, wherever it ends: all sources
of a need carry the same tokens, so the (spare+1)-th of them to settle is the one that lets the event happen.

**The bound is attained.** Keep j in round 0 and let all other workers run until no event can happen. The counts X then
solve the same equations, which have one solution: of the events with X(x) < D(x) take one with the smallest count and,
among those, the first of send, reduce, enter; the sources that stop it have smaller counts, or come before it, so
theirs are not below D, and D(x) ≤ X(x) after all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from .refusal import Work, require

MAX_WORKERS = 2**20
PLACE = "strategy.sync.iteration_gap"

Edges = Sequence[tuple[int, int, Fraction]]
"""The edges of a weighted graph, each as (target, source, weight)."""


class Need(NamedTuple):
    """A condition: `event` happens the k-th time only after all its sources but `spare` did k − `tokens` times."""

    event: int
    tokens: int
    spare: int


class EventGraph:
    """The events of n workers, v (enter a round), n + v (send), 2n + v (reduce), and what each waits for: its needs.

    `uses[y]` has the indices of the needs with event y as a source, that is, of those that wait for y.
    """

    def __init__(
        self,
        edges: Sequence[tuple[int, int]],
        backups: Sequence[int],
        *,
        staleness: int,
        max_ig: int | None,
        notify_ack: bool,
    ) -> None:
        """`edges` are (source, target) pairs; `backups` has the number of backup workers of each worker."""
        self.edges, self.num_workers = edges, (n := len(backups))
        self.needs: list[Need] = []
        self.uses: list[list[int]] = [[] for _ in range(3 * n)]
        self._bounds: dict[tuple[int, int], tuple[float, float]] = {}  # once a fact has asked for them
        senders: list[list[int]] = [[] for _ in range(n)]
        for v in range(n):
            self._add(n + v, [v], tokens=1)
            self._add(2 * n + v, [n + v], tokens=0)
            self._add(v, [2 * n + v], tokens=0)
        for u, v in edges:
            senders[v].append(n + u)
            if notify_ack:
                self._add(n + u, [2 * n + v], tokens=1)
            if max_ig is not None:
                self._add(u, [v], tokens=max_ig)
        for v, spare in enumerate(backups):
            self._add(2 * n + v, senders[v], tokens=staleness, spare=spare)

    def _add(self, event: int, sources: Sequence[int], *, tokens: int, spare: int = 0) -> None:
        for source in sources:
            self.uses[source].append(len(self.needs))
        self.needs.append(Need(event, tokens, spare))

    def leads(self, start: int, ends: Iterable[int], work: Work) -> dict[int, int]:
        """Return the most rounds that each event of `ends` can be ahead of worker `start`, unless it is unlimited."""
        settled: dict[int, int] = {}
        missing = set(ends)
        left: dict[int, int] = {}  # of a need, the sources that must settle before it lets its event happen
        heap = [(0, start)]
        while heap and missing:
            distance, event = heappop(heap)
            if event in settled:
                continue
            settled[event] = distance
            missing.discard(event)
            work.spend(40 * (1 + len(self.uses[event])))
            for number in self.uses[event]:
                need = self.needs[number]
                left[number] = left.get(number, need.spare + 1) - 1
                if left[number] == 0:
                    heappush(heap, (distance + need.tokens, need.event))
        return {end: settled[end] for end in ends if end in settled}

    def bounds(self, work: Work) -> dict[tuple[int, int], tuple[float, float]]:
        """Return for every edge (u, v), in order, the most Round(u) − Round(v) and Round(v) − Round(u), or infinity.

        The first is finite, because the reader requires that update queues have a bound (`require_fit`).
        """
        if not self._bounds:
            neighbors: list[set[int]] = [set() for _ in range(self.num_workers)]
            for u, v in self.edges:
                neighbors[u].add(v)
                neighbors[v].add(u)
            leads = [self.leads(v, near, work) for v, near in enumerate(neighbors)]
            self._bounds.update({(u, v): (leads[v][u], leads[u].get(v, inf)) for u, v in self.edges})
        return self._bounds


class KeptGap(NamedTuple):
    """The settings of an iteration gap in the file; `backup` is one number for each worker, or one for all."""

    max_ig: int | None
    staleness: int
    backup: int | list[int]
    notify_ack: bool
    skip: dict[str, int] | None
    weights: str
    update_order: str

    @property
    def has_backup(self) -> bool:
        """Return whether some worker's reduce may leave out the update of an in-neighbor."""
        return any(self.backup) if isinstance(self.backup, list) else self.backup > 0

    @property
    def takes_all(self) -> bool:
        """Return whether every reduce averages the update of its own step from every in-neighbor.

        If so, claims about matrices hold. Otherwise averaged updates are decided at run time, and there is no matrix.
        """
        return not self.staleness and not self.has_backup  # a skip goes with either

    def backups(self, num_workers: int) -> list[int]:
        """Return the number of backup workers of each worker."""
        return self.backup if isinstance(self.backup, list) else [self.backup] * num_workers

    def require_fit(self, num_workers: int, edges: Edges) -> None:
        """Raise a Refusal if the setting, or this graph with it, is outside the premises of the theorems in this file.

        If all updates are averaged, the file's weights must be those that the program uses, since claims are about
        them. No worker may get ahead of an out-neighbor without limit, since no queue would be long enough: token
        queues prevent that, or a path back over every edge whose update no reduce leaves out. A worker that skips takes
        tokens for the skipped rounds, leaves updates out, and acknowledges none of them.
        """
        has_tokens = self.max_ig is not None
        require(num_workers <= MAX_WORKERS, PLACE, f"over {MAX_WORKERS} workers")
        require(self.max_ig != 0, f"{PLACE}.max_ig", "must be an integer 1..2147483647")
        require(
            self.takes_all or not self.notify_ack, PLACE, "notify_ack goes with neither staleness nor backup workers"
        )
        require(has_tokens or not self.skip, PLACE, "skip needs max_ig")
        require(has_tokens or not self.has_backup, PLACE, "backup needs max_ig")
        require(not self.skip or not self.takes_all, PLACE, "skip goes with backup or staleness")
        backups, number = self.backups(num_workers), Counter(target for target, _, _ in edges)
        fits = len(backups) == num_workers and all(spare <= number[v] for v, spare in enumerate(backups))
        require(fits, f"{PLACE}.backup", "1 number, or 1 a worker, and none above its in-neighbors")
        is_uniform = all(weight * (number[target] + 1) == 1 for target, _, weight in edges)
        is_told = self.weights == "graph" or not self.takes_all or is_uniform
        require(is_told, f"{PLACE}.weights", "is uniform; the weights of the round are others")
        is_safe = has_tokens or _leads_back(edges)
        require(is_safe, "strategy.rounds[0]", "without max_ig a path leads back over every edge")


def _leads_back(edges: Edges) -> bool:
    """Return whether a path leads from the target of every edge back to its source.

    This holds if and only if every worker reaches exactly the workers that reach it. For the "if": call their set S; an
    edge with one end in S has both in S, and its ends reach each other by way of the worker.
    """
    onward: dict[int, set[int]] = {}
    backward: dict[int, set[int]] = {}
    for target, source, _ in edges:
        onward.setdefault(source, set()).add(target)
        backward.setdefault(target, set()).add(source)
    seen: set[int] = set()
    for start in onward:
        if start not in seen:
            reached = _reachable(start, onward)
            if reached != _reachable(start, backward):
                return False
            seen |= reached
    return True


def _reachable(start: int, following: dict[int, set[int]]) -> set[int]:
    reached, waiting = {start}, [start]
    while waiting:
        fresh = following.get(waiting.pop(), set()) - reached
        reached |= fresh
        waiting += fresh
    return reached
