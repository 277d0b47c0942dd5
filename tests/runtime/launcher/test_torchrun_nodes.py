"""torchrun on several nodes, one of which fails: the others restart and follow the file's failure plan."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from helpers import children
from helpers.elastic_runs import RATE, START, gradient
from helpers.two_nodes import free_port
from partreduce import Cluster, Schedule, write_schedule
from partreduce.runtime.transport.waiting import Deadline
from partreduce.strategies import AllReduce, FailurePlan, SurvivorRule

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

STEPS_PER_ROUND, MORE = 2, 6
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Worker 0 serves a new store each time; the store of torch's agent on node 0 would not survive that node."""
SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
import partreduce
from helpers.elastic_runs import RATE, START, gradient

folder, rank, size = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
model = torch.nn.Module()
model.weight = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
optimizer = partreduce.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), RATE), model, folder / "schedule.json", timeout=60.0
)
resumed = partreduce.load_checkpoint(optimizer, folder / "checkpoints")
begun = optimizer.steps
until = begun + MORE if resumed and size == 2 else 100_000
for step in range(begun, until):
    optimizer.zero_grad()
    (model.weight * torch.tensor(gradient(rank, step), dtype=torch.float64)).sum().backward()
    optimizer.step()
    if optimizer.steps % STEPS_PER_ROUND == 0:
        partreduce.save_checkpoint(optimizer, folder / "checkpoints")
        with (folder / f"progress-{os.environ['NODE']}-{size}").open("a") as file:
            file.write(json.dumps([rank, os.getpid(), optimizer.steps]) + "\\n")
        time.sleep(0.05)
optimizer.finish()
summary = {"rank": rank, "begun": begun, "resumed": resumed.num_workers, "own": model.weight.tolist()}
(folder / f"end-{rank}.json").write_text(json.dumps(summary))
"""


class Nodes:
    """Agents of torchrun on this machine, each acting as a node; their processes end with the test."""

    def __init__(self, folder, port):
        self.folder, self.agents = folder, {}
        (folder / "script.py").write_text(
            SCRIPT.replace("STEPS_PER_ROUND", str(STEPS_PER_ROUND)).replace("MORE", str(MORE))
        )
        self.port = port

    def start(self, node):
        options = {
            "nnodes": "2:3", "nproc-per-node": "1", "max-restarts": "3", "rdzv-backend": "c10d", "rdzv-id": "nodes",
            "rdzv-endpoint": f"127.0.0.1:{self.port}", "local-addr": "127.0.0.1",
            "rdzv-conf": f"is_host={node == 0},last_call_timeout=8,keep_alive_interval=2,keep_alive_max_attempt=8",
        }  # fmt: skip
        command = [sys.executable, "-m", "torch.distributed.run", *(f"--{name}={options[name]}" for name in options)]
        variables = children.environment(NODE=str(node), OMP_NUM_THREADS="1", **OWN_STORE)
        with (self.folder / f"output-{node}").open("w") as output:
            self.agents[node] = subprocess.Popen(
                [*command, str(self.folder / "script.py"), str(self.folder)],
                env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def progress(self, node, size):
        """The last (rank, process id, steps) that a node's worker wrote in a run of `size`, or None."""
        path = self.folder / f"progress-{node}-{size}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        return json.loads(whole[-1]) if whole else None

    def output(self):
        return "\n".join((self.folder / f"output-{node}").read_text()[-6000:] for node in self.agents)

    def kill(self, node):
        """Kill an agent and its worker, as a failure of the machine does."""
        self.agents[node].kill()
        os.kill(self.progress(node, 3)[1], signal.SIGKILL)
        self.agents[node].wait()

    def end(self):
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.terminate()  # it ends its workers
                with contextlib.suppress(subprocess.TimeoutExpired):
                    agent.wait(60)
            agent.kill()
            agent.wait()


@pytest.fixture
def nodes(tmp_path):
    found = Nodes(tmp_path, free_port())
    yield found
    found.end()


def test_remaining_nodes_resume_the_checkpoint_with_the_failure_plan(tmp_path, nodes):
    plan = FailurePlan(SurvivorRule.ALL_REDUCE, 1)
    schedule = Schedule("all", Cluster.regular(3, 1), AllReduce(steps_per_round=STEPS_PER_ROUND), failure_plan=plan)
    write_schedule(tmp_path / "schedule.json", schedule)
    for node in range(3):
        nodes.start(node)
    deadline = Deadline(100.0)
    while not all(nodes.progress(node, 3) for node in range(3)):
        if deadline.is_over:
            pytest.skip(f"torch's agents did not meet within 100 s on this machine: {nodes.output()[-300:]}")
        time.sleep(0.1)
    if any(nodes.progress(node, 2) for node in range(3)):
        pytest.skip("torch began with two of the three agents: the machine is busy")
    nodes.kill(1)  # not node 0, which serves torch's rendezvous
    left = [agent for agent in nodes.agents.values() if agent.returncode is None]
    assert len(left) == 2
    for agent in left:
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(150)
    output, follows = nodes.output(), "they follow its failure plan for the loss of 1"
    is_waiting = follows not in output and any(agent.poll() is None for agent in left)
    if is_waiting or any(word in output for word in ("RendezvousTimeoutError", "DistStoreError")):
        pytest.skip("torch's agents did not meet again in torch's own time: the machine is busy")
    assert [agent.returncode for agent in left] == [0, 0], nodes.output()
    assert f"torchrun has started 2 of its 3 nodes, and {follows}" in nodes.output()
    ends = [json.loads((tmp_path / f"end-{rank}.json").read_text()) for rank in range(2)]
    (begun,) = {end["begun"] for end in ends}
    assert begun >= STEPS_PER_ROUND
    if {end["resumed"] for end in ends} == {2}:
        pytest.skip("torch's agents started again among the two that are left: the machine is busy")
    assert [end["resumed"] for end in ends] == [3, 3]
    moved = np.sum([np.mean([gradient(rank, step) for rank in range(3)], axis=0) for step in range(begun)], axis=0)
    for step in range(begun, begun + MORE):
        moved += np.mean([gradient(rank, step) for rank in range(2)], axis=0)
    for end in ends:
        assert end["own"] == pytest.approx((START - RATE * moved).tolist(), rel=1e-9, abs=1e-9)
