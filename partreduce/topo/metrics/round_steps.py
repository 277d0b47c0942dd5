"""The steps of a round: what workers add to their parameters between two averagings, as noise and as push.

With P = max steps_per_round a round has P equal instants. At instant s = 1 … P−1 worker i has made floor(s · pace_i /
P) of its steps; at instant P it has made all pace_i and the round's averaging is applied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partreduce.topo.phase import Phase
from partreduce.topo.round import MixingStep
from partreduce.topo.strategies.base import Averaging


@dataclass(frozen=True, slots=True, eq=False)
class RoundSteps:
    """Steps of g places (workers, or classes of workers) in one round, and sums of them over the inner instants.

    `push[t]` is the progress that is averaged at the end of round t, `noise[t]` its variance: steps_per_round and
    steps_per_round, or with step-normalized averaging steps_per_round·c and steps_per_round·c² with c = (mean
    steps_per_round of the group) / steps_per_round. Shapes: `noise`, `push` (T, g); `partial` (g,) = Σ_s steps; `gram`
    (g, g) = Σ_s steps · stepsᵀ; `instants` = P.
    """

    instants: int
    noise: npt.NDArray[np.float64]
    push: npt.NDArray[np.float64]
    partial: npt.NDArray[np.float64]
    gram: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls,
        worker_steps: npt.NDArray[np.int64],
        group_worker_steps: npt.NDArray[np.float64],
        averaging: Averaging,
        instants: int,
    ) -> RoundSteps:
        """From the steps per round of every place (g,), their mean in its group in every phase (T, g), and the most.

        O(P·d² + g²) for d distinct steps per round.
        """
        scale = (
            group_worker_steps / worker_steps
            if averaging is Averaging.STEP_NORMALIZED
            else np.ones_like(group_worker_steps)
        )
        distinct, place = np.unique(worker_steps, return_inverse=True)
        if (
            len(distinct) == 1 and distinct[0] == instants
        ):  # closed sums: a single steps_per_round of a million steps must not make a table of instants
            first = instants * (instants - 1) / 2
            second = (instants - 1) * instants * (2 * instants - 1) / 6
            sums, grams = np.array([first]), np.array([[second]])
        else:
            sums, grams = _sums(distinct, instants)
        return cls(instants, worker_steps * scale**2, worker_steps * scale, sums[place], grams[np.ix_(place, place)])


def _sums(distinct: npt.NDArray[np.int64], instants: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Σ_s f_s and Σ_s f_s f_sᵀ over s = 1 … P−1 for the distinct steps per round, in slices that bound the memory."""
    sums = np.zeros(len(distinct))
    grams = np.zeros((len(distinct), len(distinct)))
    width = max(1, 2**20 // len(distinct))
    for first in range(1, instants, width):
        s = np.arange(first, min(first + width, instants), dtype=np.int64)
        steps = (s[:, None] * distinct // instants).astype(np.float64)
        sums += steps.sum(axis=0)
        grams += steps.T @ steps
    return sums, grams


def group_worker_steps(steps: tuple[MixingStep, ...], worker_steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The mean steps per round of each worker's group in each phase, shape (T, n); who skips is its own group.

    Rounds of weighted averaging have no groups: there the mean steps_per_round of all workers stands for each that has
    an edge.
    """
    result = np.empty((len(steps), len(worker_steps)))
    for t, step in enumerate(steps):
        if not isinstance(step, Phase):
            result[t] = worker_steps
            result[t, np.union1d(step.sources, step.targets)] = worker_steps.mean()
            continue
        result[t] = worker_steps
        if len(step):
            means = np.add.reduceat(worker_steps[step.members], step.offsets[:-1]) / step.sizes
            result[t, step.members] = np.repeat(means, step.sizes)
    return result
