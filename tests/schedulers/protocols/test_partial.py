"""Partial averaging as a machine, of all and in groups: a late member, and random runs replayed exactly.

The replay carries out the machine's notes as its docstring says, in fractions, and checks them against a second account
that knows only who entered which round with what: the mean of all shadows, the recursion by the schedule's mixing
matrices, the models at the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from helpers.machine_laws import Walk
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.partial import Partial, members_of
from partreduce.schedulers.protocols.partial_state import (
    Activate,
    Arrived,
    Begin,
    Call,
    End,
    Ended,
    Finish,
    Share,
    Take,
)
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Group, Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, Quorum, Static


@pytest.mark.parametrize("group_of", [None, lambda worker, round_: (0, 1)], ids=["all", "a group"])
def test_a_late_member_brings_what_it_has_and_its_progress_joins_the_next_round(group_of):
    machine = Partial(Quorum(quorum="solo"), 2, group_of=group_of)
    (fast, _), (slow, _) = machine.start(0), machine.start(1)
    fast, actions = machine.step(0, fast, Call())
    assert actions == (Send(1, Activate(0)),)
    fast, actions = machine.step(0, fast, Begin())
    assert actions == (Send(1, Share(0, (0,), oldest=0)), Note(("begun", 0, (0,))))
    slow, _ = machine.step(1, slow, Received(0, Activate(0)))
    slow, actions = machine.step(1, slow, Begin())
    assert actions == (Send(0, Share(0, ())), Note(("begun", 0, ())))  # it still computes: nothing to bring
    slow, actions = machine.step(1, slow, Call())
    assert actions == (Send(0, Activate(1)),), "its progress counts for the next round, as solo as any"
    slow, _ = machine.step(1, slow, Received(0, Share(0, (0,), oldest=0)))
    slow, actions = machine.step(1, slow, Finish())
    assert actions == (Note(("finished", 0, (1, 0))),)
    slow, actions = machine.step(1, slow, Take())
    assert actions == (Note(("taken", (0,), 1)),)
    assert machine.step(1, slow, End())[1] == (Send(0, Ended(1)),), "round 1 has the last of it"
    _, actions = machine.step(1, slow, Begin())
    assert actions == (Send(0, Share(1, (0,), oldest=0)), Note(("begun", 1, (0,))))


FOURS = [tuple(range(first, first + 4)) for first in range(0, 16, 4)]
ROUNDS = 400


def initiators(seed):
    """Of each group of four, in each round, by the worker that its members wait for."""
    machine = Partial(Quorum(quorum="majority", seed=seed), 16, group_of=lambda worker, _: FOURS[worker // 4])
    started, _ = machine.start(0)
    drawn = {members: [] for members in FOURS}
    for round_ in range(ROUNDS):
        for members in FOURS:
            (alike,) = {machine.awaited(member, replace(started, entered=round_)) for member in members}
            drawn[members] += alike
    return drawn


def test_the_initiator_of_each_group_is_drawn_anew_in_each_round():
    drawn = initiators(seed=5)
    assert drawn == initiators(seed=5), "all workers draw alike"
    places = []
    for members, starting in drawn.items():
        shares = Counter(starting)
        assert set(shares) == set(members)
        assert sum((count - ROUNDS / 4) ** 2 / (ROUNDS / 4) for count in shares.values()) < 16.3  # one in a thousand
        places.append([members.index(worker) for worker in starting])
    places.append(initiators(seed=6)[0, 1, 2, 3])
    everyone = Partial(Quorum(quorum="majority", seed=5), 4)
    start, _ = everyone.start(0)
    places.append([everyone.awaited(0, replace(start, entered=round_))[0] for round_ in range(ROUNDS)])
    assert sum((count - ROUNDS / 4) ** 2 / (ROUNDS / 4) for count in Counter(places[-1]).values()) < 16.3
    chance = Random(5)  # as whoever draws delays from the same seed
    places.append([chance.randrange(4) for _ in range(ROUNDS)])
    for number, one in enumerate(places):
        for other in places[:number]:
            assert sum(a == b for a, b in zip(one, other, strict=True)) < ROUNDS / 2  # a quarter by chance


def test_only_the_initiator_starts_its_groups_round_and_the_next_in_the_group_does_once_it_has_ended():
    machine = Partial(Quorum(quorum="majority"), 4, initiators=(2,))
    states = [machine.start(worker)[0] for worker in range(4)]
    started = [machine.step(worker, state, Call())[1] for worker, state in enumerate(states)]
    assert started == [(), (), tuple(Send(v, Activate(0)) for v in (0, 1, 3)), ()]
    assert [machine.awaited(worker, state) for worker, state in enumerate(states)] == [(2,)] * 4
    for worker in (0, 1, 3):
        states[worker], _ = machine.step(worker, states[worker], Received(2, Ended(-1)))
        assert machine.awaited(worker, states[worker]) == (3,)
    assert machine.step(3, states[3], Call())[1] == tuple(Send(v, Activate(0)) for v in (0, 1, 2))
    assert machine.step(0, states[0], Call())[1] == ()


def test_who_may_still_start_a_round_is_awaited_and_nobody_else():
    machine = Partial(Quorum(quorum=3), 6, group_of=lambda worker, _: (0, 1, 2, 3) if worker < 4 else (4, 5))
    state, _ = machine.start(0)
    assert machine.awaited(0, state) == (1, 2, 3), "not itself, nor another group"
    state, _ = machine.step(0, state, Received(1, Arrived(0)))
    assert machine.awaited(0, state) == (2, 3), "one has come"
    state, _ = machine.step(0, state, Received(2, Ended(-1)))
    assert machine.awaited(0, state) == (3,), "another one has ended"
    state, _ = machine.step(0, state, Received(3, Arrived(0)))
    assert machine.awaited(0, state) == (1, 2, 3), "nobody: who is in an earlier round holds it up"
    for entered in (1, 2):
        later = replace(state, entered=entered)
        assert machine.awaited(0, later) == (1, 3), "to have come to round 0 is not to have come to a later one"


def test_where_all_of_a_group_have_ended_any_other_of_them_may_hold_up_its_round():
    machine = Partial(Quorum(quorum="majority"), 3)
    state, _ = machine.step(0, machine.start(0)[0], End())
    for source in (1, 2):
        state, _ = machine.step(0, state, Received(source, Ended(-1)))
    assert machine.awaited(0, state) == (1, 2)


OF_ALL = (
    Quorum(quorum="solo", staleness=2),
    Quorum(quorum="majority", count="call", seed=3),
    Quorum(quorum=3, staleness=1),
    Quorum(quorum=4, count="call", staleness=3),
    Quorum(quorum="majority", missed="latest", synchronise_every=3),
    Quorum(quorum="solo", count="call", missed="latest"),
)


@pytest.mark.parametrize("setting", OF_ALL, ids=repr)
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


class Replay:
    """Models of one number: x of the training, s the shadow, c what rounds changed in it since the last taking."""

    def __init__(self, schedule, chance):
        self.schedule, self.chance = schedule, chance
        n = schedule.num_workers
        self.x = [Fraction(chance.randrange(-50, 50))] * n
        self.s, self.c = list(self.x), [Fraction(0)] * n
        self.brought = {}  # (round, worker) -> b
        self.progress = [Fraction(0)] * n
        self.own_progress = {}  # (round, worker) -> progress in it, of the second account
        self.open = [Fraction(0)] * n
        self.start, self.rounds = self.x[0], [0] * n

    def group(self, worker, round_):
        found = self.schedule.group_of(worker, round_)
        return Group((worker,)) if found is None else found

    def called(self, worker):
        step = Fraction(self.chance.randrange(-99, 100))
        self.x[worker] += step
        self.s[worker] = self.x[worker] + self.c[worker]
        self.progress[worker] += step
        self.open[worker] += step

    def noted(self, worker, what):
        match what:
            case ("begun", round_, _):
                self.brought[round_, worker] = self.s[worker]
                self.own_progress[round_, worker], self.open[worker] = self.open[worker], Fraction(0)
            case ("finished", round_, _):
                group = self.group(worker, round_)
                mean = sum(self.brought[round_, v] for v in group.members) / len(group.members)
                correction = group.relax * (mean - self.brought[round_, worker])
                self.s[worker] += correction
                self.c[worker] += correction
                self.rounds[worker] = round_ + 1
            case ("taken", _, _):
                self.x[worker], self.c[worker] = self.s[worker], Fraction(0)

    def means_agree(self):
        """Between rounds: the mean of the shadows is the first one's and the progress; rounds that run are undone."""
        return sum(self.s) == self.start * len(self.s) + sum(self.progress)

    def by_matrices(self, last):
        """Models after the last round from progress alone: s <- W_k (s + u_k)."""
        models = [self.start] * len(self.s)
        for round_ in range(last + 1):
            moved = [model + self.own_progress[round_, w] for w, model in enumerate(models)]
            models = list(moved)
            for worker in range(len(models)):
                group = self.group(worker, round_)
                mean = sum(moved[v] for v in group.members) / len(group.members)
                models[worker] += group.relax * (mean - moved[worker])
        return models


