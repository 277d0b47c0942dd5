"""What survivors run when workers fail: which failures are equivalent, and the groups of each failure.

**The plan** is one of three rules, for every failure of up to `failures` workers and for that of all workers of any one
node; failures that leave one worker or none are none. `keep_groups`: the schedule's groups without the failed workers.
`reapply_rule`: the schedule's own rule on the nodes with survivors, in their order, without the failed workers.
`all_reduce`: one group of all survivors in every round.

**Symmetries** are permutations of the workers that keep every group. These are used:

* in a rule any permutation of the values of a digit, on all nodes at once: two nodes agree outside some digits after it
  exactly if they did before;
* on one node any permutation of workers of one *kind*, which in every phase stand in one block or group, or all in
  none: every group holds all of them, or none.

Steps per round change no group, so they make no difference here.

**Pattern.** Write the failed workers in some order. The pattern is their kinds, and for each digit and each of them the
first of them with the same value. Of two failures with one pattern a symmetry maps the first worker of one to the first
of the other, and so on: values are equal in one exactly where they are in the other, so they can be permuted; then the
nodes are the same, and as many workers of each kind failed on each. Any order will do. The one below depends on numbers
of workers only where it must, so that few patterns are equivalent.

**All classes.** Every failure of k + 1 workers is one of k and one worker more. Let a symmetry map the k to the failure
L that was taken for their class. Values of a digit that L does not have may still be permuted, and so may workers of a
kind that did not fail. So it is equivalent to L and a worker that in each digit has a value of L or the first other
one, and is the first of its kind that did not fail there. One of each pattern is taken.

**A rule that is applied again.** What survivors run is the rule on as many nodes as have survivors, without the workers
that these lack. So two failures that leave as many nodes are equivalent if a symmetry of that rule maps what the nodes
lack of one to what they lack of the other. Every set of workers without a whole node is what some failure of so many
nodes leaves out, and so are its subsets: the same induction covers them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, islice, product
from math import comb, prod
from typing import Any, NamedTuple

from .refusal import UNREADABLE, TooLarge, Work
from .schedule import Average, Failure, FailurePlan, Schedule

MAX_CLASSES = 2**16
"""Classes of failures that are looked at."""
MAX_CELLS = 2**23
"""Cells of what the survivors of one failure run, in all phases."""
ASKED = 2**20
"""Lines of all answers, up to which every failure was asked about."""
MAX_WIDTH = 2**20
"""Workers of listed groups, and local ranks of a rule, whose kinds are looked at."""

Pattern = tuple[tuple[int, ...], ...]


class Symmetries(NamedTuple):
    """Nodes with these digits, on each local ranks of these kinds, which are the first rank of its kind for each.

    Listed groups are one node without digits, whose local ranks are all workers.
    """

    radices: Sequence[int]
    kinds: Sequence[int]

    @classmethod
    def of(cls, schedule: Schedule, work: Work) -> Symmetries:
        """Those of a schedule of groups, by the local ranks or workers that have everything in common."""
        size = schedule.width
        if size > MAX_WIDTH:
            raise TooLarge(f"{work.place}: over {MAX_WIDTH} workers, or workers on a node of a rule", UNREADABLE)
        work.spend(size * (1 + schedule.period) * 20)
        kinds = schedule.nodes_of(range(size)) if schedule.form == "groups" else [0] * size
        for phase in schedule.phases:
            home = {rank: at for at, block in enumerate(phase) if is_group(block) for rank in block.members}
            seen: dict[tuple[int, int], int] = {}
            kinds = [seen.setdefault((kind, home.get(rank, -1)), rank) for rank, kind in enumerate(kinds)]
        return cls(schedule.radices, kinds)

    def pattern(self, failed: Iterable[int]) -> Pattern:
        """Kinds, and for each digit who of the failed has a value first: those first whose values fewer others have."""
        rows = [
            (self.kinds[rank], *digits_of(node, self.radices))
            for node, rank in (divmod(worker, len(self.kinds)) for worker in failed)
        ]
        counts = [Counter(column) for column in zip(*rows, strict=True)]
        rows.sort(key=lambda row: (row[0], [count[value] for count, value in zip(counts, row, strict=True)], row))
        columns = list(zip(*rows, strict=True))
        return (*columns[:1], *(tuple(map(column.index, column)) for column in columns[1:]))

    def classes(self, count: int, work: Work) -> dict[Pattern, Failure]:
        """A failure of each pattern of up to so many workers, that of none included."""
        found: dict[Pattern, Failure] = {}
        grown: Iterable[Failure] = [()]
        for _ in range(count + 1):
            last: dict[Pattern, Failure] = {}
            for failed in grown:
                last.setdefault(self.pattern(failed), failed)
                if len(found) + len(last) > MAX_CLASSES + 1:
                    what = f"the failures that the plan covers fall into over {MAX_CLASSES} classes"
                    raise TooLarge(f"{work.place}: {what}", UNREADABLE)
            found |= last
            grown = (tuple(sorted((*failed, one))) for failed in last.values() for one in self._further(failed, work))
        return found

    def _further(self, failed: Failure, work: Work) -> Iterator[int]:
        size, gone = len(self.kinds), frozenset(failed)
        for digits in product(*with_another(values_on(failed, size, self.radices), self.radices)):
            first = node_of(digits, self.radices) * size
            met: set[int] = set()
            work.spend(size)
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


def values_on(failed: Iterable[int], size: int, radices: Sequence[int]) -> list[list[int]]:
    """The values that each digit has on the nodes of some workers."""
    nodes = [digits_of(node, radices) for node in {worker // size for worker in failed}]
    return [sorted({node[digit] for node in nodes}) for digit in range(len(radices))]


def with_another(used: Sequence[Sequence[int]], radices: Sequence[int]) -> list[list[int]]:
    """The used values of each digit and the first other one, if there is one, which stands for all others."""
    return [
        [*values, *islice((value for value in range(radix) if value not in values), 1)]
        for values, radix in zip(used, radices, strict=True)
    ]


def is_group(block: Average) -> bool:
    """Whether a block averages: one local rank across no digit does not."""
    return len(block.members) > 1 or bool(block.across)


def all_nodes(schedule: Schedule) -> Iterator[Sequence[int]]:
    """The workers of each node."""
    size = schedule.node_size
    return iter(schedule.nodes or (range(at, at + size) for at in range(0, schedule.num_workers, size)))


def classes_of_plan(schedule: Schedule, plan: FailurePlan, work: Work) -> list[Failure]:
    """A failure of each class that a plan covers, smaller ones first; under All-Reduce none is needed."""
    n, size = schedule.num_workers, schedule.node_size
    found: list[Failure] = []
    if plan.rule == "keep_groups":
        symmetries = Symmetries.of(schedule, work)
        classes = symmetries.classes(plan.failures, work)
        # by digits any node may be exchanged for any other
        for node in islice(all_nodes(schedule), 1 if symmetries.radices else None):
            work.spend(1000 + 20 * len(node))
            if n - len(node) >= 2:
                classes.setdefault(symmetries.pattern(node), tuple(sorted(node)))
        found += classes.values()
    elif plan.rule == "reapply_rule":
        for left in range(n, 1, -size):
            further = plan.failures - (n - left)
            if further < 0 and left + size < n:
                break
            whole = range(left, n)
            for missing in (
                Symmetries.of(on_nodes(schedule, left // size), work).classes(max(0, further), work).values()
            ):
                if size not in Counter(worker // size for worker in missing).values():
                    found.append((*missing, *whole))
    return sorted(filter(None, found), key=lambda failed: (len(failed), failed))


def runs_after(schedule: Schedule, plan: FailurePlan, failed: Failure) -> tuple[Schedule, Failure]:
    """What the survivors of a failure run: a schedule, and which of its workers are missing in it."""
    n, size = schedule.num_workers, schedule.node_size
    if plan.rule == "keep_groups":
        return schedule, failed
    if plan.rule == "all_reduce":
        return replace(schedule, form="groups", radices=[], phases=[[Average(range(n), (), 1 - schedule.kept)]]), failed
    per_node = Counter(worker // size for worker in failed)
    gone = sorted(node for node, number in per_node.items() if number == size)
    left = (worker for worker in failed if per_node[worker // size] < size)
    missing = tuple(worker - size * bisect(gone, worker // size) for worker in left)
    return on_nodes(schedule, n // size - len(gone)), missing


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


def all_failures(num_workers: int, nodes: Iterable[Sequence[int]], most: int) -> Iterator[Failure]:
    """Every failure of up to `most` workers, smaller ones first and then in order; then those of larger nodes."""
    for count in range(1, most + 1):
        yield from combinations(range(num_workers), count)
    for node in nodes:
        if len(node) > most and num_workers - len(node) >= 2:
            yield tuple(sorted(node))


class Cells(NamedTuple):
    """`sizes`: workers of a cell; a group of `phases` is (cells, relaxation); `free`: digits with other functions."""

    sizes: list[int]
    phases: list[list[tuple[list[int], Fraction]]]
    free: list[int]


def cells_of(schedule: Schedule, failed: Failure, used: Sequence[Sequence[int]], work: Work) -> Cells:
    """The survivors by the values of digits that differ here, in the order of ranks; of listed groups one a cell."""
    size, radices = schedule.width, schedule.radices
    left = [radix - len(values) for values, radix in zip(used, radices, strict=True)]
    choices = with_another(used, radices)
    count = prod(map(len, choices)) * size
    if count * (1 + schedule.period) > MAX_CELLS:
        raise TooLarge(f"{work.place}: over {MAX_CELLS} cells of survivors in all phases", UNREADABLE)
    work.spend(20 * count * (1 + schedule.period))
    sizes: list[int] = []
    gone = frozenset(failed)
    rows: list[tuple[tuple[int, ...], list[int]]] = []  # digits, and the cell of each local rank, -1 of a failed one
    for digits in product(*choices):
        alike = prod(1 if value in values else rest for value, values, rest in zip(digits, used, left, strict=True))
        first = node_of(digits, radices) * size
        row = []
        for worker in range(first, first + size):
            row.append(-1 if worker in gone else len(sizes))
            sizes += [alike] * (worker not in gone)
        rows.append((digits, row))
    phases = [[group for block in phase for group in _groups_of_cells(block, rows)] for phase in schedule.phases]
    return Cells(sizes, phases, [digit for digit, rest in enumerate(left) if rest >= 2])


def _groups_of_cells(
    block: Average, rows: Sequence[tuple[tuple[int, ...], list[int]]]
) -> list[tuple[list[int], Fraction]]:
    kept = [digit for digit in range(len(rows[0][0])) if digit not in block.across]
    groups: dict[tuple[int, ...], list[int]] = {}
    for digits, row in rows:
        found = groups.setdefault(tuple([digits[digit] for digit in kept]), [])
        found += [row[rank] for rank in block.members if row[rank] >= 0]
    return [(members, block.relaxation) for members in groups.values() if len(members) > 1]


def hash_answers(text: Any, runs: Schedule, missing: Failure, work: Work) -> None:  # noqa: ANN401 - of hashlib
    """Hash for each phase and survivor the smallest member of its group and the relaxation, or `-`."""
    left = runs.num_workers - len(missing)
    for phase in cells_of(runs, missing, list(map(range, runs.radices)), work).phases:
        home = {worker: f"{members[0]} {relaxation}\n" for members, relaxation in phase for worker in members}
        text.update("".join(home.get(worker, "-\n") for worker in range(left)).encode())


def hash_of_survivors(schedule: Schedule, plan: FailurePlan, work: Work) -> str:
    """That of what survivors of every failure answer, empty where there are too many."""
    n = schedule.num_workers
    count = schedule.num_nodes + sum(comb(n, failed) for failed in range(1, plan.failures + 1))
    if count * n * schedule.period > ASKED:
        return ""
    text = hashlib.sha256()
    for failed in all_failures(n, all_nodes(schedule), plan.failures):
        hash_answers(text, *runs_after(schedule, plan, failed), work)
    return text.hexdigest()
