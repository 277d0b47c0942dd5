"""Membership after failures in every interleaving: all properties hold, and all seeded bugs are found."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.explore.membership import SMALL, SMALLEST
from helpers.seeded import Bugs, brings, sends
from partreduce.schedulers.protocols.base import Crashed, Received, Send
from partreduce.schedulers.protocols.membership.machine import Authority, Member, Membership
from partreduce.schedulers.protocols.membership.messages import (
    Confirmed,
    Connected,
    Left,
    Phase,
    Released,
    Restart,
    View,
)

BY_NAME = {configuration.name: configuration for configuration in SMALL}
TAKEN = "2 workers, one death and one taken for dead"
RESTART = "2 workers, two deaths, a lease, a restart"
THREE, THREE_RESTART = "3 workers, one death, at once", "3 workers, two deaths, a restart, at once"
ONE_MAY = "3 workers, two deaths, one may fail, at once"
CUT, CUT_TWO = "3 workers, one round, one cut off, at once", "2 workers, one cut off"
JOINS = "2 workers and one that joins, one death, at once"
JOINS_RESTART = "2 workers and one that joins, two deaths, a restart, at once"
PAIRS, FOUR = "3 workers in pairs and all, two deaths, at once", "4 workers in pairs and all, one death, at once"


@pytest.mark.parametrize("configuration", SMALL[len(SMALLEST) :], ids=lambda one: one.name)
def test_every_property_holds_in_every_interleaving(configuration):
    found = configuration.run()
    assert found.holds, found


# Bugs: each is a machine that differs in one decision, with the configuration in which the explorer finds it.
BUGS = bug = Bugs(Membership, Member | Authority)


def in_view(change):
    """Replace the decided view by `change` of that view and the authority's state."""
    return lambda _, original, state, members: change(original(state, members), state)


def with_votes(**facts):
    """Return a change of all votes that the authority has received."""
    return lambda s, *_: replace(s, votes=tuple(vote if vote is None else replace(vote, **facts) for vote in s.votes))


def publish_at_once(machine, original, state, view):
    after, actions = original(state, view)
    notified, more = machine._published(after)
    return notified, (*actions, *more)


def count_any_generation(_, __, state, own, members, message):
    def is_it(other):
        same = getattr(other, "place", 0) == getattr(message, "place", 0)
        return isinstance(other, type(message)) and same

    return all(member == own or any(u == member and is_it(other) for u, other in state.received) for member in members)


def donor_furthest_behind(view, state):
    voted = [worker for worker in view.members if worker not in view.joined]
    return replace(view, donor=min(voted, key=lambda w: state.votes[w].place)) if view.joined else view


def is_cut_off(machine, event):
    return event == Received(machine.authority, Crashed())


def continue_alone(worker, state):
    view = View(state.view.generation + 1, (worker,), state.place)
    return replace(state, phase=Phase.RUN, view=view, group=(), prepared=False), ()


# fmt: off
bug("_view", "A worker that is prepared drops the sum, although another one has committed it.", THREE,
    instead=in_view(lambda view, _: replace(view, forward=())))
bug("_view", "A worker that is prepared commits, whether another one has or not.", THREE,
    instead=in_view(lambda view, s: replace(view, forward=tuple(w for w in view.members if s.votes[w].prepared))))
bug("ready", "A worker commits its sum as soon as it has it.", THREE, instead=lambda _, original, p, s:
    (Confirmed(),) if isinstance(s, Member) and s.phase is Phase.RUN and s.prepared else original(p, s))
bug("_voted", "A vote does not say that its worker is prepared.", THREE, emits=lambda actions: tuple(
    replace(a, message=replace(a.message, prepared=())) if isinstance(a, Send) else a for a in actions))
bug("_view", "The view resumes at the place of the survivor that is furthest behind.", FOUR,
    instead=in_view(lambda view, s:
        replace(view, resume=min(s.votes[w].place for w in view.members)) if view.members else view))
bug("_entered", "A worker that is behind averages on its way to the place from which all do.", FOUR,
    seen=lambda s, _: replace(s, view=replace(s.view, resume=(0, 0))),
    left=lambda now, was, _: replace(now, view=was.view))
bug("_silent", "The view is decided although one member that lives has not voted.", THREE,
    instead=lambda _, original, s: original(s)[1:])
bug("_written", "The view goes out before it is written down, so that one started again decides once more.", RESTART,
    instead=publish_at_once)
bug("step", "The view goes out before it is written down, so that one started again decides once more.",
    left=lambda now, was, event: replace(now, log=now.log[:-1], num_published=1)
        if isinstance(event, Restart) and len(was.log) > 1 else now)
bug("step", "An authority that was started again takes what it has written down for told.", THREE_RESTART,
    left=lambda now, _, event: replace(now, num_published=len(now.log)) if isinstance(event, Restart) else now)
bug("_looked", "A vote for the next generation is opened before the view of this one has gone out.", ONE_MAY,
    instead=lambda m, _, s: m._opened(s) if s.lost.intersection(s.view.members) else (s, ()))
bug("_step_member", "Late news of a loss that is behind a worker makes it vote again.", THREE_RESTART,
    instead=lambda m, original, w, s, event:
        m._suspected(s) if brings(event, Crashed) and event.source != m.authority else original(w, s, event))
bug("_voted", "A worker that is between two operations does not answer a vote.", THREE,
    instead=lambda _, original, s: original(s) if s.group or s.phase is not Phase.RUN else (s, ()))
