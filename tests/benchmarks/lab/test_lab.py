"""The lab measures what it says: a real cell over shaped links, its numbers by hand, and its predictions."""

import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import kit
from benchmarks.lab import rehearse as rehearse_module
from benchmarks.lab.campaign import Campaign, Experiment
from benchmarks.lab.contestants import contestants
from benchmarks.lab.measure import Measured
from benchmarks.lab.network import why_not
from benchmarks.lab.plan import Point, predicted
from benchmarks.lab.rehearse import known_rates, rates_key
from benchmarks.lab.results import Row, baseline, block, page, published
from benchmarks.lab.results import main as redraw
from benchmarks.lab.run import main as lab_main
from benchmarks.lab.setting import MODEL_BYTES, Job, Setting, settings
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link

HOME = Path(__file__).resolve().parents[3]
PLAIN = Setting(name="plain", compute=0.06)
SLOW = Setting(name="slow", compute=0.06, slow=((6, 5.0),))
FOUR = Cluster.regular(4, 4)


def measured(step_ms, curve=(), nic=1.0):
    return Measured(step_ms=step_ms, nic_mb=nic, curve=list(curve))


def test_nodes_may_hold_different_numbers_of_workers():
    job = Job(num_nodes=3, workers_per_node=4, sizes=(4, 2, 2))
    assert (job.num_workers, [job.first_of(node) for node in range(3)]) == (8, [0, 4, 6])
    assert Job.of_line(job.to_line()) == job
    assert Job(num_nodes=2, workers_per_node=3).workers_of_nodes == (3, 3)
    assert str(Experiment(setting=PLAIN, shape=(3, 4), sizes=job.sizes).cluster) == "4,2,2"


def test_the_target_is_interpolated_between_evaluations():
    cell = measured(50.0, [(0, 0.0, 2.0), (4, 1.0, 1.0), (8, 2.0, 0.0)])
    assert cell.reached(0.5) == (6.0, 1.5)
    assert cell.reached(-1.0) is None


def test_the_free_step_counts_steps_of_all_workers():
    assert PLAIN.free_step(16) == pytest.approx(0.06)
    assert SLOW.free_step(16) == pytest.approx(0.06 * 16 / 15.2)


def test_only_exact_averaging_in_every_step_is_the_baseline():
    curve = [(0, 0.0, 1.0), (10, 1.0, 0.0)]
    rows = [
        Row("ring", "All-Reduce", [measured(90.0, curve)], 0.5),
        Row("best", "All-Reduce", [measured(80.0, [(s, 0.5 * t, v) for s, t, v in curve])], 0.5),
        Row("local", "local SGD", [measured(10.0, [(s, 0.1 * t, v) for s, t, v in curve])], 0.5),
    ]
    assert baseline(rows) is rows[1]
    lines = block(rows, PLAIN, 16).splitlines()
    assert lines[3].startswith("| best (baseline) |  | 80 [80-80] | 5 | 0.25")
    assert "| 5.00 |" in lines[4]


def test_paced_contestants_let_the_slow_worker_take_one_step_to_five():
    listed = {c.name: c for c in contestants(lambda *_: None)}
    paced = listed["paced node-then-all 3"]
    assert paced.make(FOUR, PLAIN) is None
    worker_steps = paced.make(FOUR, SLOW).worker_steps().tolist()
    assert worker_steps == [5] * 6 + [1] + [5] * 9


def test_every_contestant_has_a_schedule_that_is_proved_or_a_kind_without_phases():
    from partreduce.verify import prove

    for contestant in contestants(lambda *_: None):
        for setting in (PLAIN, SLOW):
            schedule = contestant.make(FOUR, setting) if contestant.make else None
            if schedule is not None and schedule.strategy.kind in ("static", "allreduce") and schedule.is_mixing:
                assert prove(schedule).verdict == "proved", contestant.name


def test_the_segments_of_a_task_are_its_model():
    from benchmarks.lab.setting import MODEL_BYTES, SEGMENTS

    for task, size in MODEL_BYTES.items():
        assert sum(SEGMENTS[task]) == size


@pytest.mark.parametrize("task", ["digits", "ten layers"])
def test_the_segments_of_a_task_are_those_that_the_run_time_sends(task):
    import torch

    from benchmarks.lab.setting import SEGMENTS
    from benchmarks.lab.tasks import Clock, Samples, make_model
    from partreduce.runtime.averaging.flat_model import BufferPolicy, FlatModel, StatePolicy
    from partreduce.runtime.averaging.layers import segments_of

    samples = Samples(torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.int64))
    model = make_model(task, samples, Clock(), 0)
    flat = FlatModel(model, torch.optim.SGD(model.parameters()), BufferPolicy.AVERAGE, StatePolicy.LOCAL)
    sent = [4 * (one.stop - one.start) for one in segments_of(flat.buckets, model.parameters())]
    assert sent == pytest.approx([size for size in SEGMENTS[task] if size], abs=256), "but for padding"


def test_cells_are_predicted_from_profiled_links_by_the_simulators_step_times():
    ring = next(c for c in contestants(lambda *_: None) if c.name == "flat ring").make(FOUR, PLAIN)
    hardware = Hardware(nic=Link(0.0, 8e-6 / PLAIN.megabits), model_bytes=MODEL_BYTES["digits"])
    # All of the model goes when backward has come to the first layer, and a ring of 16 sends 15/8 of it.
    ms = 1e3 * (PLAIN.compute + 15 / 8 * MODEL_BYTES["digits"] * 8e-6 / PLAIN.megabits)
    points = [Point(name, PLAIN, ring, "ring", ms * off, steps=4) for name, off in (("near", 1.1), ("far", 1.3))]
    found = predicted(points, {PLAIN.name: hardware})
    assert [one["predicted"] for one in found["points"]] == pytest.approx([ms, ms])
    assert "1 of 2 cells within 15 %" in found["words"]
    assert predicted(points, {}) is None


