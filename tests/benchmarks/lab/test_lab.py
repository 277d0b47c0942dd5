"""Cells of the lab over shaped links, their numbers by hand, and their predictions."""

import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import kit
from benchmarks.lab.campaign import Campaign, Experiment, best_rate, keep_rates, known_rates, rates_key
from benchmarks.lab.contestants import contestants
from benchmarks.lab.network import why_not
from benchmarks.lab.plan import simulated_ms, summarize
from benchmarks.lab.results import CellResult, Row, baseline, block, keep_published, page, read_cell
from benchmarks.lab.run import main as lab_main
from benchmarks.lab.setting import MODEL_BYTES, REHEARSED, SEGMENTS, Job, Setting
from benchmarks.lab.tasks import write_data
from benchmarks.lab.worker import Board
from helpers import children
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link

HOME = Path(__file__).resolve().parents[3]
PLAIN = Setting(name="plain", compute=0.06)
SLOW = Setting(name="slow", compute=0.06, slow=((6, 5.0),))
FOUR = Cluster.regular(4, 4)


def result_of(step_ms, curve=(), nic=1.0):
    return CellResult(step_ms=step_ms, nic_mb=nic, curve=list(curve))


def test_nodes_may_hold_different_numbers_of_workers():
    job = Job(num_nodes=3, workers_per_node=4, sizes=(4, 2, 2))
    assert (job.num_workers, [job.first_of(node) for node in range(3)]) == (8, [0, 4, 6])
    assert Job.of_line(job.to_line()) == job
    assert Job(num_nodes=2, workers_per_node=3).workers_of_nodes == (3, 3)
    assert str(Experiment(setting=PLAIN, shape=(3, 4), sizes=job.sizes).cluster) == "4,2,2"


def test_target_is_interpolated_between_evaluations():
    cell = result_of(50.0, [(0, 0.0, 2.0), (4, 1.0, 1.0), (8, 2.0, 0.0)])
    assert cell.reached(0.5) == (6.0, 1.5)
    assert cell.reached(-1.0) is None


def test_free_step_counts_steps_of_all_workers():
    assert PLAIN.free_step(16) == pytest.approx(0.06)
    assert SLOW.free_step(16) == pytest.approx(0.06 * 16 / 15.2)


def test_baseline_is_the_fastest_exact_average_in_every_step():
    curve = [(0, 0.0, 1.0), (10, 1.0, 0.0)]
    rows = [
        Row("ring", "All-Reduce", [result_of(90.0, curve)], 0.5),
        Row("best", "All-Reduce", [result_of(80.0, [(s, 0.5 * t, v) for s, t, v in curve])], 0.5),
        Row("local", "local SGD", [result_of(10.0, [(s, 0.1 * t, v) for s, t, v in curve])], 0.5),
    ]
    assert baseline(rows) is rows[1]
    lines = block(rows, PLAIN, 16).splitlines()
    assert lines[3].startswith("| best (baseline) |  | 80 [80-80] | 5 | 0.25")
    assert "| 5.00 |" in lines[4]


def test_slow_worker_takes_one_step_per_five_of_others():
    listed = {c.name: c for c in contestants()}
    paced = listed["paced node-then-all 3"]
    assert paced.make(FOUR, PLAIN) is None
    worker_steps = paced.make(FOUR, SLOW).worker_steps().tolist()
    assert worker_steps == [5] * 6 + [1] + [5] * 9


def test_every_contestant_with_phases_is_proved():
    from partreduce.verify import prove

    for contestant in contestants():
        for setting in (PLAIN, SLOW):
            schedule = contestant.make(FOUR, setting) if contestant.make else None
            if schedule is not None and schedule.strategy.kind in ("static", "allreduce") and schedule.is_mixing:
                assert prove(schedule).verdict == "proved", contestant.name


def test_segments_of_a_task_sum_to_the_model_size():
    for task, size in MODEL_BYTES.items():
        assert sum(SEGMENTS[task]) == size


