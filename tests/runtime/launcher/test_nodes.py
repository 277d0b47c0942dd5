"""`partreduce run --nnodes 2`: failures on the other node are handled as on this one, and both nodes are cleaned up.

The models of survivors equal a replay. Two launchers on loopback act as two nodes, except where a link is cut.
"""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from helpers.elastic_runs import replay_means
from helpers.two_nodes import LIMIT, wait_until
from partreduce import Cluster, Schedule, write_schedule
from partreduce.errors import EvictedError
from partreduce.strategies import AllReduce, DynamicGroups

pytestmark = [pytest.mark.processes, pytest.mark.timeout(4 * LIMIT)]

ALL, THREE, TWO = (0, 1, 2, 3), (0, 1, 2), (0, 1)
STEPS = 9
ROUND = 5
"""The round before whose average worker 3 reports its process id and fails."""
TRAIN = f"""
import json, os, signal, sys, time, torch, partreduce
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from helpers.elastic_runs import RATE, ask_when_awaited, gradient, start_of, wait_for
rank, timeout, happens = int(os.environ["RANK"]), float(sys.argv[1]), sys.argv[2]
back, restarted = [int(one) for one in sys.argv[3:]], "PARTREDUCE_RESTARTED" in os.environ
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
print("begins", os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"])
if restarted:
    ask_when_awaited()
model = torch.nn.Module()
model.weight = torch.nn.Parameter(torch.tensor(start_of(3), dtype=torch.float64))
optimizer = torch.optim.SGD(model.parameters(), RATE)
optimizer = partreduce.DistributedOptimizer(optimizer, model, os.environ["PARTREDUCE_SCHEDULE"], timeout=timeout)
for step in optimizer.batches(range({STEPS})):
    if back and step >= {STEPS} - 1:
        wait_for(optimizer, back)
        time.sleep(3.0)  # longer than processes of the failed worker may live
    if rank == 3 and step == {ROUND} and not restarted and first:
        print("under way as", os.getpid(), flush=True)
        if happens in ("SIGKILL", "SIGSTOP"):
            os.kill(os.getpid(), getattr(signal, happens))
        while happens == "waits" and not os.path.exists("go"):
            time.sleep(0.01)
    optimizer.zero_grad()
    (model.weight * torch.tensor(gradient(rank, step), dtype=torch.float64)).sum().backward()
    optimizer.step()
own = model.weight.tolist()
optimizer.finish()
print("REPORT", json.dumps([rank, own, model.weight.tolist()]))
"""


@pytest.fixture
def trains(begin, tmp_path):
    """Start a run that trains with a schedule of two nodes."""

    def trains(happens, *, strategy=None, timeout=60.0, tolerate=None, back=(), options=(), **others):
        schedule = tmp_path / "schedule.json"
        write_schedule(schedule, Schedule("two nodes", Cluster.regular(2, 2), strategy or AllReduce()))
        options = (*(() if tolerate is None else ("--tolerate-failures", tolerate)), *options)
        return begin(TRAIN, schedule, timeout, happens, *back, options=options, **others)

    return trains


def models_of(output):
    """The parameters of workers before and after their last mean, by rank."""
    reports = [json.loads(line.split("REPORT ", 1)[1]) for line in output.splitlines() if "REPORT " in line]
    return {rank: own for rank, own, _ in reports}, {rank: end for rank, _, end in reports}


def check(run, survivors, codes, *messages, unheard=()):
    """Check both exit codes, the models of survivors and the cleanup; `unheard` workers need not report."""
    returned, output, errors = run.ended()
    assert returned == codes, errors
    own, end = models_of(output)
    expected = replay_means(lambda this: [ALL if this < ROUND else survivors], survivors, steps=STEPS)
    assert expected.keys() - unheard <= own.keys() <= expected.keys(), errors
    assert own == {rank: expected[rank] for rank in own}, errors
    assert len({tuple(model) for model in end.values()}) == 1, "they ended equal"
    for text in messages:
        assert text in errors
    run.nothing_is_left()


