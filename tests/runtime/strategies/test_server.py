"""Parameter servers: asynchronous ones apply every push once within the staleness bound, and failures are named."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
import torch

from helpers.thread_ranks import on_ranks
from helpers.training import push_ones, wrap_quadratic
from partreduce import Cluster, Schedule
from partreduce.errors import PeerFailedError
from partreduce.runtime.strategies import asynchronous_server
from partreduce.runtime.transport.array_frames import frame_of, tensor_of
from partreduce.runtime.transport.mailbox import Message
from partreduce.schedulers.protocols.shards import shards_of
from partreduce.strategies import DelayedAveraging, Server, Synchronous


def schedule(n, **options):
    return Schedule("server", Cluster.regular(1, n), Server(**options))


@pytest.mark.parametrize(
    ("hosts", "is_delayed", "steps_per_round"),
    [((0,), False, 1), ((0,), True, (1, 2, 3)), ((1, 2), False, (1, 2, 3)), ((1, 2), True, 1)],
)
def test_every_push_is_applied_exactly_once(ranks, hosts, is_delayed, steps_per_round):
    """Dyadic pushes make the sum exact: the final model is the initial one plus every push of every worker."""
    rounds = 12

    def work(world):
        plan = schedule(
            3,
            hosts=hosts,
            synchronous=False,
            sync=DelayedAveraging() if is_delayed else Synchronous(),
            steps_per_round=steps_per_round,
        )
        model, optimizer = wrap_quadratic(world, plan, [1.0, 2.0, 3.0])
        for step in range(rounds * plan.steps_per_round_of(world.rank)):
            model.set_gradient(0.0, np.array([1.0, 2.0**world.rank, step]) / 4)
            optimizer.step()
            if step == 5 * plan.steps_per_round_of(world.rank) - 1:
                with optimizer.mean_model():
                    pass
        optimizer.finish()
        return model.values().numpy().copy()

    steps = [
        rounds * (steps_per_round if isinstance(steps_per_round, int) else steps_per_round[rank]) for rank in range(3)
    ]
    wanted = np.array([1.0, 2.0, 3.0])
    for rank, count in enumerate(steps):
        wanted = wanted + np.array([count, count * 2.0**rank, sum(range(count))]) / 4
    for values in ranks.run(3, work):
        if is_delayed:  # the last pushes may be in flight when the first worker reads
            assert np.abs(values - wanted).max() <= np.abs(wanted).max() / 4
        else:
            np.testing.assert_array_equal(values, wanted)


@pytest.mark.parametrize("staleness", [0, 2])
def test_workers_run_ahead_by_at_most_the_staleness(ranks, staleness):
    """Worker 0 is slow; the hosts hold back its peers."""
    gaps = []
    rounds_of = [0] * 3

    def work(world):
        plan = schedule(3, hosts=(1,), synchronous=False, staleness=staleness)
        model, optimizer = wrap_quadratic(world, plan, [0.0, 0.0, 0.0])
        for round_ in range(8):
            deadline = time.monotonic() + 60
            while world.rank == 0 and max(rounds_of) < min(round_ + staleness, 8):
                assert time.monotonic() < deadline, "the bound allows the peers to reach this round, and they do not"
                time.sleep(0.001)
            if world.rank == 0:
                time.sleep(0.01)  # time to exceed the bound
                gaps.append(max(rounds_of) - round_)
            push_ones(model, optimizer)
            rounds_of[world.rank] += 1
        optimizer.finish()

    ranks.run(3, work)
    assert max(gaps) == staleness


def test_fast_workers_without_a_bound_do_not_wait_for_a_slow_one(ranks):
    ends = {}
    gate = threading.Event()

    def work(world):
        model, optimizer = wrap_quadratic(world, schedule(3, hosts=(0, 1), synchronous=False), [0.0] * 3)
        for step in range(5):
            if world.rank == 0 and step == 1:
                assert gate.wait(60), "the others need this worker's main thread"
            push_ones(model, optimizer)
        ends[world.rank] = True
        if len(ends) == 2:
            gate.set()
        optimizer.finish()
        return model.values().tolist()

    assert ranks.run(3, work) == [[15.0] * 3] * 3


def test_duplicate_push_is_applied_once(ranks, monkeypatch):
    receive = asynchronous_server._Shard.receive

    def twice(self, message, mailbox):
        receive(self, message, mailbox)
        if message.kind == "push":
            receive(self, message, mailbox)

    monkeypatch.setattr(asynchronous_server._Shard, "receive", twice)

    def work(world):
        model, optimizer = wrap_quadratic(world, schedule(2, synchronous=False), [0.0] * 3)
        push_ones(model, optimizer, 5)
        optimizer.finish()
        return model.values().tolist()

    assert ranks.run(2, work) == [[10.0] * 3] * 2


@on_ranks(2, [[6.0] * 3] * 2)
def test_drain_before_the_first_step_loses_no_push(world):
    """As when a state is loaded while only a worker with more steps per round has begun its round."""
    model, optimizer = wrap_quadratic(world, schedule(2, hosts=(1,), synchronous=False), [0.0] * 3)
    optimizer.runner.drain()
    push_ones(model, optimizer, 3)
    optimizer.finish()
    return model.values().tolist()


def test_pushes_before_a_shard_opens_are_answered_after_it_opens():
    machine = shards_of(Server(hosts=(0,), synchronous=False), 3)
    shard = asynchronous_server._Shard(machine, 3, [(1, 3)])
    sent = []

    class Box:
        def send(self, to, kind, numbers, frames):
            sent.append((to, kind, numbers, tensor_of(bytearray(frames[0]), torch.float64).tolist()))

    for worker, push in ((2, 4.0), (1, 8.0)):
        payload = (frame_of(torch.full((2,), push, dtype=torch.float64)),)
        shard.receive(Message(worker, "push", (0, 1), payload), Box())
    assert not sent
    shard.take([torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)])
    shard.receive(Message(0, "open", (0, 0)), Box())
    assert sent == [(2, "model", (1,), [6.0, 7.0]), (1, "model", (1,), [14.0, 15.0])]
    shard.receive(Message(2, "pull", (0, 2)), Box())
    assert sent[2:] == [(2, "model", (2,), [14.0, 15.0])]


def test_malformed_and_foreign_messages_are_dropped(ranks):
    zmq = pytest.importorskip("zmq")

    def work(world):
        model, optimizer = wrap_quadratic(world, schedule(2, hosts=(0, 1), synchronous=False), [0.0] * 3)
        push_ones(model, optimizer)
        mailbox = optimizer.runner.mailboxes[0]
        address = mailbox.address
        with zmq.Context() as context:
            for frames in (
                [b"\xff\x00"],
                [b"[1,2]"],
                [b"[]", b"x" * 10],
                [b'["token", 0, "push", [0, 1, 1]]', b"12345678"],
            ):
                # One socket each: libzmq drops the connection of a rejected socket, and a second message would block
                # forever.
                with context.socket(zmq.DEALER) as peer, contextlib.suppress(zmq.Again):
                    peer.setsockopt(zmq.LINGER, 200)
                    peer.setsockopt(zmq.SNDTIMEO, 2000)
                    peer.connect(address)
                    peer.send_multipart(frames)
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        with socket.create_connection((host, int(port)), 2) as raw:
            raw.sendall(b"GET / HTTP/1.0\r\n\r\n" * 10)
        push_ones(model, optimizer, 3)
        optimizer.finish()
        return model.values().tolist()

    assert ranks.run(2, work) == [[8.0] * 3] * 2


@pytest.mark.parametrize("synchronous", [True, False])
def test_failed_worker_is_named_to_waiting_workers(ranks, synchronous):

    def work(world):
        options = {} if synchronous else {"staleness": 0}
        plan = schedule(3, hosts=(0,), synchronous=synchronous, **options)
        model, optimizer = wrap_quadratic(world, plan, [0.0] * 3)
        push_ones(model, optimizer)
        if world.rank == 1:
            optimizer.run.reducer.heartbeat.note("left", "stopped in round 1 with ValueError: a bug")
            optimizer.ending.leave()
            return
        push_ones(model, optimizer)

    errors = ranks.run(3, work, catch=PeerFailedError)
    for rank in (0, 2):
        assert "worker 1 stopped in round 1 with ValueError: a bug" in str(errors[rank])
        assert "step 1, round 1" in str(errors[rank])
