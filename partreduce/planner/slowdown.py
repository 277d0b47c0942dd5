"""What slows a job's workers down, and which settings of a gap answer it.

Hop's paper has two kinds of heterogeneity (its sections 3.4 and 5), which ask for different settings: steps that take
long now and then, whoever's they are, are ridden out by staleness or backup workers; a worker that is slow in every
step is done without by its neighbors and skips.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

import numpy as np

from partreduce.planner.job import PlanRequest
from partreduce.topo.round import Round
from partreduce.topo.strategies.iteration_gap import IterationGap, SkipPolicy, UpdateOrder

SLOW = 1.25
"""Times as long as the median worker computes: from there on a worker is slow."""
SPIKE = 1.2
"""Times as long as usual: from there on a long step is worth an answer."""
SAMPLED_STEPS = 64
MOST_BY_THE_WAY = 256
"""Workers for which quorums are weighed where nobody asks for them."""
MOST_BEHIND = 8
"""The largest staleness that is proposed."""
MOST_SKIPPED = 32
"""The longest jump that is proposed."""


class Setting(NamedTuple):
    """A gap and what it is called."""

    words: str
    gap: IterationGap


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Workers that are always slow, with their factors, and how many times as long a long step takes as usual.

    A long step is one of which each worker has about one in 4n; 1 where every step takes as long.
    """

    slow: tuple[tuple[int, float], ...]
    spike: float

    @classmethod
    def of(cls, job: PlanRequest) -> Slowdown:
        """Of a job's step times. Deterministic; 64 sampled steps of all workers where they vary."""
        times, count = job.compute_times(), job.cluster.num_workers
        if times.is_fixed and not times.slowdown:  # a table of all workers would cost more than all else
            return cls((), 1.0)
        fixed = times.fixed(count)  # (n,)
        usual = float(np.sort(fixed)[(count - 1) // 2])  # of two workers the faster one
        late = np.flatnonzero(fixed >= SLOW * usual).tolist() if usual > 0 else []
        slow = tuple((worker, round(float(fixed[worker] / usual), 9)) for worker in late)
        if times.is_fixed:
            return cls(slow, 1.0)
        even, rng = replace(times, slowdown=()), np.random.default_rng(job.seed)
        sampled = np.concatenate([even.step_seconds(count, step, rng) for step in range(SAMPLED_STEPS)])
        usual = float(np.median(sampled))
        return cls(slow, round(float(np.quantile(sampled, 1 - 1 / (4 * count))) / usual, 9) if usual > 0 else 1.0)

    @property
    def slowest(self) -> tuple[int, float, str]:
        """The slowest worker, its factor, and the words for how many more are slow, if any."""
        worker, factor = max(self.slow, key=lambda one: one[1])
        return worker, factor, f" (and {len(self.slow) - 1} more)" if len(self.slow) > 1 else ""

    @property
    def has_spikes(self) -> bool:
        """Whether some steps take long, whoever's they are."""
        return self.spike >= SPIKE

    @property
    def is_even(self) -> bool:
        """Whether there is nothing that a gap could answer."""
        return not self.slow and not self.has_spikes

    def settings(self, graph: Round, order: UpdateOrder) -> list[Setting]:
        """What answers the slowdowns on this graph, the paper's settings where it has them; and the plain gap, last.

        Staleness s rides out a step that takes s + 1 times as long. Neighbors of slow workers need one update fewer
        for each of these, and tokens let them go as far ahead as a slow step lasts.
        """
        plain = Setting("standard", IterationGap(update_order=order))
        found: list[Setting] = []
        behind = min(MOST_BEHIND, max(1, ceil(self.spike) - 1))
        heard = np.bincount(graph.targets, minlength=graph.num_workers)
        if self.has_spikes and not self.slow:
            found.append(Setting(f"staleness {behind}", IterationGap(staleness=behind, update_order=order)))
            if heard.min() >= 2:
                found.append(Setting("backup 1", IterationGap(max_ig=behind + 1, backup=1, update_order=order)))
        if not self.slow:
            return [*found, plain]
        factor = min(MOST_SKIPPED, ceil(max(f for _, f in self.slow)))
        is_slow = np.isin(graph.sources, [worker for worker, _ in self.slow])  # (edges,)
        spare = np.bincount(graph.targets, weights=is_slow, minlength=graph.num_workers).astype(int).tolist()
        skip = SkipPolicy(limit=max(2, factor))
        # Long steps of others come on top of the slow ones, so that neighbors need more tokens to go on.
        only_slow = IterationGap(
            max_ig=factor * (2 if self.has_spikes else 1) + 1, backup=tuple(spare), skip=skip, update_order=order
        )
        if not self.has_spikes:
            found.append(Setting(f"skip {skip.limit}, backup beside the slow", only_slow))
        elif heard.min() >= 2:
            most = tuple(max(1, number) for number in spare)
            found.append(Setting(f"skip {skip.limit}, backup", replace(only_slow, backup=most)))
        behind = min(MOST_BEHIND, max(behind, factor))
        stale = replace(only_slow, staleness=behind)
        found.append(Setting(f"skip {skip.limit}, backup beside the slow, staleness {behind}", stale))
        return [*found, plain]


def weighs_quorums(job: PlanRequest) -> bool:
    """Whether quorums are candidates: where they are asked for, or nothing is and the steps of workers differ."""
    if job.quorum is not None:
        return job.quorum
    is_small = job.cluster.num_workers <= MOST_BY_THE_WAY
    return is_small and job.is_open_to_quorums and not Slowdown.of(job).is_even
