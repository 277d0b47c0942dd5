"""What survivors run when workers are lost: which losses are alike, and the groups of each loss.

**Symmetries** are permutations of the workers that keep every group. These are used:

* in a rule, any permutation of the values of a digit, on all nodes at once: two nodes agree outside some digits after
  it exactly if they did before;
* on one node, the exchange of two local ranks that in every phase stand in one block, or both in no group: every group
  holds both of them, or neither;
* where groups are listed, the exchange of two workers of one node that are together in the same sense;
* under All-Reduce, any permutation.

Workers of unequal pace never change places; a rule whose nodes have unequal paces is looked at as listed groups.

**Classes.** Two losses are *alike* if a product of symmetries maps one to the other. The *representative* of one: for
each order of its nodes write the values of each digit as 0, 1, … in order of first appearance, and take the first local
ranks of their kind as lost; of all that comes out the smallest is the representative. It is alike to the loss; and of
losses that are alike the same comes out, because numbering by appearance forgets a permutation of values, and counting
a kind forgets who of it is lost.

**All classes.** Every loss of k + 1 workers is a loss of k and one worker more. Map the k to their representative. Then
values of a digit that none of its nodes has may still be permuted, and so may local ranks of a kind that are not lost.
So every class of k + 1 has a member that is a representative of k workers and one more: on a node whose digits have
values of these nodes or the first other one, the first of its kind that is not lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations, product
from math import comb, prod
from typing import NamedTuple

from .averages import Average
from .failure_plans import Contingency, Loss
from .refusal import Work, require
from .schedule import Schedule

MAX_NODES = 4
"""Of one loss; each order of them is tried."""

Groups = list[tuple[list[int], str]]
"""Members and relax of each group of a phase."""


class Symmetries(NamedTuple):
    """Nodes with these digits, on each `size` local ranks; `kinds` has the first rank of its kind for each of them.

    Listed groups, and All-Reduce, are one node without digits, whose local ranks are all workers.
    """

    radices: Sequence[int]
    size: int
    kinds: Sequence[int]

    def representative(self, lost: Iterable[int]) -> tuple[Loss, list[list[int]]]:
        """Of the loss's class; and of each digit the values of lost nodes in the order that leads there, the first one.

        Orders of nodes are tried as `permutations` of ascending ones gives them.
        """
        counts: dict[tuple[int, ...], Counter[int]] = {}
        for worker in lost:
            place, rank = divmod(worker, self.size)
            counts.setdefault(digits_of(place, self.radices), Counter())[self.kinds[rank]] += 1
        require(len(counts) <= MAX_NODES, "contingencies", f"a loss takes workers of at most {MAX_NODES} nodes")
        ranks = {node: self._first(kinds) for node, kinds in counts.items()}
        found = []
        for number, order in enumerate(permutations(sorted(counts))):
            values = [list(dict.fromkeys(node[at] for node in order)) for at in range(len(self.radices))]
            moved: list[int] = []
            for node in order:
                numbered = [listed.index(value) for listed, value in zip(values, node, strict=True)]
                start = node_of(numbered, self.radices) * self.size
                moved += [start + rank for rank in ranks[node]]
            found.append((tuple(sorted(moved)), number, values))
        loss, _, values = min(found)
        return loss, values

    def _first(self, counts: Counter[int]) -> list[int]:
        """So many local ranks of each kind, the first ones."""
        left, result = counts.total(), []
        for rank, kind in enumerate(self.kinds):
            if not left:
                break
            if counts[kind] > 0:
                counts[kind] -= 1
                left -= 1
                result.append(rank)
        return result

    def permutation(self, lost: Loss) -> list[int]:
        """For every worker whom it stands for, in the symmetry that maps the loss to its representative.

        Values of digits that no lost node has keep their order, and so do local ranks of a kind that are not lost.
        """
        _, values = self.representative(lost)
        orders = [
            [*listed, *(value for value in range(radix) if value not in listed)]
            for listed, radix in zip(values, self.radices, strict=True)
        ]
        gone, result = frozenset(lost), []
        for node in range(prod(self.radices)):
            digits = digits_of(node, self.radices)
            numbered = [order.index(value) for order, value in zip(orders, digits, strict=True)]
            start = node_of(numbered, self.radices) * self.size
            free = {kind: [r for r in range(self.size) if self.kinds[r] == kind] for kind in set(self.kinds)}
            target: dict[int, int] = {}
            for is_kept in (False, True):
                for rank, kind in enumerate(self.kinds):
                    if (node * self.size + rank not in gone) == is_kept:
                        target[rank] = free[kind].pop(0)
            result += [start + target[rank] for rank in range(self.size)]
        return result

    def classes(self, count: int, work: Work) -> set[Loss]:
        """The representatives of all losses of so many workers."""
        found: set[Loss] = {()}
        for _ in range(count):
            grown: set[Loss] = set()
            for lost in found:
                for worker in self._further(lost, work):
                    grown.add(self.representative((*lost, worker))[0])
            found = grown
        return found

    def _further(self, lost: Loss, work: Work) -> Iterator[int]:
        nodes = [digits_of(worker // self.size, self.radices) for worker in lost]
        values = [
            range(min(radix, 1 + max((node[digit] for node in nodes), default=-1) + 1))
            for digit, radix in enumerate(self.radices)
        ]
        gone = frozenset(lost)
        for digits in product(*values):
            first = node_of(digits, self.radices) * self.size
            met: set[int] = set()
            work.spend(self.size)
            for rank, kind in enumerate(self.kinds):
                if kind not in met and first + rank not in gone:
                    met.add(kind)
                    work.spend(1000)
                    yield first + rank


def digits_of(node: int, radices: Sequence[int]) -> tuple[int, ...]:
    """The digits of a node's index, the most significant first."""
    digits = []
    for radix in reversed(radices):
        node, digit = divmod(node, radix)
        digits.append(digit)
    return tuple(reversed(digits))