def test_workers_continue_after_a_kill_on_another_node(trains):
    """Node 0 starts after node 1, which waits for it."""
    run = trains("SIGKILL", tolerate=2, order=(1,))
    wait_until(lambda: "node 1 waits for node 0 at 127.0.0.1:" in run.errors, lambda: run.errors)
    run.start(0)
    on = "without worker 3 the other 3 continue together from round 5; their models are equal"
    check(run, THREE, [0, 0], "worker 3 was killed by signal 9", on)
    assert run.errors.count("node 1 waits") == 1
    assert "worker 3 was killed" not in run.text_of("errors", 1), "node 0 logs it"
    begins = [line for line in run.text_of("output").splitlines() if "begins" in line]
    assert sorted(begins) == [f"[{rank}] begins 0 {rank // 2} {rank % 2}" for rank in ALL]
    assert "[2]" not in run.text_of("output", 0), "each node shows its own workers"


def test_killed_worker_restarts_on_its_node_and_rejoins(trains):
    run = trains("SIGKILL", tolerate=2, back=(3,), options=("--max-restarts", 1))
    output, errors = run.ends(0, 0)
    joined = int(re.search(r"worker 3 joined in round (\d+) with the state of worker 0", errors)[1])
    own, end = models_of(output)
    assert own == replay_means(lambda this: [THREE if ROUND <= this < joined else ALL], ALL, steps=STEPS), errors
    assert len({tuple(model) for model in end.values()}) == 1, errors


def test_dynamic_groups_continue_without_a_worker_of_another_node(trains):
    run = trains("SIGKILL", strategy=DynamicGroups())
    output, errors = run.ends(0, 0)
    assert "partreduce: worker 3 was killed by signal 9 (SIGKILL) while it" in errors
    assert models_of(output)[0].keys() == set(THREE)


def test_stopped_worker_of_another_node_is_evicted_and_killed(trains):
    run = trains("SIGSTOP", timeout=5.0, tolerate=2)
    check(run, THREE, [EvictedError.exit_code] * 2, "worker 3 sent no heartbeat for 5 s and was evicted")


def test_node_with_stopped_worker_and_launcher_is_evicted(trains):
    run = trains("waits", timeout=10.0, tolerate=2)
    worker, launcher = run.under_way(), run.launchers[1]
    for pid in (launcher.pid, worker):
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "node 1 does not answer" in run.errors, lambda: run.errors)
    os.kill(launcher.pid, signal.SIGCONT)
    eviction = "worker 3 sent no heartbeat for 10 s and was evicted"
    message = "partreduce: node 1: did not answer node 0 at 127.0.0.1:"
    check(run, THREE, [EvictedError.exit_code] * 2, eviction, message, unheard={2})


def test_killed_launcher_ends_its_workers_and_other_nodes_continue(trains):
    run = trains("waits", tolerate=2)
    run.under_way()
    run.launchers[1].kill()
    on = "without worker 2 and worker 3 the other 2 continue together from round 5"
    check(run, TWO, [0, -signal.SIGKILL], "worker 3 was lost with node 1 (", on)


def test_restarted_launcher_takes_part_in_the_next_attempt(trains):
    """More workers have failed than tolerated, so none continues before the restart."""
    run = trains("waits", tolerate=1, options=("--max-restarts", 1))
    run.under_way()
    run.launchers[1].kill()
    wait_until(lambda: "attempt 1 ended with exit code 69; all workers begin again" in run.errors, lambda: run.errors)
    run.start(1)
    output, errors = run.ends(0, 0)
    assert len(models_of(output)[0]) == 4
    assert "continue" not in errors


def test_other_nodes_end_and_name_a_killed_node_0(trains):
    run = trains("waits", tolerate=2)
    run.under_way()
    run.launchers[0].kill()
    _, errors = run.ends(-signal.SIGKILL, 69)
    assert "partreduce: node 1: the connection to node 0 at 127.0.0.1:" in errors
    assert "its workers were ended" in errors


@pytest.mark.parametrize(("number", "node"), [(signal.SIGINT, 0), (signal.SIGTERM, 1)])
def test_signal_to_one_launcher_ends_the_run(trains, number, node):
    run = trains("waits")
    run.under_way()
    run.launchers[node].send_signal(number)
    run.ends(128 + number, 128 + number)


