"""AD-PSGD: exchanges preserve the sum, are applied once, and end cleanly when workers finish at different times."""

import random
import threading
import time

import numpy as np
import pytest
import torch

from helpers.thread_ranks import on_ranks
from helpers.training import push_ones, wrap_quadratic
from partreduce import Cluster, Schedule
from partreduce.errors import PeerFailedError
from partreduce.runtime.strategies import pairwise as pairwise_module
from partreduce.schedulers.protocols.adpsgd import Role, two_sides
from partreduce.strategies import DelayedAveraging, Pairwise, Synchronous


def schedule(n, active, **options):
    return Schedule("pairs at random", Cluster.regular(1, n), Pairwise(active=active, **options))


@pytest.mark.parametrize("is_delayed", [False, True])
@pytest.mark.parametrize(
    ("n", "active", "steps_per_round"), [(2, (0,), 1), (4, (1, 3), 1), (5, (0, 1, 2), (1, 2, 1, 1, 3))]
)
def test_exchanges_preserve_the_sum_and_apply_each_update_once(ranks, n, active, steps_per_round, is_delayed):
    """Dyadic values have no rounding error: the mean is the initial mean plus all pushes, in any order of exchanges."""
    rounds = 8

    def work(world):
        rng = random.Random(world.rank)
        plan = schedule(
            n, active, steps_per_round=steps_per_round, sync=DelayedAveraging() if is_delayed else Synchronous()
        )
        model, optimizer = wrap_quadratic(world, plan, [world.rank, 2.0 * world.rank, 1.0])
        for step in range(rounds * plan.steps_per_round_of(world.rank)):
            time.sleep(rng.random() * 0.004)
            model.set_gradient(0.0, np.array([1.0, step, world.rank]))
            optimizer.step()
            if step == 3 * plan.steps_per_round_of(world.rank) - 1:
                with optimizer.mean_model():
                    seen = model.values().numpy().copy()
        optimizer.finish()
        return model.values().numpy().copy(), seen, optimizer.runner.pair.averaged

    results = ranks.run(n, work)
    worker_steps = [steps_per_round if isinstance(steps_per_round, int) else steps_per_round[rank] for rank in range(n)]
    for which, upto in ((0, rounds), (1, 3)):
        total = np.zeros(3)
        for rank in range(n):
            count = upto * worker_steps[rank]
            total += np.array([rank + count, 2 * rank + sum(range(count)), 1 + rank * count])
        for result in results:
            np.testing.assert_allclose(result[which], total / n, rtol=1e-15)
    for rank in active:
        assert len(results[rank][2]) == rounds
        assert set(results[rank][2]) <= set(range(n)) - set(active)
    for rank in set(range(n)) - set(active):
        partners = [results[a][2].count(rank) for a in active]
        assert [results[rank][2].count(a) for a in active] == partners, "both sides of an exchange count it"


def test_edges_restrict_the_partners(ranks):
    def work(world):
        plan = schedule(4, (0, 1), edges=((0, 2), (1, 3), (1, 2)))
        model, optimizer = wrap_quadratic(world, plan, [0.0] * 3)
        for _ in range(12):
            model.set_gradient(0.0, np.zeros(3))
            optimizer.step()
        optimizer.finish()
        return set(optimizer.runner.pair.averaged)

    partners = ranks.run(4, work)
    assert partners[0] == {2}
    assert partners[3] == {1}
    assert partners[1] == {2, 3}


@pytest.mark.parametrize("slow", [0, 1])
@on_ranks(3, [[7.0] * 3] * 3)
def test_workers_that_finish_at_different_times_end_cleanly(world, slow):
    """A finished passive worker still answers; finish() waits for active workers."""
    model, optimizer = wrap_quadratic(world, schedule(3, (0,), sync=DelayedAveraging()), [float(world.rank)] * 3)
    for _ in range(6):
        if world.rank == slow:
            time.sleep(0.05)
        push_ones(model, optimizer)
    optimizer.finish()
    return model.values().tolist()


def test_busy_passive_worker_does_not_block_active_ones(ranks):
    gate = threading.Event()

    def work(world):
        model, optimizer = wrap_quadratic(world, schedule(2, (0,)), [0.0] * 3)
        for step in range(5):
            if world.rank == 1 and step == 1:
                assert gate.wait(60), "the active worker needs this one's main thread"
            push_ones(model, optimizer)
        gate.set()
        optimizer.finish()

    ranks.run(2, work)


def test_duplicate_messages_are_applied_once(ranks, monkeypatch):
    receive = pairwise_module._Pair.receive

    def twice(self, message):
        receive(self, message)
        if message.kind in ("ask", "answer"):
            receive(self, message)

    monkeypatch.setattr(pairwise_module._Pair, "receive", twice)

    def work(world):
        model, optimizer = wrap_quadratic(world, schedule(3, (0, 2)), [float(world.rank)] * 3)
        push_ones(model, optimizer, 10)
        optimizer.finish()
        return model.values().tolist()

    assert ranks.run(3, work) == [pytest.approx([11.0] * 3, rel=1e-15)] * 3


@on_ranks(3)
def test_runner_uses_the_explored_protocol_machine(world):
    _, optimizer = wrap_quadratic(world, schedule(3, (1,)), [0.0] * 3)
    machine = optimizer.runner.pair.machine
    optimizer.runner.close()
    assert machine == two_sides(machine.graph, frozenset({1}))
    assert machine.roles == (Role.PASSIVE, Role.ACTIVE, Role.PASSIVE)


@on_ranks(2, [0, 0])
def test_exchanges_change_parameters_only_inside_step(world):
    """Live parameters change only inside step(), regardless of exchanges on the side thread."""
    model, optimizer = wrap_quadratic(world, schedule(2, (0,)), [float(world.rank)] * 3)
    torn = 0
    for _ in range(30):
        before = model.values().clone()
        if world.rank == 1:
            time.sleep(0.003)
        torn += not torch.equal(before, model.values())
        push_ones(model, optimizer)
    optimizer.finish()
    return torn


def test_lost_partner_is_named(ranks):

    def work(world):
        model, optimizer = wrap_quadratic(world, schedule(2, (0,)), [0.0] * 3, timeout=60)
        push_ones(model, optimizer)
        if world.rank == 1:
            optimizer.run.reducer.heartbeat.note("left", "stopped in round 1 with ValueError: a bug")
            optimizer.ending.leave()
            return
        for _ in range(100):
            time.sleep(0.01)
            push_ones(model, optimizer)

    errors = ranks.run(2, work, catch=PeerFailedError)
    assert "group {0,1}: worker 1 stopped in round 1 with ValueError: a bug" in str(errors[0])
