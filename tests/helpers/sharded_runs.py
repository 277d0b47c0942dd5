"""Sharded models under our schedules, in real processes; run as `python -m helpers.sharded_runs`."""

import contextlib
import os
import random
import signal
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint  # here, and not in each worker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from helpers.conformance.kinds import kinds
from helpers.conformance.variants import REFUSED
from helpers.scenarios import main, rank, report, reporting
from partreduce import DistributedOptimizer, PartreduceError, load_checkpoint, save_checkpoint
from partreduce import strategies as st
from partreduce.errors import InputError
from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.rendezvous import SingleProcessWorld, connect_store
from partreduce.runtime.transport.torch_api import PrefixStore

ROUNDS = 4
"""One more than the longest period."""
BATCH = 6


def schedules(n):
    """Return the schedules of n replicas by kind: those of the conformance table, and two changed in one field."""
    listed = {name: kind.schedule for name, kind in kinds(n).items() if name not in REFUSED["sharded"]}
    uneven = {"steps_per_round": tuple(1 + (i % 2) for i in range(n))}
    for name, axes in {"static, late": {"sync": st.DelayedAveraging()}, "static, uneven": uneven}.items():
        listed[name] = replace(listed["static"], strategy=replace(listed["static"].strategy, **axes))
    return listed


class Block(torch.nn.Module):
    """A layer with 7 rows, which no mesh divides evenly, and one with 10."""

    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(7, 10), torch.nn.Linear(10, 7)

    def forward(self, x):
        return x + self.two(torch.tanh(self.one(x)))


def network(*, tied=False, norm=False):
    torch.manual_seed(3)
    layers = [torch.nn.Linear(5, 7), Block(), Block(), torch.nn.Linear(7, 1)]
    if tied:
        layers[2].one.weight = layers[1].one.weight
    if norm:
        layers.insert(1, torch.nn.BatchNorm1d(7, momentum=0.3))
    return torch.nn.Sequential(*layers)


NAMES = ("dp_replicate", "dp_shard", "tp")


def mesh_of(shape):
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    return init_device_mesh("cpu", shape, mesh_dim_names=NAMES[: len(shape)])


def shard_model(mesh, model=None, **options):
    """Shard the network with one FSDP group per block and one for the rest."""
    model = network() if model is None else model
    for part in model:
        if isinstance(part, Block):
            fully_shard(part, mesh=mesh["dp_shard"], **options)
    return fully_shard(model, mesh=mesh["dp_shard"], **options)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batches(shape, steps):
    """Return (inputs, targets), shape [steps, replicas, shards, samples, numbers]."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(steps, *shape, BATCH, 5, generator=generator)
    return x, x.sum(-1, keepdim=True).sin()


def train(optimizer, model, shape, own, *, norm=None, parts=1, evaluates=False):
    """Train on this process's part `own` of each step's data; return the losses."""
    losses = []
    for all_inputs, all_targets in zip(*batches(shape, ROUNDS * optimizer.run.steps_per_round), strict=True):
        # Microbatches are parts of each rank's data, wherever they are put together.
        inputs = all_inputs[own].reshape(-1, parts, BATCH // parts, 5)
        targets = all_targets[own].reshape(-1, parts, BATCH // parts, 1)
        optimizer.zero_grad()
        losses.append(0.0)
        for part in range(parts):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(part == parts - 1)
            x, y = inputs[:, part].reshape(-1, 5), targets[:, part].reshape(-1, 1)
            loss = (model(x) - y).square().mean() / parts
            loss.backward()
            losses[-1] += loss.item()
        if norm is not None:
            optimizer.average_gradients()
            torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        if evaluates:
            model.eval()
            with torch.no_grad():
                losses.append(model(torch.ones(1, 5)).item())
                with optimizer.mean_model():
                    losses.append(model(torch.ones(1, 5)).item())
            model.train()
    optimizer.finish()
    return losses


def numbers(model):
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in whole])


def of_replica(losses, mesh):
    """Return the mean losses over a replica's ranks."""
    mean = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean, group=mesh["dp_shard"].get_group())
    return (mean / mesh["dp_shard"].size()).tolist()