@pytest.mark.parametrize("task", ["digits", "ten layers"])
def test_segments_of_a_task_match_the_runtime(task):
    import torch

    from benchmarks.lab.tasks import Clock, Samples, make_model
    from partreduce.runtime.averaging.bucketed_gradients import segments_of
    from partreduce.runtime.averaging.flat_model import BufferPolicy, FlatModel, StatePolicy

    samples = Samples(torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.int64))
    model = make_model(task, samples, Clock(), 0)
    flat = FlatModel(model, torch.optim.SGD(model.parameters()), BufferPolicy.AVERAGE, StatePolicy.LOCAL)
    sent = [4 * (one.stop - one.start) for one in segments_of(flat.buckets, model.parameters())]
    assert sent == pytest.approx([size for size in SEGMENTS[task] if size], abs=256), "except for padding"


def test_prediction_uses_profiled_links_and_simulated_step_times():
    ring = next(c for c in contestants() if c.name == "flat ring").make(FOUR, PLAIN)
    hardware = Hardware(nic=Link(0.0, 8e-6 / PLAIN.megabits), model_bytes=MODEL_BYTES["digits"])
    # The whole model is sent when the backward pass reaches the first layer, and a ring of 16 sends 15/8 of it.
    ms = 1e3 * (PLAIN.compute + 15 / 8 * MODEL_BYTES["digits"] * 8e-6 / PLAIN.megabits)
    assert simulated_ms(PLAIN, ring, hardware, 4, "ring") == pytest.approx(ms)
    found = summarize([{"measured": ms * off, "predicted": ms} for off in (1.1, 1.3)])
    assert "1 of 2 cells within 15 %" in found["words"]
    assert summarize([]) is None


def test_every_published_result_reproduces_its_tables():
    keep_published = sorted((HOME / "benchmarks/results").glob("lab-*.json"))
    assert keep_published
    for path in keep_published:
        content = json.loads(path.read_text())
        text = page(content)
        assert all(f"## {cell['setting']}" in text and cell["contestant"] in text for cell in content["cells"]), path


