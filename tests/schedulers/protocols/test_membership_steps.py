"""Transitions of members and authority, one by one; then the smallest systems in every interleaving."""

from dataclasses import replace
from functools import partial

import pytest

from benchmarks.explore.membership import SMALLEST, everybody, pairs_then_all
from helpers.refusals import check_error
from partreduce.schedulers.protocols.base import Crashed, Note, Received, Send
from partreduce.schedulers.protocols.membership.machine import Authority, Member, Membership
from partreduce.schedulers.protocols.membership.messages import (
    Broken,
    Confirm,
    Confirmed,
    Connected,
    Enter,
    Expire,
    Given,
    Healed,
    Here,
    Join,
    Knock,
    Leave,
    Left,
    Open,
    Phase,
    Publish,
    Released,
    Restart,
    Share,
    Stop,
    Summed,
    View,
    Vote,
)

# Transitions by hand: three workers, of which worker 2 fails after 0 has committed an operation that 1 has prepared.

MACHINE = Membership(3, 2)
FIRST = View(0, (0, 1, 2))
ALL = (0, 1, 2)


AUTHORITY, _ = MACHINE.start(3)


def after(state, *events, process=0, machine=MACHINE):
    """Return the state after some events, and the actions of the last one."""
    actions = ()
    for event in events:
        state, actions = machine.step(process, state, event)
    return state, actions


def test_uncommitted_operation_is_repeated_in_the_next_view():
    view = View(1, (0, 1), (4, 0))
    one, actions = after(Member(FIRST), Enter((4, 0), ALL), Summed(), Broken(), process=1)
    assert actions == (Note(("unblock",)), Send(3, Vote(1, (4, 0), ALL, stands=True)))
    one, actions = after(one, Received(3, view), process=1)
    assert actions == (Note(("dropped",)), Note(("rebuild", view)))
    one, _ = after(one, Connected(), Enter((4, 0), (0, 1)), process=1)
    assert (one.group, one.place) == ((0, 1), (4, 0))


def test_lagging_worker_catches_up_without_averaging():
    behind = Member(View(1, (0, 1), (4, 0)))
    alone, _ = after(behind, Enter((3, 0), (0, 1)))
    assert (alone.place, alone.group, alone.held) == ((4, 0), (), ())
    met, _ = after(alone, Enter((4, 0), (0, 1), meets=True), Summed(), Confirmed())
    assert met.place == (4, 1)


def test_leaving_worker_waits_for_release_or_eviction():
    leaving, actions = after(Member(FIRST), Leave(), Received(3, Open(1)), Received(2, Crashed()))
    assert (leaving.phase, actions) == (Phase.LEAVING, ())
    assert after(leaving, Received(3, Released()))[0].phase is Phase.LEFT
    assert after(leaving, Received(3, View(1, (1, 2))))[0].phase is Phase.FENCED
    assert after(leaving, Received(3, Crashed()))[0].phase is Phase.ENDED
    authority, _ = after(AUTHORITY, Received(0, Crashed()), process=3)
    assert after(authority, Received(0, Left()), process=3) == (authority, ()), "a lost worker cannot leave"


JOINING = Membership(3, 2, outside=1)
OF_JOINING, OUTSIDE = JOINING.start(3)[0], JOINING.start(2)[0]
joining = partial(after, process=3, machine=JOINING)
"""Steps of a run in which worker 2 is initially outside."""


def after_votes(*votes):
    """Return the authority after a join request of worker 2 and votes of workers 0 and 1."""
    authority, actions = joining(OF_JOINING, Received(2, Join()))
    assert actions == (Send(0, Open(1)), Send(1, Open(1)))
    return joining(authority, *(Received(worker, vote) for worker, vote in enumerate(votes)))


def test_joiner_gets_a_new_donor_after_the_first_fails():
    authority, _ = after_votes(Vote(1, (5, 0), stands=True), Vote(1, (5, 0), stands=True))
    authority, _ = joining(authority, Publish(), Received(0, Crashed()))
    blank = Vote(2, (0, 0), blank=True)
    authority, written = joining(authority, Received(2, blank), Received(1, Vote(2, (5, 0), stands=True)))
    assert written == (Note(("write", View(2, (1, 2), (5, 0), joined=(2,), donor=1))),)


