"""Claims compared with runs: arrays besides the parameters (`memory`), and the claims of pipelines."""

import gc
import threading
from contextlib import suppress
from fractions import Fraction

import pytest
import torch

from helpers.training import wrap
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st
from partreduce.schedulers.registry import build
from partreduce.strategies import AllReduce, DrainPolicy, GradientReduction, Pipeline
from partreduce.topo.strategies.axes import SYNCHRONOUS
from partreduce.verify import prove

N, WIDTH = 4, 30_011
"""No other object in the process has this size, so the size identifies the arrays of this test."""

EDGES = [(i, (i + d) % N, Fraction(1, 5)) for i in range(N) for d in (1, 2)]
STRATEGIES = {
    "allreduce of gradients": lambda **options: st.AllReduce(**options),
    "allreduce of parameters": lambda **options: st.AllReduce(steps_per_round=2, **options),
    "allreduce of coded parameters": lambda **options: st.AllReduce(
        steps_per_round=2, transport=st.Transport(codec=st.Codec.INT8), **options
    ),
    "outer steps": lambda sync, **options: st.AllReduce(
        steps_per_round=2, payload=st.Payload(outer=st.OuterStep(momentum=0.9)), **options
    ),
    "pairs": lambda **options: st.StaticGroups(
        phases=build("hyper-cuboid", Cluster.regular(2, 2)).strategy.phases, **options
    ),
    "neighbors": lambda **options: st.NeighborAveraging(rounds=(st.Round.from_edges(N, EDGES),), **options),
}


@pytest.fixture(scope="module")
def frozen():
    """After the module, freeze only the objects that are left."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize(
    ("sync", "averaging"),
    [
        (SYNCHRONOUS, st.Averaging.MEAN),
        (st.DelayedAveraging(), st.Averaging.MEAN),
        (SYNCHRONOUS, st.Averaging.STEP_NORMALIZED),
    ],
    ids=["synchronous", "late", "step-normalized"],
)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.usefixtures("frozen")
def test_memory_claim_equals_the_arrays_of_a_run(ranks, name, sync, averaging):
    schedule = Schedule(name, Cluster.regular(2, 2), STRATEGIES[name](sync=sync, averaging=averaging))
    claimed = prove(schedule)["memory"].numbers["arrays"]
    barrier = threading.Barrier(N)
    gc.collect()
    gc.freeze()  # frozen objects are not scanned again, so only the first scan is slow

    def work(world):
        model = torch.nn.Linear(WIDTH, 1, bias=False)
        optimizer = wrap(world, model, schedule)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, WIDTH)).sum().backward()
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        barrier.wait(60)
        kept = len(arrays_since_freeze()) if world.rank == 0 else 0
        barrier.wait(60)
        optimizer.finish()
        return kept

    kept = ranks.run(N, work)[0]
    spare = name == "allreduce of gradients" and sync is SYNCHRONOUS and averaging is st.Averaging.STEP_NORMALIZED
    assert kept == N * (1 + claimed - spare), "gradients have no progress to bring to a common steps_per_round"


def arrays_since_freeze():
    """Addresses, in units of `WIDTH`, of tensors at least as large as the parameters, made since `gc.freeze()`."""
    gc.collect()
    found = set()
    for thing in gc.get_objects():
        if type(thing) not in (torch.Tensor, torch.nn.Parameter) or thing.layout is not torch.strided:
            continue  # a sparse tensor has no memory itself; its parts are scanned separately
        with suppress(RuntimeError):  # a tensor without a dtype yet, in older releases of torch
            if thing.nbytes >= 4 * WIDTH:
                found.add(thing.data_ptr() // WIDTH)
    return found


# The claims of pipelines (`staleness`, `equal-replicas`, `memory`) compared with runs of known gradients.


STEPS = 12


class GivenGradient(torch.nn.Module):
    """One weight in double precision whose gradient is given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))


def run_steps(world, schedule):
    """Return the updates of each step and of finish(), the operations in flight after each step, and the arrays made.

    The gradients of step s are 2^s on every worker, so a sum shows which steps it contains, and how often.
    """
    model = GivenGradient()
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
    """The steps whose gradients sum to `number`."""
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
def test_pipeline_applies_each_gradient_with_the_claimed_delay(ranks, sync):
    schedule = Schedule("late", Cluster.regular(1, 2), AllReduce(sync=sync))
    proof = prove(schedule)
    assert proof["staleness"].numbers["late"] == sync.lag
    runs = ranks.run(2, lambda world: run_steps(world, schedule))
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
