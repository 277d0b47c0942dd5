"""Hop's worker in every interleaving: properties hold, bounds are attained, and all seeded bugs are found."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.explore.explorer import explore
from benchmarks.explore.hop import LARGE, SMALL, both_ways, exact_bounds, is_tight, ring
from benchmarks.explore.reductions import Hop
from benchmarks.explore.search import NoDeadlock, Progress
from benchmarks.explore.system import Network
from helpers.seeded import Bugs, brings, sends
from partreduce.schedulers.protocols.base import Send
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import (
    ENTERING,
    REDUCING,
    Ack,
    Advance,
    HopState,
    Reduce,
    SendUpdate,
    Token,
    Update,
)
from partreduce.strategies import IterationGap, SkipPolicy

STATES = {
    "skips up to 2, staleness 1, tokens max_ig 3, ring of 3": 39_499,
    "tokens max_ig 1, undirected ring of 4": 41_152,
    "staleness 1, ring of 5": 105_464,
    "NOTIFY-ACK, ring of 5": 53_856,
}


@pytest.mark.parametrize("configuration", SMALL, ids=lambda c: c.name)
def test_all_properties_hold_and_the_bound_is_attained(configuration, record_property):
    found = configuration.run()
    record_property("states", found.states)
    assert found.holds, found
    assert is_tight(configuration, found)
    assert found.states == STATES.get(configuration.name, found.states)


def test_configuration_names_are_unique():
    assert len({c.name for c in SMALL + LARGE}) == len(SMALL + LARGE)
    assert {c.name for c in SMALL} >= set(STATES)


@pytest.mark.parametrize(
    "setting", [IterationGap(), IterationGap(max_ig=2), IterationGap(staleness=1, max_ig=1)], ids=str
)
def test_delays_and_fine_steps_do_not_change_the_gaps(setting):
    graph = ring(3)
    delayed = explore(Hop(graph, setting))
    fine = explore(Hop(graph, setting, fine=True))
    at_once = explore(Hop(graph, setting), network=Network(delay=False))
    assert delayed.gaps == fine.gaps == at_once.gaps == exact_bounds(graph, setting)
    assert at_once.states < delayed.states < fine.states


def test_every_worker_makes_progress_under_fairness():
    machine = Hop(ring(3), IterationGap(max_ig=1))
    goals = [
        Progress(f"worker {w} continues", lambda label, w=w: label.verb == "step" and label.process == w)
        for w in range(3)
    ]
    assert explore(machine, properties=(NoDeadlock(), *goals)).holds


def test_skip_limited_only_by_tokens_deadlocks():
    """Skipping past waiting out-neighbors, as section 5's max_jump = min(tokens) allows, ends in a deadlock."""

    class Passing(Hop):
        def _jump(self, process, state):
            more = replace(state, tokens=tuple(t + self.setting.max_ig for t in state.tokens))
            return super()._jump(process, more)

    setting = IterationGap(max_ig=3, backup=(1, 0, 0), skip=SkipPolicy(limit=3))
    machine = Passing(both_ways(3), setting)
    finding = explore(machine, network=Network(delay=False)).finding("no deadlock")
    assert finding.verdict == "fails"
    assert len(finding.trace.steps) == 3
    assert "Advance(by=" in str(finding.trace)
    assert explore(Hop(both_ways(3), setting), network=Network(delay=False)).holds


def test_lost_update_deadlocks_with_a_trace():
    found = explore(Hop(ring(2), IterationGap()), network=Network(losses=1))
    trace = str(found.finding("no deadlock").trace)
    assert "is lost" in trace


def test_survivors_of_a_crash_stop_at_the_gap_bound():
    machine = Hop(ring(4), IterationGap(max_ig=2))
    found = explore(machine, network=Network(delay=False, crashes=1), symmetry=False)
    finding = found.finding("no deadlock")
    assert finding.verdict == "fails"
    assert [step.verb for step in finding.trace.steps].count("crash") == 1
    crashed = finding.trace.end.processes.index(None)
    bounds = exact_bounds(machine.graph, machine.setting)
    # The shortest run crashes a worker in step 0, and all others run until they wait for it.
    ends = {w: state.step for w, state in enumerate(finding.trace.end.processes) if w != crashed}
    assert ends == {w: bounds[w][crashed] for w in ends}