def test_published_results_produce_the_page_of_all_measurements():
    curve = [(0, 0.0, 2.302585), (4, 1.0 / 3, 1.0 / 7), (8, 2.0 / 3, 1e-5)]
    cell = replace(result_of(1000.0 / 11, curve, nic=2.0 / 3), steps=[8] * 16)
    everything = {
        "head": {"commit": "none"},
        "measure": {"num_workers": 16, "targets": {"slow": 0.5}, "families": {"ring": "All-Reduce"}, "rates": {}},
        "settings": [asdict(SLOW)],
        "cells": [{"setting": "slow", "contestant": "ring", "repetition": 0, "load": 1.0, "measured": asdict(cell)}],
        "notes": ["one"],
        "profiles": {"slow": [1.0] * 100},
        "prediction": None,
    }
    text = kit.compact(keep_published(everything))
    assert page(json.loads(text)) == page(everything)
    assert "profiles" not in json.loads(text)
    assert set(json.loads(text)["cells"][0]["measured"]) == {"step_ms", "nic_mb", "curve"}
    assert sum("ring" in line and "curve" in line for line in text.splitlines()) == 1, "a cell is one line"


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--settings", "5mbit"], "no setting '5mbit'"), (["--contestants", "DPP"], "no contestant 'DPP'")],
)
def test_unknown_setting_or_contestant_is_named(words, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab", *words])
    assert lab_main() == 2
    assert message in capsys.readouterr().err


def test_learning_rates_are_keyed_by_schedule_and_not_by_name(tmp_path, monkeypatch):
    """A new recommendation under the name of an older one is rehearsed again."""
    monkeypatch.setattr("benchmarks.lab.campaign.RATES", tmp_path / "rates.json")
    cluster = Cluster.regular(1, 2)
    experiment = Experiment(setting=PLAIN, shape=(1, 2), contestants=("node-then-all 3",))
    (contestant,) = Campaign(experiment, None, 0.0).contestants
    key = rates_key(contestant, contestant.make(cluster, PLAIN))
    assert key.startswith("node-then-all 3 ")
    assert key != rates_key(contestant, build("node-then-all", cluster, node_rounds=4))
    keep_rates("digits, 2 workers", key, found := {"0.4": None, "0.2": 40.0, "0.1": 44.5})
    assert known_rates("digits, 2 workers") == {key: found}
    assert Campaign(experiment, None, 0.0)._rate(contestant) == best_rate(found) == 0.2


DELAYED = {"delayed": (2, 0.5)}
SHIFTING = {"skew": (0.1, 0.4)}
RANDOM = {"random_factor": 6.0, "random_chance": 0.25}


def lengths_of(lengths, num_workers, steps, seed=0):
    """Return seconds (steps, num_workers); each worker computes its own column."""
    ranks = range(num_workers)
    return np.array([[lengths.step_seconds(num_workers, rank, seed, step) for rank in ranks] for step in range(steps)])


def test_given_number_of_workers_is_delayed_in_every_step():
    seconds = lengths_of(Setting(compute=0.1, **DELAYED), 8, 200)
    assert (np.isclose(seconds, 0.6).sum(axis=1) == 2).all()
    assert np.isclose(seconds, 0.1).sum() == 6 * 200
    assert (np.isclose(seconds, 0.6).mean(axis=0) > 0.1).all(), "drawn for each step: every worker is delayed in some"


def test_shifting_delays_move_by_one_worker_per_step():
    seconds = lengths_of(Setting(compute=0.1, **SHIFTING), 4, 8)
    assert np.allclose(seconds[0], [0.2, 0.3, 0.4, 0.5])
    assert all(np.allclose(seconds[step], np.roll(seconds[0], -step)) for step in range(8))


@pytest.mark.parametrize("disturbance", [{}, DELAYED, SHIFTING, RANDOM])
def test_mean_step_time_matches_many_steps(disturbance):
    lengths = Setting(compute=0.1, slow=((1, 3.0),), **disturbance)
    found = np.mean([lengths_of(lengths, 4, 500, seed) for seed in range(4)], axis=(0, 1))
    assert found == pytest.approx(lengths.mean_seconds(4), rel=0.12)


@pytest.mark.parametrize("disturbance", [{}, DELAYED, SHIFTING, RANDOM])
def test_jobs_and_settings_round_trip_through_json(disturbance):
    setting = Setting(name="one", slow=((2, 5.0),), **disturbance)
    assert Setting.of_json(json.loads(json.dumps(asdict(setting)))) == setting
    fields = {"name": "", "folder": "", "how": "", "num_nodes": 1, "workers_per_node": 4, "address": "", "port": 0}
    job = Job(**fields, setting=setting)
    assert Job.of_line(job.to_line()) == job
    assert job.setting.without_sleep() == Setting(name="one", compute=0.0)


def test_two_disturbances_at_once_are_rejected():
    with pytest.raises(ValueError, match="one at most"):
        Setting(**DELAYED, **SHIFTING).compute_times()


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_workers_sleep_for_their_step_times(tmp_path):
    """Two cells of two workers in a process of the lab, without its network."""
    write_data("digits", tmp_path / "digits.npz")
    plain = Job(
        name="", folder="", how="alone", num_nodes=1, workers_per_node=2, address="", port=0, steps=6,
        data_file=str(tmp_path / "digits.npz"),
    )  # fmt: skip
    jobs = {
        "delayed": replace(plain, setting=Setting(compute=0.03, delayed=(1, 0.2))),
        "shifting": replace(plain, setting=Setting(compute=0.03, skew=(0.0, 0.2))),
    }
    lines = []
    for name, job in jobs.items():
        folder = tmp_path / name
        folder.mkdir()
        Board(folder, 2, create=True)
        lines.append(replace(job, folder=str(folder)).to_line())
    done = subprocess.run(
        [*children.module("benchmarks.lab.crew"), "0"], env=children.environment(), input="\n".join(lines) + "\n",
        stdout=subprocess.PIPE, text=True, timeout=280, check=True,
    )  # fmt: skip
    assert done.stdout.split("\n")[:3] == ["ready", "done 0", "done 0"]
    for name, job in jobs.items():
        lengths = lengths_of(job.setting, 2, 6)
        report = [json.loads((tmp_path / name / f"worker-{rank:03d}.json").read_text()) for rank in range(2)]
        times = np.array([worker["times"] for worker in report])  # (workers, steps, 3)
        slept = (times[:, :, 1] - times[:, :, 0]).T
        assert (slept >= lengths - 1e-3).all(), name
        # Other processes may lengthen steps, but hardly every step without a delay.
        assert slept[lengths < 0.1].min() < 0.15, name
        assert (lengths >= 0.2).sum() == 6, "one of the two workers is delayed in each step"


@pytest.mark.lab
@pytest.mark.processes
def test_cells_run_over_shaped_links_and_leave_nothing_behind(tmp_path, save_schedule, monkeypatch):
    """They end at their loss or at the time limit; one contestant has no known rate and is rehearsed first."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    from benchmarks.lab.crew import standing
    from benchmarks.lab.tasks import read_data

    data = tmp_path / "digits.npz"
    write_data("digits", data)
    setting = replace(PLAIN, compute=0.01, steps=4)
    reachable = Experiment(setting=setting, shape=(2, 2), contestants=("flat ring",), rate=0.4, target=1.5)
    endless = replace(reachable, setting=replace(setting, steps=10_000), target=0.0, limit=2.0)
    unknown = replace(reachable, rate=None, target=2.0)
    monkeypatch.setattr("benchmarks.lab.campaign.RATES", tmp_path / "rates.json")
    monkeypatch.setitem(REHEARSED, "digits", (1.5, 24))
    with standing(2) as lab:
        lab.shape("200mbit")
        schedule = str(save_schedule(build("allreduce", Cluster.regular(2, 2))))
        sizes = {"address": "", "port": 0, "setting": Setting(compute=0.01), "steps": 8}
        job = lab.job("cell", "partreduce", 2, schedule=schedule, data_file=str(data), **sizes)
        assert lab.crew.run(job) == [0, 0]
        found = read_cell(job, read_data(data))
        assert (job.path / "trace-00000.json").exists()
        requested = (reachable, endless, unknown)
        reached, cut, rehearsed = (Campaign(experiment, lab, time.monotonic() + 100) for experiment in requested)
        for campaign in (reached, cut, rehearsed):
            campaign.prepare()
            (contestant,) = campaign.listed
            campaign._cell(contestant, 0)
        names = [lab.network.namespace(0), lab.network.namespace(1), lab.network.switch]
    assert found.steps == [8] * 4
    assert [step for step, _, _ in found.curve] == [0.0, 4.0, 8.0]
    # A ring of 4 moves 1.5 models over its slowest link in each step; headers add a few per cent.
    assert found.nic_mb == pytest.approx(1.5 * 2.192, rel=0.1)
    assert found.step_ms > 1000 * 1.5 * 2.192e6 / 25e6
    (cell,) = reached.cells
    assert cell.measured.reached(1.5), "four steps were too few, and the cell continued"
    assert cell.measured.steps[0] > 4
    (cell,) = cut.cells
    assert cell.measured.ended == "time"
    (by_rate,) = known_rates("digits, 4 workers").values()
    assert by_rate["0.4"] < 24, "a rehearsal counts the steps to its loss"
    assert len(rehearsed.cells) == 1
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not any(name in left for name in names)
