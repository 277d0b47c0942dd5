"""Mailboxes ignore any bytes of strangers, and a failed side thread is an error."""

import contextlib
import json
import socket
import threading
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.signs import Signs
from helpers.training import Quadratic, push_ones, wrap
from partreduce import Cluster, Schedule
from partreduce.errors import UnavailableError
from partreduce.runtime.transport.endpoint import USER, Seal, SealCheck
from partreduce.runtime.transport.mailbox import Mailbox
from partreduce.runtime.transport.waiting import PeerGoneError
from partreduce.strategies import Pairwise, Server

zmq = pytest.importorskip("zmq")


def place_of(mailbox):
    host, _, port = mailbox.address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


class Pair:
    """Two mailboxes of one run; `received` has the messages of worker 1."""

    def __init__(self, deliver=None):
        self.received, store = [], dist.HashStore()
        self.boxes = [
            Mailbox(store, rank, "test", deliver or self.received.append, max_bytes=10_000, timeout=60)
            for rank in (0, 1)
        ]
        for box in self.boxes:
            box.start()

    @property
    def place(self):
        return place_of(self.boxes[1])

    def still_delivers(self):
        count = len(self.received)
        self.boxes[0].send(1, "hello", (count,), [b"payload"])
        self.boxes[1].wait_until(lambda: len(self.received) > count, Signs(), (0, 1), 0)
        last = self.received[-1]
        return (last.source, last.kind, last.numbers, bytes(last.payload[0])) == (0, "hello", (count,), b"payload")

    def close(self):
        for box in self.boxes:
            box.close()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def introduce(stranger, endpoint):
    """Give a socket the password of an endpoint."""
    stranger.plain_username, stranger.plain_password = USER, endpoint._password


def push(place, *messages, kind=zmq.DEALER, prepare=lambda stranger: None):
    with zmq.Context() as context, context.socket(kind) as stranger:
        stranger.setsockopt(zmq.LINGER, 200)
        prepare(stranger)
        stranger.connect("tcp://{}:{}".format(*place))
        for frames in messages:
            with contextlib.suppress(zmq.Again):
                stranger.send_multipart(frames, zmq.NOBLOCK)


def test_first_message_to_a_failed_worker_ends_before_the_timeout():
    """It failed before it published its address."""
    signs = Signs()
    signs.why = "worker 1 was killed by signal 9"
    box = Mailbox(dist.HashStore(), 0, "test", print, max_bytes=100, timeout=5, heartbeat=signs)
    box.start()
    try:
        with pytest.raises(UnavailableError, match="worker 1: left no address for messages: worker 1 was killed"):
            box.send(1, "hello")
    finally:
        box.close()


@pytest.mark.parametrize(
    ("strategy", "initial"),
    [(Server(), "broadcast"), (Server(synchronous=False), "broadcast"), (Pairwise(active=(0,)), "keep")],
)
def test_deeply_nested_message_from_a_stranger_changes_no_run(ranks, strategy, initial):
    plan = Schedule("s", Cluster.regular(1, 2), strategy)
    push_once = threading.Barrier(2)

    def work(world):
        model = Quadratic(np.array([world.rank, 1.0, 2.0]), torch.float64)
        optimizer = wrap(world, model, plan, lr=1.0, initial=initial)
        for step in range(6):
            if step == 2:
                mailbox = optimizer.runner.mailboxes[0]
                for kind in (zmq.DEALER, zmq.PUSH):
                    push(place_of(mailbox), [b"[" * 4096], [b"[" * 4096, b"x"], kind=kind)
                time.sleep(0.2)
                push_once.wait(60)
            push_ones(model, optimizer)
        optimizer.finish()
        return model.values().tolist()

    first, second = ranks.run(2, work)
    assert first == second


class Long(bytes):
    """Many bytes that hypothesis need not write out."""

    def __repr__(self):
        return f"Long({bytes(self[:8])!r}..., {len(self)})"


BYTES = st.binary(max_size=300)
DEEP = st.sampled_from(
    [Long(text) for text in (b"[" * 4096, b"[" * 100_000, b'{"a":' * 900, b"[1e999999]", b"[" + b"9" * 4000 + b"]")]
)
FRAMES = st.lists(BYTES | DEEP | st.just(Long(b"\0" * 300_000)), min_size=1, max_size=30)
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x00"
RAW = st.builds(lambda *parts: b"".join(parts), st.sampled_from([b"", GREETING[:10], GREETING]), BYTES, BYTES)


@settings(max_examples=30)
@given(messages=st.lists(FRAMES, max_size=3), raw=st.lists(RAW, max_size=3), held=st.integers(0, 3))
def test_any_bytes_of_strangers_are_dropped(pair, messages, raw, held):
    """Messages without the password, bytes that are not ZeroMQ, and half-open connections."""
    for kind in (zmq.DEALER, zmq.PUSH):
        push(pair.place, *messages, kind=kind)
    with contextlib.ExitStack() as stack:
        for data in [*raw, *[b""] * held]:
            connection = stack.enter_context(socket.create_connection(pair.place, 2))
            with contextlib.suppress(OSError):
                connection.sendall(data)
        assert pair.still_delivers()
    assert all(message.kind == "hello" for message in pair.received)