# Bugs seeded in Hop's worker, each a machine that differs in one decision: the explorer finds all of them


BUGS = bug = Bugs(Hop, HopState)
PAGE = Path(__file__).parents[3] / "benchmarks" / "results" / "seeded_bugs.md"


def plus(tokens, by=1):
    return tuple(t + by for t in tokens)


def after_event(kind, change):
    """Change the state after events of one kind only."""
    return lambda now, was, event: change(now, was, event) if isinstance(event, kind) else now


def after_skip(change):
    return lambda now, was, event: change(now, was) if isinstance(event, Advance) and event.by > 1 else now


def give_tokens_to_one(machine, original, process, state, event):
    after, actions = original(process, state, event)
    first = machine.graph.sources[process][0]
    return after, tuple(a for a in actions if not sends(a, Token) or a.to == first)


def acknowledge_early(machine, original, process, state, event):
    after, actions = original(process, state, event)
    if isinstance(event, Reduce):
        actions = ()
    if machine.setting.notify_ack and brings(event, Update):
        actions = (Send(event.source, Ack()),)
    return after, actions


def skip_one_too_far(machine, original, process, state):
    by = original(process, state)
    return by + 1 if by and by == machine.setting.skip.limit and machine._served(process, state, by + 1) else by


def skip_two_too_soon(machine, original, process, state):
    skip = machine.setting.skip
    if skip is None or skip.trigger == 2 or not state.tokens:
        return original(process, state)
    may = min(state.tokens) >= machine.setting.max_ig + 2 and machine._served(process, state, 2)
    return original(process, state) or (2 if may else 0)


def skip_from_too_near(machine, _, process, state):
    eager = replace(machine.setting, skip=machine.setting.skip and replace(machine.setting.skip, behind=2))
    return Hop(machine.graph, eager, fine=machine.fine)._jump(process, state)


def skip_smallest(machine, original, process, state):
    by = original(process, state)
    return min((b for b in range(2, by) if machine._served(process, state, b)), default=by)


def send_skipped_update(machine, original, process, state, event):
    after, actions = original(process, state, event)
    if isinstance(event, Advance) and event.by > 1:
        late = tuple(Send(v, Update(after.step - 1)) for v in machine.graph.targets[process])
        actions = (*late, *actions) if machine._split else (*actions, *late)
    return after, actions


def drop_update_after_skip(machine, original, process, state, event):
    after, actions = original(process, state, event)
    if isinstance(event, Advance) and event.by > 1 and machine._split:
        after = replace(after, stage=REDUCING)
    elif isinstance(event, Advance) and event.by > 1:
        actions = tuple(a for a in actions if not sends(a, Update))
    return after, actions


# fmt: off
bug("start", "Token queues start with max_ig + 1 tokens.", left=lambda now, _: replace(now, tokens=plus(now.tokens)))
bug("start", "Token queues start with max_ig − 1 tokens.",
    left=lambda now, _: replace(now, tokens=plus(now.tokens, -1)))
bug("ready", "A worker may owe one token when it enters a step.", seen=lambda s: replace(s, tokens=plus(s.tokens)))
bug("step", "A worker that skips d steps gives 1 token instead of d.",
    emits=lambda actions: tuple(Send(a.to, Token(1)) if sends(a, Token) else a for a in actions))
bug("step", "The tokens of a step go to the first in-neighbor only.",
    instead=give_tokens_to_one)
bug("step", "Entering a step takes no token out of the queues.",
    left=after_event(Advance, lambda now, was, _: replace(now, tokens=was.tokens)))
bug("step", "A skip of d steps takes 1 token instead of d.",
    left=after_event(Advance, lambda now, was, _: replace(now, tokens=plus(was.tokens, -1))))
bug("_queued", "An update that is too old joins the queue as if it were the oldest that serves.",
    instead=lambda m, original, p, s, source, step: original(p, s, source, max(step, s.step - m.setting.staleness)))
bug("_served", "Updates of step k − s − 1 still serve in step k.",
    instead=lambda m, original, p, s, by: (by == 1 and s.step > 0 and m.setting.staleness > 0) or original(p, s, by))
bug("_served", "A worker reduces when one in-neighbor's update is still missing.",
    instead=lambda m, _, p, s, by: sum(1 for queue in s.updates if queue >> (by - 1)) >= m._needed[p] - 1)
