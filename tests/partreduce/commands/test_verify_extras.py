"""`partreduce verify` beyond files: user functions; and certificates that runs check at load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partreduce.__main__ import main
from partreduce.commands.verify import in_plain_words
from partreduce.runtime.arguments import read_schedule
from partreduce.schedulers import registry
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.schedule import load_schedule
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import RefutedError
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, Payload, StaticGroups, TablePlacement
from partreduce.verify import checker
from partreduce.verify.prove import prove

FUNCTIONS = """
def pairs(worker, step, cluster):
    return {worker, worker ^ (1 << (step % 3))}

def wrong(worker, step, cluster):
    return {worker, (worker + 1) % cluster.num_workers}
"""


def verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "partreduce", "verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


def test_a_user_function_is_expanded_proved_and_exported(tmp_path: Path) -> None:
    (tmp_path / "phases.py").write_text(FUNCTIONS)
    out = tmp_path / "schedule.json"
    done = verify(f"{tmp_path}/phases.py:pairs", "--cluster", "2x4", "--period", "3", "--export", str(out), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {claim["claim"]: claim["status"] for claim in document["claims"]}["exact-consensus"] == "proved"
    assert load_schedule(out).period == 3


def test_a_function_whose_members_disagree_is_refuted(tmp_path: Path) -> None:
    (tmp_path / "phases.py").write_text(FUNCTIONS)
    done = verify(f"{tmp_path}/phases.py:wrong", "--cluster", "2x4", "--period", "1")
    assert done.returncode == 1
    assert "worker 0" in done.stdout


def test_a_function_without_period_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "phases.py").write_text(FUNCTIONS)
    done = verify(f"{tmp_path}/phases.py:pairs", "--cluster", "2x4")
    assert done.returncode == 2
    assert "--period" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_hand_written_file_is_written_again_in_the_form_that_the_checker_reads(tmp_path: Path) -> None:
    phases = [[{"group": [3, 2], "relaxation": "2/4"}, {"group": [1, 0]}], [{"group": [0, 1, 2, 3]}]]
    strategy = {"kind": "static", "sync": "synchronous", "steps_per_round": [2] * 4, "phases": phases}
    cluster = {"num_nodes": 2, "workers_per_node": 2}
    raw = {"format": "partreduce.schedule", "version": 1, "name": "x", "cluster": cluster, "strategy": strategy}
    by_hand, again, certificate = (tmp_path / f"{name}.json" for name in ("by_hand", "again", "certificate"))
    by_hand.write_text(json.dumps(raw))
    assert main(["verify", str(by_hand), "--certificate", str(certificate), "--export", str(again)]) == 0
    assert load_schedule(again) != load_schedule(by_hand), "it carries its certificate"
    assert schedule_sha256(load_schedule(again)) == schedule_sha256(load_schedule(by_hand))
    folder = Path(checker.__file__).parent
    for file, status in ((by_hand, 65), (again, 0)):
        command = [sys.executable, "-I", str(folder), str(certificate), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == status, done.stdout
        if status:
            assert done.stdout.count("\n") == 1
            assert "`partreduce verify FILE --export NEW` writes" in done.stdout


def test_the_runtime_checks_the_certificate_that_a_file_carries(tmp_path: Path) -> None:
    schedule = registry.build("prague-figure-10", Cluster.regular(2, 4))
    certificate = json.loads(json.dumps(dict(prove(schedule).certificate)))
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    write_schedule(good, schedule.with_certificate(certificate))
    assert read_schedule(good) == schedule
    next(claim for claim in certificate["claims"] if claim["claim"] == "contraction")["squared"] = "1/100"
    write_schedule(bad, schedule.with_certificate(certificate))
    with pytest.raises(RefutedError, match="contraction"):
        read_schedule(bad)


def test_verify_refuses_a_file_whose_own_certificate_does_not_hold_as_a_run_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair, ring = (registry.build(name, Cluster.regular(2, 2)) for name in ("node-then-all", "allreduce"))
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    write_schedule(good, pair.with_certificate(prove(pair).certificate))
    write_schedule(bad, pair.with_certificate(prove(ring).certificate))
    assert main(["verify", str(good)]) == 0
    assert capsys.readouterr().err == ""
    assert main(["verify", str(bad)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("PROVED: "), "of the schedule itself"
    assert "the certificate is of another schedule; take the member" in err


def test_what_a_proof_comes_to_says_nothing_where_nothing_is_drawn_together() -> None:
    cluster = Cluster.regular(2, 2)
    apart, pairs = (
        Schedule("drawn", cluster, StaticGroups(phases=GroupPhases(tuple(Phase.from_groups(4, one) for one in phases))))
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
