"""Who goes on after a loss, through every interleaving: all properties hold, and bugs seeded in it are all killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.explore.membership import SMALL
from partreduce.schedulers.protocols.base import Crashed, Note, Received, Send
from partreduce.schedulers.protocols.membership.authority import Authority
from partreduce.schedulers.protocols.membership.machine import Membership
from partreduce.schedulers.protocols.membership.member import Member
from partreduce.schedulers.protocols.membership.words import (
    Broken,
    Confirmed,
    Connected,
    Enter,
    Expire,
    Healed,
    Join,
    Knock,
    Leave,
    Left,
    Open,
    Phase,
    Propose,
    Publish,
    Released,
    Stop,
    Summed,
    View,
    Vote,
)

BY_NAME = {configuration.name: configuration for configuration in SMALL}
TAKEN = "2 workers, one death and one taken for dead"
RESTART = "2 workers, two deaths, a lease, a restart"
THREE, THREE_RESTART = "3 workers, one death, at once", "3 workers, two deaths, a restart, at once"
ONE_MAY = "3 workers, two deaths, one may be lost, at once"
LEASE = "3 workers, one taken for dead, a lease, at once"
CUT, CUT_TWO, CUT_JOINS = (
    "3 workers, one round, one cut off, at once",
    "2 workers, one cut off",
    "1 worker and one that joins, one cut off, at once",
)
JOINS = "2 workers and one that joins, one death, at once"
JOINS_RESTART = "2 workers and one that joins, two deaths, a restart, at once"
PLAN, PLAN_RESTART = "2 workers, a plan, one death", "2 workers, a plan, one death, a restart"
PLAN_JOINS = "2 workers and one that joins, a plan, one death, at once"
PLAN_PAIRS = "3 workers in pairs and all, planned all together, one death, at once"
PAIRS, FOUR = "3 workers in pairs and all, two deaths, at once", "4 workers in pairs and all, one death, at once"


@pytest.mark.parametrize("configuration", SMALL, ids=lambda one: one.name)
def test_every_property_holds_in_every_interleaving(configuration):
    found = configuration.run()
    assert found.holds, found


# Bugs: each is a machine that differs in one decision; `dies_in` is where the explorer kills it.


class DropsWhatOthersCommitted(Membership):
    """A worker that is prepared drops the sum, although another one has committed it."""

    dies_in = THREE

    def _view(self, state, members):
        return replace(super()._view(state, members), forward=())


class CommitsWhatIsPrepared(Membership):
    """Whoever is prepared commits, whether anybody has or not."""

    dies_in = THREE

    def _view(self, state, members):
        view = super()._view(state, members)
        prepared = tuple(worker for worker in view.members if state.votes[worker].prepared)
        return replace(view, forward=prepared)


class CommitsWithoutConfirm(Membership):
    """A worker commits its sum as soon as it has it."""

    dies_in = THREE

    def ready(self, process, state):
        if isinstance(state, Member) and state.phase is Phase.RUN and state.prepared:
            return (Confirmed(),)
        return super().ready(process, state)


class SaysNothingOfWhatIsPrepared(Membership):
    """A vote does not say that its worker is prepared."""

    dies_in = THREE

    def _voted(self, state):
        after, actions = super()._voted(state)
        return after, tuple(
            replace(a, message=replace(a.message, prepared=())) if isinstance(a, Send) else a for a in actions
        )


class ResumesWithTheSlowest(Membership):
    """The view resumes at the place of the survivor that is furthest behind."""

    dies_in = FOUR

    def _view(self, state, members):
        view = super()._view(state, members)
        return replace(view, resume=min(state.votes[worker].place for worker in view.members)) if view.members else view


class AveragesBeforeAllDo(Membership):
    """A worker that is behind averages on its way to the place from which all do."""

    dies_in = FOUR

    def _entered(self, worker, state, entry):
        after, actions = super()._entered(worker, replace(state, view=replace(state.view, resume=(0, 0))), entry)
        return replace(after, view=state.view), actions


class DecidesBeforeAllHaveVoted(Membership):
    """The view is decided although one member that lives has not voted."""

    dies_in = THREE

    def _silent(self, state):
        return super()._silent(state)[1:]


class TellsBeforeItIsWritten(Membership):
    """The view goes out before it is written down, so that one started again decides anew."""

    dies_in = RESTART

    def _written(self, state, view):
        after, actions = super()._written(state, view)
        told, more = self._published(after)
        return told, (*actions, *more)

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if type(event).__name__ == "Restart" and len(state.log) > 1:
            after = replace(after, log=after.log[:-1], told=1)
        return after, actions


class TellsNothingAgain(Membership):
    """An authority that was started again takes what it has written down for told."""

    dies_in = THREE_RESTART

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return (replace(after, told=len(after.log)) if type(event).__name__ == "Restart" else after), actions


class AsksBeforeItHasTold(Membership):
    """A vote for the next epoch is opened before the view of this one has gone out."""

    dies_in = ONE_MAY

    def _looked(self, state):
        if state.lost.intersection(state.view.members):
            return self._opened(state)
        return state, ()


class KeepsOldNews(Membership):
    """Late news of a loss that is behind a worker makes it vote again."""

    dies_in = THREE_RESTART

    def _step_member(self, worker, state, event):
        if isinstance(event, Received) and isinstance(event.message, Crashed) and event.source != self.authority:
            return self._suspected(state)
        return super()._step_member(worker, state, event)


class VotesOnlyInAnOperation(Membership):
    """A worker that is between two operations does not answer a vote."""

    dies_in = THREE

    def _voted(self, state):
        return super()._voted(state) if state.group or state.phase is not Phase.RUN else (state, ())


class IgnoresALossWhileItConnects(Membership):
    """A worker that connects the next epoch's groups does not vote when one of them is lost."""

    dies_in = PAIRS

    def _voted(self, state):
        return (state, ()) if state.phase is Phase.REBUILD else super()._voted(state)


