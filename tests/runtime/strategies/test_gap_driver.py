"""The driver of Hop's protocol object alone: late, duplicate and early messages."""

import torch

from partreduce.runtime.strategies.gap.driver import GapDriver
from partreduce.runtime.strategies.protocol_driver import EventLog, GapEvent
from partreduce.runtime.transport.array_frames import frame_of
from partreduce.runtime.transport.mailbox import Message
from partreduce.runtime.transport.updates import Layout, PayloadRings
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import Advance, Hop, Reduce
from partreduce.strategies import IterationGap, SkipPolicy, UpdateOrder

RING = Digraph.undirected(3, [(0, 1), (1, 2), (2, 0)])
ARRAY = torch.ones(4)


def driver_of(gap):
    """The driver of worker 0 of three, and the list of messages that it sends."""
    rings = PayloadRings(0, {1: 3, 2: 3}, Layout([ARRAY]))
    sent = []
    driver = GapDriver(Hop(RING, gap, fine=True), 0, rings, log=EventLog(GapEvent, is_on=True), send=sent.append)
    return driver, sent


def open_driver(gap):
    driver, sent = driver_of(gap)
    driver.open(0)
    driver.offer(())
    return driver, sent


def update(source, step, tokens=0, generation=0):
    return Message(source, "update", (0, generation, step, tokens), (frame_of(ARRAY * step),))


def test_late_and_duplicate_token_totals_add_nothing():
    driver, _ = open_driver(IterationGap(max_ig=2))
    for total in (2, 1, 2):  # the message with total 1 was overtaken
        driver.deliver(Message(1, "token", (0, total)))
    assert driver.state.tokens == (4, 2)
    driver.deliver(update(1, 0, tokens=3))
    driver.deliver(Message(1, "token", (0, 3)))
    assert driver.state.tokens == (5, 2)


def test_mark_carries_totals_of_messages_that_it_overtook():
    """A mark stays in order with updates; tokens and acknowledgements sent before it may arrive after it."""
    driver, sent = open_driver(IterationGap(max_ig=2, notify_ack=True, update_order=UpdateOrder.DPSGD))
    for source in (1, 2):
        driver.deliver(update(source, 0))
    driver.fire(Reduce)
    driver.offer(driver.fire(Advance).letters)
    assert not driver.has_left, "it has no acknowledgement"
    driver.deliver(Message(1, "ack", (0, 1)))
    driver.pause()
    driver.deliver(Message(2, "mark", (0, 1, 1, 1)))
    assert driver.unmarked() == (1,)
    assert driver.state.tokens == (1, 2)
    assert driver.has_left
    assert sent == [{1: (0, 1, 0), 2: (0, 1, 0)}]
    before = driver.state
    driver.deliver(Message(2, "ack", (0, 1)))
    driver.deliver(Message(2, "token", (0, 1)))
    assert driver.state == before


def test_messages_of_another_generation_are_held_or_dropped():
    driver, _ = open_driver(IterationGap())
    driver.deliver(update(1, 5, generation=1))
    driver.deliver(update(2, 0))
    driver.drop()
    driver.deliver(update(2, 1))
    driver.open(5)
    assert driver.rings.steps(1) == (5,)
    assert driver.rings.steps(2) == ()
    assert driver.state.updates == (1, 0)


def test_messages_of_an_earlier_generation_change_nothing():
    """Every kind of message of an earlier generation, received before or after this worker restarts."""
    old = [update(1, 0), Message(1, "token", (0, 2)), Message(1, "ack", (0, 1)), Message(1, "mark", (0, 5, 3, 1))]
    driver, sent = driver_of(IterationGap(max_ig=2, notify_ack=True, update_order=UpdateOrder.DPSGD))
    driver.open(0)
    driver.drop()
    for message in old:
        driver.deliver(message)
    driver.open(0)
    driver.pause()
    begun = driver.state
    for message in old:
        driver.deliver(message)
    assert driver.state == begun
    assert driver.rings.steps(1) == ()
    assert driver.unmarked() == (1, 2)
    assert driver.paused() == frozenset()
    assert not sent


def test_messages_before_the_first_step_are_held():
    driver, _ = driver_of(IterationGap(max_ig=2))
    driver.deliver(update(1, 0, tokens=1))
    driver.deliver(Message(2, "token", (0, 2)))
    driver.open(0)
    assert driver.rings.steps(1) == (0,)
    assert driver.state.tokens == (3, 4)


def test_new_generation_clears_updates_and_pauses():
    driver, _ = open_driver(IterationGap(max_ig=2))
    driver.deliver(update(1, 0))
    driver.pause()
    driver.deliver(Message(1, "mark", (0, 1, 0, 0)))
    assert driver.unmarked() == (2,)
    driver.drop()
    driver.open(0)
    assert driver.rings.steps(1) == ()
    driver.deliver(update(1, 0, generation=1))
    assert driver.rings.steps(1) == (0,)
    marks = driver.pause()
    assert [letter.numbers for letter in marks] == [(1, 1, 0, 0)] * 2
    assert driver.unmarked() == (1, 2)
    for source in (1, 2):
        driver.deliver(Message(source, "mark", (1, 1, 0, 0)))
    assert driver.unmarked() == ()


def test_messages_of_the_next_generation_are_held():
    driver, _ = driver_of(IterationGap(max_ig=2))
    driver.open(0)
    driver.deliver(Message(1, "mark", (1, 1, 4, 0)))
    driver.deliver(Message(1, "token", (1, 3)))
    assert driver.paused() == frozenset()
    assert driver.state.tokens == (2, 2)
    driver.drop()
    driver.open(0)
    assert driver.state.tokens == (6, 2), "the mark has the largest total"
    assert driver.paused() == {1}


def test_messages_two_generations_ahead_are_held():
    driver, _ = driver_of(IterationGap(max_ig=2))
    driver.open(0)
    driver.deliver(update(1, 0, generation=2))
    driver.deliver(Message(2, "token", (1, 1)))
    for steps, tokens in (((), (2, 3)), ((0,), (2, 2))):
        driver.drop()
        driver.open(0)
        assert driver.rings.steps(1) == steps
        assert driver.state.tokens == tokens


def test_missing_updates_and_tokens_are_described():
    driver, _ = open_driver(IterationGap(max_ig=1, backup=(1, 0, 0)))
    assert driver.missing().what == "an update of step 0"
    assert (driver.missing().of, driver.missing().needed) == ((1, 2), 1)
    driver.deliver(update(2, 0))
    assert driver.missing() is None
    driver.fire(Reduce)
    driver.fire(Advance)
    driver.offer(())
    driver.deliver(update(2, 1))
    driver.fire(Reduce)
    assert (driver.missing().what, driver.missing().of) == ("a token to enter step 2", (1, 2))


def test_token_received_after_offers_turns_the_step_into_a_skip():
    """The advance is chosen under the lock: a message may arrive between offers() and fire()."""
    driver, _ = open_driver(IterationGap(max_ig=2, backup=1, skip=SkipPolicy(limit=10)))
    for source in (1, 2):
        driver.deliver(update(source, 0))
    driver.fire(Reduce)
    for by in (1, 2):
        assert driver.offers(Advance)
        driver.deliver(update(1, by))
        for source in (1, 2):
            driver.deliver(Message(source, "token", (0, by)))
    assert driver.fire(Advance).by == 2
    assert driver.state.step == 2
