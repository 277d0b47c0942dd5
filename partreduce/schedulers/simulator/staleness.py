"""The age of the parameters that workers use, measured in a simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_WORKERS = 1024
"""The most workers for which ages are tracked between every pair of workers; a table of that size has 8 MB."""


class Ages:
    """The largest and the mean of many ages, in steps; `worker_steps` (num_workers,) are the steps in each round."""

    def __init__(self, worker_steps: npt.NDArray[np.int64]) -> None:
        self.worker_steps = worker_steps
        self._largest, self._total, self._count = 0.0, 0.0, 0

    def add(self, rounds: npt.NDArray[np.int64], worker: int) -> None:
        """Add the ages, in rounds, of every worker's contribution (num_workers,) to the parameters of `worker`.

        The worker's own contribution is left out.
        """
        steps = rounds * self.worker_steps
        steps[worker] = 0
        self._largest = max(self._largest, float(steps.max(initial=0)))
        self._total += float(steps.sum())
        self._count += max(len(steps) - 1, 1)

    @property
    def largest(self) -> float | None:
        """The largest age in steps; None if none was added."""
        return self._largest if self._count else None

    @property
    def mean(self) -> float | None:
        """The mean age in steps over all workers, all others and all rounds; None if none was added."""
        return self._total / self._count if self._count else None


class IndirectAge:
    """A listener (called for each average) that tracks how many rounds of each worker the parameters of others contain.

    Rounds that arrived in a third worker's parameters count. `known[w, v]` (num_workers, num_workers) is the number of
    rounds of v whose progress is in w's parameters. Above `MAX_WORKERS` nothing is tracked.
    """

    def __init__(self, worker_steps: npt.NDArray[np.int64]) -> None:
        self.ages, count = Ages(worker_steps), len(worker_steps)
        self.known = np.zeros((count, count) if count <= MAX_WORKERS else (0, 0), dtype=np.int64)

    def meet(self, members: Sequence[int], done: npt.NDArray[np.int64]) -> None:
        """Record that `members` average when each worker has ended `done` rounds, shape (num_workers,)."""
        listed = list(members)
        if not len(self.known):
            return
        self.known[listed, listed] = done[listed]
        self.known[listed] = self.known[listed].max(axis=0)
        for worker in listed:
            self.ages.add(done - self.known[worker], worker)


class SentValues:
    """A listener that keeps the values sent at each step as long as a receiver may still average them."""

    def __init__(self, targets: Sequence[Sequence[int]], staleness: int) -> None:
        """Start at step 0; the `targets` of each worker may average values that are up to `staleness` steps old."""
        self._targets, self._staleness = targets, staleness
        self.step = [0] * len(targets)
        self.sent: list[dict[int, npt.NDArray[Any]]] = [{} for _ in targets]

    def enters(self, worker: int, step: int) -> None:
        self.step[worker] = step

    def keep(self, worker: int, step: int, values: npt.NDArray[Any]) -> None:
        """Keep a copy of the values that a worker sends, and drop those too old for all receivers."""
        sent = self.sent[worker]
        least = min((self.step[v] for v in self._targets[worker]), default=step) - self._staleness
        for old in [old for old in sent if old < least]:
            del sent[old]
        sent[step] = values.copy()


class ForwardedAge(SentValues):
    """A listener that tracks how old the rounds of others are in a worker's parameters, if updates are averaged later.

    The progress of a worker's own step counts as in its parameters when it sends an update that contains it, else when
    it averages.
    """

    def __init__(self, worker_steps: npt.NDArray[np.int64], targets: Sequence[Sequence[int]], staleness: int) -> None:
        super().__init__(targets, staleness)
        self.ages = Ages(worker_steps)
        self._known = np.zeros((len(targets), len(targets)), dtype=np.int64)

    def sends(self, worker: int, step: int, *, adds_own: bool) -> None:
        if adds_own:
            self._known[worker, worker] = step + 1
        self.keep(worker, step, self._known[worker])

    def averages(self, worker: int, step: int, used: Sequence[tuple[int, int]], *, adds_own: bool) -> None:
        known = self._known[worker]
        if adds_own:
            known[worker] = step + 1
        for source, old in used:
            np.maximum(known, self.sent[source][old], out=known)
        self.ages.add(self._known.diagonal() - known, worker)
