"""Reading `when.gap`: neighbours that go on by themselves, and how far apart they may be (Hop's settings).

Without staleness, backup workers and skips every reduce takes the update of its own step of every in-neighbour. Then
round after round is the recursion with the file's weights, whoever is ahead, and claims about matrices hold. With them
what a reduce takes is decided while the job runs: there is no matrix, and only the claims on Hop's events are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .gaps.events import EventGraph
from .refusal import require
from .strict_json import as_choice, as_integer, as_integers, as_object

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

LIMIT = 2**31

DEFAULTS: dict[str, object] = {
    "max_ig": None,
    "staleness": 0,
    "backup": 0,
    "notify_ack": False,
    "skip": None,
    "reduce": "received",
    "weights": "graph",
    "inquire": False,
    "order": "serial",
}
CHOICES: dict[str, tuple[object, ...]] = {
    "notify_ack": (False, True),
    "reduce": ("received", "newest"),
    "weights": ("graph", "uniform", "iteration"),
    "inquire": (False, True),
    "order": ("serial", "parallel"),
}


class KeptGap(NamedTuple):
    """A setting as read; `backup` has a number for each worker, or is one for all. `skip` is (limit, trigger)."""

    max_ig: int | None
    staleness: int
    backup: int | list[int]
    notify_ack: bool
    skip: tuple[int, int] | None
    weights: str
    order: str

    @property
    def has_backup(self) -> bool:
        """Whether some worker may do without an update."""
        return any(self.backup) if isinstance(self.backup, list) else self.backup > 0

    @property
    def takes_all(self) -> bool:
        """Whether every reduce takes the update of its own step of every in-neighbour."""
        return not self.staleness and not self.has_backup and self.skip is None


def read_gap(raw: object, place: str) -> KeptGap:
    """A closed object; members that equal their default are left out of it, in place."""
    members = as_object(raw, place, (), DEFAULTS)
    for name, choices in CHOICES.items():
        as_choice(members.get(name, DEFAULTS[name]), f"{place}.{name}", choices)
    if members.get("max_ig") is not None:
        as_integer(members["max_ig"], f"{place}.max_ig", 1, LIMIT)
    staleness = as_integer(members.get("staleness", 0), f"{place}.staleness", 0, LIMIT)
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
        str(value["order"]),
    )
    is_lossless = gap.takes_all or not gap.notify_ack
    require(is_lossless, place, "notify_ack goes with neither staleness, nor backup workers, nor skips")
    needs_staleness = value["reduce"] == "newest" or gap.weights == "iteration"
    require(staleness or not needs_staleness, place, "newest and iteration go with staleness")
    require(gap.max_ig is not None or not (skip or value["inquire"]), place, "skip and inquire need max_ig")
    require(gap.max_ig is not None or not gap.has_backup, place, "backup needs max_ig")
    require(not skip or staleness or gap.has_backup, place, "skip goes with backup or staleness")
    require(not value["inquire"] or gap.has_backup, place, "inquire goes with backup")
    return gap


def _read_skip(raw: object, place: str) -> tuple[int, int]:
    skip = as_object(raw, place, ("limit",), ("trigger",))
    trigger = as_integer(skip.get("trigger", 2), f"{place}.trigger", 2, LIMIT)
    limit = as_integer(skip["limit"], f"{place}.limit", trigger, LIMIT)
    if trigger == 2:
        skip.pop("trigger", None)
    return limit, trigger


def event_graph(gap: KeptGap, num_workers: int, edges: Sequence[tuple[int, int, Fraction]]) -> EventGraph:
    """The events of the workers of a round, whose `edges` are (target, source, weight).

    Raises:
        Refusal: the setting does not fit the graph.
    """
    spare = gap.backup if isinstance(gap.backup, list) else [gap.backup] * num_workers
    setting: dict[str, Any] = {"staleness": gap.staleness, "backup": spare, "notify_ack": int(gap.notify_ack)}
    if gap.max_ig is not None:
        setting["max_ig"] = gap.max_ig
    if gap.skip is not None:
        setting["skip"] = list(gap.skip)
    listed = sorted([source, target] for target, source, _ in edges)
    return EventGraph({"num_workers": num_workers, "edges": listed}, setting)


def require_own_weights(gap: KeptGap, num_workers: int, edges: Sequence[tuple[int, int, Fraction]]) -> None:
    """Where all updates count the same and all are taken, the file's weights must say so: claims speak about them.

    Raises:
        Refusal: they do not.
    """
    if gap.weights == "graph" or not gap.takes_all:
        return
    number = [1] * num_workers
    for target, _, _ in edges:
        number[target] += 1
    is_uniform = all(weight * number[target] == 1 for target, _, weight in edges)
    require(is_uniform, "strategy.when.gap.weights", "is uniform; the weights of the round are others")
