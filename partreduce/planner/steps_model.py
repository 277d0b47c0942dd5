"""Predict how many more training steps than All-Reduce a schedule needs, from consensus distance, drift and delay.

The prices of consensus distance and delay are those of fifteen tasks, networks of five kinds under SGD, momentum and
Adam, each at All-Reduce's best rate (benchmarks/results/steps_to_loss_lateness.md). They differ between optimizers and
between tasks, so the planner considers the worst regret over an optimizer's tasks (`cases`). The errors are those on a
kind of network that was held out: good for ranking schedules, not a guarantee for a job. c and p are fitted to one
network on sorted data (benchmarks/results/steps_to_loss.json). Codecs have no price: gradients in 16 or 8 bits needed
0.97 to 1.05 times the steps on two networks, no more than 1.4 standard errors away.

Under Adam, averaging parameters instead of gradients costs steps at any period: the second moments are of single
workers' gradients, whose noise shortens the steps. Where the noise of a worker's gradient is s times its mean, both
squared, a step of n workers is √((1 + s/n) / (1 + s)) as long as that by their mean gradient.

The price of late averages is on their *late distance*: a late average multiplies a deviation by λ − 1 + (1 − h)^k in
each round of k steps, where synchronous rounds have λ(1 − h)^k, so that more averaging and longer rounds both increase
it (`topo.metrics.late_distance`). Momentum and Adam react slowly to a round's change: at one step per round delay costs
them almost nothing, and the part above one unit costs in proportion to the whole.

Gradients that come a step late to all workers (a pipeline) cost more the nearer the learning rate comes to the
pipeline's stability limit. Each at its own best rate of a grid, pipelines needed 1.05, 1.43 and 2.1 times the steps of
synchronous rounds on three networks; the price is the geometric mean. At All-Reduce's best rate three of the fifteen
tasks did not reach their loss (benchmarks/results/late_and_small.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache
from statistics import geometric_mean
from typing import NamedTuple

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.payload import OuterStep


class Optimizer(StrEnum):
    """The optimizer of the workers: plain SGD, SGD with a momentum of about 0.9, or Adam (AdamW)."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"


class Prices(NamedTuple):
    """Prices: the extra steps that one task needs per unit of a metric, as fractions of All-Reduce's steps.

    `a` is that of consensus distance, `late` that of late distance, `later` that of `long_delay`. `own` is a pilot's
    measured price of averaging parameters instead of gradients; under Adam `price_of_moments` computes it from `noise`.
    """

    noise: float = 0.0
    a: float = 0.0
    late: float = 0.0
    later: float = 0.0
    own: float = 0.0


class FailurePoint(NamedTuple):
    """The consensus distance (without delay) and the late distance from which a task failed with half of its seeds.

    A task fails if, at All-Reduce's best learning rate, it does not reach its loss in five times All-Reduce's steps.
    """

    consensus_distance: float = math.inf
    late: float = math.inf

    def includes(self, synchronous: float, late_distance: float) -> bool:
        """Return whether the task failed with averages as rare, or as late.

        How rare they are is measured by `synchronous`, the consensus distance without what delay adds to it; the late
        distance hardly grows with the number of rounds without an average.
        """
        return synchronous >= self.consensus_distance or late_distance >= self.late


NEVER = FailurePoint()
DELAY_MORE = 0.63
"""Extra steps above the usual price that gradients one step late may cost, as measured: 2.1 times the steps."""
UNEQUAL_STEPS = 0.83
"""Where slow workers take fewer steps, and a step moves the mean p times as far, training needs p to the power of
-0.83 times the steps. Fitted to four workers of which one to three take a quarter of the steps, on twelve of
the fifteen tasks, where 9 of 10 lay within 17 % of it (benchmarks/results/unequal_steps.md)."""


