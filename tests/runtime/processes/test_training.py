"""Real worker processes over gloo: training, handshake, and faults that would otherwise hang.

One driver process imports torch once and forks the workers of each scenario (helpers/scenarios.py).
"""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from helpers import children
from helpers.generator_rig import FOUR_ON_ONE_NODE, serving
from helpers.waiting import until
from helpers.warm import WARM
from partreduce.runtime.recorder import merge_traces

pytestmark = pytest.mark.processes

EARLY = 30.0
"""Seconds in which workers report an error that ends a wait of 60 s early, even on a busy machine."""
SCENARIOS = "helpers.scenarios"


def reports(answer, rank=None, **facts):
    chosen = [r for r in answer["reports"] if all(r.get(k) == v for k, v in facts.items())]
    return [r for r in chosen if rank is None or r["rank"] == rank]


def test_drawn_schedules_on_processes_equal_plain_torch(driver):
    environment = {"CASES_FROM": os.environ.get("PARTREDUCE_TEST_SEED", "0"), "CASES": os.environ.get("CASES", "6")}
    answer = driver.run("drawn schedules", limit=110, environment=environment)
    assert answer["code"] == 0, answer["output"][-2000:]
    assert len(answer["reports"]) == 6
    assert [problem for report in answer["reports"] for problem in report["problems"]] == []
    assert max(report["run"] for report in answer["reports"]) > 0


def test_allreduce_equals_ddp_for_sgd_momentum_adam_and_clipped_gradients(driver):
    answer = driver.run("same losses as DDP")
    assert answer["code"] == 0, answer["output"][-2000:]
    for name in ("sgd", "momentum", "adam", "clipped"):
        curves = reports(answer, name=name)
        assert len(curves) == 2
        for report in curves:
            assert report["ours"] == pytest.approx(report["theirs"], rel=1e-4)
            assert report["difference"] < 1e-5
            assert name == "clipped" or report["ours"][-1] < report["ours"][0]


def test_a_parameter_without_gradient_counts_as_zero_and_none_stays_none(driver):
    answer = driver.run("unused parameter")
    for report in answer["reports"]:
        assert report["grad"] == [2.0, 2.0]
        assert report["some"] == pytest.approx([0.5, 0.5])
        assert report["never"] == [1.0, 1.0]
        assert not report["never_grad"]
    assert len(answer["reports"]) == 2


ALL_RANKS = {0, 1, 2, 3}
ENDS = {
    # scenario: (exit code, ranks that raise, error, parts of its message)
    "another size": (
        65, ALL_RANKS, "HandshakeError", ["number of workers differs", "rank 2 has 3", "the others have 4"],
    ),
    "missing": (69, {0, 1, 3}, "UnavailableError", ["rank 2 of 4 did not arrive within 6 s"]),
    "exception": (1, {0, 2, 3}, "PeerFailedError",
        ["worker 1 stopped in round 4 with ValueError: a bug in the data loader"]),
    "unequal, not joined": (69, ALL_RANKS, "PeerFailedError", ["finished after 6 rounds", "optimizer.join()"]),
}  # fmt: skip


@pytest.mark.parametrize("scenario", ENDS)
def test_remaining_workers_name_the_cause_of_the_end_within_seconds(driver, scenario):
    (code, ranks, error, words), answer = ENDS[scenario], driver.run(scenario)
    assert answer["code"] == code
    assert set(answer["errors"]) == ranks, answer["output"][-2000:]
    assert scenario != "exception" or "ValueError: a bug in the data loader" in answer["output"], "the fault fired"
    for report in answer["errors"].values():
        assert report["error"] == error
        assert all(word in report["text"] for word in words), report["text"]
        assert report["seconds"] < EARLY


def test_neighbors_with_an_iteration_gap(driver, tmp_path):
    answer = driver.run("gap", limit=110, environment={"TRACE": str(tmp_path)})
    assert answer["code"] == 0, answer["output"][-2000:]
    mixing = np.array([[2, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]]) / 4
    values = np.arange(4.0)
    for _ in range(4):
        values = mixing @ values + np.arange(1, 5)  # exact, since the numbers have few binary digits
    for rank in range(4):
        exact, free = reports(answer, rank)
        assert exact["values"] == [values[rank]]
        assert exact["mean"] == [values.mean()]
        assert free["steps"] == free["taken"] + free["skipped"] == 20
        assert free["own"] == reports(answer, 0)[1]["own"], "the mean of all"
        log = json.loads((tmp_path / f"trace-{rank:05d}.json").read_text())["otherData"]["gap"]
        entered = [event["step"] for event in log["events"] if event["kind"] == "entered"]
        assert entered[0] == 0
        assert entered[-1] == 20
        assert len(entered) == free["taken"] + 1
    assert reports(answer, 2)[1]["skipped"] > 0, "it was left behind"


