"""Claim `survives`: after every planned failure the survivors reach consensus, with a bound on the rate.

*The claim.* The plan covers every failure of up to `failures` workers, and of all workers of any one node, that leaves
at least two workers. Each is equivalent to one failure in `classes`. Let P be the matrix of one period of the schedule
that the survivors of that failure run, and J their mean: ‖P − J‖₂² is at most the failure's `squared`, and P contracts
everything off the mean.

**The plan** is one of three rules. `keep_groups`: the schedule's groups without the failed workers.
`reapply_rule`: the schedule's own rule on the nodes with survivors, in their order, without the failed workers.
`all_reduce`: one group of all survivors in every round.

**Symmetries** are permutations of the workers that keep every group. They change neither statement, so one failure of
each class is enough. These are used:

* in a rule any permutation of the values of a digit, on all nodes at once: two nodes agree outside some digits after it
  exactly if they did before;
* on one node any permutation of workers of one *kind*, which in every phase stand in one block or group, or all in
  none: every group holds all of them, or none.

**Pattern.** Write the failed workers in some order. The pattern is their kinds, and for each digit and each of them the
first of them with the same value. Of two failures with one pattern a symmetry maps the first worker of one to the first
of the other, and so on: values are equal in one exactly where they are in the other, so they can be permuted; then the
nodes are the same, and as many workers of each kind failed on each. Any order will do; one that depends little on the
numbers of workers leaves few equivalent patterns.

**All classes.** Every failure of k + 1 workers is one of k and one worker more. Let a symmetry map the k to the failure
L that was taken for their class. Values of a digit that L does not have may still be permuted, and so may workers of a
kind that did not fail. So it is equivalent to L and a worker that in each digit has a value of L or the first other
one, and is the first of its kind that did not fail there. One of each pattern is taken.

**A rule that is applied again.** Survivors run the rule on as many nodes as have survivors, without the failed workers
of these nodes. So two failures that leave equally many nodes are equivalent if a symmetry of that rule maps the missing
workers of one to those of the other. Every set of workers that contains no whole node is the set of missing workers
after some failure of so many nodes, and so are its subsets: the same induction covers them.

**All-Reduce.** P = αI + (1 − α)J after every failure, where a worker keeps a share 0 ≤ α < 1 of its value: ‖P − J‖ = α
as before, and no class is listed.

**Listed groups.** Let 0 ≤ t < 2 in every group, so that no group lengthens a vector, and one with t > 0 keeps its
length only if the vector is constant on it. Groups without the failed workers are such groups. So a period contracts if
those with t > 0 join all survivors (`consensus.py`), and its matrix is computed directly.

**A rule.** Let U_d be the values that digit d has on failed nodes, and r_d its radix. Functions of a digit are the sum
of two orthogonal spaces: F_d of those that are the same on all values outside U_d, and V_d of those that are 0 on U_d
and sum to 0. For a set c of digits let E_c be the functions on the nodes spanned by products with a factor in V_d for d
in c and in F_d for other digits. All E_c together are everything, orthogonally.

Let c be not empty. A function in E_c is 0 on all nodes that have a digit in U_d for a d in c, hence on failed nodes:
the whole E_c, for all local ranks, is there after the failure. A block across D takes its mean over a group. If D meets
c the sum over a digit in both is 0, of the group with the failed workers or without. If not, all nodes of the group
have the same digits in c: either the function is 0 on the group, or no failed node is in it. So a phase acts on E_c as
the phase of the undisturbed rule does, on which E_c lies in the classes that hold c (`period.py`). There are such c
exactly where a digit has V_d ≠ 0, which is r_d − |U_d| ≥ 2: such digits are *free*. So ‖P‖ on all these E_c is the
largest of the rule's norms on the classes that hold a free digit, and all vectors there get shorter if on the class of
each single free digit a tree joins all local ranks and 0 (`consensus.py`: with more digits more is tied to 0).

What is left is E of the empty set, less the failed workers: vectors that are constant on *cells*. A cell is a local
rank on the nodes that have in each digit one value of U_d, or any outside. A group's mean of such a vector is that of
its cells' values, each with the number of the group's workers in the cell as weight: the cell's size divided by what
all cells of the group have in common, the ways to choose the digits outside D. So sizes serve as weights. In the inner
product with sizes as weights averages are projections as ever, so the argument about connection holds for cells, and ‖P
− J‖₂² ≤ c² on them is seen by pivots.

**Answers.** `answers` is the SHA-256 of the groups that survivors compute, as in `membership`, after each such failure:
smaller ones first and then in order, last those of nodes with more workers. It is empty if it may exceed 2²⁰ lines.

Rounds continue in order after a failure, so `deadlock-free` holds for the survivors, too.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations, islice, product
from math import comb, isqrt, prod
from typing import Any, NamedTuple

from .consensus import ZERO, Components, lengthens_nothing
from .linear_algebra import confirm_norm_by_pivots
from .period import (
    MAX_SIZE,
    Rational,
    after_averages,
    averages_on_class,
    classes,
    distance_from_mean,
    factor_of,
    minus_mean,
    multiply,
)
from .refusal import Work, confirm, confirm_equal
from .schedule import Average, Failure, FailurePlan, Schedule
from .strict_json import as_fraction

MAX_CLASSES = 2**16
"""Most classes of failures that are examined."""
MAX_CELLS = 2**23
"""Most cells of the survivors of one failure, summed over all phases."""
ASKED = 2**20
"""Most lines of the survivors' answers after all failures; with more, `answers` is empty."""
MAX_WIDTH = 2**20
"""Most workers of listed groups, or local ranks of a rule, whose symmetries are computed."""

