"""`partreduce verify`: user functions, certificates in files, and schedules without guaranteed consensus."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from helpers.command_runs import ran
from helpers.readings import document
from helpers.refusals import check_error
from helpers.small import of_edges, of_groups, of_phases
from partreduce import Cluster, Schedule, load_schedule, write_schedule
from partreduce.__main__ import main
from partreduce.commands.verify import in_plain_words
from partreduce.errors import RefutedError
from partreduce.files import schedule_sha256
from partreduce.runtime.arguments import read_schedule
from partreduce.schedulers import registry
from partreduce.strategies import IterationGap, NeighborAveraging, Payload, Phase, TablePlacement
from partreduce.topo.graphs.named import ring_based
from partreduce.topo.graphs.weights import METHODS
from partreduce.topo.strategies import AllReduce, EdgeWeighting
from partreduce.verify import checker
from partreduce.verify.prove import prove

FUNCTIONS = """
def pairs(worker, step, cluster):
    return {worker, worker ^ (1 << (step % 3))}

def wrong(worker, step, cluster):
    return {worker, (worker + 1) % cluster.num_workers}
"""


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "phases.py").write_text(FUNCTIONS)
    return f"{tmp_path}/phases.py:"


def test_user_function_is_expanded_proved_and_exported(functions, tmp_path, capsys):
    arguments = ["verify", f"{functions}pairs", "--cluster", "2x4", "--period", "3"]
    document = json.loads(ran(capsys, [*arguments, "--export", str(out := tmp_path / "schedule.json"), "--json"]).out)
    assert {claim["claim"]: claim["status"] for claim in document["claims"]}["exact-consensus"] == "proved"
    assert load_schedule(out).period == 3


def test_function_with_inconsistent_groups_is_refuted(functions, capsys):
    assert "worker 0" in ran(capsys, ["verify", f"{functions}wrong", "--cluster", "2x4", "--period", "1"], 1).out


def test_function_without_a_period_is_rejected(functions, capsys):
    (line,) = ran(capsys, ["verify", f"{functions}pairs", "--cluster", "2x4"], 2).err.splitlines()
    assert "--period" in line


def test_export_rewrites_a_file_in_the_canonical_form(tmp_path):
    phases = [[{"group": [3, 2], "relaxation": "2/4"}, {"group": [1, 0]}], [{"group": [0, 1, 2, 3]}]]
    strategy = {"kind": "static", "sync": "synchronous", "steps_per_round": [2] * 4, "phases": phases}
    by_hand, again, certificate = (tmp_path / f"{name}.json" for name in ("by_hand", "again", "certificate"))
    by_hand.write_text(json.dumps(document(strategy)))
    assert main(["verify", str(by_hand), "--certificate", str(certificate), "--export", str(again)]) == 0
    assert load_schedule(again) != load_schedule(by_hand), "the new file contains a certificate"
    assert schedule_sha256(load_schedule(again)) == schedule_sha256(load_schedule(by_hand))
    folder = Path(checker.__file__).parent
    for file, status in ((by_hand, 65), (again, 0)):
        command = [sys.executable, "-I", str(folder), str(certificate), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == status, done.stdout
        if status:
            assert done.stdout.count("\n") == 1
            assert "`partreduce verify FILE --export NEW` writes" in done.stdout


def test_runtime_checks_the_certificate_in_the_file(tmp_path):
    schedule = registry.build("prague-figure-10", Cluster.regular(2, 4))
    certificate = json.loads(json.dumps(dict(prove(schedule).certificate)))
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    write_schedule(good, schedule.with_certificate(certificate))
    assert read_schedule(good) == schedule
    next(claim for claim in certificate["claims"] if claim["claim"] == "contraction")["squared"] = "1/100"
    write_schedule(bad, schedule.with_certificate(certificate))
    check_error(RefutedError, "contraction", read_schedule, bad)


def test_verify_rejects_a_file_with_an_invalid_certificate(tmp_path, capsys):
    pair, ring = (registry.build(name, Cluster.regular(2, 2)) for name in ("node-then-all", "allreduce"))
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    write_schedule(good, pair.with_certificate(prove(pair).certificate))
    write_schedule(bad, pair.with_certificate(prove(ring).certificate))
    assert ran(capsys, ["verify", str(good)]).err == ""
    out, err = ran(capsys, ["verify", str(bad)], 1)
    assert out.startswith("PROVED: "), "the schedule itself is proved"
    assert "the certificate is of another schedule; take the member" in err
    bad.write_text(json.dumps(json.loads(good.read_text()) | {"certificate": {"claims": []}}))
    assert "'node-then-all': certificate: lacks ['format'" in ran(capsys, ["verify", str(bad)], 1).err, "named once"


def test_plain_words_claim_no_contraction_without_consensus():
    cluster = Cluster.regular(2, 2)
    apart, pairs = (
        of_phases("drawn", cluster, tuple(Phase.from_groups(4, one) for one in phases))
        for phases in ([[(0, 1)], [(0, 2)]], [[(0, 1), (2, 3)], [(0, 2), (1, 3)]])
    )
    assert in_plain_words(apart, prove(apart)) == ("no conflict", "no deadlock")
    assert in_plain_words(pairs, prove(pairs)) == (
        "no conflict, every 2 steps nothing but rounding is left of the differences that the models had",
        "no deadlock",
    )
    sharded = Payload(tables=(TablePlacement(parameter="words", rows=9, columns=2),))
    tables = Schedule("tables", cluster, AllReduce(payload=sharded))
    assert in_plain_words(tables, prove(tables)) == (
        "no conflict, consensus",
        "no deadlock, all workers hold the same model every step, but for rows of sharded tables",
    )


# Output and exit codes of `verify`, `design` and `partreduce.verify` without guaranteed consensus


def with_gap(**gap):
    graph = METHODS["metropolis"](ring_based(16))
    return Schedule("s", Cluster.regular(16, 1), NeighborAveraging(rounds=(graph,), sync=IterationGap(max_ig=4, **gap)))


def backup():
    return with_gap(backup=1)


def groups():
    return of_groups("apart", Cluster.regular(5, 1), [(0, 1), (2, 3, 4)])


def graph():
    half = Fraction(1, 2)
    edges = [(0, 1, half), (1, 0, half), (2, 3, half), (3, 2, half)]
    return of_edges("two rings", Cluster.regular(4, 1), edges)


@pytest.mark.parametrize(("made", "first"), [
    (backup, "workers {0,1,7,8,9,15} may never average with {2,3,4,5,6,10,11,12,13,14}"),
    (groups, "workers {0,1} never average with {2,3,4}"),
    (graph, "workers {0,1} never average with {2,3}"),
])  # fmt: skip
def test_first_line_names_the_sets_that_can_part(made, first, tmp_path, capsys):
    path, proof = tmp_path / "s.json", prove(made())
    write_schedule(path, made())
    lines = ran(capsys, ["verify", str(path)], 1).out.splitlines()
    assert lines[0] == f"REFUTED: {first}."
    assert proof.parting_words == f"consensus is not guaranteed: {first}"
    for members in proof.can_part:
        assert "{" + ",".join(map(str, members)) + "}" in lines[0]
    assert main(["verify", str(path), "--allow-no-consensus"]) == 0
    assert capsys.readouterr().out.splitlines() == lines, "the same output"


@pytest.mark.parametrize(("made", "sets"), [(groups, [[0, 1]]), (graph, [[0, 1], [2, 3]])])
def test_json_and_python_name_the_same_sets(made, sets, tmp_path, capsys):
    path, proof = tmp_path / "s.json", prove(made())
    write_schedule(path, made())
    document = json.loads(ran(capsys, ["verify", str(path), "--json"], 1).out)
    expected = {"verdict": "refuted", "consensus": "not guaranteed", "can_part": sets}
    assert {key: document[key] for key in expected} == expected
    assert {key: proof.to_json()[key] for key in expected} == expected
    assert proof.explain().startswith("consensus is not guaranteed: workers {0,1} never average with ")
    check_error(RefutedError, "consensus is refuted", proof.require)
    assert proof.without_consensus().require().verdict == "proved"


def test_each_set_of_a_gap_can_do_without_the_other():
    schedule = backup()
    one, other = prove(schedule).can_part
    assert not set(one) & set(other)
    for members in (one, other):
        for worker in members:
            outside = [s for s, t, _ in schedule.strategy.graphs[0].edges() if t == worker and s not in members]
            assert len(outside) <= 1, "one backup worker"


def test_refuted_property_that_is_not_needed_is_still_listed(tmp_path, capsys):
    """Staleness does not preserve the mean, but the workers reach consensus."""
    path = tmp_path / "s.json"
    write_schedule(path, with_gap(staleness=5, weights=EdgeWeighting.ITERATION))
    text = " ".join(ran(capsys, ["verify", str(path)]).out.split())
    assert text.startswith("PROVED: the models are drawn together. If the program follows its protocol: no deadlock. ")
    assert "Refuted mean-preserved (a property, not needed): " in text
    assert "never average" not in text
    assert json.loads(ran(capsys, ["verify", str(path), "--json"]).out)["consensus"] == "guaranteed"


def test_allow_no_consensus_allows_no_other_refutation(tmp_path, capsys):
    """Allowing no consensus does not allow a mean that moves."""
    path = tmp_path / "s.json"
    half = Fraction(3, 4)
    edges = [(0, 1, half), (1, 0, Fraction(1, 4)), (2, 3, half), (3, 2, half)]
    write_schedule(path, of_edges("lost", Cluster.regular(4, 1), edges))
    assert "doubly-stochastic" in ran(capsys, ["verify", str(path), "--allow-no-consensus"], 1).out


@pytest.mark.usefixtures("brief")
def test_design_warns_first_that_consensus_is_not_guaranteed(tmp_path, capsys):
    path = tmp_path / "s.json"
    links = ["--set", "nic=40MB/s", "--set", "inside=1GB/s", "--set", "compute=50ms", "--set", "jitter=0.3"]
    arguments = ["design", "4x2", *links, "--model-bytes", "1MB", "--sync", "iteration_gap"]
    arguments += ["--effort", "0.2", "--time-limit", "1h", "--select", "clustered gap: backup 1, parallel"]
    lines = ran(capsys, [*arguments, "-o", str(path)]).out.splitlines()
    assert lines[0].startswith("Planning")
    assert lines[1].startswith("consensus: not guaranteed, steady in simulation (")
    assert f"Next: partreduce verify --allow-no-consensus {path}" in " ".join(lines)
    assert any(line.startswith("guarantee") and "REFUTED: workers {" in line for line in lines)
    assert main(["verify", str(path)]) == 1
    assert main(["verify", str(path), "--allow-no-consensus"]) == 0
    capsys.readouterr()
    answer = json.loads(ran(capsys, [*arguments, "--json"]).out)["recommendation"]
    assert answer["consensus"] == "not guaranteed, steady in simulation"
    assert answer["verdict"] == "refuted"
