"""The partial all-reduce state machine: late workers, initiators of rounds, and random complete runs."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from helpers.machine_invariants import Walk
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.partial import (
    Activate,
    Arrived,
    Begin,
    Call,
    End,
    Ended,
    Finish,
    Partial,
    Share,
    Take,
)
from partreduce.strategies import PartialAllReduce


def test_late_gradient_joins_the_next_round():
    machine = Partial(PartialAllReduce(quorum="solo"), 2)
    (fast, _), (slow, _) = machine.start(0), machine.start(1)
    fast, actions = machine.step(0, fast, Call())
    assert actions == (Send(1, Activate(0)),)
    fast, actions = machine.step(0, fast, Begin())
    assert actions == (Send(1, Share(0, (0,), oldest=0)), Note(("begun", 0, (0,))))
    slow, _ = machine.step(1, slow, Received(0, Activate(0)))
    slow, actions = machine.step(1, slow, Begin())
    assert actions == (Send(0, Share(0, ())), Note(("begun", 0, ())))  # it still computes and has no gradient
    slow, actions = machine.step(1, slow, Call())
    assert actions == (Send(0, Activate(1)),), "its gradient starts the next round"
    slow, _ = machine.step(1, slow, Received(0, Share(0, (0,), oldest=0)))
    slow, actions = machine.step(1, slow, Finish())
    assert actions == (Note(("finished", 0, (1, 0))),)
    slow, actions = machine.step(1, slow, Take())
    assert actions == (Note(("taken", (0,), 1)),)
    assert machine.step(1, slow, End())[1] == (Send(0, Ended(1)),), "round 1 sums its last gradient"
    _, actions = machine.step(1, slow, Begin())
    assert actions == (Send(0, Share(1, (0,), oldest=0)), Note(("begun", 1, (0,))))


ROUNDS = 400


def initiators(seed):
    """Return the worker that all wait for in each round."""
    machine = Partial(PartialAllReduce(quorum="majority", seed=seed), 4)
    started, _ = machine.start(0)
    drawn = []
    for round_ in range(ROUNDS):
        ((worker,),) = {machine.awaited(process, replace(started, entered=round_)) for process in range(4)}
        drawn.append(worker)
    return drawn


def test_initiator_is_drawn_in_each_round():
    drawn = initiators(seed=5)
    assert drawn == initiators(seed=5), "all workers draw the same"
    shares = Counter(drawn)
    assert set(shares) == set(range(4))
    assert sum((count - ROUNDS / 4) ** 2 / (ROUNDS / 4) for count in shares.values()) < 16.3  # one in a thousand
    chance = Random(5)  # as a program that draws delays from the same seed
    for other in (initiators(seed=6), [chance.randrange(4) for _ in range(ROUNDS)]):
        assert sum(a == b for a, b in zip(drawn, other, strict=True)) < ROUNDS / 2  # a quarter by chance


def test_next_worker_initiates_after_the_initiator_ends():
    machine = Partial(PartialAllReduce(quorum="majority"), 4, initiators=(2,))
    states = [machine.start(worker)[0] for worker in range(4)]
    started = [machine.step(worker, state, Call())[1] for worker, state in enumerate(states)]
    assert started == [(), (), tuple(Send(v, Activate(0)) for v in (0, 1, 3)), ()]
    assert [machine.awaited(worker, state) for worker, state in enumerate(states)] == [(2,)] * 4
    for worker in (0, 1, 3):
        states[worker], _ = machine.step(worker, states[worker], Received(2, Ended(-1)))
        assert machine.awaited(worker, states[worker]) == (3,)
    assert machine.step(3, states[3], Call())[1] == tuple(Send(v, Activate(0)) for v in (0, 1, 2))
    assert machine.step(0, states[0], Call())[1] == ()


def test_only_workers_able_to_start_a_round_are_awaited():
    machine = Partial(PartialAllReduce(quorum=3), 4)
    state, _ = machine.start(0)
    assert machine.awaited(0, state) == (1, 2, 3), "not itself"
    state, _ = machine.step(0, state, Received(1, Arrived(0)))
    assert machine.awaited(0, state) == (2, 3), "one has come"
    state, _ = machine.step(0, state, Received(2, Ended(-1)))
    assert machine.awaited(0, state) == (3,), "another one has ended"
    state, _ = machine.step(0, state, Received(3, Arrived(0)))
    assert machine.awaited(0, state) == (1, 2, 3), "a worker in an earlier round holds it up"
    for entered in (1, 2):
        later = replace(state, entered=entered)
        assert machine.awaited(0, later) == (1, 3), "an arrival in round 0 does not count for a later one"


def test_all_other_workers_are_awaited_once_all_have_ended():
    machine = Partial(PartialAllReduce(quorum="majority"), 3)
    state, _ = machine.step(0, machine.start(0)[0], End())
    for source in (1, 2):
        state, _ = machine.step(0, state, Received(source, Ended(-1)))
    assert machine.awaited(0, state) == (1, 2)


SETTINGS = (
    PartialAllReduce(quorum="solo", staleness=2), PartialAllReduce(quorum="majority", count="call", seed=3),
    PartialAllReduce(quorum=3, staleness=1), PartialAllReduce(quorum=4, count="call", staleness=3),
    PartialAllReduce(quorum="majority", missed="latest", synchronize_every=3),
    PartialAllReduce(quorum="solo", count="call", missed="latest"),
)  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS, ids=repr)
@pytest.mark.parametrize("seed", range(4))
def test_random_runs_sum_every_gradient_and_end_together(setting, seed):
    calls = tuple(Random(seed).choices(range(9), k=6))
    machine = Partial(setting, 6, calls)
    walk = Walk(machine, seed, in_order=False)
    taken = [[] for _ in calls]
    for process, _, _, _, actions in walk.steps(100_000):
        for action in actions:
            if isinstance(action, Note) and action.what[0] == "taken":
                taken[process] += action.what[1]
    assert all(machine.finished(process, state) for process, state in enumerate(walk.states))
    assert len({state.last for state in walk.states}) == 1
    assert tuple(state.counted for state in walk.states) == calls
    if setting.keeps_equal:
        assert taken == [list(range(walk.states[0].last + 1))] * 6


@pytest.mark.parametrize("quorum", ["solo", "majority", 2])
def test_workers_without_data_end_without_a_round(quorum):
    machine = Partial(PartialAllReduce(quorum=quorum), 3, (0, 0, 0))
    walk = Walk(machine, 0, in_order=False)
    for process, state in enumerate(walk.states):
        walk.states[process], actions = machine.step(process, state, End())
        walk._send(process, actions)
    assert not any(machine.finished(process, state) for process, state in enumerate(walk.states))
    for _ in walk.steps(1000):
        pass
    assert [(state.last, state.entered) for state in walk.states] == [(-1, 0)] * 3
    assert all(machine.finished(process, state) for process, state in enumerate(walk.states))


class NewestOnly(Walk):
    """A message in flight is lost once its sender sends a newer one of the same type to the same worker."""

    lost = 0

    def _send(self, process, actions):
        for action in actions:
            if isinstance(action, Send) and not isinstance(action.message, Share):
                way = process, action.to, type(action.message)
                kept = [(u, v, m) for u, v, m in self.flying if (u, v, type(m)) != way]
                self.lost += len(self.flying) - len(kept)
                self.flying = kept
        super()._send(process, actions)


@pytest.mark.parametrize(
    "setting", [SETTINGS[0], PartialAllReduce(quorum=2, staleness=1), PartialAllReduce(quorum=2)], ids=repr
)
def test_newer_messages_may_replace_older_ones(setting):
    lost = 0
    for seed in range(24):
        calls = tuple(Random(seed).choices(range(6), k=6))
        machine = Partial(setting, 6, calls)
        walk = NewestOnly(machine, seed, in_order=False)
        for _ in walk.steps(100_000):
            pass
        assert all(machine.finished(process, state) for process, state in enumerate(walk.states))
        lost += walk.lost
    assert lost, "otherwise the test shows nothing"
