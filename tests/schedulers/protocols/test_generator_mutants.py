"""Bugs seeded in the group generator, each one changed decision: the explorer or a law of the draw kills all of them.

benchmarks/results/seeded_bugs.md lists them with the property that kills each.
"""

import functools
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.explore.explorer import Network
from benchmarks.explore.generator import SMALL, divided, generator, meeting, random, smart
from benchmarks.explore.reductions import GroupSystem
from helpers.group_draw_laws import broken_law
from partreduce.schedulers.protocols.base import Note, Send
from partreduce.schedulers.protocols.group_generator.draw import Drawing
from partreduce.schedulers.protocols.group_generator.service import Ask, Bye, Grant, GroupGenerator
from partreduce.schedulers.protocols.group_generator.worker import Broke, GroupWorker, Here

KILLERS = (
    SMALL[3],
    generator("random pairs of 2, broken once", GroupSystem(random((0, 0)), breakers=(0,))),
    generator("random pairs of 2, one loss and one crash", GroupSystem(random((0, 0)), timeouts=True),
              Network(losses=1, crashes=1, detect=True)),
    SMALL[1],
    SMALL[4],
    SMALL[6],
    SMALL[2],
    SMALL[7],
    SMALL[9],
    generator("random pairs of 3, 1 round", GroupSystem(random((0, 0, 0)), rounds=1)),
    generator("random pairs of 2, doubled", GroupSystem(random((0, 0))), Network(duplicates=1)),
    generator("divided 3, one crash, 1 round", GroupSystem(divided((0, 0, 0)), rounds=1),
              Network(crashes=1, detect=True)),
    generator("inter/intra 3, crash, 1 round", GroupSystem(smart((0, 0, 1)), rounds=1),
              Network(crashes=1, detect=True)),
    generator("divided 3, broken once, 1 round",
              GroupSystem(divided((0, 0, 0), 3), rounds=1, breakers=(0,))),
)  # fmt: skip
"""In the order in which most bugs die for the least time."""

MUTANTS = {}


def mutant(part, method):
    """Register a bug: `change(original, *arguments)` stands in for a method of one part."""

    def register(change):
        MUTANTS[change.__name__.replace("_", " ")] = (part, method, change)
        return change

    return register


def seeded(system, name):
    """A copy of a system with one bug."""
    part, method, change = MUTANTS[name]
    copy = replace(system)
    target = {
        "generator": copy.generator,
        "locking": copy.generator.locking,
        "drawing": copy.generator.drawing,
        "worker": copy.worker,
    }[part]
    setattr(target, method, functools.partial(change, getattr(target, method)))
    return copy


@mutant("locking", "started")
def starting_sets_no_lock_bit(original, state):
    after, begun = original(state)
    return replace(after, locks=state.locks), begun


@mutant("locking", "started")
def starting_forgets_the_bit_of_the_last_member(original, state):
    after, begun = original(state)
    missed = {group.members[-1] for group in begun}
    return replace(after, locks=tuple(bit and w not in missed for w, bit in enumerate(after.locks))), begun


@mutant("locking", "can_start")
def lock_vector_is_not_looked_at(original, state, group):
    return not group.running and all(state.buffers[worker][:1] == (group.seq,) for worker in group.members)


@mutant("locking", "can_start")
def a_group_may_overtake_in_one_buffer(original, state, group):
    first = state.buffers[group.members[0]][:1] == (group.seq,)
    return not group.running and first and not any(state.locks[w] for w in group.members)


@mutant("locking", "queued")
def pushes_go_to_the_front_of_the_buffer(original, buffer, seq):
    return (seq, *buffer)


@mutant("locking", "pushed")
def one_member_is_not_told_of_its_group(original, state, members):
    after = original(state, members)
    worker = members[-1]
    return replace(after, buffers=(*after.buffers[:worker], state.buffers[worker], *after.buffers[worker + 1 :]))


@mutant("locking", "pushed")
def sequence_number_is_used_twice(original, state, members):
    after = original(state, members)
    return replace(after, next_seq=state.next_seq) if after.next_seq == 2 else after


@mutant("locking", "released")
def release_keeps_the_lock_bit(original, state, worker):
    return replace(original(state, worker), locks=state.locks)