def test_every_published_result_makes_its_tables_again():
    published = sorted((HOME / "benchmarks/results").glob("lab-*.json"))
    assert published
    for path in published:
        content = json.loads(path.read_text())
        text = page(content)
        assert all(f"## {cell['setting']}" in text and cell["contestant"] in text for cell in content["cells"]), path


def test_what_is_published_makes_the_page_of_all_that_was_measured():
    curve = [(0, 0.0, 2.302585), (4, 1.0 / 3, 1.0 / 7), (8, 2.0 / 3, 1e-5)]
    cell = replace(measured(1000.0 / 11, curve, nic=2.0 / 3), steps=[8] * 16)
    everything = {
        "head": {"commit": "none"},
        "measure": {"num_workers": 16, "targets": {"slow": 0.5}, "families": {"ring": "All-Reduce"}, "rates": {}},
        "settings": [asdict(SLOW)],
        "cells": [{"setting": "slow", "contestant": "ring", "repetition": 0, "load": 1.0, "measured": asdict(cell)}],
        "notes": ["one"],
        "profiles": {"slow": [1.0] * 100},
        "prediction": None,
    }
    text = kit.compact(published(everything))
    assert page(json.loads(text)) == page(everything)
    assert "profiles" not in json.loads(text)
    assert set(json.loads(text)["cells"][0]["measured"]) == {"step_ms", "nic_mb", "curve"}
    assert sum("ring" in line and "curve" in line for line in text.splitlines()) == 1, "a cell is one line"


def test_redraw_writes_table_and_pictures_from_the_json_file_alone(tmp_path):
    cell = measured(90.0, [(0, 0.0, 2.0), (4, 1.0, 0.1)])
    content = {
        "head": {"commit": "none"},
        "measure": {"num_workers": 16, "targets": {"slow": 0.5}, "families": {"ring": "All-Reduce"}, "rates": {}},
        "settings": [asdict(SLOW)],
        "cells": [{"setting": "slow", "contestant": "ring", "repetition": 0, "load": 1.0, "measured": asdict(cell)}],
        "notes": [],
        "prediction": None,
    }
    (tmp_path / "lab-one.json").write_text(json.dumps(content))
    assert redraw([], tmp_path) == 0
    assert "| ring (baseline) |" in (tmp_path / "lab-one.md").read_text()
    assert (tmp_path / "lab-one-slow.png").stat().st_size > 10_000


def test_the_list_needs_no_root():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lab.run", "--list"],
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
        cwd=HOME,
    )
    assert "200mbit homogeneous" in done.stdout
    assert set(settings(16)) <= {line.strip() for line in done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--settings", "5mbit"], "no setting '5mbit'"), (["--contestants", "DPP"], "no contestant 'DPP'")],
)
def test_a_setting_or_a_contestant_that_is_not_there_is_named(words, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab", *words])
    assert lab_main() == 2
    assert said in capsys.readouterr().err


def test_rates_are_those_of_the_schedule_and_not_of_its_name(tmp_path, monkeypatch):
    """A recommendation of yesterday under the same name says nothing of today's: it is rehearsed anew."""
    monkeypatch.setattr("benchmarks.lab.rehearse.RATES", tmp_path / "rates.json")
    monkeypatch.setitem(rehearse_module.CASES, "digits", 4)
    cluster, setting = Cluster.regular(1, 2), replace(PLAIN, steps=4)
    campaign = Campaign(Experiment(setting=setting, shape=(1, 2), contestants=("node-then-all 3",)), None, 0.0)
    (contestant,) = campaign.contestants
    campaign.fitting()
    (known,) = known_rates("digits, 2 workers")
    assert known == rates_key(contestant, contestant.make(cluster, setting))
    assert known != rates_key(contestant, build("node-then-all", cluster, node_rounds=4))
    assert known.startswith("node-then-all 3 ")
    assert campaign._by_rate(contestant) == known_rates("digits, 2 workers")[known] != {}


@pytest.mark.lab
@pytest.mark.processes
def test_cells_run_over_shaped_links_end_at_their_loss_or_at_the_limit_of_all_and_leave_nothing_behind(
    tmp_path, stored
):
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    from benchmarks.lab.crew import standing
    from benchmarks.lab.measure import read_cell
    from benchmarks.lab.tasks import read_data, write_data

    data = tmp_path / "digits.npz"
    write_data("digits", data)
    setting = replace(PLAIN, compute=0.01, steps=4)
    reachable = Experiment(setting=setting, shape=(2, 2), contestants=("flat ring",), rate=0.4, target=1.5)
    endless = replace(reachable, setting=replace(setting, steps=10_000), target=0.0, limit=2.0)
    with standing(2) as lab:
        lab.shape("200mbit")
        schedule = str(stored(build("allreduce", Cluster.regular(2, 2))))
        sizes = {"address": "", "port": 0, "compute": 0.01, "steps": 8}
        job = lab.job("cell", "partreduce", 2, schedule=schedule, data_file=str(data), **sizes)
        assert lab.crew.run(job) == [0, 0]
        found = read_cell(job, read_data(data))
        assert (job.path / "trace-00000.json").exists()
        reached, cut = (Campaign(experiment, lab, time.monotonic() + 100) for experiment in (reachable, endless))
        for campaign in (reached, cut):
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
    assert cell.measured.reached(1.5), "four steps were too few, so it took more"
    assert cell.measured.steps[0] > 4
    (cell,) = cut.cells
    assert cell.measured.ended == "time"
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not any(name in left for name in names)
