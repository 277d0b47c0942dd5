"""How many more steps a schedule needs than All-Reduce: predicted from its disagreement and drift.

The constants are fitted by `python benchmarks/steps_to_loss/fit.py` (digits, 16 virtual workers, learning rate 0.4,
three placements of the data; half of the schedules fitted, the rest and another cluster shape held out). The fit, its
error and every measured point are in benchmarks/results/steps_to_loss.json. It is one task and one model: good for
ranking schedules, not a promise about yours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepsModel:
    """stretch = 1 + a·disagreement + c·drift^p, with drift 0 for shuffled data. `error` is the held-out p90."""

    a: float
    c: float
    p: float
    error: float
    max_disagreement: float
    max_drift: float

    def stretch(self, disagreement: float, drift: float) -> float:
        """Predicted steps to a loss, divided by All-Reduce's; both arguments ≥ 0, infinity gives infinity."""
        return 1.0 + self.a * disagreement + (self.c * drift**self.p if drift > 0 else 0.0)

    def extrapolates(self, disagreement: float, drift: float) -> bool:
        """Whether the figures lie outside what was measured."""
        return disagreement > self.max_disagreement or drift > self.max_drift


FITTED = StepsModel(a=0.02, c=1.0, p=0.45, error=0.3, max_disagreement=11.0, max_drift=170.0)