@dataclass(frozen=True)
class StepsModel:
    """A model of the steps to a loss divided by All-Reduce's: 1 + own + a·(consensus distance) + c·drift^p + delay.

    `a`, `noise`, `own`, `late` and `later` are as in `Prices`; `tasks` are alternatives to them: those of calibrated
    tasks, or the corners of a pilot's intervals. `c` is the price of drift, which is 0 for shuffled data. `a_beyond`
    and `c_beyond` are prices beyond the largest metrics that were measured, by default those below them. Gradients late
    by a step cost `delay`, and possibly `delay_more` beyond that; `delay_error` is the relative error for them.

    `errors` holds, for each way to spread data over the workers, the relative error within which 9 of 10 schedules
    stayed: for shuffled data on held-out kinds of networks, for sorted data on held-out schedules; `late_errors` the
    same for late averages, where measured; `basis` is their source, as the subject of a sentence. With metrics from
    `lost` on, a task failed.
    """

    a: float
    c: float
    p: float
    errors: tuple[tuple[str, float], ...]
    max_consensus_distance: float
    max_drift: float
    noise: float = 0.0
    num_workers: int = 1
    own: float = 0.0
    late: float = 0.0
    later: float = 0.0
    late_errors: tuple[tuple[str, float], ...] = ()
    a_beyond: float | None = None
    c_beyond: float | None = None
    delay: float = 0.0
    delay_more: float = 0.0
    delay_error: float = 0.0
    tasks: tuple[Prices, ...] = ()
    lost: FailurePoint = NEVER
    basis: str = "9 of 10 measured schedules"

    def steps_ratio(
        self,
        consensus_distance: float,
        drift: float,
        *,
        late: float = 0.0,
        delayed: float = 0.0,
        gradients: bool = False,
        progress: float = 1.0,
    ) -> float:
        """Return the predicted steps to a loss, divided by those of All-Reduce in every step.

        Args:
            consensus_distance: that of the schedule with its delay; infinity gives infinity.
            drift: that of the schedule with its delay; 0 for shuffled data.
            late: the late distance of averages that are one round late; 0 in synchronous rounds.
            delayed: the extra steps that late gradients cost, as a fraction of All-Reduce's.
            gradients: whether gradients are averaged, not parameters.
            progress: what a step is worth, in synchronous steps of all workers (`step_progress`).
        """
        if math.isinf(consensus_distance) or math.isinf(drift) or math.isinf(late):
            return math.inf
        noise = _charge(consensus_distance, self.max_consensus_distance, self.a, self.a_beyond)
        pushed = _charge(drift**self.p, self.max_drift**self.p, self.c, self.c_beyond) if drift > 0 else 0.0
        own = 0.0 if gradients else self.own + price_of_moments(self.noise, self.num_workers)
        return (1.0 + own + noise + pushed + _delay(self, late) + delayed) / progress

    @cached_property
    def cases(self) -> tuple[StepsModel, ...]:
        """Return the model at the prices of each of its tasks; only itself without tasks.

        Where a task's price of distance is 0, distances beyond the measured range have the shared price of all tasks.
        """
        beyond = self.a_beyond
        return tuple(
            replace(self, tasks=(), a_beyond=(task.a or self.a) if beyond is None else beyond, **task._asdict())
            for task in self.tasks
        ) or (self,)

    def late_more(self, late: float) -> float:
        return max((_delay(task, late) for task in self.tasks), default=0.0) - _delay(self, late)

    def error(self, data: str, *, late: bool = False) -> float:
        """Return the relative error of the predicted steps ratio within which 9 of 10 measured schedules stayed.

        `data` is how samples are spread over the workers (a key of `errors`); `late`: averages overlap computing.
        """
        return dict(self.late_errors if late and self.late_errors else self.errors)[data]

    def extrapolates(self, consensus_distance: float, drift: float) -> bool:
        """Return whether the metrics lie outside the measured range."""
        return consensus_distance > self.max_consensus_distance or drift > self.max_drift


def _charge(amount: float, most: float, price: float, beyond: float | None) -> float:
    """Return the cost of `amount` units of a metric: `price` each up to `most`, then `beyond` each (None: `price`)."""
    if beyond is None or amount <= most:
        return price * amount
    return price * most + beyond * (amount - most)


def step_progress(schedule: Schedule) -> float:
    """Return what a step of the fastest workers is worth, in steps of All-Reduce, as slow workers may take fewer."""
    return float(schedule.mean_progress**UNEQUAL_STEPS)


