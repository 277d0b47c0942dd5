"""How many more steps a schedule needs than All-Reduce: predicted from its consensus distance and drift.

The constants c and p are fitted by `python -m benchmarks.steps_to_loss.fit` (digits, 16 virtual workers, learning rate
0.4, three placements of the data; half of the schedules fitted, the rest and another cluster shape held out). How much
consensus distance costs depends on the network: a is 0.013 for that one and 0.055 for the lab's convolutional one. The
planner takes what fits both with equal weight (`python -m benchmarks.steps_to_loss.fit second`). The fits, their
errors and every measured point are in benchmarks/results/steps_to_loss.json and steps_to_loss_second.json. They are
two networks on one small task: good for ranking schedules, not a promise about yours.

Overlapped schedules have their consensus distance and drift under delayed mixing (docs/figures.md). On the first
network these predict them as well as they predict the others (`python -m benchmarks.steps_to_loss.fit late`):
All-Reduce in each step, late, needed 1.07 times its own steps. The lab's convolutional one needed 1.31 times at its
best rate, and the lab's text 1.31 (benchmarks/results/late_and_small.md). So lateness has a price, and
all three networks have equal weight: 1.03 from consensus distance and 0.19 are their geometric mean.

Gradients that come a step late to all alike (a pipeline) cost more the nearer the learning rate comes to the pipeline's
stability limit, and networks sharpen until it does: each at its best rate of a grid, pipelines needed 1.05 times the
steps of lockstep on the first network, 1.43 on the lab's text and 2.1 on its digits, where the best rate was half of
lockstep's (benchmarks/results/late_and_small.md). Where the learning rate times the curvature, h, is not
known, their geometric mean counts. Where it is known, the price is proportional to the noise that the delay adds:
0.008 times (noise factor - 1) meets both rates of the first network at which h stayed below the limit, h = 0.37 and
0.74. Codecs have no price: gradients in 16 or 8 bits needed 0.97 to 1.05 times the steps on the two networks for
digits, no more than 1.4 standard errors away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from partreduce.topo.figures.pipeline import noise_factor

LATE_MORE, LATE_MORE_PER_STEP = 0.12, 0.5
"""What lateness may cost more than predicted: 1.31 times the steps at one step a round, on two of three networks. At
five steps a round the lab's text needed 1.7 times the steps at a rate of 0.4, 2.1 times at 0.8, and at 1.6, which
All-Reduce bears, it did not reach its loss in 300 (benchmarks/results/late_and_small.md). So half of All-Reduce's steps
for each further step of a round is more than was ever paid where the loss was reached."""
DELAY_MORE = 0.63
"""The same of gradients: 2.1 times the steps, on the lab's digits."""


@dataclass(frozen=True, slots=True)
class StepsModel:
    """steps ratio = 1 + a·(consensus distance) + c·drift^p + (late, if averagings are late); drift 0 for shuffled data.

    `errors` holds, per placement of the data, the relative error that 9 of 10 schedules kept: held-out ones for sorted
    data; for shuffled data those of the network that is predicted worse. `late_errors` holds the same of overlapped
    schedules, where these were measured.
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
    late_more: float = 0.0
    """What averagings that are late by one step may cost more than `late`."""
    late_more_per_step: float = 0.0
    """The same for each further step of a round."""
    delay_more: float = 0.0
    """What gradients that come a step late may cost more than predicted."""
    basis: str = "9 of 10 measured schedules"
    """Whose errors these are, as the subject of a sentence."""

    def steps_ratio(
        self, consensus_distance: float, drift: float, *, late: bool = False, delayed: float = 0.0
    ) -> float:
        """Predicted steps to a loss, divided by those of All-Reduce in each step.

        Args:
            consensus_distance: of the schedule as it runs, overlap included; ≥ 0, infinity gives infinity.
            drift: likewise; 0 for shuffled data.
            late: whether the averaging of a round is late by one round.
            delayed: what late gradients cost (`delayed`).
        """
        if math.isinf(consensus_distance) or math.isinf(drift):
            return math.inf
        noise = _charged(consensus_distance, self.max_consensus_distance, self.a, self.a_beyond)
        pushed = _charged(drift**self.p, self.max_drift**self.p, self.c, self.c_beyond) if drift > 0 else 0.0
        return 1.0 + noise + pushed + (self.late if late else 0.0) + delayed

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
    a=0.0352,
    c=0.6406,
    p=0.4862,
    errors=(("shuffled", 0.12), ("per-worker", 0.27), ("per-node", 0.59)),
    max_consensus_distance=10.8,
    max_drift=170.0,
    late=0.19,
    # Of the first network, whose overlapped schedules need fewer steps than predicted; the lab's lie within.
    late_errors=(("shuffled", 0.23), ("per-worker", 0.21), ("per-node", 0.48)),
    delay=0.47,
    delay_noise=0.008,
    delay_error=0.43,
    late_more=LATE_MORE,
    late_more_per_step=LATE_MORE_PER_STEP,
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