@pytest.mark.parametrize("when", ["between operations", "in mid-operation", "in mid-operation, hierarchical"])
def test_a_killed_worker_is_named_within_seconds_and_no_partial_sum_remains(driver, when):
    answer = driver.run(f"killed {when}")
    assert answer["code"] == 128 + signal.SIGKILL, "the fault fired"
    assert set(answer["errors"]) == {0, 1, 2}
    for report in answer["errors"].values():
        assert report["error"] == "PeerFailedError"
        assert "worker 3 was killed by signal 9 (SIGKILL)" in report["text"]
        assert re.match(r"step \d+, round \d+: group \{", report["text"])
        assert report["text"].endswith(
            "`partreduce run --tolerate-failures K` the other workers continue after such a failure"
        )
        assert report["seconds"] < EARLY
    for report in (r for r in answer["reports"] if "values" in r):
        # Means of {1,2,3,4} in the pairs' order; a partial sum would be 1, 3, 6, 10 or a mixture.
        assert report["values"] in ([2.5], [1.5], [3.5], [1.0], [2.0], [3.0])


def test_kill_in_a_coded_average_changes_neither_parameters_nor_reference(driver):
    answer = driver.run("killed in mid-operation, coded")
    assert answer["code"] == 128 + signal.SIGKILL, "the fault fired"
    assert set(answer["errors"]) == {0, 1, 2}
    for report in answer["errors"].values():
        assert "worker 3 was killed by signal 9 (SIGKILL)" in report["text"]
        assert report["seconds"] < EARLY
    left = [report for report in answer["reports"] if "values" in report]
    assert len(left) == 3
    for report in left:
        # Two steps of rank + 1 each since the last mean over all; a partial sum would be in one of the two values.
        (value,), (reference,) = report["values"], report["reference"]
        assert value - reference == pytest.approx(2 * (report["rank"] + 1), abs=1e-3)
    # A worker that had received its last piece when the other died has one mean (5) more than the others.
    first, last = (choose(report["reference"][0] for report in left) for choose in (min, max))
    assert first > 9
    assert min(last - first, abs(last - first - 5)) == pytest.approx(0, abs=1e-3)


@pytest.fixture
def generator():
    """A group generator for four workers on one node; yields (environment of the workers, notes of the generator)."""
    pytest.importorskip("zmq")
    notes = []
    with serving(FOUR_ON_ONE_NODE, lease=10.0, on_note=notes.append) as (_, variables):
        yield variables, notes


@pytest.mark.parametrize("when", ["in mid-operation", "stopped"])
def test_workers_of_a_generated_schedule_continue_after_a_failure(driver, generator, when):
    environment, notes = generator
    answer = driver.run(f"generated, {when}", environment=environment, survive=True)
    ends = [r for r in answer["reports"] if "values" in r]
    assert {r["rank"] for r in ends} == {0, 1, 2}, answer["output"][-2000:]
    assert answer["code"] == (76 if when == "stopped" else 0)
    failed = [r for r in answer["reports"] if r.get("error")]
    assert [r["rank"] for r in failed] == ([3] if when == "stopped" else []), failed
    for reported in (ends, [r for r in answer["reports"] if "mean" in r]):
        assert len(reported) == 3
        values = [value for r in reported for value in r.get("values", r.get("mean"))]
        assert max(values) - min(values) < 1e-4, f"partial sums: {values}"
        assert 1 < min(values) < 4
    executed = {r["rank"]: [(seq, tuple(members)) for seq, members in r["executed"]] for r in ends}
    last = max([seq for groups in executed.values() for seq, members in groups if 3 in members], default=-1)
    after = [group for groups in executed.values() for group in groups if group[0] > last]
    assert len(after) > 30, "the survivors continue to average"
    for rank, groups in executed.items():
        mine = [tuple(note[1:]) for note in notes if note[0] == "started" and rank in note[2]]
        assert [group for group in mine if 3 not in group[1]][-20:] == [g for g in groups if 3 not in g[1]][-20:]


