"""Messages in flight are bounded, none is lost or reordered, and arrays in flight do not change."""

import queue
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.faults.processes import look_at
from helpers.signs import Signs
from helpers.waiting import until
from helpers.warm import WARM
from partreduce.errors import UnavailableError
from partreduce.runtime.transport import array_frames
from partreduce.runtime.transport.array_frames import Snapshots, frame_of, tensor_of
from partreduce.runtime.transport.mailbox import Account, Bound, Mailbox, Tally
from partreduce.runtime.transport.waiting import PeerGoneError

pytest.importorskip("zmq")
MB = 10**6


class Boxes:
    """Mailboxes of one run, each with a function that receives its messages."""

    def __init__(self, *deliver, max_bytes=MB, timeout=60, signs=None, **options):
        store = dist.HashStore()
        self.boxes = [
            Mailbox(store, rank, "b", take, max_bytes=max_bytes, timeout=timeout, heartbeat=signs, **options)
            for rank, take in enumerate(deliver)
        ]

    def __enter__(self):
        for box in self.boxes:
            box.start()
        return self.boxes

    def __exit__(self, *error):
        for box in self.boxes:
            box.abandon()


def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def ignore(message):
    pass


SIZES = st.integers(0, 50)


@settings(max_examples=60)
@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(["send", "deliver", "grant", "old grant"]), SIZES), max_size=80),
)
def test_any_order_of_messages_and_grants_keeps_the_bound_and_the_order(messages, events):
    """Two accounts and the messages between them; in the end every accepted message has arrived in order."""
    bound = Bound(messages, 100)
    sender, receiver = Account(bound), Account(bound)
    wire, grants, arrived, count, refused = [], [(0, 0)], [], 0, set()

    def deliver():
        if wire:
            number, size = wire.pop(0)
            arrived.append(number)
            receiver.received.add(size)
            if receiver.owes():
                grants.append(receiver.report_received())

    def grant(which):
        wire.extend(sender.grant(*grants[which]))

    for event, size in events:
        if event == "send":
            if sender.has_room(size):
                sender.take(size)
                wire.append((count, size))
            elif not sender.hold((count, size), size):
                refused.add(count)
            count += 1
        elif event == "deliver":
            deliver()
        else:
            grant(-1 if event == "grant" else size % len(grants))
        assert len(wire) <= bound.messages
        assert sum(size for _, size in wire) <= bound.num_bytes
        assert sender.on_the_way.messages <= bound.messages
        assert sender.on_the_way.num_bytes <= bound.num_bytes
        assert sender.waiting.messages <= bound.messages
        assert sender.waiting.num_bytes <= bound.num_bytes
    grant(-1)
    while wire:
        deliver()
        grant(-1)
    assert arrived == [number for number in range(count) if number not in refused]
    assert sender.waiting == Tally(0, 0)


def test_grant_for_unsent_messages_gives_no_room():
    account = Account(Bound(2, 100))
    account.take(50)
    account.grant(10**9, 10**9)
    for _ in range(2):
        account.take(50)
    assert not account.has_room(0)
    with pytest.raises(AssertionError):
        account.take(0)


def test_stopped_receiver_bounds_queued_messages_and_memory():
    """Without grants libzmq would buffer all 400 MB, since its side thread runs while the strategy does not."""
    gate, arrived = threading.Event(), []

    def stop_at_gate(message):
        gate.wait()
        arrived.append(message.numbers[0])

    with Boxes(ignore, stop_at_gate, max_bytes=4 * MB, bound=Bound(4, 16 * MB)) as (sender, _):
        tensor = torch.zeros(4 * MB, dtype=torch.uint8)
        sender.send(1, "first", (0,), [frame_of(tensor)])
        time.sleep(0.2)
        before = resident()

        def send():
            for number in range(1, 100):
                sender.send(1, "more", (number,), [frame_of(torch.zeros(4 * MB, dtype=torch.uint8).add_(1))])

        sending = threading.Thread(target=send)
        sending.start()
        until(lambda: sender.traffic()[1].sent.messages == 4)
        time.sleep(1)  # for further messages, of which there must be none
        held = sender.traffic()[1]
        assert held.sent == Tally(4, 16 * MB)
        assert held.on_the_way == Tally(4, 16 * MB)
        # The 16 MB in flight may be buffered by both sender and receiver; the next message is prepared.
        assert resident() - before < 45 * MB
        gate.set()
        sending.join(60)
        until(lambda: len(arrived) == 100)
    assert arrived == list(range(100))


