"""Old names of renamed keys and values, so that error messages about older files can give the new name."""

from __future__ import annotations

from collections.abc import Container

from partreduce.topo.place import format_value

KEYS = {
    "what": "payload",
    "when": "sync",
    "how": "transport",
    "overlap": "sync",
    "pace": "steps_per_round",
    "relax": "relaxation",
    "form": "algorithm",
    "sending": "gradient_buckets",
    "anchor": "outer_params",
    "order": "update_order",
    "initiator": "slow_worker_policy",
    "contingencies": "failure_plan",
    "late": "delay",
    "gap": "iteration_gap",
    "quorum": "partial",
    "synchronise_every": "synchronize_every",
}
"""Old key → new key. Some old keys are new keys of other objects, so a rename counts only where the new key is known.
"""

VALUES = {
    "kind": {"generated": "dynamic_groups"},
    "sync": {"lockstep": "synchronous"},
    "averaging": {"step-normalised": "step-normalized"},
    "gradient_buckets": {"whole": "single", "layers": "per_layer"},
    "outer_params": {"common": "shared", "own": "per_worker"},
    "update_order": {"serial": "adapt_then_combine", "parallel": "dpsgd"},
    "slow_worker_policy": {"laggard-local": "pair_locally", "laggard-late": "defer"},
}
"""For each key (by its new name): old value → new value."""


def renamed_key(key: object, known: Container[str]) -> str:
    """Return a sentence with the new name of a file's old `key`; empty if `key` has no new name among `known`."""
    new = KEYS.get(key, "") if isinstance(key, str) else ""
    return _sentence(key, new) if new in known else ""


def renamed_value(key: str, value: object) -> str:
    """Return a sentence with the new name of an old `value` of the key `key`; empty if the value was not renamed."""
    new = VALUES.get(key, {}).get(value, "") if isinstance(value, str) else ""
    return _sentence(value, new) if new else ""


def _sentence(old: object, new: str) -> str:
    return f"{format_value(old)} is called {format_value(new)} now; rename it"
