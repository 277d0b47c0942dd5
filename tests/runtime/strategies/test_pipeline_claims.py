"""What is claimed of pipelines (`staleness`, `equal-replicas`, `memory`) against runs of known gradients."""

import pytest
import torch

from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce
from partreduce.topo.strategies.axes import DrainPolicy, GradientReduction, Pipeline
from partreduce.verify import prove

STEPS = 12


class Told(torch.nn.Module):
    """One weight in double precision whose gradient is told."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))


def trained(world, schedule):
    """(what each step applied and then the end, operations in flight after each step, arrays that were ever lent).

    The gradients of step s are 2^s on every worker: a sum of such numbers says which steps are in it, and how often.
    """
    model = Told()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, schedule, world=world)
    applied, flying, before = [], [], 0.0
    for step in range(STEPS + 1):
        if step < STEPS:
            optimizer.zero_grad()
            (model.weight * 2.0**step).sum().backward()
            optimizer.step()
            flying.append(len(optimizer.run.membership.flights))
        else:
            arrays = len(optimizer.run.flat.buckets[0]._spare) + flying[-1]
            optimizer.finish()
        now = -model.weight.item()
        applied.append(now - before)
        before = now
    return applied, flying, arrays


def steps_in(number):
    """The steps whose gradients a number is the sum of."""
    assert number == int(number)
    return [bit for bit in range(STEPS) if int(number) >> bit & 1]


SYNCS = [
    Pipeline(),
    Pipeline(drain=DrainPolicy.DROP, warm_up=3),
    Pipeline(width=3, total=GradientReduction.SUM),
    Pipeline(width=4, drain=DrainPolicy.DROP),
    Pipeline(width=5, warm_up=2),
    Pipeline(warm_up=STEPS + 1),
]


@pytest.mark.filterwarnings("ignore:partreduce. schedule")
@pytest.mark.parametrize("sync", SYNCS, ids=str)
def test_a_run_applies_every_gradient_exactly_so_many_steps_late(ranks, sync):
    schedule = Schedule("late", Cluster.regular(1, 2), AllReduce(sync=sync))
    proof = prove(schedule)
    assert proof["staleness"].numbers["late"] == sync.lag
    runs = ranks.run(2, lambda world: trained(world, schedule))
    assert runs[0][0] == runs[1][0], "equal replicas after every step"
    applied, flying, arrays = runs[0]
    times = 2 if sync.total is GradientReduction.SUM else 1
    *by_step, last = [steps_in(number / times) for number in applied]
    start = min(sync.warm_up, STEPS)
    assert by_step[:start] == [[step] for step in range(start)]
    assert by_step[start : start + sync.lag] == [[]] * min(sync.lag, STEPS - start)
    assert by_step[start + sync.lag :] == [[step - sync.lag] for step in range(start + sync.lag, STEPS)]
    missing = min(sync.lag if sync.drain is DrainPolicy.DROP else 0, STEPS - start)
    assert sum(map(len, by_step)) + len(last) == STEPS - missing
    assert max(flying) <= sync.lag
    if start < STEPS:
        assert max(flying) == sync.lag, "no looser than the run"
        assert arrays == proof["memory"].numbers["arrays"]