def reference(schedule, shape, name, *, make=sgd, build=network, options=None, **training):
    """Train whole models in the same way, one process per replica; return (losses, model), None on other ranks."""
    store = PrefixStore(f"reference {name}", connect_store(timedelta(seconds=60)))
    if rank() >= shape[0]:
        return None
    world = GlooWorld(store, rank(), shape[0], timedelta(seconds=60))
    model = build()
    optimizer = DistributedOptimizer(make(model), model, schedule, world=world, timeout=60, **(options or {}))
    return train(optimizer, model, shape, rank(), **training), numbers(model).tolist()


def run(schedule, mesh, *, make=sgd, build=network, shard=shard_model, options=None, moved=False, **training):
    """Train sharded replicas; return the losses of this rank's replica, and its whole model at the end."""
    model = shard(mesh, build())
    optimizer = DistributedOptimizer(
        make(model), model, schedule, mesh=mesh["dp_replicate"], timeout=60, **(options or {})
    )
    for parameter in model.parameters() if moved else ():
        parameter._local_tensor = parameter._local_tensor.clone()  # as torch 2.6 does where it pads uneven shards again
    losses = train(optimizer, model, tuple(mesh.mesh.shape)[:2], tuple(mesh.get_coordinate())[:2], **training)
    return of_replica(losses, mesh), numbers(model).tolist()


def same_losses():
    shape = tuple(map(int, os.environ["MESH"].split("x")))
    mesh, found = mesh_of(shape), {}
    for name, schedule in schedules(shape[0]).items():
        training = {"norm": 0.3} if name == "allreduce" else {}
        found[name] = run(schedule, mesh, **training), reference(schedule, shape, name, **training)
    report(replica=mesh.get_coordinate()[0], found=found)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def frozen():
    model = network()
    model[2].one.weight.requires_grad_(False)
    return model


def from_meta(mesh, model):
    """Shard a model on the meta device, then initialize each rank's shards, as for large models."""
    with torch.device("meta"):
        empty = network()
    empty = shard_model(mesh, empty)
    empty.to_empty(device="cpu")
    for shard, whole in zip(empty.parameters(), model.parameters(), strict=True):
        shard.data.copy_(distribute_tensor(whole.data, shard.device_mesh, shard.placements))
    return empty


def left_whole(mesh, model):
    """Shard a model whose forward pass leaves the whole parameters until the backward pass."""
    return shard_model(mesh, model, reshard_after_forward=False)


def one_group(mesh, model):
    """Shard in one group, as FSDP requires for tied weights."""
    return fully_shard(model, mesh=mesh["dp_shard"])


FEATURES = {
    "from meta, adam": {"shard": from_meta, "make": adam},
    "moved by torch, accumulated": {"moved": True, "parts": 3},
    "tied": {"build": lambda: network(tied=True), "shard": one_group},
    "frozen, evaluated": {"build": frozen, "evaluates": True},
    "evaluated, left whole": {"evaluates": True, "shard": left_whole},
    "average states": {"make": adam, "options": {"optimizer_state": "average"}},
}


def shard_in_bfloat16(mesh, model):
    return shard_model(
        mesh, model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    )