class GoesOnWhenFenced(Membership):
    """A worker that is not in the view connects all the same."""

    dies_in = TAKEN

    def _decided(self, worker, state, view):
        if worker in view.members or not view.members or state.phase is not Phase.VOTE:
            return super()._decided(worker, state, view)
        return replace(state, phase=Phase.RUN, view=view, group=(), prepared=False), ()


class TakesSharesOfAnyEpoch(Membership):
    """What a member added in an old epoch counts in the new one."""

    dies_in = THREE

    @staticmethod
    def _heard(state, own, members, message):
        kind = type(message)
        return all(
            member == own
            or any(
                source == member
                and isinstance(said, kind)
                and getattr(said, "place", 0) == getattr(message, "place", 0)
                for source, said in state.heard
            )
            for member in members
        )

    @staticmethod
    def _told(state, source, said):
        return (
            replace(state, heard=state.heard | {(source, said)}) if state.phase in ("run", "vote", "rebuild") else state
        )

    def _decided(self, worker, state, view):
        after, actions = super()._decided(worker, state, view)
        return replace(after, heard=state.heard), actions


class WaitsForWhoHasLeft(Membership):
    """A worker that has left with everything committed is waited for in a vote."""

    dies_in = THREE

    def _remaining(self, state):
        return tuple(worker for worker in state.view.members if worker not in state.lost)


class ForgetsWhatWhoHasLeftCommitted(Membership):
    """A worker that has left does not count among those that have committed."""

    dies_in = THREE

    def _view(self, state, members):
        return super()._view(replace(state, left=frozenset()), members)


class LosesMoreThanItMay(Membership):
    """One more than may be is lost before the run ends."""

    dies_in = ONE_MAY

    def _looked(self, state):
        return Membership(self.num_workers, self.most_lost + 1)._looked(state)


class LosesFewerThanItMay(Membership):
    """The run ends one loss too early."""

    dies_in = ONE_MAY

    def _looked(self, state):
        return Membership(self.num_workers, self.most_lost - 1)._looked(state)


class TakesTheStateOfTheSlowest(Membership):
    """The donor is the member that is furthest behind."""

    dies_in = JOINS

    def _view(self, state, members):
        view = super()._view(state, members)
        voted = [worker for worker in view.members if worker not in view.joined]
        return replace(view, donor=min(voted, key=lambda w: state.votes[w].place)) if view.joined else view


