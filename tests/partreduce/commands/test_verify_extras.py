"""`partreduce verify` beyond files: user functions; and certificates that runs check at load."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from partreduce.runtime.schedule_file import read_schedule
from partreduce.schedulers import registry
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import load_schedule
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import RefutedError
from partreduce.verify.prove import prove

if TYPE_CHECKING:
    from pathlib import Path

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
    assert done.returncode == 65
    assert "--period" in done.stderr
    assert "Traceback" not in done.stderr


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
