"""Weighted averaging over graphs: no deadlock in cycles, buffers, and failures."""

from fractions import Fraction

import pytest
import torch

from helpers.thread_ranks import on_ranks
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce.errors import PeerFailedError
from partreduce.strategies import DelayedAveraging, NeighborAveraging, Round, Synchronous


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
def test_directed_ring_of_large_messages_does_not_deadlock(ranks, is_delayed):
    """Each worker sends to the next before receiving from the previous, so blocking sends would deadlock."""
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
def test_batchnorm_statistics_are_averaged(world):
    model, optimizer = big_model(world, ring(3))
    optimizer.step()
    return float(model[1].running_mean.mean())


@on_ranks(3, pytest.approx([1.0] * 3, abs=0.02))
def test_bfloat16_average_carries_its_tag_separately(world):
    model, optimizer = big_model(world, ring(3), dtype=torch.bfloat16)
    optimizer.step()
    return float(model[0].weight.detach().float().mean())


def test_neighbors_in_different_rounds_are_detected_by_tags(ranks):

    def work(world):
        _, optimizer = big_model(world, ring(3))
        if world.rank == 1:
            optimizer.engine.continue_from(7)
        optimizer.step()

    errors = ranks.run(3, work, catch=PeerFailedError)
    assert any("tags differ" in str(error) for error in errors)
    assert all(isinstance(error, PeerFailedError) for error in errors)


def test_missing_neighbor_raises_with_the_round_and_group(ranks):

    def work(world):
        _, optimizer = big_model(world, ring(3), timeout=4)
        optimizer.run.reducer.timeout = 3
        if world.rank != 2:
            optimizer.step()
        else:
            optimizer.ending.guard(lambda: None)

    errors = ranks.run(3, work, catch=PeerFailedError)
    assert all("step 0, round 0: group {0,1,2}" in str(error) for error in errors[:2])
