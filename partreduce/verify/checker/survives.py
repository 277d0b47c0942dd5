"""Claim `survives`: after every failure of up to so many workers, or of one node, survivors reach consensus, so fast.

*What is claimed.* The plan covers every failure of up to `failures` workers and of all workers of any one node, and
each is equivalent to one of `classes` (`failure_classes.py`). The matrix P of a period of what the survivors of that
one run has ‖P − J‖₂² ≤ its `squared` and contracts everything off the mean, J the mean of the survivors. Symmetries
permute the workers, which changes neither: one failure of each class is enough. A rule that is applied again is the
rule on the nodes with survivors, without the workers that these lack, and what follows holds of it as it stands.

**All-Reduce.** P = αI + (1 − α)J after every failure, where a worker keeps a share 0 ≤ α < 1 of its value: ‖P − J‖ = α
as before, and no class is listed.

**Listed groups.** Let 0 ≤ t < 2 in every group, so that no group lengthens a vector, and one with t > 0 keeps its
length only if the vector is constant on it. Groups without the failed workers are such groups. So a period contracts if
those with t > 0 join all survivors (`consensus.py`), and its matrix is looked at as it stands.

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

**Answers.** `answers` is the SHA-256 of what the survivors of every such failure run: for each failure, smaller ones
first and then in order, last those of nodes with more workers, for each phase and survivor the smallest member of its
group and the relaxation, or `-`. Where there may be over 2²⁰ lines not every failure is asked about, and it is empty.

*The check is sound because* it finds classes, groups, cells and matrices by itself; only c² is taken from the entry,
and c² = 1 holds of all that lengthens nothing. Rounds continue in order after a failure, so `deadlock-free` holds of
survivors as of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from .consensus import ZERO, Components, lengthens_nothing
from .failure_classes import Cells, cells_of, classes_of_plan, hash_of_survivors, runs_after, values_on
from .linear_algebra import confirm_norm_by_pivots
from .period import MAX_SIZE, after_averages, averages_on_class, classes, distance_from_mean, factor_of, minus_mean
from .refusal import Work, confirm, confirm_equal
from .schedule import Numbers, Schedule
from .strict_json import as_fraction, as_list, as_object


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`failures`, `classes` (a failure and a bound for each, in order), `answers` (a hash, or empty)."""
    work, plan = Work(place), schedule.failure_plan
    if plan is None:
        confirm(False, place, "survives", "a schedule with a failure plan")
        return
    confirm_equal(f"{place}.failures", entry["failures"], plan.failures)
    listed = as_list(entry["classes"], f"{place}.classes")
    needed = classes_of_plan(schedule, plan, work)
    confirm(len(listed) == len(needed), f"{place}.classes", len(listed), f"{len(needed)} classes of failures")
    seen: dict[int, Confirmed] = {}
    for number, (failed, raw) in enumerate(zip(needed, listed, strict=True)):
        at = work.place = f"{place}.classes[{number}]"
        as_object(raw, at, ("failed", "squared"))
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
    """What was seen to hold of an undisturbed rule: digits with trees, and bounds on classes."""

    joined: set[int]
    bounds: set[tuple[Fraction, tuple[int, ...]]]


def parts_left(runs: Schedule, cells: Cells, known: Confirmed, work: Work) -> tuple[int, int | None]:
    """The parts that contracting groups leave, 1 where they join all: of a free digit, which comes too, or of cells."""
    for digit in sorted(set(cells.free) - known.joined):
        groups = [
            ([ZERO, *ranks] if vanishes else ranks, relaxation)
            for phase in runs.phases
            for ranks, vanishes, relaxation in averages_on_class(phase, [digit])
        ]
        if (parts := _number_of_parts(groups, range(ZERO, runs.width), work)) > 1:
            return parts, digit
        known.joined.add(digit)
    return _number_of_parts([group for phase in cells.phases for group in phase], range(len(cells.sizes)), work), None


def _confirm_rate(runs: Schedule, cells: Cells, squared: Fraction, known: Confirmed, work: Work) -> None:
    """The bound on the classes that hold a free digit, and on the cells."""
    place = work.place
    confirm(len(cells.sizes) <= MAX_SIZE, place, str(squared), f"1: there are over {MAX_SIZE} cells")
    for digits in classes(runs, place, cells.free) if runs.radices else ():
        bound = (squared, tuple(digits))
        if bound not in known.bounds:
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


def off_mean(cells: Cells, work: Work) -> tuple[list[list[int]], int]:
    """P − J for the period P of the cells and the mean J over all their workers: integers, and their denominator."""
    sizes = cells.sizes
    count = len(sizes)
    rows, scale = [[int(i == j) for j in range(count)] for i in range(count)], 1
    for phase in cells.phases:
        groups = [(members, False, relaxation) for members, relaxation in phase]
        work.spend(count * count * (32 + (scale * factor_of(groups, sizes)).bit_length() // 16))
        rows, factor = after_averages(rows, groups, sizes)
        scale *= factor
    return minus_mean(rows, scale, sizes)


def mean_moved(schedule: Schedule, work: Work) -> Numbers | None:
    """Fact `mean-moved`, of schedules with a failure plan: how far a failure moves the workers' mean, and a join.

    Let n workers have the models x_i and the mean m, and d² = Σ ‖x_i − m‖²/n, their squared disagreement at one
    instant.

    *Theorem 1.* Without the k workers in S the mean is m + s/(n − k), where s = Σ_S (m − x_i); with one more, a copy of
    worker j, it is m + (x_j − m)/(n + 1). The x_i − m sum to 0, which is all of it.

    *Theorem 2.* A failure of k moves the mean by at most the root of k/(n − k)·d², `at_most`; a join by at most the
    root of (n − 1)/(n + 1)²·d², `joined_at_most`. Let A be the sum over S of ‖x_i − m‖²; over all others the sum of x_i
    − m is s, and that of their squared lengths n·d² − A. So ‖s‖² ≤ k·A and ‖s‖² ≤ (n − k)·(n·d² − A), by Cauchy and
    Schwarz. The smaller of the two is largest where they are equal, A = (n − k)·d², hence ‖s‖² ≤ k·(n − k)·d². For one
    worker ‖x_j − m‖² ≤ (n − 1)·d². It is attained where the k that failed are at one point and all others at another.

    *Theorem 3.* In the mean over all failures of k workers the square of the way is k/((n − 1)·(n − k))·d², `usual`;
    over all donors it is d²/(n + 1)², `joined`. The inner products of different x_i − m sum to −n·d², so that each is
    −d²/(n − 1) in the mean, and ‖s‖² is k·d² − k·(k − 1)·d²/(n − 1) = k·(n − k)/(n − 1)·d².

    Where gradients are averaged all models are equal, and d is 0. How large d² usually is, `consensus-distance` bounds.
    Numbers: `failed`, the sizes of failures that the plan covers, and for each `usual` and `at_most`; `joined`,
    `joined_at_most`.
    """
    plan, n = schedule.failure_plan, schedule.num_workers
    if plan is None:
        return None
    work.spend(len(schedule.nodes) + plan.failures)
    sizes = sorted({*range(1, plan.failures + 1), *(size for size in schedule.node_sizes if n - size >= 2)})
    return {
        "failed": sizes,
        "usual": [str(Fraction(k, (n - 1) * (n - k))) for k in sizes],
        "at_most": [str(Fraction(k, n - k)) for k in sizes],
        "joined": str(Fraction(1, (n + 1) ** 2)),
        "joined_at_most": str(Fraction(n - 1, (n + 1) ** 2)),
    }
