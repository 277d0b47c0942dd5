"""How old what a worker uses is, measured while a run in virtual time goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

MAX_WORKERS = 1024
"""Up to so many workers everybody's view of everybody is followed: 4 MB."""


class Ages:
    """The largest and the mean of many ages, in steps of a worker."""

    def __init__(self, paces: npt.NDArray[np.int64]) -> None:
        self.paces = paces
        self._largest, self._total, self._count = 0.0, 0.0, 0

    def add(self, rounds: npt.NDArray[np.int64], worker: int) -> None:
        """By how many rounds of each worker (num_workers,) something is behind; the worker's own does not count."""
        steps = rounds * self.paces
        steps[worker] = 0
        self._largest = max(self._largest, float(steps.max(initial=0)))
        self._total += float(steps.sum())
        self._count += max(len(steps) - 1, 1)

    @property
    def largest(self) -> float | None:
        """None where nothing was measured."""
        return self._largest if self._count else None

    @property
    def mean(self) -> float | None:
        """Over all workers, all others and all rounds; None as above."""
        return self._total / self._count if self._count else None


class Hearsay:
    """What every worker's parameters hold of every other one's rounds, passed on where workers average.

    `known[w, v]` (num_workers, num_workers) is the number of rounds of v whose progress is in w's parameters.
    """

    def __init__(self, paces: npt.NDArray[np.int64]) -> None:
        self.ages = Ages(paces)
        self.known = np.zeros((len(paces), len(paces)), dtype=np.int64)

    def meet(self, members: Sequence[int], done: npt.NDArray[np.int64]) -> None:
        """Workers average when everybody has done so many rounds (num_workers,): each knows then what any one knew."""
        listed = list(members)
        self.known[listed, listed] = done[listed]
        self.known[listed] = self.known[listed].max(axis=0)
        for worker in listed:
            self.ages.add(done - self.known[worker], worker)