def test_script_missing_on_one_node_is_named_on_both(trains):
    run = trains("nothing", order=(0,))
    wait_until(lambda: "node 0 waits at 127.0.0.1:" in run.errors, lambda: run.errors)
    run._options[run._options.index(run.folders[1].parent / "train.py")] = "absent.py"
    run.start(1)
    codes, *_ = run.ended()
    assert codes == [65, 2], "on that node it is a usage error"
    assert "node 1: absent.py: is not a file; name a Python script" in run.text_of("errors", 0)
    assert "absent.py: is not a file; name a Python script" in run.text_of("errors", 1)


@pytest.mark.lab
def test_disconnected_node_fails_and_its_workers_end(trains, network):
    run = trains("waits", tolerate=2, network=network)
    run.under_way()
    network.cut()
    begun = time.monotonic()
    (run.folders[1] / "go").touch()  # so that both workers of node 1 enter an average
    wait_until(lambda: "worker 3 was lost with node 1 (" in run.errors, lambda: run.errors)
    named = time.monotonic() - begun
    wait_until(lambda: len(run.processes(1)) == 0, lambda: run.errors)
    assert (named < 30.0, time.monotonic() - begun < 40.0) == (True, True), "25 and 30 s on an idle machine"
    on = "without worker 2 and worker 3 the other 2 continue together from round 5"
    check(run, TWO, [0, 69], on, "node 1: the connection to node 0 at")


@pytest.mark.lab
def test_workers_reconnected_after_their_eviction_stay_evicted(trains, network):
    """They were evicted before their node was; after the reconnection the others continue without them."""
    run = trains("waits", timeout=6.0, tolerate=2, network=network)
    run.under_way()
    network.cut()
    (run.folders[1] / "go").touch()
    wait_until(lambda: "worker 3 sent no heartbeat for 6 s and was evicted" in run.errors, lambda: run.errors)
    network.mend()
    on = "without worker 2 and worker 3 the other 2 continue together"
    check(run, TWO, [EvictedError.exit_code] * 2, on)


@pytest.mark.lab
def test_reconnected_node_takes_part_in_the_next_attempt(trains, network):
    run = trains("waits", options=("--max-restarts", 1), network=network)
    run.under_way()
    network.cut()
    wait_until(lambda: "all workers begin again" in run.errors, lambda: run.errors)
    wait_until(lambda: "its workers were ended" in run.text_of("errors", 1), lambda: run.errors)
    network.mend()
    output, _ = run.ends(0, 0)
    assert len(models_of(output)[0]) == 4


def test_processes_left_on_another_node_end_before_the_next_attempt(tmp_path, begin):
    write_schedule(tmp_path / "s.json", Schedule("all", Cluster.regular(2, 2), AllReduce()))
    script = """
import os, sys, time
print("begins", *(os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "GROUP_RANK", "LOCAL_RANK")))
if os.environ["RANK"] == "3":
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
        print("is left" if os.path.exists("/proc/" + open("left").read()) else "is gone")
    elif (child := os.fork()) == 0:
        os.setsid()
        os.closerange(0, 100)
        time.sleep(600)
    else:
        open("left", "w").write(str(child))
        sys.exit(3)
"""
    codes, output, errors = begin(script, tmp_path / "s.json", options=("--max-restarts", 1)).ended()
    assert (codes, "is gone" in output) == ([0, 0], True), (output, errors)
    assert "partreduce: attempt 1 ended with exit code 3; all workers begin again" in errors
    begins = sorted(line for line in output.splitlines() if "begins" in line)
    assert begins == [f"[{rank}] begins {again} {rank // 2} {rank % 2}" for rank in ALL for again in (0, 1)]


@pytest.mark.parametrize(("way", "number"), [("exit", 137), ("signal", signal.SIGSEGV)])
def test_exit_code_or_signal_on_another_node_ends_both_launchers(tmp_path, begin, way, number):
    write_schedule(tmp_path / "s.json", Schedule("all", Cluster.regular(2, 2), AllReduce()))
    end = "sys.exit({0})" if way == "exit" else "os.kill(os.getpid(), {0})"
    script = f"import os, sys\nif os.environ['RANK'] == '3': {end.format(int(number))}\n"
    codes, _, errors = begin(script, tmp_path / "s.json").ended()
    assert codes == [number if way == "exit" else 128 + number] * 2, errors
    if way == "exit":
        assert f"worker 3 ended with exit code {number} and no message" in errors
    else:
        assert f"worker 3 was killed by signal {int(number)} (SIGSEGV)" in errors
