"""RoundSampler: disjoint shares by steps_per_round, equal numbers of rounds, and resuming within an epoch."""

import random
from functools import partial

import pytest
import torch

from helpers.thread_ranks import ThreadRanks
from helpers.training import static_groups, wrap
from partreduce import Cluster, DistributedOptimizer, RoundSampler, Schedule
from partreduce.errors import InputError, PeerFailedError
from partreduce.runtime.data.sampler import assign_samples, by_steps_per_round, sampler_of
from partreduce.strategies import AllReduce


def schedule(steps_per_round, n=3):
    return Schedule("unequal", Cluster.regular(1, n), static_groups(n, [range(n)], steps_per_round=steps_per_round))


def test_shares_are_disjoint_and_proportional_to_steps_per_round():
    rng = random.Random(1)
    for _ in range(100):
        n = rng.randint(2, 5)
        steps_per_round = tuple(rng.randint(1, 4) for _ in range(n))
        batch, accumulate = rng.randint(1, 4), rng.randint(1, 3)
        size = batch * accumulate * sum(steps_per_round) * rng.randint(1, 5) + rng.randint(0, 3)
        samplers = [
            RoundSampler(size, schedule(steps_per_round, n), batch, accumulate=accumulate, seed=7, rank=rank)
            for rank in range(n)
        ]
        shares = [list(sampler) for sampler in samplers]
        assert len({sampler.num_rounds for sampler in samplers}) == 1
        for sampler, share, p in zip(samplers, shares, steps_per_round, strict=True):
            assert len(share) == len(sampler) == sampler.num_rounds * p * batch * accumulate
        flat = [index for share in shares for index in share]
        assert len(set(flat)) == len(flat)
        assert set(flat) <= set(range(size))
        assert size - len(flat) < samplers[0].per_round


def test_shuffled_order_depends_only_on_the_epoch():
    sampler = RoundSampler(list(range(103)), schedule(2), 5, rank=1)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[0] != orders[1]
    assert orders[0] == orders[2]
    plain = RoundSampler(103, schedule(2), 5, rank=0, shuffle=False)
    assert list(plain)[:10] == list(range(10))


def test_resume_mid_epoch_yields_the_remaining_samples():
    sampler = RoundSampler(100, schedule((1, 2, 1)), 4, rank=1)
    sampler.set_epoch(2)
    whole = list(sampler)
    steps = 2 * sampler.num_steps + 5
    assert sampler.resume(steps) == 2
    assert list(sampler) == whole[5 * 4 :]
    assert len(sampler) == len(whole) - 20
    sampler.set_epoch(2)
    assert list(sampler) == whole[5 * 4 :], "set_epoch() of the resumed epoch keeps the position"
    sampler.set_epoch(3)
    assert len(sampler) == len(whole)


def test_workers_with_unequal_steps_per_round_end_at_the_same_round():
    plan = schedule((1, 3, 2))
    data = torch.utils.data.TensorDataset(torch.arange(130.0).view(-1, 1))

    def work(world):
        model = torch.nn.Linear(1, 1)
        optimizer = wrap(world, model, plan, lr=1e-05)
        sampler = RoundSampler(data, plan, 3, accumulate=2, rank=world.rank)
        loader = torch.utils.data.DataLoader(data, 3, sampler=sampler, drop_last=True)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for index, (x,) in enumerate(loader):
                (model(x).square().mean() / 2).backward()
                if index % 2 == 1:
                    optimizer.step()
                    optimizer.zero_grad()
        optimizer.finish()
        return optimizer.round, optimizer.steps

    assert ThreadRanks(3).run(3, work) == [(6, 6), (6, 18), (6, 12)]


