"""The tables of the papers: valid rows, merged files, and the same numbers in JSON and on the pages."""

import random
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch

from benchmarks.lab import campaign
from benchmarks.lab.campaign import Cells, Experiment
from benchmarks.lab.contestants import contestants, hop_name
from benchmarks.lab.network import why_not
from benchmarks.lab.setting import Job, Setting
from benchmarks.lab.tasks import MOST, Batches, Samples
from benchmarks.papers import figures, page, pipe_sgd, rows
from benchmarks.papers.page import PAPERS
from benchmarks.papers.rows import Curve, Results, Row, ratio, value

HOME = Path(__file__).resolve().parents[3]


PAPER = {paper.name: paper for paper in PAPERS}
EQUAL, RANDOM, SLOW = "svm, all equal", "svm, 6× at random", "svm, one 4× slow"
STEP = "Milliseconds per step"


def results():
    return {paper.name: rows.read(paper.name) for paper in PAPERS}


def row(figure="one", setting="here", measured=1.0, **more):
    return Row(
        **{"figure": figure, "setting": setting, "measured": measured, "low": measured, "high": measured, "runs": 1}
        | more
    )


def random_row(rng):
    low, middle, high = sorted(round(rng.uniform(0.1, 999), 1) for _ in range(3))
    paper = rng.choice([None, 2.5, (2.0, 3.2)])
    more = rng.choice([{}, {"predicted": 4.5}, {"aim": 3.0}, {"derived": True}, {"commit": "abc"}])
    return Row(
        figure=rng.choice("abc"), setting=rng.choice("xyz"), paper=paper, measured=middle, low=low, high=high,
        runs=rng.randint(1, 9), unit=rng.choice(list(rows.UNITS)), **more,
    )  # fmt: skip


def test_page_and_tables_match_the_result_files():
    assert page.PAGE.read_text().split(page.BEGIN)[1].strip() == page.page(results()).strip()
    for paper in PAPERS:
        written = (rows.RESULTS / f"{paper.name}.md").read_text()
        assert written == page.tables(paper, results()[paper.name]), "stale: python -m benchmarks.papers --write"


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_result_files_are_short_and_hold_the_headlines(paper):
    found = rows.read(paper.name)
    keys = [kept.key for kept in found.rows]
    assert len(set(keys)) == len(keys)
    assert set(paper.headlines) <= set(keys)
    assert len(found.to_text().splitlines()) < 500
    assert set(found.why) <= {kept.figure for kept in found.rows}
    assert Results.of_text(found.to_text()) == found


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"low": 2.0}, "in \\[2.0"),
        ({"high": 0.5}, "in \\[1.0"),
        ({"runs": 0}, "of 0 runs"),
        ({"paper": (3.2, 2.0)}, "no range"),
        ({"unit": "furlongs"}, "unit 'furlongs'"),
        ({"measured": float("nan")}, "nan"),
    ],
)
def test_invalid_row_is_rejected(wrong, words):
    with pytest.raises(ValueError, match=words):
        row(**wrong)


def test_rows_round_trip_and_a_merge_replaces_only_repeated_rows():
    rng = random.Random(3)
    for _ in range(200):
        older, newer = (
            Results(
                paper="p", commit=commit, why={"a": commit}, notes=(commit,),
                rows=tuple({(made := random_row(rng)).key: made for _ in range(rng.randint(0, 6))}.values()),
                curves=(Curve(plot="loss", name=rng.choice("mn"), at=(0.0, 1.0), losses=(2.0, 1.0)),),
            )
            for commit in ("old", "new")
        )  # fmt: skip
        assert Results.of_text(older.to_text()) == older
        merged = older.merged(newer)
        found = {kept.key: kept for kept in merged.rows}
        stay = {kept.key: replace(kept, commit=kept.commit or "old") for kept in older.rows}
        assert found == stay | {kept.key: kept for kept in newer.rows}
        assert merged.merged(newer).rows == merged.rows
        figures = [kept.figure for kept in merged.rows]
        assert figures == sorted(figures, key=figures.index), "the rows of a figure are adjacent"
        assert "new" in merged.notes


