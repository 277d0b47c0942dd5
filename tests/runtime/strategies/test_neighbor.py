"""Weighted averaging over graphs: values equal a NumPy reference, edges cannot wait in a circle, faults are named."""

import random
from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers.random_schedules import WIDTH, Case, run_case
from helpers.thread_ranks import on_ranks
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce.errors import InputError, PeerFailedError
from partreduce.strategies import Averaging, DelayedAveraging, NeighborAveraging, Round, Synchronous

CASES = 150


def random_case(seed):
    """Directed or symmetric rounds (some empty), steps_per_round, overlap and normalization, and training data."""
    rng = random.Random(seed)
    n = rng.randint(2, 6)
    rounds = []
    for _ in range(rng.randint(1, 3)):
        edges = [(s, t) for s in range(n) for t in range(n) if s != t and rng.random() < rng.choice([0.0, 0.3, 0.9])]
        if rng.random() < 0.3:
            edges = sorted({(min(e), max(e)) for e in edges})
            edges += [(t, s) for s, t in edges]
        rounds.append(Round.from_edges(n, [(s, t, Fraction(rng.randint(1, 4), 4 * n)) for s, t in edges]))
    steps_per_round = tuple(rng.randint(1, 3) for _ in range(n)) if rng.random() < 0.4 else rng.choice([1, 1, 2])
    averaging = rng.choice([Averaging.MEAN, Averaging.STEP_NORMALIZED])
    strategy = NeighborAveraging(
        rounds=tuple(rounds),
        steps_per_round=steps_per_round,
        sync=DelayedAveraging() if rng.random() < 0.5 else Synchronous(),
        averaging=averaging,
    )
    schedule, num_rounds = Schedule(f"random {seed}", Cluster.regular(1, n), strategy), rng.randint(1, 6)
    numbers, steps = np.random.default_rng(seed), num_rounds * int(schedule.worker_steps().max())
    data = numbers.normal(size=(n, WIDTH)), numbers.uniform(0, 0.5, n), numbers.normal(size=(n, steps, WIDTH))
    return Case(schedule, num_rounds, False, torch.float64, *data)


@pytest.mark.parametrize("part", range(3))
def test_values_equal_the_numpy_reference_on_random_rounds(ranks, part):
    for seed in range(part * CASES // 3, (part + 1) * CASES // 3):
        case = random_case(seed)
        problems = ranks.run(case.schedule.num_workers, lambda world, case=case: run_case(case, world))
        assert [problem for problem in problems if problem is not None] == [], f"seed {seed}"


def test_random_rounds_cover_what_they_claim():
    schedules = [random_case(seed).schedule for seed in range(CASES)]
    assert {s.num_workers for s in schedules} == {2, 3, 4, 5, 6}
    assert {s.strategy.is_delayed for s in schedules} == {True, False}
    assert any(len(r) == 0 for s in schedules for r in s.strategy.rounds), "a round without edges"
    assert any(len(set(s.worker_steps().tolist())) > 1 for s in schedules)
    directed = [
        set(zip(r.sources.tolist(), r.targets.tolist(), strict=True)) for s in schedules for r in s.strategy.rounds
    ]
    assert any({(t, s) for s, t in edges} != edges for edges in directed), "a directed round"


def ring(n, **options):
    edges = [(i, (i + d) % n, Fraction(1, 3)) for i in range(n) for d in (1, n - 1)]
    return Schedule("ring", Cluster.regular(1, n), NeighborAveraging(rounds=(Round.from_edges(n, edges),), **options))


def big_model(world, schedule, *, dtype=torch.float32, buffers="average", timeout=60):
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 1)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(world.rank))
        model[1].running_mean.fill_(float(world.rank))
    inner = torch.optim.SGD(model.parameters(), lr=0.0)
    options = {"timeout": timeout, "initial": "keep", "buffers": buffers, "world": world}
    return model, DistributedOptimizer(inner, model, schedule, **options)


@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_directed_circle_of_large_messages_does_not_deadlock(ranks, is_delayed):
    """Everybody sends to the next before receiving from the previous: blocking sends would wait for ever."""
    n = 5
    edges = [(i, (i + 1) % n, Fraction(1, 2)) for i in range(n)]
    strategy = NeighborAveraging(
        rounds=(Round.from_edges(n, edges),), sync=DelayedAveraging() if is_delayed else Synchronous()
    )
    schedule = Schedule("directed circle", Cluster.regular(1, n), strategy)

    def work(world):
        model, optimizer = big_model(world, schedule)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for _ in range(3):
            optimizer.step()
        optimizer.finish()
        return [float(p.detach().mean()) for p in model.parameters()]

    for values in ranks.run(n, work):
        assert values == pytest.approx([2.0] * len(values))


@on_ranks(3, pytest.approx([1.0] * 3))
def test_batchnorm_statistics_take_part_in_the_average(world):
    model, optimizer = big_model(world, ring(3))
    optimizer.step()
    return float(model[1].running_mean.mean())


@on_ranks(3, pytest.approx([1.0] * 3, abs=0.02))
def test_half_precision_carries_its_tag_beside_it(world):
    model, optimizer = big_model(world, ring(3), dtype=torch.bfloat16)
    optimizer.step()
    return float(model[0].weight.detach().float().mean())


@on_ranks(4, [True] * 4)
def test_mean_model_inside_a_parallel_round_leaves_it_as_it_was(world):
    """The exchange in flight is put aside while all workers average, and continues afterwards."""
    schedule = ring(4, sync=DelayedAveraging())
    results = []
    for look in (False, True):
        model, optimizer = big_model(world, schedule)
        for k in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 1.0 + world.rank + k)
            optimizer.step()
            if look:
                with optimizer.mean_model() as mean:
                    seen = float(mean[0].weight.detach().mean())
        results.append(model[0].weight.detach().clone())
        optimizer.finish()
    assert seen == pytest.approx(1.5)
    return bool(torch.equal(*results))


def test_broadcast_of_buffers_is_refused_with_the_way_out(ranks):
    refused = ranks.run(3, lambda world: big_model(world, ring(3), buffers="broadcast"), catch=InputError)
    assert all("use 'average' or 'local'" in str(error) for error in refused)


def test_neighbors_in_different_rounds_are_told_by_the_tags(ranks):

    def work(world):
        _, optimizer = big_model(world, ring(3))
        if world.rank == 1:
            optimizer.engine.go_on_from(7)
        optimizer.step()

    errors = ranks.run(3, work, catch=PeerFailedError)
    assert any("tags differ" in str(error) for error in errors)
    assert all(isinstance(error, PeerFailedError) for error in errors)


def test_a_neighbor_that_never_comes_is_named_in_time(ranks):

    def work(world):
        _, optimizer = big_model(world, ring(3), timeout=4)
        optimizer.run.reducer.timeout = 3
        if world.rank != 2:
            optimizer.step()
        else:
            optimizer.ending.guard(lambda: None)

    errors = ranks.run(3, work, catch=PeerFailedError)
    assert all("step 0, round 0: group {0,1,2}" in str(error) for error in errors[:2])