bug("_served", "Backup workers are waited for all the same.",
    instead=lambda m, original, p, s, by:
        original(p, s, by) if m.setting.staleness else all(queue >> (by - 1) & 1 for queue in s.updates))
bug("step", "Entering a step does not take the used updates out of the queues.",
    left=after_event(Advance, lambda now, was, _: replace(now, updates=was.updates)))
bug("step", "Entering a step throws away updates that came early.",
    left=after_event(Advance, lambda now, was, _: replace(now, updates=(0,) * len(was.updates))))
bug("_updates_to", "An update is tagged with the next step.", seen=lambda s: replace(s, step=s.step + 1))
bug("_updates_to", "The last out-neighbor gets no update when there are two.",
    instead=lambda _, original, p, s: original(p, s)[:1])
bug("step", "NOTIFY-ACK: an update is acknowledged when it arrives, before it is reduced.", instead=acknowledge_early)
bug("step", "NOTIFY-ACK: the acknowledgement of the last update is not waited for again.",
    left=after_event(SendUpdate, lambda now, *_: replace(now, acked=(True,) * len(now.acked))))
bug("step", "NOTIFY-ACK: no worker acknowledges.",
    emits=lambda actions: tuple(a for a in actions if not sends(a, Ack)))
bug("_jump", "A worker skips one step more than its limit.", instead=skip_one_too_far)
bug("_served", "A worker skips ahead without the updates that renew its parameters.",
    instead=lambda _, original, p, s, by: by > 1 or original(p, s, by))
bug("step", "In fine steps a worker enters the next step right after it has sent.",
    left=after_event(SendUpdate, lambda now, *_: replace(now, stage=ENTERING)))
bug("_jump", "A worker skips as far as its tokens reach, past all who wait for its updates.",
    instead=lambda m, original, p, s: original(p, replace(s, tokens=plus(s.tokens, m.setting.max_ig or 0))))
bug("_jump", "A worker skips to its fastest out-neighbor, past a slower one.",
    seen=lambda s: replace(s, tokens=(max(s.tokens, default=0),) * len(s.tokens)))
bug("_jump", "A worker skips one step past its slowest out-neighbor.",
    seen=lambda s: replace(s, tokens=plus(s.tokens)))
bug("_jump", "A worker skips by fewer steps than the trigger asks for.", instead=skip_two_too_soon)
bug("_jump", "A worker skips before it is as far behind as the condition to jump asks for.",
    instead=skip_from_too_near)
bug("_jump", "A worker skips by as few steps as it may.", instead=skip_smallest)
bug("_jump", "A worker left behind continues step by step.", instead=lambda *_: 0)
bug("step", "After a skip the queues stand as after one step.",
    left=after_skip(lambda now, was: replace(now, updates=tuple(queue >> 1 for queue in was.updates))))
bug("step", "A worker sends the update of a step that it skipped.", instead=send_skipped_update)
bug("step", "The update of the step that a skip leads to is not sent.", instead=drop_update_after_skip)
bug("step", "A reduce averages what the one before it has averaged.",
    left=after_event(Reduce, lambda now, was, _: replace(now, fresh=was.fresh)))
bug("step", "What was averaged before a skip is averaged after it.",
    left=after_skip(lambda now, was:
        replace(now, fresh=tuple(f and q > 0 for f, q in zip(was.fresh, now.updates, strict=False)))))
bug("step", "What comes between reducing and entering is never averaged.",
    left=after_event(Advance, lambda now, *_: replace(now, fresh=(False,) * len(now.fresh))))
bug("_used", "Before a skip by several steps a worker averages updates that serve in its old step only.",
    instead=lambda _, original, p, s, by: original(p, s, 1))
# fmt: on


