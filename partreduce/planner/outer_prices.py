"""List the measured price of outer steps: settings with their steps ratio over All-Reduce on each task.

From benchmarks/results/steps_to_loss_outer.md, which names the script's commit: 16 workers, shuffled data, at
All-Reduce's best rate of a grid, under SGD and momentum at half of it. These numbers follow no formula, so no other
setting is priced. A momentum of 0.9 with rate 0.7 is the published setting (Douillard et al., 2023); 0.5 with rate 1
needed fewer steps where rounds are short. Under Adam both need fewer steps than plain averages of the same period,
whose steps are shortened by the noise of single workers (`steps_model`). Under SGD and momentum All-Reduce's best rate
lies near its limit, and an outer momentum increases the effective rate: at that rate most settings did not reach their
loss. At half of it, regions that average in each step did; workers that train alone for rounds of 15 or 30 steps failed
on the recurrent network, so of those only settings that reached the loss on all tasks are proposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import exp, log
from statistics import fmean

from partreduce.planner.steps_model import TASKS, Optimizer
from partreduce.topo.strategies.payload import OuterStep

SMALL = OuterStep(lr=Fraction(1), momentum=Fraction(1, 2), nesterov=True)
PUBLISHED = OuterStep(lr=Fraction(7, 10), momentum=Fraction(9, 10), nesterov=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """Outer steps every `every` steps, and the steps ratio of each kind of network with a long enough run.

    With `late`, `FRAGMENTS` fragments take turns and are merged that many steps late, with weight `alpha` of a worker's
    own values. With `in_nodes`, all workers of a node average in each step. `share` is the fraction of All-Reduce's
    best learning rate.
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
        """Return the geometric mean."""
        return exp(fmean(map(log, self.ratios.values())))

    def by_task(self, optimizer: Optimizer) -> tuple[float, ...]:
        """Return the ratio on each of the steps model's tasks; the highest measured one for tasks without a run."""
        return tuple(self.ratios.get(kind, max(self.ratios.values())) for kind in TASKS[optimizer])


def _on(*ratios: float | None) -> dict[str, float]:
    """Map the kinds of networks, in the order of their names, to ratios; runs that were too short are omitted."""
    kinds = sorted(TASKS[Optimizer.SGD])
    return {kind: ratio for kind, ratio in zip(kinds, ratios, strict=True) if ratio is not None}


MEASURED: dict[Optimizer, tuple[Measured, ...]] = {
    Optimizer.SGD: (
        Measured(15, SMALL, _on(1.461, 1.092, 1.232, 2.226, 1.224), share=0.5),
        Measured(15, SMALL, _on(1.095, 1.042, 0.717, 0.927, 1.017), in_nodes=True, share=0.5),
        Measured(15, PUBLISHED, _on(0.461, 0.601, 0.322, 0.952, 0.983), in_nodes=True, share=0.5),
        Measured(30, SMALL, _on(1.298, 1.072, 0.690, 1.015, 1.167), in_nodes=True, share=0.5),
        Measured(30, PUBLISHED, _on(0.720, 0.769, 0.539, 0.936, 0.986), in_nodes=True, share=0.5),
    ),
    Optimizer.MOMENTUM: (
        Measured(15, SMALL, _on(1.729, 0.957, 0.688, 1.128, 1.145), in_nodes=True, share=0.5),
        Measured(30, SMALL, _on(None, 1.018, 0.878, 1.161, 1.022), in_nodes=True, share=0.5),
    ),
    Optimizer.ADAM: (
        Measured(5, SMALL, {"embedding": 1.778, "perceptron": 1.834, "text": 1.079}),
        Measured(5, PUBLISHED, {"embedding": 2.117, "perceptron": 2.621, "text": 3.0}),
        Measured(15, SMALL, {"embedding": 1.866, "perceptron": 1.862, "text": 1.225}),
        Measured(15, PUBLISHED, {"embedding": 1.530, "perceptron": 1.363, "text": 3.0}),
        Measured(30, SMALL, {"embedding": 2.102, "perceptron": 2.281, "text": 1.293}),
        Measured(30, PUBLISHED, {"embedding": 1.615, "perceptron": 1.716, "text": 2.414}),
        Measured(30, SMALL, {"perceptron": 3.0, "text": 1.442}, late=6),
        Measured(15, SMALL, {"perceptron": 1.391, "text": 1.091}, in_nodes=True),
        Measured(30, SMALL, {"perceptron": 1.532, "text": 1.104}, in_nodes=True),
    ),
}
"""Settings by inner optimizer. A run that did not finish in three times All-Reduce's steps has ratio 3."""
FRAGMENTS = 2
"""Fragments of a model whose fragments were merged late."""
ERRORS = {Optimizer.SGD: 0.77, Optimizer.MOMENTUM: 0.76, Optimizer.ADAM: 0.89}
"""The relative error of the geometric mean of other kinds of networks that 9 of 10 of these kept."""
