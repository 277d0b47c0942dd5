"""`partreduce run --hosts`: which workers run where, and workers of other hosts that are lost as those of this one."""

from __future__ import annotations

import os
import signal

import pytest

from helpers.host_runs import LIMIT, Begun, wait_until
from partreduce.__main__ import main
from partreduce.runtime.launcher.hosts import placed, read_hosts
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Pipeline
from partreduce.topo.strategies.dynamic_groups import DynamicGroups

TRAIN = """
import os, signal, sys, torch, partreduce
rank, rounds = int(os.environ["RANK"]), int(sys.argv[1])
print("begins", flush=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = partreduce.DistributedOptimizer(optimizer, model, os.environ["PARTREDUCE_SCHEDULE"], timeout=60)
for step in range(rounds):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if rank == 3 and step == 5:
        print("under way as", os.getpid(), flush=True)
        if "dies" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    if step == 5 and "impatient" in sys.argv:  # one of them is to be stopped
        optimizer.run.reducer.timeout = 15
optimizer.finish()
print("ended with round", optimizer.round)
"""


@pytest.mark.parametrize(
    ("lines", "num_workers", "cluster", "expected"),
    [
        ("a\nb slots=3", None, None, {"a": (0,), "b": (1, 2, 3)}),
        ("a # the first\n\n  b\n", 4, None, {"a": (0, 1), "b": (2, 3)}),
        ("n1\nn1\nn2\n", None, None, {"n1": (0, 1), "n2": (2,)}),
        ("a\nb", None, "2x3", {"a": (0, 1, 2), "b": (3, 4, 5)}),
        ("a slots=1\nb", None, "1,2", {"a": (0,), "b": (1, 2)}),
        ("u@a\nb slots = 2", None, "1x3", {"u@a": (0,), "b": (1, 2)}),
    ],
)
def test_workers_lie_on_hosts_as_slots_or_the_nodes_of_the_schedule_say(
    tmp_path, lines, num_workers, cluster, expected
):
    (path := tmp_path / "hosts").write_text(lines)
    assert placed(read_hosts(path), num_workers, cluster and Cluster.parse(cluster), path) == expected


@pytest.mark.parametrize(
    ("lines", "num_workers", "cluster", "said"),
    [
        ("# none", None, None, "names no host"),
        ("a\n-oProxyCommand=x", None, None, "line 2: '-oProxyCommand=x' is no host"),
        ("a slots=0", None, None, "'a slots=0' is no host"),
        ("a max_slots=4", None, None, "'a max_slots=4' is no host"),
        ("a\nb", 3, None, "3 workers do not spread evenly over 2 hosts"),
        ("a slots=2\nb", 4, None, "has 3 slots for 4 workers"),
        ("a slots=3\nb", None, "2x2", "host a has slots=3; its node of the schedule has 2 workers"),
        ("a\nb\nc", None, "2x2", "names 3 hosts; the schedule is for 2 nodes"),
    ],
)
def test_hosts_that_do_not_fit_are_refused_in_one_line(tmp_path, lines, num_workers, cluster, said):
    (path := tmp_path / "hosts").write_text(lines)
    with pytest.raises(InputError) as refused:
        placed(read_hosts(path), num_workers, cluster and Cluster.parse(cluster), path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.lab
@pytest.mark.processes
@pytest.mark.timeout(4 * LIMIT)
def test_a_worker_of_another_host_that_is_killed_is_named_and_the_others_go_on_where_the_kind_can(hosts, tmp_path):
    schedule = tmp_path / "generated.json"
    write_schedule(schedule, Schedule("on request", Cluster.regular(2, 2), DynamicGroups()))
    code, output, errors = Begun(hosts, tmp_path, TRAIN, schedule, "30", "dies").ended()
    assert code == 0, errors
    assert "partreduce: worker 3 was killed by signal 9 (SIGKILL) while it" in errors
    begins, ends = ([f"[{rank}] {what}" for rank in range(4)] for what in ("begins", "ended with round 30"))
    lines = [line for line in output.splitlines() if "under way" not in line]
    assert sorted(lines) == sorted([*begins, *ends[:3]])
    assert not hosts.processes("a") | hosts.processes("b")


@pytest.mark.lab
@pytest.mark.processes
@pytest.mark.timeout(4 * LIMIT)
def test_all_workers_of_all_hosts_begin_again_where_a_kind_cannot_go_on(hosts, tmp_path):
    schedule = tmp_path / "all.json"
    write_schedule(schedule, Schedule("pipeline", Cluster.regular(2, 2), AllReduce(sync=Pipeline())))
    run = Begun(hosts, tmp_path, TRAIN, schedule, "30", "dies", options=("--max-restarts", 1))
    code, output, errors = run.ended()
    assert code == 0, errors
    assert "partreduce: attempt 1 ended with exit code 137; all workers begin again" in errors
    assert "this script loads nothing" in errors
    lines = [line for line in output.splitlines() if "under way" not in line]
    begins, ends = ([f"[{rank}] {what}" for rank in range(4)] for what in ("begins", "ended with round 30"))
    assert sorted(lines) == sorted([*begins, *begins, *ends])
    assert not hosts.processes("a") | hosts.processes("b")


def kill_server(hosts, _run, _worker):
    """All of host b's sshd: the one that listens and that of the connection."""
    for pid in hosts.servers("b"):
        os.kill(pid, signal.SIGKILL)


def stop_agent(hosts, run, _worker):
    """Host b answers no more, though its connection stands; then the run is to end."""
    os.kill(hosts.agent("b"), signal.SIGSTOP)
    run.process.terminate()


def asked(number):
    return lambda _hosts, run, _worker: run.process.send_signal(number)


FAILURES = {
    "a worker is killed": (lambda _hosts, _run, worker: os.kill(worker, signal.SIGKILL), 137, "3 was killed by"),
    "a worker is stopped": (lambda _hosts, _run, worker: os.kill(worker, signal.SIGSTOP), 69, "worker 3"),
    "a host is cut off": (lambda hosts, _run, _worker: hosts.cut_off("b"), 69, "2 was lost with host b ("),
    "its sshd is killed": (kill_server, 69, "2 was lost with host b ("),
    "its agent is stopped": (stop_agent, 143, "partreduce: host b does not answer;"),
    "Ctrl-C": (asked(signal.SIGINT), 130, ""),
    "the launcher is killed": (asked(signal.SIGKILL), -signal.SIGKILL, ""),
}


@pytest.mark.lab
@pytest.mark.processes
@pytest.mark.timeout(4 * LIMIT)
@pytest.mark.parametrize("what", FAILURES)
def test_a_run_over_hosts_ends_whatever_fails_and_leaves_nothing_on_any(hosts, tmp_path, what):
    fail, code, said = FAILURES[what]
    schedule = tmp_path / "all.json"
    assert main(["design", "2x2", "--build", "allreduce", "-o", str(schedule)]) == 0
    words = ["impatient"] if what == "a worker is stopped" else []
    # A stopped worker does not end by itself.
    run = Begun(hosts, tmp_path, TRAIN, schedule, "1000000000", *words, grace=5.0 if "stopped" in what else 60.0)
    fail(hosts, run, run.under_way())
    returned, _, errors = run.ended()
    assert returned == code, errors
    assert said in errors
    if "agent" in what:
        os.kill(hosts.agent("b"), signal.SIGCONT)
    if code in (69, 137):
        assert "PeerFailedError" in errors, "said by a worker that can go on no more"
    for place in ("a", "b"):
        wait_until(lambda: not hosts.processes(place))  # noqa: B023 - called here
    wait_until(lambda: not hosts.clients())
