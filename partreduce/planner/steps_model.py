"""How many more steps a schedule needs than All-Reduce, predicted from its consensus distance, drift and lateness.

The prices of consensus distance and lateness are those of fifteen tasks, networks of five kinds under SGD, momentum
and Adam, each at All-Reduce's best rate (`python -m benchmarks.steps_to_loss.lateness`; the rows and what was held out
are in benchmarks/results/steps_to_loss_lateness.md). They differ between tasks more than schedules differ: a is 0.01 to
0.5. The errors are those of a kind of network that was held out, so they are good for ranking schedules, not a promise
about yours; a pilot is. c and p are fitted to one network on sorted data (`python -m benchmarks.steps_to_loss.fit`,
benchmarks/results/steps_to_loss.json).

What comes late pays for its *late distance* (`topo.figures.late_distance`): late averagings multiply a deviation by
λ − 1 + (1 − h)^k in each round of k steps, where lockstep has λ(1 − h)^k, so that averaging more makes it worse and
longer rounds do. At one step a round lateness costs little under momentum and Adam; under SGD at its best rate it costs
half of All-Reduce's steps, and the whole training on one task. So what comes late has to pay at the price of the task
on which it costs most, or be asked for, or be measured by a pilot.

Gradients that come a step late to all alike (a pipeline) cost more the nearer the learning rate comes to the pipeline's
stability limit, and networks sharpen until it does: each at its own best rate of a grid, pipelines needed 1.05 times
the steps of lockstep on a perceptron, 1.43 on the lab's text and 2.1 on its digits, where the best rate was half of
lockstep's (benchmarks/results/late_and_small.md). Where the learning rate times the curvature, h, is not
known, their geometric mean counts. Where it is known, the price is proportional to the noise that the delay adds:
0.008 times (noise factor - 1) meets both rates of the perceptron at which h stayed below the limit, h = 0.37 and 0.74.
Codecs have no price: gradients in 16 or 8 bits needed 0.97 to 1.05 times the steps on the two networks for digits, no
more than 1.4 standard errors away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from partreduce.topo.figures.pipeline import noise_factor

DELAY_MORE = 0.63
"""What gradients that are a step late may cost more than predicted: 2.1 times the steps, on the lab's digits."""


@dataclass(frozen=True, slots=True)
class StepsModel:
    """steps ratio = 1 + a·(consensus distance) + c·drift^p + late·(late distance); drift 0 for shuffled data.

    `errors` holds, per placement of the data, the relative error that 9 of 10 schedules kept: for shuffled data on
    kinds of networks that were held out, for sorted data of held-out schedules. `late_errors` holds the same of
    overlapped schedules, where these were measured.
    """

    a: float
    c: float
    p: float
    errors: tuple[tuple[str, float], ...]
    max_consensus_distance: float
    max_drift: float
    late: float = 0.0
    late_errors: tuple[tuple[str, float], ...] = ()
    a_beyond: float | None = None
    c_beyond: float | None = None
    """The prices of what exceeds the largest figures that were tried; by default those below them."""
    delay: float = 0.0
    """What it costs that gradients come a step late, where the learning rate times the curvature is not known."""
    delay_noise: float | None = 0.0
    """What a multiple of lockstep's noise costs that late gradients add, where it is; None if only `delay` counts."""
    delay_error: float = 0.0
    """The relative error of a pipeline's predicted steps that measured ones kept."""
    late_most: float = 0.0
    """What a unit of late distance may cost: the price of the task on which it costs most."""
    delay_more: float = 0.0
    """What gradients that come a step late may cost more than predicted."""
    basis: str = "9 of 10 measured schedules"
    """Whose errors these are, as the subject of a sentence."""

    def steps_ratio(self, consensus_distance: float, drift: float, *, late: float = 0.0, delayed: float = 0.0) -> float:
        """Predicted steps to a loss, divided by those of All-Reduce in each step.

        Args:
            consensus_distance: of the schedule as it runs, overlap included; ≥ 0, infinity gives infinity.
            drift: likewise; 0 for shuffled data.
            late: the late distance of averagings that come a round late (`topo.figures.late_distance`); 0 in lockstep.
            delayed: what late gradients cost (`delayed`).
        """
        if math.isinf(consensus_distance) or math.isinf(drift) or math.isinf(late):
            return math.inf
        noise = _charged(consensus_distance, self.max_consensus_distance, self.a, self.a_beyond)
        pushed = _charged(drift**self.p, self.max_drift**self.p, self.c, self.c_beyond) if drift > 0 else 0.0
        return 1.0 + noise + pushed + self.late * late + delayed

    def delayed(self, width: int, curvature: float | None = None) -> float:
        """What it costs that gradients come late in a pipeline of this width, as a part of All-Reduce's steps.

        Args:
            width: iterations side by side; 1 is lockstep and costs nothing.
            curvature: the learning rate times the largest curvature of the loss, if known; infinite from the
                pipeline's stability limit on.
        """
        if width == 1:
            return 0.0
        if curvature is None or self.delay_noise is None:
            return self.delay * (width - 1)
        return self.delay_noise * (noise_factor(curvature, width) - 1)

    def at_curvature(self, curvature: float) -> StepsModel:
        """The same model where the learning rate times the curvature is known: the price of a delay is its own error.

        A measured price of a delay stays what it is.
        """
        if self.delay_noise is None:
            return self
        price = self.delayed(2, curvature)
        return replace(self, delay_error=min(self.delay_error, price), delay_more=min(self.delay_more, price))

    def error(self, data: str, *, late: bool = False) -> float:
        """The relative error that 9 of 10 schedules, or 9 of 10 overlapped ones, kept on data placed like this."""
        return dict(self.late_errors if late and self.late_errors else self.errors)[data]

    def extrapolates(self, consensus_distance: float, drift: float) -> bool:
        """Whether the figures lie outside what was measured."""
        return consensus_distance > self.max_consensus_distance or drift > self.max_drift


def _charged(amount: float, most: float, price: float, beyond: float | None) -> float:
    """What an amount costs, of which `most` at the price and the rest at the price beyond it."""
    if beyond is None or amount <= most:
        return price * amount
    return price * most + beyond * (amount - most)


FITTED = StepsModel(
    a=0.128,
    c=0.6406,
    p=0.4862,
    errors=(("shuffled", 0.40), ("per-worker", 0.27), ("per-node", 0.59)),
    max_consensus_distance=10.8,
    max_drift=170.0,
    late=0.021,
    late_most=0.44,
    late_errors=(("shuffled", 0.94), ("per-worker", 0.27), ("per-node", 0.59)),
    delay=0.47,
    delay_noise=0.008,
    delay_error=0.43,
    delay_more=DELAY_MORE,
)

CORRECTED = StepsModel(
    a=0.2884,
    c=0.0069,
    p=0.9317,
    errors=(("per-worker", 0.30), ("per-node", 0.28)),
    max_consensus_distance=10.8,
    max_drift=170.0,
)
"""The same on sorted data with drift correction `auto` (benchmarks/results/steps_to_loss_corrected.json).

Corrections take the push away but follow noise, so consensus distance weighs more than without and drift less.
"""