def price_of_moments(noise: float, num_workers: float) -> float:
    """Return the extra steps, as a fraction of All-Reduce's, that Adam needs if second moments are per worker.

    `noise` is the squared noise of a worker's gradient over its squared mean.
    """
    return math.sqrt((1 + noise) / (1 + noise / num_workers)) - 1


def _delay(prices: StepsModel | Prices, late: float) -> float:
    """Return the extra steps that a late (delayed) average's distance costs, as a fraction of All-Reduce's steps."""
    return prices.late * late + prices.later * long_delay(late) if late else 0.0


def long_delay(late: float) -> float:
    """Return the quantity that the price `later` multiplies: late distance times its part above 1."""
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
"""Measured prices, by optimizer and kind of network."""
SHARED = {
    None: Prices(0.253, 0.148, 0.057, 0.0),
    Optimizer.SGD: Prices(0.0, 0.172, 0.212, 0.0),
    Optimizer.MOMENTUM: Prices(0.0, 0.040, 0.0, 0.098),
    Optimizer.ADAM: Prices(1.510, 0.098, 0.0, 0.011),
}
"""Prices that fit all tasks of an optimizer, or of all three, best together."""
ERRORS = {
    None: (0.59, 0.78),
    Optimizer.SGD: (0.53, 1.22),
    Optimizer.MOMENTUM: (0.25, 0.44),
    Optimizer.ADAM: (0.48, 0.46),
}
"""The relative errors that 9 of 10 schedules kept on held-out kinds of networks, in synchronous and late rounds."""
MEASURED, BEYOND = 10.8, {Optimizer.MOMENTUM: (4.3, 0.34)}
"""The consensus distance up to which prices hold; by optimizer, a smaller one and the price of each unit beyond it.

Under momentum long rounds cost more than proportionally: 1.7 to 4 times the steps by the prices, or the loss was not
reached (benchmarks/results/steps_to_loss_far.md).
"""

MANY = 16
LOST: dict[Optimizer | None, tuple[FailurePoint, FailurePoint]] = {
    None: (FailurePoint(2.5, 1.7), FailurePoint(4.3, 2.4)),
    Optimizer.SGD: (FailurePoint(3.0, 1.7), FailurePoint(4.3, 2.4)),
    Optimizer.MOMENTUM: (FailurePoint(2.5, 2.6), FailurePoint(4.3, 3.1)),
    Optimizer.ADAM: (NEVER, NEVER),
}
"""Where tasks failed, by optimizer or for any (None): with fewer than `MANY` workers, and with `MANY` or more. Under
Adam all tasks reached their loss, as did all with 16 workers in synchronous rounds up to a consensus distance of 4.2
(benchmarks/results/regret.md)."""
BORNE = 1.9
"""The largest measured consensus distance at which all tasks reached their loss."""
LOST_RATIO = 5.0
"""Factor on the predicted steps of a schedule whose metrics made a task fail: failed tasks had five times the steps."""


@lru_cache
def shipped_model(optimizer: Optimizer | None = None, num_workers: int = 16) -> StepsModel:
    """Return the model with the shipped prices (extra steps per metric) of an optimizer, or of all (None)."""
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
        delay=0.47,
        delay_error=0.43,
        delay_more=DELAY_MORE,
        num_workers=num_workers,
        lost=LOST[optimizer][num_workers >= MANY],
        tasks=tuple(task for one in ([optimizer] if optimizer else TASKS) for task in TASKS[one].values()),
        **SHARED[optimizer]._asdict(),
    )


FITTED = shipped_model()

MILD = OuterStep(lr=Fraction(1), momentum=Fraction(1, 2), nesterov=True)
DILOCO = OuterStep(lr=Fraction(7, 10), momentum=Fraction(9, 10), nesterov=True)


