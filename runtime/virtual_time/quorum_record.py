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
    each worker had in it. `rounds` and `ages` (num_gradients,) say of every gradient its round, and how many rounds lay
    between the weights that it was computed with and that one; in lockstep these are 0.
    """

    summed: npt.NDArray[np.float64]
    gradients: npt.NDArray[np.int64]
    rounds: npt.NDArray[np.int64]
    ages: npt.NDArray[np.int64]

    @property
    def active(self) -> npt.NDArray[np.int64]:
        """How many workers had a gradient in each round, shape (num_rounds,)."""
        return np.asarray((self.gradients > 0).sum(axis=1))

    def oldest(self) -> npt.NDArray[np.int64]:
        """The largest age in each round, shape (num_rounds,)."""
        oldest = np.zeros(len(self.gradients), dtype=np.int64)
        np.maximum.at(oldest, self.rounds, self.ages)
        return oldest

    def mean_ages(self) -> npt.NDArray[np.float64]:
        """The mean age in each round, every one of which has a gradient, shape (num_rounds,)."""
        return np.asarray(np.bincount(self.rounds, weights=self.ages) / self.gradients.sum(axis=1))

    def shares_of_ages(self, *, warm_up: int = 0) -> npt.NDArray[np.float64]:
        """The share of gradients of age 0, 1, 2, … after so many rounds; sums to 1."""
        ages = self.ages[self.rounds >= warm_up]
        return np.asarray(np.bincount(ages) / len(ages))

    def rates(self, *, warm_up: int = 0) -> tuple[float, float]:
        """Rounds and gradients a second after so many rounds; infinite where they take no time.

        The gradients of the rounds are counted, so those that came during the last one are not.
        """
        begun = self.summed[1, warm_up - 1] if warm_up else 0.0
        passed = float(self.summed[1, -1] - begun)
        rounds, gradients = len(self.gradients) - warm_up, int(self.gradients[warm_up:].sum())
        return (rounds / passed, gradients / passed) if passed else (float("inf"), float("inf"))