def explicit(*phases, prologue=0, when):
    groups = tuple(Phase.from_groups(6, groups) for groups in phases)
    return Schedule("s", Cluster.regular(6, 1), Static(phases=GroupPhases(groups), prologue=prologue, when=when))


def schedules(when):
    relaxed = Group((1, 2, 3), Fraction(4, 3))
    yield explicit([[0, 1], [2, 3], [4, 5]], [range(6)], when=when)
    yield explicit([[0, 1, 2]], [relaxed, [4, 5]], [[2, 3, 4, 5]], prologue=1, when=when)
    made = build("prague-figure-10", Cluster.regular(2, 4))
    yield Schedule("s", made.cluster, Static(phases=made.strategy.phases, when=when))


SETTINGS = (
    Quorum(quorum="solo", staleness=2), Quorum(quorum="majority", seed=3), Quorum(quorum=2, staleness=1),
    Quorum(quorum=3, staleness=3),
)  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS, ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_random_runs_keep_the_mean_and_follow_the_matrices(setting, seed):
    for schedule in schedules(setting):
        chance = Random(f"{seed} {schedule.num_workers} {schedule.prologue}")
        calls = tuple(chance.choices(range(8), k=schedule.num_workers))
        machine = Partial(setting, schedule.num_workers, calls, group_of=members_of(schedule))
        walk = Walk(machine, seed, in_order=False, slow={chance.randrange(schedule.num_workers)})
        replay, taken = Replay(schedule, chance), [[] for _ in calls]
        for process, _, event, _, actions in walk.steps(100_000):
            if isinstance(event, Call):
                replay.called(process)
            for action in actions:
                if isinstance(action, Note):
                    replay.noted(process, action.what)
                    if action.what[0] == "taken":
                        taken[process] += action.what[1]
            if len(set(replay.rounds)) == 1:
                assert replay.means_agree()
        assert all(machine.finished(process, state) for process, state in enumerate(walk.states))
        (last,) = {state.last for state in walk.states}
        assert taken == [list(range(last + 1))] * len(calls)
        assert replay.means_agree()
        assert replay.x == replay.s == replay.by_matrices(last)


class NewestOnly(Walk):
    """A word that is on its way is lost when its sender has a newer one of the same kind for the same worker."""

    lost = 0

    def _send(self, process, actions):
        for action in actions:
            if isinstance(action, Send) and not isinstance(action.message, Share):
                way = process, action.to, type(action.message)
                kept = [(u, v, m) for u, v, m in self.flying if (u, v, type(m)) != way]
                self.lost += len(self.flying) - len(kept)
                self.flying = kept
        super()._send(process, actions)


@pytest.mark.parametrize("setting", SETTINGS, ids=repr)
def test_a_word_may_replace_those_before_it(setting):
    lost = 0
    for seed in range(12):
        for schedule in schedules(setting):
            calls = tuple(Random(seed).choices(range(6), k=schedule.num_workers))
            machine = Partial(setting, schedule.num_workers, calls, group_of=members_of(schedule))
            walk = NewestOnly(machine, seed, in_order=False)
            for _ in walk.steps(100_000):
                pass
            assert all(machine.finished(process, state) for process, state in enumerate(walk.states))
            lost += walk.lost
    assert lost, "else the test says nothing"
