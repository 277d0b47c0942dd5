"""A run that begins again without a node, and then with it: by what the schedule plans for, and from the checkpoint."""

import io
import json
import os
import sys
import warnings

import numpy as np
import pytest
import torch

from helpers.elastic_runs import RATE, START, gradient
from partreduce.runtime.checkpoint import load_checkpoint, save_checkpoint
from partreduce.runtime.launcher.launch import launch
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce

pytestmark = pytest.mark.processes

STEPS_PER_ROUND, STEPS, MOMENTUM = 2, 4, 0.5
SCHEDULE = Schedule(
    "all",
    Cluster.regular(3, 1),
    AllReduce(steps_per_round=STEPS_PER_ROUND),
    failure_plan=FailurePlan(SurvivorRule.ALL_REDUCE, 1),
)


def started(folder, size, *, restarts="3"):
    """(exit code, what each of so many workers held before its steps and after them, all that was written)."""

    def work():
        os.environ["TORCHELASTIC_MAX_RESTARTS"] = restarts  # as torchrun's agent sets it
        rank = int(os.environ["RANK"])
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
        plain = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            optimizer = DistributedOptimizer(plain, model, SCHEDULE, timeout=60.0)
        resumed = load_checkpoint(optimizer, folder)
        begun = optimizer.steps
        for step in range(begun, begun + STEPS):
            optimizer.zero_grad()
            (model.weight * torch.tensor(gradient(rank, step), dtype=torch.float64)).sum().backward()
            optimizer.step()
        save_checkpoint(optimizer, folder)
        said = {"rank": rank, "begun": begun, "of": resumed and resumed.num_workers, "own": model.weight.tolist()}
        said["warned"] = " ".join(str(one.message) for one in warned)
        optimizer.finish()
        sys.stdout.write(f"REPORT {json.dumps(said)}\n")

    output = io.StringIO()
    code = launch(work, num_workers=size, num_nodes=size, threads=1, output=output)
    text = output.getvalue()
    said = [json.loads(line.split("REPORT ", 1)[1]) for line in text.splitlines() if "REPORT " in line]
    return code, sorted(said, key=lambda one: one["rank"]), text


def replayed(sizes):
    """The model that all hold after runs of so many workers, one after the other."""
    models, momenta = [np.array(START)] * sizes[0], [np.zeros(3)] * sizes[0]
    for begun, size in zip(range(0, len(sizes) * STEPS, STEPS), sizes, strict=True):
        back = size - len(models)  # who is back takes the state of the first worker
        models, momenta = ([*state[:size], *[state[0]] * back] for state in (models, momenta))
        for step in range(begun, begun + STEPS):
            momenta = [MOMENTUM * own + gradient(rank, step) for rank, own in enumerate(momenta)]
            models = [model - RATE * own for model, own in zip(models, momenta, strict=True)]
            if (step + 1) % STEPS_PER_ROUND == 0:
                models = [np.mean(models, axis=0)] * size
    return models[0]


def test_the_workers_of_two_nodes_go_on_where_three_stood_and_the_third_comes_back(tmp_path):
    for runs, size in enumerate(sizes := (3, 2, 3)):
        code, said, text = started(tmp_path, size)
        assert code == 0, text
        assert ["torchrun has started 2 of its 3 nodes" in one["warned"] for one in said] == [
            size == 2,
            *[False] * (size - 1),
        ]
        assert [one["begun"] for one in said] == [runs * STEPS] * size
        assert [one["of"] for one in said] == [sizes[runs - 1] if runs else None] * size
        for one in said:
            assert one["own"] == pytest.approx(replayed(sizes[: runs + 1]).tolist(), rel=1e-9, abs=1e-9)


def test_where_nobody_starts_workers_again_a_node_that_is_missing_is_a_mistake(tmp_path):
    code, said, text = started(tmp_path, 2, restarts="0")
    assert code != 0
    assert said == []
    assert "is for 3 workers and this run has 2" in text
