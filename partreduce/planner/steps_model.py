"""How many more steps a schedule needs than All-Reduce, predicted from its consensus distance, drift and delay.

The prices of consensus distance and delay are those of fifteen tasks, networks of five kinds under SGD, momentum
and Adam, each at All-Reduce's best rate (the rows, what was held out and the script's commit are
in benchmarks/results/steps_to_loss_lateness.md). They differ between optimizers and between tasks, so the planner
takes what is least wrong on whichever of an optimizer's tasks the job is like (`cases`), and the errors are those of a
kind of network that was held out: good for ranking schedules, not a promise about yours; a pilot is. c and p are fitted
to one network on sorted data (benchmarks/results/steps_to_loss.json).

Under Adam it costs steps by itself that parameters are averaged instead of gradients, however often: the second moments
are of single workers' gradients then, whose noise shortens the steps. Where the noise of a worker's gradient is s times
its mean, both squared, a step of n workers is √((1 + s/n) / (1 + s)) as long as that by their mean gradient.

What comes late pays for its *late distance* (`topo.metrics.late_distance`): late averagings multiply a deviation by λ −
1 + (1 − h)^k in each round of k steps, where synchronous rounds have λ(1 − h)^k, so that averaging more makes it worse
and longer rounds do. Under SGD a unit costs as much at one step a round as at several. Momentum and Adam answer slowly
to what a round brings: at one step a round delay costs them next to nothing, and what exceeds a unit costs in
proportion to the whole, as their pull within a round grows with the square of its steps.

Gradients that come a step late to all workers (a pipeline) cost more the nearer the learning rate comes to the
pipeline's stability limit, and networks sharpen until it does: each at its own best rate of a grid, pipelines needed
1.05 times the steps of synchronous rounds on a perceptron, 1.43 on the lab's text and 2.1 on its digits, where the best
rate was half of theirs (benchmarks/results/late_and_small.md). At All-Reduce's best rate they needed 1.2 times as many
and more, and three of the fifteen tasks did not reach their loss: a pipeline there needs a lower rate. Where the
learning rate times the curvature, h, is not known, the geometric mean of the three counts. Where it is known, the price
is proportional to the noise that the delay adds: 0.008 times (noise factor - 1) meets both rates of the perceptron at
which h stayed below the limit, h = 0.37 and 0.74. Codecs have no price: gradients in 16 or 8 bits needed 0.97 to 1.05
times the steps on the two networks for digits, no more than 1.4 standard errors away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from partreduce.topo.metrics.pipeline import noise_factor


class Optimizer(StrEnum):
    """What turns a worker's gradients into steps."""

    SGD = "sgd"
    """Plain, at its best rate near its limit: delay is dear."""

    MOMENTUM = "momentum"
    """SGD with a momentum of about 0.9."""

    ADAM = "adam"
    """Adam or AdamW, whose moments are each worker's own where parameters are averaged."""


class Prices(NamedTuple):
    """What a task pays, in parts of All-Reduce's steps.

    `noise` is that of a worker's gradient, by which it costs to average parameters at all (`shortened`), `a` counts for
    a unit of consensus distance, `late` for one of late distance, and `later` for what exceeds one times the whole.
    `own` is what it costs to average parameters at all where a pilot measured that.
    """

    noise: float = 0.0
    a: float = 0.0
    late: float = 0.0
    later: float = 0.0
    own: float = 0.0


class Lost(NamedTuple):
    """From which synchronous consensus distance, or late distance, a calibrated task failed with half of its seeds.

    That is: at All-Reduce's best learning rate it did not reach its loss in five times All-Reduce's steps.
    """

    consensus_distance: float = math.inf
    late: float = math.inf

    def includes(self, synchronous: float, late_distance: float) -> bool:
        """Whether such metrics are among those under which it failed: averages as rare, or as late.

        A late distance alone does not say how rare they are: it hardly grows with a period of which most rounds rest.
        """
        return synchronous >= self.consensus_distance or late_distance >= self.late


NEVER = Lost()

DELAY_MORE = 0.63
"""What gradients that are a step late may cost more than predicted: 2.1 times the steps, on the lab's digits."""


