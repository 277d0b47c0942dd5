"""Runs that restart all workers after a failure and continue from their checkpoints."""

import json
import os
import signal
import sys
import threading
import time
import warnings
from contextlib import nullcontext
from fractions import Fraction

import pytest
import torch

from helpers import children
from helpers.conformance.kinds import PATIENT
from helpers.elastic_runs import RATE, gradient, start_of, wait_for
from helpers.waiting import until
from helpers.warm import WARM
from partreduce import Cluster, DistributedOptimizer, Schedule, load_checkpoint, save_checkpoint
from partreduce import strategies as st
from partreduce.errors import EvictedError, InputError, UnavailableError
from partreduce.runtime.launcher.launch import check_threads_ended, launch, run_attempts, threads_of_process
from partreduce.runtime.launcher.signals import Terminated
from partreduce.topo.failure_plan import BY_NAME, AfterFailure

pytestmark = pytest.mark.processes

WORKERS, STEPS, SAVED = 3, 12, 3
RING = st.Round.from_edges(WORKERS, [((to + hop) % 3, to, Fraction(1, 3)) for to in range(WORKERS) for hop in (1, -1)])
DILOCO = st.OuterStep(lr=Fraction(7, 10), momentum=Fraction(9, 10), nesterov=True)
TABLE = st.Payload(
    tables=(st.TablePlacement(parameter="table.weight", rows=9, columns=2, gradient=st.Gradient.SPARSE),)
)
RESTARTING = {
    "pipeline": st.AllReduce(sync=st.Pipeline()),
    "outer steps, merged late": st.AllReduce(
        steps_per_round=3, sync=st.DelayedMerge(steps=1, alpha=Fraction(1, 2)), payload=st.Payload(outer=DILOCO)
    ),
    "neighbor": st.NeighborAveraging(rounds=(RING,)),
    "neighbor with sync.iteration_gap": st.NeighborAveraging(rounds=(RING,), sync=st.IterationGap(max_ig=2)),
    "server": st.Server(hosts=(1,)),
    "payload.tables": st.AllReduce(payload=TABLE),
    "sync.partial": st.AllReduce(sync=PATIENT),
    "pairwise": st.Pairwise(active=(0, 2)),
    "per_layer in a pipeline": st.AllReduce(
        sync=st.Pipeline(), transport=st.Transport(gradient_buckets=st.GradientBuckets.PER_LAYER)
    ),
    "sync.delay with averaging by steps": st.AllReduce(
        steps_per_round=(1, 2, 1), sync=st.DelayedAveraging(), averaging=st.Averaging.STEP_NORMALIZED
    ),
}
NONDETERMINISTIC = ("sync.partial", "pairwise")
"""The kinds whose results depend on timing."""
RUN_CASES = {"sharded replicas", "a second DistributedOptimizer", "groups of NCCL"}
"""Table rows about the way of running, which no strategy shows."""


class Model(torch.nn.Module):
    """A row of weights, and an embedding table if `table` is set."""

    def __init__(self, *, table):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(start_of(3), dtype=torch.float64))
        self.table = torch.nn.Embedding(9, 2, sparse=True, dtype=torch.float64) if table else None
        if table:
            torch.nn.init.constant_(self.table.weight, 1.0)

    def forward(self, move, words):
        loss = (self.weight * move).sum()
        return loss if self.table is None else loss + (self.table(words) ** 2).sum()


