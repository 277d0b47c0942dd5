"""Facts `doubly-stochastic` and `unit-sums`: rows and columns of every mixing matrix sum to 1.

Rows that sum to 1 leave a common value alone, columns that sum to 1 keep the mean; with no negative entry as well,
every new value is a mean of old ones.

**Groups.** In a group of k workers with factor t the matrix has t/k off its diagonal and 1 − t + t/k on it. Rows and
columns sum to 1 for every t, and the smaller of the two numbers is the smallest entry. It is negative unless
0 ≤ t ≤ k/(k−1).

**Weighted graphs.** A worker keeps 1 − (the weights of its incoming edges), so rows sum to 1 as the format is made. The
column of a worker sums to 1 iff the weights that leave it equal the weights that enter it, in every round.

`smallest_weight` is the smallest entry of any mixing matrix, 0 where nobody averages. The first fact is stated where it
is not negative, else the second. Groups are disjoint (`conflict-free`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ..averages import Edge
from ..refusal import Work
from ..schedule import Numbers, Schedule


def doubly_stochastic(schedule: Schedule, _: Work) -> Numbers | None:
    """`smallest_weight`, which is not negative."""
    smallest = _smallest_weight(schedule)
    return None if smallest is None or smallest < 0 else {"smallest_weight": str(smallest)}


def unit_sums(schedule: Schedule, _: Work) -> Numbers | None:
    """`smallest_weight`, which is negative."""
    smallest = _smallest_weight(schedule)
    return None if smallest is None or smallest >= 0 else {"smallest_weight": str(smallest)}


def _smallest_weight(schedule: Schedule) -> Fraction | None:
    """The smallest entry, None where columns do not sum to 1."""
    weights: list[Fraction] = []
    for sizes in schedule.group_sizes():
        for size, relaxation in sizes:
            weights += [relaxation / size, 1 - relaxation + relaxation / size]
    for edges in schedule.rounds:
        listed = weights_of_round(edges)
        if listed is None:
            return None
        weights += listed
    return min(weights, default=Fraction(0))


def weights_of_round(edges: Sequence[Edge]) -> list[Fraction] | None:
    """The entries of one mixing matrix but those that are 0 or 1 for lack of edges; None if a column's sum is not 1.

    Of what workers keep only the smallest is among them.
    """
    keeps: dict[int, Fraction] = {}  # only of workers with edges: there may be far more workers than the file has lines
    surplus: dict[int, Fraction] = {}
    for target, source, weight in edges:
        keeps[target] = keeps.get(target, Fraction(1)) - weight
        surplus[target] = surplus.get(target, Fraction(0)) - weight
        surplus[source] = surplus.get(source, Fraction(0)) + weight
    if any(surplus.values()):
        return None
    return [min(keeps.values(), default=Fraction(1)), *(edge.weight for edge in edges)]