def test_send_to_a_stopped_process_times_out_and_loses_nothing(tmp_path):
    """With real sockets and SIGSTOP; the sender's error names the receiver, and no message is lost."""
    script = (
        "import sys, time, torch.distributed as dist\n"
        "from partreduce.runtime.transport.mailbox import Mailbox\n"
        "store, arrived = dist.TCPStore('127.0.0.1', int(sys.argv[1])), []\n"
        "box = Mailbox(store, 1, 'b', arrived.append, max_bytes=10**6, timeout=60)\n"
        "box.start()\n"
        "while not arrived or arrived[-1].kind != 'last': time.sleep(0.01)\n"
        "print([message.numbers[0] for message in arrived])\n"
        "box.close()\n"
    )
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    with (tmp_path / "output").open("w") as output:
        child = WARM.start("-c", script, store.port, streams=[0, output.fileno(), 2])
    sender = Mailbox(store, 0, "b", ignore, max_bytes=MB, timeout=60, bound=Bound(8, 4 * MB), heartbeat=Signs())
    sender.start()
    try:
        sender.send(1, "first", (0,), [b"x"])
        sender.timeout = 1.0
        child.send_signal(signal.SIGSTOP)
        until(lambda: look_at(child.pid).state == "T")
        before, number = resident(), 1
        while sender.traffic()[1].on_the_way.num_bytes + MB <= 4 * MB:
            sender.send(1, "more", (number,), [np.zeros(MB, dtype=np.uint8)])
            number += 1
        with pytest.raises(PeerGoneError, match=r"waits for worker 1 .* for room to send worker 1 1\.0 MB"):
            sender.send(1, "more", (number,), [np.zeros(MB, dtype=np.uint8)])
        assert 4 <= number <= 6
        assert resident() - before < 10 * MB
        child.send_signal(signal.SIGCONT)
        sender.timeout = 60
        sender.send(1, "last", (number,), [b"x"])
        assert child.wait(60) == 0
    finally:
        child.kill()
        sender.abandon()
    assert (tmp_path / "output").read_text().strip() == str(list(range(number + 1))), "the failed send used no number"


def test_waiting_for_room_ends_when_the_receiver_is_known_to_be_gone():
    gate, signs = threading.Event(), Signs()
    with Boxes(ignore, lambda message: gate.wait(), signs=signs, bound=Bound(1, 2 * MB)) as (sender, _):
        sender.send(1, "one")
        signs.why = "worker 1 was killed"
        with pytest.raises(PeerGoneError, match="worker 1 was killed"):
            sender.send(1, "two")
        gate.set()


def test_waiting_for_room_ends_when_the_run_does():
    gate, errors = threading.Event(), queue.SimpleQueue()
    with Boxes(ignore, lambda message: gate.wait(), bound=Bound(1, 2 * MB)) as (sender, _):
        sender.send(1, "one")
        wait, waits = sender.wait_until, threading.Event()
        sender.wait_until = lambda *arguments: (waits.set(), wait(*arguments))

        def send():
            try:
                sender.send(1, "two")
            except PeerGoneError as error:
                errors.put(str(error))

        threading.Thread(target=send).start()
        assert waits.wait(60)
        sender.abandon()
        assert "the run ended while this worker waited for room to send worker 1 0 bytes" in errors.get(timeout=60)
        gate.set()


