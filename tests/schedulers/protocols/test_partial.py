"""The partial all-reduce as a machine: draws, a late gradient, and random runs that end with nothing left."""

from collections import Counter
from random import Random

import pytest

from helpers.machine_laws import Walk
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.partial import Partial
from partreduce.schedulers.protocols.partial_state import Activate, Begin, Call, End, Finish, Share, Take
from partreduce.topo.strategies.quorum import Quorum, QuorumStart


def test_draws_are_uniform_and_depend_on_the_seed_alone():
    machine = Partial(Quorum(quorum=QuorumStart.MAJORITY, seed=5), 8)
    drawn = [machine._drawn(round_, range(8)) for round_ in range(4000)]
    assert drawn == [
        Partial(Quorum(quorum=QuorumStart.MAJORITY, seed=5), 8)._drawn(round_, range(8)) for round_ in range(4000)
    ]
    chi_squared = sum((count - 500) ** 2 / 500 for count in Counter(drawn).values())
    assert chi_squared < 24.3  # 7 degrees of freedom, one in a thousand
    other = Partial(Quorum(quorum=QuorumStart.MAJORITY, seed=6), 8)
    assert sum(other._drawn(round_, range(8)) == w for round_, w in enumerate(drawn)) < 600  # 500 by chance
    chance = Random(5)  # as whoever draws delays from the same seed
    assert sum(chance.randrange(8) == w for w in drawn) < 600


def test_a_late_gradient_joins_the_next_round():
    machine = Partial(Quorum(quorum=QuorumStart.SOLO), 2)
    (fast, _), (slow, _) = machine.start(0), machine.start(1)
    fast, actions = machine.step(0, fast, Call())
    assert actions == (Send(1, Activate(0)),)
    fast, actions = machine.step(0, fast, Begin())
    assert actions == (Send(1, Share(0, (0,), oldest=0)), Note(("begun", 0, (0,))))
    slow, _ = machine.step(1, slow, Received(0, Activate(0)))
    slow, actions = machine.step(1, slow, Begin())
    assert actions == (Send(0, Share(0, ())), Note(("begun", 0, ())))  # it still computes: nothing to bring
    slow, actions = machine.step(1, slow, Call())
    assert actions == (Send(0, Activate(1)),), "its gradient counts for the open round, as solo as any"
    slow, _ = machine.step(1, slow, Received(0, Share(0, (0,), oldest=0)))
    slow, actions = machine.step(1, slow, Finish())
    assert actions == (Note(("finished", 0, (1, 0))),)
    slow, actions = machine.step(1, slow, Take())
    assert actions == (Note(("taken", (0,), 1)),)
    slow, actions = machine.step(1, slow, Begin())
    assert actions == (Send(0, Share(1, (0,), oldest=0)), Note(("begun", 1, (0,))))


SETTINGS = (
    Quorum(quorum=QuorumStart.SOLO, staleness=2),
    Quorum(quorum="majority", count="call", seed=3),
    Quorum(quorum=3, staleness=1),
    Quorum(quorum=4, count="call", staleness=3),
    Quorum(quorum="majority", missed="latest", synchronise_every=3),
    Quorum(quorum="solo", count="call", missed="latest"),
)


@pytest.mark.parametrize("setting", SETTINGS, ids=repr)
@pytest.mark.parametrize("seed", range(4))
def test_random_runs_of_many_workers_end_together_with_every_gradient_summed(setting, seed):
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
def test_workers_that_have_no_data_at_all_end_without_a_round(quorum):
    machine = Partial(Quorum(quorum=quorum), 3, (0, 0, 0))
    walk = Walk(machine, 0, in_order=False)
    for process, state in enumerate(walk.states):
        walk.states[process], actions = machine.step(process, state, End())
        walk._send(process, actions)
    assert not any(machine.finished(process, state) for process, state in enumerate(walk.states))
    for _ in walk.steps(1000):
        pass
    assert [(state.last, state.entered) for state in walk.states] == [(-1, 0)] * 3
    assert all(machine.finished(process, state) for process, state in enumerate(walk.states))
