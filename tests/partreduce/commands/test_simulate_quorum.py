"""`partreduce simulate` of a schedule under a quorum: what it says of the rounds, and the picture."""

import json

import pytest

from helpers.command_runs import runner
from partreduce import Cluster, Schedule
from partreduce.commands.simulate import command
from partreduce.files import dump_schedule
from partreduce.strategies import AllReduce, PartialAllReduce


@pytest.fixture
def file(tmp_path):
    schedule = Schedule("half", Cluster.regular(2, 4), AllReduce(sync=PartialAllReduce(quorum=4, staleness=8)))
    path = tmp_path / "quorum.json"
    path.write_text(json.dumps(dump_schedule(schedule)))
    return path


def run(*arguments):
    return runner(command)(*arguments).stdout


def test_rounds_are_told_and_the_run_is_drawn(file, tmp_path):
    options = (file, "--set", "compute=1s", "--set", "slow=7:5", "--set", "jitter=0.02", "--rounds", "100")
    picture = tmp_path / "rounds.svg"
    text = " ".join(run(*options, "-o", picture).split())
    facts = json.loads(run(*options, "--json"))["quorum"]
    assert facts["needed"] == 4
    assert 4 <= facts["mean_active"] < 5
    assert facts["gradients_per_second"] == pytest.approx(7.2, rel=0.1), "of seven 1 each, of the slow one 1/5"
    assert facts["least_share"] == pytest.approx(8 / 36, rel=0.25), "1/5 of 7.2/8"
    assert facts["largest_age"] <= facts["proved_age"] == 8
    assert sum(facts["shares_of_ages"]) == pytest.approx(1)
    assert f"at most {facts['largest_age']:g} of 8" in text
    assert "timeline written to" in text
    assert "<svg" in picture.read_text()
