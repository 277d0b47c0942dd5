"""Configurations of covering arrays: properties hold, seeded bugs fail, and folding keeps one state per orbit."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.explore import generator, hop, pairing
from benchmarks.explore.explorer import FailStop
from benchmarks.explore.generator import OVERTAKING
from benchmarks.explore.hop import both_ways
from benchmarks.explore.reductions import Hop, Pairing, automorphisms
from benchmarks.explore.system import Network
from helpers.orbits import fold_problem
from helpers.seeded import PartBugs, put, sends
from partreduce.schedulers.protocols.adpsgd import Choose
from partreduce.schedulers.protocols.base import Send
from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers
from partreduce.schedulers.protocols.group_generator.service import DEAD, Ask, Evicted, GeneratorState, Grant, Void
from partreduce.schedulers.protocols.group_generator.worker import ALONE, GroupWorker, WorkerState
from partreduce.strategies import GroupSplit, IterationGap, SlowWorkerPolicy


@pytest.mark.parametrize("configuration", generator.FACTORS.pairs(), ids=lambda c: c.name)
def test_group_generator_properties_hold_for_every_pair_of_factors(configuration):
    assert configuration.run().require().holds


@pytest.mark.parametrize("configuration", hop.FACTORS.pairs(), ids=lambda c: c.name)
def test_hop_properties_hold_for_every_pair_of_factors(configuration):
    found = configuration.run().require()
    assert found.holds
    assert configuration.network.suspicions or hop.is_tight(configuration, found)


@pytest.mark.parametrize("configuration", pairing.FACTORS.triples(), ids=lambda c: c.name)
def test_pairing_properties_hold_for_every_triple_of_factors(configuration):
    assert configuration.run().require().holds


BUGS = bug = PartBugs(GroupBuffers, GeneratorState, WorkerState)


def free_all_members(original, state, ended):
    after, ended = original(state, ended)
    freed = {member for group in ended for member in group.members}
    return replace(after, locks=tuple(bit and w not in freed for w, bit in enumerate(after.locks))), ended


def keep_generation(original, state, *arguments):
    """Return the same outcome with the generation of the previous state."""
    after, actions = original(state, *arguments)
    sent = (
        replace(a, message=replace(a.message, generation=state.generation)) if isinstance(a, Send) else a
        for a in actions
    )
    return replace(after, generation=state.generation), tuple(sent)


def drop_cost(original, state, done, salt, **facts):
    after, actions = original(replace(state, cost=0), done, salt, **facts)
    return replace(after, cost=state.cost), actions


def reactivate(original, state, source, message):
    if isinstance(message, Ask) and state.status[source] == DEAD:
        state = replace(state, status=put(state.status, source, "active"))
    return original(state, source, message)


# fmt: off
# Each bug with the property that it violates, and the row of that configuration.
RUNNING = "groups that workers are in are running"
LATE = {"division": GroupSplit.INTER_INTRA, "max_known": 1, "slow": SlowWorkerPolicy.DEFER, "wire": OVERTAKING}
SUSPECTED = {"division": GroupSplit.GLOBAL, "suspicions": 1}
bug("locking", "dissolved", "a dissolved group frees all its members", "no worker in two running groups",
    {"nodes": (0, 0, 0), "rounds": 2, "breakers": (1,)}, instead=free_all_members)
bug("generator", "failed", "the generation stays after a failed group", RUNNING, LATE | {"breakers": (1,)},
    instead=keep_generation)
bug("generator", "crashed", "the generation stays after a crash", RUNNING, LATE | {"crashes": 1},
    instead=keep_generation)
bug("generator", "crashed", "the generation stays after a false suspicion", RUNNING, LATE | {"suspicions": 1},
    instead=keep_generation)
bug("worker", "next_ask", "costs are reported once", "costs are known",
    {"division": GroupSplit.GLOBAL, "slow": SlowWorkerPolicy.DEFER}, instead=drop_cost)
bug("generator", "crashed", "a worker that is given up is not told", "no deadlock", SUSPECTED,
    emits=lambda actions: tuple(a for a in actions if not sends(a, Evicted)))
bug("worker", "received", "a worker does not hear that it was given up", "no deadlock", SUSPECTED,
    instead=lambda original, w, s, source, message:
        (s, ()) if isinstance(message, Evicted) else original(w, s, source, message))
bug("generator", "takes_part", "draws count on a worker that was given up",
    "groups have two members or more, all taking part", {"nodes": (0, 0, 0), "suspicions": 1},
    instead=lambda original, s, w: original(s, w) or s.status[w] == DEAD)
bug("generator", "handle", "a worker that was given up is heard again", "no deadlock", SUSPECTED, instead=reactivate)
# fmt: on


@pytest.mark.parametrize("name", BUGS)
def test_seeded_bug_fails_only_in_the_mutated_system(name):
    _, _, _, (prop, values) = BUGS[name]
    row = generator.FACTORS.row(**values)
    assert row in {*generator.FACTORS.rows(2), *generator.FACTORS.rows(3)}
    configuration = generator.FACTORS.configuration(row)
    assert configuration.run().require().holds
    found = configuration.run(BUGS.seeded(configuration.machine, name))
    assert prop in {finding.name for finding in found.findings if finding.verdict == "fails"}
    assert len(BUGS) == 9


def test_void_message_of_an_old_generation_still_applies():
    """The explorer found this bug in the protocol, in a system with four factors at once."""
    configuration = generator.TWO_VOIDS
    system = replace(configuration.machine)
    received = system.worker.received

    def deaf_to_older_voids(worker, state, source, message):
        stale = isinstance(message, Void) and message.generation < state.generation
        return (state, ()) if stale else received(worker, state, source, message)

    system.worker.received = deaf_to_older_voids
    found = configuration.run(system)
    assert found.finding("groups that workers are in are running").verdict == "fails"
    worker = GroupWorker(3, rounds=2)
    state, _ = worker.start(0, None)
    state, _ = worker.received(0, state, 3, Grant(0, 0, 7, (0, 1)))
    for message in (Void(2, 8), Void(1, 7)):
        state, _ = worker.received(0, state, 3, message)
    assert (state.stage, state.generation) == (ALONE, 2)


def test_request_between_active_workers_is_a_violation():
    class Bold(Pairing):
        def ready(self, process, state):
            asks = super().ready(process, state)
            return tuple(Choose(v) for v in self.graph.targets[process]) if asks else ()

    row = pairing.FACTORS.row(extra=True, wire=True)
    assert row in pairing.FACTORS.rows(3)
    configuration = pairing.FACTORS.configuration(row)
    assert configuration.run().require().holds
    found = configuration.run(configuration.of(Bold))
    assert found.finding("only who answers is asked").verdict == "fails"


def test_seeded_bugs_page_lists_every_bug():
    page = (Path(__file__).parents[3] / "benchmarks" / "results" / "seeded_bugs.md").read_text(encoding="utf-8")
    assert [name for name in BUGS if f"| {name} |" not in page] == []


# Folding symmetric states keeps exactly one state of each orbit: against independently computed orbits


HOP = [hop.FACTORS.configuration(row) for row in hop.FACTORS.rows(2) if hop.FACTORS.growth(row) <= 2000]
PAIRING = [pairing.FACTORS.configuration(row) for row in pairing.FACTORS.rows(3) if pairing.FACTORS.growth(row) <= 20]
UNEVEN = IterationGap(backup=(1, 0, 1), max_ig=1)


def hop_fold_problem(configuration, kind=Hop):
    machine = configuration.of(kind)
    graph, setting = machine.graph, machine.setting
    wrapped = FailStop(machine) if configuration.network.suspicions else machine
    return fold_problem(wrapped, graph, setting.backups(graph.num_workers), configuration.network)


@pytest.mark.parametrize("configuration", [c for c in HOP if c.symmetry], ids=lambda c: c.name)
def test_folded_states_of_hop_match_the_orbits(configuration):
    assert hop_fold_problem(configuration) is None


@pytest.mark.parametrize("configuration", [c for c in PAIRING if c.symmetry], ids=lambda c: c.name)
def test_folded_states_of_pairing_match_the_orbits(configuration):
    machine = configuration.machine
    assert fold_problem(configuration.explored().machine, machine.graph, machine.roles, configuration.network) is None


def test_backup_workers_break_the_symmetry():
    """Folding by all graph automorphisms gave 1,498 instead of 2,955 states, some of them unreachable."""

    class Blind(Hop):
        def symmetries(self):
            return automorphisms(self.graph, (0,) * self.graph.num_workers)

    graph = both_ways(3)
    assert fold_problem(Hop(graph, UNEVEN), graph, UNEVEN.backups(3), Network()) is None
    assert fold_problem(Blind(graph, UNEVEN), graph, UNEVEN.backups(3), Network()) is not None


def test_renaming_without_acknowledgements_is_detected():
    class Forgetful(Hop):
        def renamed(self, process, state, permutation):
            return replace(super().renamed(process, state, permutation), acked=state.acked)

    problems = [hop_fold_problem(c, Forgetful) for c in HOP if c.symmetry and c.machine.setting.notify_ack]
    assert any(problems)
