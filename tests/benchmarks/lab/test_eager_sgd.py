"""eager-SGD's experiments: delays fall as the settings say, calls wait as the draws allow, rows say what cells say."""

import json
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch

from benchmarks.lab.contestants import contestants, eager_name
from benchmarks.lab.setting import Job, Setting
from benchmarks.lab.tasks import Batches, Samples
from benchmarks.lab.text import MOST
from benchmarks.papers import eager_sgd, latency
from benchmarks.papers.cells import Cells, Kept, step_seconds
from benchmarks.papers.latency import HALF, MAJORITY, MODES, SOLO, SYNCHRONOUS, Found, Trial
from benchmarks.papers.rows import Results
from partreduce.topo.cluster import Cluster


def seconds_of(where, steps=64):
    made = next(made for made in eager_sgd.PAPER.experiments() if made.setting.name == where)
    return step_seconds(made.setting, made.shape, steps, 0)


@pytest.mark.parametrize("delay", eager_sgd.DELAYS)
def test_one_of_eight_is_delayed_in_every_step(delay):
    seconds = seconds_of(eager_sgd.HYPERPLANE[delay])
    late = seconds > 0.1
    assert seconds.shape == (64, 8)
    assert (late.sum(axis=1) == 1).all()
    assert late.any(axis=0).all(), "drawn anew: everybody's turn comes"
    assert seconds[late] == pytest.approx(seconds[~late].max() + delay / 3e3)


def docstrings(count=256):
    """Docstrings of 1 to 200 words, whose label says how long they are."""
    rng = np.random.default_rng(0)
    words = np.zeros((count, MOST), dtype=np.int32)
    lengths = rng.integers(1, 201, count)
    for row, length in zip(words, lengths, strict=True):
        row[:length] = rng.integers(1, 4096, length)
    return Samples(torch.from_numpy(words), torch.from_numpy((lengths > 100).astype(np.int64)))


def test_a_batch_of_docstrings_is_as_long_as_its_longest():
    samples = docstrings()
    job = Job(num_nodes=1, workers_per_node=2, task="docstrings")
    batches = Batches(job, 1, samples)
    drawn = [batches.draw() for _ in range(400)]
    assert mean(share for _, share in drawn) == pytest.approx(1.0, abs=0.1)
    for places, share in drawn[:20]:
        lengths = (samples.inputs[places] > 0).sum(1)
        assert len(places) == job.batch
        assert share == pytest.approx(
            int(lengths.max()) / int((samples.inputs[drawn[0][0]] > 0).sum(1).max()) * drawn[0][1]
        )
    again = Batches(job, 1, samples)
    assert [share for _, share in drawn[:5]] == [again.draw()[1] for _ in range(5)]


def test_every_cell_names_a_contestant_and_is_run_once():
    known = {contestant.name: contestant for contestant in contestants(lambda *_: None)}
    wanted = [(made.setting.name, name) for made in eager_sgd.PAPER.experiments() for name in made.contestants]
    assert {name for _, name in wanted} <= set(known)
    assert len(set(wanted)) == len(wanted)
    for part in eager_sgd.PAPER.parts:
        assert eager_sgd.PAPER.experiments(part), part
    for name, quorum in (("half", 8), ("all but one", 15)):
        schedule = known[eager_name(name)].make(Cluster.regular(4, 4), Setting(name="any"))
        assert schedule.strategy.sync.quorum == quorum


def test_a_majoritys_seed_draws_evenly_and_its_limit_is_what_all_draws_give():
    trial = Trial(processes=16, size=64, skew=20.0, mode=MAJORITY, iterations=24)
    seed, share = latency.even_seed(trial, 60)
    drawn = list(islice(latency.draws(trial, seed), latency.WARM_UP, latency.WARM_UP + 24))
    waits = [mean(max(0, initiator - rank) for rank in range(16)) for initiator in drawn]
    everybody = mean(mean(max(0, initiator - rank) for rank in range(16)) for initiator in range(16))
    assert mean(waits) / everybody == pytest.approx(share)
    assert share == pytest.approx(1.0, abs=0.03)
    assert latency.limit(MAJORITY, 16) == pytest.approx(7.5 / everybody)
    assert latency.limit(HALF, 16) == pytest.approx(7.5 / mean(max(0, 7 - rank) for rank in range(16)))


def found(mode, milliseconds, active, processes=32, **more):
    trial = Trial(processes=processes, size=64, skew=50.0, mode=mode, iterations=len(milliseconds))
    return Found(trial=replace(trial, **more), milliseconds=tuple(milliseconds), active=tuple(active))


def kept(listed):
    """As a run keeps what was measured apart from the lab's cells."""
    return Kept(Path("unused"), "abc", [asdict(each) for each in listed])


