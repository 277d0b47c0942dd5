"""eager-SGD's Theorem 5.2 beside a run: its bounds with the run's own staleness, quorum and gradients put in.

The loss is convex and its smoothness known: cross entropy of one layer, whose Hessian is at most half of X'X/n, with X
the samples and a one for the bias (Böhning 1992). So nothing is left to guess but the constants behind its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.long_runs.part import Part

CONVEX, OPEN = "convex", 10
"""The part whose smoothness is known; the last sums of a run, which may still be joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the theorem asks for a mean squared gradient norm of `epsilon`; late by at most `late` rounds.

    `smooth` is the Lipschitz constant of the gradient, `moment` the largest second moment of a worker's gradient, and
    `gap` the loss at first above its infimum.
    """

    workers: int
    quorum: int
    late: int
    smooth: float
    moment: float
    gap: float
    epsilon: float

    @property
    def rate(self) -> float:
        """The largest rate that it allows."""
        missing, norm = self.late * (self.workers - self.quorum), sqrt(self.moment)
        found = [self.epsilon / (12 * self.moment * self.smooth)]
        if missing:
            found.append(sqrt(self.epsilon * self.workers) / sqrt(12 * self.smooth * norm * missing))
            found.append(self.epsilon * self.workers / (4 * self.smooth**3 * norm * missing))
        return min(found)

    @property
    def rounds(self) -> float:
        """Of how many rounds it speaks, without the constant that it leaves out; 0 where nothing is late."""
        return self.gap * self.late * (self.workers - self.quorum) / (self.workers * self.epsilon**2)


def evaluated(part: Part, name: str, rate: float, seed: int) -> dict[str, Any]:
    """A long run of a quorum, and what the theorem says of it."""
    learner, virtual = part.begun(name, part.steps, rate, seed)
    first, moments, norms = learner.loss(learner.models[0]), [], []
    for step in range(part.steps):
        virtual.advance(step)
        mean = learner.models.mean(0)
        norms.append(float(learner.slope(mean).square().sum()))
        if step % 50 == 0:
            moments.append(float(learner.gradients().square().sum(1).mean()))
    summing = virtual.summing
    assert summing is not None, f"{name} sums by a quorum"
    begun = max(summing.rounds) + 1
    active = (summing.gradients > 0).sum(axis=1)[: begun - OPEN]  # workers in each sum that nobody joins any more
    last = learner.loss(learner.models.mean(0))
    bounds = Bounds(
        workers=learner.count,
        quorum=int(active.min()),
        late=max(summing.ages),
        smooth=smoothness(learner.inputs.flatten(1).numpy()),
        moment=max(moments),
        gap=first - last,
        epsilon=float(np.mean(norms)),
    )
    return {
        "contestant": name,
        "seed": seed,
        "rate": rate,
        "rounds": begun,
        "in a sum": float(active.mean()),
        "fewest": bounds.quorum,
        "late": float(np.mean(summing.ages)),
        "latest": bounds.late,
        "smooth": bounds.smooth,
        "moment": bounds.moment,
        "epsilon": bounds.epsilon,
        "allowed": bounds.rate,
        "asked": bounds.rounds,
    }


def smoothness(rows: np.ndarray[Any, Any]) -> float:
    """Of the mean cross entropy of one layer, from the samples (n, numbers)."""
    given = np.hstack([rows, np.ones((len(rows), 1))])
    return 0.5 * float(np.linalg.norm(given, 2)) ** 2 / len(rows)