@pytest.mark.parametrize("description", BUGS)
def test_seeded_bug_is_killed(description):
    """The property, configuration and number of steps match its row on the page."""
    (row,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {description} | ")]
    _, killer, name, steps = row.strip("| ").split(" | ")
    (configuration,) = [one for one in SMALL if one.name == name]
    found = replace(configuration, symmetry=False, max_states=25_000).run(configuration.of(BUGS[description][0]))
    finding = found.finding(killer)
    assert (finding.verdict, str(len(finding.trace.steps) or "–")) == ("fails", steps)
    assert len(BUGS) == 35


# Hop's token queues against a Promela model in Spin, and against a second search without queues


MODEL = Path(__file__).parents[3] / "benchmarks" / "explore" / "models" / "hop_tokens.pml"
CONFIGURATIONS = [  # workers, offsets of the targets, max_ig
    (2, (1,), 1), (2, (1,), 2), (2, (1,), 3), (2, (1,), 4), (3, (1,), 1), (3, (1,), 2), (3, (2,), 1), (3, (1,), 3),
    (4, (1,), 1), (4, (3,), 1), (3, (1, 2), 1),
]  # fmt: skip
LARGER = [(3, (1, 2), 2), (4, (1, 3), 1)]


def explore_states(n, offsets, max_ig):
    graph = Digraph.of(n, [(v, (v + offset) % n) for v in range(n) for offset in offsets])
    found = explore(Hop(graph, IterationGap(max_ig=max_ig)), symmetry=False)
    assert found.holds
    return found.states


def second_search(n, offsets, max_ig):
    """Count reachable states from the paper alone: steps, and the updates and tokens that each link has delivered.

    A worker sends an update when it enters a step, then tokens. The messages in flight on a link therefore follow from
    the sender's step and the two counts, and the next one is a token if more tokens than updates are in flight.
    """
    edges = {(u, (u + offset) % n) for u in range(n) for offset in offsets}
    lines = sorted(edges | {(v, u) for u, v in edges})

    def normal(steps, updates, tokens):
        low = min(steps)
        return (
            tuple(s - low for s in steps),
            tuple(k - low if line in edges else 0 for k, line in zip(updates, lines, strict=True)),
            tuple(k - low if line[::-1] in edges else 0 for k, line in zip(tokens, lines, strict=True)),
        )

    def following(steps, updates, tokens):
        for place, line in enumerate(lines):
            waiting_updates = steps[line[0]] + 1 - updates[place] if line in edges else 0
            waiting_tokens = steps[line[0]] - tokens[place] if line[::-1] in edges else 0
            if waiting_tokens > waiting_updates:
                yield steps, updates, plus_one(tokens, place)
            elif waiting_updates:
                yield steps, plus_one(updates, place), tokens
        for w in range(n):
            served = all(updates[lines.index((u, w))] > steps[w] for u in range(n) if (u, w) in edges)
            paid = all(max_ig + tokens[lines.index((v, w))] > steps[w] for v in range(n) if (w, v) in edges)
            if served and paid:
                yield plus_one(steps, w), updates, tokens

    start = ((0,) * n, (0,) * len(lines), (0,) * len(lines))
    seen, frontier = {start}, [start]
    while frontier:
        for state in (normal(*after) for after in following(*frontier.pop())):
            if state not in seen:
                seen.add(state)
                frontier.append(state)
    return len(seen)


def plus_one(values, place):
    return (*values[:place], values[place] + 1, *values[place + 1 :])


@pytest.mark.parametrize(("n", "offsets", "max_ig"), CONFIGURATIONS)
def test_second_search_counts_the_same_states(n, offsets, max_ig):
    assert second_search(n, offsets, max_ig) == explore_states(n, offsets, max_ig)


@pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None,
    reason="Spin (Debian package spin) and gcc run the Promela model; one of them is not installed",
)
@pytest.mark.parametrize(("n", "offsets", "max_ig"), CONFIGURATIONS + LARGER)
def test_spin_counts_the_same_states(n, offsets, max_ig, tmp_path):
    sizes = [f"-DN={n}", f"-DDEG={len(offsets)}", f"-DO1={offsets[0]}", f"-DO2={offsets[-1]}", f"-DMAXIG={max_ig}"]
    subprocess.run(["spin", "-a", *sizes, str(MODEL)], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    build = ["gcc", "-O0", "-w", "-DNOREDUCE", "-DSAFETY", "-DNOFAIR", "-o", "pan", "pan.c"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    run = subprocess.run(
        ["./pan", "-m1000000", "-w20"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    assert "errors: 0" in run.stdout, run.stdout
    stored = int(re.search(r"(\d+) states, stored", run.stdout)[1])
    assert stored - 1 == explore_states(n, offsets, max_ig)  # the state before `setup` is Spin's alone