def test_run_without_measurements_keeps_the_file(tmp_path):
    rows.add(Results(paper="p", commit="one", rows=(row(),), notes=("went well",)), tmp_path)
    before = (tmp_path / "p.json").read_text()
    assert rows.add(Results(paper="p", commit="two", notes=("72 cells were left out",)), tmp_path).commit == "one"
    assert (tmp_path / "p.json").read_text() == before


def test_range_of_a_ratio_covers_all_pairs_of_runs():
    theirs, ours = [30.0, 33.0, 36.0], [10.0, 11.0, 15.0]
    made = ratio(theirs, ours, figure="f", setting="s")
    pairs = [a / b for a in theirs for b in ours]
    assert (made.low, made.high, made.measured) == (min(pairs), max(pairs), 3.0)
    assert value(ours, figure="f", setting="s").measured == 11.0


def test_prague_rows_match_the_stored_cells():
    found = {kept.key: kept for kept in figures.read_stored(PAPER["prague"]).rows}
    recommendation = found["Over All-Reduce, all workers equal", "planner's recommendation, 40 Mbit/s"]
    assert recommendation.measured == pytest.approx(39.08 / 8.61, rel=1e-3)
    slow = found["Over All-Reduce, one worker 5× slower", "smart generator, the paper's rule, against the flat ring"]
    assert slow.measured == pytest.approx(2.05, abs=0.01)


def test_seconds_to_a_loss_are_steps_times_step_time():
    step, steps, shape = pipe_sgd.STEP, pipe_sgd.STEPS, "digits, 4x1"
    made = (
        row(step, f"{shape}, 200 Mbit/s: D-Sync", 200.0, low=190.0, high=220.0, runs=3, unit="milliseconds"),
        row(step, f"{shape}, 200 Mbit/s: D-Sync, layer by layer", 100.0, unit="milliseconds"),
        row(step, f"{shape}, 200 Mbit/s: Pipe", 50.0, low=40.0, runs=2, unit="milliseconds"),
        row(step, f"{shape}, 40 Mbit/s: Pipe + 8 bit", 50.0, unit="milliseconds"),
        row(steps, f"{shape}: D-Sync", 30.0, low=28.0, high=33.0, runs=3, unit="steps"),
        row(steps, f"{shape}: Pipe", 60.0, high=70.0, runs=3, unit="steps"),
    )
    found = {kept.key: kept for kept in pipe_sgd.derive(Results(paper="pipe-sgd", rows=made))}
    same = found[pipe_sgd.SECONDS, f"{shape}, 200 Mbit/s: D-Sync, layer by layer"]
    assert (same.measured, same.runs, same.derived) == (3.0, 1, True), "the same mathematics takes the same steps"
    late = found[pipe_sgd.SECONDS, f"{shape}, 200 Mbit/s: Pipe"]
    assert (late.measured, late.low, late.high, late.runs) == (3.0, 2.4, 3.5, 2)
    gain = found[pipe_sgd.LOSS_D, f"{shape}, 200 Mbit/s: Pipe"]
    assert (gain.measured, gain.low, gain.high) == (2.0, pytest.approx(28 * 0.19 / 3.5), pytest.approx(33 * 0.22 / 2.4))
    assert not any("40 Mbit/s" in kept.setting for kept in found.values()), "the steps to the loss are unknown there"


def hop_cells(**runs):
    """Return cells of the SVM from (milliseconds per step, steps to the loss) of each run, by kind and contestant."""
    contents = []
    settings = {made.setting.name: made.setting for made in figures.experiments_of("hop")}
    for name, kind in ((EQUAL, "equal"), (RANDOM, "random"), (SLOW, "slow")):
        setting, found = settings[name], runs.get(kind, {})
        halves = (list(found)[:1], list(found)[1:])  # experiments in one setting
        contents += [experiment_of(setting, {name: found[name] for name in names}) for names in halves]
    return Cells(contents)


