"""`partreduce simulate` of a schedule that keeps a gap: what it says of the gap, and the picture."""

import json
from dataclasses import replace

import pytest

from helpers.command_runs import runner
from partreduce import Cluster
from partreduce.commands.simulate import command
from partreduce.files import dump_schedule
from partreduce.schedulers.registry import build
from partreduce.strategies import IterationGap, SkipPolicy


@pytest.fixture
def file(tmp_path):
    built = build("ring-based", Cluster.regular(2, 4))
    gap = IterationGap(max_ig=4, backup=1, skip=SkipPolicy(limit=3))
    path = tmp_path / "gap.json"
    path.write_text(json.dumps(dump_schedule(replace(built, strategy=replace(built.strategy, sync=gap)))))
    return path


def run(*arguments):
    return runner(command)(*arguments).stdout


def test_a_gap_is_said_beside_its_bound_and_the_run_is_drawn(file, tmp_path):
    options = (file, "--set", "compute=1s", "--set", "slow=3:5", "--rounds", "40")
    picture = tmp_path / "gaps.svg"
    text = run(*options, "-o", picture)
    facts = json.loads(run(*options, "--json"))["gaps"]
    assert facts["largest_over_edges"] == facts["proved_over_edges"] == 4, "a slow worker lets tokens run out"
    assert facts["largest_over_pairs"] <= facts["proved_over_pairs"]
    assert 0 < facts["share_skipped"] < 1 / 8
    assert facts["longest_queue"] <= 5
    assert f"{facts['mean_over_edges']:.2f} steps on average, 4 of at most 4" in " ".join(text.split())
    assert "timeline written to" in text
    assert "<svg" in picture.read_text()


def test_bytes_are_those_that_were_sent(file):
    facts = json.loads(run(file, "--model-bytes", "1MB", "--rounds", "20", "--json"))
    edges_out = 2 + 4  # the ring's two, and each of 4 workers has its most distant one on the other node
    assert facts["nic_bytes_per_step"] <= edges_out * 1e6
    assert facts["nic_bytes_per_step"] == pytest.approx(edges_out * 1e6, rel=0.1)
