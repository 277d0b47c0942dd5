"""Find the Pareto front of a plan, the options that no other option dominates, and its baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partreduce.planner.delay import Delay
from partreduce.planner.option import CandidateSchedule
from partreduce.topo.arithmetic.pareto import non_dominated


def front(options: Sequence[CandidateSchedule]) -> list[CandidateSchedule]:
    """Return options not dominated in communication, consensus distance, drift, step time or steps, cheapest first.

    Of options with equal metrics the one with the shortest period is kept. Options that never reach consensus are left
    out. O(k²) for k options.
    """
    usable = [option for option in options if math.isfinite(option.steps_ratio)]
    return non_dominated(usable, lambda option: option.costs.all(), lambda option: (option.period, option.name))


PUBLISHED = ("prague-figure-10", "ring")
"""Published schedules that users compare with: Prague's static schedule, and D-PSGD on a ring."""


def baselines(options: Sequence[CandidateSchedule]) -> list[CandidateSchedule]:
    """Return the schedules a user would run without a planner, by rising communication, dominated or not.

    These are All-Reduce in every step as torch runs it (ring, no codec) and in its best setting; every k steps in its
    best setting, synchronous and late; as a pipeline of gradients; and the published schedules that were measured.
    """
    plain = [option for option in options if option.is_plain and math.isfinite(option.time)]
    kinds = [
        [o for o in plain if o.is_usual],
        [o for o in plain if o.steps_per_round == 1],
        *([o for o in plain if o.delay is delay] for delay in Delay),
        *([o for o in options if o.name == name] for name in PUBLISHED),
    ]
    best = [min(kind, key=lambda option: (option.time, option.communication)) for kind in kinds if kind]
    return sorted({id(option): option for option in best}.values(), key=lambda option: option.communication)
