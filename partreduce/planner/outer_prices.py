"""What outer steps cost in steps: measured settings, each with its steps over All-Reduce's on each task.

By `python -m benchmarks.steps_to_loss.outer` (benchmarks/results/steps_to_loss_outer.md): 16 workers, shuffled data, at
All-Reduce's best rate of a grid. No formula stands behind these numbers, so no other setting is priced. A momentum of
0.9 with rate 0.7 is the published one (Douillard et al., 2023); 0.5 with rate 1 needed fewer steps where rounds are
short. Under Adam both need fewer steps than plain averages as often, which lose what single workers' noise takes from
their steps (`steps_model`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import exp, log
from statistics import fmean

from partreduce.planner.steps_model import TASKS, Optimizer
from partreduce.topo.strategies.outer import Outer

SMALL = Outer(lr=Fraction(1), momentum=Fraction(1, 2), nesterov=True)
PUBLISHED = Outer(lr=Fraction(7, 10), momentum=Fraction(9, 10), nesterov=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """Outer steps every `every` steps, and the steps ratio of each kind of network that was long enough for them.

    With `late` `FRAGMENTS` took turns and were merged so many steps late, with `alpha` of a worker's own. With
    `in_nodes` all of a node averaged in each step.
    """

    every: int
    outer: Outer
    ratios: Mapping[str, float]
    late: int = 0
    alpha: Fraction = Fraction(0)
    in_nodes: bool = False

    @property
    def ratio(self) -> float:
        """The geometric mean."""
        return exp(fmean(map(log, self.ratios.values())))

    def by_task(self, optimizer: Optimizer) -> tuple[float, ...]:
        """On each of the steps model's tasks; the dearest that was measured where it was not."""
        return tuple(self.ratios.get(kind, max(self.ratios.values())) for kind in TASKS[optimizer])


MEASURED: dict[Optimizer, tuple[Measured, ...]] = {
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
"""By the inner optimizer. What did not get there in three times All-Reduce's steps has 3."""
FRAGMENTS = 2
"""Into how many a model was cut where its fragments were merged late."""
ERROR = 0.89
"""The relative error that 9 of 10 of these kept by the geometric mean of other kinds of networks."""
