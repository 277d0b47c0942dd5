"""A script without a launcher, as in a debugger or a notebook: everything works and nothing is averaged."""

import threading

import pytest
import torch

from helpers.children import environment
from helpers.training import static_groups
from helpers.warm import WARM
from partreduce import (
    Cluster,
    DistributedOptimizer,
    Schedule,
    ScheduleAverager,
    load_checkpoint,
    p_reduce,
    save_checkpoint,
    shard_dataset,
)
from partreduce import strategies as st
from partreduce.errors import InputError

N = 4
STRATEGIES = {
    "allreduce": st.AllReduce(),
    "late": st.AllReduce(steps_per_round=2, sync=st.DelayedAveraging()),
    "static": static_groups(N, [range(N)], steps_per_round=(2, 1, 1, 1)),
    "neighbor": st.NeighborAveraging(rounds=(st.Round.from_edges(N, [(0, 1, "1/2"), (1, 0, "1/2")]),)),
    "pairwise": st.Pairwise(active=(0, 1)),
    "server": st.Server(hosts=(1,), synchronous=False),
    "dynamic_groups": st.DynamicGroups(group_size=2),
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1))


def loss_of(model, step):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def test_concurrent_step_raises_and_the_first_step_counts():
    model = network()
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model, Schedule("alone", Cluster.regular(1, N), st.AllReduce())
    )
    errors = []

    def step_concurrently():
        with pytest.raises(InputError, match="another step of this optimizer has not ended"):
            optimizer.step()
        errors.append("refused")

    def closure():
        thread = threading.Thread(target=step_concurrently)
        thread.start()
        thread.join()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert errors == ["refused"]
    optimizer.step()
    assert optimizer.steps == 2
    optimizer.finish()


@pytest.mark.parametrize("name", STRATEGIES)
def test_single_process_trains_as_without_the_library(capfd, tmp_path, name):
    schedule = Schedule(f"alone {name}", Cluster.regular(1, N), STRATEGIES[name])
    wanted = network()
    plain = torch.optim.SGD(wanted.parameters(), lr=0.05, momentum=0.9)
    for step in range(6):
        plain.zero_grad()
        loss_of(wanted, step).backward()
        plain.step()

    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = DistributedOptimizer(inner, model, schedule, trace=tmp_path / "trace")
    averager = ScheduleAverager(schedule) if name == "static" else None
    with optimizer.join():
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.average_gradients()
            optimizer.step()
            p_reduce(list(model.parameters()), range(N))
            if averager is not None:
                averager.average_parameters(model.parameters())
            if step == 3:
                with optimizer.mean_model() as mean:
                    assert mean is model
                save_checkpoint(optimizer, tmp_path / "saved")
    assert (optimizer.num_workers, optimizer.steps) == (1, 6)
    end = {key: value.clone() for key, value in model.state_dict().items()}
    assert load_checkpoint(optimizer, tmp_path / "saved").steps == 4
    for step in (4, 5):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    optimizer.finish()
    for key, value in wanted.state_dict().items():
        assert torch.equal(end[key], value)
        assert torch.equal(model.state_dict()[key], value)
    lines = [line for line in capfd.readouterr().err.splitlines() if "single process" in line]
    assert len(lines) == 1
    assert "partreduce run --workers 4" in lines[0]


def test_shard_dataset_returns_all_data_to_a_single_process():
    data = {"anything": 1}
    assert shard_dataset(data) is data


SCRIPT = """
import os, sys, torch, partreduce
from partreduce import Cluster, Schedule
from partreduce.strategies import AllReduce
model = torch.nn.Linear(2, 1)
schedule = Schedule("s", Cluster.regular(1, 2), AllReduce(steps_per_round=int(sys.argv[1])))
optimizer = partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, schedule, timeout=60)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
if sys.argv[2] == "finish":
    optimizer.finish()
"""


@pytest.mark.processes
def test_missing_finish_is_reported(tmp_path):
    """With averaged gradients all models are equal anyway; with averaged parameters they are not."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for steps_per_round, end, lines in (("3", "leave", 2), ("3", "finish", 0), ("1", "leave", 0)):
        command = ["partreduce", "run", "--workers", "2", script, steps_per_round, end]
        done = WARM.run(*command, environment=environment(OMP_NUM_THREADS="1"), timeout=250)
        assert done.returncode == 0, done.stderr
        warnings = [line for line in (done.stdout + done.stderr).splitlines() if "without optimizer.finish()" in line]
        assert len(warnings) == lines, done.stdout + done.stderr
