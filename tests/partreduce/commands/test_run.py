"""`partreduce run`: environment variables, schedule shape, forwarded arguments and exit codes."""

import pytest

from helpers.command_runs import ran
from helpers.small import of_groups
from helpers.warm import WARM
from partreduce import Cluster, write_schedule
from partreduce.__main__ import main
from partreduce.runtime.elastic.coordinator import FailureRule
from partreduce.runtime.launcher import supervision
from partreduce.runtime.launcher.launch import worker_env

SCRIPT = """
import os, sys
print(*(os.environ[k] for k in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")), sys.argv[1:])
print("schedule", os.environ.get("PARTREDUCE_SCHEDULE", "none"))
sys.exit(int(sys.argv[-1]) if os.environ["RANK"] == "2" else 0)
"""


@pytest.mark.processes
def test_run_uses_the_schedule_shape_and_forwards_arguments_and_exit_code(tmp_path):
    script, schedule = tmp_path / "script.py", tmp_path / "s.json"
    script.write_text(SCRIPT)
    assert main(["design", "2x2", "--build", "allreduce", "-o", str(schedule)]) == 0
    done = WARM.run("partreduce", "run", "--schedule", str(schedule), str(script), "--debug", "7")
    assert done.returncode == 7
    lines = done.stdout.splitlines()
    assert "[3] 3 1 2 4 ['--debug', '7']" in lines, "options after the script belong to the script"
    assert f"[0] schedule {schedule}" in lines


@pytest.mark.processes
def test_exit_code_after_the_end_of_the_output_is_reported(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, time\nos.closerange(1, 256)\ntime.sleep(0.5)\nos._exit(7)\n")
    assert WARM.run("partreduce", "run", "--workers", "2", str(script)).returncode == 7


@pytest.mark.parametrize(("stated", "count"), [("4,2", "4"), (" 3 ", "3"), ("abc", "1"), ("", "1"), ("0", "1")])
def test_invalid_omp_num_threads_is_ignored(monkeypatch, stated, count):
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert worker_env(0, Cluster.regular(1, 64), None)["OMP_NUM_THREADS"] == count


def test_run_rejects_a_schedule_for_another_number_of_workers(tmp_path, capsys):
    schedule = tmp_path / "s.json"
    assert main(["design", "2x2", "--build", "allreduce", "-o", str(schedule)]) == 0
    assert main(["run", "--schedule", str(schedule), "--workers", "3", "train.py"]) == 2
    assert "is for 4 workers; leave --workers out, or --schedule" in " ".join(capsys.readouterr().err.split())


def test_run_without_torch_names_the_extra_to_install(monkeypatch, capsys):
    monkeypatch.setattr("partreduce.topo.extras.find_spec", lambda name: None)
    assert "pip install 'partreduce[torch]'" in ran(capsys, ["run", "--workers", "2", "train.py"], 77).err


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "is_named"), [("os._exit(7)", True), ("print('no', file=sys.stderr); sys.exit(7)", False)]
)
def test_worker_that_exits_without_a_message_is_named_once(tmp_path, code, is_named):
    script = tmp_path / "script.py"
    script.write_text(f"import os, sys\nif os.environ['RANK'] == '1': {code}\n")
    done = WARM.run("partreduce", "run", "--workers", "2", str(script))
    assert done.returncode == 7
    assert done.stderr.count("worker 1 ended with exit code 7 and no message") == is_named, done.stderr


@pytest.mark.processes
@pytest.mark.parametrize(("cause", "code"), [("raise ValueError('mine')", 1), ("os._exit(7)", 7)])
def test_exit_code_is_that_of_the_failed_worker_not_of_its_peers(tmp_path, cause, code):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time, partreduce\nrank = int(os.environ['RANK'])\ntime.sleep(0.4 * rank)\n"
        f"if rank == 1: {cause}\nraise partreduce.errors.PeerFailedError('worker 1 is missing')\n"
    )
    done = WARM.run("partreduce", "run", "--workers", "3", str(script))
    assert done.returncode == code
    assert done.stderr.count("worker 1 ended with exit code 7 and no message") == (code == 7), done.stderr


@pytest.mark.processes
def test_traceback_starts_in_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def fails():\n    raise ValueError('mine')\nfails()\n")
    done = WARM.run("partreduce", "run", "--workers", "1", str(script))
    assert done.returncode == 1
    assert "in fails" in done.stderr
    assert "ValueError: mine" in done.stderr
    assert "runpy" not in done.stderr
    assert "partreduce/" not in done.stderr


def test_signal_is_the_cause_among_simultaneous_exits(monkeypatch):
    monkeypatch.setattr(supervision, "_publish_failure", lambda *_, **__: None)
    monkeypatch.setattr(supervision.Child, "signal", lambda *_: None)
    codes = {0: 1, 1: 69, 2: -9}
    monkeypatch.setattr(supervision.Child, "reap", lambda worker: setattr(worker, "code", codes[worker.rank]) or True)
    workers, shutdown = [supervision.Child(rank, 0, 0) for rank in codes], supervision.Shutdown()
    supervision._collect(workers, None, shutdown, 5.0, None, rule=FailureRule(workers, None))
    assert shutdown.code == 128 + 9


@pytest.mark.processes
def test_refuted_schedule_runs_with_a_warning(tmp_path):
    script, schedule = tmp_path / "script.py", tmp_path / "s.json"
    script.write_text("")
    write_schedule(schedule, of_groups("apart", Cluster.regular(1, 4), [(0, 1), (2, 3)]))
    done = WARM.run("partreduce", "run", "--schedule", str(schedule), str(script))
    assert done.returncode == 0
    assert done.stderr.count("consensus is refuted") == 1, done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("uses", [False, True])
def test_script_that_ignores_its_schedule_is_shown_the_missing_lines(tmp_path, uses):
    script, schedule = tmp_path / "script.py", tmp_path / "s.json"
    wraps = "optimizer = partreduce.DistributedOptimizer(optimizer, model, os.environ['PARTREDUCE_SCHEDULE'])\n"
    script.write_text(
        "import os, sys, torch, partreduce\nmodel = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"{wraps if uses else ''}model(torch.ones(2)).sum().backward()\noptimizer.step()\n"
        f"{'optimizer.finish()' if uses else ''}\nsys.exit(0)\n"
    )
    assert main(["design", "1x2", "--build", "allreduce", "-o", str(schedule)]) == 0
    done = WARM.run("partreduce", "run", "--schedule", str(schedule), str(script))
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if "ended without a DistributedOptimizer" in line]
    assert len(warnings) == (0 if uses else 1)
    assert ("partreduce.shard_dataset(data)" in done.stderr) is not uses
    assert (wraps.strip().replace("'", '"') in done.stderr) is not uses
