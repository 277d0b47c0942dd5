"""The demo: its task, its conclusions, and a short run with real worker processes."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.command_runs import ran
from helpers.warm import WARM
from partreduce.commands.verify import verdict_line
from partreduce.demo import stages
from partreduce.demo.stages import TARGET, TEST_IMAGES, TRAIN_IMAGES, Result, conclusion, make_folder, prepare, results
from partreduce.demo.train import Plan
from partreduce.report.traces import operations


def result(name, seconds, loss, across=1e6):
    """Return the result of one repeat, or of one repeat per list in `seconds`."""
    count = len(loss)
    return Result(
        name, np.arange(1, count + 1) * 10, np.atleast_2d(seconds), np.array(loss), np.ones(count), across
    )  # fmt: skip


def test_task_sizes_match_the_constants():
    from partreduce.demo.train import load_digits, make_model

    digits = load_digits()
    assert (len(digits.train_labels), len(digits.test_labels)) == (TRAIN_IMAGES, TEST_IMAGES)
    assert make_model()(digits.test_images[:3]).shape == (3, 10)
    assert sum(p.numel() for p in make_model().parameters()) == 71_754


def test_target_is_reached_at_the_first_evaluation_below_it():
    steps, seconds = result("a", [[1.0, 2.0, 3.0], [2.0, 5.0, 6.0]], [0.5, 0.1, 0.2]).reached(0.1)
    assert (steps, seconds.tolist()) == (20, [2.0, 5.0])
    assert result("a", [1.0], [0.5]).reached(0.1) is None


def test_conclusion_lists_bytes_steps_and_the_range_of_seconds():
    base = result("All-Reduce", [[2.0, 4.0], [3.0, 9.0]], [0.5, 0.05], 4e6)
    fast = result("fast", [[1.0, 2.0], [1.0, 3.0]], [0.5, 0.05])
    (line,) = conclusion([base, fast], TARGET)
    assert line.startswith("fast sends 4.0 times fewer bytes across nodes per step than All-Reduce. It reached a loss")
    assert "in 20 steps (All-Reduce: 20), with 4.0 times fewer bytes." in line
    assert line.endswith("took 2.00 to 3.00 s in 2 turns (All-Reduce: 4.00 to 9.00 s): 2.00 to 3.00 times as fast.")


def test_conclusion_reports_slower_undecided_and_missed_targets():
    base = result("All-Reduce", [[2.0, 4.0], [3.0, 4.0]], [0.5, 0.05], 4e6)
    slow = result("slow", [[3.0, 8.0], [3.0, 5.0]], [0.5, 0.05])
    both = result("both", [[3.0, 8.0], [1.0, 2.0]], [0.5, 0.05])
    lines = conclusion([base, slow, both, result("never", [1.0], [0.5])], TARGET)
    assert lines[0].endswith("1.25 to 2.00 times as slow.")
    assert lines[1].endswith("0.50 to 2.00 times as fast, so seconds decide nothing.")
    assert lines[2].startswith("never did not reach")


def test_proofs_are_summarized_in_plain_words(tmp_path):
    make_folder(tmp_path)
    protocol = "If the program follows its protocol: no deadlock"
    assert [verdict_line(one.schedule, one.proof).split("[/]: ")[1] for one in prepare(tmp_path, "2x4")] == [
        f"no conflict, consensus. {protocol}, all workers hold the same model every step",
        f"no conflict, every 4 steps at most 0.6496 is left of the differences that the models had. {protocol}",
        f"no conflict, consensus. {protocol}, all workers hold the same model every 4 steps",
    ]


def start_warm(command, *, stdout, **_):
    """Replace Popen by a process that has already imported torch."""
    assert command[:3] == [sys.executable, "-P", "-c"]
    begun = WARM.start("-c", *command[3:], streams=[0, stdout.fileno(), stdout.fileno()])
    begun.poll = lambda: begun.returncode
    return begun


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [2, 4])
def test_short_demo(tmp_path, capsys, monkeypatch, workers):
    """With 2 and 4 workers per node; the processes of 2 start and end in half the time."""
    folder, prepare_all, requested = tmp_path / "demo", stages.prepare, []
    if workers == 2:
        popen = {"Popen": start_warm, "STDOUT": None, "DEVNULL": None, "TimeoutExpired": TimeoutError}
        monkeypatch.setattr(stages, "subprocess", SimpleNamespace(**popen))

    def prepare_some(folder, cluster):
        requested.append(cluster)
        return prepare_all(folder, f"2x{workers}")

    monkeypatch.setattr(stages, "prepare", prepare_some)
    capsys.readouterr()
    document = json.loads(ran(capsys, ["demo", "-o", str(folder), "--steps", "12", "--turns", "1", "--json"]).out)
    runs = {run["name"]: run for run in document["runs"]}
    assert set(runs) == {"All-Reduce", "Figure 10", "node-then-all"}
    assert {run["verdict"] for run in runs.values()} == {"proved"}
    assert requested == ["2x4"]
    # 71,754 floats, two nodes; all-reduce sends 2·(n-1)/n of the bytes across both in each of 12 steps.
    count = 2 * workers
    everything = 12 * 2 * 2 * (count - 1) / count * 4 * 71_754
    assert runs["All-Reduce"]["bytes_across_nodes"] == pytest.approx(everything, rel=0.01)
    assert runs["node-then-all"]["bytes_across_nodes"] == pytest.approx(everything / 4, rel=0.01)
    assert runs["All-Reduce"]["loss"] < 2.30
    page = (folder / "report.html").read_text()
    assert page.count("PROVED: no conflict") == page.count("If the program follows its protocol: no deadlock") == 3
    assert page.count("<svg") == 5
    assert "<script" not in page
    trace = json.loads((folder / "runs" / "allreduce" / "trace.json").read_text())
    assert {event["pid"] for event in trace["traceEvents"]} == set(range(count))
    assert len(operations(folder / "runs" / "allreduce")) >= count * 12


@pytest.mark.processes
def test_repeats_rotate_the_schedules_and_reproduce_the_losses(tmp_path):
    make_folder(tmp_path)
    candidates = prepare(tmp_path, "1x2")[::2]
    plan = Plan(
        schedules={c.key: str(c.path) for c in candidates}, folder=str(tmp_path / "runs"), num_nodes=1, steps=4, turns=2
    )
    assert [plan.order(turn) for turn in range(3)] == [
        ["allreduce", "node-then-all"], ["node-then-all", "allreduce"], ["allreduce", "node-then-all"],
    ]  # fmt: skip
    plan.write(tmp_path / "plan.json")
    WARM.run("-c", "from partreduce.demo.train import main; main('plan.json')", cwd=tmp_path, check=True)
    for candidate, result in zip(candidates, results(plan, candidates), strict=True):
        losses = [
            [
                json.loads((plan.place(candidate.key, turn) / f"result-{rank:05d}.json").read_text())["losses"]
                for rank in (0, 1)
            ]
            for turn in (0, 1)
        ]
        assert losses[0] == losses[1], "repeats are deterministic"
        assert result.seconds.shape == (2, 1)
        assert not np.array_equal(result.seconds[0], result.seconds[1])
