"""The samples of an epoch over losses and joins: none in two averages, and none left out that would fill a round."""

import random

import pytest

from partreduce.runtime.data.sampler import assign_samples

ALL = (0, 1, 2, 3)


def seen(views, *, samples, per_step=2, worker_steps=(1, 1, 1, 1), start=0):
    """What is in an average, in order, and who is a member at the end."""
    rounds = list(assign_samples(range(samples), views, worker_steps, per_step, start))
    return [sample for _, hands in rounds for own in hands.values() for sample in own], rounds


def test_without_a_loss_rounds_are_dealt_by_rank_and_steps_per_round():
    _, rounds = seen([(-1, ALL)], samples=22, worker_steps=(1, 2, 1, 1), start=5)
    assert rounds[0] == (5, {0: [0, 1], 1: [2, 3, 4, 5], 2: [6, 7], 3: [8, 9]})
    assert [round_ for round_, _ in rounds] == [5, 6]


def test_the_samples_of_a_worker_that_is_lost_are_dealt_again_in_the_next_round():
    _, rounds = seen([(-1, ALL), (1, (0, 1, 3))], samples=30)
    assert rounds[1] == (1, {0: [8, 9], 1: [10, 11], 3: [14, 15]})
    assert rounds[2] == (2, {0: [12, 13], 1: [16, 17], 3: [18, 19]})


def test_who_joins_takes_one_step_in_its_first_round_and_a_whole_share_from_then_on():
    _, rounds = seen([(-1, (0, 1)), (1, (0, 1, 2))], samples=40, worker_steps=(2, 2, 2), per_step=1)
    assert rounds[1] == (1, {0: [4, 5], 1: [6, 7], 2: [8]})
    assert rounds[2] == (2, {0: [9, 10], 1: [11, 12], 2: [13, 14]})


def test_a_loss_and_a_join_in_one_round_pass_the_samples_on():
    _, rounds = seen([(-1, (0, 1, 2)), (0, (0, 1)), (0, (0, 1, 2))], samples=12)
    assert rounds[0] == (0, {0: [0, 1], 1: [2, 3], 2: [4, 5]})


def test_views_of_earlier_epochs_say_who_begins_this_one():
    _, rounds = seen([(-1, ALL), (2, (0, 1, 3)), (7, (0, 3))], samples=12, start=4)
    assert rounds[0] == (4, {0: [0, 1], 1: [2, 3], 3: [4, 5]})


def test_where_too_few_are_left_one_that_joins_repeats_the_first_ones():
    _, rounds = seen([(-1, (0, 1)), (1, (0, 1, 2))], samples=9)
    assert rounds[1] == (1, {0: [4, 5], 1: [6, 7], 2: [8, 0]})


@pytest.mark.parametrize("seed", range(300))
def test_over_any_losses_and_joins_every_sample_is_seen_once_but_for_less_than_a_round(seed):
    draws = random.Random(seed)
    size, per_step = draws.randint(2, 6), draws.randint(1, 3)
    worker_steps = [draws.randint(1, 3) for _ in range(size)]
    members, views, round_ = tuple(range(size)), [(-1, tuple(range(size)))], 0
    for _ in range(draws.randint(0, 6)):
        round_ += draws.randint(0, 3)
        outside = sorted(set(range(size)) - set(members))
        if outside and (len(members) == 1 or draws.random() < 0.5):
            members = tuple(sorted((*members, draws.choice(outside))))
        elif len(members) > 1:
            victim = draws.choice(members)
            members = tuple(one for one in members if one != victim)
        views.append((round_, members))
    samples = draws.randint(0, 120)
    rounds = list(assign_samples(range(samples), views, worker_steps, per_step, 0))
    met = [sample for _, hands in rounds for own in hands.values() for sample in own]
    repeated = len(met) - len(set(met))
    is_short = max((after for after, _ in views), default=0) >= len(rounds) - 1
    assert repeated == 0 or (is_short and repeated <= per_step * size)
    last = next(who for after, who in reversed(views) if after < len(rounds))
    assert samples - len(set(met)) < per_step * sum(worker_steps[one] for one in last)
