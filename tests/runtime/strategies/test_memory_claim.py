"""The claim `memory` against a run: arrays of the parameters' size that each worker really keeps beside them."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from fractions import Fraction

import pytest
import torch

from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, OuterStep, Payload, StaticGroups
from partreduce.topo.strategies.axes import SYNCHRONOUS, Codec, DelayedAveraging, Transport
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.verify import prove

N, WIDTH = 4, 30_011
"""Nothing else in the process has this size, so arrays of it are found by it."""

EDGES = [(i, (i + d) % N, Fraction(1, 5)) for i in range(N) for d in (1, 2)]
STRATEGIES = {
    "allreduce of gradients": lambda **options: AllReduce(**options),
    "allreduce of parameters": lambda **options: AllReduce(steps_per_round=2, **options),
    "allreduce of coded parameters": lambda **options: AllReduce(
        steps_per_round=2, transport=Transport(codec=Codec.INT8), **options
    ),
    "outer steps": lambda sync, **options: AllReduce(
        steps_per_round=2, payload=Payload(outer=OuterStep(momentum=0.9)), **options
    ),
    "pairs": lambda **options: StaticGroups(
        phases=build("hyper-cuboid", Cluster.regular(2, 2)).strategy.phases, **options
    ),
    "neighbors": lambda **options: NeighborAveraging(rounds=(Round.from_edges(N, EDGES),), **options),
}


@pytest.mark.parametrize(
    ("sync", "averaging"),
    [(SYNCHRONOUS, Averaging.MEAN), (DelayedAveraging(), Averaging.MEAN), (SYNCHRONOUS, Averaging.STEP_NORMALIZED)],
    ids=["synchronous", "late", "step-normalized"],
)
@pytest.mark.parametrize("name", STRATEGIES)
def test_no_more_arrays_are_kept_than_the_claim_says(ranks, name, sync, averaging):
    schedule = Schedule(name, Cluster.regular(2, 2), STRATEGIES[name](sync=sync, averaging=averaging))
    claimed = prove(schedule)["memory"].numbers["arrays"]
    together, before = threading.Barrier(N), arrays_in_memory()

    def work(world):
        model = torch.nn.Linear(WIDTH, 1, bias=False)
        optimizer = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model, schedule, timeout=60, world=world
        )
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, WIDTH)).sum().backward()
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        together.wait(60)
        kept = len(arrays_in_memory() - before) if world.rank == 0 else 0
        together.wait(60)
        optimizer.finish()
        return kept

    kept = ranks.run(N, work)[0]
    spare = name == "allreduce of gradients" and sync is SYNCHRONOUS and averaging is Averaging.STEP_NORMALIZED
    assert kept == N * (1 + claimed - spare), "gradients have no progress to bring to a common steps_per_round"


def arrays_in_memory() -> set[int]:
    """Where pieces of memory about as large as the parameters begin, which tensors of this process hold."""
    gc.collect()
    found = set()
    for thing in gc.get_objects():
        if type(thing) not in (torch.Tensor, torch.nn.Parameter) or thing.layout is not torch.strided:
            continue  # a sparse tensor of an earlier test has no memory of its own; its parts are found by themselves
        with suppress(RuntimeError):  # of what has no type yet, with older releases of torch
            if thing.nbytes >= 4 * WIDTH:
                found.add(thing.data_ptr() // WIDTH)
    return found
