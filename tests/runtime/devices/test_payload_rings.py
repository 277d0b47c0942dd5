"""Rings of updates respect their proved capacity, lose and mix no updates, and never change borrowed values."""

import queue
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.device.simulated_device import SimulatedDevice
from partreduce.runtime.transport.array_frames import frame_of
from partreduce.runtime.transport.mailbox import Mailbox
from partreduce.runtime.transport.updates import (
    Arrival,
    Layout,
    PayloadRings,
    PlaceTakenError,
    UpdateSender,
    add_updates,
)

TYPES = (torch.float32, torch.float64, torch.bfloat16)


def flat(*sizes, fill=0.0):
    return [torch.full((size,), fill, dtype=dtype) for size, dtype in zip(sizes, TYPES, strict=False)]


def parts_of(arrays, layout):
    return [[frame_of(arrays[piece.array][piece.start : piece.end].clone()) for piece in part] for part in layout.parts]


def receive(rings, layout, source, step, arrays=None):
    arrays = flat(3, fill=step) if arrays is None else arrays
    parts = enumerate(parts_of(arrays, layout))
    return [rings.receive(source, step, part, payload) for part, payload in parts][-1]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=3), st.integers(128, 512))
def test_layout_covers_every_element_once_within_the_part_size(sizes, part_bytes):
    arrays = flat(*sizes)
    layout = Layout(arrays, part_bytes)
    seen = [(piece.array, place) for part in layout.parts for piece in part for place in range(piece.start, piece.end)]
    assert seen == [(index, place) for index, size in enumerate(sizes) for place in range(size)]
    for part in layout.parts:
        held = sum((piece.end - piece.start) * arrays[piece.array].element_size() for piece in part)
        assert held <= part_bytes
    assert len(layout) <= 2 * sum(-(-array.nbytes // (part_bytes // 2)) for array in arrays) + 1


@settings(max_examples=40)
@given(st.integers(1, 5), st.booleans(), st.data())
def test_rings_match_a_dictionary_for_any_order_of_events(capacity, newest, data):
    """The sender respects its bound; the receiver takes, peeks and retires steps."""
    layout = Layout(flat(3), 64)
    rings = PayloadRings(0, {7: capacity}, layout, newest_only=newest)
    there, before, following = {}, 0, 0
    for _ in range(data.draw(st.integers(1, 30))):
        event = data.draw(st.sampled_from(["send", "send", "take", "look", "retire"]))
        if event == "send" and (newest or following < before + capacity):
            arrival = receive(rings, layout, 7, following)
            assert arrival is (Arrival.LATE if following < before else Arrival.KEPT)
            if following >= before:
                there = {following: following} if newest else {**there, following: following}
            following += data.draw(st.integers(1, 2))
        elif event in ("take", "look") and there:
            step = data.draw(st.sampled_from(sorted(there)))
            (numbers,) = rings.take(7, step) if event == "take" else rings.peek(7, step)
            assert numbers.tolist() == [step] * 3
            if event == "take":
                del there[step]
        elif event == "retire":
            before += data.draw(st.integers(0, 2))
            rings.retire(before)
            there = {step: there[step] for step in there if step >= before}
        assert rings.steps(7) == tuple(sorted(there))
        assert rings.num_bytes == 12 * len(there)
        assert rings.fill() == {7: (len(there), 1 if newest else capacity)}
    assert rings.most_bytes <= 12 * ((2 if newest else capacity) + 1)


def test_update_beyond_the_proved_capacity_is_rejected():
    layout = Layout(flat(3))
    rings = PayloadRings(4, {1: 3}, layout)
    for step in (0, 1, 2):
        receive(rings, layout, 1, step)
    with pytest.raises(
        PlaceTakenError, match=r"worker 4: the update of step 3 from worker 1 .* place 0 of 3 .* step 0"
    ):
        receive(rings, layout, 1, 3)
    rings.take(1, 0)
    with pytest.raises(PlaceTakenError, match=r"step 3 from worker 1 .* 3 places, and step 0 is not over \(place 0 is"):
        receive(rings, layout, 1, 3)
    rings.retire(1)
    assert receive(rings, layout, 1, 3) is Arrival.KEPT
    with pytest.raises(PlaceTakenError, match="place 1 of 3 holds that of step 1"):
        receive(rings, layout, 1, 1)  # twice
    assert rings.steps(1) == (1, 2, 3)
    assert [rings.take(1, step)[0].tolist() for step in (1, 2, 3)] == [[step] * 3 for step in (1, 2, 3)]


def test_older_update_is_dropped_and_a_borrowed_one_keeps_its_values():
    layout = Layout(flat(3))
    rings = PayloadRings(0, {1: 9}, layout, newest_only=True)
    receive(rings, layout, 1, 5)
    (read,) = rings.peek(1)
    assert receive(rings, layout, 1, 4) is Arrival.LATE
    assert receive(rings, layout, 1, 8) is Arrival.KEPT
    assert read.tolist() == [5.0] * 3
    assert rings.peek(1)[0].tolist() == [8.0] * 3
    assert (rings.steps(1), rings.dropped, rings.num_bytes) == ((8,), 2, 12)


def test_update_that_becomes_late_between_parts_is_dropped():
    layout = Layout(flat(300), 512)
    rings = PayloadRings(0, {1: 2}, layout)
    first, *rest = parts_of(flat(300, fill=1.0), layout)
    assert len(rest) == 2
    for forget in (lambda: rings.retire(1), lambda: rings.clear(1)):
        rings.clear()
        assert rings.receive(1, 0, 0, first) is Arrival.MORE
        assert rings.num_bytes > 0
        forget()
        assert rings.receive(1, 0, 1, rest[0]) is Arrival.MORE
        assert rings.receive(1, 0, 2, rest[1]) is Arrival.LATE
        assert (rings.num_bytes, rings.steps(1)) == (0, ())
    assert rings.dropped == 2
    assert receive(rings, layout, 1, 1, flat(300, fill=2.0)) is Arrival.KEPT
    assert torch.cat(rings.take(1, 1)).tolist() == [2.0] * 300


def test_concurrent_receive_and_take_never_mix_steps():
    """The sender continues when the receiver retires steps, and a reader peeks while places are filled."""
    capacity, steps = 3, 400
    layout = Layout(flat(64), 128)
    rings = PayloadRings(0, {1: capacity}, layout)
    newest = PayloadRings(0, {1: 1}, layout, newest_only=True)
    tokens, arrived = threading.Semaphore(capacity), queue.SimpleQueue()

    def send():
        for step in range(steps):
            tokens.acquire()
            arrays = flat(64, fill=step)
            receive(rings, layout, 1, step, arrays)
            receive(newest, layout, 1, step, arrays)
            arrived.put(step)

    thread = threading.Thread(target=send)
    thread.start()
    for step in range(steps):
        assert arrived.get(timeout=60) == step
        read = torch.cat(newest.peek(1))
        assert torch.equal(torch.cat(rings.take(1, step)), torch.full((64,), float(step)))
        rings.retire(step + 1)
        tokens.release()
        assert len(set(read.tolist())) == 1
        assert read[0] >= step
    thread.join()
    assert (rings.num_bytes, rings.dropped) == (0, 0)
    assert rings.most_bytes <= capacity * 256
    assert newest.dropped == steps - 1


@pytest.mark.parametrize("part_bytes", [64, 4096])
def test_weighted_sums_of_updates_match_numpy(part_bytes):
    rng = np.random.default_rng(3)
    numbers = rng.integers(-64, 64, (4, 130)) / 16  # dyadic: exact in any order

    def arrays(row):
        return [torch.tensor(row[:100], dtype=torch.float32), torch.tensor(row[100:], dtype=torch.float64)]

    layout = Layout(arrays(numbers[0]), part_bytes)
    rings = PayloadRings(0, {1: 1, 2: 1, 3: 1}, layout)
    for source in (1, 2, 3):
        receive(rings, layout, source, 0, arrays(numbers[source]))
    own = arrays(numbers[0])
    add_updates(own, [rings.take(source, 0) for source in (1, 2, 3)], [0.5, 0.125, 0.125], layout)
    assert (
        torch.cat([part.double() for part in own]).tolist() == (np.array([0.25, 0.5, 0.125, 0.125]) @ numbers).tolist()
    )


def test_ring_is_restored_from_its_steps_and_values():
    layout = Layout(flat(3))
    rings, again = (PayloadRings(0, {1: 3}, layout) for _ in range(2))
    for step in (4, 5):
        rings.clear(4) if step == 4 else None
        receive(rings, layout, 1, step)
    again.clear(4)
    for step in rings.steps(1):
        again.restore(1, step, rings.peek(1, step))
    rings.clear()
    assert (rings.num_bytes, rings.steps(1)) == (0, ())
    assert [again.take(1, step)[0].tolist() for step in again.steps(1)] == [[4.0] * 3, [5.0] * 3]


def test_late_device_changes_no_update_and_the_host_waits_only_for_copies():
    """A simulated device with a late side stream copies, sends and averages; live arrays change at once."""
    pytest.importorskip("zmq")
    store, arrived = dist.HashStore(), queue.SimpleQueue()
    numbers = torch.arange(2000, dtype=torch.float32)
    layout = Layout([numbers], 4096)
    rings = PayloadRings(1, {0: 2}, layout)

    def deliver(message):
        part, step = message.numbers
        if rings.receive(0, step, part, message.payload) is Arrival.KEPT:
            arrived.put(step)

    boxes = [Mailbox(store, rank, "d", deliver, max_bytes=8000, timeout=60) for rank in (0, 1)]
    for box in boxes:
        box.start()
    device = SimulatedDevice("late")
    try:
        with device.running():
            streams = device.streams()
            sender = UpdateSender(boxes[0], layout, capacity=2, streams=streams)
            live = numbers.clone()
            for step in range(4):
                with streams.side():
                    device.sleep(0.02)
                sender.send("update", [live], {1: (step,)})
                live.add_(1)
                assert arrived.get(timeout=60) == step
                mean = torch.zeros_like(live)
                with streams.side():
                    device.sleep(0.02)
                add_updates([mean], [rings.take(0, step)], [0.5], layout, streams=streams)
                rings.retire(step + 1)
                mean.mul_(2)
                assert device.host_waits == step
                assert mean.tolist() == [place + step for place in range(2000)]
    finally:
        device.end()
        for box in boxes:
            box.abandon()


def test_one_snapshot_serves_all_neighbors_after_parameters_change():
    """Real mailboxes; worker 0 sends as many steps ahead as the rings hold, and never waits for space."""
    pytest.importorskip("zmq")
    store, capacity = dist.HashStore(), 4
    arrays = [torch.zeros(3000), torch.zeros(500, dtype=torch.float64)]
    layout = Layout(arrays, 4096)
    rings = [PayloadRings(rank, {0: capacity}, layout) for rank in range(3)]
    arrived = queue.SimpleQueue()

    def deliver(rank):
        def take(message):
            part, step = message.numbers
            if rings[rank].receive(message.source, step, part, message.payload) is Arrival.KEPT:
                arrived.put((rank, step))

        return take

    bound = layout.bound([capacity], 4)
    boxes = [
        Mailbox(store, rank, "u", deliver(rank), max_bytes=layout.num_bytes, timeout=60, bound=bound)
        for rank in range(3)
    ]
    for box in boxes:
        box.start()
    try:
        sender = UpdateSender(boxes[0], layout, capacity=capacity)
        for start in range(0, 20, capacity):
            for step in range(start, start + capacity):
                for array in arrays:
                    array.fill_(step)
                sender.send("update", arrays, {1: (step,), 2: (step,)})
                for array in arrays:
                    array.fill_(-1)
            assert {arrived.get(timeout=60) for _ in range(2 * capacity)} == {
                (rank, step) for rank in (1, 2) for step in range(start, start + capacity)
            }
            for step in range(start, start + capacity):
                for rank in (1, 2):
                    own = [array.clone() for array in arrays]
                    add_updates(own, [rings[rank].take(0, step)], [1.0], layout)
                    assert all(torch.equal(array, torch.full_like(array, step)) for array in own)
            for rank in (1, 2):
                assert rings[rank].most_bytes <= capacity * layout.num_bytes
                rings[rank].retire(start + capacity)
        assert sender.num_bytes <= (capacity + 1) * layout.num_bytes
        assert boxes[0].traffic()[1].waiting.messages == 0
    finally:
        for box in boxes:
            box.abandon()