class TakesTheStateOfWhoeverIsThere(Membership):
    """The donor need not stand in an operation of its rounds."""

    dies_in = JOINS

    def _view(self, state, members):
        votes = tuple(vote if vote is None else replace(vote, stands=True) for vote in state.votes)
        return super()._view(replace(state, votes=votes), members)


class AveragesWithoutAState(Membership):
    """A worker that has joined connects as the others do, and does not wait for a state."""

    dies_in = JOINS

    def ready(self, process, state):
        found = super().ready(process, state)
        is_blank = isinstance(state, Member) and state.phase is Phase.REBUILD and state.blank
        return (Connected(),) if is_blank else found


class CountsWhoHasNoState(Membership):
    """A worker that voted before it had a state is taken for one that has it."""

    dies_in = JOINS

    def _view(self, state, members):
        votes = tuple(vote if vote is None else replace(vote, blank=False) for vote in state.votes)
        return super()._view(replace(state, votes=votes), members)


class EndsWhereNobodyIsLost(Membership):
    """A vote in which nobody is lost ends the run, although somebody wanted to join."""

    dies_in = JOINS

    def _view(self, state, members):
        return super()._view(replace(state, admits=False, joining=frozenset()), members)


class MissesWhoIsBack(Membership):
    """A worker that has joined counts as lost all the same."""

    dies_in = JOINS_RESTART

    def _written(self, state, view):
        after, actions = super()._written(state, view)
        return replace(after, lost=after.lost.union(view.joined)), actions


class LetsNobodyIn(Membership):
    """The view has only those that voted with a state."""

    dies_in = JOINS

    def _view(self, state, members):
        view = super()._view(state, members)
        return replace(view, members=tuple(w for w in view.members if w not in view.joined))


class FollowsAPlanForOthers(Membership):
    """A plan is followed also where one of those for whom it was made is lost during the vote."""

    dies_in = PLAN

    def _view(self, state, members):
        view = super()._view(state, members)
        return replace(view, plan=state.proposed or view.plan) if view.members else view


class TakesAPlanThatComesTooLate(Membership):
    """A plan for members of before is asked about."""

    dies_in = PLAN

    def _proposed(self, state, event):
        return super()._proposed(state, replace(event, members=state.view.members))


class EndsWhereAPlanIsProposed(Membership):
    """A vote in which nobody is lost ends the run, although a plan was proposed."""

    dies_in = PLAN

    def _view(self, state, members):
        return super()._view(replace(state, proposed=""), members)


class ForgetsThePlan(Membership):
    """The next view of the same members goes back to the run's own schedule."""

    dies_in = PLAN_JOINS

    def _view(self, state, members):
        return replace(super()._view(state, members), plan=state.proposed)


class KeepsWhatWasProposed(Membership):
    """What was proposed once still is, when the members have changed."""

    dies_in = PLAN_JOINS

    def _written(self, state, view):
        after, actions = super()._written(state, view)
        return replace(after, proposed=state.proposed), actions


class ForgetsWhatWasProposed(Membership):
    """An authority that was started again does not know for what it has opened a vote."""

    dies_in = PLAN_RESTART

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return (replace(after, proposed="") if type(event).__name__ == "Restart" else after), actions


class SwitchesOnlyWhereItHasVotedFirst(Membership):
    """Of those that follow a plan, worker 0 stays with the groups that it had."""

    dies_in = PLAN_PAIRS

    def _own_group(self, worker, state):
        return super()._own_group(worker, state if worker else replace(state, view=replace(state.view, plan="")))


class LeavesWithoutAnAnswer(Membership):
    """A worker has left as soon as it says so."""

    dies_in = CUT_TWO

    def _step_member(self, worker, state, event):
        after, actions = super()._step_member(worker, state, event)
        return (replace(after, phase=Phase.LEFT) if after.phase is Phase.LEAVING else after), actions


class ReleasesWhoIsGivenUp(Membership):
    """A worker that is given up may leave like any other."""

    dies_in = TAKEN

    def _step_authority(self, state, event):
        if isinstance(event, Received) and isinstance(event.message, Left) and event.source in state.lost:
            return state, (Send(event.source, Released()),)
        return super()._step_authority(state, event)