@settings(max_examples=50)
@given(frames=FRAMES, sealed=st.booleans())
def test_any_frames_of_a_sender_with_the_password_are_dropped(pair, frames, sealed):
    """Without the header's key nothing is parsed; with it, invalid headers are silently dropped."""
    endpoint = pair.boxes[1]._endpoint
    if sealed:
        frames = [Seal(endpoint._secret, 1)(frames[0]), *frames[1:]]
    push(pair.place, frames, prepare=lambda stranger: introduce(stranger, endpoint))
    assert pair.still_delivers()
    assert all(message.kind == "hello" for message in pair.received)


def test_sealed_header_opens_once_and_only_for_its_receiver(pair):
    secrets = {box._endpoint._secret for box in pair.boxes}
    assert len(secrets) == 1, "one secret in the run"
    (secret,) = secrets
    header = json.dumps([0, "hello", [1]]).encode()
    seal, check = Seal(secret, 1), SealCheck(secret, 1)
    frames = [seal(header) for _ in range(3)]
    first = frames[0]
    assert all(check(first[:n] + bytes([first[n] ^ 1]) + first[n + 1 :]) is None for n in range(len(first)))
    assert SealCheck(secret, 0)(first) is None, "it is for another receiver"
    assert SealCheck(secret + "x", 1)(first) is None, "another secret"
    assert [check(frame) for frame in (frames[1], frames[0], frames[1], frames[2])] == [header, None, None, header]
    assert check(Seal(secret, 1)(header)) == header, "another connection of the same sender"


def test_replayed_and_redirected_messages_are_dropped(pair):
    """An attacker with the password replays recorded messages, which only their receiver accepts, and only once."""
    recorded = []
    seals = {to: Seal(pair.boxes[0]._endpoint._secret, to) for to in (0, 1)}
    for number in range(3):
        recorded += [[seals[1](json.dumps([0, "data", [0, 0, number]]).encode()), b"payload"]]
    redirected = [seals[0](json.dumps([0, "data", [0, 0, 9]]).encode()), b"payload"]

    def prepare(stranger):
        introduce(stranger, pair.boxes[1]._endpoint)

    for _ in range(2):
        push(pair.place, *recorded, redirected, prepare=prepare)
        deadline = time.monotonic() + 60
        while sum(message.kind == "data" for message in pair.received) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    time.sleep(0.2)
    assert pair.still_delivers()
    assert [message.numbers for message in pair.received if message.kind == "data"] == [(0,), (1,), (2,)]


def test_frame_larger_than_any_message_is_not_received(pair):
    """The connection is closed before memory is allocated for the frame."""
    place = pair.boxes[1]._endpoint
    frames = [Seal(place._secret, 1)(json.dumps([0, "large", [0, 0]]).encode()), bytes(10_001)]
    push(pair.place, frames, prepare=lambda stranger: introduce(stranger, place))
    assert pair.still_delivers()
    assert {message.kind for message in pair.received} == {"hello"}


def test_a_strangers_connection_is_closed_before_it_takes_a_message(pair):
    """A message is held until its last frame, so a message that never ends would fill the worker's memory."""
    greeting = GREETING + b"NULL".ljust(20, b"\0") + b"\0" * 32
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    unfinished = b"\x03" + (9_000).to_bytes(8, "big") + b"x" * 9_000
    with socket.create_connection(pair.place, 2) as stranger:
        stranger.settimeout(5)
        with pytest.raises(ConnectionError):
            stranger.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready + 10_000 * unfinished)
    assert pair.still_delivers()


def test_failed_side_thread_raises_in_waits_and_sends():
    def broken(message):
        raise RecursionError("maximum recursion depth exceeded")

    pair = Pair(broken)
    pair.boxes[0].send(1, "hello")
    with pytest.raises(PeerGoneError, match="could not be delivered"):
        pair.boxes[1].wait_until(lambda: False, Signs(), (0, 1), 0)
    with pytest.raises(UnavailableError, match="could not be delivered"):
        pair.boxes[1].send(0, "hello")
    pair.close()


def test_file_with_the_number_of_a_closed_descriptor_is_not_written(tmp_path):
    """The side thread has ended; descriptors that it closed would now be the user's files."""

    def broken(message):
        raise ValueError("a bug")

    pair = Pair(broken)
    victim = pair.boxes[1]
    pair.boxes[0].send(1, "hello")
    victim._thread.join(60)
    assert not victim._thread.is_alive(), "the fault fired"
    files = [(tmp_path / str(number)).open("w+b", buffering=0) for number in range(30)]
    for _ in range(3):
        with contextlib.suppress(UnavailableError):
            victim.send(1, "self")
    victim.close()
    pair.boxes[0].close()
    victim.close()
    for file in files:
        file.write(b"mine")  # raises if the mailbox closed it
        file.seek(0)
        assert file.read() == b"mine"
        file.close()
