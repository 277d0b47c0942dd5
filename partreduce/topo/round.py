"""Round: weighted averaging over one graph, the alternative to a phase of groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Arrays, Bulk
from partreduce.topo.phase import Phase


@dataclass(frozen=True, slots=True, eq=False)
class Round(Bulk, Arrays):
    """One round of weighted averaging: x_target ← Σ weight · x_source + (1 − Σ weight) · x_target.

    Edge e has `weights[weight_of[e]]` from worker `sources[e]` to worker `targets[e]`; the rest is a worker's weight on
    itself, so rows always sum to 1 (`verify` checks columns). Edges are sorted by target, then source; distinct weights
    are kept once, as exact fractions.
    """

    num_workers: int
    sources: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    weights: tuple[Fraction, ...]
    weight_of: npt.NDArray[np.int32]

    @classmethod
    def from_edges(cls, num_workers: int, edges: Iterable[tuple[int, int, Fraction]]) -> Round:
        """Build a round from (source, target, weight) triples in any order; raises as `from_arrays` does."""
        listed = list(edges)
        sources, targets = [source for source, _, _ in listed], [target for _, target, _ in listed]
        weights = [Fraction(weight) for _, _, weight in listed]
        return cls.from_arrays(num_workers, sources, targets, weights, range(len(listed)))

    @classmethod
    def from_arrays(
        cls,
        num_workers: int,
        sources: npt.ArrayLike,
        targets: npt.ArrayLike,
        weights: Sequence[Fraction],
        weight_of: npt.ArrayLike,
    ) -> Round:
        """Build a round from edges in any order, as arrays with the meaning of the fields. O(edges log edges).

        Equal weights are merged and unused ones dropped, so that equal rounds compare equal.

        Raises:
            ScheduleError: a rank out of range, a self-loop, or an edge given twice.
        """
        src, dst = np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.int64)
        index = np.asarray(weight_of, dtype=np.int64)
        for wrong, problem in (
            ((src < 0) | (src >= num_workers) | (dst < 0) | (dst >= num_workers), f"ranks are 0..{num_workers - 1}"),
            (src == dst, "a worker's weight on itself is what the others leave"),
        ):
            if wrong.any():
                e = int(wrong.argmax())
                raise ScheduleError(f"edge {src[e]}→{dst[e]}: {problem}")
        order = np.lexsort((src, dst))
        src, dst, index = src[order], dst[order], index[order]
        twice = (src[1:] == src[:-1]) & (dst[1:] == dst[:-1])
        if twice.any():
            e = int(twice.argmax())
            raise ScheduleError(f"edge {src[e]}→{dst[e]}: is given twice")
        used = sorted({weights[i] for i in np.unique(index).tolist()})
        position = {weight: i for i, weight in enumerate(used)}
        rename = np.array([position.get(weight, 0) for weight in weights] or [0], dtype=np.int32)
        return cls(num_workers, src.astype(np.int32), dst.astype(np.int32), tuple(used), rename[index])

    def __len__(self) -> int:
        return len(self.sources)

    def edges(self) -> Iterator[tuple[int, int, Fraction]]:
        """Iterate over (source, target, weight), sorted by target, then source."""
        for source, target, index in zip(
            self.sources.tolist(), self.targets.tolist(), self.weight_of.tolist(), strict=True
        ):
            yield source, target, self.weights[index]

    def surplus(self) -> dict[int, Fraction]:
        """Return, by worker, outgoing minus incoming weights where not 0; empty iff all columns of W sum to 1."""
        result: dict[int, Fraction] = defaultdict(Fraction)
        for source, target, weight in self.edges():
            result[source] += weight
            result[target] -= weight
        return {worker: given for worker, given in result.items() if given}

    def taken(self) -> dict[int, Fraction]:
        """Return, by worker with in-edges, the sum of its incoming weights, which is 1 minus its weight on itself."""
        result: dict[int, Fraction] = defaultdict(Fraction)
        for _, target, weight in self.edges():
            result[target] += weight
        return result

    def own_weight(self) -> Fraction:
        """Return the smallest weight that any worker gives itself."""
        return 1 - max(self.taken().values(), default=Fraction(0))

    @property
    def keeps_something(self) -> bool:
        """Whether no weight is negative and every worker gives itself a positive weight."""
        return min(self.weights, default=Fraction(0)) >= 0 and self.own_weight() > 0

    def edge_weights(self) -> npt.NDArray[np.float64]:
        """Return the weight of every edge as floats, shape (len(self),)."""
        return np.array([float(w) for w in self.weights])[self.weight_of] if len(self) else np.zeros(0)


MixingStep = Phase | Round
"""One round of averaging, in disjoint groups or over a weighted graph. (A *step* alone is an optimizer's.)"""
