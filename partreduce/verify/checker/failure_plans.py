"""Reading `failure_plan`: what survivors run when workers fail."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from .refusal import require
from .strict_json import as_choice, as_integer, as_object

MAX_FAILURES = 4
"""Each order of the nodes of a failure is tried."""
MAX_LISTED = 2**24
"""Workers up to which survivors list their groups."""

Failure = tuple[int, ...]
"""The failed workers, ascending."""


class FailurePlan(NamedTuple):
    """What survivors run after failures of up to so many workers, or of one node."""

    rule: Literal["keep_groups", "reapply_rule", "all_reduce"]
    failures: int


def read_failure_plan(raw: dict[str, Any], num_workers: int) -> FailurePlan:
    """The object under `failure_plan`."""
    entry = as_object(raw["failure_plan"], "failure_plan", ("rule", "failures"))
    rule = entry["rule"]
    as_choice(rule, "failure_plan.rule", ("keep_groups", "reapply_rule", "all_reduce"))
    failures = as_integer(entry["failures"], "failure_plan.failures", 1, MAX_FAILURES + 1)
    require(num_workers - failures >= 2, "failure_plan.failures", "leaves 2 workers or more")
    strategy = raw["strategy"]
    is_static = strategy["kind"] == "static"
    require(is_static or rule == "all_reduce", "failure_plan.rule", "is all_reduce for strategy allreduce")
    has_rule = rule != "reapply_rule" or "node_radices" in strategy
    require(has_rule, "failure_plan.rule", "reapply_rule goes with node_radices")
    is_listed = is_static or isinstance(strategy.get("steps_per_round"), list)
    require(not is_listed or num_workers <= MAX_LISTED, "failure_plan", f"is for at most {MAX_LISTED} workers")
    return FailurePlan(rule, failures)
