"""Protocols in virtual time: Hop against the max-plus engine, gaps within their bounds, AD-PSGD's throughput."""

from fractions import Fraction

import numpy as np
import pytest

from preduce.runtime.virtual_time.machine import VirtualMachine
from preduce.runtime.virtual_time.rounds import simulate
from preduce.schedulers.protocols.adpsgd import Choose, Pairing, Role
from preduce.schedulers.protocols.digraph import Digraph
from preduce.schedulers.protocols.hop import Advance, Hop, HopSetting
from preduce.topo.cluster import Cluster
from preduce.topo.errors import InputError
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import Late, Neighbor, Round
from preduce.topo.timing.compute import ComputeTimes


def both_ways(pairs):
    return [edge for a, b in pairs for edge in ((a, b), (b, a))]


def compute(times):
    """A step takes its worker's time; updates leave at its beginning (Hop's parallel order)."""
    return lambda process, event, rng: times[process] if isinstance(event, Advance) else 0.0


@pytest.mark.parametrize("seed", range(20))
def test_hop_takes_the_time_of_the_max_plus_engine(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 8))
    edges = sorted({(int(a), int(b)) for a, b in rng.integers(0, count, (3 * count, 2)) if a != b})
    times = rng.integers(1, 9, count).astype(float)
    steps = 12
    machine = VirtualMachine(Hop(Digraph.of(count, edges), HopSetting()), compute(times))
    notes = machine.run(until=9.0 * (steps + 2), max_events=20_000)
    entered = {(n.process, n.what[1]): n.seconds for n in notes if n.what[0] == "entered"}
    share = Fraction(1, count)
    round_ = Round.from_edges(count, [(a, b, share) for a, b in edges])
    schedule = Schedule("n", Cluster.regular(1, count), Neighbor(rounds=(round_,), when=Late()))
    slowdown = tuple((worker, float(value)) for worker, value in enumerate(times))
    timeline = simulate(schedule, compute=ComputeTimes(base=1.0, slowdown=slowdown), num_rounds=steps)
    for step in range(steps):
        assert [entered[worker, step + 1] for worker in range(count)] == timeline.finish[step].tolist()


def test_token_queues_keep_the_gap_that_they_promise():
    ring = Digraph.of(6, both_ways([(i, (i + 1) % 6) for i in range(6)]))
    setting = HopSetting(max_ig=3, backup=1)
    times = [1.0, 1.0, 1.0, 50.0, 1.0, 1.0]
    machine = VirtualMachine(Hop(ring, setting), compute(times))
    step = [0] * 6
    widest = 0
    for note in machine.run(until=500.0):
        if note.what[0] == "entered":
            step[note.process] = note.what[1]
            widest = max(widest, step[2] - step[3])
    assert step[0] > 5
    assert widest == 3, "a backup worker lets neighbours run ahead, up to the tokens"


def test_a_slow_message_delays_only_who_waits_for_it():
    pair = Digraph.of(3, [(0, 1), (1, 2)])
    machine = VirtualMachine(
        Hop(pair, HopSetting()), compute([1.0, 1.0, 1.0]), lambda source, to, message, rng: 5.0 if source == 0 else 0.0
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
        lambda process, event, rng: speed[process] if isinstance(event, Choose) else 0.0,
        seed=4,
    )
    notes = machine.run(until=200.0)
    steps = [sum(n.process == worker for n in notes) for worker in range(4)]
    assert steps[:3] == [200, 200, 200]
    assert steps[3] == 40
    partners = [n.what[1] for n in notes if n.process == 0]
    assert set(partners) == {4, 5, 6, 7}, "ties between neighbours are drawn"


def test_a_circle_of_waiting_workers_is_seen_as_idle():
    triangle = Pairing(Digraph.of(3, both_ways([(0, 1), (1, 2), (2, 0)])), (Role.BOTH,) * 3)
    preferred = {0: 1, 1: 2, 2: 0}
    machine = VirtualMachine(
        triangle, lambda process, event, rng: 0.0 if event.partner == preferred[process] else 1.0, lambda *_: 1.0
    )
    machine.run(max_events=100)
    assert machine.is_idle, "everybody has asked and nobody answers"
    assert machine.now == 1.0


def test_the_same_seed_gives_the_same_run():
    ring = Digraph.of(4, both_ways([(i, (i + 1) % 4) for i in range(4)]))

    def jitter(process, event, rng):
        return float(rng.exponential())

    runs = [VirtualMachine(Hop(ring, HopSetting()), jitter, seed=s).run(until=50.0) for s in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_negative_times_are_refused():
    ring = Digraph.of(2, [(0, 1), (1, 0)])
    with pytest.raises(InputError, match="finite time >= 0"):
        VirtualMachine(Hop(ring, HopSetting()), lambda *_: -1.0).run(max_events=10)


def test_a_thousand_workers():
    count = 1000
    ring = Digraph.of(count, both_ways([(i, (i + 1) % count) for i in range(count)]))
    machine = VirtualMachine(Hop(ring, HopSetting(max_ig=2)), compute([1.0] * count))
    notes = machine.run(until=5.0)
    assert sum(n.what == ("entered", 5) for n in notes) == count