@mutant("locking", "released")
def first_member_that_is_done_frees_all(original, state, worker):
    group = state.running_of(worker)
    if group is None:
        return state
    locks = tuple(bit and w not in group.members for w, bit in enumerate(state.locks))
    return replace(original(state, worker), locks=locks)


@mutant("locking", "released")
def finished_groups_stay(original, state, worker):
    group = state.running_of(worker)
    after = original(state, worker)
    if group is None or any(other.seq == group.seq for other in after.groups):
        return after
    return replace(after, groups=tuple(sorted((*after.groups, replace(group, active=())), key=lambda g: g.seq)))


@mutant("locking", "withdrawn")
def a_worker_that_ends_stays_in_its_groups(original, state, worker):
    return state


@mutant("locking", "withdrawn")
def groups_shrink_to_one_member(original, state, worker):
    for seq in state.buffers[worker]:
        group = state.group(seq)
        rest = replace(group, members=tuple(w for w in group.members if w != worker))
        buffers = tuple(tuple(s for s in b if s != seq) if w == worker else b for w, b in enumerate(state.buffers))
        state = replace(state, groups=tuple(rest if g.seq == seq else g for g in state.groups), buffers=buffers)
    return state


@mutant("locking", "voided")
def lock_bits_of_a_lost_group_stay(original, state, worker):
    after, ended = original(state, worker)
    return replace(after, locks=state.locks), ended


@mutant("locking", "voided")
def only_unfinished_groups_of_a_lost_worker_are_void(original, state, worker):
    group = state.running_of(worker)
    return original(state, worker) if group is not None else (state, ())


@mutant("generator", "is_repeated")
def a_repeated_request_draws_again(original, state, worker, ask):
    return False if ask.request else original(state, worker, ask)


@mutant("generator", "repeated")
def a_repeated_request_gets_no_answer(original, state, worker):
    return ()


@mutant("generator", "repeated")
def a_repeated_answer_carries_the_old_generation(original, state, worker):
    answer = state.answers[worker]
    return () if answer is None else (Send(worker, replace(answer, generation=-1)),)


