"""What a run in virtual time shows of a quorum: who was in the rounds, and how fast they came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class QuorumRecord:
    """The rounds of a run.

    `summed` (2, num_rounds) is when each sum began and ended, `gradients` (num_rounds, num_workers) how many gradients
    each worker had in it.
    """

    summed: npt.NDArray[np.float64]
    gradients: npt.NDArray[np.int64]

    @property
    def active(self) -> npt.NDArray[np.int64]:
        """How many workers had a gradient in each round, shape (num_rounds,)."""
        return np.asarray((self.gradients > 0).sum(axis=1))

    def rates(self, *, warm_up: int = 0) -> tuple[float, float]:
        """Rounds and gradients a second after so many rounds; infinite where they take no time.

        The gradients of the rounds are counted, so those that came during the last one are not.
        """
        begun = self.summed[1, warm_up - 1] if warm_up else 0.0
        passed = float(self.summed[1, -1] - begun)
        rounds, gradients = len(self.gradients) - warm_up, int(self.gradients[warm_up:].sum())
        return (rounds / passed, gradients / passed) if passed else (float("inf"), float("inf"))