def test_error_caught_by_a_script_that_ends_reaches_the_other_workers(driver):
    answer = driver.run("refused")
    assert set(answer["errors"]) == {0, 1, 2, 3}
    assert answer["errors"].pop(1)["error"] == "InputError"
    for report in answer["errors"].values():
        assert "worker 1 stopped in round" in report["text"]
        assert "with InputError: buffer 'seen': has the shape [7]" in report["text"]


LONE_CALLS = [
    ("save_checkpoint()", "gap"), ("load_checkpoint()", "in 8 bits"), ("mean_model()", "gradients"),
    ("mean_model()", "late"), ("finish()", "parameters"), ("finish()", "gap"), ("load_state_dict()", "in 8 bits"),
]  # fmt: skip
"""Each collective call in some kind; elsewhere a worker may load a state by itself."""


@pytest.mark.parametrize(("place", "kind"), LONE_CALLS)
def test_collective_call_on_one_worker_alone_raises_and_names_it(driver, tmp_path, place, kind):
    """As under `if rank == 0:`, while the other worker is in an average of another length."""
    answer = driver.run(f"alone in {place} {kind}", environment={"FOLDER": str(tmp_path)})
    assert set(answer["errors"]) == {0, 1}, answer["output"][-2000:]
    assert answer["code"] == 69, answer["output"][-2000:]
    for report in answer["errors"].values():
        assert report["error"] == "PeerFailedError"
        assert place in report["text"] or (place == "load_state_dict()" and "a new start" in report["text"])
        assert "worker 0" in report["text"]
        assert "all workers" in report["text"]
        assert report["seconds"] < EARLY


def test_p_reduce_averages_groups_and_refuses_different_shapes(driver):
    answer = driver.run("primitive")
    for rank in range(4):
        first = reports(answer, rank=rank)[0]
        mean = 0.5 if rank < 2 else 2.5
        assert first["a"] == [mean] * 5
        assert first["b"] == [[2 * mean] * 3] * 2
        assert first["c"] == [mean] * 3
        assert reports(answer, rank=rank)[1]["relaxed"] == [mean + 0.5 * (1.5 - mean)] * 5
    assert all(report["unchanged"] for report in answer["reports"] if "unchanged" in report)
    assert len(answer["errors"]) == 4
    assert all("different tensors" in report["text"] for report in answer["errors"].values())


def test_launcher_sets_the_variables_of_torchrun(driver):
    answer = driver.run("environment", nodes=2)
    assert [reports(answer, rank=r)[0]["LOCAL_RANK"] for r in range(4)] == ["0", "1", "0", "1"]
    assert [reports(answer, rank=r)[0]["GROUP_RANK"] for r in range(4)] == ["0", "0", "1", "1"]
    assert all(r["threads"] == int(r["OMP_NUM_THREADS"]) for r in answer["reports"])


def test_traces_are_written_and_merge(driver, tmp_path):
    answer = driver.run("traced", environment={"TRACE": str(tmp_path)})
    assert answer["code"] == 0, answer["output"][-2000:]
    merged = json.loads(merge_traces(tmp_path).read_text())
    averages = [event for event in merged["traceEvents"] if event["name"].startswith("average")]
    assert {event["pid"] for event in averages} == {0, 1, 2, 3}
    assert len(averages) == 16
    assert {event["name"] for event in averages} >= {"average {0,1}", "average {1,3}"}
    assert min(event["ts"] for event in averages) >= 0


SCRIPT = """
import sys, torch
from pathlib import Path
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce.strategies import AllReduce
def wrap(model, num_workers):
    schedule = Schedule("all", Cluster.regular(1, num_workers), AllReduce(steps_per_round=2))
    return DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, schedule, timeout=60)
model = torch.nn.Linear(2, 1)
optimizer = wrap(model, 2)
for step in range(4):
    model(torch.full((1, 2), float(optimizer.rank))).sum().backward()
    optimizer.step()
optimizer.finish()
Path(sys.argv[1], str(optimizer.rank)).write_text(str(model.weight.tolist()))
wrap(model, 3)
"""


def test_torchrun_trains_and_a_wrong_number_of_workers_is_one_line(tmp_path):
    (script := tmp_path / "script.py").write_text(SCRIPT)
    line = ["--standalone", "--nproc-per-node", 2, script, tmp_path]
    environment = children.environment(OMP_NUM_THREADS="1")
    errors = WARM.run("torch.distributed.run", *line, environment=environment, timeout=250).stderr
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text(), errors[-3000:]
    refused = [line for line in errors.splitlines() if line.startswith("InputError: ")]
    assert refused, errors[-3000:]
    assert "for 3 workers" in refused[0]
    assert "runtime/optimizer.py" not in errors, "no frame of a traceback"
    assert re.search(r"exitcode\s*: 65", errors)