def test_joiner_without_any_donor_is_outside_again():
    authority, _ = after_votes(Vote(1, (5, 0), stands=True), Vote(1, (5, 0), stands=True))
    authority, _ = joining(authority, Publish(), Received(0, Crashed()))
    authority, written = joining(authority, Received(2, Vote(2, (0, 0), blank=True)), Received(1, Vote(2, (5, 0))))
    view = View(2, (1,), (5, 0))
    assert written == (Note(("write", view)),)
    assert authority.lost == {0, 2}
    joined = View(1, (0, 1, 2), (5, 0), joined=(2,), donor=0)
    out, _ = joining(JOINING.start(2)[0], Knock(), Received(3, joined), Received(3, Open(2)), process=2)
    assert out.phase is Phase.VOTE
    out, _ = joining(out, Received(3, view), process=2)
    assert (out.phase, out.has_knocked) == (Phase.OUTSIDE, False)
    assert joining(out, Received(3, joined), process=2)[0] == out, "an older view repeated by a restarted authority"


def test_joiner_failing_before_the_view_changes_nothing():
    authority, _ = JOINING.start(3)
    votes = [Received(worker, Vote(1, (5, 0), stands=True)) for worker in (0, 1)]
    _, written = joining(authority, Received(2, Join()), votes[0], Received(2, Crashed()), votes[1])
    assert written == (Note(("write", View(1, (0, 1), (5, 0)))),)


def test_join_requests_of_members_and_after_a_leave_are_ignored():
    authority, _ = JOINING.start(3)
    assert joining(authority, Received(1, Join())) == (authority, ())
    left, _ = joining(authority, Received(0, Left()))
    _, actions = joining(left, Received(2, Join()))
    assert actions == ()
    assert joining(JOINING.start(2)[0], Received(3, Open(1)), process=2) == JOINING.start(2)
    ended, _ = joining(JOINING.start(2)[0], Received(3, View(1, ())), process=2)
    assert ended.phase is Phase.ENDED


def test_stop_or_too_many_failures_end_the_run():
    stopped, _ = after(AUTHORITY, Stop(), process=3)
    assert stopped.view == View(1, ())
    assert after(stopped, Stop(), process=3) == (stopped, ())
    few, _ = Membership(3, 1).step(3, AUTHORITY, Received(0, Crashed()))
    few, _ = Membership(3, 1).step(3, few, Received(1, Crashed()))
    assert few.view == View(1, ())


def test_unknown_events_raise_assertion_errors():
    check_error(AssertionError, "not an event of a member", after, Member(FIRST), "hello")
    check_error(AssertionError, "not an event of the authority", after, Authority((FIRST,)), "hello", process=3)


def test_votes_of_other_generations_or_lost_workers_are_ignored():
    authority, _ = after(AUTHORITY, Received(2, Crashed()), process=3)
    assert after(authority, Received(0, Vote(0, (5, 0))), process=3) == (authority, ())
    assert after(authority, Received(0, Vote(2, (5, 0))), process=3) == (authority, ())
    assert after(authority, Received(2, Vote(1, (5, 0))), process=3) == (authority, ())


def test_leaving_during_a_vote_completes_the_vote():
    authority, _ = after(AUTHORITY, Received(2, Crashed()), Received(1, Vote(1, (4, 0), ALL)), process=3)
    authority, actions = after(authority, Received(0, Left()), process=3)
    assert actions == (Send(0, Released()), Note(("write", View(1, (1,), (4, 0), (1,)))))


def test_lease_expires_only_for_silent_workers_during_a_vote():
    authority = replace(MACHINE.start(3)[0], leases=2)
    assert MACHINE.ready(3, authority) == []
    authority, _ = after(authority, Received(2, Crashed()), process=3)
    assert MACHINE.ready(3, authority) == [], "no vote yet"
    authority, _ = after(authority, Received(0, Vote(1, (0, 0))), process=3)
    assert MACHINE.ready(3, authority) == [Expire()]
    assert MACHINE.ready(3, replace(authority, leases=0)) == []
    authority, actions = after(authority, Expire(), process=3)
    assert actions == (Note(("fenced", 1)), Note(("write", View(1, (0,)))))
    assert (authority.leases, authority.lost, authority.votes) == (1, {1, 2}, (None,) * 3)
    assert MACHINE.ready(3, authority) == [Publish()]


def test_joiner_failing_in_a_vote_does_not_prolong_the_run():
    authority, _ = joining(JOINING.start(3)[0], Received(0, Vote(1, (5, 0), stands=True)))
    authority, actions = joining(authority, Received(2, Join()))
    assert (authority.admits, actions) == (False, ())
    _, written = joining(authority, Received(2, Crashed()), Received(1, Vote(1, (5, 0), stands=True)))
    assert written == (Note(("write", View(1, ()))),)


