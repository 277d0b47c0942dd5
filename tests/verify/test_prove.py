"""prove: the claims, their witnesses, and the checker's agreement, on schedules small enough to follow by hand."""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.forgery.schedules import explicit, graph, shift
from partreduce import Cluster, Schedule, write_schedule
from partreduce.strategies import AllReduce, Block, Group, GroupPhases, RulePhases, StaticGroups
from partreduce.verify import Status, prove
from partreduce.verify.certificate import certificate_bytes

CHECKER = Path(__file__).parents[2] / "verify" / "checker"
ALL = Block((0, 1, 2, 3))


def figure_10(num_nodes):
    radices = (2, num_nodes // 2) if num_nodes > 2 else (2,)
    every = tuple(range(len(radices)))
    phases = (
        (Block((0,), every), Block((2, 3))),
        (ALL,),
        (Block((0, 3)), Block((1,), (0,))),
        (ALL,),
    )
    return Schedule("figure-10", Cluster.regular(num_nodes, 4), StaticGroups(phases=RulePhases(radices, phases)))


def expanded(schedule):
    phases = tuple(schedule.phase(t) for t in range(schedule.period))
    return Schedule(schedule.name, schedule.cluster, StaticGroups(phases=GroupPhases(phases)))


def run_checker(folder, schedule, certificate):
    """The checker as a stranger runs it: isolated, without site packages, in an empty environment."""
    write_schedule(folder / "s.json", schedule)
    (folder / "c.json").write_bytes(certificate_bytes(certificate))
    command = [sys.executable, "-I", "-S", CHECKER, folder / "c.json", folder / "s.json"]
    return subprocess.run(command, env={}, capture_output=True, text=True, check=False, timeout=60, cwd=os.sep)


def confirmed(folder, schedule):
    """The claims that both the prover and the checker say to hold, and in the same way."""
    proof = prove(schedule)
    result = run_checker(folder, schedule, proof.certificate)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assumed = {line for line in lines if line.startswith("assumed for ")}
    assert assumed == {f"assumed for {claim.claim}: {claim.assumes}" for claim in proof.claims if claim.assumes}
    said = {tuple(line.split(":")[:2]) for line in lines if line not in assumed}
    kinds = {Status.PROVED: " proved", Status.FACT: " fact", Status.FOLLOWS: " follows from the protocol's rules"}
    assert said == {(claim.claim, kinds[claim.status]) for claim in proof.claims if claim.holds}
    return [name for name, _ in said]


@pytest.mark.parametrize("num_nodes", [2, 4, 6, 8, 16, 250_000])
def test_figure_10_is_proved_at_every_even_number_of_nodes(tmp_path, num_nodes):
    schedule = figure_10(num_nodes)
    claims = confirmed(tmp_path, schedule)
    assert {"conflict-free", "doubly-stochastic", "consensus", "deadlock-free", "contraction"} <= set(claims)
    assert ("membership" in claims) == (num_nodes < 1000), "that everybody can be asked"
    assert prove(schedule).verdict is Status.PROVED
    squared = Fraction(prove(schedule)["contraction"].entry["squared"])
    assert squared == (Fraction(27, 64) if num_nodes == 2 else Fraction(3, 4))


def test_the_certificate_of_a_rule_does_not_grow_with_the_cluster():
    small, large = (len(certificate_bytes(prove(figure_10(m)).certificate)) for m in (4, 250_000))
    assert large < small + 20


def test_the_explicit_form_has_the_same_rate(tmp_path):
    schedule = expanded(figure_10(4))
    assert "contraction" in confirmed(tmp_path, schedule)
    assert prove(schedule)["contraction"].entry["squared"] == "3/4"


def test_an_overlap_is_refuted_with_phase_worker_and_both_groups():
    proof = prove(explicit(6, [[0, 1], [2, 3]], [[0, 1, 2], [3, 4], [2, 5]]))
    assert proof.verdict is Status.REFUTED
    witness = proof["conflict-free"].witness
    assert (witness["phase"], witness["worker"], witness["groups"]) == (1, 2, [[0, 1, 2], [2, 5]])
    assert "phase 1 worker 2 is in group {0,1,2} and in group {2,5}" in proof["conflict-free"].explanation
    assert all(proof[name].status is Status.NOT_PROVED for name in ("consensus", "deadlock-free", "contraction"))


def test_blocks_that_share_a_local_rank_are_refuted_with_both_blocks():
    phases = ((Block((0, 1), ()), Block((1,), (0,))),)
    proof = prove(Schedule("bad", Cluster.regular(4, 2), StaticGroups(phases=RulePhases((4,), phases))))
    witness = proof["conflict-free"].witness
    assert (witness["phase"], witness["worker"]) == (0, 1)
    assert witness["groups"] == [[0, 1], [1, 3, 5, 7]]


def test_workers_that_never_meet_the_others_refute_consensus():
    proof = prove(explicit(5, [[0, 1]], [[2, 3, 4]], [[0, 1]]))
    assert proof.verdict is Status.REFUTED
    assert proof["consensus"].witness["workers"] == [0, 1]


def test_averaging_inside_nodes_only_refutes_consensus_of_a_rule():
    proof = prove(Schedule("nodes", Cluster.regular(4, 4), StaticGroups(phases=RulePhases((4,), ((ALL,),)))))
    assert proof["consensus"].status is Status.REFUTED
    assert proof["consensus"].witness == {"local_ranks": [0, 1, 2, 3], "digits": [0]}


def test_a_connected_doubly_stochastic_cyclic_shift_never_converges():
    proof = prove(graph(5, shift(5, Fraction(1))))
    assert proof["doubly-stochastic"].status is Status.FACT
    assert proof["consensus"].status is Status.REFUTED
    assert len(proof["consensus"].witness["cycle_of_sets"]) == 5


def test_a_lazy_cyclic_shift_converges(tmp_path):
    schedule = graph(5, shift(5, Fraction(1, 3)))
    assert "consensus" in confirmed(tmp_path, schedule)
    assert prove(schedule)["consensus"].entry["method"] == "graph"


def test_de_bruijn_converges_by_a_power_although_workers_drop_their_own_value(tmp_path):
    edges = [(i, (2 * i + a) % 8, Fraction(1, 2)) for i in range(8) for a in (0, 1) if (2 * i + a) % 8 != i]
    schedule = graph(8, edges)
    assert "consensus" in confirmed(tmp_path, schedule)
    assert prove(schedule)["consensus"].entry["periods"] == 3


def test_rows_that_do_not_keep_the_mean_are_refuted_with_the_column():
    proof = prove(graph(3, [(0, 1, Fraction(1, 2)), (1, 2, Fraction(1, 2)), (2, 0, Fraction(1, 3))]))
    assert proof["doubly-stochastic"].witness == {"round": 0, "worker": 0, "column_sum": "7/6"}
    assert proof["consensus"].status is Status.PROVED


def test_a_pair_with_relax_2_swaps_and_is_no_witness():
    swap = [Group((1, 2), Fraction(2))]
    proof = prove(explicit(3, [[0, 1]], swap))
    assert proof["consensus"].entry is None or proof["consensus"].entry["method"] == "power"
    assert prove(explicit(4, [[0, 1]], swap, [[2, 3]], swap))["consensus"].status is not Status.PROVED


def test_a_negative_weight_is_not_called_doubly_stochastic(tmp_path):
    schedule = explicit(3, [Group((0, 1, 2), Fraction(7, 4))])
    assert {"unit-sums", "consensus"} <= set(confirmed(tmp_path, schedule))
    assert "doubly-stochastic" not in prove(schedule)


@pytest.mark.parametrize("shape", ["2x1", "3,3,2", "250000x4"])
def test_allreduce_is_proved_on_any_cluster(tmp_path, shape):
    schedule = Schedule("all", Cluster.parse(shape), AllReduce(steps_per_round=4))
    assert "consensus" in confirmed(tmp_path, schedule)
    assert prove(schedule)["contraction"].entry["squared"] == "0"


def test_ticks_are_one_more_than_the_largest_before(tmp_path):
    schedule = explicit(5, [[0, 1]], [[1, 2], [3, 4]], [], [[0, 3]], [[0, 1, 2, 3, 4]], prologue=3)
    assert prove(schedule)["deadlock-free"].numbers == {"height": 3}
    assert "deadlock-free" in confirmed(tmp_path, schedule)


def test_the_spanning_tree_holds_the_first_witness_in_order():
    tree = prove(explicit(5, [[1, 2], [0, 3]], [[0, 1, 2, 3]], [[3, 4]]))["consensus"].entry["trees"][0]
    assert tree == [[0, 0, 3], [0, 1, 2], [1, 0, 1], [2, 3, 4]]


def test_random_explicit_schedules_agree_with_dense_arithmetic():
    rng = np.random.default_rng(7)
    for _ in range(60):
        n, period = int(rng.integers(2, 9)), int(rng.integers(1, 4))
        phases = []
        for _ in range(period):
            labels = rng.integers(0, max(2, n // 2), n)
            phases.append([np.flatnonzero(labels == label) for label in set(labels) if (labels == label).sum() > 1])
        schedule = explicit(n, *phases)
        product = np.eye(n)
        for t in range(period):
            product = schedule.phase(t).apply(product)
        norm = np.linalg.norm(product - 1 / n, 2)
        proof = prove(schedule)
        assert (proof["consensus"].status is Status.PROVED) == (norm < 1 - 1e-9)
        squared = float(Fraction(proof["contraction"].entry["squared"]))
        assert norm**2 <= squared + 1e-12
        assert squared <= norm**2 + 1e-5
