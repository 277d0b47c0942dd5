"""Group and Phase: the workers that average together in one round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Arrays, Flags, Floats, Whole

ONE = Fraction(1)


@dataclass(frozen=True, slots=True)
class Group:
    """Two or more workers that average together: x ← x + relaxation · (mean − x) at every member.

    relaxation = 1 is the plain mean (Prague's P-Reduce). Rows and columns of the mixing matrix sum to 1 for every
    relaxation; its entries are non-negative for relaxation ≤ |G|/(|G|−1), and the group contracts iff
    0 < relaxation < 2.
    """

    members: tuple[int, ...]
    relaxation: Fraction = ONE

    def __str__(self) -> str:
        """Format as `{0,4,8}` or `{0,4} relaxation 4/3`."""
        body = "{" + ",".join(map(str, self.members)) + "}"
        return body if self.relaxation == 1 else f"{body} relaxation {self.relaxation}"


@dataclass(frozen=True, slots=True, eq=False)
class Phase(Arrays):
    """The groups of one round, held as flat arrays so that a million workers fit into memory.

    `members[offsets[g]:offsets[g+1]]` are the ranks of group g, ascending; groups are ordered by their first member.
    `relaxation` holds one factor per group, or None if all are 1. A Phase may hold *overlapping* groups, which
    `verify` refutes; `labels` and `apply` need disjoint groups and raise ScheduleError for overlapping ones.
    """

    num_workers: int
    members: npt.NDArray[np.int32]
    offsets: Whole
    relaxation: tuple[Fraction, ...] | None = None

    @classmethod
    def from_groups(cls, num_workers: int, groups: Iterable[Group | Iterable[int]]) -> Phase:
        """Build a phase from Group values or plain iterables of ranks, in any order.

        Raises:
            ScheduleError: a group of fewer than two workers, a rank out of range, or a rank twice in one group.
        """
        listed = [
            (tuple(sorted(g.members)), g.relaxation) if isinstance(g, Group) else (tuple(sorted(g)), ONE)
            for g in groups
        ]
        listed.sort()
        for members, _ in listed:
            if len(members) < 2:
                raise ScheduleError(f"group {Group(members)}: a group has at least 2 workers; leave out who skips")
            if len(set(members)) != len(members):
                raise ScheduleError(f"group {Group(members)}: a worker stands twice in it")
            if members[0] < 0 or members[-1] >= num_workers:
                raise ScheduleError(f"group {Group(members)}: ranks are 0..{num_workers - 1}")
        sizes = [len(members) for members, _ in listed]
        flat = np.fromiter((w for members, _ in listed for w in members), dtype=np.int32, count=sum(sizes))
        relaxation = tuple(r for _, r in listed)
        return cls.from_arrays(num_workers, flat, sizes, relaxation if any(r != 1 for r in relaxation) else None)

    @classmethod
    def from_arrays(
        cls,
        num_workers: int,
        members: npt.NDArray[np.int32],
        sizes: npt.ArrayLike,
        relaxation: tuple[Fraction, ...] | None = None,
    ) -> Phase:
        """Build a phase from the concatenated `members` of all groups and the groups' `sizes`. O(size).

        They must be sorted as the class says; `relaxation` has one factor per group.
        """
        offsets = np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))]).astype(np.int64)
        flat = np.ascontiguousarray(members, dtype=np.int32)
        flat.setflags(write=False)
        offsets.setflags(write=False)
        return cls(num_workers, flat, offsets, relaxation)

    @classmethod
    def from_labels(cls, labels: npt.ArrayLike, relaxation: dict[int, Fraction] | None = None) -> Phase:
        """Build a phase from one label per worker: workers with equal labels average together.

        Workers with a negative or a unique label skip the round. `relaxation` maps a label to its factor. O(n log n).
        """
        array = np.asarray(labels, dtype=np.int64)
        count = len(array)
        active = np.flatnonzero(array >= 0)
        order = active[np.argsort(array[active], kind="stable")]
        names, starts, sizes = np.unique(array[order], return_index=True, return_counts=True)
        keep = sizes >= 2
        names, starts, sizes = names[keep], starts[keep], sizes[keep]
        by_first = np.argsort(order[starts], kind="stable")
        names, starts, sizes = names[by_first], starts[by_first], sizes[by_first]
        ends = np.cumsum(sizes)
        gather = (
            np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - sizes, sizes) + np.repeat(starts, sizes)
        )
        factors = None if not relaxation else tuple(relaxation.get(int(name), ONE) for name in names)
        if factors is not None and all(f == 1 for f in factors):
            factors = None
        return cls.from_arrays(count, order[gather].astype(np.int32), sizes, factors)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Group:
        """Return group number `index`; groups are ordered by their first member."""
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        return Group(tuple(self.members[start:end].tolist()), self.relaxation[index] if self.relaxation else ONE)

    def __iter__(self) -> Iterator[Group]:
        return (self[index] for index in range(len(self)))

    @property
    def sizes(self) -> Whole:
        """The number of workers of each group, shape (len(self),)."""
        return np.diff(self.offsets)

    def labels(self) -> npt.NDArray[np.int32]:
        """Return the group index of every worker, −1 if it skips, (num_workers,); ScheduleError if groups overlap."""
        counts = np.bincount(self.members, minlength=self.num_workers)
        if len(self.members) and counts.max() > 1:
            worker = int(counts.argmax())
            rule = "groups are disjoint: `partreduce verify` names the phase"
            raise ScheduleError(f"worker {worker} stands in {int(counts[worker])} groups of one phase; {rule}")
        result = np.full(self.num_workers, -1, dtype=np.int32)
        result[self.members] = np.repeat(np.arange(len(self), dtype=np.int32), self.sizes)
        return result

    def apply(self, values: Floats) -> Floats:
        """Return `values` (num_workers, ...) after averaging: row x becomes x + relaxation·(mean − x). O(size)."""
        self.labels()
        return self.averaged(values)

    def averaged(self, values: Floats, survives: Flags | None = None, counts: Whole | None = None) -> Floats:
        """Return `values` after averaging, as `apply` does, but without the check that groups are disjoint.

        Row i of `values` has the weight `counts[i]` in a mean, by default 1. Where `survives[g, c]` is False, 0 takes
        the place of the mean of group g in `values[:, c]`; `survives` has shape (len(self), C).
        """
        result = np.array(values, dtype=np.float64)
        if not len(self):
            return result
        rows = result[self.members]
        tail = (1,) * (result.ndim - 1)
        weighed, totals = rows, self.sizes
        if counts is not None:
            weighed = rows * counts[self.members].reshape(-1, *tail)
            totals = np.add.reduceat(counts[self.members], self.offsets[:-1])
        means = np.add.reduceat(weighed, self.offsets[:-1], axis=0) / totals.reshape(-1, *tail)
        if survives is not None:
            means *= survives.reshape(survives.shape + tail[1:])
        spread = np.repeat(means, self.sizes, axis=0)
        if self.relaxation is not None:
            factors = np.repeat([float(factor) for factor in self.relaxation], self.sizes)
            spread = rows + factors.reshape(-1, *tail) * (spread - rows)
        result[self.members] = spread
        return result
