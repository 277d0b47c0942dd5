"""Exact consensus: every construction multiplied out in fractions, every bound against published values."""

from fractions import Fraction

import numpy as np
import pytest

from helpers.golden import GOLDEN
from partreduce.schedulers.exact_rounds.euclid_slides import is_exact_slide, pieces, slide_rounds, slides, word_of
from partreduce.schedulers.exact_rounds.fewest import fewest_rounds, phases_of_pairs
from partreduce.schedulers.exact_rounds.known_rounds import KNOWN, known_rounds
from partreduce.schedulers.exact_rounds.lower_bounds import pair_bound
from partreduce.schedulers.exact_rounds.pair_constructions import glued_rounds, pair_rounds, split_rounds
from partreduce.schedulers.synthesis import Status
from partreduce.topo import figures
from partreduce.topo.arithmetic.exact_matrices import ExactMatrix
from partreduce.topo.arithmetic.whole_numbers import prime_factors
from partreduce.topo.errors import InputError
from partreduce.topo.mixing import exact_product

BETTER = {
    5: 4, 6: 3, 9: 5, 10: 4, 11: 6, 12: 4, 14: 5, 18: 5, 20: 5, 21: 8, 22: 6, 24: 5, 25: 8, 26: 6, 28: 6, 30: 6, 34: 7,
    35: 9, 36: 6, 38: 7, 40: 6, 42: 7, 44: 7, 45: 9, 46: 8, 48: 6, 49: 10, 50: 7, 52: 7, 54: 7, 56: 7, 58: 8, 60: 7,
    62: 8,
}  # fmt: skip


def base_2_length(num_workers):
    """Rounds of the published Base-2 graph: the split of n, or of its odd part times pairs if shorter."""
    twos = prime_factors(num_workers).count(2)
    odd = num_workers >> twos
    return min(len(split_rounds(num_workers)), twos + (len(split_rounds(odd)) if odd > 1 else 0))


def is_exact(num_workers, rounds):
    """Whether the rounds, pairs with their weights, are matchings whose product is exactly the mean of all workers."""
    product = ExactMatrix.identity(num_workers)
    for pairs in rounds:
        members = sorted(worker for i, j, _ in pairs for worker in (i, j))
        if members != sorted(set(members) & set(range(num_workers))):
            return False
        product = product.averaged(((i, j), 2 * weight, True) for i, j, weight in pairs)
    return product.is_everywhere(Fraction(1, num_workers))


def test_base_2_lengths_are_the_published_ones():
    for n, lengths in GOLDEN["base_k_plus_1_rounds"].items():
        if n != "about":
            assert base_2_length(int(n)) == lengths[0], n


@pytest.mark.parametrize("n", range(2, 65))
def test_pairs_are_exact_and_never_longer_than_base_2(n):
    answer = fewest_rounds(n)
    assert answer.phases is not None
    assert exact_product(answer.phases).is_everywhere(Fraction(1, n))
    assert len(answer.phases) <= base_2_length(n)
    assert len(answer.phases) <= BETTER.get(n, 99)
    assert answer.bound.rounds is not None
    assert len(answer.phases) >= answer.bound.rounds
    assert (answer.status is Status.OPTIMAL) == (len(answer.phases) == answer.bound.rounds)
    assert all(len(g.members) == 2 and 0 < g.relax < 2 for phase in answer.phases for g in phase)


@pytest.mark.parametrize("n", sorted(KNOWN))
def test_tabulated_rounds_are_exact_matchings_that_contract(n):
    rounds = known_rounds(n)
    assert rounds is not None
    assert is_exact(n, rounds)
    assert all(0 < weight < 1 for pairs in rounds for _, _, weight in pairs)
    assert len(rounds) < base_2_length(n)


@pytest.mark.parametrize("n", sorted(KNOWN))
def test_a_changed_weight_is_no_longer_exact(n):
    rounds = [list(pairs) for pairs in known_rounds(n)]
    i, j, weight = rounds[-1][0]
    rounds[-1][0] = (i, j, weight + Fraction(1, 1000))
    assert not is_exact(n, rounds)


@pytest.mark.parametrize("n", [2, 3, 7, 13, 15, 31])
def test_split_is_exact(n):
    assert is_exact(n, split_rounds(n))