def by_torch_alone(mesh):
    """Train by torch's HSDP in mixed precision, which averages gradients over both dimensions."""
    model, policy = network(), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in [*model, model]:
        if part is model or isinstance(part, Block):
            fully_shard(part, mesh=mesh, mp_policy=policy)
    optimizer, losses = sgd(model), []
    for x, y in zip(*batches(tuple(mesh.mesh.shape), ROUNDS), strict=True):
        own = tuple(mesh.get_coordinate())
        loss = (model(x[own]) - y[own]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return of_replica(losses, mesh), numbers(model).tolist()


def features():
    """Compare sharded with whole models under options that users set, averaging gradients and parameters."""
    mesh, found = mesh_of((2, 2)), {}
    for name, feature in FEATURES.items():
        for kind in ("allreduce", "allreduce, every 2"):
            schedule = schedules(2)[kind]
            if kind == "allreduce" and "options" in feature:
                continue
            whole = {key: value for key, value in feature.items() if key not in ("shard", "moved")}
            found[f"{name}, {kind}"] = run(schedule, mesh, **feature), reference(schedule, (2, 2), name + kind, **whole)
    both = run(schedules(2)["allreduce"], mesh, shard=shard_in_bfloat16), by_torch_alone(mesh)
    report(replica=mesh.get_coordinate()[0], found=found, mixed=both)


def parallel(mesh, model):
    """Split blocks by columns and rows over `tp`, and shard over `dp_shard` if that has several ranks."""
    for part in model:
        if isinstance(part, Block):
            parallelize_module(part, mesh["tp"], {"one": ColwiseParallel(), "two": RowwiseParallel()})
    return model if mesh["dp_shard"].size() == 1 else shard_model(mesh, model)


def tensor_parallel():
    shape = tuple(map(int, os.environ["MESH"].split("x")))
    mesh, found = mesh_of(shape), {}
    for name in ("allreduce", "allreduce, outer"):
        schedule = schedules(2)[name]
        found[name] = run(schedule, mesh, shard=parallel), reference(schedule, shape[:2], f"tp {name}")
    message = ""
    if shape[1] > 1:
        try:
            save_checkpoint(_wrap(parallel(mesh, network()), mesh["dp_replicate"]), "/nowhere")
        except InputError as error:
            message = str(error)
    report(replica=mesh.get_coordinate()[0], found=found, message=message)


SAVED = ("static", "static, late", "allreduce, outer", "allreduce, pipeline")


def checkpoints():
    """Train half a run with two saves, then the other half; if there is a checkpoint, only the other half."""
    shape = tuple(map(int, os.environ["MESH"].split("x")))
    mesh, found = mesh_of(shape), {}
    (replica, shard), samples = mesh.get_coordinate(), torch.Generator().manual_seed(12)
    data = torch.randn(4 * ROUNDS, shape[0], 8, 5, generator=samples)[:, replica].tensor_split(shape[1], dim=1)[shard]
    for name in os.environ.get("KINDS", ";".join(SAVED)).split(";"):
        directory = Path(os.environ["DIRECTORY"], name)
        own = name == "static"  # what belongs to a rank alone, and not to its replica: random numbers and statistics
        model = shard_model(mesh, network(norm=own))
        optimizer = DistributedOptimizer(adam(model), model, schedules(2)[name], mesh=mesh["dp_replicate"], timeout=60)
        try:
            resumed = load_checkpoint(optimizer, directory)
        except PartreduceError as error:
            found[name] = str(error)
            continue
        steps_per_round, losses = optimizer.run.steps_per_round, []
        while optimizer.round < 2 * ROUNDS:
            x = data[optimizer.steps]
            loss = (model(x) - x.sum(-1, keepdim=True)).square().mean()
            if own:
                loss = loss * (1 + torch.rand(()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if resumed is None and optimizer.steps in (steps_per_round, ROUNDS * steps_per_round):
                save_checkpoint(optimizer, directory, extra={"own": rank()}, keep=1)
        optimizer.finish()
        extra = None if resumed is None else resumed.extra
        found[name] = losses[-ROUNDS * steps_per_round :], numbers(model).tolist(), extra
    report(replica=replica, found=found)


def kill_rank_3():
    mesh = mesh_of((2, 2))
    model = shard_model(mesh)
    optimizer = DistributedOptimizer(sgd(model), model, schedules(2)["static"], mesh=mesh["dp_replicate"], timeout=60)
    reporting(lambda: _train_until_killed(model, optimizer))


def _train_until_killed(model, optimizer):
    for step in range(10**6):
        if step == 5 and rank() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.ones(2, 5)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


DELAYS = {
    "fill": (Bucket, "lend"),
    "sum": (Communicator, "all_reduce"),
    "commit": (Reducer, "commit"),
    "step": (torch.optim.SGD, "step"),
}


@contextlib.contextmanager
def delay_calls(places):
    """Context manager: delay calls of the methods in `places` at random; yield a counter of the delays."""
    rng, count = random.Random(rank()), [0]
    with contextlib.ExitStack() as patches:
        for holder, name in map(DELAYS.get, places):
            before = getattr(holder, name)

            def later(*args, before=before, **kwargs):
                count[0] += 1
                time.sleep(rng.random() * 0.02)
                return before(*args, **kwargs)

            patches.enter_context(mock.patch.object(holder, name, later))
        yield count


def delays():
    mesh, found = mesh_of((2, 2)), {}
    for name in ("allreduce", "allreduce, layers", "static", "static, late", "allreduce, pipeline", "allreduce, outer"):
        schedule = schedules(2)[name]
        usual, found[name] = run(schedule, mesh), []
        for places in [*((one,) for one in DELAYS), tuple(DELAYS)]:
            with delay_calls(places) as count:
                same = run(schedule, mesh) == usual
            found[name].append((places, count[0], same))
    report(found=found)


def _wrap(model, mesh, schedule=None, **options):
    return DistributedOptimizer(sgd(model), model, schedule or schedules(2)["allreduce"], mesh=mesh, **options)


def _two_dimensions(mesh):
    return _wrap(fully_shard(network(), mesh=mesh), mesh["dp_replicate"])


def _convert(mesh):
    model = shard_model(mesh)
    for parameter in model.parameters():
        parameter._local_tensor = parameter._local_tensor.as_subclass(type("Eight", (torch.Tensor,), {}))
    return _wrap(model, mesh["dp_replicate"])


def _on_meta(mesh):
    with torch.device("meta"):
        model = network()
    return _wrap(shard_model(mesh, model), mesh["dp_replicate"])


def _offload(mesh):
    return _wrap(shard_model(mesh, offload_policy=CPUOffloadPolicy(pin_memory=False)), mesh["dp_replicate"])


def _scale(mesh):
    model = shard_model(mesh)
    optimizer = _wrap(model, mesh["dp_replicate"])
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 5)).sum()).backward()
    scaler.step(optimizer)


