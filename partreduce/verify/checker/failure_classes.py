"""What survivors run when workers fail: which failures are equivalent, and the groups of each failure.

**The plan** is one of three rules, for every failure of up to `failures` workers and for that of all workers of any one
node; failures that leave one worker or none are none. `keep_groups`: the schedule's groups without the failed workers.
`reapply_rule`: the schedule's own rule on the nodes with survivors, in their order, without the failed workers;
`radices` says which radices that has. `all_reduce`: one group of all survivors in every round.

**Symmetries** are permutations of the workers that keep every group. These are used:

* in a rule, any permutation of the values of a digit, on all nodes at once: two nodes agree outside some digits after
  it exactly if they did before;
* on one node, the exchange of two local ranks that in every phase stand in one block, or both in no group: every group
  holds both of them, or neither;
* where groups are listed, the exchange of two workers of one node that are together in the same sense.

Steps per round change no group, so they make no difference here.

**Classes.** Two failures are *equivalent* if a product of symmetries maps one to the other. The *representative* of
one: for each order of its nodes write the values of each digit as 0, 1, … in order of first appearance, and take the
first local ranks of their kind as failed; of all that comes out the smallest is the representative. It is equivalent to
the failure; and of failures that are equivalent the same comes out, because numbering by appearance forgets a
permutation of values, and counting a kind forgets who of it failed.

**All classes.** Every failure of k + 1 workers is a failure of k and one worker more. Map the k to their
representative. Then values of a digit that none of its nodes has may still be permuted, and so may local ranks of a
kind that did not fail. So every class of k + 1 has a member that is a representative of k workers and one more: on a
node whose digits have values of these nodes or the first other one, the first of its kind that did not fail.

**A rule that is applied again.** After a failure number the nodes with survivors. What survivors run is the rule on so
many nodes, without the workers that these nodes lack. So two failures that leave as many nodes are equivalent if a
symmetry of that rule maps what the nodes lack of one to what they lack of the other. Every set of workers without a
whole node is what some failure of so many nodes leaves out, so the classes are those of such sets; a class is named by
its representative and the last nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice, permutations, product
from math import comb
from typing import NamedTuple

from .averages import Average
from .failure_plans import Failure, FailurePlan
from .refusal import Work
from .schedule import Schedule

Groups = list[tuple[list[int], str]]
"""Members and relaxation of each group of a phase."""


class Symmetries(NamedTuple):
    """Nodes with these digits, on each `size` local ranks; `kinds` has the first rank of its kind for each of them.

    Listed groups are one node without digits, whose local ranks are all workers.
    """

    radices: Sequence[int]
    size: int
    kinds: Sequence[int]

    def representative(self, failed: Iterable[int]) -> Failure:
        """Of the failure's class."""
        counts: dict[tuple[int, ...], Counter[int]] = {}
        for worker in failed:
            place, rank = divmod(worker, self.size)
            counts.setdefault(digits_of(place, self.radices), Counter())[self.kinds[rank]] += 1
        ranks = {node: self._first(kinds) for node, kinds in counts.items()}
        found = []
        for order in permutations(counts):
            values = [list(dict.fromkeys(node[at] for node in order)) for at in range(len(self.radices))]
            moved: list[int] = []
            for node in order:
                numbered = [listed.index(value) for listed, value in zip(values, node, strict=True)]
                start = node_of(numbered, self.radices) * self.size
                moved += [start + rank for rank in ranks[node]]
            found.append(tuple(sorted(moved)))
        return min(found)

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

    def classes(self, count: int, work: Work) -> set[Failure]:
        """The representatives of all failures of so many workers."""
        found: set[Failure] = {()}
        for _ in range(count):
            grown: set[Failure] = set()
            for failed in found:
                for worker in self._further(failed, work):
                    grown.add(self.representative((*failed, worker)))
            found = grown
        return found

    def _further(self, failed: Failure, work: Work) -> Iterator[int]:
        nodes = [digits_of(worker // self.size, self.radices) for worker in failed]
        values = [
            range(min(radix, 1 + max((node[digit] for node in nodes), default=-1) + 1))
            for digit, radix in enumerate(self.radices)
        ]
        gone = frozenset(failed)
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
    size = schedule.width
    work.spend(size * (1 + schedule.period))
    keys: list[list[int]] = [[] for _ in range(size)]
    if schedule.form == "rule":
        for phase in schedule.phases:
            home = {rank: at for at, block in enumerate(phase) if is_group(block) for rank in block.members}
            for rank, key in enumerate(keys):
                key.append(home.get(rank, -1))
        return Symmetries(schedule.radices, size, _first_alike(keys))
    work.spend(size * schedule.period * 20)
    for key, node in zip(keys, schedule.nodes_of(range(size)), strict=True):
        key.append(node)
    for listed in expanded(schedule):
        home = {worker: at for at, (members, _) in enumerate(listed) for worker in members}
        for worker, key in enumerate(keys):
            key.append(home.get(worker, -1))
    return Symmetries([], size, _first_alike(keys))


def _first_alike(keys: list[list[int]]) -> list[int]:
    seen: dict[tuple[int, ...], int] = {}
    return [seen.setdefault(tuple(key), place) for place, key in enumerate(keys)]


def is_group(block: Average) -> bool:
    """One local rank across no digit averages with nobody."""
    return len(block.members) > 1 or bool(block.across)


def all_nodes(schedule: Schedule) -> Iterator[Sequence[int]]:
    """The workers of each node."""
    size = schedule.node_size
    return iter(schedule.nodes or (range(at, at + size) for at in range(0, schedule.num_workers, size)))


def classes_of_plan(schedule: Schedule, plan: FailurePlan, work: Work) -> list[Failure]:
    """One failure of each class that a plan covers, smaller ones first; under All-Reduce none is needed."""
    if plan.rule == "all_reduce":
        return []
    found: set[Failure] = set()
    if plan.rule == "keep_groups":
        symmetries = symmetries_of(schedule, work)
        for count in range(1, plan.failures + 1):
            found |= symmetries.classes(count, work)
        # by digits any node may be exchanged for any other
        for node in islice(all_nodes(schedule), 1 if symmetries.radices else None):
            work.spend(1000 + symmetries.size)
            if schedule.num_workers - len(node) >= 2:
                found.add(symmetries.representative(node))
        return sorted(found, key=lambda failed: (len(failed), failed))
    size = schedule.node_size
    for gone in range(schedule.num_workers // size):
        further = plan.failures - gone * size
        if further < 0 and (gone > 1 or schedule.num_workers - size < 2):
            break
        runs = on_nodes(schedule, schedule.num_workers // size - gone)
        symmetries = symmetries_of(runs, work)
        whole = tuple(range(runs.num_workers, schedule.num_workers))
        for count in range(max(0, further) + 1):
            for missing in symmetries.classes(count, work):
                lacks_node = size in Counter(worker // size for worker in missing).values()
                if missing + whole and not lacks_node:
                    found.add(missing + whole)
    return sorted(found, key=lambda failed: (len(failed), failed))


def on_nodes(schedule: Schedule, count: int) -> Schedule:
    """A schedule's rule on so many nodes; its own on as many as it has.

    The prime factors of the number, largest first, are multiplied to radices of 1: each to that of the digit whose new
    radix is the smallest part of its old one, of the first such digit. Digits with radix 1 are none.
    """
    size, old = schedule.node_size, schedule.radices
    if count * size == schedule.num_workers:
        return schedule
    new = [1] * len(old)
    for factor in reversed(prime_factors(count)):
        at = 0
        for digit in range(1, len(old)):
            if old[digit] * new[at] > old[at] * new[digit]:
                at = digit
        new[at] *= factor
    kept = [digit for digit, radix in enumerate(new) if radix > 1]
    phases = [
        [block._replace(across=[kept.index(digit) for digit in block.across if digit in kept]) for block in phase]
        for phase in schedule.phases
    ]
    return replace(schedule, num_workers=count * size, radices=[new[digit] for digit in kept], phases=phases)


def prime_factors(number: int) -> list[int]:
    """Ascending."""
    found: list[int] = []
    divisor = 2
    while number > 1:
        if divisor * divisor > number:
            divisor = number
        if number % divisor:
            divisor += 1
        else:
            found.append(divisor)
            number //= divisor
    return found


def expanded(schedule: Schedule) -> list[Groups]:
    """The groups of every phase, listed; of a rule by the digits that the nodes of a group agree on."""
    if schedule.form != "rule":
        return [[(list(members), str(relaxation)) for members, _, relaxation in phase] for phase in schedule.phases]
    size, result = schedule.width, []
    nodes = list(product(*map(range, schedule.radices)))
    for phase in schedule.phases:
        listed: Groups = []
        for block in filter(is_group, phase):
            groups: dict[tuple[int, ...], list[int]] = {}
            for number, digits in enumerate(nodes):
                kept = tuple(value for digit, value in enumerate(digits) if digit not in block.across)
                groups.setdefault(kept, []).extend(number * size + rank for rank in block.members)
            listed += [(sorted(members), str(block.relaxation)) for members in groups.values()]
        result.append(listed)
    return result


def all_failures(num_workers: int, nodes: Iterable[Sequence[int]], most: int) -> Iterator[Failure]:
    """Every failure of up to `most` workers, smaller ones first and then in order; then those of larger nodes."""
    for count in range(1, most + 1):
        yield from combinations(range(num_workers), count)
    for node in nodes:
        if len(node) > most and num_workers - len(node) >= 2:
            yield tuple(sorted(node))


def number_of_failures(num_workers: int, most: int) -> int:
    """How many failures of up to so many workers there are."""
    return sum(comb(num_workers, count) for count in range(1, most + 1))


def groups_after(schedule: Schedule, plan: FailurePlan, failed: Failure) -> list[Groups]:
    """The groups of every phase that the survivors of one failure run, numbered from 0 in the order of ranks."""
    gone = frozenset(failed)
    left = [worker for worker in range(schedule.num_workers) if worker not in gone]
    if plan.rule == "all_reduce":
        return [[(list(range(len(left))), "1")]]
    runs, place = schedule, {worker: worker for worker in left}
    if plan.rule == "reapply_rule":
        size = schedule.node_size
        nodes = sorted({worker // size for worker in left})
        runs = on_nodes(schedule, len(nodes))
        place = {worker: nodes.index(worker // size) * size + worker % size for worker in left}
    number = {place[worker]: at for at, worker in enumerate(left)}
    kept = (
        [([number[member] for member in members if member in number], relaxation) for members, relaxation in phase]
        for phase in expanded(runs)
    )
    return [[group for group in phase if len(group[0]) > 1] for phase in kept]
