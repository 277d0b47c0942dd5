"""Record a run in virtual time apart from its times: bytes, ages, gaps between workers, and a quorum's rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class GapRecord:
    """The steps of every worker, and what its queues held.

    `finish` (num_rounds, num_workers) is when each worker left each step, `order` of the same shape numbers these
    instants: of two entries of the same time the one with the smaller number came first. A step that was skipped is
    left together with the one before it. `sources` and `targets` (edges,) are the graph.

    Of each worker (num_workers,): `skipped` steps, `fill` the most updates that one of its queues held, and the seconds
    that it waited for updates or acknowledgements (`for_updates`), and then for tokens (`for_tokens`).
    """

    finish: npt.NDArray[np.float64]
    order: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    skipped: npt.NDArray[np.int64]
    fill: npt.NDArray[np.int64]
    for_updates: npt.NDArray[np.float64]
    for_tokens: npt.NDArray[np.float64]

    def largest_over_edges(self) -> int:
        """The most steps that one end of an edge was ever ahead of the other; exact. O(gap · num_rounds · edges)."""
        both = (
            np.concatenate([self.sources, self.targets]),
            np.concatenate([self.targets, self.sources]),
        )
        ahead, behind = self.order[:, both[0]], self.order[:, both[1]]  # (num_rounds, 2 · edges)
        # Row r is left for step r+1; who leaves it before another one has left row r-g+1 is g ahead or more.
        for gap in range(1, len(self.order) + 1):
            if not (ahead[gap - 1 :] < behind[: len(behind) - gap + 1]).any():
                return gap - 1
        return len(self.order)

    def largest_over_pairs(self) -> int:
        """The most steps that a worker was ever ahead of another one; exact. O(num_rounds · num_workers)."""
        first, last = self.order.min(axis=1), self.order.max(axis=1)  # (num_rounds,)
        # When the first leaves row r for step r+1, so many rows have been left by all.
        left_by_all = np.searchsorted(last, first, side="left")
        return int((np.arange(1, len(first) + 1) - left_by_all).max(initial=0))

    def steps_at(self, seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The step of every worker at some instants, shape (instants, num_workers)."""
        columns = [np.searchsorted(self.finish[:, w], seconds, side="right") for w in range(self.finish.shape[1])]
        return np.stack(columns, axis=1)

    def instants(self, count: int = 200) -> npt.NDArray[np.float64]:
        """Instants at even distances, up to when the first worker is at the end; it has no step to be ahead by then."""
        end = float(self.finish[-1].min())
        return (np.arange(count) + 0.5) / count * end

    def distribution(self, count: int = 200) -> npt.NDArray[np.float64]:
        """The share of edges and instants at which the two ends are 0, 1, 2, … steps apart; sums to 1."""
        steps = self.steps_at(self.instants(count))
        gaps = np.abs(steps[:, self.sources] - steps[:, self.targets])
        return np.asarray(np.bincount(gaps.ravel()) / gaps.size)


@dataclass(frozen=True, slots=True)
class QuorumRecord:
    """The rounds of a run.

    `summed` (2, num_rounds) is when each sum began and ended, `gradients` (num_rounds, num_workers) how many gradients
    each worker had in it. `rounds` and `ages` (num_gradients,) say of every gradient its round, and how many rounds lay
    between the weights that it was computed with and that one; in synchronous rounds these are 0.
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


@dataclass(frozen=True, slots=True)
class AsynchronousMetrics:
    """What a run without common rounds shows in addition to its times, since no formula says it beforehand.

    `nic_bytes` (num_nodes,) left each node through its NICs. Ages are in steps of a worker, None where nothing was
    measured: by how many steps of another worker what a worker averages is behind when it has averaged, or, at a
    server, by how many the parameters with which a worker computed are behind those that its progress is added to.
    Under a quorum they say of gradients how many rounds lay between their weights and their own round.
    `gaps` is there where a gap is kept, `quorum` where one starts rounds.
    """

    nic_bytes: npt.NDArray[np.float64]
    largest_age: float | None = None
    mean_age: float | None = None
    gaps: GapRecord | None = None
    quorum: QuorumRecord | None = None
