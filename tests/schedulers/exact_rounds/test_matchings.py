"""Exact consensus by pairs: what CP-SAT enumerates, and what algebra excludes."""

from itertools import permutations, product

import numpy as np
import pytest

from benchmarks.matchings.enumeration import all_matchings, canonical, openings
from benchmarks.matchings.weights import has_weights, reaches_all
from partreduce.schedulers.exact_rounds.lower_bounds import pair_bound
from partreduce.schedulers.synthesis import Status
from partreduce.topo.errors import InputError


def maximum_matchings(n):
    """All maximum matchings of n workers as partner tuples, by brute force."""
    found = set()
    for order in permutations(range(n)):
        partners = list(range(n))
        for i, j in zip(order[0 : n - n % 2 : 2], order[1::2], strict=False):
            partners[i], partners[j] = j, i
        found.add(tuple(partners))
    return sorted(found)


@pytest.mark.parametrize(("n", "rounds"), [(3, 3), (4, 3), (5, 3), (5, 4), (6, 3)])
def test_cp_sat_enumerates_every_orbit_that_brute_force_finds(n, rounds):
    matchings = maximum_matchings(n)
    everything = np.array(list(product(matchings[:1], *[matchings] * (rounds - 1))))
    expected = {canonical(sequence.tolist()) for sequence in everything[reaches_all(everything)]}
    answer = all_matchings(n, rounds, time_limit=60)
    assert answer.status is (Status.OPTIMAL if expected else Status.INFEASIBLE)
    assert set(answer.sequences) == expected
    assert len(answer.sequences) == len(expected)


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7])
def test_openings_are_the_types_of_two_matchings(n):
    def kind(first, second):
        """Sizes of the components of the union, the one with an idle end apart: they fix two matchings."""
        sizes, seen = [], set()
        for root in range(n):
            part, todo = set(), [root]
            while todo:
                if (worker := todo.pop()) not in part:
                    part.add(worker)
                    todo += [first[worker], second[worker]]
            if root not in seen:
                sizes.append((len(part), any(first[w] == w for w in part)))
                seen |= part
        return tuple(sorted(sizes))

    listed = [kind(*opening) for opening in openings(n)]
    assert len(set(listed)) == len(listed)
    first = next(openings(n))[0]
    assert set(listed) == {kind(first, second) for second in maximum_matchings(n)}


def test_canonical_is_the_same_for_every_numbering_and_for_time_reversal():
    rng = np.random.default_rng(0)
    matchings = np.array(maximum_matchings(7))
    partners = matchings[rng.integers(0, len(matchings), (400, 4))]
    assert reaches_all(partners).sum() > 5
    for sequence in partners[reaches_all(partners)]:
        name = rng.permutation(7)
        renamed = np.empty_like(sequence)
        renamed[:, name] = name[sequence]
        assert canonical(renamed.tolist()) == canonical(sequence[::-1].tolist()) == canonical(sequence.tolist())


@pytest.mark.parametrize(("n", "rounds"), [(5, 3), (9, 4)])
def test_infeasible_where_no_matchings_reach_all(n, rounds):
    answer = all_matchings(n, rounds, time_limit=60)
    assert answer.status is Status.INFEASIBLE
    assert rounds < pair_bound(n).rounds


def test_a_time_limit_gives_no_proof():
    answer = all_matchings(14, 5, time_limit=0.5)
    assert answer.status in {Status.FEASIBLE, Status.UNKNOWN}
    assert answer.seconds < 10


def test_seven_workers_in_four_rounds_have_no_weights():
    """Checks the full-tree bound without using it, on every fifteenth of the orbits (the benchmark does all)."""
    answer = all_matchings(7, 4, time_limit=60)
    assert answer.status is Status.OPTIMAL
    assert not any(has_weights(sequence) for sequence in answer.sequences[::15])


def test_algebra_finds_weights_where_there_are_some():
    answers = [has_weights(sequence) for sequence in all_matchings(5, 4, time_limit=60).sequences]
    assert any(answers)
    assert not all(answers)
    assert all(has_weights(sequence) for sequence in all_matchings(6, 3, time_limit=60).sequences)


@pytest.mark.parametrize(("n", "rounds"), [(2, 3), (7, 2)])
def test_nothing_to_choose_is_refused_in_one_line(n, rounds):
    with pytest.raises(InputError) as error:
        all_matchings(n, rounds, time_limit=1)
    assert "\n" not in str(error.value)
