"""How long steps of the lab's workers compute: as the setting says, the same for all who ask, and really slept."""

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.lab.setting import Job, Lengths, Setting, StepLengths
from benchmarks.lab.tasks import write_data
from benchmarks.lab.worker import Board
from helpers import children

DELAYED = {"delayed": (2, 0.5)}
SHIFTING = {"skew": (0.1, 0.4)}
RANDOM = {"random_factor": 6.0, "random_chance": 0.25}


def lengths_of(lengths, num_workers, steps, seed=0):
    """Seconds, shape (steps, num_workers), as each worker computes its own column."""
    workers = [StepLengths(lengths, num_workers, rank, seed) for rank in range(num_workers)]
    return np.array([[worker(step) for worker in workers] for step in range(steps)])


def test_so_many_workers_are_delayed_in_every_step_and_all_agree_who():
    seconds = lengths_of(Lengths(compute=0.1, **DELAYED), 8, 200)
    assert (np.isclose(seconds, 0.6).sum(axis=1) == 2).all()
    assert np.isclose(seconds, 0.1).sum() == 6 * 200
    assert (np.isclose(seconds, 0.6).mean(axis=0) > 0.1).all(), "drawn anew: everybody's turn comes"


def test_shifting_delays_move_on_by_one_worker_from_step_to_step():
    seconds = lengths_of(Lengths(compute=0.1, **SHIFTING), 4, 8)
    assert np.allclose(seconds[0], [0.2, 0.3, 0.4, 0.5])
    assert all(np.allclose(seconds[step], np.roll(seconds[0], -step)) for step in range(8))


@pytest.mark.parametrize("disturbance", [{}, DELAYED, SHIFTING, RANDOM])
def test_mean_steps_are_those_of_many_steps(disturbance):
    lengths = Lengths(compute=0.1, slow=((1, 3.0),), **disturbance)
    found = np.mean([lengths_of(lengths, 4, 500, seed) for seed in range(4)], axis=(0, 1))
    assert found == pytest.approx(lengths.mean_seconds(4), rel=0.12)


@pytest.mark.parametrize("disturbance", [{}, DELAYED, SHIFTING, RANDOM])
def test_a_job_and_a_setting_keep_their_lengths_on_their_way_through_json(disturbance):
    setting = Setting(name="one", slow=((2, 5.0),), **disturbance)
    assert Setting.of_json(json.loads(json.dumps({**setting.lengths(), "name": "one"}))) == setting
    fields = {"name": "", "folder": "", "how": "", "num_nodes": 1, "workers_per_node": 4, "address": "", "port": 0}
    job = Job(**fields, **setting.lengths())
    assert Job.of_line(job.to_line()) == job
    assert job.lengths() == setting.lengths()


def test_two_disturbances_at_once_are_refused():
    with pytest.raises(ValueError, match="one at most"):
        Lengths(**DELAYED, **SHIFTING).compute_times()


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_workers_sleep_as_long_as_their_lengths_say(tmp_path):
    """Two cells of two workers through a forker of the lab, without its network, which these need not."""
    write_data("digits", tmp_path / "digits.npz")
    plain = Job(
        name="", folder="", how="alone", num_nodes=1, workers_per_node=2, address="", port=0, compute=0.03, steps=6,
        data_file=str(tmp_path / "digits.npz"),
    )  # fmt: skip
    jobs = {
        "delayed": replace(plain, delayed=(1, 0.2)),
        "shifting": replace(plain, skew=(0.0, 0.2)),
    }
    lines = []
    for name, job in jobs.items():
        folder = tmp_path / name
        folder.mkdir()
        Board(folder, 2, create=True)
        lines.append(replace(job, folder=str(folder)).to_line())
    done = subprocess.run(
        [*children.module("benchmarks.lab.forker"), "0"], env=children.environment(), input="\n".join(lines) + "\n",
        stdout=subprocess.PIPE, text=True, timeout=280, check=True,
    )  # fmt: skip
    assert done.stdout.split("\n")[:3] == ["ready", "done 0", "done 0"]
    for name, job in jobs.items():
        told = lengths_of(job, 2, 6)
        said = [json.loads((tmp_path / name / f"worker-{rank:03d}.json").read_text()) for rank in range(2)]
        times = np.array([worker["times"] for worker in said])  # (workers, steps, 3)
        slept = (times[:, :, 1] - times[:, :, 0]).T
        assert (slept >= told - 1e-3).all(), name
        # Others' processes may make steps longer, but hardly each of those of which no delay was asked.
        assert slept[told < 0.1].min() < 0.15, name
        assert (told >= 0.2).sum() == 6, "in each of these steps one of the two is held up"