Pattern = tuple[tuple[int, ...], ...]


class Symmetries(NamedTuple):
    """The symmetries of a schedule: nodes with these radices, and for each local rank the first rank of its kind.

    Ranks of one kind share all groups. Explicit groups are one node without digits, whose local ranks are all workers.
    """

    radices: Sequence[int]
    kinds: Sequence[int]

    @classmethod
    def of(cls, schedule: Schedule, work: Work) -> Symmetries:
        """Return the symmetries of a schedule of groups: ranks are of one kind if all their groups are the same."""
        size = schedule.width
        work.require(size <= MAX_WIDTH, f"over {MAX_WIDTH} workers, or workers on a node of a rule")
        work.spend(size * (1 + schedule.period) * 20)
        kinds = schedule.nodes_of(range(size)) if schedule.form == "groups" else [0] * size
        for phase in schedule.phases:
            home = {rank: at for at, block in enumerate(phase) if block.is_group for rank in block.members}
            seen: dict[tuple[int, int], int] = {}
            kinds = [seen.setdefault((kind, home.get(rank, -1)), rank) for rank, kind in enumerate(kinds)]
        return cls(schedule.radices, kinds)

    def pattern(self, failed: Iterable[int]) -> Pattern:
        """Return the failed workers' kinds, and for each digit and failed worker the first one with the same value.

        Workers are ordered by kind, then by how few others share their values.
        """
        rows = [
            (self.kinds[rank], *digits_of(node, self.radices))
            for node, rank in (divmod(worker, len(self.kinds)) for worker in failed)
        ]
        counts = [Counter(column) for column in zip(*rows, strict=True)]
        rows.sort(key=lambda row: (row[0], [count[value] for count, value in zip(counts, row, strict=True)], row))
        columns = list(zip(*rows, strict=True))
        return (*columns[:1], *(tuple(map(column.index, column)) for column in columns[1:]))

    def classes(self, count: int, work: Work) -> dict[Pattern, Failure]:
        """Return one failure of each class that symmetries make equal, of at most `count` workers (also of none)."""
        found: dict[Pattern, Failure] = {}
        grown: Iterable[Failure] = [()]
        for _ in range(count + 1):
            last: dict[Pattern, Failure] = {}
            for failed in grown:
                last.setdefault(self.pattern(failed), failed)
                fits = len(found) + len(last) <= MAX_CLASSES + 1
                work.require(fits, f"the failures that the plan covers fall into over {MAX_CLASSES} classes")
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
    """Return the digits of a node's index, the most significant first."""
    digits = []
    for radix in reversed(radices):
        node, digit = divmod(node, radix)
        digits.append(digit)
    return tuple(reversed(digits))


def node_of(digits: Sequence[int], radices: Sequence[int]) -> int:
    """Return the index of the node with these digits."""
    node = 0
    for digit, radix in zip(digits, radices, strict=True):
        node = node * radix + digit
    return node