def test_restarted_authority_publishes_to_joined_workers():
    authority, _ = after_votes(Vote(1, (5, 0), stands=True), Vote(1, (5, 0), stands=True))
    authority, notified = joining(replace(authority, restarts=1), Publish())
    assert joining(authority, Restart(), Publish())[1] == notified
    assert [one.to for one in notified] == [0, 1, 2]


def test_vote_reason_is_reset_with_its_view():
    authority, _ = MACHINE.start(3)
    assert (authority.admits, authority.is_open) == (False, False)
    joined, _ = after_votes(Vote(1, (5, 0), stands=True), Vote(1, (5, 0)))
    assert (joined.admits, joined.is_open) == (False, False)
    again = replace(JOINING.start(3)[0], log=(FIRST, View(1, (0, 1), (4, 0))), num_published=2)
    again, _ = joining(again, Received(2, Join()), Received(0, Vote(2, (6, 0))), Received(1, Vote(2, (6, 0))))
    assert again.view == View(2, (0, 1), (6, 0)), "no worker could join, so the members are the same"


def test_outside_worker_has_one_pending_join_request():
    outside, actions = JOINING.start(2)
    assert (outside, actions) == (Member(View(-1, ()), Phase.OUTSIDE, blank=True, knocks=1), ())
    twice = replace(outside, knocks=2)
    after_one, _ = joining(twice, Knock(), process=2)
    assert after_one == replace(twice, has_knocked=True, knocks=1)


@pytest.mark.parametrize("phase", [Phase.RUN, Phase.VOTE, Phase.REBUILD, Phase.LEFT, Phase.FENCED])
def test_release_affects_only_leaving_workers(phase):
    state = Member(FIRST, phase)
    assert after(state, Received(3, Released())) == (state, ())


def test_messages_of_old_generations_are_dropped():
    view = View(2, ALL, (4, 0))
    old, now, later = Here(1), Here(2), Here(3)
    kept, _ = after(Member(view, Phase.REBUILD), *(Received(1, one) for one in (old, now, later)))
    assert kept.received == {(1, now), (1, later)}
    for phase in (Phase.FENCED, Phase.ENDED, Phase.LEFT, Phase.LEAVING):
        assert after(Member(view, phase), Received(1, now))[0].received == frozenset()


# Three members that average by messages, as in the explorer: in pairs, then all.

MEETING = Membership(3, 2, pairs_then_all, rounds=3)
meeting = partial(after, machine=MEETING)


def test_operation_needs_shares_and_confirms_of_all_members():
    one, at = Member(FIRST, place=(2, 0)), (2, 0)
    assert MEETING.ready(0, one) == (Enter(at, ALL),)
    one, actions = meeting(one, Enter(at, ALL))
    assert actions == (Send(1, Share(0, at)), Send(2, Share(0, at)))
    assert (one.place, one.group, one.stands, one.prepared, one.held) == (at, ALL, True, False, ())
    one, _ = meeting(one, Received(1, Share(0, at)), Received(1, Confirm(0, at)), Received(2, Confirm(0, at)))
    assert MEETING.ready(0, one) == (), "the share of worker 2 is missing"
    one, _ = meeting(one, Received(2, Share(0, at)))
    assert MEETING.ready(0, one) == (Summed(),)
    late = replace(one, received=one.received - {(2, Confirm(0, at))})
    one, actions = meeting(one, Summed())
    assert (one.prepared, actions) == (True, (Send(1, Confirm(0, at)), Send(2, Confirm(0, at))))
    assert MEETING.ready(0, one) == (Confirmed(),)
    assert MEETING.ready(0, meeting(late, Summed())[0]) == (), "the confirmation of worker 2 is missing"
    one, actions = meeting(one, Confirmed())
    assert (one.place, one.group, one.stands, one.prepared, actions) == ((3, 0), (), False, False, ())
    assert one.held == ((at, 0, ALL),)
    assert MEETING.ready(0, one) == (Leave(),)
    one, actions = meeting(one, Leave())
    assert (one.phase, actions, MEETING.ready(0, one)) == (Phase.LEAVING, (Send(3, Left()),), ())