def test_answers_beyond_the_bound_raise_an_error_that_names_the_peer():
    """To a worker that does not read, the bound is in flight, as much is queued, and the next message is an error."""
    gate, requested = threading.Event(), []

    def note_question(message):
        requested.append(message)
        boxes[0].send(1, "news", message.numbers)

    with Boxes(note_question, lambda message: gate.wait(), ignore, bound=Bound(3, 100)) as boxes:
        for number in range(6):
            boxes[2].send(0, "tell", (number,))
        until(lambda: len(requested) == 6)
        assert boxes[0].traffic()[1].on_the_way.messages == 3
        assert boxes[0].traffic()[1].waiting.messages == 3
        boxes[2].send(0, "tell", (6,))
        until(lambda: boxes[0].has_failed)
        with pytest.raises(UnavailableError, match="worker 1 takes nothing: 3 messages with 0 bytes wait for it"):
            boxes[0].send(1, "more")
        gate.set()


def test_workers_answering_each_other_at_the_smallest_bound_do_not_deadlock():
    count, done = 200, [threading.Event(), threading.Event()]
    answers = [[], []]

    def deliver(rank):
        def take(message):
            if message.kind == "ask":
                boxes[rank].send(1 - rank, "answer", message.numbers, message.payload)
            else:
                answers[rank].append((message.numbers[0], bytes(message.payload[0])))
                done[rank].set() if len(answers[rank]) == count else None

        return take

    def ask(rank):
        for number in range(count):
            boxes[rank].send(1 - rank, "ask", (number,), [bytes([rank]) * 50])
            until(lambda number=number: len(answers[rank]) >= number)  # one question at a time, as in the protocols

    with Boxes(deliver(0), deliver(1), bound=Bound(2, 100)) as boxes:
        threads = [threading.Thread(target=ask, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        assert all(event.wait(60) for event in done)
        for thread in threads:
            thread.join(60)
    for rank in (0, 1):
        assert answers[rank] == [(number, bytes([rank]) * 50) for number in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_random_pauses_lose_and_reorder_nothing_and_all_bytes_are_counted(seed):
    rng = random.Random(seed)
    bound = Bound(rng.choice([1, 3, 64]), rng.choice([6000, 100_000]))
    received = [[], [], []]
    plans = [[(rng.randrange(3), rng.choice([0, 1, 40, 3000])) for _ in range(150)] for _ in range(3)]

    def deliver(rank):
        own = random.Random(f"{seed} {rank}")

        def take(message):
            if own.random() < 0.05:
                time.sleep(own.random() * 0.02)
            received[rank].append((message.source, message.numbers[0], len(message.payload[0])))

        return take

    def work(rank):
        for number, (to, size) in enumerate(plans[rank]):
            boxes[rank].send(to, "m", (number,), [bytes(size)])

    with Boxes(*map(deliver, range(3)), max_bytes=3000, bound=bound) as boxes:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))
        until(lambda: sum(map(len, received)) == 450)
        traffic = [box.traffic() for box in boxes]
    for rank in range(3):
        for source in range(3):
            mine = [(number, size) for peer, number, size in received[rank] if peer == source]
            wanted = [(n, size) for n, (to, size) in enumerate(plans[source]) if to == rank]
            assert mine == wanted
            if rank != source:
                counted = Tally(len(wanted), sum(size for _, size in wanted))
                assert traffic[source].get(rank, None) is None or traffic[source][rank].sent == counted
                assert traffic[rank].get(source, None) is None or traffic[rank][source].received == counted
                assert wanted == [] or rank in traffic[source]


def reuse(snapshots, seed):
    """Count changed messages of a sender that overwrites its arrays, to receivers that pause and keep messages."""
    rng = random.Random(seed)
    changed, count, kept = [], [0], []

    def take(message):
        if rng.random() < 0.1:
            time.sleep(0.01)
        kept.append(message)
        if len(kept) > 3:
            for old in kept:
                numbers = torch.cat([tensor_of(frame, torch.float32) for frame in old.payload])
                changed.append(bool((numbers != old.numbers[0]).any()))
            count[0] += len(kept)
            kept.clear()

    model = [torch.zeros(60_000), torch.zeros(7), torch.zeros(0)]
    with Boxes(take, ignore, take, max_bytes=MB, bound=Bound(4, 4 * MB)) as boxes:
        for number in range(40):
            for part in model:
                part.fill_(number)
            frames = snapshots.take(model)
            for to in (0, 2):  # to itself, where nothing is copied, and through the network
                boxes[0].send(to, "model", (number,), frames)
            del frames
        until(lambda: count[0] >= 72)
    return sum(changed)


@pytest.mark.parametrize("seed", range(5))
def test_reused_array_does_not_change_messages_in_flight(seed):
    snapshots = Snapshots()
    assert reuse(snapshots, seed) == 0
    assert len(snapshots) < 30, "memory was reused"


def test_reuse_of_memory_in_flight_is_detected(monkeypatch):
    monkeypatch.setattr(array_frames._Snapshot, "is_free", lambda snapshot: True)
    assert reuse(Snapshots(), 0) > 0


def test_snapshot_is_reused_only_after_its_last_view_is_deleted():
    snapshots = Snapshots()
    part = tensor_of(snapshots.take([torch.arange(10.0)])[0][8:20], torch.float32)[1:]
    for number in range(5):
        snapshots.take([torch.full((10,), float(number))])
    assert part.tolist() == [3.0, 4.0]
    assert len(snapshots) == 2
    del part
    snapshots.take([torch.zeros(10)])
    assert len(snapshots) <= 2


def test_unaligned_frame_is_read_correctly():
    numbers = torch.arange(5, dtype=torch.float64)
    frame = bytearray(b"x") + bytes(frame_of(numbers))
    assert tensor_of(memoryview(frame)[1:], torch.float64).tolist() == numbers.tolist()
    aligned = frame_of(numbers)
    tensor_of(aligned, torch.float64).add_(1)
    assert numbers.tolist() == [1, 2, 3, 4, 5], "a view, not a copy"


def test_closing_a_mailbox_sends_queued_messages():
    gate, arrived = threading.Event(), []

    def slow(message):
        gate.wait()
        arrived.append(message.numbers[0])

    def burst(message):
        for number in range(4):
            boxes[0].send(1, "part", (number,))

    with Boxes(burst, slow, bound=Bound(2, 100)) as boxes:
        boxes[0].send(0, "go")
        until(lambda: boxes[0].traffic().get(1) is not None and boxes[0].traffic()[1].waiting.messages == 2)
        boxes[0].close()
        gate.set()
        until(lambda: len(arrived) == 4)
    assert arrived == [0, 1, 2, 3]


def test_urgent_messages_overtake_arrays_and_connections_keep_their_order():
    """No event shows that all messages have reached the receiver, so the test retries with longer pauses."""
    received, held = [], threading.Event()
    array, sizes = frame_of(torch.zeros(MB // 4)), (("array", 6), ("token", 3))

    def take(message):
        received.append((message.kind, *message.numbers))
        assert message.kind == "hello" or held.wait(60)

    def overtakes(sender, seconds):
        received.clear()
        held.clear()
        for number in range(6):
            sender.send(1, "array", (number,), [array])
        until(lambda: received)
        for number in range(2):
            sender.send(1, "token", (number,), urgent=True)
        sender.send_newest(1, "token", (2,), urgent=True)
        time.sleep(seconds)
        held.set()
        until(lambda: len(received) == 9)
        assert all([place[1] for place in received if place[0] == kind] == list(range(count)) for kind, count in sizes)
        return received[-1] == ("array", 5)

    with Boxes(ignore, take, bound=Bound(64, 20 * MB)) as (sender, _):
        sender.send(1, "hello", (), urgent=True)  # which opens the connection
        until(lambda: received)
        assert any(overtakes(sender, seconds) for seconds in (0.1, 0.5, 2, 8, 30))
