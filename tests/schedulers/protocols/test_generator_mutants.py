"""Bugs seeded in the group generator, each one changed decision: the explorer or a law of the draw finds all of them.

benchmarks/results/seeded_bugs.md lists them with the property that kills each.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.explore.generator import SMALL, generator, meeting, random, smart, split_globally
from benchmarks.explore.reductions import GroupSystem
from benchmarks.explore.system import Network
from helpers.group_draw_invariants import broken_law
from helpers.seeded import PartBugs, put, sends
from partreduce.schedulers.protocols.base import Send
from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers
from partreduce.schedulers.protocols.group_generator.draw import Drawing, Situation
from partreduce.schedulers.protocols.group_generator.service import Ask, Bye, GeneratorState, Grant, GroupGenerator
from partreduce.schedulers.protocols.group_generator.worker import Here, WorkerState

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
    generator("divided 3, one crash, 1 round", GroupSystem(split_globally((0, 0, 0)), rounds=1),
              Network(crashes=1, detect=True)),
    generator("inter/intra 3, crash, 1 round", GroupSystem(smart((0, 0, 1)), rounds=1),
              Network(crashes=1, detect=True)),
    generator("divided 3, broken once, 1 round",
              GroupSystem(split_globally((0, 0, 0), 3), rounds=1, breakers=(0,))),
)  # fmt: skip
PAGE = (Path(__file__).parents[3] / "benchmarks" / "results" / "seeded_bugs.md").read_text(encoding="utf-8")
MUTANTS = mutant = PartBugs(GroupBuffers, GeneratorState, WorkerState, Situation)


def skip_last_lock_bit(original, state):
    after, begun = original(state)
    missed = {group.members[-1] for group in begun}
    return replace(after, locks=tuple(bit and w not in missed for w, bit in enumerate(after.locks))), begun


def free_all_members(original, state, worker):
    group = state.running_of(worker)
    if group is None:
        return state
    locks = tuple(bit and w not in group.members for w, bit in enumerate(state.locks))
    return replace(original(state, worker), locks=locks)


def keep_finished_group(original, state, worker):
    group = state.running_of(worker)
    after = original(state, worker)
    if group is None or any(other.seq == group.seq for other in after.groups):
        return after
    return replace(after, groups=tuple(sorted((*after.groups, replace(group, active=())), key=lambda g: g.seq)))


def shrink_groups(_, state, worker):
    for seq in state.buffers[worker]:
        group = state.group(seq)
        rest = replace(group, members=tuple(w for w in group.members if w != worker))
        buffers = tuple(tuple(s for s in b if s != seq) if w == worker else b for w, b in enumerate(state.buffers))
        state = replace(state, groups=tuple(rest if g.seq == seq else g for g in state.groups), buffers=buffers)
    return state


class EqualToAll(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def report_as_done(original, state, salt):
    after, actions = original(state, salt)
    ask = replace(after.ask, failed=False)
    return replace(after, ask=ask), (*actions[:-1], replace(actions[-1], message=ask))


def answer_bye(original, state, worker):
    answer = original(state, worker)
    has_left = isinstance(answer, Grant) and state.status[worker] == "left"
    return Bye(answer.generation, answer.request) if has_left else answer


def grant_early(original, state, worker):
    answer = original(state, worker)
    if answer is None:
        group = state.buffers.group(state.buffers.buffers[worker][0])
        return Grant(state.generation, state.requests[worker], group.seq, group.members)
    return answer


def start_one_at_a_time(original, state):
    buffers = state.buffers
    if not any(buffers.locks):
        return original(state)
    locking_off = replace(buffers, groups=tuple(g for g in buffers.groups if g.running))
    after, actions = original(replace(state, buffers=locking_off))
    return replace(after, buffers=replace(after.buffers, groups=buffers.groups)), actions


def reuse_request_number(original, state, done, salt):
    after, actions = original(state, done, salt)
    ask = replace(after.ask, request=state.request)
    return replace(after, request=state.request, ask=ask), tuple(replace(a, message=ask) for a in actions)


def overlap_groups(original, now, workers):
    groups = original(now, workers)
    return (*(tuple(sorted({*a, b[0]})) for a, b in pairwise(groups)), *groups[-1:])


def start_by_the_first(_, state):
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


def complete_with_one_arrival(state):
    if {member for seq, member in state.here if seq == state.seq}:
        return replace(state, here=tuple(sorted({(state.seq, m) for m in state.members} | set(state.here))))
    return state


def skip_last_member(original, worker, state, salt):
    after, actions = original(worker, state, salt)
    return after, tuple(a for a in actions if not (sends(a, Here) and a.to == state.members[-1]))


# fmt: off
mutant("locking", "started", "starting sets no lock bit", left=lambda now, was: replace(now, locks=was.locks))
mutant("locking", "started", "starting forgets the bit of the last member", instead=skip_last_lock_bit)
mutant("locking", "started", "a group starts when its first member could", instead=start_by_the_first)
mutant("locking", "can_start", "lock vector is not looked at", instead=lambda _, s, group:
    not group.running and all(s.buffers[worker][:1] == (group.seq,) for worker in group.members))
mutant("locking", "can_start", "a group may overtake in one buffer", instead=lambda _, s, group: not group.running
    and s.buffers[group.members[0]][:1] == (group.seq,) and not any(s.locks[w] for w in group.members))
mutant("locking", "queued", "pushes go to the front of the buffer", instead=lambda _, buffer, seq: (seq, *buffer))
mutant("locking", "pushed", "one member is not told of its group", left=lambda now, was, members:
    replace(now, buffers=put(now.buffers, members[-1], was.buffers[members[-1]])))
mutant("locking", "pushed", "sequence number is used twice",
    left=lambda now, was, _: replace(now, next_seq=was.next_seq) if now.next_seq == 2 else now)
mutant("locking", "released", "release keeps the lock bit", left=lambda now, was, _: replace(now, locks=was.locks))
mutant("locking", "released", "first member that is done frees all", instead=free_all_members)
mutant("locking", "released", "finished groups stay", instead=keep_finished_group)
mutant("locking", "released", "a release clears every lock bit",
    left=lambda now, *_: replace(now, locks=(False,) * len(now.locks)))
mutant("locking", "withdrawn", "a worker that ends stays in its groups", instead=lambda _, s, __: s)
mutant("locking", "withdrawn", "groups shrink to one member", instead=shrink_groups)
mutant("locking", "voided", "lock bits of a lost group stay", left=lambda now, was, _: replace(now, locks=was.locks))
mutant("locking", "voided", "only unfinished groups of a lost worker are void",
    instead=lambda original, s, w: original(s, w) if s.running_of(w) is not None else (s, ()))
mutant("generator", "is_repeated", "a repeated request draws again",
    instead=lambda original, s, w, ask: False if ask.request else original(s, w, ask))
mutant("generator", "repeated", "a repeated request gets no answer", instead=lambda *_: ())
mutant("generator", "repeated", "a repeated answer carries the old generation", instead=lambda _, s, w:
    () if s.answers[w] is None else (Send(w, replace(s.answers[w], generation=-1)),))
mutant("generator", "following", "late requests count as new", instead=lambda _, request: EqualToAll(request + 1))
mutant("generator", "done", "done is not heard", instead=lambda _, s, *__: s)
mutant("generator", "done", "done with any group releases", instead=lambda original, s, w, ask:
    original(s, w, replace(ask, done=getattr(s.buffers.running_of(w), "seq", -1))))
mutant("generator", "failed", "a failed group counts as done",
    instead=lambda _, s, w, ask: (GroupGenerator(setting=random((0, 0))).done(s, w, ask), ()))
mutant("generator", "answer", "bye while a group waits", instead=answer_bye)
mutant("generator", "answer", "a grant before the group runs", instead=grant_early)
mutant("generator", "record_answer", "the answer is not remembered",
    left=lambda now, was, *_: replace(now, answers=was.answers))
mutant("generator", "record_answer", "an answered worker stays in the queue",
    left=lambda now, was, *_: replace(now, waiting=was.waiting))
mutant("generator", "served", "only the first in the queue is answered",
    seen=lambda s: replace(s, waiting=s.waiting[:1]),
    left=lambda now, was: replace(now, waiting=(*now.waiting, *was.waiting[1:])))
mutant("generator", "served", "groups start only when no worker is in one", instead=start_one_at_a_time)
mutant("generator", "served", "the last member is not told that its group runs", emits=lambda actions:
    tuple(a for a in actions if not (sends(a, Grant) and a.to == a.message.members[-1])))
mutant("generator", "notify_void", "members of a lost group are not told", instead=lambda *_: ())
mutant("generator", "notify_void", "only the first member of a lost group hears of it",
    instead=lambda original, *arguments: original(*arguments)[:1])
mutant("generator", "forgotten", "a void group is granted to a repeated request", instead=lambda _, s, __: s)
mutant("generator", "idle", "workers that left are idle", instead=lambda _, s, __:
    frozenset(w for w in range(len(s.status)) if not s.buffers.buffers[w]))
mutant("generator", "counted", "rounds are counted double", instead=lambda original, s, worker:
    tuple(c * 2 if w == worker else c for w, c in enumerate(original(s, worker))))
mutant("generator", "handle", "a repeated request stands in the queue twice", left=lambda now, was, source, message:
    replace(now, waiting=(*now.waiting, source)) if isinstance(message, Ask)
    and message.request == was.requests[source] and source in now.waiting else now)
mutant("generator", "drawn", "a draw empties the queue", left=lambda now, *_: replace(now, waiting=()))
mutant("worker", "handle_broken", "a failed group is reported as done", instead=report_as_done)
mutant("worker", "if_complete", "a worker leaves before all have come",
    seen=lambda s: replace(s, members=s.members[:1]))
mutant("worker", "if_complete", "a worker leaves when one other has come", seen=complete_with_one_arrival)
mutant("worker", "met_by", "a late member gets no answer", instead=lambda original, w, s, source, seq, *, answer:
    (s, ()) if seq <= s.met else original(w, s, source, seq, answer=answer))
mutant("worker", "met_by", "an early member is forgotten", instead=lambda original, w, s, source, seq, *, answer:
    (s, ()) if s.stage == "asked" and seq > s.met else original(w, s, source, seq, answer=answer))
mutant("worker", "next_ask", "the group is not reported",
    instead=lambda original, s, _, salt: original(s, -1, salt))
mutant("worker", "next_ask", "the request number stays", instead=reuse_request_number)
mutant("worker", "received", "an old grant is used again", instead=lambda original, w, s, source, message:
    original(w, s, source, replace(message, request=s.request) if isinstance(message, Grant) else message))
mutant("worker", "entered", "the last member never hears who entered", instead=skip_last_member)
mutant("drawing", "divided", "a division leaves out a group",
    instead=lambda original, *arguments: original(*arguments)[:-1])
mutant("drawing", "divided", "groups of a division overlap", instead=overlap_groups)
mutant("drawing", "fast_enough", "the filter lets everybody in", instead=lambda _, __, workers: workers)
mutant("drawing", "fast_enough", "the filter is off by one", seen=lambda now, _:
    replace(now, counts=tuple(c - (w != now.initiator) for w, c in enumerate(now.counts))))
mutant("drawing", "is_slow_worker", "every slow worker starts a division", instead=lambda *_: False)
mutant("drawing", "partners", "the last rank is never a partner", instead=lambda original, now:
    [w for w in original(now) if w != len(now.counts) - 1])
mutant("drawing", "draw", "a skipped worker is skipped for ever", seen=lambda now: replace(now, alone=0))
mutant("drawing", "draw", "a division takes busy workers", seen=lambda now: replace(now, idle=now.alive))
mutant("drawing", "inter", "heads and others are mixed", instead=lambda original, now, workers:
    Drawing.divided(original.__self__, now, workers))
mutant("drawing", "intra", "intra groups span nodes", instead=lambda _, __, workers:
    (tuple(sorted(workers)),) if len(workers) > 1 else ())
mutant("drawing", "all_of", "a meeting leaves out the last worker", instead=lambda original, now, workers:
    original(now, workers - {max(workers)} if now.due else workers))
mutant("drawing", "node_then_all", "only idle workers meet",
    seen=lambda now: replace(now, alive=now.idle) if now.due else now)
mutant("drawing", "node_then_all", "node groups wait for busy workers",
    seen=lambda now: now if now.due else replace(now, idle=now.alive))
# fmt: on


def killer_of(name, place):
    """Return the property or law that a bug violates in a configuration or draw, or None."""
    if MUTANTS[name][0] == "drawing":
        setting = split_globally((0, 0, 1, 1, 1))
        inter_intra, meets = smart((0, 0, 1, 1), 2), meeting((0, 0, 1, 1), 2)
        for chosen in (setting, replace(setting, slow_threshold=2), inter_intra, random((0, 0, 1, 1)), meets):
            if place == f"{chosen.division} draw of {chosen.num_workers}":
                drawing = Drawing(chosen)
                MUTANTS.seed(drawing, name)
                law = broken_law(drawing)
                if law is not None:
                    return law
    for configuration in KILLERS:
        if place == configuration.name:
            try:
                found = configuration.run(MUTANTS.seeded(configuration.machine, name))
            except (AssertionError, StopIteration, KeyError, IndexError) as error:
                return f"breaks the machine: {type(error).__name__}"
            return next((finding.name for finding in found.findings if finding.verdict == "fails"), None)
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_seeded_bug_is_killed(name):
    """The property or law and the configuration match the row on the page."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} | ")]
    _, part, killer, place = row.strip("| ").split(" | ")
    assert (part, killer) == (MUTANTS[name][0], killer_of(name, place))
    assert len(MUTANTS) == 59


@pytest.mark.parametrize("configuration", KILLERS, ids=lambda c: c.name)
def test_unchanged_system_passes_all_killer_configurations(configuration):
    assert configuration.run().require().holds
