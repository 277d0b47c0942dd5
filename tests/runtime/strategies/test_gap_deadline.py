"""How long a worker that keeps a gap waits, and when it knows that there is nothing to wait for."""

import threading

import pytest

from partreduce.runtime.strategies.gap.driver import wait_in_step
from partreduce.runtime.strategies.protocol_driver import Missing, PeerWaitError


class Heartbeat:
    """What a worker sees of others that have all said that they took their last step."""

    rank = 0

    def __init__(self, rounds):
        self.rounds, self.glances = rounds, 0

    def read(self, kind, rank):
        return str(self.rounds) if kind == "finished" else None

    def gone(self, members, round_=None):
        return f"worker {min(members)} finished after {self.rounds} rounds" if members else None

    def lost(self, members):
        return frozenset()

    def store_lost(self):
        return None

    def news(self):
        self.glances += 1
        return self.glances

    def doing(self, text, waits=()):
        self.said = text, waits

    def watch(self, members):
        pass


def wait(heartbeat, done, *, pausing):
    lack = Missing("the end of what was sent before all paused", (1, 3), 2)
    condition = threading.Condition()
    wait_in_step(8, done, lambda: lack, condition, heartbeat, timeout=60, check_failure=lambda: None, pausing=pausing)


def test_in_a_pause_who_has_taken_the_last_step_is_still_waited_for():
    """In finish() everybody has said so, and the marks of the last pause are on their way."""
    heartbeat = Heartbeat(8)
    wait(heartbeat, lambda: heartbeat.glances > 2, pausing=True)  # it looks at what they have noted, and waits on
    assert heartbeat.said[1] == (1, 3)


def test_in_a_step_who_has_taken_the_last_one_sends_nothing_more():
    with pytest.raises(
        PeerWaitError, match=r"worker 1 finished after 8 rounds \(worker 0 waited in step 8 for the end"
    ):
        wait(Heartbeat(8), lambda: False, pausing=False)