def train(folder, strategy, deaths, *, most=2, loads=True, steps=STEPS, max_failures=0, back=None, fails=None):
    """Return (exit code, final parameters of each finished worker by rank) of a run that saves every few steps.

    `deaths` are (attempt, rank, step) of kills, of workers that did not rejoin. At `back`, a (step, rank), the others
    wait until that rank rejoins.
    `fails` is one (attempt, rank, step) at which the script exits with an error.
    """
    folder.mkdir()

    def work():
        torch.manual_seed(0)
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_: sys.stderr.write(f"{message}\n")  # pytest would keep them
        rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        rejoins = (folder / f"begun-{attempt}-{rank}").exists()
        if back and rejoins:
            until((folder / "awaited").exists)  # so that it rejoins in the round of `back`, even if the others are slow
        model = Model(table=bool(strategy.payload.tables))
        schedule = Schedule("again", Cluster.regular(1, WORKERS), strategy)
        unequal = not isinstance(strategy.steps_per_round, int)
        own = strategy.steps_per_round[rank] if unequal else 1  # if unequal, the code below counts rounds
        sgd = torch.optim.SGD(model.parameters(), RATE / 16)
        optimizer = DistributedOptimizer(sgd, model, schedule, timeout=60.0)
        if loads:
            load_checkpoint(optimizer, folder)
        (folder / f"begun-{attempt}-{rank}").write_text(str(optimizer.steps // own))
        while (step := optimizer.steps // own) < steps:
            if not rejoins and any((attempt, rank) == death[:2] and step >= death[2] for death in deaths):
                os.kill(os.getpid(), signal.SIGKILL)
            if (attempt, rank, step) == fails:
                sys.exit(9)
            if back and (attempt, step) == (0, back[0]) and rank != back[1]:
                (folder / "awaited").touch()
                wait_for(optimizer, back[1:])
            optimizer.zero_grad()
            move, words = torch.tensor(gradient(rank, step), dtype=torch.float64), torch.tensor([step % 9, rank, 8])
            model(move, words).backward()
            optimizer.step()
            if optimizer.steps % (SAVED * own) == 0 and optimizer.steps < steps * own:
                save_checkpoint(optimizer, folder)
        optimizer.finish()
        held = [model.weight.tolist(), [] if model.table is None else model.table.weight.tolist()]
        (folder / f"held-{rank}").write_text(json.dumps(held))

    def attempt(variables, restarts):
        joiners = {"max_restarts": restarts.left, "restarted": restarts.spend} if max_failures else {}
        return launch(work, num_workers=WORKERS, threads=1, environment=variables, max_failures=max_failures, **joiners)

    code = run_attempts(attempt, most)
    return code, {path.name: json.loads(path.read_text()) for path in folder.glob("held-*")}


def first_steps(folder):
    """The first step of each attempt, on all workers that started."""
    found = {}
    for path in folder.glob("begun-*"):
        found.setdefault(int(path.name.split("-")[1]), set()).add(int(path.read_text()))
    return found


def test_restart_cases_cover_the_failure_table():
    restarts = {name for name, case in BY_NAME.items() if case.answer is AfterFailure.RESTARTS}
    assert set(RESTARTING) >= restarts - RUN_CASES


@pytest.mark.parametrize("kind", RESTARTING)
def test_two_failures_give_the_bits_of_an_undisturbed_run(kind, tmp_path):
    strategy = RESTARTING[kind]
    # The second attempt fails before it has saved, so the third continues from the checkpoint of the first.
    code, held = train(tmp_path / "disturbed", strategy, [(0, 1, 7), (1, 2, 8)])
    assert (code, len(held)) == (0, WORKERS)
    begun = first_steps(tmp_path / "disturbed")
    if kind in NONDETERMINISTIC:  # the slowest worker decides which step a checkpoint holds
        assert begun.keys() == {0, 1, 2}
        assert all(0 < step <= 8 for step in begun[1] | begun[2])
        return
    assert begun == {0: {0}, 1: {6}, 2: {6}}
    assert train(tmp_path / "undisturbed", strategy, []) == (0, held)


def test_more_failures_than_tolerated_restart_all_workers(tmp_path, capfd):
    _, expected = train(tmp_path / "undisturbed", st.AllReduce(), [])
    code, held = train(tmp_path / "disturbed", st.AllReduce(), [(0, 1, 7), (0, 2, 7)], most=3, max_failures=1)
    assert code == 0
    assert held == expected
    assert first_steps(tmp_path / "disturbed") == {0: {0}, 1: {6}}
    assert "attempt 1 ended with exit code 137; all workers begin again" in capfd.readouterr().err


def test_rejoins_and_full_restarts_share_max_restarts(tmp_path, capfd):
    code, held = train(
        tmp_path / "run", st.AllReduce(), [(0, 1, 5)], most=3, max_failures=1, back=(7, 1), fails=(0, 2, 10)
    )
    output = capfd.readouterr().err
    assert (code, sorted(held)) == (0, [f"held-{rank}" for rank in range(WORKERS)])
    assert "partreduce: worker 1 is started again (restarts left: 2)" in output
    assert "worker 1 joined in round 7" in output
    assert "attempt 1 ended with exit code 9; all workers begin again" in output
    assert "(restarts left: 1)" in output


def test_run_returns_the_last_attempts_exit_code_and_logs_the_others(tmp_path, capfd):
    deaths = [(attempt, 2, 2) for attempt in range(3)]
    assert train(tmp_path / "run", st.AllReduce(), deaths) == (128 + signal.SIGKILL, {})
    output = [line for line in capfd.readouterr().err.splitlines() if line.startswith("partreduce: attempt")]
    assert output == [
        f"partreduce: attempt {number} ended with exit code 137; all workers begin again from their last checkpoint "
        f"(restarts left: {2 - number})"
        for number in (1, 2)
    ]


def test_restarted_script_that_loads_no_checkpoint_is_warned_once(tmp_path, capfd):
    code, _ = train(tmp_path / "run", st.AllReduce(), [(0, 0, 4)], loads=False, steps=6)
    output = capfd.readouterr().err
    assert code == 0
    assert first_steps(tmp_path / "run") == {0: {0}, 1: {0}}
    assert output.count("the workers were started again, and begin at step 0: this script loads nothing") == 1


def test_no_warning_if_the_script_tried_to_load_a_checkpoint(tmp_path, capfd):
    code, _ = train(tmp_path / "run", st.AllReduce(), [(0, 0, 2)], steps=4)
    assert code == 0
    assert "loads nothing" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0], 0),
        ([UnavailableError.exit_code, 0], 0),
        ([1, 137, 143, 3], 3),
        ([InputError.exit_code], InputError.exit_code),  # the next attempt would fail in the same way
        ([1, EvictedError.exit_code], EvictedError.exit_code),  # the other workers have succeeded
    ],
)
def test_failures_are_retried_but_input_errors_and_evictions_are_not(codes, expected, tmp_path, capfd):
    def attempt(variables, _):
        number = int(variables["TORCHELASTIC_RESTART_COUNT"])
        (tmp_path / str(number)).touch()
        assert variables["TORCHELASTIC_MAX_RESTARTS"] == "3"
        return codes[number]

    assert run_attempts(attempt, 3) == expected
    assert len(list(tmp_path.iterdir())) == len(codes)
    assert capfd.readouterr().err.count("begin again") == len(codes) - 1