def train_by(world, loader_of, loop):
    """Rounds and steps after two epochs of a loop over a loader, with 1, 3 and 2 steps per round."""
    plan = schedule((1, 3, 2))
    model = torch.nn.Linear(1, 1)
    optimizer = wrap(world, model, plan, lr=1e-05)
    for _ in range(2):
        for x in loop(optimizer, loader_of(plan, world.rank)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    optimizer.finish()
    return optimizer.round, optimizer.steps


def even(plan, rank):
    return torch.utils.data.DataLoader(torch.arange(20.0).view(-1, 1), 2, shuffle=True)


def stream(plan, rank):
    return iter(even(plan, rank))


def use_sampler(plan, rank):
    data = torch.arange(40.0).view(-1, 1)
    return torch.utils.data.DataLoader(data, 2, sampler=RoundSampler(data, plan, 2, rank=rank), drop_last=True)


@pytest.mark.parametrize("loader_of", [even, stream, use_sampler])
def test_optimizer_batches_ends_all_workers_at_the_same_round(loader_of):
    """Ten batches per loader give three rounds of up to three steps; a RoundSampler already ends in a whole round."""
    train = partial(train_by, loader_of=loader_of, loop=DistributedOptimizer.batches)
    assert ThreadRanks(3).run(3, train) == [(6, 6), (6, 18), (6, 12)]


def test_loop_that_ignores_steps_per_round_raises_with_advice():
    errors = ThreadRanks(3).run(
        3, partial(train_by, loader_of=even, loop=lambda _, loader: loader), catch=PeerFailedError
    )
    advice = "the schedule has workers take 1 to 3 steps a round; loop over `optimizer.batches(loader)`"
    assert all(advice in str(error) for error in errors)


def test_mean_model_on_one_worker_raises_with_advice_on_the_call():
    def run(world):
        def batches(optimizer, loader):
            yield from optimizer.batches(loader)
            if world.rank == 0:
                with optimizer.mean_model():
                    pass

        train_by(world, even, batches)

    errors = ThreadRanks(3).run(3, run, catch=PeerFailedError)
    assert all("all workers call mean_model(), so take it out of any `if rank == 0`" in str(e) for e in errors)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": 10, "batch_size": 5}, "has 10 samples and one round of all workers takes 15"),
        ({"data": 100, "batch_size": 0}, "both are at least 1"),
        ({"data": 100, "batch_size": 1, "rank": 3}, "has ranks 0..2"),
    ],
)
def test_invalid_sampler_arguments_raise(arguments, message):
    with pytest.raises(InputError, match=message):
        RoundSampler(schedule=Schedule("s", Cluster.regular(1, 3), AllReduce()), **{"rank": 0, **arguments})


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(6))


def test_loader_of_an_iterable_dataset_has_no_sampler():
    loader = torch.utils.data.DataLoader(Endless(), batch_size=2)
    assert sampler_of(loader) is None
    assert len(list(loader)) == 3


# The samples of an epoch over losses and joins: no sample is in two averages, and no full round is left out.


ALL = (0, 1, 2, 3)


def rounds_of(views, *, samples, per_step=2, worker_steps=(1, 1, 1, 1), start=0):
    return list(assign_samples(range(samples), views, worker_steps, per_step, start))


def test_samples_are_assigned_by_rank_and_steps_per_round():
    rounds = rounds_of([(-1, ALL)], samples=22, worker_steps=(1, 2, 1, 1), start=5)
    assert rounds[0] == (5, {0: [0, 1], 1: [2, 3, 4, 5], 2: [6, 7], 3: [8, 9]})
    assert [round_ for round_, _ in rounds] == [5, 6]


def test_samples_of_a_lost_worker_are_reassigned_in_the_next_round():
    rounds = rounds_of([(-1, ALL), (1, (0, 1, 3))], samples=30)
    assert rounds[1] == (1, {0: [8, 9], 1: [10, 11], 3: [14, 15]})
    assert rounds[2] == (2, {0: [12, 13], 1: [16, 17], 3: [18, 19]})


def test_joining_worker_takes_one_step_and_then_full_shares():
    rounds = rounds_of([(-1, (0, 1)), (1, (0, 1, 2))], samples=40, worker_steps=(2, 2, 2), per_step=1)
    assert rounds[1] == (1, {0: [4, 5], 1: [6, 7], 2: [8]})
    assert rounds[2] == (2, {0: [9, 10], 1: [11, 12], 2: [13, 14]})


def test_loss_and_join_in_one_round_reassign_the_samples():
    rounds = rounds_of([(-1, (0, 1, 2)), (0, (0, 1)), (0, (0, 1, 2))], samples=12)
    assert rounds[0] == (0, {0: [0, 1], 1: [2, 3], 2: [4, 5]})


def test_views_of_earlier_epochs_give_the_initial_members():
    rounds = rounds_of([(-1, ALL), (2, (0, 1, 3)), (7, (0, 3))], samples=12, start=4)
    assert rounds[0] == (4, {0: [0, 1], 1: [2, 3], 3: [4, 5]})


def test_joining_worker_repeats_the_first_samples_if_too_few_remain():
    rounds = rounds_of([(-1, (0, 1)), (1, (0, 1, 2))], samples=9)
    assert rounds[1] == (1, {0: [4, 5], 1: [6, 7], 2: [8, 0]})


@pytest.mark.parametrize("seed", range(300))
def test_random_losses_and_joins_leave_out_less_than_a_round(seed):
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
    used = [sample for _, hands in rounds for own in hands.values() for sample in own]
    repeated = len(used) - len(set(used))
    is_short = max((after for after, _ in views), default=0) >= len(rounds) - 1
    assert repeated == 0 or (is_short and repeated <= per_step * size)
    last = next(present for after, present in reversed(views) if after < len(rounds))
    assert samples - len(set(used)) < per_step * sum(worker_steps[one] for one in last)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(14))


def test_loader_of_an_iterable_dataset_is_divided_by_steps_per_round():
    loader = torch.utils.data.DataLoader(Stream(), batch_size=2)
    batches = [batch.tolist() for batch in by_steps_per_round(loader, schedule((2, 3, 1)), 0)]
    assert batches == [[0, 1], [2, 3], [6, 7], [8, 9]]