@dataclass(frozen=True, slots=True)
class StepsModel:
    """steps ratio = 1 + own + a·(consensus distance) + c·drift^p + delay's price; drift 0 for shuffled data.

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
    noise: float = 0.0
    """Of a worker's gradient over its mean, both squared, where steps are normalized by it: Adam's."""
    num_workers: int = 1
    """On which that depends."""
    own: float = 0.0
    """What it costs to average parameters at all, in addition."""
    late: float = 0.0
    later: float = 0.0
    """What the part of a late distance above 1 costs, times the whole."""
    late_errors: tuple[tuple[str, float], ...] = ()
    a_beyond: float | None = None
    c_beyond: float | None = None
    """The prices of what exceeds the largest metrics that were tried; by default those below them."""
    delay: float = 0.0
    """What it costs that gradients come a step late, where the learning rate times the curvature is not known."""
    delay_noise: float | None = 0.0
    """What a multiple of the synchronous noise costs that late gradients add; None if only `delay` counts."""
    delay_more: float = 0.0
    """What gradients that come a step late may cost more than predicted."""
    delay_error: float = 0.0
    """The relative error of a pipeline's predicted steps that measured ones kept."""
    tasks: tuple[Prices, ...] = ()
    """What the job may pay instead: calibrated tasks, or the corners of what a pilot leaves open."""
    lost: Lost = NEVER
    basis: str = "9 of 10 measured schedules"
    """Whose errors these are, as the subject of a sentence."""

    def steps_ratio(
        self,
        consensus_distance: float,
        drift: float,
        *,
        late: float = 0.0,
        delayed: float = 0.0,
        gradients: bool = False,
    ) -> float:
        """Predicted steps to a loss, divided by those of All-Reduce in each step.

        Args:
            consensus_distance: of the schedule as it runs, overlap included; ≥ 0, infinity gives infinity.
            drift: likewise; 0 for shuffled data.
            late: the late distance of averagings that come a round late (`topo.metrics.late_distance`); 0
                in synchronous rounds.
            delayed: what late gradients cost (`delayed`).
            gradients: whether it is they that are averaged, not parameters.
        """
        if math.isinf(consensus_distance) or math.isinf(drift) or math.isinf(late):
            return math.inf
        noise = _charged(consensus_distance, self.max_consensus_distance, self.a, self.a_beyond)
        pushed = _charged(drift**self.p, self.max_drift**self.p, self.c, self.c_beyond) if drift > 0 else 0.0
        own = 0.0 if gradients else self.own + shortened(self.noise, self.num_workers)
        return 1.0 + own + noise + pushed + _delay(self, late) + delayed

    @property
    def cases(self) -> tuple[StepsModel, ...]:
        """The model at the prices of each task that the job may be like; itself alone if there are none.

        Where distance costs a task nothing, what nobody tried costs it what it costs all of them.
        """
        beyond = self.a_beyond
        return tuple(
            replace(self, tasks=(), a_beyond=(task.a or self.a) if beyond is None else beyond, **task._asdict())
            for task in self.tasks
        ) or (self,)

    def late_more(self, late: float) -> float:
        """What a late distance may cost more than predicted: on the task on which it costs most."""
        return max((_delay(task, late) for task in self.tasks), default=0.0) - _delay(self, late)

    def delayed(self, width: int, curvature: float | None = None) -> float:
        """What it costs that gradients come late in a pipeline of this width, as a part of All-Reduce's steps.

        Args:
            width: iterations side by side; 1 is synchronous and costs nothing.
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

    @property
    def is_unpriced_beyond(self) -> bool:
        """Whether nothing is known of what lies outside of the measured: no price of it, and no pilot's interval."""
        return self.a_beyond is None

    def extrapolates(self, consensus_distance: float, drift: float) -> bool:
        """Whether the metrics lie outside what was measured."""
        return consensus_distance > self.max_consensus_distance or drift > self.max_drift


def _charged(amount: float, most: float, price: float, beyond: float | None) -> float:
    """What an amount costs, of which `most` at the price and the rest at the price beyond it."""
    if beyond is None or amount <= most:
        return price * amount
    return price * most + beyond * (amount - most)


def shortened(noise: float, num_workers: float) -> float:
    """What it costs that second moments are of single workers' gradients, as a part of All-Reduce's steps."""
    return math.sqrt((1 + noise) / (1 + noise / num_workers)) - 1


def _delay(prices: StepsModel | Prices, late: float) -> float:
    """What a late distance costs; nothing in synchronous rounds, whatever the price."""
    return prices.late * late + prices.later * long_delay(late) if late else 0.0


def long_delay(late: float) -> float:
    """What the price `later` is multiplied with: the part of a late distance above 1, times the whole."""
    return late * max(0.0, late - 1)