def experiment_of(setting, found):
    """Return the content of one experiment with these runs."""
    listed = [
        {
            "setting": setting.name, "contestant": name,
            "measured": {
                "step_ms": ms, "nic_mb": 1.0,
                "curve": [(k * steps, k * steps * ms / 1e3, 0.6 - 0.2 * k) for k in (0, 1, 2)],
            },
        }
        for name, runs in found.items()
        for ms, steps in runs
    ]  # fmt: skip
    families, targets = dict.fromkeys(found, "Hop"), {setting.name: 0.4}
    measure = {"targets": targets, "rates": {}, "families": families, "num_workers": 16}
    return {"head": {"commit": "abc"}, "settings": [asdict(setting)], "cells": listed, "measure": measure}


def test_hop_rows_match_its_cells(tmp_path):
    standard, backup, skip = (hop_name("ring-based", gap) for gap in ("standard", "backup 1", "backup 1, skip 10"))
    found = hop_cells(
        equal={standard: [(200.0, 30)], "flat ring": [(200.0, 30)], "BSP server": [(400.0, 30)]},
        random={
            standard: [(400.0, 30), (440.0, 30), (480.0, 30)],
            backup: [(250.0, 33), (275.0, 36), (300.0, 33)],
            "flat ring": [(800.0, 30)],
        },
        slow={standard: [(780.0, 30)], skip: [(220.0, 45)]},
    )
    made = {(kept.figure.partition(":")[0], kept.setting): kept for kept in figures.rows("hop", found)}
    gain = made["Figures 16 and 17", "svm: ring-based, backup 1"]
    assert (gain.measured, gain.low, gain.high, gain.runs) == (1.6, pytest.approx(400 / 300), pytest.approx(1.92), 3)
    assert gain.paper == 1.81
    assert 1.3 < gain.predicted < 1.7, "the bound if only computation takes time"
    assert made["Figure 15", "svm: ring-based, backup 1"].measured == pytest.approx(1.1)
    assert made["Figures 14 and 17", "svm: ring-based, backup 1"].measured == pytest.approx(30 * 440 / (36 * 275))
    assert made["Figure 12", "svm: All-Reduce"].measured == 4.0
    assert made["Figure 12", "svm: ring-based, standard"].measured == pytest.approx(2.2)
    assert made["Figure 13", "svm, all equal: ring-based, standard"].measured == 2.0
    held = made["Figure 18", "svm: ring-based, backup 1, skip 10"]
    assert (held.measured, held.paper) == (pytest.approx(1.1), 1.1)
    assert held.predicted == pytest.approx(1.0, abs=0.02)
    assert made["Figure 18", "svm: ring-based, standard"].predicted == pytest.approx(4.0), "after the first third"
    faster = made["Figure 19", "svm: ring-based, backup 1, skip 10"]
    assert (faster.measured, faster.paper) == (pytest.approx(780 * 30 / (220 * 45)), 2.0)
    assert ("Figure 12", "svm: ring-based, backup 1") not in made, "Figure 12 compares graphs"
    results = figures.results(PAPER["hop"], found)
    assert len({curve.plot for curve in results.curves}) == 2, "one plot per setting with slow workers"
    one = replace(results, curves=results.curves[:1])
    assert {path.name for path in page.draw(one, tmp_path)} == {
        "hop-milliseconds-per-step.png",
        "hop-svm-6x-at-random.png",
    }
    again = Results.of_text(results.to_text())
    assert (again.bars, [curve.steps for curve in again.curves]) == (results.bars, [c.steps for c in results.curves])


