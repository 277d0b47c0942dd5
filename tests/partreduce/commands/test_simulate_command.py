"""`partreduce simulate` of iteration gaps and quorums: facts and pictures."""

import json
from dataclasses import replace

import pytest

from helpers.command_runs import runner
from partreduce import Cluster, Schedule
from partreduce.commands.simulate import command
from partreduce.schedulers.registry import build
from partreduce.strategies import AllReduce, IterationGap, PartialAllReduce, SkipPolicy


@pytest.fixture
def gap_file(save_schedule):
    built = build("ring-based", Cluster.regular(2, 4))
    gap = IterationGap(max_ig=4, backup=1, skip=SkipPolicy(limit=3))
    return save_schedule(replace(built, strategy=replace(built.strategy, sync=gap)))


def run(*arguments):
    return runner(command)(*arguments).stdout


def test_iteration_gap_run_is_described_and_drawn(gap_file, tmp_path):
    options = (gap_file, "--set", "compute=1s", "--set", "slow=3:5", "--rounds", "40")
    picture = tmp_path / "gaps.svg"
    text = run(*options, "-o", picture)
    facts = json.loads(run(*options, "--json"))["gaps"]
    assert facts["largest_over_edges"] == facts["proved_over_edges"] == 4, (
        "neighbors of the slow worker run out of tokens"
    )
    assert facts["largest_over_edges"] <= facts["largest_over_pairs"]
    assert 0 < facts["share_skipped"] < 1 / 8
    assert facts["longest_queue"] <= 5
    assert f"{facts['mean_over_edges']:.2f} steps on average, 4 of at most 4" in " ".join(text.split())
    assert "timeline written to" in text
    assert "<svg" in picture.read_text()


def test_simulated_bytes_match_the_edges_of_the_graph(gap_file):
    facts = json.loads(run(gap_file, "--model-bytes", "1MB", "--rounds", "20", "--json"))
    edges_out = 2 + 4  # two edges of the ring, and the most distant neighbor of each of 4 workers is on the other node
    assert facts["nic_bytes_per_step"] <= edges_out * 1e6
    assert facts["nic_bytes_per_step"] == pytest.approx(edges_out * 1e6, rel=0.1)


# Quorums


@pytest.fixture
def quorum_file(save_schedule):
    return save_schedule(
        Schedule("half", Cluster.regular(2, 4), AllReduce(sync=PartialAllReduce(quorum=4, staleness=8)))
    )


def test_quorum_run_is_described_and_drawn(quorum_file, tmp_path):
    options = (quorum_file, "--set", "compute=1s", "--set", "slow=7:5", "--set", "jitter=0.02", "--rounds", "100")
    picture = tmp_path / "rounds.svg"
    text = " ".join(run(*options, "-o", picture).split())
    facts = json.loads(run(*options, "--json"))["quorum"]
    assert facts["needed"] == 4
    assert 4 <= facts["mean_active"] < 5
    assert facts["gradients_per_second"] == pytest.approx(7.2, rel=0.1), "seven workers bring 1 each, the slow one 1/5"
    assert facts["least_share"] == pytest.approx(8 / 36, rel=0.25), "1/5 of 7.2/8"
    assert facts["largest_age"] <= facts["proved_age"] == 8
    assert sum(facts["shares_of_ages"]) == pytest.approx(1)
    assert f"at most {facts['largest_age']:g} of 8" in text
    assert "timeline written to" in text
    assert "<svg" in picture.read_text()
