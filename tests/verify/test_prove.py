"""prove() on small schedules: claims, witnesses, methods, phase functions and agreement with the checker."""

import ast
import json
import os
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.forgery.schedules import explicit, graph
from helpers.claims import confirm_claims, facts_of
from helpers.golden import GOLDEN
from helpers.readings import written
from helpers.refusals import check_error
from helpers.small import of_rule
from helpers.warm_checker import run_checker
from partreduce import Cluster, Schedule, metrics, write_schedule
from partreduce.errors import InputError, RefutedError
from partreduce.schedulers.registry import build
from partreduce.strategies import Block, Group
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.metrics.evaluate import growth_bits
from partreduce.topo.strategies import AllReduce, NeighborAveraging, Round, RulePhases, StaticGroups
from partreduce.verify import Status, checker, prove
from partreduce.verify.certificate import certificate_bytes, confirm
from partreduce.verify.prove import prove_function

PROGRAM = Path(checker.__file__).parent
ALL = Block((0, 1, 2, 3))


def figure_10(num_nodes):
    return build("prague-figure-10", Cluster.regular(num_nodes, 4))


def run_alone(folder, schedule, certificate):
    """Run the checker isolated, without site packages, in an empty environment."""
    write_schedule(folder / "s.json", schedule)
    (folder / "c.json").write_bytes(certificate_bytes(certificate))
    command = [sys.executable, "-I", "-S", PROGRAM, folder / "c.json", folder / "s.json"]
    return subprocess.run(command, env={}, capture_output=True, text=True, check=False, timeout=60, cwd=os.sep)


def check_alone(folder, schedule):
    """Check that prover and standalone checker agree, and return the claims that hold."""
    proof = prove(schedule)
    result = run_alone(folder, schedule, proof.certificate)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assumed = {line for line in lines if line.startswith("assumed for ")}
    assert assumed == {f"assumed for {claim.claim}: {claim.assumes}" for claim in proof.claims if claim.assumes}
    printed = {tuple(line.split(":")[:2]) for line in lines if line not in assumed}
    kinds = {Status.PROVED: " proved", Status.FACT: " fact", Status.FOLLOWS: " follows from the protocol's rules"}
    assert printed == {(claim.claim, kinds[claim.status]) for claim in proof.claims if claim.holds}
    return [name for name, _ in printed]


@pytest.mark.parametrize("num_nodes", [2, 4, 6, 250_000])
def test_figure_10_is_proved_for_even_numbers_of_nodes(tmp_path, num_nodes):
    schedule = figure_10(num_nodes)
    claims = check_alone(tmp_path, schedule)
    assert {"conflict-free", "doubly-stochastic", "consensus", "deadlock-free", "contraction"} <= set(claims)
    assert ("membership" in claims) == (num_nodes < 1000), "every worker can be evaluated"
    assert prove(schedule).verdict is Status.PROVED
    squared = Fraction(prove(schedule)["contraction"].entry["squared"])
    assert squared == (Fraction(27, 64) if num_nodes == 2 else Fraction(3, 4))


def test_rule_certificate_size_is_independent_of_the_cluster():
    small, large = (len(certificate_bytes(prove(figure_10(m)).certificate)) for m in (4, 250_000))
    assert large < small + 20


def test_overlap_is_refuted_with_phase_worker_and_groups():
    proof = prove(explicit(6, [[0, 1], [2, 3]], [[0, 1, 2], [3, 4], [2, 5]]))
    assert proof.verdict is Status.REFUTED
    witness = proof["conflict-free"].witness
    assert (witness["phase"], witness["worker"], witness["groups"]) == (1, 2, [[0, 1, 2], [2, 5]])
    assert "phase 1 worker 2 is in group {0,1,2} and in group {2,5}" in proof["conflict-free"].explanation
    assert all(proof[name].status is Status.NOT_PROVED for name in ("consensus", "deadlock-free", "contraction"))


def test_node_local_rule_is_refuted():
    proof = prove(of_rule("nodes", Cluster.regular(4, 4), (4,), ((ALL,),)))
    assert proof["consensus"].status is Status.REFUTED
    assert proof["consensus"].witness == {"local_ranks": [0, 1, 2, 3], "digits": [0]}


