"""Group generator and launcher: failed and evicted workers of a run with dynamic groups."""

import os
import signal
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("zmq")

from helpers.generator_rig import FOUR_ON_ONE_NODE, clients_of, fall_silent, serving
from helpers.waiting import until
from helpers.warm import WARM
from partreduce import Cluster, Schedule, write_schedule
from partreduce.runtime.elastic.coordinator import OnRequest
from partreduce.runtime.generator import process
from partreduce.runtime.generator.client import GeneratorClient
from partreduce.runtime.generator.process import generator_process
from partreduce.strategies import DynamicGroups, GroupSplit

SCRIPT = """
import os, sys, time
import torch
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.document.schedule import load_schedule

rank = int(os.environ["RANK"])
model = torch.nn.Linear(4, 4)
inner = torch.optim.SGD(model.parameters(), lr=0.0)
optimizer = DistributedOptimizer(inner, model, load_schedule(os.environ["PARTREDUCE_SCHEDULE"]), timeout=8.0)
for step in range(int(sys.argv[1])):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    time.sleep(0.01)
    optimizer.step()
    if step == 10 * rank and rank in map(int, sys.argv[3:]):
        os.kill(os.getpid(), int(sys.argv[2]))
optimizer.finish()
print("finished", flush=True)
"""


@pytest.fixture
def schedule(tmp_path):
    groups = DynamicGroups(group_size=2, division=GroupSplit.GLOBAL, slow_threshold=None)
    write_schedule(tmp_path / "g.json", Schedule("g", Cluster.regular(1, 4), groups))
    return tmp_path / "g.json"


def test_reported_death_between_groups_unblocks_the_service():
    """Worker 1 finished its group without reporting it; the service alone would wait for the lease to expire."""
    failed, found = [], []
    two = replace(FOUR_ON_ONE_NODE, nodes=(0, 0), group_size=2)
    with (
        serving(two, lease=60.0, failed=lambda: [failed.pop()] if failed else []) as (service, _),
        clients_of(service, 2, retry=0.05) as clients,
    ):
        for client in clients:
            client.begin()
        assert [client.group() for client in clients] == [(0, (0, 1))] * 2
        fall_silent(clients[1])
        clients[0].begin()
        waiting = threading.Thread(target=lambda: found.append(clients[0].group()))
        waiting.start()
        waiting.join(1.0)
        assert waiting.is_alive(), "for the group of the worker that has not reported the end"
        failed.append(1)
        waiting.join(20)
        assert found == [None]
        assert service.state.status == ("active", "dead")
        until(lambda: clients[0].failed == {1})


def test_generator_process_keeps_failures_and_evictions_across_a_restart(schedule):
    with generator_process(schedule) as generator:
        address, key = generator.environment.values()
        here, silent = (GeneratorClient(address, key, rank, timeout=8.0, retry=0.05) for rank in (0, 2))
        here.begin()
        while here.leave() is not None:
            pass
        generator.failed(3)
        until(lambda: here.failed == {3})
        silent.begin()
        until(lambda: silent._state.stage != "asked")
        fall_silent(silent)  # for longer than the lease of 6 s
        until(lambda: here.failed == generator.evicted() == {2, 3})
        first = generator.process.pid
        os.kill(first, signal.SIGKILL)
        until(lambda: generator.process.pid != first)
        generator.failed(1)
        until(lambda: here.failed == generator.evicted() == {1, 2, 3})
        here.close()


@pytest.mark.parametrize(
    ("then", "how"),
    [("sys.exit(3)", "ended with exit code 3"), ("os.kill(os.getpid(), 9)", "was killed by signal 9 (SIGKILL)")],
    ids=["ends", "is killed"],
)
def test_generator_process_that_ended_for_good_is_a_failure(tmp_path, monkeypatch, then, how):
    """A signal alone restarts it; at a failed worker this one ends, and so does each restarted one."""
    monkeypatch.setattr(process, "MAX_RESTARTS", 1)
    serves = "import os, sys; open(sys.argv[1], 'w').write('tcp://127.0.0.1:1'); [sys.stdin.readline() for _ in '12']"
    code = f"{serves}; {then}"
    generator = process.GeneratorProcess([sys.executable, "-SE", "-c", code, str(tmp_path / "a")], "key", "127.0.0.1")
    try:
        generator.serve(tmp_path / "a")
        assert generator.failure is None
        generator.failed(0)
        until(lambda: generator.failure == f"the group generator {how}")
    finally:
        generator.end()


def test_end_of_the_generator_process_by_its_launcher_is_no_failure(schedule):
    with generator_process(schedule) as generator:
        pass
    assert generator.process.returncode is not None
    assert generator.failure is None


class Lines(list):
    def log_line(self, text):
        self.append(text)


@pytest.mark.parametrize("most", range(4))
def test_failures_are_tolerated_up_to_the_limit_and_reported(most):
    reported, sent = [], []
    workers = [
        SimpleNamespace(rank=rank, code=None, signal=lambda number, rank=rank: sent.append((rank, number)))
        for rank in range(4)
    ]
    generator = SimpleNamespace(failed=reported.append, evicted=lambda: {2}, failure=None)
    lines = Lines()
    rule = OnRequest(workers, generator, most, lines)
    assert not rule.continue_without(workers[0], is_failed=False), "the script raised an error"
    assert reported == []
    for _ in range(2):
        rule.poll()
    assert (sent, rule.evicted) == ([(2, signal.SIGKILL)], {2})
    assert lines == ["worker 2 sent no heartbeat within its lease and was evicted"]
    assert [rule.has_ended(worker) for worker in workers] == [False, False, True, False]
    for number, rank in enumerate((2, 0, 3, 1), 1):
        workers[rank].code = -9
        assert rule.continue_without(workers[rank], is_failed=True) == (number <= most)
    assert reported == [2, 0, 3, 1]


RUNS = {
    # options; steps (the second run must outlast its grace period), signal and the ranks that send it to themselves;
    # exit code; number of workers that finish
    "two are killed": ([], [100, int(signal.SIGKILL), 1, 3], 0, 2),
    "two killed, one tolerated": (
        ["--tolerate-failures", 1],
        [900, int(signal.SIGKILL), 1, 3],
        137,
        0,
    ),
    "one stopped": ([], [100, int(signal.SIGSTOP), 3], 76, 3),
}


@pytest.mark.processes
@pytest.mark.parametrize("what", RUNS)
def test_run_continues_up_to_the_tolerated_failures(schedule, tmp_path, what):
    options, job, code, finished = RUNS[what]
    (script := tmp_path / "train.py").write_text(SCRIPT)
    done = WARM.run("partreduce", "run", "--schedule", schedule, *options, script, *job, timeout=120)
    assert done.returncode == code, done.stderr
    assert done.stdout.count("finished") == finished, done.stderr


@pytest.mark.parametrize(
    ("host", "reached", "listens"),
    [("127.0.0.1", "127.0.0.1", "127.0.0.1"), ("::1", "[::1]", "[::1]"), ("node0", "node0", "0.0.0.0")],
)
def test_generator_address_uses_the_host_that_workers_reach(schedule, host, reached, listens):
    """A host name may resolve to another address on the node itself, so the service listens on all addresses."""
    with generator_process(schedule, host) as started:
        port = started.environment["PARTREDUCE_GENERATOR"].rpartition(":")[2]
        assert started.environment["PARTREDUCE_GENERATOR"] == f"tcp://{reached}:{port}"
        assert started.command[-1] == f"tcp://{listens}:{port}"
