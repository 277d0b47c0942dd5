"""What figures may cost, and the choice of the sectors that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from preduce.topo.figures.circulant import circulant_sectors
from preduce.topo.figures.classes import rule_sectors
from preduce.topo.figures.dense import dense_sectors
from preduce.topo.figures.uniform import uniform_sectors

if TYPE_CHECKING:
    from preduce.topo.figures.sectors import Sectors
    from preduce.topo.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times at which methods change.

    Up to `dense_workers` unstructured schedules are solved directly; above, contraction takes at most `lanczos_steps`
    steps and each sampled figure at least `probes` probes if they
    fit into `seconds` seconds, where a probe under way is cut off.
    """

    dense_workers: int = 512
    dense_entries: int = 2**27
    lanczos_steps: int = 50
    probes: int = 3
    seconds: float = 6.0
    seed: int = 0


DEFAULT = Limits()


def sectors_of(schedule: Schedule, limit: Limits = DEFAULT) -> Sectors | None:
    """The cheapest direct decomposition, None if the schedule is too large for each: classes, Fourier, dense.

    Raises:
        ScheduleError: overlapping groups, or a strategy without fixed phases.
        UnknownError: a rule with too many character classes.
    """
    period = schedule.period
    found = uniform_sectors(schedule) or rule_sectors(schedule) or circulant_sectors(schedule)
    if found is not None:
        return found
    n = schedule.num_workers
    if n <= limit.dense_workers and period * n * n <= limit.dense_entries:
        return dense_sectors(schedule)
    return None