class ReleasesNobody(Membership):
    """The authority notes who leaves, and does not answer."""

    dies_in = CUT_TWO

    def _step_authority(self, state, event):
        after, actions = super()._step_authority(state, event)
        return after, tuple(a for a in actions if not (isinstance(a, Send) and isinstance(a.message, Released)))


class HearsNoViewWhileItLeaves(Membership):
    """A worker that leaves waits for the answer alone, and not for the view without it."""

    dies_in = TAKEN

    def _decided(self, worker, state, view):
        return (state, ()) if state.phase is Phase.LEAVING else super()._decided(worker, state, view)


class VotesWhileItLeaves(Membership):
    """A worker that has committed everything votes, and is taken along, although nothing is left for it to do."""

    dies_in = TAKEN

    def _asked(self, state, epoch):
        if state.phase is Phase.LEAVING and epoch == state.view.epoch + 1:
            return self._voted(state)
        return super()._asked(state, epoch)


class OutlivesItsLease(Membership):
    """A worker that hears nothing of the authority any more waits for it."""

    dies_in = CUT

    def _step_member(self, worker, state, event):
        if event == Received(self.authority, Crashed()):
            return state, ()
        return super()._step_member(worker, state, event)


class GoesOnAloneWhenCutOff(Membership):
    """A worker that hears nothing of the authority any more takes itself for the only one left."""

    dies_in = CUT

    def _step_member(self, worker, state, event):
        if event == Received(self.authority, Crashed()) and state.phase in (Phase.RUN, Phase.VOTE):
            alone = View(state.view.epoch + 1, (worker,), state.place)
            return replace(state, phase=Phase.RUN, view=alone, group=(), prepared=False), ()
        return super()._step_member(worker, state, event)


class ForgetsALossInAVote(Membership):
    """A loss that is known only while a vote is under way counts for nothing."""

    dies_in = CUT_TWO

    def _missed(self, state, workers):
        return (state, ()) if state.is_open else super()._missed(state, workers)


class LeavesWithItsLease(Membership):
    """A worker whose lease ends while it waits for the answer takes that for a yes."""

    dies_in = CUT_TWO

    def _step_member(self, worker, state, event):
        if event == Received(self.authority, Crashed()) and state.phase is Phase.LEAVING:
            return replace(state, phase=Phase.LEFT), ()
        return super()._step_member(worker, state, event)


BUGS = Membership.__subclasses__()
PAGE = Path(__file__).parents[3] / "benchmarks" / "results" / "seeded_bugs.md"


@pytest.mark.parametrize("bug", BUGS, ids=lambda kind: kind.__name__)
def test_the_explorer_finds_every_seeded_bug_and_the_page_says_how(bug):
    configuration = BY_NAME[bug.dies_in]
    found = configuration.run(configuration.of(bug))
    broken = [finding for finding in found.findings if finding.verdict == "fails"]
    assert broken, found
    first = min(broken, key=lambda finding: len(finding.trace.steps))
    row = f"| {bug.__doc__} | {first.name} | {bug.dies_in} | {len(first.trace.steps)} |"
    assert row in PAGE.read_text(encoding="utf-8").splitlines()


# What each event does, by hand: three workers, of whom worker 2 is lost while 0 has committed what 1 has prepared.

MACHINE = Membership(3, 2)
FIRST = View(0, (0, 1, 2))
ALL = (0, 1, 2)


def after(state, *events, process=0):
    """The state after some events, and what the last of them did."""
    actions = ()
    for event in events:
        state, actions = MACHINE.step(process, state, event)
    return state, actions


