"""Losses of workers, and which of them are alike: those that a schedule's symmetries map to one another.

A *symmetry* lets workers change places and keeps every group. These are used:

* in a rule, any two values of a digit, on all nodes at once: a group holds the nodes that agree outside its digits;
* on one node, any two local ranks that in every phase stand in the same block, or both in no group;
* where groups are listed, any two workers of one node that in every phase stand in the same group, or both in none;
* under All-Reduce, any two workers.

Workers of unequal pace never change places. A *class* is what such exchanges make of one loss; its *representative* is
the smallest of them, of those whose nodes have digits in order of first appearance, and whose lost local ranks are the
first of their kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import TYPE_CHECKING

from partreduce.topo.rule import digit_of, strides_of

if TYPE_CHECKING:
    from partreduce.topo.schedule import Schedule

MAX_NODES = 4
"""Nodes of one loss: each order of them is tried."""

Loss = tuple[int, ...]
"""The lost workers, ascending."""


@dataclass(frozen=True, slots=True)
class Symmetries:
    """Nodes with these digits, on each `size` local ranks; `kinds` has the first rank of its kind for each of them.

    Listed groups are one node without digits, whose local ranks are all workers.
    """

    radices: tuple[int, ...]
    size: int
    kinds: tuple[int, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> Symmetries:
        """Those of a schedule of groups. Rules: O(num_workers) for paces; listed groups: O(period · num_workers).

        Raises:
            ScheduleError: groups of one phase share a worker.
        """
        if schedule.strategy.averages_everyone:
            return cls((), schedule.num_workers, (0,) * schedule.num_workers)
        rule, paces = schedule.rule(by_node=True), schedule.paces()
        if rule is not None:
            # paces (num_nodes, workers_per_node): nodes are alike only if all rows are
            table = paces.reshape(rule.num_nodes, rule.workers_per_node)
            if (table == table[0]).all():
                homes = [
                    {rank: index for index, block in enumerate(phase) if block.makes_groups for rank in block.local}
                    for phase in rule.phases
                ]
                keys = [(pace, *(home.get(rank, -1) for home in homes)) for rank, pace in enumerate(table[0].tolist())]
                return cls(rule.radices, rule.workers_per_node, _firsts(keys))
        columns = [schedule.cluster.node_of().tolist(), paces.tolist()]
        columns += [schedule.phase(index).labels().tolist() for index in range(schedule.period)]
        return cls((), schedule.num_workers, _firsts(list(zip(*columns, strict=True))))

    def representative(self, lost: Collection[int]) -> Loss | None:
        """Of the loss's class; None where it takes workers of more than `MAX_NODES` nodes."""
        found = self._smallest(lost)
        return None if found is None else found[0]

    def mapping(self, lost: Collection[int]) -> list[int]:
        """For every worker whom it stands for, in the symmetry that maps the loss to its representative.

        Of symmetries that do, the first by the order of nodes; values of digits, and local ranks of a kind, that no
        lost worker has keep their order. O(num_workers).
        """
        found = self._smallest(lost)
        assert found is not None, "asked of planned losses"
        orders = [
            {value: place for place, value in enumerate([*order, *(v for v in range(radix) if v not in order)])}
            for order, radix in zip(found[1], self.radices, strict=True)
        ]
        strides, gone = strides_of(self.radices), frozenset(lost)
        result = []
        for node, digits in enumerate(product(*map(range, self.radices))):
            start = sum(order[digit] * stride for order, digit, stride in zip(orders, digits, strides, strict=True))
            own = range(node * self.size, (node + 1) * self.size)
            # Lost local ranks come before the others of their kind.
            ranked = sorted(range(self.size), key=lambda rank: (self.kinds[rank], own[rank] not in gone, rank))
            places = dict(zip(ranked, sorted(range(self.size), key=self.kinds.__getitem__), strict=True))
            result += [start * self.size + places[rank] for rank in range(self.size)]
        return result

    def classes(self, count: int, most: int | None = None) -> list[Loss]:
        """The representatives of all losses of `count` workers, in order; of more than `most` only some more.

        A loss of one worker more is, up to symmetries, a representative and a worker whose digits have a value of the
        lost nodes or the first other one, and whose local rank is the first of its kind that is not lost.
        """
        found: set[Loss] = {()}
        for _ in range(count):
            grown: set[Loss] = set()
            for like in (self.representative((*lost, worker)) for lost in found for worker in self._further(lost)):
                if like is not None:
                    grown.add(like)
                if most is not None and len(grown) > most:
                    break
            found = grown
        return sorted(found)

    def _further(self, lost: Loss) -> Iterator[int]:
        strides, gone = strides_of(self.radices), frozenset(lost)
        nodes = {worker // self.size for worker in lost}
        values = [
            range(min(radix, 1 + max((digit_of(node, stride, radix) for node in nodes), default=-1) + 1))
            for radix, stride in zip(self.radices, strides, strict=True)
        ]
        for digits in product(*values):
            first = sum(digit * stride for digit, stride in zip(digits, strides, strict=True)) * self.size
            met: set[int] = set()
            for rank, kind in enumerate(self.kinds):
                if kind not in met and first + rank not in gone:
                    met.add(kind)
                    yield first + rank

    def _smallest(self, lost: Collection[int]) -> tuple[Loss, tuple[Sequence[int], ...]] | None:
        """The representative, and of each digit the values of the lost nodes in order of first appearance."""
        counts: dict[int, Counter[int]] = {}
        for worker in lost:
            counts.setdefault(worker // self.size, Counter())[self.kinds[worker % self.size]] += 1
        if len(counts) > MAX_NODES:
            return None
        strides = strides_of(self.radices)
        firsts = {node: self._first_ranks(kinds) for node, kinds in counts.items()}
        best: tuple[Loss, tuple[Sequence[int], ...]] | None = None
        for order in permutations(sorted(counts)):
            digits = [
                tuple(dict.fromkeys(digit_of(node, stride, radix) for node in order))
                for radix, stride in zip(self.radices, strides, strict=True)
            ]
            moved: list[int] = []
            for node in order:
                values = (
                    listed.index(digit_of(node, stride, radix)) * stride
                    for listed, radix, stride in zip(digits, self.radices, strides, strict=True)
                )
                start = sum(values) * self.size
                moved += [start + rank for rank in firsts[node]]
            found = tuple(sorted(moved))
            if best is None or found < best[0]:
                best = found, tuple(digits)
        return best

    def _first_ranks(self, counts: Counter[int]) -> list[int]:
        """So many local ranks of each kind, the first ones."""
        left, result = Counter(counts), []
        for rank, kind in enumerate(self.kinds):
            if left[kind]:
                left[kind] -= 1
                result.append(rank)
            if len(result) == counts.total():
                break
        return result


def _firsts(keys: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """For every place the first one with the same key."""
    seen: dict[tuple[int, ...], int] = {}
    return tuple(seen.setdefault(key, place) for place, key in enumerate(keys))


def losses_of_nodes(schedule: Schedule, symmetries: Symmetries) -> list[Loss]:
    """The representatives of the losses of one node each, where two workers or more are left; in order."""
    cluster = schedule.cluster
    are_alike = symmetries.radices or (cluster.is_regular and not any(symmetries.kinds))
    nodes = range(1 if are_alike else cluster.num_nodes)
    losses = (cluster.workers_of(node) for node in nodes)
    kept = {symmetries.representative(lost) for lost in losses if cluster.num_workers - len(lost) >= 2}
    return sorted(lost for lost in kept if lost is not None)
