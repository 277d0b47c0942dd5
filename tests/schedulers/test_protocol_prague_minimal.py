"""Prague's group generator through every interleaving, and bugs seeded in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preduce.schedulers.protocols.base import Received, Send
from preduce.schedulers.protocols.prague_minimal import (
    Computed,
    Done,
    Draw,
    Grant,
    Join,
    PragueModel,
    Request,
    Result,
)
from preduce.topo.errors import InputError
from preduce.verify.explore import Network, Progress, explore
from preduce.verify.properties.prague_minimal import prague_properties

CONFIGURATIONS = {
    "random, 2 workers, 3 rounds": (PragueModel(2, 2, 3), 464),
    "random pairs, 3 workers, 2 rounds": (PragueModel(3, 2, 2), 16_490),
    "random triples, 3 workers, 2 rounds": (PragueModel(3, 3, 2), 3_721),
    "random pairs, 4 workers, 1 round": (PragueModel(4, 2, 1), 36_014),
    "global division, 3 workers, 2 rounds": (PragueModel(3, 2, 2, division=True), 37_520),
    "filter at 1, 3 workers, 2 rounds": (PragueModel(3, 2, 2, slow_threshold=1), 40_314),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_all_properties_hold(name):
    machine, states = CONFIGURATIONS[name]
    found = explore(machine, properties=prague_properties(machine))
    assert found.holds, found
    assert found.states == states


@pytest.mark.parametrize("network", [Network(reorder=True), Network(duplicates=1), Network(reorder=True, duplicates=1)])
def test_reordered_and_doubled_messages_do_no_harm(network):
    machine = PragueModel(2, 2, 2) if network.reorder and network.duplicates else PragueModel(3, 2, 1)
    found = explore(machine, properties=prague_properties(machine), network=network)
    assert found.holds, found


def test_every_worker_gets_its_rounds_under_fairness():
    machine = PragueModel(2, 2, 2)
    goals = [Progress(f"{w} averages", lambda label, w=w: label.process == w and bool(label.notes)) for w in range(2)]
    assert explore(machine, properties=goals).holds


class Seeded(PragueModel):
    """A generator that differs in one decision."""


class DropsALock(Seeded):
    """The last member of a group is not locked."""

    def _started(self, state):
        after, actions = super()._started(state)
        for seq in set(after.running) - set(state.running):
            last = dict(after.groups)[seq][-1]
            after = replace(after, locked=tuple(x and w != last for w, x in enumerate(after.locked)))
        return after, actions


class NeverUnlocks(Seeded):
    """A group that is done keeps its members locked."""

    def _closed(self, state, seq):
        return replace(super()._closed(state, seq), locked=state.locked)


class UnlocksEverybody(Seeded):
    """A group that is done unlocks all workers."""

    def _closed(self, state, seq):
        after = super()._closed(state, seq)
        return replace(after, locked=(False,) * len(after.locked))


class PushesToTheFront(Seeded):
    """A new group is pushed to the front of the buffers."""

    def _drawn(self, state, groups):
        after = super()._drawn(state, groups)
        return replace(after, buffers=tuple(tuple(sorted(b, reverse=True)) for b in after.buffers))


class StartsOutOfTurn(Seeded):
    """A group starts when it stands first for its first member only."""

    def _started(self, state):
        grants = []
        for seq, members in state.groups:
            if seq not in state.running and state.buffers[members[0]][0] == seq:
                locked = tuple(x or w in members for w, x in enumerate(state.locked))
                state = replace(state, running=(*state.running, seq), locked=locked)
                grants += [Send(w, Grant(seq, members)) for w in members]
        return state, tuple(grants)


class GrantsAllButOne(Seeded):
    """The last member is not told of its group."""

    def _started(self, state):
        after, actions = super()._started(state)
        return after, tuple(a for a in actions if len(a.message.members) == 1 or a.to != a.message.members[-1])


class LosesAGroup(Seeded):
    """The buffer of the last member misses the group."""

    def _drawn(self, state, groups):
        after = super()._drawn(state, groups)
        last = groups[0][-1]
        return replace(after, buffers=tuple(b[:-1] if w == last else b for w, b in enumerate(after.buffers)))


class DoublesARequest(Seeded):
    """A repeated request waits in line twice."""

    def _asked(self, state, worker, round_):
        after = super()._asked(state, worker, round_)
        return replace(after, waiting=(*after.waiting, worker)) if worker in state.waiting else after


class DoneBeforeEverybodyJoined(Seeded):
    """The first member averages as soon as one other has joined."""

    def _averaged_if_complete(self, me, state):
        if state.current and state.current.members[0] == me and state.joined:
            others = tuple((state.current.seq, m) for m in state.current.members[1:])
            state = replace(state, joined=tuple(sorted({*state.joined, *others})))
        return super()._averaged_if_complete(me, state)


class DoneTwice(Seeded):
    """A done that comes again closes the next group of the same worker."""

    def step(self, process, state, event):
        is_done = isinstance(event, Received) and isinstance(event.message, Done)
        if is_done and event.message.seq not in state.running and state.running:
            return self._started(self._closed(state, state.running[0]))
        return super().step(process, state, event)


class ForgetsWhoWaits(Seeded):
    """A draw empties the line of waiting workers."""

    def _drawn(self, state, groups):
        return replace(super()._drawn(state, groups), waiting=())


class FilterOffByOne(Seeded):
    """The filter lets workers in that are just slow enough to be left out."""

    def _is_slow(self, state, first, other):
        threshold = self.slow_threshold
        return threshold is not None and state.asked[first] - state.asked[other] >= threshold + 1


class DivisionTakesBusyWorkers(Seeded):
    """Global division also takes workers whose buffers hold a group."""

    def _draws(self, state):
        return super()._draws(replace(state, buffers=((),) * len(state.buffers)))


class OldGrantUsedAgain(Seeded):
    """A grant that comes a second time is used a second time."""

    def _worker(self, me, state, event):
        if isinstance(event, Received) and isinstance(event.message, Grant):
            return super()._worker(me, replace(state, last=-1), event)
        return super()._worker(me, state, event)


class JoinsBeforeItHasComputed(Seeded):
    """A worker averages while it still computes."""

    def _worker(self, me, state, event):
        after, actions = super()._worker(me, state, event)
        if isinstance(event, Received) and isinstance(event.message, Grant) and after.granted and after.current is None:
            after = replace(after, computing=False)
            joined, more = self._join_if_ready(me, after)
            return replace(joined, computing=True), (*actions, *more)
        return after, actions


class ForgetsTheResult(Seeded):
    """The last member never gets the mean."""

    def _averaged_if_complete(self, me, state):
        after, actions = super()._averaged_if_complete(me, state)
        last = state.current.members[-1] if state.current else -1
        return after, tuple(
            a for a in actions if not (isinstance(a, Send) and a.to == last and isinstance(a.message, Result))
        )


BUGS = [
    DropsALock, NeverUnlocks, UnlocksEverybody, PushesToTheFront, StartsOutOfTurn, GrantsAllButOne, LosesAGroup,
    DoublesARequest, DoneBeforeEverybodyJoined, DoneTwice, ForgetsWhoWaits, FilterOffByOne, DivisionTakesBusyWorkers,
    OldGrantUsedAgain, JoinsBeforeItHasComputed, ForgetsTheResult,
]  # fmt: skip
ARENA = (
    ({"num_workers": 2, "group_size": 2, "rounds": 2}, Network()),
    ({"num_workers": 2, "group_size": 2, "rounds": 2}, Network(duplicates=1)),
    ({"num_workers": 3, "group_size": 3, "rounds": 1}, Network()),
    ({"num_workers": 3, "group_size": 2, "rounds": 2}, Network()),
    ({"num_workers": 3, "group_size": 2, "rounds": 2, "slow_threshold": 1}, Network()),
    ({"num_workers": 3, "group_size": 2, "rounds": 2, "division": True}, Network()),
)


def first_killer(bug):
    for sizes, network in ARENA:
        machine = bug(**sizes)
        found = explore(machine, properties=prague_properties(machine), network=network)
        failed = [finding.name for finding in found.findings if finding.verdict == "fails"]
        if failed:
            return sizes, failed[0]
    return None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_seeded_bug_is_killed(bug):
    assert first_killer(bug) is not None, f"{bug.__doc__} went unnoticed"


def test_the_generator_itself_survives_the_same_hunt():
    assert first_killer(PragueModel) is None


def test_global_division_covers_all_idle_workers_but_at_most_one():
    machine = PragueModel(5, 2, 1, division=True)
    state, _ = machine.start(5)
    state, _ = machine.step(5, state, Received(3, Request(0)))
    draws = machine.ready(5, state)
    assert len(set(draws)) == len(draws) == 4 * 3
    for draw in draws:
        members = [w for group in draw.groups for w in group]
        assert len(members) == len(set(members)) == 4
        assert 3 in draw.groups[0]


def test_a_repeated_request_is_harmless_and_groups_run_in_number_order():
    machine = PragueModel(3, 2, 2)
    state, _ = machine.start(3)
    once, _ = machine.step(3, state, Received(0, Request(0)))
    twice, _ = machine.step(3, once, Received(0, Request(0)))
    assert once == twice
    state, first = machine.step(3, once, Draw(((0, 1),)))
    assert {a.to for a in first} == {0, 1}
    state, _ = machine.step(3, state, Received(2, Request(0)))
    state, second = machine.step(3, state, Draw(((1, 2),)))
    assert second == ()
    state, third = machine.step(3, state, Received(0, Done(0)))
    assert {(a.to, a.message.seq) for a in third} == {(1, 1), (2, 1)}


def test_a_leader_may_hear_of_a_group_before_its_own_grant():
    machine = PragueModel(2, 2, 1)
    state, _ = machine.start(0)
    state, _ = machine.step(0, state, Received(1, Join(0)))
    state, _ = machine.step(0, state, Computed())
    state, actions = machine.step(0, state, Received(2, Grant(0, (0, 1))))
    assert {type(a.message).__name__ for a in actions if isinstance(a, Send)} == {"Result", "Done"}
    assert state.round == 1


def test_senseless_numbers_are_refused():
    for sizes in ({"group_size": 1, "rounds": 1}, {"group_size": 4, "rounds": 1}, {"group_size": 2, "rounds": 0}):
        with pytest.raises(InputError):
            PragueModel(3, **sizes)
    with pytest.raises(InputError, match="slow_threshold"):
        PragueModel(3, 2, 1, slow_threshold=0)
