"""History: from the steps that are seen again and again, how fast each worker goes and how far apart they were."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partreduce.runtime.watch.published_progress import GENERATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partreduce.topo.schedule import Schedule
    from partreduce.verify.gaps.paper import Matrix

WINDOW_SECONDS = 5.0
LEAST_CHANGES = 4
"""Of slow workers so many changes count, however long they took."""


@dataclass(slots=True)
class Speed:
    """The steps of one worker over the last seconds."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)
    """Time and step, one entry for each change that was seen."""

    def add(self, now: float, step: int) -> None:
        if self.seen and step < self.seen[-1][1]:
            self.seen.clear()  # it went on from an earlier checkpoint
        if not self.seen or step > self.seen[-1][1]:
            self.seen.append((now, step))
        while len(self.seen) > LEAST_CHANGES and now - self.seen[0][0] > WINDOW_SECONDS:
            self.seen.popleft()

    def steps_per_second(self, now: float) -> float | None:
        """Over the changes that are remembered, and over the time since the last where that is unusually long."""
        if len(self.seen) < 2:
            return None
        (start, first), (end, last) = self.seen[0], self.seen[-1]
        usual = (end - start) / (len(self.seen) - 1)
        if now - end > 2 * usual:
            end = now
        return (last - first) / (end - start)


@dataclass(frozen=True, slots=True)
class Gap:
    """The steps by which a worker is ahead of a neighbour, and the most that the proof allows (None: no limit)."""

    worker: int
    neighbor: int
    steps: int
    bound: int | None

    def __str__(self) -> str:
        return f"{self.steps}/{'-' if self.bound is None else self.bound}"


class Gaps:
    """The gaps between neighbours, now and the largest so far.

    Args:
        neighbors: of each worker, those that it sends to or hears from.
        bounds: entry [i][j] is the most that worker i can be ahead of worker j.
    """

    def __init__(self, neighbors: Sequence[Sequence[int]], bounds: Matrix) -> None:
        self._neighbors, self._bounds = neighbors, bounds
        self.now: list[Gap | None] = [None] * len(neighbors)
        """Of each worker, the gap to the neighbour that it is farthest from, ahead of it or behind."""
        self.largest: list[Gap | None] = [None] * len(neighbors)

    def add(self, first: Sequence[int | None], then: Sequence[int | None]) -> None:
        """Two readings of `Board.places`: what is read first minus what is read then is never above the truth."""
        for worker, neighbors in enumerate(self._neighbors):
            begun = [other for other in neighbors if _are_comparable(worker, other, first, then)]
            self.now[worker] = now = self._farthest(worker, begun, first, then) if begun else None
            if now is None:
                continue
            largest = self.largest[worker]
            if largest is None or now.steps > largest.steps:
                self.largest[worker] = now

    def _farthest(
        self, worker: int, others: Sequence[int], first: Sequence[int | None], then: Sequence[int | None]
    ) -> Gap:
        """The largest gap between a worker and one of these, ahead or behind; asked often, so it has to be quick."""
        behind, ahead = [then[other] or 0 for other in others], [first[other] or 0 for other in others]
        least, most = min(behind), max(ahead)
        lead, lag = (first[worker] or 0) - least, most - (then[worker] or 0)
        if lead >= lag:
            other = others[behind.index(least)]
            return Gap(worker, other, lead, self._bounds[worker][other])
        other = others[ahead.index(most)]
        return Gap(other, worker, lag, self._bounds[other][worker])


def _are_comparable(worker: int, other: int, first: Sequence[int | None], then: Sequence[int | None]) -> bool:
    """Whether both have begun, and neither is about to go back to an earlier step."""
    places = (first[worker], first[other], then[worker], then[other])
    return None not in places and len({(place or 0) // GENERATION for place in places}) == 1


def gaps_of(schedule: Schedule) -> Gaps | None:
    """What keeps the gaps of a schedule that bounds them, with the exact bounds; None for other schedules."""
    if schedule.strategy.protocol != "gap":
        return None
    from partreduce.graph_input import graph_of
    from partreduce.topo.strategies.gap import Gap as Setting
    from partreduce.verify.gaps.exact import exact_bounds

    graph, setting = graph_of(schedule), schedule.strategy.when
    assert isinstance(setting, Setting), "the protocol says so"
    neighbors = [sorted({*sources, *targets}) for sources, targets in zip(graph.sources, graph.targets, strict=True)]
    return Gaps(neighbors, exact_bounds(graph, setting))