def _of_kind(kind, mesh):
    _wrap(shard_model(mesh), mesh["dp_replicate"], kinds(2)[kind].schedule)


REFUSALS = {
    **{kind: partial(_of_kind, kind) for kind in REFUSED["sharded"]},
    "no mesh": lambda mesh: _wrap(shard_model(mesh), None),
    "all dimensions": lambda mesh: _wrap(shard_model(mesh), mesh),
    "the other dimension": lambda mesh: _wrap(shard_model(mesh), mesh["dp_shard"]),
    "no mesh at all": lambda mesh: _wrap(shard_model(mesh), "dp_replicate"),
    "world and mesh": lambda mesh: _wrap(shard_model(mesh), mesh["dp_replicate"], world=SingleProcessWorld()),
    "HSDP": _two_dimensions,
    "whole": lambda mesh: _wrap(network(), mesh["dp_replicate"]),
    "other number": lambda mesh: _wrap(shard_model(mesh), mesh["dp_replicate"], schedules(4)["static"]),
    "converted": _convert,
    "meta": _on_meta,
    "offloaded": _offload,
    "scaler": _scale,
    "skip": lambda mesh: _wrap(shard_model(mesh), mesh["dp_replicate"]).skip(),
    "checkpoint": lambda mesh: save_checkpoint(_wrap(shard_model(mesh), mesh["dp_replicate"]), "/nowhere", extra={1j}),
}


def refusals():
    mesh, messages = mesh_of((2, 2)), {}
    for name, wrong in REFUSALS.items():
        try:
            wrong(mesh)
        except InputError as error:
            messages[name] = str(error)
    report(messages=messages)


SCENARIOS = {
    "refusals": (4, refusals),
    "same losses": (8, same_losses),
    "features": (4, features),
    "tensor parallel, 4": (4, tensor_parallel),
    "tensor parallel, 8": (8, tensor_parallel),
    "checkpoints, 2": (2, checkpoints),
    "checkpoints, 4": (4, checkpoints),
    "killed": (4, kill_rank_3),
    "delays": (4, delays),
}


if __name__ == "__main__":
    main(SCENARIOS)
