"""What training scripts do beside step(): rounds of several steps, autocast, a final mean that takes long."""

import threading
import time
from fractions import Fraction

import pytest
import torch

from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.transport.waiting import LOOK_SECONDS
from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, NeighborAveraging, Pairwise, Round, Server, StaticGroups

N = 3
_building = threading.Lock()


def plan(strategy):
    return Schedule("features", Cluster.regular(1, N), strategy)


def ring(**options):
    edges = [(i, (i + d) % N, Fraction(1, 3)) for i in range(N) for d in (1, 2)]
    return NeighborAveraging(rounds=(Round.from_edges(N, edges),), **options)


def strategies(**options):
    phases = (Phase.from_groups(N, [range(N)]),)
    return {
        "static": StaticGroups(phases=GroupPhases(phases), **options),
        "allreduce": AllReduce(**options),
        "neighbor": ring(**options),
        "synchronous server": Server(hosts=(0, 2), **options),
        "asynchronous server": Server(hosts=(1,), synchronous=False, **options),
        "pairwise": Pairwise(active=(0, 1, 2)[:2], **options),
    }


def network(seed=1):
    with _building:  # the seed belongs to the process, and all ranks are threads of it
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))


def batches(rank, count, size=8):
    generator = torch.Generator().manual_seed(50 + rank)
    return [torch.randn(size, 4, generator=generator) for _ in range(count)]


def loss_of(model, x):
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


@pytest.mark.parametrize("name", strategies())
@pytest.mark.parametrize("steps_per_round", [3, (1, 2, 3)])
def test_section_length_is_honoured_by_every_strategy(ranks, name, steps_per_round):
    """With steps_per_round H a worker sends once in H steps, after the last of them."""

    def work(world):
        schedule = plan(strategies(steps_per_round=steps_per_round)[name])
        model = network()
        inner = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = DistributedOptimizer(inner, model, schedule, timeout=60, world=world)
        mine = schedule.steps_per_round_of(world.rank)
        for x in batches(world.rank, 2 * mine):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
        moments = [
            (op.step, op.round)
            for op in optimizer.run.reducer.recorder._ring
            if op.kind in ("average", "push", "pair average")
        ]
        optimizer.finish()
        return moments, [(mine - 1, 0), (2 * mine - 1, 1)]

    for rank, (moments, wanted) in enumerate(ranks.run(N, work)):
        if name == "pairwise" and rank == 2:
            assert moments == [], "a passive worker starts nothing"
        else:
            assert moments == wanted


@pytest.mark.parametrize("name", ["static", "allreduce", "neighbor", "synchronous server"])
def test_autocast_and_tied_weights_stay_equal_on_all_workers(ranks, name):
    def work(world):
        model = network()
        model.append(torch.nn.Linear(4, 6))
        model[3].weight = model[0].weight
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = DistributedOptimizer(inner, model, plan(strategies()[name]), timeout=60, world=world)
        for x in batches(world.rank, 4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (model[:3](x) - model[3](x).mean(1, keepdim=True)).float().square().mean()
            loss.backward()
            optimizer.step()
        assert model[3].weight is model[0].weight
        optimizer.finish()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    weights = ranks.run(N, work)
    assert all(torch.equal(one, weights[0]) for one in weights)


def test_a_final_mean_that_takes_long_is_waited_for(ranks):
    """The others have noted by then that they finished, which must not be read as their absence."""

    def work(world):
        model = network()
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer = DistributedOptimizer(inner, model, plan(strategies()["static"]), timeout=60, world=world)
        begin = optimizer.run.reducer.begin

        def late(kind, *rest, **options):
            if kind == "mean model" and world.rank == 1:
                time.sleep(1.5 * LOOK_SECONDS)
            return begin(kind, *rest, **options)

        optimizer.run.reducer.begin = late
        for x in batches(world.rank, 2):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
        optimizer.finish()
        return next(model.parameters()).detach()

    first, *others = ranks.run(N, work)
    assert all(torch.equal(first, other) for other in others)
