"""Only workers that all train on the same batches warn."""

import sys
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Subset, TensorDataset

from helpers.warm import WARM
from partreduce.runtime.data.sampler import pop_fingerprint, record_fingerprint
from partreduce.runtime.guard.guard import Guard
from partreduce.runtime.guard.training import data_in_different_orders, fingerprint, same_batches
from partreduce.runtime.transport.store import Notes
from partreduce.strategies import AllReduce

TRAIN = """
import os, sys, torch, partreduce
data = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
if sys.argv[1] == "sharded":
    data = partreduce.shard_dataset(data)
elif sys.argv[1] == "by hand":
    data = data[int(os.environ["RANK"]) :: 2]
averages_itself = sys.argv[1] == "averages itself"
model = torch.nn.Linear(8, 4)
every = partreduce.strategies.AllReduce(steps_per_round=int(sys.argv[2]))
schedule = partreduce.Schedule("every", partreduce.Cluster.regular(1, 2), every)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = partreduce.DistributedOptimizer(optimizer, model, schedule, timeout=60)
for batch in data.split(8)[:3]:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    for parameter in model.parameters() if averages_itself else ():
        partreduce.p_reduce(parameter.grad, [0, 1])
    if sys.argv[2:] == ["1", "early"]:
        optimizer.average_gradients()
    optimizer.step()
optimizer.finish()
"""


def fake_guard(store, num_workers, gradients):
    """Return a guard with the attributes that the two checks read."""
    slots = [SimpleNamespace(gradient=gradient) for gradient in gradients]
    return SimpleNamespace(
        notes=Notes(store, "data/1"), num_compared=num_workers, flat=SimpleNamespace(slots=lambda: slots)
    )


def compare(per_worker):
    """Return whether the check of each worker is complete, and the warnings."""
    store = dist.HashStore()
    guards = [fake_guard(store, len(per_worker), gradients) for gradients in per_worker]
    with warnings.catch_warnings(record=True, action="always") as seen:
        for guard in guards:
            same_batches(guard)
    return [guard.notes is None for guard in guards], [str(warning.message) for warning in seen]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_identical_gradients_of_all_workers_warn_once(dtype):
    same, other = ([torch.randn(5, 7, dtype=dtype).t(), None] for _ in range(2))
    answers, messages = compare([same] * 3)
    assert answers == [True] * 3
    assert len(messages) == 1
    assert "all 3 workers have the same gradients in their first step" in messages[0]
    assert compare([same, same, other]) == ([True] * 3, [])


@pytest.mark.parametrize(
    "gradients",
    [
        [None],
        [torch.zeros(64)],
        [-torch.zeros(64)],
        [torch.ones(15)],
        [torch.full((64,), torch.nan)],
        [torch.ones(64), torch.tensor([torch.inf])],
        [torch.ones(64).to_sparse()],
    ],
)
def test_uninformative_gradients_are_not_compared(gradients):
    assert fingerprint(gradients) == ""
    assert compare([gradients] * 2) == ([False] * 2, [])


def warnings_of(per_worker):
    """Return the warnings after workers passed these data to `shard_dataset`."""
    store = dist.HashStore()
    with warnings.catch_warnings(record=True, action="always") as seen:
        for data in per_worker:
            pop_fingerprint()
            for part in data:
                record_fingerprint(part)
            data_in_different_orders(fake_guard(store, len(per_worker), [None]))
    return [str(warning.message) for warning in seen]


SHUFFLED = torch.randperm(300, generator=torch.Generator().manual_seed(1))
WHOLE = {
    "paths": [f"/data/images/{number}.png" for number in range(300)],
    "pairs": [(f"{number}.png", number % 7) for number in range(300)],
    "array": np.random.default_rng(1).normal(size=(300, 4, 4)),
    "tensor": torch.randn(300, 5),
    "subset": Subset(TensorDataset(torch.zeros(400)), list(range(300))),
    "dataset": TensorDataset(torch.randn(300, 2)),
}


def shuffle(data):
    if isinstance(data, Subset):
        return Subset(data.dataset, SHUFFLED.tolist())
    if isinstance(data, TensorDataset):
        return TensorDataset(data.tensors[0][SHUFFLED])
    return [data[place] for place in SHUFFLED] if isinstance(data, list) else data[SHUFFLED]


@pytest.mark.parametrize("kind", WHOLE)
def test_data_shuffled_differently_before_sharding_warn_once(kind):
    whole = WHOLE[kind]
    messages = warnings_of([[whole, SHUFFLED], [shuffle(whole), SHUFFLED], [shuffle(whole), SHUFFLED]])
    assert len(messages) == 1
    assert "of 300 elements that differ, or lie in another order" in messages[0]
    assert warnings_of([[whole, shuffle(whole)]] * 3) == []


def test_folders_and_rounding_of_the_data_are_ignored():
    assert warnings_of([[["/scratch/0/a.png", 0.3]], [["/scratch/1/a.png", 0.1 + 0.2]]]) == []


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("averages", ["1", "1 early", "2"])
@pytest.mark.parametrize("data", ["whole", "averages itself", "by hand", "sharded"])
def test_only_a_script_without_sharding_is_warned(tmp_path, data, averages):
    (tmp_path / "train.py").write_text(TRAIN)
    words = ["run", "-n", "2", "train.py", data, *averages.split()]
    errors = " ".join(WARM.run("partreduce", *words, cwd=tmp_path, check=True).stderr.split())
    tells = data in ("whole", "averages itself")
    assert errors.count("have the same gradients in their first step") == tells, errors
    assert ("give each its own part, as partreduce.shard_dataset(data) does" in errors) == tells, errors


# Optimizers of many threads step while other guards attach and detach: each step iterates over all guards.


THREADS, ROUNDS = 8, 200


@pytest.fixture
def _fast_switching():
    """Switch threads as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def guard_of(own):
    """Return a guard of a run that has only the attributes which attach and detach read."""
    model = torch.nn.Module()
    flat = SimpleNamespace(slots=list, buckets=[], apart={}, frozen_names={}, model=model, named_frozen=list)
    flat.sharders = SimpleNamespace(shards=False)
    run = SimpleNamespace(
        alone=False,
        rank=0,
        applier=SimpleNamespace(is_stepping=False),
        flat=flat,
        progress=SimpleNamespace(step=1),
        tables=(),
        schedule=SimpleNamespace(strategy=AllReduce()),
        traits=SimpleNamespace(averages_gradients=True, measures_from_start=False),
    )
    return Guard(
        SimpleNamespace(
            run=run, optimizer=own, differs=False, has_local_gradients=True,
            runner=SimpleNamespace(),
        )
    )  # fmt: skip


@pytest.mark.usefixtures("_fast_switching")
def test_guards_attach_and_detach_while_other_threads_step():
    failures = []

    def work():
        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.grad = torch.zeros(1)
        own, other = (torch.optim.SGD([parameter], 0.1) for _ in range(2))
        try:
            for _ in range(ROUNDS):
                watch = guard_of(own)
                watch.attach()
                other.step()
                watch.after_step()
                watch.detach()
        except RuntimeError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