def values_on(failed: Iterable[int], size: int, radices: Sequence[int]) -> list[list[int]]:
    """Return for each digit its values on the nodes of the failed workers; `size` is the number of workers per node."""
    nodes = [digits_of(node, radices) for node in {worker // size for worker in failed}]
    return [sorted({node[digit] for node in nodes}) for digit in range(len(radices))]


def with_another(used: Sequence[Sequence[int]], radices: Sequence[int]) -> list[list[int]]:
    """Return for each digit the used values and, as a representative of all others, the first other one, if any."""
    return [
        [*values, *islice((value for value in range(radix) if value not in values), 1)]
        for values, radix in zip(used, radices, strict=True)
    ]


def all_nodes(schedule: Schedule) -> Iterator[Sequence[int]]:
    """Return an iterator over the nodes, each as the ranks of its workers."""
    size = schedule.node_size
    return iter(schedule.nodes or (range(at, at + size) for at in range(0, schedule.num_workers, size)))


def classes_of_plan(schedule: Schedule, plan: FailurePlan, work: Work) -> list[Failure]:
    """Return one failure of each class of equivalent failures of a plan, smaller ones first; empty for All-Reduce."""
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
            symmetries = Symmetries.of(on_nodes(schedule, left // size), work)
            for missing in symmetries.classes(max(0, further), work).values():
                if size not in Counter(worker // size for worker in missing).values():
                    found.append((*missing, *whole))
    return sorted(filter(None, found), key=lambda failed: (len(failed), failed))


def runs_after(schedule: Schedule, plan: FailurePlan, failed: Failure) -> tuple[Schedule, Failure]:
    """Return the schedule that survivors of a failure follow, and the workers of that schedule that are missing."""
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
    """Return the schedule's rule applied to `count` nodes; the schedule itself for its own number of nodes.

    All new radices start at 1. The prime factors of `count`, the largest first, are multiplied into them: each into
    that of the digit for which new radix / old radix is smallest, the first one of equals. Digits with radix 1 are
    dropped.
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
    """Return the prime factors of a number in ascending order, repeated by multiplicity."""
    for divisor in range(2, isqrt(number) + 1):
        if number % divisor == 0:
            return [divisor, *prime_factors(number // divisor)]
    return [number] if number > 1 else []


def all_failures(num_workers: int, nodes: Iterable[Sequence[int]], most: int) -> Iterator[Failure]:
    """Yield the ranks of every failure of up to `most` workers, smaller ones first, then those of every larger node."""
    for count in range(1, most + 1):
        yield from combinations(range(num_workers), count)
    for node in nodes:
        if len(node) > most and num_workers - len(node) >= 2:
            yield tuple(sorted(node))


class Cells(NamedTuple):
    """Sets of equivalent survivors: sizes, averages per phase; `free` digits have ≥ 2 values on no failed node."""

    sizes: list[int]
    phases: list[list[Average]]
    free: list[int]


def cells_of(schedule: Schedule, failed: Failure, used: Sequence[Sequence[int]], work: Work) -> Cells:
    """Return the cells of the survivors, in the order of ranks; `used` has the values of each digit on failed nodes."""
    size, radices = schedule.width, schedule.radices
    left = [radix - len(values) for values, radix in zip(used, radices, strict=True)]
    choices = with_another(used, radices)
    count = prod(map(len, choices)) * size
    fits = count * (1 + schedule.period) <= MAX_CELLS
    work.require(fits, f"over {MAX_CELLS} cells of survivors in all phases")
    work.spend(20 * count * (1 + schedule.period))
    sizes: list[int] = []
    gone = frozenset(failed)
    rows: list[tuple[tuple[int, ...], list[int]]] = []  # digits, and the cell of each local rank, -1 of a failed one
    for digits in product(*choices):
        same = prod(1 if value in values else rest for value, values, rest in zip(digits, used, left, strict=True))
        first = node_of(digits, radices) * size
        row = []
        for worker in range(first, first + size):
            row.append(-1 if worker in gone else len(sizes))
            sizes += [same] * (worker not in gone)
        rows.append((digits, row))
    phases = [[group for block in phase for group in _groups_of_cells(block, rows)] for phase in schedule.phases]
    return Cells(sizes, phases, [digit for digit, rest in enumerate(left) if rest >= 2])


def _groups_of_cells(block: Average, rows: Sequence[tuple[tuple[int, ...], list[int]]]) -> list[Average]:
    kept = [digit for digit in range(len(rows[0][0])) if digit not in block.across]
    groups: dict[tuple[int, ...], list[int]] = {}
    for digits, row in rows:
        found = groups.setdefault(tuple([digits[digit] for digit in kept]), [])
        found += [row[rank] for rank in block.members if row[rank] >= 0]
    return [Average(members, (), block.relaxation) for members in groups.values() if len(members) > 1]


def hash_answers(text: Any, runs: Schedule, missing: Failure, work: Work) -> None:  # noqa: ANN401 - of hashlib
    """Update the hash `text` with each survivor's group in every phase of `runs`, whose workers `missing` failed."""
    left = runs.num_workers - len(missing)
    for phase in cells_of(runs, missing, list(map(range, runs.radices)), work).phases:
        home = {worker: f"{members[0]} {relaxation}\n" for members, _, relaxation in phase for worker in members}
        text.update("".join(home.get(worker, "-\n") for worker in range(left)).encode())


def hash_of_survivors(schedule: Schedule, plan: FailurePlan, work: Work) -> str:
    """Return `answers` of a plan: the SHA-256 of the survivors' groups, empty if there may be too many lines."""
    n = schedule.num_workers
    count = schedule.num_nodes + sum(comb(n, failed) for failed in range(1, plan.failures + 1))
    if count * n * schedule.period > ASKED:
        return ""
    text = hashlib.sha256()
    for failed in all_failures(n, all_nodes(schedule), plan.failures):
        hash_answers(text, *runs_after(schedule, plan, failed), work)
    return text.hexdigest()


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """Raise a Refusal unless the survivors of one failure of each class reach consensus at the rate in `entry`."""
    work, plan = Work(place), schedule.failure_plan
    confirm(plan is not None, place, "survives", "a schedule with a failure plan")
    assert plan is not None, "as was just asked"
    confirm_equal(f"{place}.failures", entry["failures"], plan.failures)
    listed, needed = entry["classes"], classes_of_plan(schedule, plan, work)
    confirm(len(listed) == len(needed), f"{place}.classes", len(listed), f"{len(needed)} classes of failures")
    seen: dict[int, Confirmed] = {}
    for number, (failed, raw) in enumerate(zip(needed, listed, strict=True)):
        at = work.place = f"{place}.classes[{number}]"
        confirm_equal(f"{at}.failed", raw["failed"], list(failed))
        squared = as_fraction(raw["squared"], f"{at}.squared")
        confirm(0 <= squared <= 1, f"{at}.squared", raw["squared"], "from 0 to 1")
        runs, missing = runs_after(schedule, plan, failed)
        known = seen.setdefault(runs.num_workers, Confirmed(set(), set()))
        cells = cells_of(runs, missing, values_on(missing, runs.width, runs.radices), work)
        confirm(lengthens_nothing(runs), at, "consensus", "0 <= relaxation < 2 in every group")
        parts, _ = parts_left(runs, cells, known, work)
        confirm(parts == 1, at, "consensus", f"groups that join all survivors; they leave {parts} parts")
        if squared < 1:
            _confirm_rate(runs, cells, squared, known, work)
    work.place = place
    confirm_equal(f"{place}.answers", entry["answers"], hash_of_survivors(schedule, plan, work))


class Confirmed(NamedTuple):
    """Results that hold for a rule whatever failed: digits whose class a tree joins, and (bound, class) pairs."""

    joined: set[int]
    bounds: set[tuple[Fraction, tuple[int, ...]]]


def parts_left(runs: Schedule, cells: Cells, known: Confirmed, work: Work) -> tuple[int, int | None]:
    """Return the number of parts into which the survivors' groups leave the cells (1: all are joined), and None.

    If on the class of a free digit local ranks and 0 are not joined, return the number of parts there, and the digit.
    """
    for digit in sorted(set(cells.free) - known.joined):
        groups = [
            ([ZERO, *ranks] if vanishes else ranks, relaxation)
            for phase in runs.phases
            for ranks, vanishes, relaxation in averages_on_class(phase, [digit])
        ]
        if (parts := _number_of_parts(groups, range(ZERO, runs.width), work)) > 1:
            return parts, digit
        known.joined.add(digit)
    groups = [(members, relaxation) for phase in cells.phases for members, _, relaxation in phase]
    return _number_of_parts(groups, range(len(cells.sizes)), work), None


def _confirm_rate(runs: Schedule, cells: Cells, squared: Fraction, known: Confirmed, work: Work) -> None:
    """Confirm that a period of the survivors' schedule leaves at most `squared` of the squared distance to the mean."""
    place = work.place
    confirm(len(cells.sizes) <= MAX_SIZE, place, str(squared), f"1: there are over {MAX_SIZE} cells")
    for digits in classes(runs, place, cells.free) if runs.radices else ():
        if (bound := (squared, digits)) not in known.bounds:
            rest, on = distance_from_mean(runs, digits, 1, work), ", on functions that differ between other nodes"
            confirm_norm_by_pivots(squared, rest, [1] * runs.width, place, work, on=on)
            known.bounds.add(bound)
    confirm_norm_by_pivots(squared, off_mean(cells, work), cells.sizes, place, work)


def _number_of_parts(groups: Sequence[tuple[Sequence[int], Fraction]], vertices: range, work: Work) -> int:
    work.spend(20 * sum(len(members) for members, _ in groups))
    components, parts = Components(vertices.stop), len(vertices)
    for members, relaxation in groups:
        for member in members[1:] if relaxation else ():
            parts -= components.join(members[0], member)
    return parts


def off_mean(cells: Cells, work: Work) -> Rational:
    """Return P − J for the period P of the cells (equivalent survivors) and the mean J over all their workers."""
    sizes = cells.sizes
    steps = (
        ((3 * factor_of(phase, sizes)).bit_length(), partial(after_averages, phase=phase, sizes=sizes))  # 0 ≤ t < 2
        for phase in (averages_on_class(phase, ()) for phase in cells.phases)
    )
    return minus_mean(*multiply(len(sizes), steps, work), sizes)
