"""Group buffers and lock vector against a second one that knows no buffers and no bits: only who came before whom."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest

from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers, Locking, Outstanding

MOVES = Locking()


@dataclass
class Meeting:
    """A group of the second model: who is left of it, and who of them is inside still (None: it has not begun)."""

    seq: int
    members: list[int]
    inside: list[int] | None = None


class SecondBuffers:
    """Groups in order of arrival.

    A group may begin when no earlier one that has not begun shares a member with it, and none of its members is inside
    another.
    """

    def __init__(self):
        self.meetings, self.next_seq = [], 0

    def push(self, members):
        self.meetings.append(Meeting(self.next_seq, list(members)))
        self.next_seq += 1

    def start(self):
        begun = []
        for place, meeting in enumerate(self.meetings):
            before = {w for other in self.meetings[:place] if other.inside is None for w in other.members}
            busy = {w for other in self.meetings if other.inside for w in other.inside}
            if meeting.inside is None and not (before | busy) & set(meeting.members):
                meeting.inside = list(meeting.members)
                begun.append(meeting.seq)
        return begun

    def release(self, worker):
        for meeting in self.meetings:
            if meeting.inside and worker in meeting.inside:
                meeting.inside.remove(worker)
        self.meetings = [m for m in self.meetings if m.inside is None or m.inside]

    def withdraw(self, worker):
        for meeting in self.meetings:
            if meeting.inside is None and worker in meeting.members:
                meeting.members.remove(worker)
        self.meetings = [m for m in self.meetings if m.inside is not None or len(m.members) > 1]

    def void(self, worker):
        ended = [m.seq for m in self.meetings if m.inside is not None and worker in m.members]
        self.meetings = [m for m in self.meetings if m.seq not in ended]
        return ended

    def seen(self, num_workers):
        """What the buffers and bits must then be."""
        queues = tuple(
            tuple(m.seq for m in self.meetings if m.inside is None and w in m.members) for w in range(num_workers)
        )
        bits = tuple(any(w in (m.inside or ()) for m in self.meetings) for w in range(num_workers))
        groups = tuple(Outstanding(m.seq, tuple(m.members), tuple(m.inside or ())) for m in self.meetings)
        return GroupBuffers(groups, queues, bits, self.next_seq)


@pytest.mark.parametrize("seed", range(12))
def test_any_moves_leave_what_the_order_of_arrival_says(seed):
    chance, n = Random(seed), 2 + seed % 5
    state, second = GroupBuffers.empty(n), SecondBuffers()
    for _ in range(150):
        worker = chance.randrange(n)
        match chance.choice(["push", "push", "start", "start", "release", "release", "release", "withdraw", "void"]):
            case "push":
                members = tuple(sorted(chance.sample(range(n), chance.randint(2, n))))
                state = MOVES.pushed(state, members)
                second.push(members)
            case "start":
                state, begun = MOVES.started(state)
                assert [group.seq for group in begun] == second.start()
                assert all(group.running and group.active == group.members for group in begun)
            case "release":
                state = MOVES.released(state, worker)
                second.release(worker)
            case "withdraw":
                state = MOVES.withdrawn(state, worker)
                second.withdraw(worker)
            case "void":
                state, ended = MOVES.voided(state, worker)
                assert [group.seq for group in ended] == second.void(worker)
        assert state == second.seen(n)
        for w in range(n):
            inside = [m.seq for m in second.meetings if w in (m.inside or ())]
            running = state.running_of(w)
            assert ([] if running is None else [running.seq]) == inside
        for group in state.groups:
            assert state.group(group.seq) is group


def test_a_dissolved_group_frees_its_own_members_and_nobody_elses():
    """(0, 1) and (2, 3) run; worker 1 is done and already in (1, 2)'s way. Ending (0, 1) frees worker 0 alone."""
    state = GroupBuffers.empty(4)
    for members in ((0, 1), (2, 3), (1, 2)):
        state = MOVES.pushed(state, members)
    state, begun = MOVES.started(state)
    assert [group.members for group in begun] == [(0, 1), (2, 3)]
    state = MOVES.released(state, 2)
    state = MOVES.released(state, 1)
    state, begun = MOVES.started(state)
    assert [group.members for group in begun] == [(1, 2)]
    assert state.locks == (True, True, True, True)
    first = state.group(0)
    state, ended = MOVES.dissolved(state, (first,))
    assert ended == (first,)
    assert state.locks == (False, True, True, True), "worker 1 left group 0 before and is inside group 2"
    assert [group.seq for group in state.groups] == [1, 2]
    state, _ = MOVES.voided(state, 2)  # worker 2 was done with group 1, which worker 3 still waits in
    assert state.locks == (False,) * 4
    assert state.groups == ()


def test_two_groups_end_together_and_the_third_stays():
    state = GroupBuffers.empty(6)
    for members in ((0, 1), (2, 3), (4, 5)):
        state = MOVES.pushed(state, members)
    state, begun = MOVES.started(state)
    state, ended = MOVES.dissolved(state, begun[:2])
    assert ended == begun[:2]
    assert state.locks == (False, False, False, False, True, True)
    assert state.groups == begun[2:]


def test_a_group_is_not_running_until_it_has_started():
    group = Outstanding(3, (0, 1))
    assert not group.running
    assert replace(group, active=(1,)).running
    assert GroupBuffers.empty(3) == GroupBuffers((), ((), (), ()), (False, False, False), 0)
    waiting = MOVES.pushed(GroupBuffers.empty(2), (0, 1))
    assert waiting.running_of(0) is None
    assert not MOVES.can_start(replace(waiting, locks=(False, True)), waiting.groups[0])
    assert MOVES.can_start(waiting, waiting.groups[0])
    assert not MOVES.can_start(waiting, replace(waiting.groups[0], active=(0, 1)))
