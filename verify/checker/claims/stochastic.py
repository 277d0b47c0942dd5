"""Claims `doubly-stochastic` and `unit-sums`: rows and columns of every mixing matrix sum to 1.

Rows that sum to 1 leave a common value alone, columns that sum to 1 keep the mean; with no negative entry as well,
every new value is a mean of old ones.

**Groups.** In a group of k workers with factor t the matrix has t/k off its diagonal and 1 − t + t/k on it. Rows and
columns sum to 1 for every t, and the smaller of the two numbers is the smallest entry. It is negative unless
0 ≤ t ≤ k/(k−1).

**Weighted graphs.** A worker keeps 1 − (the weights of its incoming edges), so rows sum to 1 as the format is made. The
column of a worker sums to 1 iff the weights that leave it equal the weights that enter it, in every round.

*The check is sound because* it computes all of this from the schedule. It assumes that groups are disjoint, which
`conflict-free` confirms before.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..refusal import confirm, confirm_equal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..schedule import Edge, Schedule


def check_unit_sums(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`smallest_weight`: the smallest entry of any mixing matrix (0 where nobody averages)."""
    _confirm_sums(schedule, entry, place)


def check_doubly_stochastic(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`smallest_weight`, which is not negative."""
    smallest = _confirm_sums(schedule, entry, place)
    confirm(smallest >= 0, f"{place}.smallest_weight", str(smallest), "no negative weight")


def _confirm_sums(schedule: Schedule, entry: dict[str, Any], place: str) -> Fraction:
    weights: list[Fraction] = []
    for sizes in schedule.group_sizes():
        for size, relax in sizes:
            weights += [relax / size, 1 - relax + relax / size]
    for t, edges in enumerate(schedule.rounds):
        weights += weights_of_round(edges, f"schedule: round {t}")
    smallest = min(weights, default=Fraction(0))
    confirm_equal(f"{place}.smallest_weight", entry["smallest_weight"], str(smallest))
    return smallest


def weights_of_round(edges: Sequence[Edge], place: str) -> list[Fraction]:
    """Every entry of one mixing matrix that is not 0 or 1 for lack of edges, once its columns are seen to sum to 1."""
    keeps: dict[int, Fraction] = {}  # only of workers with edges: there may be far more workers than the file has lines
    surplus: dict[int, Fraction] = {}
    for target, source, weight in edges:
        keeps[target] = keeps.get(target, Fraction(1)) - weight
        surplus[target] = surplus.get(target, Fraction(0)) - weight
        surplus[source] = surplus.get(source, Fraction(0)) + weight
    uneven = sorted(worker for worker, difference in surplus.items() if difference)[:1]
    confirm(not uneven, place, uneven, "columns that sum to 1")
    return [min(keeps.values(), default=Fraction(1)), *(edge.weight for edge in edges)]
