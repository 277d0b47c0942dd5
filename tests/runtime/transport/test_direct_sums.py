"""Short arrays that a group adds up directly: as exact as a ring, the same bits on all, an end when a member goes."""

import copy

import pytest
import torch
from torch import nn

import partreduce
from partreduce.runtime.transport.communicators import HostWork
from partreduce.runtime.transport.direct_sums import longest_direct
from partreduce.runtime.transport.in_rounds import goes_in_rounds
from partreduce.runtime.transport.staged import StagedWork
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import UnavailableError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce
from partreduce.topo.strategies.routes import Gradient, Route, Routes, TableWay

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")


def all_of(world):
    """The group of all workers, which adds short arrays directly."""
    everyone = tuple(range(world.size))
    if not world.has(everyone):
        world.create(everyone)
    world.sum_directly()
    return world.everyone()


def numbers(rank, length, dtype):
    return torch.randn(length, generator=torch.Generator().manual_seed(rank)).to(dtype)


@pytest.mark.parametrize("size", [3, 5])
def test_sums_are_exact_and_the_same_bits_on_all_members(ranks, size):
    """Arrays shorter than the group among them; all under way together, twice."""
    cases = [(length, dtype) for dtype in (torch.float32, torch.float64) for length in (1, 2, 4, 31, 1000)]

    def run(world):
        group, turns = all_of(world), []
        for _ in range(2):
            tensors = [numbers(world.rank, *case) for case in cases]
            works = [group.all_reduce(tensor) for tensor in tensors]
            assert all(isinstance(work, StagedWork) for work in works)
            for work in works:
                work.wait()
            turns.append(tensors)
        return turns

    answers = ranks.run(size, run)
    for index, (length, dtype) in enumerate(cases):
        exact = sum(numbers(rank, length, dtype).double() for rank in range(size))
        tolerance = 8 * size * torch.finfo(dtype).eps
        torch.testing.assert_close(answers[0][0][index].double(), exact, rtol=tolerance, atol=tolerance)
        assert all(torch.equal(answers[0][0][index], turn[index]) for turns in answers for turn in turns)


def test_long_arrays_and_those_in_half_precision_go_around_the_ring(ranks):
    long = longest_direct(3) // 4 + 1

    def run(world):
        group, found = all_of(world), []
        for tensor in (torch.ones(long), torch.ones(8, dtype=torch.float16), torch.ones(long - 1)):
            work = group.all_reduce(tensor)
            work.wait()
            assert bool((tensor == 3).all())
            found.append(type(work))
        return found

    assert ranks.run(3, run) == [[HostWork, HostWork, StagedWork]] * 3


@pytest.mark.parametrize("size", [3, 16, 1000])
def test_what_goes_directly_is_what_goes_at_once_between_tables(size):
    piece = longest_direct(size) // size
    assert not goes_in_rounds(piece, size, 1)
    assert size == 3 or goes_in_rounds(piece + 1, size, 1)
    assert longest_direct(2) == 0, "a ring of two passes two messages as well"


def test_a_sum_of_a_destroyed_group_ends_with_an_error(ranks):
    def run(world):
        group = all_of(world)
        if world.rank == 2:
            world.abandon()
            return "gone"
        with pytest.raises((RuntimeError, UnavailableError)):
            group.all_reduce(torch.ones(8)).wait()
        world.abandon()
        with pytest.raises(UnavailableError, match="was destroyed after an earlier failure"):
            group.all_reduce(torch.ones(8))
        return "told"

    found = ranks.run(3, run)
    ranks.fresh()
    assert found == ["told", "told", "gone"]


@pytest.mark.parametrize(("nodes", "expected"), [(4, StagedWork), (2, HostWork)])
def test_beside_tables_a_short_dense_part_goes_directly_where_each_worker_has_a_node(ranks, nodes, expected):
    """Where two share a node's link a ring sends less over it; and steps are those of one process either way."""
    route = Route(parameter="0.weight", rows=12, columns=4, way=TableWay.SHARDED, gradient=Gradient.SPARSE)
    schedule = Schedule("hybrid", Cluster.regular(nodes, 4 // nodes), AllReduce(what=Routes(tables=(route,))))
    rows = torch.tensor([[0, 1], [1, 5], [5, 7], [11, 0]])

    torch.manual_seed(0)
    alone = nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Linear(4, 1))
    begun = copy.deepcopy(alone)

    def run(world):
        ours = copy.deepcopy(begun)
        optimizer = partreduce.DistributedOptimizer(
            torch.optim.SGD(ours.parameters(), lr=0.5), ours, schedule, world=world
        )
        for _ in range(3):
            ours.zero_grad()
            ours(rows[world.rank]).square().mean().backward()
            optimizer.step()
        work = world.everyone().all_reduce(torch.zeros(4))
        work.wait()
        dense = [part.detach().clone() for part in ours[1].parameters()]
        optimizer.finish()
        return type(work), dense

    sgd = torch.optim.SGD(alone.parameters(), lr=0.5)
    for _ in range(3):
        sgd.zero_grad()
        alone(rows).square().mean().backward()
        sgd.step()
    ranks.fresh()
    found = ranks.run(4, run)
    ranks.fresh()
    for kind, dense in found:
        assert kind is expected
        for ours, theirs in zip(dense, alone[1].parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.detach())
