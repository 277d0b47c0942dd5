"""Whether a schedule keeps the limits on its shape, and how many steps per round they allow."""

from __future__ import annotations

import numpy as np

from partreduce.schedulers.synthesis.problem import Limits
from partreduce.topo.schedule import Schedule


def within_limits(schedule: Schedule, limits: Limits) -> bool:
    """Whether a schedule keeps the limits on its shape."""
    if not limits.min_period <= schedule.period <= limits.max_period:
        return False
    if limits.max_distinct_phases is not None and schedule.num_distinct_phases() > limits.max_distinct_phases:
        return False
    if limits.max_group is not None and _largest_group(schedule) > limits.max_group:
        return False
    return within_gap(schedule, limits)


def within_gap(schedule: Schedule, limits: Limits) -> bool:
    """Whether never more than `max_gap` steps in a row pass without a group that crosses nodes."""
    most = most_steps_per_round(schedule, limits)
    return most is None or schedule.largest_steps_per_round <= most


def most_steps_per_round(schedule: Schedule, limits: Limits) -> int | None:
    """The most steps per round with which the schedule keeps `max_gap`; 0 for none, None without that limit."""
    if limits.max_gap is None:
        return None
    crossing = [t for t in range(schedule.period) if _crosses_nodes(schedule, t)]
    if not crossing:
        return 0
    rounds_between = np.diff([*crossing, crossing[0] + schedule.period]).max()
    return (limits.max_gap + 1) // int(rounds_between)


def _largest_group(schedule: Schedule) -> int:
    """The most workers that one worker's parameters depend on after one round, itself included."""
    if graphs := schedule.strategy.graphs:
        return 1 + max(int(np.bincount(edges.targets).max(initial=0)) for edges in graphs)
    return max((int(schedule.phase(t).sizes.max(initial=0)) for t in range(schedule.period)), default=0)


def _crosses_nodes(schedule: Schedule, t: int) -> bool:
    node_of = schedule.cluster.node_of()
    if graphs := schedule.strategy.graphs:
        return bool((node_of[graphs[t].sources] != node_of[graphs[t].targets]).any())
    phase = schedule.phase(t)
    # Every member's node with that of its group's first member.
    first = np.repeat(phase.members[phase.offsets[:-1]], phase.sizes)
    return bool((node_of[phase.members] != node_of[first]).any())
