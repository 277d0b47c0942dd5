"""Searches for exact consensus by pairs: what CP-SAT enumerates, the factor solver finds and algebra excludes."""

from itertools import permutations, product

import numpy as np
import pytest

from benchmarks.matchings.cyclic import linearise_links, partners_of, random_links, search_cyclic
from benchmarks.matchings.enumeration import all_matchings, canonical, openings
from benchmarks.matchings.search import (
    random_partners,
    search_matchings,
    search_pairs,
    search_rounds,
)
from benchmarks.matchings.weights import (
    contracts,
    has_weights,
    is_exact,
    linearise_pairs,
    reaches_all,
)
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
    partners = random_partners(rng, 50, 4, 7)
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


@pytest.mark.parametrize(
    ("search", "n", "rounds"),
    [
        (search_matchings, 5, 4),
        (search_matchings, 6, 3),
        (search_pairs, 5, 4),
        (search_rounds, 5, 4),
        (search_rounds, 6, 3),
    ],
)
def test_search_finds_the_optimum_again(search, n, rounds):
    report = search(n, rounds, time_limit=60, seed=11)
    assert report.rounds is not None
    assert is_exact(n, report.rounds)
    assert contracts(report.rounds)
    assert len(report.rounds) == rounds == pair_bound(n).rounds


@pytest.mark.parametrize(("n", "rounds", "turn"), [(10, 4, 5), (18, 5, 9)])
def test_cyclic_search_meets_the_bound(n, rounds, turn):
    report = search_cyclic(n, rounds, turn=turn, time_limit=60, seed=1)
    assert report.rounds is not None
    assert is_exact(n, report.rounds)
    assert len(report.rounds) == rounds == pair_bound(n).rounds


@pytest.mark.parametrize("search", [search_matchings, search_pairs])
def test_search_below_the_bound_finds_nothing_and_says_how_much_it_tried(search):
    report = search(5, 3, time_limit=0.5, seed=0)
    assert report.rounds is None
    assert report.reachable == 0
    assert report.tried > 0 or search is search_matchings


@pytest.mark.parametrize(("num_orbits", "turn"), [(2, 5), (4, 3), (3, 4), (1, 6)])
def test_characters_give_the_error_of_the_whole_product_and_its_gradient(num_orbits, turn):
    rng = np.random.default_rng(3)
    links = random_links(rng, 4, 3, num_orbits, turn)
    partners = partners_of(links, num_orbits, turn)
    weights = rng.uniform(0, 1, (4, links.shape[1] * links.shape[2]))
    small = linearise_links(links, num_orbits, turn)
    # Every pair of the whole gets the weight of its link.
    workers = num_orbits * turn
    whole = np.zeros((*partners.shape[:2], workers))
    for link in range(links.shape[2]):
        for side in (0, 1):
            orbit = links[:, :, link, side, None]
            at = np.arange(turn) * num_orbits + orbit
            value = np.broadcast_to(weights.reshape(links.shape[:3])[:, :, link, None], at.shape)
            np.put_along_axis(whole, at, value, axis=2)
    left = np.nonzero(partners > np.arange(workers))[2].reshape(*partners.shape[:2], -1)
    large = linearise_pairs(partners)(np.take_along_axis(whole, left, axis=2).reshape(4, -1))
    assert small(weights).error == pytest.approx(large.error)
    for place in range(weights.shape[1]):
        bumped = weights.copy()
        bumped[:, place] += 1e-6
        slope = (small(bumped).error - small(weights).error) / 1e-6
        assert 2 * small(weights).gradient[:, place] == pytest.approx(slope, abs=1e-4)


@pytest.mark.parametrize(("n", "rounds"), [(2, 3), (7, 2)])
def test_nothing_to_choose_is_refused_in_one_line(n, rounds):
    with pytest.raises(InputError) as error:
        all_matchings(n, rounds, time_limit=1)
    assert "\n" not in str(error.value)