@pytest.mark.parametrize(
    ("last", "max_restarts"), [(InputError("cluster: is none"), 3), (UnavailableError("store: is still gone"), 1)]
)
def test_errors_of_attempts_are_logged_and_that_of_the_last_one_is_raised(last, max_restarts, capfd):
    errors = [UnavailableError("store: is gone"), last, AssertionError("not reached")]

    def attempt(*_):
        raise errors.pop(0)

    with pytest.raises(type(last), match=str(last)):
        run_attempts(attempt, max_restarts)
    assert len(errors) == 1
    first, second = capfd.readouterr().err.splitlines()
    assert first == "partreduce: store: is gone"
    assert second.startswith("partreduce: attempt 1 ended with exit code 69;")


def test_pause_between_attempts_doubles_up_to_a_minute(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr("partreduce.runtime.launcher.launch.check_threads_ended", lambda _: None)  # collects garbage
    monkeypatch.setattr("partreduce.runtime.launcher.launch.orphans_ended", nullcontext)  # reads all of /proc
    assert run_attempts(lambda *_: 1, 1100, pause=2.0) == 1
    assert (pauses[:6], pauses[-1]) == ([2.0, 4.0, 8.0, 16.0, 32.0, 60.0], 60.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_attempt_follows_a_termination_signal(number):
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for one in handlers:  # a test run in the background ignores some
        signal.signal(one, signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL)
    made = []

    def attempt(*_):
        made.append(1)
        try:
            signal.raise_signal(number)
        except (KeyboardInterrupt, Terminated):
            return 128 + number
        raise AssertionError

    try:
        assert run_attempts(attempt, 3) == 128 + number
        assert made == [1]
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)


def test_no_thread_of_an_attempt_survives_until_the_next_fork(tmp_path):
    """A fork would copy the locks of the store's server thread and of Python threads."""
    before, seen = threads_of_process(), []

    def attempt(variables, _):
        seen.append(threads_of_process() - before)
        return launch(lambda: os.kill(os.getpid(), signal.SIGKILL), num_workers=1, threads=1, environment=variables)

    assert run_attempts(attempt, 2) == 128 + signal.SIGKILL
    assert seen == [set()] * 3


def test_thread_left_by_an_attempt_raises_before_the_next_fork(monkeypatch):
    monkeypatch.setattr("partreduce.runtime.launcher.launch.THREAD_SECONDS", 0.1)
    before, end = threads_of_process(), threading.Event()
    left = threading.Thread(target=end.wait)
    left.start()
    try:
        with pytest.raises(RuntimeError, match="threads of an attempt that has ended still run: "):
            check_threads_ended(before)
    finally:
        end.set()
        left.join()
    check_threads_ended(before)


SCRIPT = """
import os, pathlib, signal, sys, time
place = pathlib.Path(os.environ["PLACE"])
def save(*_):
    place.joinpath("saved-" + os.environ["RANK"]).touch()
    sys.exit(9)
signal.signal(signal.SIGTERM, save)
place.joinpath("runs-" + os.environ["RANK"] + "-" + os.environ["TORCHELASTIC_RESTART_COUNT"]).touch()
end = time.monotonic() + 120
while time.monotonic() < end:
    time.sleep(0.05)
"""


def test_command_forwards_sigterm_and_starts_no_new_attempt(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ["--workers", "2", "--max-restarts", "3"]
    with (tmp_path / "output").open("w+") as written:
        streams, environment = (0, 1, written.fileno()), children.environment(PLACE=str(tmp_path))
        run = WARM.start(
            "partreduce", "run", *options, tmp_path / "script.py", streams=streams, environment=environment
        )
        until(lambda: len(list(tmp_path.glob("runs-*"))) == 2)
        run.send_signal(signal.SIGTERM)
        code = run.wait(120)
        written.seek(0)
        output = written.read()
    assert code == 128 + signal.SIGTERM, output
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
    assert sorted(path.name for path in tmp_path.glob("runs-*")) == ["runs-0-0", "runs-1-0"]
    assert "begin again" not in output


KILLED_IN_FIRST_ATTEMPT = """
import os, pathlib, signal, sys
assert pathlib.Path(os.environ["PARTREDUCE_SCHEDULE"]).is_file()
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
if (rank, attempt) == ("1", "0"):
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path(sys.argv[1], f"runs-{rank}-{attempt}").touch()
"""


def test_command_restarts_schedules_that_cannot_continue(run_script, save_schedule, tmp_path):
    """In every attempt PARTREDUCE_SCHEDULE names a schedule file."""
    path = save_schedule(Schedule("again", Cluster.regular(1, 2), st.AllReduce(sync=st.Pipeline())))
    done = run_script(KILLED_IN_FIRST_ATTEMPT, tmp_path, options=["--schedule", path, "--max-restarts", 1])
    assert done.returncode == 0, done.stderr
    assert {"runs-0-1", "runs-1-1"} <= {path.name for path in tmp_path.glob("runs-*")}
    assert "attempt 1 ended with exit code 137" in done.stderr
