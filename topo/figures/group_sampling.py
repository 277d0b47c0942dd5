"""Sampling on group means: the fast variant for schedules of plain means at one pace, 4–5 times cheaper per round.

After an averaging the state is constant within groups, so that K numbers hold it instead of n (see `chain`). Noise that
has just been averaged has the exactly known size pace·(K − 1); only what survives further rounds is sampled.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from partreduce.topo.figures.chain import Partition, Transfer, inner, transfer
from partreduce.topo.figures.sampling import Sampled, follow, is_settled, summary
from partreduce.topo.phase import Phase

if TYPE_CHECKING:
    import numpy.typing as npt

    from partreduce.topo.schedule import Schedule

    Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GroupMotion:
    """A schedule of plain means at one pace, ready to be run on group means.

    `transfers[t]` leads from the means after round t to those after round t+1; `units[t]` is the mean's direction.
    """

    num_workers: int
    pace: int
    overlap: bool
    partitions: tuple[Partition, ...]
    transfers: tuple[Transfer, ...]
    units: tuple[Vector, ...]
    node_of: npt.NDArray[np.int32]

    @classmethod
    def of(cls, schedule: Schedule) -> GroupMotion | None:
        """Prepare a schedule, None if some phase is relaxed or weighted or the paces differ. O(T n)."""
        steps, strategy, paces = schedule.steps(), schedule.mixing, schedule.paces()
        phases = [step for step in steps if isinstance(step, Phase) and step.relax is None]
        if len(phases) < len(steps) or (paces != paces[0]).any():
            return None
        n = schedule.num_workers
        partitions = tuple(Partition.of(phase) for phase in phases)
        following = (*partitions[1:], partitions[0])
        return cls(
            n,
            int(paces[0]),
            strategy.mixes_late,
            partitions,
            tuple(transfer(a, b) for a, b in zip(partitions, following, strict=True)),
            tuple(np.sqrt(partition.sizes / n) for partition in partitions),
            schedule.cluster.node_of(),
        )

    @property
    def period(self) -> int:
        """T, the number of rounds in a period."""
        return len(self.transfers)

    def onward(self, t: int, y: Vector) -> Vector:
        """From the means after round t to those after round t+1, off the mean."""
        y = self.transfers[t % self.period].forward(y)
        if (t + 1) % self.period:
            return y
        # Averaging keeps the mean at 0; once a period is enough against what rounding adds.
        return y - self.units[0] * inner(self.units[0], y)


def group_consensus_distance(motion: GroupMotion, *, probes: int, seed: int, seconds: float) -> Sampled:
    """As `sampled_consensus_distance`. O(probes · T · rounds · n), vectors of K entries."""
    n, pace, period = motion.num_workers, motion.pace, motion.period
    known = sum(pace * (len(partition.sizes) - 1) for partition in motion.partitions) / (period * n)
    known += (1 - 1 / n) * ((pace - 1) / 2 + (pace if motion.overlap else 0))
    generator, deadline = np.random.default_rng(seed), time.monotonic() + seconds
    values: list[float] = []
    finished = True
    for _ in range(probes):
        total, complete = 0.0, True
        for start in range(period):
            unit = motion.units[start]
            probe = math.sqrt(pace) * generator.choice((-1.0, 1.0), size=len(unit))
            probe -= unit * inner(unit, probe)
            part, done = follow(motion.onward, period, probe, start, deadline)
            total, complete = total + part, complete and done
        if complete or not values:  # a probe that time cut off counts only if there is no other
            values.append(known + total / (period * n))
            finished = complete
        if time.monotonic() > deadline:
            break
    return summary(values, finished=finished)


def group_drift(
    motion: GroupMotion, push: Literal["worker", "node"], *, probes: int, seed: int, seconds: float
) -> Sampled:
    """As `sampled_drift`. O(probes · rounds · n), vectors of K entries."""
    generator, deadline = np.random.default_rng(seed), time.monotonic() + seconds
    values: list[float] = []
    finished = True
    for _ in range(probes):
        if push == "worker":
            signs = generator.choice((-1.0, 1.0), size=motion.num_workers)
        else:
            signs = generator.choice((-1.0, 1.0), size=int(motion.node_of.max()) + 1)[motion.node_of]
        signs -= signs.mean()
        value, done = _settle(motion, signs, deadline)
        if done or not values:  # a probe that time cut off counts only if there is no other
            values.append(value)
            finished = done
        if time.monotonic() > deadline:
            break
    return summary(values, finished=finished)


def _settle(motion: GroupMotion, signs: Vector, deadline: float) -> tuple[float, bool]:
    """The mean square of the periodic state under a constant push, and whether it was reached.

    With y the group means after an averaging and w those of the push b, all instants of a round have the state y + c·b
    for c = 0 … pace−1; with overlap, where the round before has already pushed, for c = pace … 2·pace−1.
    """
    pushes = [
        np.add.reduceat(signs[partition.order], partition.offsets[:-1]) / np.sqrt(partition.sizes)
        for partition in motion.partitions
    ]
    first = motion.pace if motion.overlap else 0
    factors = np.arange(first, first + motion.pace, dtype=np.float64)
    once, square = float(factors.sum()), float((factors**2).sum()) * inner(signs, signs)
    state, before = np.zeros_like(pushes[-1]), math.inf
    settled = False
    while True:
        old, total = state, 0.0
        for t in range(motion.period):
            state = motion.onward(t - 1, state) + motion.pace * pushes[t]
            total += motion.pace * inner(state, state) + 2 * once * inner(state, pushes[t]) + square
        value = total / (motion.period * motion.pace * motion.num_workers)
        if settled:
            return value, True
        change = math.sqrt(inner(state - old, state - old))
        settled = is_settled(change, before, math.sqrt(inner(state, state)))
        before = change
        if time.monotonic() > deadline and not settled:
            return value, False
