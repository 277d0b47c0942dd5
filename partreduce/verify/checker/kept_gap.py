"""Reading `sync.iteration_gap`: neighbors that go on by themselves, and how far apart they may be (Hop's settings).

Without staleness, backup workers and skips every reduce takes the update of its own step of every in-neighbor. Then
round after round is the recursion with the file's weights, whichever worker is ahead, and claims about matrices hold.
With them what a reduce takes is decided while the job runs: there is no matrix, and only the claims on Hop's events are
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from .events import EventGraph
from .refusal import require
from .strict_json import as_choice, as_integer, as_integers, as_object

LIMIT = 2**31
MAX_WORKERS = 2**20
MAX_STALENESS = 2**16

DEFAULTS: dict[str, object] = {
    "max_ig": None,
    "staleness": 0,
    "backup": 0,
    "notify_ack": False,
    "skip": None,
    "weights": "graph",
    "update_order": "adapt_then_combine",
}
CHOICES: dict[str, tuple[object, ...]] = {
    "notify_ack": (False, True),
    "weights": ("graph", "uniform", "iteration"),
    "update_order": ("adapt_then_combine", "dpsgd"),
}


class KeptGap(NamedTuple):
    """A setting as read: `backup` has a number for each worker, or is one for all, `skip` (limit, trigger, behind)."""

    max_ig: int | None
    staleness: int
    backup: int | list[int]
    notify_ack: bool
    skip: tuple[int, int, int] | None
    weights: str
    update_order: str

    @property
    def has_backup(self) -> bool:
        """Whether some worker may do without an update."""
        return any(self.backup) if isinstance(self.backup, list) else self.backup > 0

    @property
    def takes_all(self) -> bool:
        """Whether every reduce takes the update of its own step of every in-neighbor."""
        return not self.staleness and not self.has_backup  # a skip goes with either

    def backups(self, num_workers: int) -> list[int]:
        """A number for each worker."""
        return self.backup if isinstance(self.backup, list) else [self.backup] * num_workers


def read_gap(raw: object, place: str) -> KeptGap:
    """A closed object; members that equal their default are left out of it, in place."""
    members = as_object(raw, place, (), DEFAULTS)
    for name, choices in CHOICES.items():
        as_choice(members.get(name, DEFAULTS[name]), f"{place}.{name}", choices)
    if members.get("max_ig") is not None:
        as_integer(members["max_ig"], f"{place}.max_ig", 1, LIMIT)
    staleness = as_integer(members.get("staleness", 0), f"{place}.staleness", 0, MAX_STALENESS)
    given = members.get("backup", 0)
    backup = as_integers(given if isinstance(given, list) else [given], f"{place}.backup", 0, LIMIT)
    skip = _read_skip(members["skip"], f"{place}.skip") if members.get("skip") is not None else None
    for name, default in DEFAULTS.items():
        if name in members and members[name] == default:
            del members[name]
    value = DEFAULTS | members
    gap = KeptGap(
        value["max_ig"],  # type: ignore[arg-type]
        staleness,
        backup if isinstance(given, list) else backup[0],
        value["notify_ack"] is True,
        skip,
        str(value["weights"]),
        str(value["update_order"]),
    )
    is_lossless = gap.takes_all or not gap.notify_ack
    require(is_lossless, place, "notify_ack goes with neither staleness, nor backup workers, nor skips")
    require(staleness or gap.weights != "iteration", place, "iteration goes with staleness")
    require(gap.max_ig is not None or not skip, place, "skip needs max_ig")
    require(gap.max_ig is not None or not gap.has_backup, place, "backup needs max_ig")
    require(not skip or staleness or gap.has_backup, place, "skip goes with backup or staleness")
    return gap


def _read_skip(raw: object, place: str) -> tuple[int, int, int]:
    skip = as_object(raw, place, ("limit",), ("trigger", "behind"))
    trigger, behind = (as_integer(skip.get(name, 2), f"{place}.{name}", 2, LIMIT) for name in ("trigger", "behind"))
    limit = as_integer(skip["limit"], f"{place}.limit", trigger, LIMIT)
    for name, value in (("trigger", trigger), ("behind", behind)):
        if value == 2:
            skip.pop(name, None)
    return limit, trigger, behind


def event_graph(gap: KeptGap, num_workers: int, edges: Sequence[tuple[int, int, Fraction]]) -> EventGraph:
    """The events of the workers of a round, whose `edges` are (target, source, weight)."""
    return EventGraph(
        sorted((source, target) for target, source, _ in edges),
        gap.backups(num_workers),
        staleness=gap.staleness,
        max_ig=gap.max_ig,
        notify_ack=gap.notify_ack,
    )


def require_fit(gap: KeptGap, num_workers: int, edges: Sequence[tuple[int, int, Fraction]]) -> None:
    """Refuse a graph that a setting does not fit.

    As many backup workers as in-neighbors at most. Where all updates count the same and all are taken, the file's
    weights must say so: claims speak about them. And no worker may get ahead of an out-neighbor without limit, for no
    queue would be long enough: token queues see to that, or a way back over every edge.

    Raises:
        Refusal: the first thing that does not fit.
    """
    place = "strategy.sync.iteration_gap"
    require(num_workers <= MAX_WORKERS, place, f"over {MAX_WORKERS} workers")
    backups, number = gap.backups(num_workers), Counter(target for target, _, _ in edges)
    fits = len(backups) == num_workers and all(spare <= number[v] for v, spare in enumerate(backups))
    require(fits, f"{place}.backup", "1 number, or 1 a worker, and none above its in-neighbors")
    is_uniform = all(weight * (number[target] + 1) == 1 for target, _, weight in edges)
    is_told = gap.weights == "graph" or not gap.takes_all or is_uniform
    require(is_told, f"{place}.weights", "is uniform; the weights of the round are others")
    if gap.max_ig is None:
        parts = _strong_parts(num_workers, edges)
        way_back = all(parts[target] == parts[source] for target, source, _ in edges)
        require(way_back, "strategy.rounds[0]", "without max_ig a path leads back over every edge")


def _strong_parts(num_workers: int, edges: Sequence[tuple[int, int, Fraction]]) -> list[int]:
    """A number for every worker, the same for two iff each is reached from the other (Kosaraju; Sharir 1981)."""
    onward: list[list[int]] = [[] for _ in range(num_workers)]
    backward: list[list[int]] = [[] for _ in range(num_workers)]
    for target, source, _ in edges:
        onward[source].append(target)
        backward[target].append(source)
    order: list[int] = []  # by the time at which a depth-first search leaves a worker
    seen = [False] * num_workers
    for start in range(num_workers):
        path = [(start, iter(onward[start]))] if not seen[start] else []
        seen[start] = True
        while path:
            worker, targets = path[-1]
            fresh = next((target for target in targets if not seen[target]), None)
            if fresh is None:
                order.append(worker)
                path.pop()
            else:
                seen[fresh] = True
                path.append((fresh, iter(onward[fresh])))
    part = [-1] * num_workers
    for start in reversed(order):
        waiting = [start] if part[start] < 0 else []
        while waiting:
            worker = waiting.pop()
            part[worker] = start
            waiting += [source for source in backward[worker] if part[source] < 0]
    return part
