"""Parameters after twelve seeded rounds of four workers: threads over gloo, and processes of which one is killed.

Where all is determined, parameters are compared by their hash, and by their numbers where the hash differs. Where
workers run freely, which of them averages with which depends on the machine. Their gradients then do not depend on the
model and have few bits, so that no sum rounds, and the end, when all are done, is determined again: every gradient is
applied once (quorums, servers), or the mean over workers is that of all gradients (pairs, groups on request).
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

from . import threads, tool
from .records import sha256, summary
from .schedules import SCHEDULES, STRATEGIES

ROUNDS, RESUMED_AT, RESUMED_IN_MID_ROUND = 12, 7, 7.5
FREE = {
    "quorum 2": "equal",
    "quorum 3": "equal",
    "quorum solo": "equal",
    "quorum majority": "equal",
    "dynamic groups random": "mean",
    "dynamic groups global": "mean",
    "dynamic groups inter-intra": "mean",
    "dynamic groups node-then-all": "mean",
    "pairwise": "mean",
    "pairwise edges": "mean",
    "pairwise late": "mean",
    "server asynchronous": "equal",
    "server bounded": "equal",
}
"""Kinds whose workers run freely, and what is determined at their end: all parameters, or their mean over workers."""
LEFT_OUT = {
    "quorum latest": "which results replace others depends on the machine",
    "gap staleness": "which updates have come depends on the machine",
    "gap staleness by iteration": "which updates have come depends on the machine",
    "gap backup": "which updates are done without depends on the machine",
    "gap backup uniform": "which updates are done without depends on the machine",
    "gap backup and staleness": "which updates are done without depends on the machine",
    "gap skip": "which steps are skipped depends on the machine",
    "tables": "needs a model with a sharded table; tests train those",
}
"""Kinds that are recorded in virtual time only, and why."""
CODED = {"codec": "int8", "block": 32}
LATE = {"delay": 1}
PAIRS = [[{"group": [0, 1]}, {"group": [2, 3]}], [{"group": [0, 3]}, {"group": [1, 2]}]]
NAMED = [["weight0", "weight1"], ["weight2", "weight3"]]
"""Fragments of the model of the processes."""
KILLED = (
    "allreduce", "allreduce steps per round 3", "allreduce late", "allreduce late steps per round 3",
    "allreduce pipeline", "allreduce pipeline wide", "allreduce merge", "allreduce hierarchical", "allreduce layers",
    "codec int8", "codec int4 feedback", "diloco", "static pairs", "fragments", "static failure plan",
    "static rule failure plan", "static late", "static rule", "static rule hierarchical", "static int8",
    "static outer", "static outer params per worker",
)  # fmt: skip
"""Kinds of which a worker is killed in the run."""


class Training:
    """Every kind: as it is, in a codec, late, and stopped and resumed in mid-period."""

    def inputs(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, strategy in STRATEGIES.items():
            if name in LEFT_OUT:
                made[f"{name}, left out"] = {"left_out": LEFT_OUT[name]}
                continue
            run = {"rounds": ROUNDS, "free": FREE.get(name, "")}
            made[f"{name}, plain"] = run | {"schedule": SCHEDULES[name]}
            if "codec" not in name and name not in FREE:
                coded = _with(name, transport=strategy.get("transport", {}) | CODED)
                made[f"{name}, codec"] = run | {"schedule": coded}
            if "sync" not in strategy and name not in FREE:
                made[f"{name}, late"] = run | {"schedule": _with(name, sync=LATE)}
            made[f"{name}, resumed"] = run | {"schedule": SCHEDULES[name], "resumed_at": RESUMED_AT}
            if strategy.get("steps_per_round", 1) != 1 and name not in FREE:
                middle = {"schedule": SCHEDULES[name], "resumed_at": RESUMED_IN_MID_ROUND}
                made[f"{name}, resumed in mid-round"] = run | middle
        return made

    def observe(self, given: dict[str, Any]) -> dict[str, Any]:
        if "left_out" in given:
            return {}
        try:
            schedule = tool.parse(given["schedule"])
        except Exception as error:
            if not tool.is_own_error(error):
                raise
            return {"refused": tool.error_line(error)}
        with tempfile.TemporaryDirectory(prefix="referee-") as folder:
            ends = threads.train(
                schedule, given["rounds"], folder, free=bool(given["free"]), resumed_at=given.get("resumed_at", 0)
            )
        errors = sorted({tool.error_line(end) for end in ends if isinstance(end, Exception)})
        if errors:
            return {"refused": errors[0]}
        if given["free"] == "mean":
            return {"mean": np.mean([end.values for end in ends], axis=0).tolist()}
        outcome = {f"worker {rank}": _facts(end.values) for rank, end in enumerate(ends)}
        if given["free"]:
            return outcome
        return outcome | {"bytes": [end.num_bytes for end in ends], "operations": [end.operations for end in ends]}


class Failures:
    """Real processes, of which worker 2 is killed in round 4: what the others hold before their end."""

    def inputs(self) -> dict[str, Any]:
        pairs = {"kind": "static", "phases": PAIRS}
        parts = STRATEGIES["diloco"] | {"payload": STRATEGIES["diloco"]["payload"] | {"fragments": NAMED}}
        own = {"static pairs": (pairs, 4), "fragments": (parts, [4, 1])}
        made = {}
        for name in KILLED:
            strategy, turn = own.get(name, (STRATEGIES.get(name), 4))
            document = SCHEDULES["static"] | SCHEDULES.get(name, {}) | {"strategy": strategy}
            made[name] = {"schedule": document, "dies": [2, "before the sum", turn]}
        return made

    def observe(self, given: dict[str, Any]) -> dict[str, Any]:
        worker, instant, turn = given["dies"]
        turn = tuple(turn) if isinstance(turn, list) else turn
        code, ends = threads.run_with_failure(tool.parse(given["schedule"]), worker, instant, turn)
        return {"exit": code, "ends": {str(rank): _facts(np.array(values)) for rank, values in sorted(ends.items())}}


def _with(name: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return SCHEDULES[name] | {"strategy": STRATEGIES[name] | changes}


def _facts(values: Any) -> dict[str, Any]:  # noqa: ANN401 - an array
    return {"sha256": sha256(values.tobytes())} | summary(values)