def test_a_worker_commits_what_another_one_has_and_resumes_where_that_one_stands():
    authority, _ = MACHINE.start(3)
    authority, asked = after(authority, Received(2, Crashed()), process=3)
    assert asked == (Send(0, Open(1)), Send(1, Open(1)))
    authority, nothing = after(authority, Received(0, Vote(1, (5, 0))), process=3)
    assert nothing == ()
    authority, written = after(authority, Received(1, Vote(1, (4, 0), ALL)), process=3)
    view = View(1, (0, 1), (5, 0), (1,))
    assert written == (Note(("write", view)),)
    authority, told = after(authority, Publish(), process=3)
    assert told == (Send(0, view), Send(1, view), Send(2, view))
    one, _ = after(Member(FIRST), Enter((4, 0), ALL), Summed(), Broken(), process=1)
    one, actions = after(one, Received(3, view), process=1)
    assert actions == (Note(("forward",)), Note(("rebuild", view)))
    assert (one.phase, one.place, one.group) == (Phase.REBUILD, (5, 0), ())
    one, _ = after(one, Connected(), process=1)
    assert one.phase is Phase.RUN


def test_what_nobody_committed_is_dropped_and_done_again_at_the_same_place():
    view = View(1, (0, 1), (4, 0))
    one, actions = after(Member(FIRST), Enter((4, 0), ALL), Summed(), Broken(), process=1)
    assert actions == (Note(("unblock",)), Send(3, Vote(1, (4, 0), ALL, stands=True)))
    one, actions = after(one, Received(3, view), process=1)
    assert actions == (Note(("dropped",)), Note(("rebuild", view)))
    one, _ = after(one, Connected(), Enter((4, 0), (0, 1)), process=1)
    assert (one.group, one.place) == ((0, 1), (4, 0))


def test_who_is_behind_goes_to_the_place_of_the_others_alone_and_a_meeting_counts_by_itself():
    behind = Member(View(1, (0, 1), (4, 0)))
    alone, _ = after(behind, Enter((3, 0), (0, 1)))
    assert (alone.place, alone.group, alone.held) == ((4, 0), (), ())
    met, _ = after(alone, Enter((4, 0), (0, 1), meets=True), Summed(), Confirmed())
    assert met.place == (4, 1)


def test_who_votes_for_what_did_not_happen_hears_that_nobody_goes_on():
    authority, _ = MACHINE.start(3)
    votes = [Received(worker, Vote(1, (0, 0))) for worker in ALL]
    authority, written = after(authority, *votes, process=3)
    assert written == (Note(("write", View(1, ()))),)
    ended, _ = after(Member(FIRST), Broken(), Received(3, View(1, ())))
    assert ended.phase is Phase.ENDED


def test_the_silent_are_given_up_and_one_of_them_that_comes_back_is_fenced():
    authority, _ = MACHINE.start(3)
    authority, _ = after(authority, *(Received(worker, Vote(1, (0, 0))) for worker in (0, 2)), process=3)
    authority, actions = after(replace(authority, leases=1), Expire(), process=3)
    assert actions[0] == Note(("fenced", 1))
    assert authority.view == View(1, (0, 2))
    back, _ = after(Member(FIRST), Received(3, authority.view), process=1)
    assert back.phase is Phase.FENCED


def test_who_leaves_waits_for_the_answer_and_hears_the_view_without_it_where_it_was_given_up():
    leaving, actions = after(Member(FIRST), Leave(), Received(3, Open(1)), Received(2, Crashed()))
    assert (leaving.phase, actions) == (Phase.LEAVING, ())
    assert after(leaving, Received(3, Released()))[0].phase is Phase.LEFT
    assert after(leaving, Received(3, View(1, (1, 2))))[0].phase is Phase.FENCED
    assert after(leaving, Received(3, Crashed()))[0].phase is Phase.ENDED
    authority, _ = MACHINE.start(3)
    authority, _ = after(authority, Received(0, Crashed()), process=3)
    assert after(authority, Received(0, Left()), process=3) == (authority, ()), "it cannot leave any more"


JOINING = Membership(3, 2, outside=1)


def joining(state, *events, process=3):
    """As `after`, of a run in which worker 2 is outside at first."""
    actions = ()
    for event in events:
        state, actions = JOINING.step(process, state, event)
    return state, actions


def asked(*votes):
    """The authority after worker 2 has asked to join, and workers 0 and 1 have voted so."""
    authority, _ = JOINING.start(3)
    authority, actions = joining(authority, Received(2, Join()))
    assert actions == (Send(0, Open(1)), Send(1, Open(1)))
    return joining(authority, *(Received(worker, vote) for worker, vote in enumerate(votes)))