bug("_voted", "A worker that connects the next generation's groups does not vote when one of them is lost.", PAIRS,
    instead=lambda _, original, s: (s, ()) if s.phase is Phase.REBUILD else original(s))
bug("_decided", "A worker that is not in the view connects all the same.", TAKEN,
    instead=lambda _, original, w, s, view:
        original(w, s, view) if w in view.members or not view.members or s.phase is not Phase.VOTE
        else (replace(s, phase=Phase.RUN, view=view, group=(), prepared=False), ()))
bug("_has_message_of_all", "What a member added in an old generation counts in the new one.", THREE,
    instead=count_any_generation)
bug("_keep_message", "What a member added in an old generation counts in the new one.",
    instead=lambda _, __, s, source, message:
        replace(s, received=s.received | {(source, message)}) if s.phase in ("run", "vote", "rebuild") else s)
bug("_decided", "What a member added in an old generation counts in the new one.",
    left=lambda now, was, _: replace(now, received=was.received))
bug("_remaining", "A worker that has left with everything committed is waited for in a vote.", THREE,
    instead=lambda _, __, s: tuple(worker for worker in s.view.members if worker not in s.lost))
bug("_view", "A worker that has left does not count among those that have committed.", THREE,
    seen=lambda s, _: replace(s, left=frozenset()))
bug("_looked", "One more than may be is lost before the run ends.", ONE_MAY,
    instead=lambda m, _, s: Membership(m.num_workers, m.max_failures + 1)._looked(s))
bug("_looked", "The run ends one loss too early.", ONE_MAY,
    instead=lambda m, _, s: Membership(m.num_workers, m.max_failures - 1)._looked(s))
# Joining.
bug("_view", "The donor is the member that is furthest behind.", JOINS, instead=in_view(donor_furthest_behind))
bug("_view", "The donor need not stand in an operation of its rounds.", JOINS, seen=with_votes(stands=True))
bug("ready", "A worker that has joined connects as the others do, and does not wait for a state.", JOINS,
    instead=lambda _, original, p, s: (Connected(),)
        if isinstance(s, Member) and s.phase is Phase.REBUILD and s.blank else original(p, s))
bug("_view", "A worker that voted before it had a state is taken for one that has it.", JOINS,
    seen=with_votes(blank=False))
bug("_view", "A vote in which no worker is lost ends the run, although somebody wanted to join.", JOINS,
    seen=lambda s, _: replace(s, admits=False, joining=frozenset()))
bug("_written", "A worker that has joined counts as lost all the same.", JOINS_RESTART,
    left=lambda now, _, view: replace(now, lost=now.lost.union(view.joined)))
bug("_view", "The view has only those that voted with a state.", JOINS,
    instead=in_view(lambda view, _: replace(view, members=tuple(w for w in view.members if w not in view.joined))))
# Leaving and disconnection.
bug("_step_member", "A worker has left as soon as it says so.", CUT_TWO,
    left=lambda now, *_: replace(now, phase=Phase.LEFT) if now.phase is Phase.LEAVING else now)
bug("_step_authority", "A worker that is given up may leave like any other.", TAKEN,
    instead=lambda _, original, s, event: (s, (Send(event.source, Released()),))
        if brings(event, Left) and event.source in s.lost else original(s, event))
bug("_step_authority", "The authority notes who leaves, and does not answer.", CUT_TWO,
    emits=lambda actions: tuple(a for a in actions if not sends(a, Released)))
bug("_decided", "A worker that leaves waits for the answer alone, and not for the view without it.", TAKEN,
    instead=lambda _, original, w, s, view: (s, ()) if s.phase is Phase.LEAVING else original(w, s, view))
bug("_asked",
    "A worker that has committed everything votes, and is taken along, although nothing is left for it to do.", TAKEN,
    instead=lambda m, original, s, generation: m._voted(s)
        if s.phase is Phase.LEAVING and generation == s.view.generation + 1 else original(s, generation))
bug("_step_member", "A worker that is cut off from the authority waits for it.", CUT,
    instead=lambda m, original, w, s, event: (s, ()) if is_cut_off(m, event) else original(w, s, event))
bug("_step_member", "A worker that is cut off from the authority takes itself for the only one left.", CUT,
    instead=lambda m, original, w, s, event: continue_alone(w, s)
        if is_cut_off(m, event) and s.phase in (Phase.RUN, Phase.VOTE) else original(w, s, event))
bug("_missed", "A loss that is known only while a vote is under way counts for nothing.", CUT_TWO,
    instead=lambda _, original, s, workers: (s, ()) if s.is_open else original(s, workers))
bug("_step_member", "A worker whose lease ends while it waits for the answer takes that for a yes.", CUT_TWO,
    instead=lambda m, original, w, s, event: (replace(s, phase=Phase.LEFT), ())
        if is_cut_off(m, event) and s.phase is Phase.LEAVING else original(w, s, event))
# fmt: on
PAGE = Path(__file__).parents[3] / "benchmarks" / "results" / "seeded_bugs.md"


@pytest.mark.parametrize("description", BUGS)
def test_explorer_finds_every_seeded_bug_on_the_page(description):
    kind, (dies_in,) = BUGS[description]
    configuration = BY_NAME[dies_in]
    found = configuration.run(configuration.of(kind))
    broken = [finding for finding in found.findings if finding.verdict == "fails"]
    assert broken, found
    first = min(broken, key=lambda finding: len(finding.trace.steps))
    row = f"| {description} | {first.name} | {dies_in} | {len(first.trace.steps)} |"
    assert row in PAGE.read_text(encoding="utf-8").splitlines()
    assert len(BUGS) == 35
