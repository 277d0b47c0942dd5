"""The Pareto front of a plan: options that no other option beats in everything at once; and the baselines beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partreduce.planner.delay import Delay
from partreduce.planner.option import CandidateSchedule
from partreduce.topo.arithmetic.pareto import non_dominated


def front(options: Sequence[CandidateSchedule]) -> list[CandidateSchedule]:
    """Options that none beats in communication, consensus distance, drift, step time and steps, cheapest first.

    Of options with equal metrics the one with the shortest period stays. Options that never reach consensus are
    left out. O(k²) for k options.
    """
    usable = [option for option in options if math.isfinite(option.steps_ratio)]
    return non_dominated(usable, lambda option: option.costs.all(), lambda option: (option.period, option.name))


PUBLISHED = ("prague-figure-10", "ring")
"""Published schedules that users compare with: Prague's static one, and D-PSGD on a ring."""


def baselines(options: Sequence[CandidateSchedule]) -> list[CandidateSchedule]:
    """What a user would take without a planner, by rising communication, beaten by others or not.

    All-Reduce in every step as torch does it (gradients around rings, as they are) and at its best; every k steps at
    its best, synchronous and late; as a pipeline of gradients; and the published schedules that were measured.
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