def docstrings(count=256):
    """Return docstrings of 1 to 200 words, labeled by their length."""
    rng = np.random.default_rng(0)
    words = np.zeros((count, MOST), dtype=np.int32)
    lengths = rng.integers(1, 201, count)
    for row, length in zip(words, lengths, strict=True):
        row[:length] = rng.integers(1, 4096, length)
    return Samples(torch.from_numpy(words), torch.from_numpy((lengths > 100).astype(np.int64)))


def test_batch_cost_is_that_of_its_longest_docstring():
    samples = docstrings()
    job = Job(num_nodes=1, workers_per_node=2, setting=Setting(task="docstrings"))
    batches = Batches(job, 1, samples)
    drawn = [batches.draw() for _ in range(400)]
    assert mean(share for _, share in drawn) == pytest.approx(1.0, abs=0.1)
    for places, share in drawn[:20]:
        lengths = (samples.inputs[places] > 0).sum(1)
        assert len(places) == job.setting.batch
        assert share == pytest.approx(
            int(lengths.max()) / int((samples.inputs[drawn[0][0]] > 0).sum(1).max()) * drawn[0][1]
        )
    again = Batches(job, 1, samples)
    assert [share for _, share in drawn[:5]] == [again.draw()[1] for _ in range(5)]


def test_every_experiment_uses_known_contestants():
    known = {contestant.name for contestant in contestants()}
    for paper in figures.EXPERIMENTS:
        wanted = [(e.setting.name, e.rate, name) for e in figures.experiments_of(paper) for name in e.contestants]
        assert {name for *_, name in wanted} <= known, paper
        assert paper in ("pipe-sgd", "prague") or len(set(wanted)) == len(wanted), "a cell is run by one experiment"
        patterns = [pattern for made in figures.table_of(paper).figures for pattern in made.where]
        assert all(figures.matches(where, patterns) for where, *_ in wanted), "every setting makes rows"


def test_list_of_papers_needs_no_root():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.papers", "--list"],
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
        cwd=HOME,
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == [paper.name for paper in PAPERS]


@pytest.mark.lab
@pytest.mark.processes
def test_paper_runs_in_the_lab_and_produces_rows(tmp_path, monkeypatch):
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    monkeypatch.setattr(campaign, "RAW", tmp_path)
    tiny = Setting(name="digits, 2x1, 200 Mbit/s", rate="200mbit", compute=0.02)
    slow = Setting(name="digits, one 4× slow", rate="1gbit", compute=0.02, slow=((2, 4.0),), momentum=0.9)
    skipping = "Hop ring-based, backup 1, skip 10"
    listed = [
        Experiment(setting=tiny, shape=(2, 1), contestants=("flat ring",), steps=4, repetitions=1),
        Experiment(setting=slow, shape=(2, 2), contestants=(skipping,), steps=12, rate=0.02, repetitions=1),
    ]
    found = campaign.run("tiny", listed, 2.0, by="papers", profile=False)
    assert [block.contestant for block in found.blocks()[tiny.name]] == ["flat ring"]
    (skipped,) = found.blocks()[slow.name]
    assert (skipped.contestant, skipped.learning_rate) == (skipping, 0.02)
    assert [at >= 12 for at in skipped.cells[0].steps] == [True] * 4, "also the worker that skipped some"
    assert skipped.cells[0].curve[-1][0] > 4
    assert not found.notes
    made = list(figures.rows("pipe-sgd", found))
    assert [kept.key for kept in made] == [(STEP, "digits, 2x1, 200 Mbit/s: D-Sync")]
    assert (STEP, "digits, one 4× slow: ring-based, backup 1, skip 10") in {
        kept.key for kept in figures.rows("hop", found)
    }
    # Two workers exchange one model each way: 2.19 MB over 25 MB/s, and 20 ms of computing.
    assert made[0].measured > 1e3 * (0.02 + 2.19e6 / 25e6)
    assert list(figures.rows("pipe-sgd", Cells.read("tiny"))) == made
