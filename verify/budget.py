"""What a schedule asks of every rank: communicators, file descriptors, threads, device memory, and bytes to send."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.hardware import Hardware
from partreduce.topo.phase import Phase
from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.timing.cost import communication
from partreduce.verify.view import explicit_view, rule_view

GLOO_DESCRIPTORS = 6
GLOO_THREADS = 3
"""Per group of 3 and rank, measured with torch 2.13 on CPU; larger groups open more connections."""
NCCL_MEGABYTES = (500, 700)
"""Per communicator, from reports on A100 with older NCCL releases; newer ones differ, so measure yours."""
MEASURE = 2**30
"""Bytes of a model to count with; shares of it are exact."""


def budgets(schedule: Schedule) -> dict[str, Any]:
    """The rank with the most distinct groups, and what those groups cost it. Not a proof: prices are measurements.

    O(size · log size) for explicit phases, O(blocks) for rules.
    """
    if not schedule.is_phased:
        return {}
    rule = rule_view(schedule)
    per_rank = _rule_counts(rule) if rule is not None else _counts(explicit_view(schedule) or ())
    most = int(per_rank.max(initial=0))
    return {
        "communicators_per_rank": most,
        "rank": int(per_rank.argmax()),
        "splits": schedule.num_distinct_phases(),
        "gloo": {"descriptors": GLOO_DESCRIPTORS * most, "threads": GLOO_THREADS * most},
        "nccl": {"device_megabytes": [size * most for size in NCCL_MEGABYTES]},
        **_coded(schedule),
    }


def _coded(schedule: Schedule) -> dict[str, Any]:
    """With a codec, what leaves the busiest node per step, as a multiple of the model in float32; else nothing."""
    codec = schedule.strategy.how.codec
    if codec is Codec.NONE:
        return {}
    sent = communication(schedule, Hardware(), model_bytes=MEASURE).nic_bytes_per_step / MEASURE
    return {"coded": {"codec": str(codec), "models_per_step_out_of_a_node": sent}}


def _rule_counts(rule: RuleView) -> npt.NDArray[np.int64]:
    """Distinct groups per local rank: equal blocks of different phases share their communicators."""
    counts = np.zeros(rule.workers_per_node, dtype=np.int64)
    for local, _ in {(b.local, b.across) for phase in rule.phases for b in phase if b.makes_groups}:
        counts[list(local)] += 1
    return counts


def _counts(phases: tuple[Phase, ...]) -> npt.NDArray[np.int64]:
    """Distinct groups per worker; whole groups are told apart by a hash of their members and their size."""
    n = phases[0].num_workers
    weights = np.random.default_rng(0).integers(1, 2**62, n, dtype=np.int64)
    filled = [phase for phase in phases if len(phase)]
    counts = np.zeros(n, dtype=np.int64)
    if not filled:
        return counts
    keys = np.concatenate([np.add.reduceat(weights[p.members], p.offsets[:-1]) * 64 + p.sizes % 64 for p in filled])
    fresh = np.zeros(len(keys), dtype=bool)
    fresh[np.unique(keys, return_index=True)[1]] = True
    start = 0
    for phase in filled:
        counts[phase.members[np.repeat(fresh[start : start + len(phase)], phase.sizes)]] += 1
        start += len(phase)
    return counts
