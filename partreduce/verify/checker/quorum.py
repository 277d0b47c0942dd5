"""Reading `sync.partial`: rounds that start when enough workers have come, and what late gradients count for.

Which gradients a round sums is decided while the job runs. So there is no matrix and no phase to speak about, and only
the claims on rounds that a quorum starts are read (`facts/quorum.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .refusal import require
from .strict_json import as_choice, as_integer, as_object

LIMIT = 2**31
"""No number of workers, results, microseconds or rounds reaches this, and no seed 2^53."""

DEFAULTS: dict[str, object] = {
    "count": "open-round",
    "missed": "each",
    "staleness": 4,
    "grace": 0,
    "synchronize_every": 0,
    "seed": 0,
}
CHOICES: dict[str, tuple[object, ...]] = {
    "count": ("open-round", "call"),
    "missed": ("each", "latest"),
}


class StartedRounds(NamedTuple):
    """A setting as read: how many workers start a round (1: one of them), and what bounds how late gradients are.

    `capacity` is how many results may wait for a worker, 0 where the newest replaces the one before it; then models are
    averaged every `synchronized` rounds, 0 for never. `missed` is what becomes of results that a worker is late for.
    """

    needed: int
    capacity: int
    synchronized: int
    missed: str


def read_quorum(raw: object, place: str, num_workers: int) -> StartedRounds:
    """A closed object; members that equal their default are left out of it, in place."""
    members = as_object(raw, place, ("quorum",), DEFAULTS)
    quorum = members["quorum"]
    if isinstance(quorum, str):
        as_choice(quorum, f"{place}.quorum", ("solo", "majority"))
    else:
        as_integer(quorum, f"{place}.quorum", 2, num_workers)
    for name, choices in CHOICES.items():
        as_choice(members.get(name, DEFAULTS[name]), f"{place}.{name}", choices)
    for name, least, high in (("staleness", 1, LIMIT), ("grace", 0, LIMIT), ("synchronize_every", 0, LIMIT)):
        as_integer(members.get(name, DEFAULTS[name]), f"{place}.{name}", least, high)
    as_integer(members.get("seed", 0), f"{place}.seed", 0, 2**53)
    for name, default in DEFAULTS.items():
        if name in members and members[name] == default:
            del members[name]
    value: dict[str, Any] = DEFAULTS | members
    latest = value["missed"] == "latest"
    require("staleness" not in members or not latest, place, "staleness goes with missed each")
    require("synchronize_every" not in members or latest, place, "synchronize_every goes with missed latest")
    require("seed" not in members or quorum == "majority", place, "seed goes with the quorum majority")
    return StartedRounds(
        1 if isinstance(quorum, str) else quorum,
        0 if latest else value["staleness"],
        value["synchronize_every"],
        value["missed"],
    )
