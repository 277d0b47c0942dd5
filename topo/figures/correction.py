"""Drift correction: does a schedule stay stable with it, and which strength α settles fastest?

Every worker keeps a correction h_i, steps with gradient − h_i, and at each mean of its group adds
α · (mean − x_i) / s̄, s̄ being the group's mean of the sum of rates since each member's last mean. In units of the rate,
and for gradients that are constant, a period maps (x, h) linearly; its spectral radius off the mean says how fast the
corrections find the gradients' differences: below 1 they do, at 1 or above they run away. These are the control
variates of ProxSkip/Scaffnew (Mishchenko et al., ICML 2022), applied to groups.

For a rule the operator splits into one of size 2G per class of characters (G workers on a node), for any number of
nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from topo.errors import InputError
from topo.strategies.allreduce import AllReduce
from topo.strategies.base import Averaging
from topo.strategies.static import Static

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from topo.schedule import Schedule

MAX_DENSE_WORKERS = 400
STRONGEST = 1.0
_GRID = 40


@dataclass(frozen=True, slots=True)
class _Mean:
    """One averaging of a phase: whom, whether the mean survives on this class of characters, relax factor."""

    members: tuple[int, ...]
    survives: bool
    relax: float


def correction_radius(schedule: Schedule, alpha: float) -> float:
    """Spectral radius of the joint (x, h) operator of one period; < 1 is stable, smaller settles faster.

    O(2^k · period · G³) for rules with k digits and G workers on a node, O(period · n³) for explicit schedules.

    Raises:
        InputError: a schedule whose parameters are not averaged over groups, or too large an explicit one.
    """
    refuse_schedule(schedule)
    return max(_radius(phases, paces, alpha, off_mean=off_mean) for phases, paces, off_mean in _classes(schedule))


def best_alpha(schedule: Schedule) -> tuple[float, float]:
    """(α, radius): the strength in (0, 1] that settles fastest, to about 1 %.

    Strengths beyond 1 are left out: they would follow the noise of gradients more than their differences.

    Raises:
        InputError: as correction_radius, or no strength is stable.
    """
    refuse_schedule(schedule)
    classes = list(_classes(schedule))

    def radius(alpha: float) -> float:
        return max(_radius(phases, paces, alpha, off_mean=off_mean) for phases, paces, off_mean in classes)

    grid = np.geomspace(0.002, STRONGEST, _GRID)
    at = [radius(float(alpha)) for alpha in grid]
    best = int(np.argmin(at))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    fine = [float(alpha) for alpha in np.linspace(low, high, 21)]
    found = min(((radius(alpha), alpha) for alpha in fine), default=(at[best], float(grid[best])))
    if found[0] >= 1:
        raise InputError(
            f"schedule {schedule.name!r}: no strength of drift correction is stable (radius {found[0]:.6g} at best); "
            "its groups do not connect all workers"
        )
    return found[1], found[0]


def refuse_schedule(schedule: Schedule) -> None:
    """Refuse schedules for which the correction is not defined.

    Raises:
        InputError: as said.
    """
    strategy = schedule.strategy
    way_out = "use a static schedule, or allreduce with pace > 1, without overlap"
    if not isinstance(strategy, Static | AllReduce) or getattr(strategy, "averages_gradients", False):
        raise InputError(
            f"drift correction: schedule {schedule.name!r} does not average parameters in groups; {way_out}"
        )
    if strategy.overlap:
        raise InputError(
            f"drift correction: schedule {schedule.name!r} overlaps, for which it is not derived; {way_out}"
        )
    if strategy.averaging is not Averaging.MEAN:
        raise InputError(f"drift correction: schedule {schedule.name!r} normalises steps; use plain means with it")


def _classes(schedule: Schedule) -> Iterable[tuple[list[list[_Mean]], npt.NDArray[np.float64], bool]]:
    """(phases, paces, whether the all-ones direction is left out) for every invariant part of the operator."""
    strategy, paces = schedule.strategy, schedule.paces().astype(np.float64)
    if isinstance(strategy, AllReduce) and isinstance(strategy.pace, int):
        two = [_Mean((0, 1), survives=True, relax=1.0)]  # any two workers behave as n do
        yield [two], paces[:2], True
    elif isinstance(strategy, Static) and strategy.node_radices is not None and isinstance(strategy.pace, int):
        size = schedule.cluster.workers_per_node
        assert size is not None, "rules live on regular clusters"
        digits = range(len(strategy.node_radices))
        for count in range(len(digits) + 1):
            for chosen in combinations(digits, count):
                phases = [
                    [
                        _Mean(tuple(sorted(block.local)), not set(chosen) & set(block.across), float(block.relax))
                        for block in phase
                        if len(block.local) > 1 or block.across
                    ]
                    for phase in strategy.rule_phases()
                ]
                yield phases, paces[:size], not chosen
    else:
        if schedule.num_workers > MAX_DENSE_WORKERS:
            raise InputError(
                f"drift correction: explicit schedule {schedule.name!r} has {schedule.num_workers} workers; its joint "
                f"operator is computed up to {MAX_DENSE_WORKERS}; write it as a rule"
            )
        explicit = [
            [_Mean(tuple(group.members), survives=True, relax=float(group.relax)) for group in schedule.phase(t)]
            for t in range(schedule.period)
        ]
        yield explicit, paces, True


def _radius(
    phases: Sequence[Sequence[_Mean]], paces: npt.NDArray[np.float64], alpha: float, *, off_mean: bool
) -> float:
    n = len(paces)
    since = np.zeros(n)
    for phase in phases:  # one period to find the steps since each worker's last mean
        _phase(phase, since, paces, None, alpha)
    operator = np.eye(2 * n)
    for phase in phases:
        _phase(phase, since, paces, operator, alpha)
    if off_mean:
        centred = np.eye(n) - 1 / n
        project = np.kron(np.eye(2), centred)
        operator = project @ operator @ project
    return float(np.abs(np.linalg.eigvals(operator)).max())


def _phase(
    phase: Sequence[_Mean],
    since: npt.NDArray[np.float64],
    paces: npt.NDArray[np.float64],
    operator: npt.NDArray[np.float64] | None,
    alpha: float,
) -> None:
    """One round in place: x ← x + pace · h; then every mean."""
    n = len(paces)
    since += paces
    if operator is not None:
        operator[:n] += paces[:, None] * operator[n:]
    for mean in phase:
        members = list(mean.members)
        if operator is not None:
            x = operator[members]
            change = (x.mean(axis=0) if mean.survives else 0.0) - x
            operator[[n + i for i in members]] += alpha / since[members].mean() * change
            operator[members] += mean.relax * change
        since[members] = 0.0