@dataclass(frozen=True, slots=True)
class OuterSetting:
    """A measured setting of outer steps, every `every` steps, with its steps ratio on each kind of network.

    With `late`, `OUTER_FRAGMENTS` fragments take turns and are merged that many steps late, with weight `alpha` of a
    worker's own values. With `in_nodes`, all workers of a node average in each step. `share` is the fraction of
    All-Reduce's best learning rate.
    """

    every: int
    outer: OuterStep
    ratios: Mapping[str, float]
    late: int = 0
    alpha: Fraction = Fraction(0)
    in_nodes: bool = False
    share: float = 1.0

    @property
    def ratio(self) -> float:
        return geometric_mean(self.ratios.values())

    def by_task(self, optimizer: Optimizer) -> tuple[float, ...]:
        """Return the steps ratio on each of the steps model's tasks; for tasks without a run the highest one."""
        return tuple(self.ratios.get(kind, max(self.ratios.values())) for kind in TASKS[optimizer])


def _on(*ratios: float | None) -> dict[str, float]:
    """Map the kinds of networks, by alphabet, to steps ratios; None (a run that was too short) is omitted."""
    kinds = sorted(TASKS[Optimizer.SGD])
    return {kind: ratio for kind, ratio in zip(kinds, ratios, strict=True) if ratio is not None}


OUTER_SETTINGS: dict[Optimizer, tuple[OuterSetting, ...]] = {
    Optimizer.SGD: (
        OuterSetting(15, MILD, _on(1.461, 1.092, 1.232, 2.226, 1.224), share=0.5),
        OuterSetting(15, MILD, _on(1.095, 1.042, 0.717, 0.927, 1.017), in_nodes=True, share=0.5),
        OuterSetting(15, DILOCO, _on(0.461, 0.601, 0.322, 0.952, 0.983), in_nodes=True, share=0.5),
        OuterSetting(30, MILD, _on(1.298, 1.072, 0.690, 1.015, 1.167), in_nodes=True, share=0.5),
        OuterSetting(30, DILOCO, _on(0.720, 0.769, 0.539, 0.936, 0.986), in_nodes=True, share=0.5),
    ),
    Optimizer.MOMENTUM: (
        OuterSetting(15, MILD, _on(1.729, 0.957, 0.688, 1.128, 1.145), in_nodes=True, share=0.5),
        OuterSetting(30, MILD, _on(None, 1.018, 0.878, 1.161, 1.022), in_nodes=True, share=0.5),
    ),
    Optimizer.ADAM: (
        OuterSetting(5, MILD, {"embedding": 1.778, "perceptron": 1.834, "text": 1.079}),
        OuterSetting(5, DILOCO, {"embedding": 2.117, "perceptron": 2.621, "text": 3.0}),
        OuterSetting(15, MILD, {"embedding": 1.866, "perceptron": 1.862, "text": 1.225}),
        OuterSetting(15, DILOCO, {"embedding": 1.530, "perceptron": 1.363, "text": 3.0}),
        OuterSetting(30, MILD, {"embedding": 2.102, "perceptron": 2.281, "text": 1.293}),
        OuterSetting(30, DILOCO, {"embedding": 1.615, "perceptron": 1.716, "text": 2.414}),
        OuterSetting(30, MILD, {"perceptron": 3.0, "text": 1.442}, late=6),
        OuterSetting(15, MILD, {"perceptron": 1.391, "text": 1.091}, in_nodes=True),
        OuterSetting(30, MILD, {"perceptron": 1.532, "text": 1.104}, in_nodes=True),
    ),
}
"""Settings of outer steps by inner optimizer, with their steps ratio over All-Reduce on each task.

From benchmarks/results/steps_to_loss_outer.md: 16 workers, shuffled data, at All-Reduce's best rate of a grid, under
SGD and momentum at half of it, since an outer momentum increases the effective rate; a run that did not finish in three
times All-Reduce's steps has ratio 3. These numbers follow no formula, so no other setting is priced, and only settings
that reached the loss on all tasks are proposed. A momentum of 0.9 with rate 0.7 is the published setting (Douillard et
al., 2023); 0.5 with rate 1 needed fewer steps where rounds are short.
"""
OUTER_FRAGMENTS = 2
"""Number of fragments in the measured settings that merge fragments late."""
OUTER_ERRORS = {Optimizer.SGD: 0.77, Optimizer.MOMENTUM: 0.76, Optimizer.ADAM: 0.89}
"""Relative error, for 9 of 10 kinds of networks, of the steps ratio predicted as the other kinds' geometric mean."""
