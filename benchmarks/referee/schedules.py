"""Schedules of every kind and setting on 2 nodes of 2 workers, as they stand in files."""

from __future__ import annotations

from typing import Any

RING = [[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 2], [3, 0], [0, 3]]
ROUND = {"edges": RING, "weights": "1/4"}
UNIFORM = {"edges": RING, "weights": "1/3"}
ONE_WAY = {"edges": [[0, 1], [1, 2], [2, 3], [3, 0]], "weights": "1/2"}
OTHER_WAY = {"edges": [[0, 2], [2, 0], [1, 3], [3, 1]], "weights": "1/2"}
GROUPS = [[{"group": [0, 1]}, {"group": [2, 3]}], [{"group": [1, 2], "relaxation": "1/2"}], [{"group": [0, 3]}]]
PAIRS_THEN_ALL = [[{"group": [0, 1]}, {"group": [2, 3]}], [{"group": [0, 1, 2, 3]}]]
RULE = [[{"local": [0], "across": [0]}], [{"local": [0, 1], "across": []}]]
RULE_OF_ALL = [{"local": [0, 1], "across": [0]}]
OUTER = {"lr": "7/10", "momentum": "9/10", "nesterov": True}
TABLE = {"parameter": "table.weight", "rows": 16, "columns": 4}


