"""Hop's worker through every interleaving: all properties hold, every bound is attained."""

from dataclasses import replace

import pytest

from benchmarks.explore.explorer import Network, NoDeadlock, Progress, explore
from benchmarks.explore.hop import LARGE, SMALL, both_ways, is_tight, ring
from benchmarks.explore.reductions import Hop
from partreduce.strategies import IterationGap, SkipPolicy
from partreduce.verify.gap_bounds import exact_bounds

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


def test_configurations_have_names_of_their_own():
    assert len({c.name for c in SMALL + LARGE}) == len(SMALL + LARGE)
    assert {c.name for c in SMALL} >= set(STATES)


@pytest.mark.parametrize(
    "setting", [IterationGap(), IterationGap(max_ig=2), IterationGap(staleness=1, max_ig=1)], ids=str
)
def test_late_messages_and_fine_steps_reach_the_same_gaps_as_messages_at_once(setting):
    graph = ring(3)
    delayed = explore(Hop(graph, setting))
    fine = explore(Hop(graph, setting, fine=True))
    at_once = explore(Hop(graph, setting), network=Network(delay=False))
    assert delayed.gaps == fine.gaps == at_once.gaps == exact_bounds(graph, setting)
    assert at_once.states < delayed.states < fine.states


def test_folding_symmetric_states_changes_no_answer():
    for graph in (ring(4), both_ways(3)):
        machine = Hop(graph, IterationGap(max_ig=1))
        folded, full = explore(machine), explore(machine, symmetry=False)
        assert folded.holds
        assert full.holds
        assert folded.gaps == full.gaps
        assert full.states / len(machine.symmetries()) <= folded.states < full.states


def test_every_worker_goes_on_for_ever_under_fairness():
    machine = Hop(ring(3), IterationGap(max_ig=1))
    goals = [
        Progress(f"worker {w} goes on", lambda label, w=w: label.verb == "step" and label.process == w)
        for w in range(3)
    ]
    assert explore(machine, properties=(NoDeadlock(), *goals)).holds


def test_a_skip_as_far_as_tokens_reach_leaves_others_waiting_for_ever():
    """Passing those who wait for one's updates, as section 5's max_jump = min(tokens) allows, ends in a deadlock."""

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


def test_lost_update_deadlocks_and_the_trace_names_it():
    found = explore(Hop(ring(2), IterationGap()), network=Network(losses=1))
    trace = str(found.finding("no deadlock").trace)
    assert "is lost" in trace


def test_after_a_crash_the_others_stop_where_the_bound_says():
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


def test_skip_needs_tokens_and_moves_as_many():
    machine = Hop(ring(3), IterationGap(max_ig=2, staleness=1, skip=SkipPolicy(limit=2)))
    found = explore(machine)
    assert found.holds
    assert found.gaps == exact_bounds(machine.graph, machine.setting)
