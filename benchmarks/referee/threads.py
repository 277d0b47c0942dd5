"""Real runs of the run-time: workers as threads of this process, and, where one is killed, processes."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import partreduce

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

# What the tests make threads and generators with; they lie next to the package that is looked at.
sys.path.append(str(Path(partreduce.__file__).resolve().parents[1] / "tests"))

MOST_SECONDS = 60


@dataclass(frozen=True)
class End:
    """What a worker has at the end."""

    values: np.ndarray
    num_bytes: float
    operations: float


def train(schedule: partreduce.Schedule, rounds: int, folder: str, *, free: bool, resumed_at: float) -> list[Any]:
    """Each worker's `End`, or its error. With `resumed_at` all save after so many rounds, and others load that."""

    def begin(world: Any) -> None:  # noqa: ANN401 - a World
        model, optimizer = _made(schedule, world, free=free)
        _steps(model, optimizer, range(saved_after(world.rank)), world.rank, free=free)
        partreduce.save_checkpoint(optimizer, folder)
        optimizer.finish()

    def end(world: Any) -> End:  # noqa: ANN401 - a World
        model, optimizer = _made(schedule, world, free=free)
        first = 0
        if resumed_at:
            partreduce.load_checkpoint(optimizer, folder)
            first = saved_after(world.rank) if free else optimizer.steps
        _steps(model, optimizer, range(first, rounds * schedule.steps_per_round_of(world.rank)), world.rank, free=free)
        counted = optimizer.stats()
        optimizer.finish()
        return End(_values(model).numpy(), counted["bytes"], counted["operations"])

    def saved_after(rank: int) -> int:
        return int(resumed_at * schedule.steps_per_round_of(rank))

    torch.set_num_threads(1)
    pool, ends = _ranks(), []
    for action in ([begin] if resumed_at else []) + [end]:
        with warnings.catch_warnings(), _generator(schedule):
            warnings.simplefilter("ignore")
            ends = pool.run(schedule.num_workers, action, catch=Exception)
        if any(isinstance(one, Exception) for one in ends):
            pool.fresh()
            break
    return ends


def _made(schedule: partreduce.Schedule, world: Any, *, free: bool) -> tuple[torch.nn.Module, Any]:  # noqa: ANN401
    """A network that is large enough for sums in stages, or a few numbers."""
    generator = torch.Generator().manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(6, 96), torch.nn.Tanh(), torch.nn.Linear(96, 1))
    if free:
        model = torch.nn.Linear(6, 1)
    if schedule.strategy.transport.codec is partreduce.strategies.Codec.NONE:
        model = model.double()  # so that another order of a sum shows in the hash only
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randint(-64, 64, parameter.shape, generator=generator) / 64
            parameter.copy_(drawn)
    momentum = 0.0 if free else 0.9
    inner = torch.optim.SGD(model.parameters(), lr=0.25 if free else 0.05, momentum=momentum, foreach=False)
    return model, partreduce.DistributedOptimizer(inner, model, schedule, timeout=MOST_SECONDS, world=world)


def _steps(model: torch.nn.Module, optimizer: Any, steps: range, rank: int, *, free: bool) -> None:  # noqa: ANN401
    for step in steps:
        generator = torch.Generator().manual_seed(1000 * rank + step)
        optimizer.zero_grad()
        if free:
            for parameter in model.parameters():
                drawn = torch.randint(-8, 8, parameter.shape, generator=generator).to(parameter.dtype)
                parameter.grad = drawn * 4  # a mean over the workers then has few bits
        else:
            inputs = torch.randn(8, 6, generator=generator).to(next(model.parameters()).dtype)
            (model(inputs) - inputs.sum(1, keepdim=True).sin()).square().mean().backward()
        optimizer.step()


def _values(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@cache
def _ranks() -> Any:  # noqa: ANN401 - of the tests
    from helpers.thread_ranks import ThreadRanks

    return ThreadRanks(4, timeout=MOST_SECONDS)


@contextlib.contextmanager
def _generator(schedule: partreduce.Schedule) -> Iterator[None]:
    """A group generator, where the schedule needs one."""
    if not isinstance(schedule.strategy, partreduce.strategies.DynamicGroups):
        yield
        return
    from helpers.generator_rig import serving
    from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting

    setting = replace(GeneratorSetting.of(schedule.strategy, schedule.cluster), max_known=8)
    with serving(setting) as (_, variables):
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in variables:
                del os.environ[name]


def run_with_failure(
    schedule: partreduce.Schedule, worker: int, instant: str, turn: int | tuple[int, int]
) -> tuple[int, dict[int, list[float]]]:
    """The exit code of a run of which a worker is killed, and what the others hold before their end.

    A turn is a round, or a round and a fragment.
    """
    from helpers.elastic_runs import own, run

    code, said, _ = run(
        {worker: (instant, turn)},
        strategy=schedule.strategy,
        nodes=schedule.cluster.num_nodes,
        steps=12 * schedule.steps_per_round_of(0),
        size=192,
        parameters=4,
    )
    return code, own(said)