def test_golden_relaxed_pairs_are_exact():
    for n in (5, 6):
        rounds = []
        for line in GOLDEN["relaxed_pairs_exact"][str(n)]:
            pairs, *weights = line.split()
            listed = pairs.strip("()").split(")(")
            rounds.append([(int(p[0]), int(p[1]), Fraction(weights[0])) for p in listed])
        assert is_exact(n, rounds)
        assert len(rounds) == fewest_rounds(n).num_rounds


def test_product_by_hand():
    assert exact_product(phases_of_pairs(2, (((0, 1, Fraction(1, 3)),),))).rows()[0] == [Fraction(2, 3), Fraction(1, 3)]
    assert not is_exact(3, [[(0, 1, Fraction(1, 2)), (1, 2, Fraction(1, 2))]])


@pytest.mark.parametrize(
    ("n", "rounds", "name"),
    [(2, 1, "log"), (3, 3, "gossip parity"), (5, 4, "gossip parity"), (6, 3, "log"), (7, 5, "full tree"),
     (13, 5, "gossip parity"), (14, 5, "full tree"), (15, 6, "full tree"), (16, 4, "log"), (30, 6, "full tree"),
     (31, 7, "full tree"), (62, 7, "full tree"), (63, 8, "full tree"), (64, 6, "log")],
)  # fmt: skip
def test_bounds_for_pairs_name_themselves(n, rounds, name):
    bound = pair_bound(n)
    assert (bound.rounds, bound.name) == (rounds, name)


@pytest.mark.parametrize(("n", "g"), [(15, 3), (35, 4), (22, 3), (26, 13)])
def test_larger_groups_mix_means_and_relaxed_pairs(n, g):
    answer = fewest_rounds(n, g)
    assert answer.phases is not None
    assert exact_product(answer.phases).is_everywhere(Fraction(1, n))
    assert max(phase.sizes.max() for phase in answer.phases) <= g


def test_schedule_contracts_to_zero():
    schedule = fewest_rounds(9).schedule()
    assert float(figures.contraction(schedule)) < 1e-12
    assert schedule.period == 5


@pytest.mark.parametrize(("n", "g"), [(1, 2), (4, 1), (10**6, 2)])
def test_senseless_numbers_are_refused_in_one_line(n, g):
    with pytest.raises(InputError) as error:
        fewest_rounds(n, g)
    assert "\n" not in str(error.value)


def test_products_of_found_schedules_add_their_rounds():
    assert len(pair_rounds(60)[0]) == len(pair_rounds(6)[0]) + len(pair_rounds(10)[0])


@pytest.mark.parametrize("half", [*range(3, 41), 89, 127])
def test_slides_are_exact_and_as_long_as_the_least_sum_of_partial_quotients(half):
    rounds = slides(half)
    assert is_exact_slide(half, rounds)

    def quotients(a, b):
        return a // b + (quotients(b, a % b) if a % b else 0)

    assert len(rounds) == min(quotients(half, a) for a in range(1, half) if np.gcd(a, half) == 1)


@pytest.mark.parametrize("half", [3, 5, 8, 11])
def test_the_short_check_of_slides_agrees_with_the_whole_product(half):
    assert is_exact(2 * half, slide_rounds(half))
    for place in range(1, len(slides(half)) - 1):
        rounds = list(slides(half))
        rounds[place] = (rounds[place][0] + 1, rounds[place][1])
        pairs = [[(u, half + (u + shift) % half, w) for u in range(half)] for shift, w in rounds]
        assert is_exact_slide(half, rounds) == is_exact(2 * half, pairs)


def test_a_word_leads_to_the_pieces_it_came_from():
    for large, small in [(2, 1), (8, 5), (12, 7), (11, 8), (40, 1)]:
        assert pieces(word_of(large, small))[-1] == (small, large + small)


@pytest.mark.parametrize(("a", "b"), [(6, 6), (6, 10), (10, 4), (14, 6)])
def test_glued_schedules_save_a_round(a, b):
    inner, outer = pair_rounds(a)[0], pair_rounds(b)[0]
    rounds = glued_rounds(inner, a, outer, b)
    assert is_exact(a * b // 2, rounds)
    assert len(rounds) == len(inner) + len(outer) - 1