def test_figure_9s_rows_say_what_was_measured():
    listed = [
        found(SYNCHRONOUS, [310.0, 330.0, 320.0], [32.0] * 3),
        found(SOLO, [4.0, 5.0, 6.0], [1.0, 1.0, 2.0]),
        found(MAJORITY, [110.0, 128.0, 146.0], [16.0, 17.0, 18.0]),
        found(HALF, [80.0, 80.0, 80.0], [16.0] * 3),
    ]
    made = {row.key: row for row in latency.rows(kept(listed))}
    where = "32 processes, 64 B, 50 ms"
    gain = made[latency.FIGURE, f"{where}: solo"]
    assert (gain.measured, gain.paper, gain.low, gain.high) == (64.0, 53.32, pytest.approx(310 / 6), 330 / 4)
    majority = made[latency.FIGURE, f"{where}: majority"]
    assert (majority.measured, majority.predicted) == (2.5, pytest.approx(96 / 33))
    assert majority.aim == pytest.approx(0.95 * 96 / 33)
    assert made[latency.OVER_MAJORITY, where].measured == pytest.approx(1.6)
    assert made[latency.ACTIVE, f"{where}: majority"].measured == 17.0
    lower = [replace(each, trial=replace(each.trial, skew=5.0)) for each in listed]
    assert {curve.name for curve in latency.curves(kept([*listed, *lower]))} == {SOLO, MAJORITY, HALF}
    again = [latency.FOUND.validate_json(json.dumps(asdict(each))) for each in listed]
    assert again == listed


@pytest.mark.timeout(900)
def test_skewed_calls_wait_for_all_or_for_nobody():
    plan = [Trial(processes=3, size=64, skew=400.0, mode=mode, iterations=2) for mode in (SYNCHRONOUS, SOLO)]
    measured, notes = latency.measure(plan, 800.0)
    assert not notes
    together, solo = measured
    assert set(together.active) == {3.0}
    assert min(together.milliseconds) > 0.8 * 400.0, "the mean of 800, 400 and 0"
    assert min(solo.active) < 3.0
    assert min(solo.milliseconds) < min(together.milliseconds)


def cells_of(runs):
    """Cells by setting and contestant: milliseconds per gradient, rounds, accuracy in the end, of each run."""
    contents = []
    for where, block in runs.items():
        setting = eager_sgd.PAPER.settings[where]
        listed = [
            {
                "setting": where,
                "contestant": name,
                "measured": {
                    "step_ms": ms, "nic_mb": 1.0, "steps": [80] * 8, "rounds": rounds,
                    "curve": [(k * 40, k * 40 * ms / 1e3, 0.6 - 0.3 * k) for k in (0, 1, 2)],
                    "accuracies": [(k * 40 * ms / 1e3, share * k / 2) for k in (0, 1, 2)], "own_accuracy": share - 0.1,
                },
            }
            for name, cells in block.items()
            for ms, rounds, share in cells
        ]  # fmt: skip
        measure = {"targets": {where: 0.3}, "rates": {}, "families": dict.fromkeys(block, ""), "num_workers": 8}
        contents.append({"head": {"commit": "abc"}, "settings": [asdict(setting)], "cells": listed, "measure": measure})
    return Cells(contents, None)


def test_the_labs_rows_say_what_its_cells_say():
    where, published = eager_sgd.SHIFTING, eager_name("majority, as published")
    cells = cells_of(
        {
            where: {
                eager_sgd.ALL_REDUCE: [(160.0, None, 0.96), (168.0, None, 0.97), (176.0, None, 0.98)],
                eager_sgd.MAJORITY: [(110.0, 100.0, 0.96), (112.0, 100.0, 0.97), (114.0, 128.0, 0.98)],
                published: [(120.0, 80.0, 0.9), (124.0, 80.0, 0.91), (126.0, 80.0, 0.92)],
            }
        }
    )
    made = {row.key: row for row in eager_sgd.rows(cells)}
    gain = made[eager_sgd.SPEED, f"{where}: majority"]
    assert (gain.measured, gain.paper, gain.runs) == (1.5, 1.29, 3)
    assert 1.4 < gain.predicted < 1.6, "what the same delays allow where only computing takes time"
    assert made[eager_sgd.SPEED, f"{where}: majority, as published"].paper == 1.29
    assert made[eager_sgd.TO_LOSS, f"{where}: majority"].measured == pytest.approx(1.5)
    assert made[eager_sgd.LEARNED, f"{where}: majority"].measured == 0.97
    assert made[eager_sgd.LEARNED, f"{where}: majority, as published, workers' own models"].measured == pytest.approx(
        0.81
    )
    assert made[eager_sgd.IN_TIME, f"{where}: All-Reduce"].measured == pytest.approx(0.485), "half-way at that instant"
    assert made[eager_sgd.ROUNDS, f"{where}: majority"].measured == pytest.approx(6.4)
    results = eager_sgd.PAPER.results(cells)
    again = Results.of_text(results.to_text())
    assert [row.key for row in again.rows] == [row.key for row in results.rows]
    assert len({row.key for row in results.rows}) == len(results.rows)
    assert set(MODES) == set(latency.ITERATIONS)
