"""Protocols in virtual time: who waits for whom, AD-PSGD's throughput, meetings."""

import pytest

from partreduce.errors import InputError
from partreduce.schedulers.protocols.adpsgd import Choose, Pairing, Role
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import Advance, Hop
from partreduce.schedulers.simulator.machine import Meeting, Timing, VirtualMachine
from partreduce.strategies import IterationGap


def both_ways(pairs):
    return [edge for a, b in pairs for edge in ((a, b), (b, a))]


class Taking(Timing):
    """Work by a function of (process, event, rng), ways by one of (source, destination)."""

    def __init__(self, seconds, way=lambda source, to: 0.0):
        self.seconds, self.wire = seconds, way

    def work(self, process, state, event, rng):
        return self.seconds(process, event, rng)

    def way(self, source, to, message, rng):
        return self.wire(source, to)


def compute(times, **wire):
    """A step takes its worker's time; updates leave at its beginning (Hop's parallel order)."""
    return Taking(lambda process, event, rng: times[process] if isinstance(event, Advance) else 0.0, **wire)


def test_a_slow_message_delays_only_who_waits_for_it():
    pair = Digraph.of(3, [(0, 1), (1, 2)])
    machine = VirtualMachine(
        Hop(pair, IterationGap()), compute([1.0, 1.0, 1.0], way=lambda source, to: 5.0 if source == 0 else 0.0)
    )
    notes = machine.run(until=6.0)
    entered = {(n.process, n.what[1]): n.seconds for n in notes if n.what[0] == "entered"}
    assert entered[0, 1] == 1.0
    assert entered[1, 1] == 5.0
    assert entered[2, 1] == 1.0


def test_adpsgd_lets_fast_workers_run_on():
    pairs = both_ways([(a, b) for a in range(4) for b in range(4, 8)])
    roles = (Role.ACTIVE,) * 4 + (Role.PASSIVE,) * 4
    speed = [1.0, 1.0, 1.0, 5.0]
    machine = VirtualMachine(
        Pairing(Digraph.of(8, pairs), roles),
        Taking(lambda process, event, rng: speed[process] if isinstance(event, Choose) else 0.0),
        seed=4,
    )
    notes = machine.run(until=200.0)
    steps = [sum(n.process == worker for n in notes) for worker in range(4)]
    assert steps[:3] == [200, 200, 200]
    assert steps[3] == 40
    partners = [n.what[1] for n in notes if n.process == 0]
    assert set(partners) == {4, 5, 6, 7}, "ties between neighbors are drawn"


def test_a_circle_of_waiting_workers_is_seen_as_idle():
    triangle = Pairing(Digraph.of(3, both_ways([(0, 1), (1, 2), (2, 0)])), (Role.BOTH,) * 3)
    preferred = {0: 1, 1: 2, 2: 0}
    machine = VirtualMachine(
        triangle,
        Taking(lambda process, event, rng: 0.0 if event.partner == preferred[process] else 1.0, lambda *_: 1.0),
    )
    machine.run(max_events=100)
    assert not machine.run(), "everybody has asked and nobody answers"
    assert machine.now == 1.0


def test_negative_times_are_refused():
    ring = Digraph.of(2, [(0, 1), (1, 0)])
    with pytest.raises(InputError, match="finite time >= 0"):
        VirtualMachine(Hop(ring, IterationGap()), Taking(lambda *_: -1.0)).run(max_events=10)


def test_a_thousand_workers():
    count = 1000
    ring = Digraph.of(count, both_ways([(i, (i + 1) % count) for i in range(count)]))
    machine = VirtualMachine(Hop(ring, IterationGap(max_ig=2)), compute([1.0] * count))
    notes = machine.run(until=5.0)
    assert sum(n.what == ("entered", 5) for n in notes) == count


class Pair:
    """Processes 0 and 1 meet once; process 2 calls process 0 off. A state is (what it offers, may it still)."""

    num_processes = 3
    channels = ((2, 0),)

    def start(self, process):
        return True, ()

    def ready(self, process, state):
        return (("call off" if process == 2 else "meet"),) if state else ()

    def step(self, process, state, event):
        if event == "call off":
            return False, (Send(0, "stay away"),)
        return False, () if isinstance(event, Received) else (Note("met"),)


class PairTimes(Timing):
    """Process p comes after `comes[p]`; the meeting takes 2."""

    def __init__(self, *comes):
        self.comes, self.steps = comes, []

    def work(self, process, state, event, rng):
        return self.comes[process]

    def meeting(self, process, state, event):
        return Meeting("only", (0, 1), 2.0) if event == "meet" else None

    def happened(self, step):
        self.steps.append((step.process, step.work_end, step.start, step.end))


def test_a_meeting_begins_with_the_last_member_and_ends_for_all_at_once():
    times = PairTimes(1.0, 3.0, None)
    machine = VirtualMachine(Pair(), times)
    notes = machine.run()
    assert [(n.seconds, n.process) for n in notes] == [(5.0, 0), (5.0, 1)], "in the order of the members"
    assert times.steps == [(0, 1.0, 3.0, 5.0), (1, 3.0, 3.0, 5.0)]
    assert not machine.run()


@pytest.mark.parametrize("called_off", [0.5, 2.0, 4.0])
def test_a_meeting_ends_only_for_those_that_still_want_it(called_off):
    """Called off before it comes or while it waits, nobody meets; in mid-meeting the other one still leaves in time."""
    notes = VirtualMachine(Pair(), PairTimes(1.0, 3.0, called_off)).run()
    assert [(n.seconds, n.process) for n in notes] == ([(5.0, 1)] if called_off == 4.0 else [])
