"""What users do on a GPU, under simulated ranks: each function returns a word, or raises if the runtime is wrong."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import LSTM, BatchNorm1d, Linear, Module, ModuleList, ReLU, Sequential, Tanh

from helpers.device.ranks import SharedState, SimulatedWorld, run_ranks
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce

Loss = Callable[[Any, "SimulatedWorld"], torch.Tensor]
RANKS = 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KIND = "cuda" if DEVICE == "cuda" else "plain"
SCHEDULE = Schedule("idioms", Cluster.regular(1, RANKS), AllReduce())
_one_at_a_time = threading.Lock()


def _everywhere(body: Callable[[SimulatedWorld], Module]) -> str:
    """Run `body` on all ranks, which must end with the same finite numbers."""
    results = run_ranks(KIND, RANKS, body, SharedState())
    for result in results:
        if isinstance(result, Exception):
            raise result
    numbers = [torch.cat([value.detach().flatten() for value in model.parameters()]).cpu() for model in results]
    assert bool(numbers[0].isfinite().all()), "a parameter is not finite"
    assert torch.equal(*numbers), "ranks differ, though all averaged in each step"
    return "ok"


def _wrap(model: Module, world: SimulatedWorld) -> DistributedOptimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return DistributedOptimizer(optimizer, model, SCHEDULE, world=world, timeout=30)


def _train(
    model: Module, world: SimulatedWorld, loss: Loss, inside: contextlib.AbstractContextManager[Any] | None = None
) -> Module:
    """Take three steps; forward and backward run inside the context manager `inside`."""
    optimizer = _wrap(model, world)
    for _ in range(3):
        optimizer.zero_grad()
        with inside or contextlib.nullcontext():
            loss(model, world).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
    optimizer.finish()
    return model


def _inputs(world: SimulatedWorld, *shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel(), device=DEVICE).view(shape) * (world.rank + 1)


def _two_layers(between: Module) -> Module:
    return Sequential(Linear(3, 5), between, Linear(5, 2)).to(DEVICE)


def scaler_with_one_infinite_gradient() -> str:
    """One rank's gradient is infinite in one step: all skip it, none waits, none keeps it."""

    def body(world: SimulatedWorld) -> Module:
        model = Linear(3, 2).to(DEVICE)
        optimizer, scaler = _wrap(model, world), torch.amp.GradScaler(DEVICE, init_scale=8.0)
        for step in range(4):
            optimizer.zero_grad()
            loss = model(_inputs(world, 4, 3)).square().mean()
            scaler.scale(loss * (float("inf") if step == 1 and world.rank == 0 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.finish()
        return model

    return _everywhere(body)


def autocast() -> str:
    """Forward in bfloat16 over float32 parameters."""

    def loss(model: Module, world: SimulatedWorld) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return torch.as_tensor(model(_inputs(world, 4, 3)).float().square().mean())

    return _everywhere(lambda world: _train(_two_layers(ReLU()), world, loss))


def compile_model() -> str:
    """`torch.compile` of the model; ranks are threads, so one compiles at a time."""

    def body(world: SimulatedWorld) -> Module:
        model = _two_layers(Tanh())
        quick = torch.compile(model, backend="aot_eager")
        return _train(model, world, lambda _, me: quick(_inputs(me, 4, 3)).square().mean(), _one_at_a_time)

    return _everywhere(body)


def recurrent() -> str:
    """An LSTM whose weights cuDNN would copy to another layout; doing so after wrapping raises an error."""
    return _everywhere(
        lambda world: _train(
            LSTM(3, 4).to(DEVICE), world, lambda model, me: model(_inputs(me, 5, 2, 3))[0].square().mean()
        )
    )


def unused_parameters() -> str:
    """A parameter without gradient on one rank, and one without gradient on any."""

    def loss(model: Any, world: SimulatedWorld) -> torch.Tensor:
        chosen = model[:1] if world.rank == 0 else model[:2]
        return torch.stack([layer(_inputs(world, 4, 3)).square().mean() for layer in chosen]).sum()

    def body(world: SimulatedWorld) -> Module:
        model = ModuleList(Linear(3, 3) for _ in range(3)).to(DEVICE)
        torch.nn.init.ones_(model[2].weight)
        _train(model, world, loss)
        assert model[2].weight.grad is None
        assert bool((model[2].weight == 1).all()), "no one had a gradient for it"
        return model

    return _everywhere(body)


def buffer_on_the_cpu() -> str:
    """A buffer on the CPU is named in an error."""
    if DEVICE == "cpu":
        return "needs a GPU"
    model = BatchNorm1d(3).to(DEVICE)
    model.running_mean = model.running_mean.cpu()
    try:
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, SCHEDULE)
    except InputError as error:
        message = str(error)
    else:
        message = "was accepted"
    if "lies on several devices" not in message:
        raise AssertionError(message)
    return "refused"


IDIOMS: dict[str, Callable[[], str]] = {
    "GradScaler": scaler_with_one_infinite_gradient,
    "autocast": autocast,
    "torch.compile": compile_model,
    "LSTM": recurrent,
    "unused parameters": unused_parameters,
    "CPU buffer": buffer_on_the_cpu,
}