def node_of(digits: Sequence[int], radices: Sequence[int]) -> int:
    """The node with these digits."""
    node = 0
    for digit, radix in zip(digits, radices, strict=True):
        node = node * radix + digit
    return node


def symmetries_of(schedule: Schedule, work: Work) -> Symmetries:
    """Those of a schedule of groups, by the local ranks or workers that have everything in common."""
    n, paces = schedule.num_workers, schedule.paces
    if schedule.is_allreduce:
        work.spend(n)
        return Symmetries([], n, [0] * n)
    size = schedule.width
    work.spend(n + size * schedule.period)
    are_alike = all(paces[at : at + size] == paces[:size] for at in range(0, len(paces), size))
    if schedule.form == "rule" and are_alike:
        keys: list[list[int]] = [[pace] for pace in (paces * size)[:size]]
        for phase in schedule.phases:
            home = {rank: at for at, block in enumerate(phase) if is_group(block) for rank in block.members}
            for rank, key in enumerate(keys):
                key.append(home.get(rank, -1))
        return Symmetries(schedule.radices, size, _first_alike(keys))
    work.spend(n * schedule.period * 20)
    node = {worker: number for number, workers in enumerate(schedule.nodes) for worker in workers}
    pace = paces * n if len(paces) == 1 else paces
    keys = [[node[worker] if node else worker // schedule.node_size, pace[worker]] for worker in range(n)]
    for listed in expanded(schedule):
        home = {worker: at for at, (members, _) in enumerate(listed) for worker in members}
        for worker, key in enumerate(keys):
            key.append(home.get(worker, -1))
    return Symmetries([], n, _first_alike(keys))


def _first_alike(keys: list[list[int]]) -> list[int]:
    seen: dict[tuple[int, ...], int] = {}
    return [seen.setdefault(tuple(key), place) for place, key in enumerate(keys)]


def is_group(block: Average) -> bool:
    """One local rank across no digit averages with nobody."""
    return len(block.members) > 1 or bool(block.across)


def losses_of_nodes(schedule: Schedule, symmetries: Symmetries, work: Work) -> set[Loss]:
    """The representatives of the losses of one node each that leave two workers or more."""
    n = schedule.num_workers
    if schedule.nodes:
        nodes: Iterable[Sequence[int]] = schedule.nodes
    else:  # all are alike where they have digits, and under All-Reduce
        are_alike = bool(symmetries.radices) or not any(symmetries.kinds)
        count = 1 if are_alike else n // schedule.node_size
        nodes = (range(at * schedule.node_size, (at + 1) * schedule.node_size) for at in range(count))
    found = set()
    for node in nodes:
        work.spend(1000 + symmetries.size)
        if n - len(node) >= 2:
            found.add(symmetries.representative(node)[0])
    return found


def expanded(schedule: Schedule) -> list[Groups]:
    """The groups of every phase, listed; of a rule by the digits that the nodes of a group agree on."""
    size = schedule.width if schedule.form == "rule" else 0
    return [listed_groups(phase, schedule.radices, size) for phase in schedule.phases]


def listed_groups(phase: Sequence[Average], radices: Sequence[int], size: int) -> Groups:
    """The groups of one phase: as they are, or of a rule for these radices and nodes of `size` workers, if not 0."""
    if not size:
        return [(list(members), str(relax)) for members, _, relax in phase]
    result: Groups = []
    nodes = list(product(*map(range, radices)))
    for block in filter(is_group, phase):
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, digits in enumerate(nodes):
            kept = tuple(value for digit, value in enumerate(digits) if digit not in block.across)
            groups.setdefault(kept, []).extend(number * size + rank for rank in block.members)
        result += [(sorted(members), str(block.relax)) for members in groups.values()]
    return result


def all_losses(num_workers: int, nodes: Iterable[Sequence[int]], most: int, *, of_nodes: bool) -> Iterator[Loss]:
    """Every loss of up to `most` workers, smaller ones first and then in order; then those of larger nodes."""
    for count in range(1, most + 1):
        yield from combinations(range(num_workers), count)
    for node in nodes if of_nodes else ():
        if len(node) > most and num_workers - len(node) >= 2:
            yield tuple(sorted(node))


def number_of_losses(num_workers: int, most: int) -> int:
    """How many losses of up to so many workers there are."""
    return sum(comb(num_workers, count) for count in range(1, most + 1))


def groups_after(
    schedule: Schedule, listed: Sequence[Groups], symmetries: Symmetries, planned: dict[Loss, Contingency], lost: Loss
) -> Sequence[Groups]:
    """The groups of every phase that the survivors of one loss run, numbered anew; `listed` are the schedule's own."""
    found, gone = planned[symmetries.representative(lost)[0]], frozenset(lost)
    left = [worker for worker in range(schedule.num_workers) if worker not in gone]
    if found.form == "all" or schedule.is_allreduce:
        return [[(list(range(len(left))), "1")]]
    number = {worker: at for at, worker in enumerate(left)}
    if found.form == "remaining":
        kept = (
            [([number[worker] for worker in members if worker not in gone], relax) for members, relax in phase]
            for phase in listed
        )
        return [[group for group in phase if len(group[0]) > 1] for phase in kept]
    own = [listed_groups(phase, found.radices, found.size) for phase in found.phases]
    if found.form == "rule":  # for equal nodes, whichever they are
        return own
    to = symmetries.permutation(lost)
    stands_for = {to[worker]: number[worker] for worker in left}
    theirs = [stands_for[worker] for worker in sorted(stands_for)]
    return [[(sorted(theirs[member] for member in members), relax) for members, relax in phase] for phase in own]