TASKS: dict[Optimizer, dict[str, Prices]] = {
    Optimizer.SGD: {
        "convolution": Prices(0.0, 0.139, 0.057, 0.0),
        "embedding": Prices(0.0, 0.033, 0.137, 0.0),
        "perceptron": Prices(0.0, 0.111, 0.303, 0.0),
        "recurrent": Prices(0.0, 0.687, 0.489, 0.61),
        "text": Prices(0.0, 0.265, 0.102, 0.077),
    },
    Optimizer.MOMENTUM: {
        "convolution": Prices(0.0, 0.104, 0.0, 0.355),
        "embedding": Prices(0.0, 0.011, 0.0, 0.043),
        "perceptron": Prices(0.0, 0.0, 0.0, 0.134),
        "recurrent": Prices(0.0, 0.092, 0.0, 0.088),
        "text": Prices(0.0, 0.055, 0.0, 0.079),
    },
    Optimizer.ADAM: {
        "convolution": Prices(0.801, 0.147, 0.0, 0.0),
        "embedding": Prices(16.143, 0.006, 0.0, 0.018),
        "perceptron": Prices(1.197, 0.072, 0.0, 0.029),
        "recurrent": Prices(0.778, 0.129, 0.0, 0.0),
        "text": Prices(2.777, 0.03, 0.0, 0.01),
    },
}
"""By the kind of network."""
SHARED = {
    None: Prices(0.253, 0.148, 0.057, 0.0),
    Optimizer.SGD: Prices(0.0, 0.172, 0.212, 0.0),
    Optimizer.MOMENTUM: Prices(0.0, 0.040, 0.0, 0.098),
    Optimizer.ADAM: Prices(1.510, 0.098, 0.0, 0.011),
}
"""What fits all tasks of an optimizer, or of all three, best at once."""
ERRORS = {
    None: (0.59, 0.78),
    Optimizer.SGD: (0.53, 1.22),
    Optimizer.MOMENTUM: (0.25, 0.44),
    Optimizer.ADAM: (0.48, 0.46),
}
"""The relative errors that 9 of 10 schedules kept on kinds of networks held out, in synchronous and late rounds."""
MEASURED, BEYOND = 10.8, {Optimizer.MOMENTUM: (4.3, 0.34)}
"""Up to which consensus distance prices hold, and where that is less what each unit costs from there on.

Under momentum long rounds cost more than in proportion: 1.7 to 4 times the prices' steps, or no loss reached
(benchmarks/results/steps_to_loss_far.md)."""

MANY = 16
LOST: dict[Optimizer | None, tuple[Lost, Lost]] = {
    None: (Lost(2.5, 1.7), Lost(4.3, 2.4)),
    Optimizer.SGD: (Lost(3.0, 1.7), Lost(4.3, 2.4)),
    Optimizer.MOMENTUM: (Lost(2.5, 2.6), Lost(4.3, 3.1)),
    Optimizer.ADAM: (NEVER, NEVER),
}
"""By optimizer, or whichever it may be, of fewer than `MANY` workers and of as many; under Adam all tasks reached their
loss, and so did all of 16 workers in synchronous rounds up to 4.2 (benchmarks/results/regret.md)."""
BORNE = 1.9
"""The largest consensus distance below these at which all tasks were measured: all reached their loss."""
LOST_RATIO = 5.0
"""At so many times its steps such a schedule has to win: those that failed had been given as many."""


@lru_cache
def shipped(optimizer: Optimizer | None = None, num_workers: int = 16) -> StepsModel:
    """The model of an optimizer, or of whatever it may be, for so many workers."""
    synchronous, late = ERRORS[optimizer]
    most, beyond = (MEASURED, None) if optimizer is None else BEYOND.get(optimizer, (MEASURED, None))
    sorted_data = (("per-worker", 0.27), ("per-node", 0.59))
    return StepsModel(
        c=0.6406,
        p=0.4862,
        errors=(("shuffled", synchronous), *sorted_data),
        late_errors=(("shuffled", late), *sorted_data),
        max_consensus_distance=most,
        a_beyond=beyond,
        max_drift=170.0,
        delay_noise=0.008,
        delay=0.47,
        delay_error=0.43,
        delay_more=DELAY_MORE,
        num_workers=num_workers,
        lost=LOST[optimizer][num_workers >= MANY],
        tasks=tuple(task for one in ([optimizer] if optimizer else TASKS) for task in TASKS[one].values()),
        **SHARED[optimizer]._asdict(),
    )


FITTED = shipped()