@pytest.mark.parametrize("shape", ["2x1", "3,3,2", "250000x4"])
def test_allreduce_is_proved_on_any_cluster(tmp_path, shape):
    schedule = Schedule("all", Cluster.parse(shape), AllReduce(steps_per_round=4))
    assert "consensus" in check_alone(tmp_path, schedule)
    assert prove(schedule)["contraction"].entry["squared"] == "0"


@pytest.mark.parametrize("n", [5, 6])
def test_relaxed_pairs_are_proved_exact_by_their_product(n):
    text = GOLDEN["relaxed_pairs_exact"][str(n)]
    phases = []
    for line in text:
        *pairs, weight = line.replace(")(", ") (").split()
        phases.append([Group((int(p[1]), int(p[2])), 2 * Fraction(weight)) for p in pairs])
    schedule = explicit(n, *phases)
    assert prove(schedule)["exact-consensus"].entry["method"] == "product"
    assert "exact-consensus" in confirm_claims(schedule)


@pytest.mark.parametrize("power", [6, 9, 12, 15])
def test_bounds_beyond_float_precision_are_proved(power):
    """Differences grow by 10^power and shrink by as much: floats gave 0.99995 for a contraction of 1 − 10⁻¹²."""
    n, grown = 64, Fraction(10**power)
    shrunk = Group(tuple(range(n)), (grown - 1) / grown)
    schedule = explicit(n, [Group((2 * i, 2 * i + 1), grown) for i in range(n // 2)], [shrunk])
    claim = prove(schedule)["contraction"]
    assert Fraction(claim.entry["squared"]) >= ((grown - 1) / grown) ** 2
    assert "contraction" in confirm_claims(schedule)


@pytest.mark.parametrize("relaxation", ["9" * 64, "-" + "9" * 64, 10**8])
@pytest.mark.parametrize("phases", [1, 6])
def test_huge_relaxations_have_no_float_metrics(relaxation, phases):
    """These once failed an assertion, overflowed floats or gave a radius of NaN."""
    relaxation = Fraction(relaxation)
    edges = [(0, 1, relaxation), (1, 2, Fraction(1, 3)), (2, 0, Fraction(1, 2))]
    many = Schedule("g", Cluster.regular(3, 1), NeighborAveraging(rounds=(Round.from_edges(3, edges),) * phases))
    rule = ((Block((0,), (0,), relaxation), Block((1,), (0,))), (Block((0, 1), (), relaxation),)) * phases
    schedules = [
        explicit(3, *[[Group((0, 1), relaxation)], [Group((1, 2), relaxation)]] * phases),
        Schedule("r", Cluster.regular(2, 2), StaticGroups(phases=RulePhases(node_radices=(2,), phases=rule))),
        many,
    ]
    for schedule in schedules:
        found = metrics(schedule)
        assert found.radius.value is None
        assert found.contraction.how.startswith("not found: differences may grow by 2^")
        assert prove(schedule)["consensus"].status is not Status.PROVED
        assert "deadlock-free" in facts_of(dump_schedule(schedule))


def test_growth_bits_match_the_norms():
    """Groups and rounds whose differences cannot grow count 0; others add up."""
    tame = [[Group((0, 1), Fraction(2))], [Group((1, 2), Fraction(0))]] * 50
    assert growth_bits(explicit(3, *tame)) == 0
    assert growth_bits(explicit(3, *[[Group((0, 1), Fraction(-1))]] * 5)) == 5
    assert growth_bits(graph(3, [(0, 1, Fraction(1, 2)), (1, 2, Fraction(1))])) == 0
    apart = graph(2, [(0, 1, Fraction(-1)), (1, 0, Fraction(-1))])  # a difference d becomes 3·d
    assert growth_bits(apart) == pytest.approx(np.log2(3))


# Functions


def ring_pairs(worker, step, cluster):
    n = cluster.num_workers
    base = worker - (worker - step) % 2
    return {base % n, (base + 1) % n}


def test_phase_function_is_expanded_proved_and_exported(tmp_path):
    found = prove_function(ring_pairs, Cluster.regular(8, 1), 2, name="ring-pairs")
    assert found.proof.verdict is Status.PROVED
    assert found.schedule.phase(1)[0].members == (0, 7)
    assert "period 2" in found.scope
    write_schedule(tmp_path / "s.json", found.schedule)
    (tmp_path / "c.json").write_bytes(certificate_bytes(found.proof.certificate))
    assert checker.main([str(tmp_path / "c.json"), str(tmp_path / "s.json")]) == 0


def test_inconsistent_phase_function_is_refuted_with_the_member():
    proof = prove_function(lambda w, s, c: {w, (w + 1) % c.num_workers}, Cluster.regular(4, 1), 1, "f").proof
    assert proof.verdict is Status.REFUTED
    assert proof["membership"].witness["member"] == 1
    check_error(RefutedError, "membership is refuted", proof.require)


DRAWS = random.Random(0)


@pytest.mark.parametrize(("function", "workers", "period", "words"), [
    (lambda w, s, c: {0, 1} if w < 2 and s % 3 == 0 else None, 4, 2, "declared period 2 is wrong"),
    (lambda w, s, c: (0, 1), 3, 1, "in which it is not"),
    (lambda w, s, c: {0, 1} if w < 2 and DRAWS.random() < 0.5 else None, 8, 16, ""),
])  # fmt: skip
def test_phase_functions_with_contradictions_are_refuted(function, workers, period, words):
    proof = prove_function(function, Cluster.regular(workers, 1), period, "f").proof
    assert proof.verdict is Status.REFUTED
    assert words in proof["membership"].explanation


@pytest.mark.parametrize(("function", "message"), [
    (lambda w, s, c: 1 / 0, "raised ZeroDivisionError"),
    (lambda w, s, c: sys.exit(0), "raised SystemExit: 0"),
    (lambda w, s, c: (_ for _ in ()).throw(ValueError("one\ntwo")), "raised ValueError: one two"),
    (lambda w, s, c: {w, 99}, "ranks 0..3"),
    (lambda w, s, c: {w, "x"}, "TypeError"),
    (lambda w, s, c: {w, 2.5}, "plain integers"),
])  # fmt: skip
def test_failing_phase_function_raises_input_error(function, message):
    check_error(InputError, message, prove_function, function, Cluster.regular(4, 1), 1, "f")


@pytest.mark.parametrize(("period", "message"), [(0, "at least 1 step"), (10**7, "evaluations; at most")])
def test_invalid_period_raises_input_error(period, message):
    check_error(InputError, message, prove_function, ring_pairs, Cluster.regular(8, 1), period, "f")


def test_embedded_certificate_must_match_its_schedule():
    schedule = explicit(4, [[0, 1], [2, 3]], [[0, 2], [1, 3]])
    carrying = schedule.with_certificate(prove(schedule).certificate)
    assert "exact-consensus" in confirm(carrying)
    other = explicit(4, [[0, 1], [2, 3]], [[0, 2]]).with_certificate(carrying.certificate)
    for wrong in (schedule, other):
        check_error(RefutedError, "certificate", confirm, wrong)


def test_certificate_is_independent_of_member_order(tmp_path):
    schedule = explicit(4, [[0, 1], [2, 3]], [[0, 2], [1, 3]])
    raw = {
        "strategy": {
            "steps_per_round": [1, 1, 1, 1], "sync": "synchronous", "transport": {"algorithm": "ring"},
            "kind": "static", "prologue": 0, "averaging": "mean",
            "phases": [[{"relaxation": "2/2", "group": [3, 2]}, {"group": [1, 0]}],
                [{"group": [3, 1]}, {"group": [0, 2]}]],
        },
        "cluster": {"nodes": [[0], [1], [2], [3]]}, "name": "x", "version": 1, "format": "partreduce.schedule",
    }  # fmt: skip
    (tmp_path / "c.json").write_bytes(certificate_bytes(prove(schedule).certificate))
    for document, status in ((raw, 65), (written(raw), 0)):
        (tmp_path / "s.json").write_text(json.dumps(document, indent=3))
        result = run_checker(tmp_path / "c.json", tmp_path / "s.json")
        assert result.returncode == status
        assert status == 0 or (result.stdout.count("\n") == 1 and "--export NEW` writes a file in" in result.stdout)


def test_checker_imports_only_the_standard_library():
    files = list(PROGRAM.rglob("*.py"))
    assert len(files) > 10
    for file in files:
        depth = len(file.relative_to(PROGRAM).parts)
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level <= depth, (file, "an import that leaves the folder")
                names = [] if node.level else [node.module]
            assert all(name.split(".")[0] in sys.stdlib_module_names for name in names), (file, names)
