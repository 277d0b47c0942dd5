"""Hop at the end of training and after the loss of a neighbor: errors name the missing message, others continue."""

import threading
import time

import numpy as np
import pytest

from helpers.gap_runs import plan_of, ring_edges, until_left_behind
from helpers.training import push_ones, wrap_quadratic
from partreduce.errors import PeerFailedError
from partreduce.strategies import IterationGap, SkipPolicy, UpdateOrder


@pytest.fixture(autouse=True)
def own_world(ranks):
    yield
    ranks.fresh()


def train(model, optimizer, rounds):
    while optimizer.round < rounds:
        push_ones(model, optimizer)


def lose(optimizer):
    """Leave the run as the interpreter's exit after an exception does."""
    optimizer.run.reducer.heartbeat.note("left", f"stopped in round {optimizer.round} with ValueError: a bug")
    optimizer.ending.leave()


LOST = [
    (IterationGap(), 3, "an update of step 3"),
    # The update of step 3 was sent on entering it.
    (IterationGap(update_order=UpdateOrder.DPSGD), 4, "an update of step 4"),
    (IterationGap(staleness=2), 5, "an update of step 3 or later"),
    (IterationGap(notify_ack=True, max_ig=1), 3, "an update of step 3"),
    (IterationGap(max_ig=2, backup=1), 5, "a token to enter step 6"),
]


@pytest.mark.parametrize(("gap", "step", "lack"), LOST)
def test_worker_names_the_missing_message_of_a_lost_peer(ranks, gap, step, lack):
    """Each worker continues as far as its setting allows after it received all messages of worker 1."""
    barrier, last = threading.Barrier(3), 2 + (gap.update_order is UpdateOrder.DPSGD)

    def work(world):
        model, optimizer = wrap_quadratic(world, plan_of(3, ring_edges(3), gap), np.zeros(3), timeout=120)
        log = optimizer.runner.log
        log.is_on = True
        train(model, optimizer, 3)
        while world.rank != 1 and not any((e.kind, e.step, e.source) == ("update", last, 1) for e in list(log.events)):
            time.sleep(0.002)
        barrier.wait(60)
        if world.rank == 1:
            lose(optimizer)
            return
        train(model, optimizer, 100)

    errors = ranks.run(3, work, catch=PeerFailedError)
    texts = [str(errors[0]), str(errors[2])]
    assert all("worker 1 stopped in round 3 with ValueError: a bug" in text for text in texts)
    first = [text for rank, text in zip((0, 2), texts, strict=True) if f"(worker {rank} waited" in text]
    assert any(f"waited in step {step} for {lack} from worker 1" in text for text in first), texts


def test_loss_of_a_backup_neighbor_does_not_stop_training(ranks):
    """Worker 3 sends only to worker 0, which has one more in-neighbor than it needs."""
    edges = [*ring_edges(3, both=False), (3, 0)]
    schedule = plan_of(4, edges, IterationGap(max_ig=2, backup=(1, 0, 0, 0)))

    def work(world):
        model, optimizer = wrap_quadratic(world, schedule, np.zeros(3), timeout=60)
        if world.rank == 3:
            train(model, optimizer, 2)
            lose(optimizer)
            return
        train(model, optimizer, 2)
        end = time.monotonic() + 1.5  # longer than any worker takes to detect the loss
        while time.monotonic() < end:
            time.sleep(0.02)
            train(model, optimizer, optimizer.round + 1)
        train(model, optimizer, 120)
        optimizer.finish()

    errors = ranks.run(4, work, catch=PeerFailedError)
    for error in errors[:3]:
        assert "finish: worker 3 stopped in round 2 with ValueError: a bug" in str(error)


def test_wait_for_a_silent_worker_raises_at_the_timeout(ranks):
    def work(world):
        model, optimizer = wrap_quadratic(world, plan_of(2, ring_edges(2), IterationGap()), np.zeros(3), timeout=120)
        optimizer.run.reducer.timeout = 1
        if world.rank == 0:
            with pytest.raises(PeerFailedError) as caught:
                train(model, optimizer, 5)
            assert "(worker 0 waited in step 0 for an update of step 0 from worker 1)" in str(caught.value)
            raised.set()
        assert raised.wait(60)

    raised = threading.Event()
    ranks.run(2, work)


def test_peer_that_finished_early_is_named(ranks):
    def work(world):
        model, optimizer = wrap_quadratic(
            world, plan_of(2, ring_edges(2), IterationGap(max_ig=2)), np.zeros(3), timeout=60
        )
        train(model, optimizer, 5 if world.rank else 3)
        optimizer.finish()

    errors = ranks.run(2, work, catch=PeerFailedError)
    assert "worker 0 finished after 3 rounds" in str(errors[1])
    assert "waited in step 3 for an update of step 3 from worker 0" in str(errors[1])
    assert "join()" in str(errors[1])


def test_worker_alone_in_mean_model_is_named_by_its_neighbor(ranks):
    def work(world):
        model, optimizer = wrap_quadratic(
            world, plan_of(2, ring_edges(2), IterationGap(max_ig=2)), np.zeros(3), timeout=120
        )
        train(model, optimizer, 3)
        if world.rank == 1:
            with optimizer.mean_model():
                pass
        train(model, optimizer, 9)

    errors = ranks.run(2, work, catch=PeerFailedError)
    assert "worker 1 waits for all in mean_model()" in str(errors[0])
    assert "waited in step 3 for an update of step 3 from worker 1" in str(errors[0])
    assert "worker 0" in str(errors[1])


@pytest.mark.parametrize("steps_per_round", [1, 2])
def test_batches_loop_ends_in_the_same_step_despite_skips(ranks, steps_per_round):
    """A slow worker catches up and drops the batches of the steps that it skipped."""
    n, rounds = 4, 16
    gap = IterationGap(max_ig=4, backup=1, skip=SkipPolicy(limit=10))
    schedule = plan_of(n, ring_edges(n), gap, steps_per_round=steps_per_round)

    def work(world):
        model, optimizer = wrap_quadratic(world, schedule, np.zeros(3))
        seen, means = [], []
        for epoch in range(2):
            for batch in optimizer.batches(range(rounds * steps_per_round // 2)):
                seen.append(epoch * rounds * steps_per_round // 2 + batch)
                assert optimizer.steps == seen[-1], "the batch belongs to the step"
                if world.rank == 0 and batch == 3:
                    until_left_behind(optimizer.runner)
                push_ones(model, optimizer)
            with optimizer.mean_model():  # no worker skips past a collective call
                means.append(model.values().tolist())
        steps, skipped = optimizer.steps, optimizer.skipped
        optimizer.finish()
        return len(seen), steps, skipped, means

    results = ranks.run(n, work)
    assert all(taken + skipped == steps == rounds * steps_per_round for taken, steps, skipped, _ in results)
    assert results[0][2] > 0
    assert all(means == results[0][3] for *_, means in results)


def test_skips_without_optimizer_batches_raise_with_advice(ranks):
    gap = IterationGap(max_ig=4, backup=1, skip=SkipPolicy(limit=10))

    def work(world):
        model, optimizer = wrap_quadratic(world, plan_of(3, ring_edges(3), gap), np.zeros(3), timeout=60)
        for batch in range(12):
            if world.rank == 0 and batch == 3:
                until_left_behind(optimizer.runner)
            push_ones(model, optimizer)
        optimizer.finish()

    for error in ranks.run(3, work, catch=PeerFailedError):
        assert "loop over `optimizer.batches(loader)`" in str(error)