@mutant("generator", "following")
def late_requests_count_as_new(original, request):
    class Any(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    return Any(request + 1)


@mutant("generator", "done")
def done_is_not_heard(original, state, worker, ask):
    return state


@mutant("generator", "done")
def done_with_any_group_releases(original, state, worker, ask):
    group = state.buffers.running_of(worker)
    return original(state, worker, replace(ask, done=-1 if group is None else group.seq))


@mutant("generator", "failed")
def a_failed_group_counts_as_done(original, state, worker, ask):
    return GroupGenerator(setting=random((0, 0))).done(state, worker, ask), ()


@mutant("worker", "broken")
def a_failed_group_is_reported_as_done(original, state, salt):
    after, actions = original(state, salt)
    ask = replace(after.ask, failed=False)
    return replace(after, ask=ask), (*actions[:-1], replace(actions[-1], message=ask))


@mutant("generator", "answer")
def bye_while_a_group_waits(original, state, worker):
    answer = original(state, worker)
    if isinstance(answer, Grant) and state.status[worker] == "left":
        return Bye(answer.generation, answer.request)
    return answer


@mutant("generator", "answer")
def a_grant_before_the_group_runs(original, state, worker):
    answer = original(state, worker)
    if answer is None:
        group = state.buffers.group(state.buffers.buffers[worker][0])
        return Grant(state.generation, state.requests[worker], group.seq, group.members)
    return answer


@mutant("generator", "answered")
def the_answer_is_not_remembered(original, state, worker, answer):
    return replace(original(state, worker, answer), answers=state.answers)


@mutant("generator", "answered")
def an_answered_worker_stays_in_the_queue(original, state, worker, answer):
    return replace(original(state, worker, answer), waiting=state.waiting)


@mutant("generator", "served")
def only_the_first_in_the_queue_is_answered(original, state):
    after, actions = original(replace(state, waiting=state.waiting[:1]))
    return replace(after, waiting=(*after.waiting, *state.waiting[1:])), actions


@mutant("generator", "served")
def groups_start_only_when_nobody_runs(original, state):
    if any(state.buffers.locks):
        buffers = state.buffers
        locking_off = replace(buffers, groups=tuple(g for g in buffers.groups if g.running))
        after, actions = original(replace(state, buffers=locking_off))
        return replace(after, buffers=replace(after.buffers, groups=buffers.groups)), actions
    return original(state)


@mutant("generator", "void")
def members_of_a_lost_group_are_not_told(original, state, groups, dead):
    return ()


@mutant("generator", "void")
def only_the_first_member_of_a_lost_group_is_told(original, state, groups, dead):
    return original(state, groups, dead)[:1]


@mutant("generator", "forgotten")
def a_void_group_is_granted_to_a_repeated_request(original, state, groups):
    return state


@mutant("generator", "idle")
def workers_that_left_are_idle(original, state, alive):
    return frozenset(w for w in range(len(state.status)) if not state.buffers.buffers[w])


@mutant("generator", "counted")
def rounds_are_counted_double(original, state, worker):
    counts = original(state, worker)
    return tuple(c * 2 if w == worker else c for w, c in enumerate(counts))


@mutant("worker", "if_complete")
def a_worker_leaves_before_all_have_come(original, worker, state):
    return replace(state, here=state.here) and original(worker, replace(state, members=state.members[:1]))


@mutant("worker", "met_by")
def a_late_member_gets_no_answer(original, worker, state, source, seq, *, answer):
    return (state, ()) if seq <= state.met else original(worker, state, source, seq, answer=answer)


@mutant("worker", "met_by")
def an_early_member_is_forgotten(original, worker, state, source, seq, *, answer):
    return (
        (state, ())
        if state.stage == "asked" and seq > state.met
        else original(worker, state, source, seq, answer=answer)
    )


@mutant("worker", "next_ask")
def the_group_is_not_reported(original, state, done, salt):
    after, actions = original(state, -1, salt)
    return after, actions


@mutant("worker", "next_ask")
def the_request_number_stays(original, state, done, salt):
    after, actions = original(state, done, salt)
    ask = replace(after.ask, request=state.request)
    return replace(after, request=state.request, ask=ask), tuple(replace(a, message=ask) for a in actions)


@mutant("drawing", "divided")
def a_division_leaves_out_a_group(original, now, workers):
    return original(now, workers)[:-1]


@mutant("drawing", "divided")
def groups_of_a_division_overlap(original, now, workers):
    groups = original(now, workers)
    joined = [tuple(sorted({*a, b[0]})) for a, b in pairwise(groups)]
    return (*joined, *groups[-1:])


@mutant("drawing", "fast_enough")
def the_filter_lets_everybody_in(original, now, workers):
    return workers


@mutant("drawing", "fast_enough")
def the_filter_is_off_by_one(original, now, workers):
    counts = tuple(c - (w != now.initiator) for w, c in enumerate(now.counts))
    return original(replace(now, counts=counts), workers)


@mutant("drawing", "is_slow_worker")
def every_slow_worker_starts_a_division(original, now):
    return False


@mutant("drawing", "partners")
def the_last_rank_is_never_a_partner(original, now):
    return [w for w in original(now) if w != len(now.counts) - 1]


@mutant("drawing", "draw")
def a_skipped_worker_is_skipped_for_ever(original, now):
    return original(replace(now, alone=0))


@mutant("drawing", "inter")
def heads_and_others_are_mixed(original, now, workers):
    return Drawing.divided(original.__self__, now, workers)


@mutant("drawing", "intra")
def intra_groups_span_nodes(original, now, workers):
    return (tuple(sorted(workers)),) if len(workers) > 1 else ()


@mutant("drawing", "all_of")
def a_meeting_leaves_out_the_last_worker(original, now, workers):
    return original(now, workers - {max(workers)} if now.due else workers)


@mutant("drawing", "node_then_all")
def only_idle_workers_meet(original, now):
    return original(replace(now, alive=now.idle) if now.due else now)


@mutant("drawing", "node_then_all")
def node_groups_wait_for_busy_workers(original, now):
    return original(now if now.due else replace(now, idle=now.alive))


@mutant("locking", "started")
def a_group_starts_when_its_first_member_could(original, state):
    begun = []
    for group in state.groups:
        if not group.running and state.buffers[group.members[0]][:1] == (group.seq,):
            running = replace(group, active=group.members)
            state = replace(
                state,
                groups=tuple(running if other.seq == group.seq else other for other in state.groups),
                buffers=tuple(tuple(s for s in buffer if s != group.seq) for buffer in state.buffers),
                locks=tuple(bit or w in group.members for w, bit in enumerate(state.locks)),
            )
            begun.append(running)
    return state, tuple(begun)


@mutant("locking", "released")
def a_release_clears_every_lock_bit(original, state, worker):
    after = original(state, worker)
    return replace(after, locks=(False,) * len(after.locks))


@mutant("generator", "served")
def the_last_member_is_not_told_that_its_group_runs(original, state):
    after, actions = original(state)
    grants = [a for a in actions if isinstance(a, Send) and isinstance(a.message, Grant)]
    untold = [a for a in grants if a.to == a.message.members[-1]]
    return after, tuple(a for a in actions if a not in untold)


@mutant("generator", "handle")
def a_repeated_request_stands_in_the_queue_twice(original, state, source, message):
    after, actions = original(state, source, message)
    if isinstance(message, Ask) and message.request == state.requests[source] and source in after.waiting:
        after = replace(after, waiting=(*after.waiting, source))
    return after, actions


@mutant("generator", "drawn")
def a_draw_empties_the_queue(original, state, worker, ask):
    return replace(original(state, worker, ask), waiting=())


@mutant("worker", "received")
def an_old_grant_is_used_again(original, worker, state, source, message):
    if isinstance(message, Grant):
        message = replace(message, request=state.request)
    return original(worker, state, source, message)


@mutant("worker", "if_complete")
def a_worker_leaves_when_one_other_has_come(original, worker, state):
    here = {member for seq, member in state.here if seq == state.seq}
    if here:
        state = replace(state, here=tuple(sorted({(state.seq, m) for m in state.members} | set(state.here))))
    return original(worker, state)


@mutant("worker", "entered")
def the_last_member_never_hears_who_entered(original, worker, state, salt):
    last = state.members[-1]
    after, actions = original(worker, state, salt)
    return after, tuple(
        a for a in actions if not (isinstance(a, Send) and a.to == last and isinstance(a.message, Here))
    )


@mutant("drawing", "draw")
def a_division_takes_busy_workers(original, now):
    return original(replace(now, idle=now.alive))


def killer_of(name):
    """What kills a bug: (property or law, configuration), None if nothing does."""
    if MUTANTS[name][0] == "drawing":
        setting = divided((0, 0, 1, 1, 1))
        inter_intra, meets = smart((0, 0, 1, 1), 2), meeting((0, 0, 1, 1), 2)
        for chosen in (setting, replace(setting, slow_threshold=2), inter_intra, random((0, 0, 1, 1)), meets):
            drawing = Drawing(chosen)
            _, method, change = MUTANTS[name]
            setattr(drawing, method, functools.partial(change, getattr(drawing, method)))
            law = broken_law(drawing)
            if law is not None:
                return law, f"{chosen.division} draw of {chosen.num_workers}"
    for configuration in KILLERS:
        try:
            found = configuration.run(seeded(configuration.machine, name))
        except (AssertionError, StopIteration, KeyError, IndexError) as error:
            return f"breaks the machine: {type(error).__name__}", configuration.name
        for finding in found.findings:
            if finding.verdict == "fails":
                return finding.name, configuration.name
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_seeded_bug_is_killed(name):
    assert killer_of(name) is not None


def test_there_are_thirty_bugs_and_the_page_lists_each():
    page = (Path(__file__).parents[3] / "benchmarks" / "results" / "seeded_bugs.md").read_text(encoding="utf-8")
    assert len(MUTANTS) >= 30
    assert [name for name in MUTANTS if f"| {name} |" not in page] == []


@pytest.mark.parametrize("configuration", KILLERS, ids=lambda c: c.name)
def test_the_unchanged_system_survives_what_kills_the_bugs(configuration):
    assert configuration.run().require().holds


def test_a_group_that_broke_is_not_taken_for_met():
    """The explorer cannot see this one: who is told so has the mean, which a member may have whom nobody told."""
    worker = GroupWorker(2, rounds=2)
    state, _ = worker.start(0, None, breaks=1)
    state, _ = worker.received(0, state, 2, Grant(0, 0, 7, (0, 1)))
    state, actions = worker.step(0, state, Broke())
    assert [note.what[0] for note in actions if isinstance(note, Note)] == ["broken"]
    assert [(a.message.done, a.message.failed) for a in actions if isinstance(a, Send)] == [(7, True)]
    _, actions = worker.received(0, state, 1, Here(7))
    assert actions == ()