def test_members_connect_once_all_are_present():
    view, held = View(1, ALL, (2, 0), joined=(2,), donor=1), (((1, 0), 0, (0, 1)),)
    member = donor = Member(View(0, (0, 1)), Phase.VOTE, (2, 0), held=held)
    member, actions = meeting(member, Received(3, view))
    assert actions == (Note(("rebuild", view)), Send(1, Here(1)), Send(2, Here(1)))
    donor, actions = meeting(donor, Received(3, view), process=1)
    assert actions == (Note(("rebuild", view)), Send(2, Given(1, held)), Send(0, Here(1)), Send(2, Here(1)))
    joiner, actions = meeting(replace(MEETING.joiner(), has_knocked=True), Received(3, view), process=2)
    assert (joiner.phase, joiner.blank, actions) == (Phase.REBUILD, True, (Note(("rebuild", view)),))
    assert MEETING.ready(2, meeting(joiner, Received(0, Here(1)), Received(1, Here(1)), process=2)[0]) == ()
    assert MEETING.ready(2, meeting(joiner, Received(0, Given(1, held)), process=2)[0]) == (), "not from the donor"
    assert MEETING.ready(2, meeting(joiner, Received(1, Given(2, held)), process=2)[0]) == (), "of another generation"
    joiner, _ = meeting(joiner, Received(1, Given(1, held)), process=2)
    assert MEETING.ready(2, joiner) == (Healed(),)
    joiner, actions = meeting(joiner, Healed(), process=2)
    assert actions == (Send(0, Here(1)), Send(1, Here(1)))
    assert (joiner.blank, joiner.place, joiner.stands, joiner.held) == (False, (2, 0), True, held)
    assert MEETING.ready(2, meeting(joiner, Received(0, Here(1)), process=2)[0]) == ()
    joiner, _ = meeting(joiner, Received(0, Here(1)), Received(1, Here(1)), process=2)
    assert MEETING.ready(2, joiner) == (Connected(),)
    member, _ = meeting(member, Received(1, Here(1)), Received(2, Here(0)))
    assert MEETING.ready(0, member) == (), "worker 2 is not connected"
    member, _ = meeting(member, Received(2, Here(1)))
    assert MEETING.ready(0, member) == (Connected(),)
    member, _ = meeting(member, Connected())
    assert (member.phase, member.view, member.group, member.prepared) == (Phase.RUN, view, (), False)


def test_vote_reports_the_position_after_unblocking():
    at = (2, 0)
    one, _ = meeting(Member(FIRST, place=at), Enter(at, ALL))
    voted, actions = meeting(one, Broken())
    assert (voted.phase, actions) == (Phase.VOTE, (Note(("unblock",)), Send(3, Vote(1, at, (), stands=True))))
    assert meeting(voted, Received(3, Open(1))) == (voted, (Send(3, Vote(1, at, (), stands=True)),))
    assert meeting(voted, Received(3, Open(2))) == (voted, ())
    prepared, _ = meeting(replace(one, prepared=True), Received(1, Crashed()))
    again, _ = meeting(prepared, Received(3, View(1, (0, 2), at)))
    assert (again.group, again.prepared, again.place) == ((), False, at)
    blank = Member(View(1, ALL), Phase.REBUILD, blank=True)
    assert meeting(blank, Broken())[1][1] == Send(3, Vote(2, (0, 0), blank=True))
    stranger = Member(View(1, (0, 1)))
    assert meeting(stranger, Received(2, Crashed())) == (stranger, ()), "a loss that its view already excludes"
    assert meeting(stranger, Received(3, Crashed()))[0].phase is Phase.ENDED
    for phase in (Phase.FENCED, Phase.LEFT):
        assert meeting(replace(stranger, phase=phase), Received(3, Crashed()))[0].phase is phase


def test_outside_worker_may_request_to_join():
    outside = MEETING.joiner()
    assert MEETING.ready(2, outside) == (Knock(),)
    assert MEETING.ready(2, replace(outside, knocks=0)) == MEETING.ready(2, replace(outside, has_knocked=True)) == ()


def test_initial_states_follow_the_settings():
    machine = Membership(3, 2, everybody, 2, leases=1, restarts=2, outside=1, knocks=4)
    first = View(0, (0, 1))
    assert machine.start(3) == (Authority((first,), votes=(None,) * 3, leases=1, restarts=2), ())
    assert machine.start(1) == (Member(first), ())
    assert machine.start(2) == (Member(View(-1, ()), Phase.OUTSIDE, blank=True, knocks=4), ())
    assert (machine.num_processes, machine.authority) == (4, 3)
    assert set(machine.channels) == {(u, v) for u in range(4) for v in range(4) if u != v}
    assert set(machine.suspects) == {(u, v) for u in range(3) for v in range(4) if u != v}
    for phase in Phase:
        is_over = phase in (Phase.FENCED, Phase.ENDED, Phase.LEFT, Phase.OUTSIDE)
        assert machine.finished(0, Member(first, phase)) is is_over
    assert machine.finished(3, machine.start(3)[0])


@pytest.mark.parametrize("configuration", SMALLEST, ids=lambda one: one.name)
def test_every_property_holds_in_the_smallest_systems(configuration):
    found = configuration.run()
    assert found.holds, found
