"""Contestants whose sums do not wait for all: eager-SGD's variants as published, and those that keep all gradients.

As published a gradient counts for the sum of its own call, and the newest result replaces older ones. Here a late one
counts for the open round, and each result is applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.lab.setting import Setting
    from partreduce.topo.cluster import Cluster

HALF, ALL_BUT_ONE = 0, -1
"""Quorums of half of the workers and of all but one, however many there are."""
SEED = 5
"""Of who starts a round under `majority`."""
FAR = 16
"""A staleness bound that hardly ever binds."""

PUBLISHED: dict[str, Any] = {"count": "call", "missed": "latest"}
BY_CALL: dict[str, Any] = {"count": "call"}
SETTINGS: dict[str, dict[str, Any]] = {
    "solo": {"quorum": "solo"},
    f"solo, up to {FAR} late": {"quorum": "solo", "staleness": FAR},
    "solo, by call": {"quorum": "solo", **BY_CALL},
    "solo, as published": {"quorum": "solo", **PUBLISHED},
    "majority": {"quorum": "majority", "seed": SEED},
    "majority, by call": {"quorum": "majority", "seed": SEED, **BY_CALL},
    "majority, as published": {"quorum": "majority", "seed": SEED, **PUBLISHED},
    "half": {"quorum": HALF},
    "half, by call": {"quorum": HALF, **BY_CALL},
    "half, latest": {"quorum": HALF, "missed": "latest"},
    "all but one": {"quorum": ALL_BUT_ONE},
    "all but one, by call": {"quorum": ALL_BUT_ONE, **BY_CALL},
}
"""Settings by name; a contestant's is `eager NAME`."""


def name_of(setting: str) -> str:
    """A contestant's name."""
    return f"eager {setting}"


def quorum_of(name: str, num_workers: int) -> Quorum:
    """One of the settings, for so many workers."""
    fields = SETTINGS[name]
    numbers = {HALF: max(2, num_workers // 2), ALL_BUT_ONE: num_workers - 1}
    quorum = numbers.get(fields["quorum"], fields["quorum"])
    return Quorum(**{**fields, "quorum": quorum})


def entries() -> list[dict[str, Any]]:
    """Fields of the contestants, in the order of the table; they run where they are named."""
    common = {"family": "eager-SGD", "free_running": True, "named_only": True}
    return [{"name": name_of(name), "make": _make(name), **common} for name in SETTINGS]


def _make(name: str) -> Callable[[Cluster, Setting], Schedule]:
    title = name_of(name).replace(", ", "-").replace(" ", "-")
    return lambda cluster, _: Schedule(title, cluster, AllReduce(when=quorum_of(name, cluster.num_workers)))
