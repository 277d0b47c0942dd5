"""Prague's convergence conditions: the closed forms against the full expectation, enumerated in fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from preduce.topo.cluster import Cluster
from preduce.topo.errors import ScheduleError
from preduce.topo.strategies.generated import Division, Generated
from preduce.verify.generated import convergence_conditions, inter_intra, one_group, partition


def projection(n, groups):
    matrix = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    for group in groups:
        for i in group:
            for j in range(n):
                matrix[i][j] = Fraction(int(j in group), len(group))
    return matrix


def product(a, b):
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def divisions(workers, size):
    """Every way to cut a random order into groups, each once per order."""
    for order in itertools.permutations(workers):
        yield tuple(tuple(order[k : k + size]) for k in range(0, len(order), size))


def expectation(draws):
    squares = [product([list(column) for column in zip(*w, strict=True)], w) for w in draws]
    n = len(squares[0])
    return np.array([[float(sum(w[i][j] for w in squares) / len(squares)) for j in range(n)] for i in range(n)])


def second(matrix):
    return np.sort(np.linalg.eigvalsh(matrix))[-2]


@pytest.mark.parametrize(("n", "g"), [(3, 2), (4, 2), (5, 2), (5, 3), (6, 3), (6, 4)])
def test_closed_forms_of_one_group_and_of_a_partition(n, g):
    ones = expectation(projection(n, [group]) for group in itertools.combinations(range(n), g))
    assert second(ones) == pytest.approx(float(one_group(n, g)), abs=1e-12)
    parts = expectation(projection(n, groups) for groups in divisions(range(n), g))
    assert second(parts) == pytest.approx(float(partition(n, g)), abs=1e-12)


@pytest.mark.parametrize(("nodes", "p", "g"), [(2, 2, 2), (3, 2, 2), (3, 3, 2), (4, 2, 3), (4, 2, 2), (2, 4, 2)])
def test_closed_form_of_inter_then_intra(nodes, p, g):
    n = nodes * p
    intra = projection(n, [tuple(range(k * p, k * p + p)) for k in range(nodes)])
    heads = [k * p for k in range(nodes)]
    inside = [set(divisions(range(k * p + 1, k * p + p), g)) for k in range(nodes)]

    def draws():
        for across in divisions(heads, g):
            for rest in itertools.product(*inside):
                yield product(intra, projection(n, [*across, *itertools.chain(*rest)]))

    assert second(expectation(draws())) == pytest.approx(float(inter_intra(nodes, p, g)), abs=1e-12)


def test_known_values():
    assert partition(16, 2) == Fraction(7, 15)
    assert partition(16, 4) == Fraction(1, 5)
    assert partition(12, 3) == Fraction(3, 11)
    assert partition(8, 2) == Fraction(3, 7)


def test_conditions_hold_without_the_filter_and_not_with_it():
    cluster = Cluster.regular(4, 4)
    for division in Division:
        free = convergence_conditions(Generated(division=division, slow_threshold=None), cluster)
        assert free.hold
        assert 0 < float(free.second_eigenvalue) < 1
        filtered = convergence_conditions(Generated(division=division, slow_threshold=4), cluster)
        assert filtered.contracts
        assert not filtered.independent
        assert "progress" in filtered.why


def test_a_partition_into_singletons_would_not_contract():
    """The check can say no: groups of 1 leave every worker where it is."""
    assert one_group(5, 1) == 1
    assert not inter_intra(3, 2, 1).is_below_one


def test_irregular_clusters_are_refused_for_inter_intra():
    with pytest.raises(ScheduleError, match="equal size"):
        convergence_conditions(Generated(), Cluster.parse("3,2"))