def test_who_asks_joins_where_the_furthest_stand_in_an_operation_and_has_the_state_of_one_of_them():
    view = View(1, (0, 1, 2), (5, 0), (0,), joined=(2,), donor=1)
    authority, written = asked(Vote(1, (4, 0), (0, 1), stands=True), Vote(1, (5, 0), stands=True))
    assert written == (Note(("write", view)),)
    authority, told = joining(authority, Publish())
    assert told == (Send(0, view), Send(1, view), Send(2, view))
    assert authority.lost == authority.joining == frozenset()
    outside, _ = JOINING.start(2)
    outside, question = joining(outside, Knock(), process=2)
    assert question == (Send(3, Join()),)
    blank, actions = joining(outside, Received(3, view), process=2)
    assert (blank.phase, blank.blank, actions) == (Phase.REBUILD, True, (Note(("rebuild", view)),))
    healed, _ = joining(blank, Healed(), Connected(), process=2)
    assert (healed.phase, healed.blank, healed.place, healed.stands) == (Phase.RUN, False, (5, 0), True)


def test_where_the_furthest_is_in_no_operation_of_its_rounds_nobody_joins_and_it_may_ask_again():
    authority, written = asked(Vote(1, (4, 0), (0, 1), stands=True), Vote(1, (5, 0)))
    view = View(1, (0, 1), (5, 0), (0,))
    assert written == (Note(("write", view)),)
    authority, told = joining(authority, Publish())
    assert told == (Send(0, view), Send(1, view), Send(2, view))
    outside, _ = joining(JOINING.start(2)[0], Knock(), Received(3, view), process=2)
    assert (outside.phase, outside.has_knocked) == (Phase.OUTSIDE, False)
    _, again = joining(authority, Received(2, Join()))
    assert again == (Send(0, Open(2)), Send(1, Open(2)))


def test_who_has_joined_and_lost_its_donor_gets_the_state_of_another_that_stands_there():
    authority, _ = asked(Vote(1, (5, 0), stands=True), Vote(1, (5, 0), stands=True))
    authority, _ = joining(authority, Publish(), Received(0, Crashed()))
    blank = Vote(2, (0, 0), blank=True)
    authority, written = joining(authority, Received(2, blank), Received(1, Vote(2, (5, 0), stands=True)))
    assert written == (Note(("write", View(2, (1, 2), (5, 0), joined=(2,), donor=1))),)


def test_who_has_joined_is_outside_again_where_nobody_stands_that_has_a_state():
    authority, _ = asked(Vote(1, (5, 0), stands=True), Vote(1, (5, 0), stands=True))
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
    assert joining(out, Received(3, joined), process=2)[0] == out, "told again by an authority that was started again"


def test_where_nobody_is_left_that_has_a_state_the_run_ends():
    authority, _ = asked(Vote(1, (5, 0), stands=True), Vote(1, (5, 0), stands=True))
    authority, _ = joining(authority, Publish(), Received(0, Crashed()), Received(1, Crashed()))
    _, written = joining(authority, Received(2, Vote(2, (0, 0), blank=True)))
    assert written == (Note(("write", View(2, ()))),)


def test_who_asks_and_dies_before_the_view_changes_nothing():
    authority, _ = JOINING.start(3)
    votes = [Received(worker, Vote(1, (5, 0), stands=True)) for worker in (0, 1)]
    _, written = joining(authority, Received(2, Join()), votes[0], Received(2, Crashed()), votes[1])
    assert written == (Note(("write", View(1, (0, 1), (5, 0)))),)


def test_a_member_that_asks_is_no_joiner_and_where_somebody_has_left_nobody_joins():
    authority, _ = JOINING.start(3)
    assert joining(authority, Received(1, Join())) == (authority, ())
    left, _ = joining(authority, Received(0, Left()))
    _, actions = joining(left, Received(2, Join()))
    assert actions == ()
    assert joining(JOINING.start(2)[0], Received(3, Open(1)), process=2) == JOINING.start(2)
    ended, _ = joining(JOINING.start(2)[0], Received(3, View(1, ())), process=2)
    assert ended.phase is Phase.ENDED


