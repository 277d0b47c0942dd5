"""The contestants: every way of synchronizing that the lab knows, as `contestants.toml` lists them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lab.setting import Setting
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.document.strategies import load_strategy
from partreduce.topo.graphs import Graph
from partreduce.topo.graphs.named import clustered_graph, double_ring, ring, ring_based
from partreduce.topo.graphs.weights import weigh
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Transport
from partreduce.topo.strategies.neighbor import NeighborAveraging

Make = Callable[[Cluster, Setting], Schedule | None]

EVERY_STEP = "All-Reduce"
"""The family of exact averaging in every step, whose best member is the baseline."""
RECOMMENDED = "planner's recommendation"
SERVER, STANDARD = "BSP server", "standard"
LISTED: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MADE_OF = ("design", "graph", "paced", "parameters", "planned", "strategy", "sums")
BY_CLUSTER: dict[str, Callable[[Cluster], Any]] = {
    "$first of each node": lambda cluster: [cluster.workers_of(node)[0] for node in range(cluster.num_nodes)],
    "$every other": lambda cluster: list(range(0, cluster.num_workers, 2)),
    "$half": lambda cluster: max(2, cluster.num_workers // 2),
    "$all but one": lambda cluster: cluster.num_workers - 1,
    "$none": lambda _: None,
}
GRAPHS: dict[str, Callable[[Cluster], Graph]] = {
    "ring": lambda cluster: ring(cluster.num_workers),
    "ring-based": lambda cluster: ring_based(cluster.num_workers),
    "double-ring": lambda cluster: double_ring(cluster.num_workers),
    "machines b": lambda cluster: clustered_graph(_nodes(cluster), ends="gateway"),
    "machines c": lambda cluster: clustered_graph(_nodes(cluster), ends="spread"),
}
"""The last two are settings b and c of Hop's Figure 21, adapted: in b one worker of a machine has both its links."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way of synchronizing.

    `make` returns the schedule for a cluster and a setting, None if the contestant would repeat another one. `how` is
    `partreduce` or a baseline (worker.KINDS), `algorithm` that of its sums, for the prediction, and `options` are
    arguments of the optimizer or the baseline. `grid` names its learning rates (setting.GRID); `twin` is a contestant
    with the same mathematics, whose steps and learning rate this one uses. `core` ones run in the short lab. `once`
    ones, which are slow on a slow link, run once with twice the time, and not in settings with slow workers unless
    named. `named_only` ones run only if named.
    """

    name: str
    family: str
    make: Make | None = None
    how: str = "partreduce"
    free_running: bool = False
    grid: str = "workers"
    twin: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "ring"
    core: bool = False
    once: bool = False
    named_only: bool = False


def contestants(planned: Callable[..., Schedule | None] = lambda *_, **__: None) -> list[Contestant]:
    """Return all contestants in the order of the table; `planned` makes the recommendation, with `coded` or without."""
    coded = partial(planned, coded=True)
    recommended = {"plain": planned, "codec": coded, "codec left out": partial(_without_codec, coded)}
    return [_contestant(row, recommended) for row in _rows()]


def hop_name(graph: str, gap: str) -> str:
    return f"Hop {graph}, {gap}"


def _rows() -> Iterator[dict[str, Any]]:
    yield from LISTED["contestant"]
    for graph in GRAPHS:
        for gap in LISTED["gap"]:
            if graph in gap["graphs"]:
                named = {"name": hop_name(graph, gap["name"]), "family": "Hop", "named_only": True}
                yield {**named, "graph": graph, "strategy": {"sync": {"iteration_gap": gap["sync"]}}}
    for quorum in LISTED["quorum"]:
        named = {"name": f"eager {quorum['name']}", "family": "eager-SGD", "named_only": True, "free_running": True}
        yield {**named, "design": "allreduce", "strategy": {"sync": {"partial": quorum["sync"]}}}


def _contestant(row: dict[str, Any], recommended: dict[str, Make]) -> Contestant:
    """Return the contestant of a row of the table.

    Its schedule is a recommendation (`planned`), an entry of the catalogue (`design`, with `parameters`) or a `graph`,
    with some members of its `strategy` replaced; or a strategy alone. With hierarchical `sums` groups across nodes add
    up inside nodes first. With `paced` slow workers take fewer steps per round, as many as fit into the others' time;
    its value is the slowest worker's number of steps.
    """
    fields = {key: value for key, value in row.items() if key in Contestant.__slots__}
    if unknown := set(row) - set(fields) - set(MADE_OF):
        raise ValueError(
            f"contestants.toml: {row['name']}: {unknown.pop()!r} is none of {', '.join(MADE_OF)}, nor a field"
        )
    strategy = row.get("strategy", {})
    if "sums" in row:
        fields |= {"algorithm": row["sums"], "options": {"algorithm": row["sums"]}}
    elif "algorithm" in strategy.get("transport", {}):
        fields["algorithm"] = strategy["transport"]["algorithm"]
    if "planned" in row:
        fields["make"] = recommended[row["planned"]]
    elif strategy or "design" in row:
        fields["make"] = partial(_schedule, row)
    return Contestant(**fields)


def _schedule(row: dict[str, Any], cluster: Cluster, setting: Setting) -> Schedule | None:
    from partreduce.schedulers.registry import build

    changes = _resolve(row.get("strategy", {}), cluster)
    if changes.get("transport", {}).get("algorithm") == "hierarchical" and cluster.workers_per_node == 1:
        return None  # says nothing new
    if "paced" in row:
        slow = dict(setting.slow)
        fast = row["paced"] * round(max([1.0, *slow.values()]))
        if fast == row["paced"]:
            return None
        worker_steps = [max(1, round(fast / slow.get(rank, 1.0))) for rank in range(cluster.num_workers)]
        changes = {"averaging": "step-normalized", **changes, "steps_per_round": worker_steps}
    base: dict[str, Any] = {}
    if "design" in row:
        base = dump_schedule(build(row["design"], cluster, **row.get("parameters", {})))["strategy"]
    elif "graph" in row:
        weighed = NeighborAveraging(rounds=(weigh(GRAPHS[row["graph"]](cluster)),))
        base = dump_schedule(Schedule("base", cluster, weighed))["strategy"]
    name = row["name"].lower().replace(", ", "-").replace(" ", "-")
    return Schedule(name, cluster, load_strategy({**base, **changes}, cluster, row["name"]))


def _resolve(value: Any, cluster: Cluster) -> Any:
    if isinstance(value, dict):
        return {key: _resolve(inner, cluster) for key, inner in value.items()}
    return BY_CLUSTER[value](cluster) if isinstance(value, str) and value.startswith("$") else value


def _without_codec(make: Make, cluster: Cluster, setting: Setting) -> Schedule | None:
    schedule = make(cluster, setting)
    if schedule is None:
        return None
    strategy: Any = schedule.strategy
    coded = strategy.transport
    transport = Transport(algorithm=coded.algorithm, gradient_buckets=coded.gradient_buckets)
    return Schedule(f"{schedule.name}-plain", schedule.cluster, replace(strategy, transport=transport))


def _nodes(cluster: Cluster) -> list[tuple[int, ...]]:
    return [cluster.workers_of(node) for node in range(cluster.num_nodes)]