OUR_ERROR = "import partreduce\nraise partreduce.errors.StoreLostError('ours')\n"
CUSTOM_EXCEPTHOOK = "import sys\nsys.excepthook = lambda kind, *_: print(kind.__name__)\n"


@pytest.mark.parametrize(
    ("variables", "flags", "code", "output", "errors"),
    [
        ({"TORCHELASTIC_RUN_ID": "none"}, [], OUR_ERROR, "", "StoreLostError: ours\n"),
        ({"TORCHELASTIC_RUN_ID": "none"}, [], CUSTOM_EXCEPTHOOK + OUR_ERROR, "StoreLostError\n", ""),
        ({"TORCHELASTIC_RUN_ID": "none"}, ["-i"], OUR_ERROR, "", "Traceback"),
        ({}, [], OUR_ERROR, "", "Traceback"),
    ],
    ids=["torchrun", "custom excepthook", "interactive", "no launcher"],
)
def test_import_under_torchrun_shows_our_errors_in_one_line(variables, flags, code, output, errors):
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        env=children.environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == output
    assert done.stderr.startswith(errors)
    assert (errors == "StoreLostError: ours\n") == (done.returncode == 75)


HOOK = """
from partreduce.runtime.launcher.processes import install_excepthook
from partreduce.topo.errors import StoreLostError
install_excepthook()
"""
GROUP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://FOLDER/store", rank=0, world_size=1)
"""
"""init_process_group replaces sys.excepthook by torch's."""
THREAD = """
import threading
def work():
    raise {}
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
MAKE = (
    "model = torch.nn.Linear(1, 1)\npartreduce.DistributedOptimizer(torch.optim.SGD(model.parameters()), model, 'none')"
)


@pytest.mark.parametrize(
    ("script", "code", "line"),
    [
        (HOOK + "raise ValueError('theirs')", 1, "ValueError: theirs"),
        (GROUP + "import partreduce\n" + MAKE, 74, "FileError: none: "),
        (GROUP + "import partreduce\npartreduce.design('4x4', build='none')", 65, "ScheduleError: no schedule family"),
        (GROUP + "import partreduce\npartreduce.design\nraise ValueError('theirs')", 1, "[rank0]: ValueError: theirs"),
        (HOOK + THREAD.format("ValueError('theirs')"), 0, "ValueError: theirs"),  # only the thread ends
        (HOOK + THREAD.format("StoreLostError('ours')"), 0, "StoreLostError: ours"),
    ],
)
def test_only_our_errors_are_shown_in_one_line(tmp_path, script, code, line):
    done = WARM.run("-c", script.replace("FOLDER", str(tmp_path)), timeout=60)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith(line)
    assert ("Traceback" in done.stderr) == ("theirs" in line)


INTERRUPTED = """
import os, time
import torch, partreduce
model = torch.nn.Linear(1, 1)
schedule = partreduce.design("1x2", build="local-sgd", every=4)
optimizer = partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, schedule)
for step in range(600):
    model(torch.ones(1)).sum().backward()
    optimizer.step()
    if step == 5:
        open(os.path.join("FOLDER", os.environ["RANK"]), "w").write(str(os.getpid()))
    time.sleep(0.1)  # Python would handle a signal just before one long sleep only after it
"""


def test_ctrl_c_ends_launcher_and_workers_with_one_line(tmp_path):
    script, errors = tmp_path / "script.py", tmp_path / "errors"
    script.write_text(INTERRUPTED.replace("FOLDER", str(tmp_path)))
    launch = "from partreduce.runtime.launcher.launch import launch"
    # A test run in the background of a shell ignores SIGINT, which a child would inherit.
    unignore = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"import sys; {unignore}; {launch}; sys.exit(launch({str(script)!r}, num_workers=2))"
    with errors.open("w") as stream:
        process = WARM.start("-c", code, streams=[0, 1, stream.fileno()])
    try:
        until(lambda: all((tmp_path / r).exists() and (tmp_path / r).read_text() for r in "01"), seconds=100)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
    assert errors.read_text() == "partreduce: interrupted; the workers have 5 s to save\n"
    for rank in "01":
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / rank).read_text()), 0)
