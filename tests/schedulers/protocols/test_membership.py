"""Who continues after a failure, through every interleaving: all properties hold, and all seeded bugs are killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.explore.membership import SMALL, SMALLEST
from partreduce.schedulers.protocols.base import Crashed, Received, Send
from partreduce.schedulers.protocols.membership.machine import Member, Membership
from partreduce.schedulers.protocols.membership.messages import (
    Confirmed,
    Connected,
    Left,
    Phase,
    Released,
    View,
)

BY_NAME = {configuration.name: configuration for configuration in SMALL}
TAKEN = "2 workers, one death and one taken for dead"
RESTART = "2 workers, two deaths, a lease, a restart"
THREE, THREE_RESTART = "3 workers, one death, at once", "3 workers, two deaths, a restart, at once"
ONE_MAY = "3 workers, two deaths, one may fail, at once"
LEASE = "3 workers, one taken for dead, a lease, at once"
CUT, CUT_TWO, CUT_JOINS = (
    "3 workers, one round, one cut off, at once",
    "2 workers, one cut off",
    "1 worker and one that joins, one cut off, at once",
)
JOINS = "2 workers and one that joins, one death, at once"
JOINS_RESTART = "2 workers and one that joins, two deaths, a restart, at once"
PAIRS, FOUR = "3 workers in pairs and all, two deaths, at once", "4 workers in pairs and all, one death, at once"


@pytest.mark.parametrize("configuration", SMALL[len(SMALLEST) :], ids=lambda one: one.name)
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
    """A vote for the next generation is opened before the view of this one has gone out."""

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
    """A worker that connects the next generation's groups does not vote when one of them is lost."""

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


class TakesSharesOfAnyGeneration(Membership):
    """What a member added in an old generation counts in the new one."""

    dies_in = THREE

    @staticmethod
    def _has_message_of_all(state, own, members, message):
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
    def _keep_message(state, source, said):
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
        return Membership(self.num_workers, self.max_failures + 1)._looked(state)


class LosesFewerThanItMay(Membership):
    """The run ends one loss too early."""

    dies_in = ONE_MAY

    def _looked(self, state):
        return Membership(self.num_workers, self.max_failures - 1)._looked(state)


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

    def _asked(self, state, generation):
        if state.phase is Phase.LEAVING and generation == state.view.generation + 1:
            return self._voted(state)
        return super()._asked(state, generation)


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
            alone = View(state.view.generation + 1, (worker,), state.place)
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
