"""Contestants whose sums do not wait for all: eager-SGD's variants as published, and those that keep all gradients.

As published a gradient counts for the sum of its own call, and the newest result replaces older ones. Here a late one
counts for the open round, and each result is applied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from partreduce.schedulers.registry import build
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
GROUPS: dict[str, Quorum] = {
    "quorum 2": Quorum(quorum=2, staleness=8),
    "quorum 3": Quorum(quorum=3, staleness=8),
}
"""Of the groups of `node-then-all`; a contestant's name is `node-then-all 15, NAME`."""
NODE_ROUNDS = 15


def name_of(setting: str) -> str:
    """A contestant's name."""
    return f"eager {setting}"


def quorum_of(name: str, num_workers: int) -> Quorum:
    """One of the settings, for so many workers."""
    fields = SETTINGS[name]
    numbers = {HALF: max(2, num_workers // 2), ALL_BUT_ONE: num_workers - 1}
    quorum = numbers.get(fields["quorum"], fields["quorum"])
    return Quorum(**{**fields, "quorum": quorum})


def group_name(setting: str) -> str:
    """A contestant's name whose groups do not wait for all their members."""
    return f"node-then-all {NODE_ROUNDS}, {setting}"


def entries() -> list[dict[str, Any]]:
    """Fields of the contestants, in the order of the table; they run where they are named."""
    everybody = [{"name": name_of(name), "make": _make(name)} for name in SETTINGS]
    groups = [{"name": group_name(name), "make": _groups(name)} for name in GROUPS]
    common = {"family": "eager-SGD", "free_running": True, "named_only": True}
    return [{**fields, **common} for fields in (*everybody, *groups)]


def _groups(name: str) -> Callable[[Cluster, Setting], Schedule]:
    def make(cluster: Cluster, _: Setting) -> Schedule:
        schedule = build("node-then-all", cluster, node_rounds=NODE_ROUNDS)
        strategy: Any = replace(schedule.strategy, when=GROUPS[name])  # type: ignore[type-var]
        return Schedule(f"{schedule.name}-{name.replace(' ', '-')}", cluster, strategy)

    return make


def _make(name: str) -> Callable[[Cluster, Setting], Schedule]:
    title = name_of(name).replace(", ", "-").replace(" ", "-")
    return lambda cluster, _: Schedule(title, cluster, AllReduce(when=quorum_of(name, cluster.num_workers)))