def test_who_is_left_alone_stands_in_operations_of_its_own_so_that_others_may_join():
    alone = Member(View(1, (0,), (4, 0)))
    alone, _ = after(alone, Enter((4, 0), (0,)))
    assert (alone.place, alone.group, alone.stands) == ((4, 0), (0,), True)
    _, actions = after(alone, Broken())
    assert actions == (Note(("unblock",)), Send(3, Vote(2, (4, 0), stands=True)))


def test_members_follow_a_plan_once_all_have_voted_and_go_back_when_one_is_lost():
    authority, _ = MACHINE.start(3)
    authority, asked = after(authority, Propose("p", ALL), process=3)
    assert asked == tuple(Send(worker, Open(1)) for worker in ALL)
    votes = [Received(0, Vote(1, (4, 0), (0, 1))), Received(1, Vote(1, (5, 0))), Received(2, Vote(1, (4, 0)))]
    authority, written = after(authority, *votes, process=3)
    assert written == (Note(("write", View(1, ALL, (5, 0), (0,), plan="p"))),)
    authority, _ = after(authority, Publish(), Received(2, Crashed()), process=3)
    votes = [Received(worker, Vote(2, (7, 0))) for worker in (0, 1)]
    authority, written = after(authority, *votes, process=3)
    assert written == (Note(("write", View(2, (0, 1), (7, 0)))),)


def test_a_second_plan_takes_the_place_of_the_first_and_none_is_asked_about_where_it_cannot_be_followed():
    authority, _ = MACHINE.start(3)
    authority, _ = after(authority, Propose("p", ALL), process=3)
    assert after(authority, Propose("q", ALL), process=3) == (authority, ()), "a vote is under way"
    authority, _ = after(authority, *(Received(worker, Vote(1, (4, 0))) for worker in ALL), process=3)
    assert after(authority, Propose("q", ALL), process=3) == (authority, ()), "not told yet"
    authority, _ = after(authority, Publish(), process=3)
    assert after(authority, Propose("q", (0, 1)), process=3) == (authority, ()), "for others"
    left, _ = after(authority, Received(1, Left()), process=3)
    assert after(left, Propose("q", ALL), process=3) == (left, ()), "one has left"
    authority, _ = after(authority, Propose("q", ALL), process=3)
    authority, _ = after(authority, *(Received(worker, Vote(2, (9, 0))) for worker in ALL), process=3)
    assert authority.view == View(2, ALL, (9, 0), plan="q")
    stopped, _ = after(authority, Publish(), Stop(), Publish(), process=3)
    assert after(stopped, Propose("p", ()), process=3) == (stopped, ()), "nobody goes on"


def test_a_run_that_is_stopped_or_loses_more_than_it_may_ends_for_all():
    authority, _ = MACHINE.start(3)
    stopped, _ = after(authority, Stop(), process=3)
    assert stopped.view == View(1, ())
    assert after(stopped, Stop(), process=3) == (stopped, ())
    few, _ = Membership(3, 1).step(3, authority, Received(0, Crashed()))
    few, _ = Membership(3, 1).step(3, few, Received(1, Crashed()))
    assert few.view == View(1, ())


def test_who_has_left_has_committed_everything_and_is_missed_by_nobody():
    authority, _ = MACHINE.start(3)
    authority, actions = after(authority, Received(0, Left()), process=3)
    assert actions == (Send(0, Released()),)
    authority, actions = after(authority, Received(0, Crashed()), process=3)
    assert (authority.lost, actions) == (frozenset(), ())
    authority, _ = after(authority, Received(1, Vote(1, (7, 0), ALL)), Received(2, Vote(1, (7, 0), ALL)), process=3)
    assert authority.view == View(1, (1, 2), (7, 0), (1, 2))


def test_unknown_events_are_errors_of_the_driver():
    with pytest.raises(AssertionError, match="not an event of a member"):
        after(Member(FIRST), "hello")
    with pytest.raises(AssertionError, match="not an event of the authority"):
        after(Authority((FIRST,)), "hello", process=3)