def _gap(**setting: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {"kind": "neighbor", "rounds": [ROUND], "sync": {"iteration_gap": setting}}


def _quorum(**setting: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {"kind": "allreduce", "sync": {"partial": setting}}


def _coded(**transport: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {"kind": "allreduce", "transport": transport}


def _rule(division: str, **setting: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {"kind": "dynamic_groups", "group_size": 2, "division": division, "seed": 5, **setting}


STRATEGIES: dict[str, dict[str, Any]] = {
    "allreduce": {"kind": "allreduce"},
    "allreduce steps per round 3": {"kind": "allreduce", "steps_per_round": 3},
    "allreduce worker steps": {"kind": "allreduce", "steps_per_round": [1, 2, 1, 3]},
    "allreduce worker steps normalized": {
        "kind": "allreduce",
        "steps_per_round": [1, 2, 1, 3],
        "averaging": "step-normalized",
    },
    "allreduce late": {"kind": "allreduce", "sync": {"delay": 1}},
    "allreduce late steps per round 3": {"kind": "allreduce", "steps_per_round": 3, "sync": {"delay": 1}},
    "allreduce pipeline": {"kind": "allreduce", "sync": {"pipeline": {}}},
    "allreduce pipeline wide": {
        "kind": "allreduce",
        "sync": {"pipeline": {"width": 3, "warm_up": 2, "drain": "drop", "total": "sum"}},
    },
    "allreduce merge": {"kind": "allreduce", "steps_per_round": 4, "sync": {"merge": {"steps": 1, "alpha": "1/2"}}},
    "allreduce hierarchical": _coded(algorithm="hierarchical"),
    "allreduce layers": _coded(gradient_buckets="per_layer"),
    "diloco": {"kind": "allreduce", "steps_per_round": 4, "payload": {"outer": OUTER}},
    "diloco fragments": {
        "kind": "allreduce",
        "steps_per_round": 4,
        "payload": {"outer": OUTER, "fragments": 2},
        "sync": {"merge": {"steps": 1, "alpha": "1/4"}},
    },
    "codec float16": _coded(codec="float16"),
    "codec bfloat16": _coded(codec="bfloat16"),
    "codec int8": _coded(codec="int8"),
    "codec int8 feedback": _coded(codec="int8", block=64, error_feedback=True),
    "codec int4": _coded(codec="int4", block=32),
    "codec int4 feedback": _coded(codec="int4", block=32, error_feedback=True),
    "codec float16 hierarchical": _coded(codec="float16", algorithm="hierarchical"),
    "codec int8 hierarchical": _coded(codec="int8", algorithm="hierarchical"),
    "codec int8 across nodes": _coded(codec="int8", algorithm="hierarchical", where="across-nodes"),
    "static": {"kind": "static", "phases": GROUPS},
    "static steps per round 2": {"kind": "static", "phases": GROUPS, "steps_per_round": 2},
    "static worker steps": {
        "kind": "static",
        "phases": GROUPS,
        "steps_per_round": [1, 2, 1, 1],
        "averaging": "step-normalized",
    },
    "static prologue": {"kind": "static", "phases": [*PAIRS_THEN_ALL, GROUPS[2]], "prologue": 1},
    "static late": {"kind": "static", "phases": GROUPS, "sync": {"delay": 1}},
    "static rule": {"kind": "static", "node_radices": [2], "phases": RULE},
    "static rule hierarchical": {
        "kind": "static",
        "node_radices": [2],
        "phases": [*RULE, RULE_OF_ALL],
        "transport": {"algorithm": "hierarchical"},
    },
    "static int8": {"kind": "static", "phases": PAIRS_THEN_ALL, "transport": {"codec": "int8"}},
    "static outer": {"kind": "static", "phases": PAIRS_THEN_ALL, "steps_per_round": 2, "payload": {"outer": OUTER}},
    "static outer params per worker": {
        "kind": "static",
        "phases": PAIRS_THEN_ALL,
        "payload": {"outer": {"lr": "1/2", "momentum": "1/4", "outer_params": "per_worker"}},
    },
    "static fragments": {"kind": "static", "phases": PAIRS_THEN_ALL, "steps_per_round": 2, "payload": {"fragments": 2}},
    "static failure plan": {"kind": "static", "phases": PAIRS_THEN_ALL},
    "static rule failure plan": {"kind": "static", "node_radices": [2], "phases": [*RULE, RULE_OF_ALL]},
    "neighbor": {"kind": "neighbor", "rounds": [ROUND]},
    "neighbor one way": {"kind": "neighbor", "rounds": [ONE_WAY]},
    "neighbor two rounds": {"kind": "neighbor", "rounds": [ROUND, OTHER_WAY], "steps_per_round": 2},
    "neighbor late": {"kind": "neighbor", "rounds": [ROUND], "sync": {"delay": 1}},
    "neighbor worker steps": {
        "kind": "neighbor",
        "rounds": [ROUND],
        "steps_per_round": [1, 2, 1, 1],
        "averaging": "step-normalized",
    },
    "gap": _gap(),
    "gap tokens": _gap(max_ig=2),
    "gap notify ack": _gap(notify_ack=True),
    "gap dpsgd": _gap(max_ig=3, update_order="dpsgd"),
    "gap staleness": _gap(max_ig=4, staleness=2),
    "gap staleness by iteration": _gap(max_ig=4, staleness=2, weights="iteration"),
    "gap backup": _gap(max_ig=4, backup=1),
    "gap backup uniform": _gap(max_ig=4, backup=[1, 0, 1, 0], weights="uniform"),
    "gap backup and staleness": _gap(max_ig=4, backup=1, staleness=2),
    "gap skip": _gap(max_ig=4, backup=1, skip={"limit": 6}),
    "gap steps per round 2": _gap(max_ig=2) | {"steps_per_round": 2},
    "quorum 2": _quorum(quorum=2),
    "quorum 3": _quorum(quorum=3, staleness=1),
    "quorum solo": _quorum(quorum="solo", staleness=2),
    "quorum solo patient": _quorum(quorum="solo", grace=60_000_000),
    "quorum majority": _quorum(quorum="majority", seed=7),
    "quorum latest": _quorum(quorum=3, count="call", missed="latest", synchronize_every=4),
    "dynamic groups random": _rule("random"),
    "dynamic groups global": _rule("global", slow_threshold=2, slow_worker_policy="paper"),
    "dynamic groups inter-intra": _rule("inter-intra", slow_worker_policy="defer"),
    "dynamic groups node-then-all": _rule("node-then-all", all_every=4, steps_per_round=2),
    "dynamic groups all": _rule("global", slow_threshold=None) | {"group_size": 4},
    "pairwise": {"kind": "pairwise", "active": [0, 1], "seed": 2},
    "pairwise edges": {"kind": "pairwise", "active": [0, 3], "edges": [[0, 1], [3, 2], [0, 2]]},
    "pairwise late": {"kind": "pairwise", "active": [0, 1], "sync": {"delay": 1}},
    "server": {"kind": "server", "hosts": [0]},
    "server two hosts": {"kind": "server", "hosts": [0, 2], "steps_per_round": 2},
    "server late": {"kind": "server", "hosts": [0], "sync": {"delay": 1}},
    "server asynchronous": {"kind": "server", "hosts": [1], "synchronous": False},
    "server bounded": {"kind": "server", "hosts": [0, 2], "synchronous": False, "staleness": 2},
    "tables": {"kind": "allreduce", "payload": {"tables": [TABLE]}},
}
FAILURE_PLAN = {"rule": "keep_groups", "failures": 1}
WITH_FAILURE_PLAN = ("static failure plan", "static rule failure plan")
SCHEDULES = {
    name: {
        "format": "partreduce.schedule",
        "version": 1,
        "name": name,
        "cluster": {"num_nodes": 2, "workers_per_node": 2},
        "strategy": strategy,
        **({"failure_plan": FAILURE_PLAN} if name in WITH_FAILURE_PLAN else {}),
    }
    for name, strategy in STRATEGIES.items()
}
"""By name."""
