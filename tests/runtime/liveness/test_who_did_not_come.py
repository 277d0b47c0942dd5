"""One worker alone where all meet, or long in a step: the words that the others, and it, have for it."""

import time
from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers.quorum_runs import WIDTH, TwoBuckets
from partreduce.runtime.liveness.heartbeat import ALL_CALL, UNEQUAL, Heartbeat
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.transport.store import publish_stage, read_stage
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PeerFailedError
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.topo.strategies.pairwise import Pairwise

RING = (Round.from_edges(2, [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2))]),)
STRATEGIES = {
    "gradients": AllReduce(),
    "parameters": AllReduce(steps_per_round=2),
    "gap": NeighborAveraging(rounds=RING, sync=IterationGap(max_ig=2)),
}
WORDS = ALL_CALL.format("mean_model()", UNEQUAL)


def trained(world, strategy, steps):
    model = TwoBuckets(np.zeros(WIDTH))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = Schedule("alone", Cluster.regular(1, 2), strategy)
    optimizer = DistributedOptimizer(inner, model, schedule, world=world, timeout=300)  # far beyond any test's limit
    step(optimizer, model, steps)
    return optimizer, model


def step(optimizer, model, times):
    for _ in range(times):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()


@pytest.mark.parametrize("then", [0, 8])
@pytest.mark.parametrize("name", STRATEGIES)
def test_who_is_alone_in_mean_model_is_named_at_once_and_what_all_must_do(ranks, name, then):
    """As under `if rank == 0:`; the others go on, or finish."""

    def run(world):
        optimizer, model = trained(world, STRATEGIES[name], 4)
        if world.rank == 0:
            with optimizer.mean_model():
                pass
        step(optimizer, model, then)
        optimizer.finish()

    errors = ranks.run(2, run, catch=PeerFailedError)
    ranks.fresh()
    alone, other = map(str, errors)
    rounds = 2 if name == "parameters" else 4
    # Whoever of the two notices first names the other.
    first = f"worker 0 waits for all in mean_model() after {rounds} rounds: {WORDS}"
    assert first in other or (
        f"worker 1 finished after {rounds} rounds, without mean_model()" in other and WORDS in other
    )
    assert "this worker 0 is in mean_model()" in alone or "without mean_model()" in alone or "worker 1 gave" in alone


def test_a_worker_that_nobody_made_wait_is_said_to_be_in_the_step_that_it_computes(ranks):
    """One whom its partners leave alone says nothing by itself; it was said to be in the start after 36 rounds."""

    def run(world):
        optimizer, _ = trained(world, Pairwise(active=(0,)), 36)
        said = optimizer.run.reducer.heartbeat.last
        optimizer.finish()
        return said

    assert ranks.run(2, run) == [("computes step 36", ())] * 2


def test_of_a_dead_worker_no_sign_is_repeated_that_it_had_given_before_its_first_round():
    """It may have done many since: one that died after three rounds was said not to have started one."""
    store = torch.distributed.HashStore()
    heartbeat = Heartbeat(store, 1, "run", beats=True)

    def until(done):
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    try:
        publish_stage(store, 1, "trained", heartbeat.place)
        until(lambda: store.check([heartbeat.place]))
        assert read_stage(store, 1) == "while it trained"
        heartbeat.doing("computes step 3")
        until(lambda: read_stage(store, 1) == "while it trained; its last sign: computes step 3")
    finally:
        heartbeat.stop()
