"""Describe the slowdowns of a job's workers, and choose the iteration gaps that suit them.

Hop's paper has two kinds of heterogeneity (its sections 3.4 and 5), which need different settings: occasional long
steps of any worker are absorbed by staleness or backup workers; a worker that is slow in every step skips steps, and
its neighbors do not wait for it.
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
"""A worker is slow from this multiple of the median worker's compute time."""
SPIKE = 1.2
"""A long step needs a setting from this multiple of the usual time."""
SAMPLED_STEPS = 64
MOST_BY_THE_WAY = 256
"""Most workers for which quorums are weighed unless the job asks for them."""
MOST_BEHIND = 8
"""Largest staleness to propose."""
MOST_SKIPPED = 32
"""Longest jump to propose."""


class Setting(NamedTuple):
    """An iteration gap and its name."""

    words: str
    gap: IterationGap


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The permanently slow workers with their factors, and the ratio of a long step to a usual one.

    A long step is one that each worker has about once in 4n steps; the ratio is 1 where all steps take equally long.
    """

    slow: tuple[tuple[int, float], ...]
    spike: float

    @classmethod
    def of(cls, job: PlanRequest) -> Slowdown:
        """Measure a job's step times. Deterministic; 64 sampled steps of all workers where they vary."""
        times, count = job.compute_times(), job.cluster.num_workers
        if times.is_fixed and not times.slowdown:  # a table of all workers would cost more than everything else
            return cls((), 1.0)
        fixed = times.fixed(count)  # (n,)
        usual = float(np.sort(fixed)[(count - 1) // 2])  # with two workers the faster one
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
        """Return the slowest worker, its factor, and a phrase with the number of other slow workers, if any."""
        worker, factor = max(self.slow, key=lambda one: one[1])
        return worker, factor, f" (and {len(self.slow) - 1} more)" if len(self.slow) > 1 else ""

    @property
    def has_spikes(self) -> bool:
        """Return whether some steps of any worker are long."""
        return self.spike >= SPIKE

    @property
    def is_even(self) -> bool:
        """Return whether there is no slowdown that a gap could absorb."""
        return not self.slow and not self.has_spikes

    def settings(self, graph: Round, order: UpdateOrder) -> list[Setting]:
        """Return settings for the slowdowns on this graph, the paper's where it has them, and the plain gap last.

        Staleness s absorbs a step that takes s + 1 times as long. Neighbors of slow workers need one update fewer for
        each of these, and tokens let them run ahead for the length of a slow step.
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
        # Long steps of other workers come on top of the slow ones, so neighbors need more tokens to continue.
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
    """Return whether quorums are candidates: the job asks for them, or asks for no kind and step times differ."""
    if job.quorum is not None:
        return job.quorum
    is_small = job.cluster.num_workers <= MOST_BY_THE_WAY
    return is_small and job.is_open_to_quorums and not Slowdown.of(job).is_even
