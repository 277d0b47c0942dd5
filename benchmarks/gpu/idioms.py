"""What users do on a GPU, under simulated ranks: each function returns a word or raises where the run-time is wrong."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.simulated import Shared, run_ranks
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.simulated import SimulatedWorld

RANKS = 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KIND = "cuda" if DEVICE == "cuda" else "plain"
SCHEDULE = Schedule("idioms", Cluster.regular(1, RANKS), AllReduce())
_one_at_a_time = threading.Lock()


def _everywhere(body: Callable[[SimulatedWorld], torch.Tensor]) -> str:
    """Run on all ranks; all must end with the same finite numbers."""
    results = run_ranks(KIND, RANKS, body, Shared())
    for result in results:
        if isinstance(result, Exception):
            raise result
        assert bool(result.isfinite().all()), "a parameter is not finite"
        assert torch.equal(result.cpu(), results[0].cpu()), "ranks differ, though all averaged in each step"
    return "ok"


def _wrapped(model: torch.nn.Module, world: SimulatedWorld, **options: Any) -> DistributedOptimizer:  # noqa: ANN401
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return DistributedOptimizer(optimizer, model, SCHEDULE, world=world, timeout=30, **options)


def _flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def _inputs(world: SimulatedWorld, *shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel(), device=DEVICE).view(shape) * (world.rank + 1)


def scaler_with_one_infinite_gradient() -> str:
    """One rank's gradient is infinite in one step: all skip it, none waits, none keeps it."""

    def body(world: SimulatedWorld) -> torch.Tensor:
        model = torch.nn.Linear(3, 2).to(DEVICE)
        optimizer, scaler = _wrapped(model, world), torch.amp.GradScaler(DEVICE, init_scale=8.0)
        for step in range(4):
            optimizer.zero_grad()
            loss = model(_inputs(world, 4, 3)).square().mean()
            scaler.scale(loss * (float("inf") if step == 1 and world.rank == 0 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.finish()
        return _flat(model)

    return _everywhere(body)


def autocast() -> str:
    """Forward in bfloat16 over float32 parameters."""

    def body(world: SimulatedWorld) -> torch.Tensor:
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)).to(DEVICE)
        optimizer = _wrapped(model, world)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = model(_inputs(world, 4, 3)).float().square().mean()
            loss.backward()
            optimizer.step()
        optimizer.finish()
        return _flat(model)

    return _everywhere(body)


def compiled() -> str:
    """`torch.compile` of the model; ranks are threads, so one compiles at a time."""

    def body(world: SimulatedWorld) -> torch.Tensor:
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).to(DEVICE)
        optimizer, quick = _wrapped(model, world), torch.compile(model, backend="aot_eager")
        for _ in range(3):
            optimizer.zero_grad()
            with _one_at_a_time:
                quick(_inputs(world, 4, 3)).square().mean().backward()
            optimizer.step()
        optimizer.finish()
        return _flat(model)

    return _everywhere(body)


def recurrent() -> str:
    """An LSTM, whose weights cuDNN would lay out anew; doing so after wrapping is refused by name."""

    def body(world: SimulatedWorld) -> torch.Tensor:
        model = torch.nn.LSTM(3, 4).to(DEVICE)
        optimizer = _wrapped(model, world)
        for _ in range(2):
            optimizer.zero_grad()
            model(_inputs(world, 5, 2, 3))[0].square().mean().backward()
            optimizer.step()
        optimizer.finish()
        return _flat(model)

    return _everywhere(body)


def unused_parameters() -> str:
    """A parameter without gradient on one rank, and one without gradient on any."""

    def body(world: SimulatedWorld) -> torch.Tensor:
        model = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3)).to(DEVICE)
        before = model[2].weight.detach().clone()
        optimizer = _wrapped(model, world)
        before = model[2].weight.detach().clone()
        for _ in range(3):
            optimizer.zero_grad()
            chosen = model[:1] if world.rank == 0 else model[:2]
            sum(
                (layer(_inputs(world, 4, 3)).square().mean() for layer in chosen), start=torch.zeros((), device=DEVICE)
            ).backward()
            optimizer.step()
        assert model[2].weight.grad is None
        assert torch.equal(before, model[2].weight), "nobody had a gradient for it"
        optimizer.finish()
        return _flat(model)

    return _everywhere(body)


def buffer_on_the_cpu() -> str:
    """A buffer that stayed on the CPU is named."""
    if DEVICE == "cpu":
        return "needs a GPU"
    model = torch.nn.BatchNorm1d(3).to(DEVICE)
    model.running_mean = model.running_mean.cpu()
    try:
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, SCHEDULE)
    except InputError as error:
        said = str(error)
    else:
        said = "was accepted"
    if "lies on several devices" not in said:
        raise AssertionError(said)
    return "refused"


IDIOMS: dict[str, Callable[[], str]] = {
    "GradScaler": scaler_with_one_infinite_gradient,
    "autocast": autocast,
    "torch.compile": compiled,
    "LSTM": recurrent,
    "unused parameters": unused_parameters,
    "CPU buffer": buffer_on_the_cpu,
}
