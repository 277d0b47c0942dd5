"""Folding symmetric states keeps one of each orbit, neither more nor fewer: against orbits computed independently."""

from dataclasses import replace
from itertools import combinations

import pytest

from benchmarks.explore import hop, pairing
from benchmarks.explore.explorer import FailStop, Network
from benchmarks.explore.hop import both_ways
from benchmarks.explore.reductions import Hop, automorphisms
from helpers.orbits import fold_problem, renamings
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.strategies import IterationGap

HOP = [hop.FACTORS.configuration(row) for row in hop.FACTORS.rows(2) if hop.FACTORS.growth(row) <= 2000]
PAIRING = [pairing.FACTORS.configuration(row) for row in pairing.FACTORS.rows(3) if pairing.FACTORS.growth(row) <= 20]
UNEVEN = IterationGap(backup=(1, 0, 1), max_ig=1)


def problem_of_hop(configuration, kind=Hop):
    machine = configuration.of(kind)
    graph, setting = machine.graph, machine.setting
    wrapped = FailStop(machine) if configuration.network.suspicions else machine
    return fold_problem(wrapped, graph, setting.backups(graph.num_workers), configuration.network)


@pytest.mark.parametrize("configuration", [c for c in HOP if c.symmetry], ids=lambda c: c.name)
def test_folded_states_of_hop_are_the_orbits(configuration):
    assert problem_of_hop(configuration) is None


@pytest.mark.parametrize("configuration", [c for c in PAIRING if c.symmetry], ids=lambda c: c.name)
def test_folded_states_of_the_pairing_are_the_orbits(configuration):
    machine = configuration.machine
    assert fold_problem(configuration.explored().machine, machine.graph, machine.roles, configuration.network) is None


def test_backup_workers_break_the_symmetry():
    """Folded by all automorphisms of the graph the 2,955 states were 1,498, and some of those cannot be reached."""

    class Blind(Hop):
        def symmetries(self):
            return automorphisms(self.graph, (0,) * self.graph.num_workers)

    graph = both_ways(3)
    assert fold_problem(Hop(graph, UNEVEN), graph, UNEVEN.backups(3), Network()) is None
    assert fold_problem(Blind(graph, UNEVEN), graph, UNEVEN.backups(3), Network()) is not None


def test_a_renaming_that_forgets_acknowledgements_is_noticed():
    class Forgetful(Hop):
        def renamed(self, process, state, permutation):
            return replace(super().renamed(process, state, permutation), acked=state.acked)

    problems = [problem_of_hop(c, Forgetful) for c in HOP if c.symmetry and c.machine.setting.notify_ack]
    assert any(problems)


@pytest.mark.parametrize("num_workers", [2, 3])
def test_automorphisms_are_those_that_trying_all_permutations_finds(num_workers):
    """Over every directed graph of two and of three workers, with even and uneven labels."""
    pairs = [(u, v) for u in range(num_workers) for v in range(num_workers) if u != v]
    for size in range(len(pairs) + 1):
        for edges in combinations(pairs, size):
            graph = Digraph.of(num_workers, edges)
            for labels in ((0,) * num_workers, (0, 1, 0)[:num_workers]):
                assert set(automorphisms(graph, labels)) == set(renamings(graph, labels))
