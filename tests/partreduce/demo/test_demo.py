"""The demonstration: its task, its sentences, and a short run with real worker processes."""

import json

import numpy as np
import pytest

from partreduce.__main__ import main
from partreduce.demo.results import TEST_IMAGES, TRAIN_IMAGES, Result, operations
from partreduce.demo.stages import TARGET, conclusion


def result(name, seconds, loss, across=1e6):
    count = len(loss)
    return Result(name, np.arange(1, count + 1) * 10, np.array(seconds), np.array(loss), np.ones(count), across)


def test_the_task_has_the_counts_that_results_divide_by():
    from partreduce.demo.digits import load_digits, make_model

    digits = load_digits()
    assert (len(digits.train_labels), len(digits.test_labels)) == (TRAIN_IMAGES, TEST_IMAGES)
    assert make_model()(digits.test_images[:3]).shape == (3, 10)
    assert sum(p.numel() for p in make_model().parameters()) == 71_754


def test_the_target_is_reached_at_the_first_evaluation_below_it():
    assert result("a", [1.0, 2.0, 3.0], [0.5, 0.1, 0.2]).reached(0.1) == (20, 2.0)
    assert result("a", [1.0], [0.5]).reached(0.1) is None


def test_the_conclusion_says_faster_slower_and_not_reached():
    base = result("All-Reduce", [2.0, 4.0], [0.5, 0.05], 4e6)
    lines = conclusion([base, result("fast", [1.0, 2.0], [0.5, 0.05]), result("slow", [3.0, 8.0], [0.5, 0.05])], TARGET)
    assert "fast reached a loss of 0.1 in 2.00 s and 20 steps: 2.00 times as fast as All-Reduce" in lines[0]
    assert "4.0 times fewer bytes" in lines[0]
    assert "2.00 times slower than All-Reduce" in lines[1]
    assert conclusion([base, result("never", [1.0], [0.5])], TARGET)[0].startswith("never did not reach")


@pytest.mark.processes
def test_a_short_demonstration(tmp_path, capsys):
    folder = tmp_path / "demo"
    capsys.readouterr()
    assert main(["demo", "-o", str(folder), "--steps", "20", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    runs = {run["name"]: run for run in document["runs"]}
    assert set(runs) == {"All-Reduce", "Figure 10", "node-then-all"}
    assert {run["verdict"] for run in runs.values()} == {"proved"}
    # 71,754 floats; two nodes; all-reduce crosses both in each of 20 steps with 2·7/8 of the bytes.
    everything = 20 * 2 * 2 * 7 / 8 * 4 * 71_754
    assert runs["All-Reduce"]["bytes_across_nodes"] == pytest.approx(everything, rel=0.01)
    assert runs["node-then-all"]["bytes_across_nodes"] == pytest.approx(everything / 4, rel=0.01)
    assert runs["All-Reduce"]["loss"] < 2.30
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 5
    assert "<script" not in page
    trace = json.loads((folder / "runs" / "allreduce" / "trace.json").read_text())
    assert {event["pid"] for event in trace["traceEvents"]} == set(range(8))
    assert len(operations(folder / "runs" / "allreduce")) >= 8 * 20
