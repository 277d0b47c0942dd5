"""Figure 9 of eager-SGD's paper: how long a call waits where worker i comes i skews late, by who starts the sum.

Real processes of this machine over loopback; no root is needed. An iteration begins at an instant of the one clock that
all read, which rank 0 names when all have met; worker i sleeps for i skews and calls. A gradient is one in the place of
its iteration, so the sum says whose gradients of this iteration are in it: the active processes.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count, islice
from multiprocessing import get_context
from statistics import mean
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from pydantic import TypeAdapter

from benchmarks import kit
from benchmarks.kit import import_all, on_workers
from benchmarks.transport import joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.transport import Meet
    from partreduce.topo.schedule import Schedule

SYNCHRONOUS, SOLO, MAJORITY, HALF = "synchronous", "solo", "majority", "half"
MODES = (SYNCHRONOUS, SOLO, MAJORITY, HALF)
WARM_UP = 2
SEEDS = 500
"""Among so many, the seed of `majority` is the one whose draws are nearest to the mean of all draws."""
SPARE_SECONDS = 60.0
START_SECONDS = 0.02
"""From when all have come to an iteration until it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`iterations` calls of each of so many processes with arrays of `size` bytes, under one mode.

    `skew` is the milliseconds from one worker's call to the next one's.
    """

    processes: int
    size: int
    skew: float
    mode: str
    iterations: int

    @property
    def seconds(self) -> float:
        """About what it takes, without sums."""
        return 2.0 + 0.1 * self.processes + (self.iterations + WARM_UP) * (self.processes * self.skew / 1e3 + 0.05)

    @property
    def words(self) -> str:
        return f"{self.processes} processes, {self.size} B, skew {self.skew:g} ms, {self.mode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of every iteration the mean milliseconds that a call took, and the active processes."""

    trial: Trial
    milliseconds: tuple[float, ...]
    active: tuple[float, ...]


FOUND = TypeAdapter(Found)


def measure(trials: Sequence[Trial], seconds: float) -> tuple[list[Found], list[str]]:
    """Every trial that ends in the time, and what became of the others."""
    end, found, notes = time.monotonic() + seconds, list[Found](), list[str]()
    # Workers fork from a process that has no threads.
    with ProcessPoolExecutor(1, get_context("spawn"), _begin, (os.getpid(),)) as fresh:
        for trial in trials:
            begun = time.monotonic()
            if begun + trial.seconds > end:
                notes.append(f"Figure 9: left out, because the time was spent: {trial.words}")
                continue
            try:
                found.append(fresh.submit(_one, trial).result())
            except (SystemExit, OSError, ValueError) as error:
                notes.append(f"Figure 9: {trial.words}: failed: {str(error)[-200:]}")
                continue
            took, ms = time.monotonic() - begun, mean(found[-1].milliseconds)
            print(f"{trial.words}: {ms:.2f} ms a call, {took:.1f} s", file=sys.stderr, flush=True)
    return found, notes


def _begin(parent: int) -> None:
    """Import what all forks need, and end with whom they are for."""
    import torch._dynamo

    import partreduce.runtime
    from partreduce.runtime.launcher.process_cleanup import die_with_parent

    die_with_parent(parent)
    import_all(partreduce.runtime)
    torch.set_num_threads(1)


def schedule_of(trial: Trial, seed: int = 0) -> Schedule:
    """A sum of all in every step, as published: call k counts for sum k."""
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.allreduce import AllReduce
    from partreduce.topo.strategies.partial import PartialAllReduce

    cluster = Cluster.regular(1, trial.processes)
    if trial.mode == SYNCHRONOUS:
        return Schedule("synchronous", cluster, AllReduce())
    quorum: Any = trial.processes // 2 if trial.mode == HALF else trial.mode
    return Schedule(trial.mode, cluster, AllReduce(sync=PartialAllReduce(quorum=quorum, count="call", seed=seed)))  # type: ignore[arg-type]


def draws(trial: Trial, seed: int) -> Iterator[int]:
    """Who starts the sums under `majority`, sum by sum."""
    from partreduce.schedulers.protocols.partial import Partial

    sync: Any = schedule_of(trial, seed).strategy.sync
    machine = Partial(sync, trial.processes)
    for round_ in count():
        yield machine._drawn(round_)  # noqa: SLF001 - no run says whom it drew


def waiting(initiator: int) -> int:
    """Skews that all workers wait together for the worker of this rank, who comes so many skews after the first."""
    return initiator * (initiator + 1) // 2


@cache
def even_seed(trial: Trial, seeds: int = SEEDS) -> tuple[int, float]:
    """The seed whose draws make workers wait as long as all draws do on average, and its waiting over that."""
    expected = mean(waiting(rank) for rank in range(trial.processes))

    def off(seed: int) -> float:
        drawn = list(islice(draws(trial, seed), WARM_UP, WARM_UP + trial.iterations))
        return mean(waiting(rank) for rank in drawn) / expected

    best = min(range(1, seeds), key=lambda seed: abs(off(seed) - 1))
    return best, off(best)


def next_start(meet: Meet, rank: int) -> float:
    """The monotonic time at which the next iteration begins: a little after all have come here."""
    meet(0.0)
    return meet(time.monotonic() if rank == 0 else 0.0) + START_SECONDS


def _work(trial: Trial, seed: int, end: float) -> list[tuple[float, float]]:
    """One process's calls: (milliseconds, active) of each iteration."""
    import torch

    import partreduce

    kit.end_after(end - time.monotonic() + 5)
    world, meet = joined()
    number = trial.size // 4
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros(number))
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = partreduce.DistributedOptimizer(sgd, model, schedule_of(trial, seed), timeout=60.0)
    said = []
    for iteration in range(trial.iterations + WARM_UP):
        place = iteration % min(number, 16)
        model.weight.grad = torch.zeros(number)
        model.weight.grad[place] = 1.0
        before = float(model.weight.detach()[place])
        begins = next_start(meet, world.rank)
        time.sleep(max(0.0, begins + world.rank * trial.skew / 1e3 - time.monotonic()))
        begun = time.monotonic()
        optimizer.step()
        passed = time.monotonic() - begun
        said.append((1e3 * passed, trial.processes * (before - float(model.weight.detach()[place]))))
    meet(0.0)
    return said


def _one(trial: Trial) -> Found:
    """Run a trial in processes of their own.

    Raises:
        SystemExit: one of them failed; the message is what they printed.
    """
    seed = even_seed(replace(trial, size=4, skew=0.0))[0] if trial.mode == MAJORITY else 0
    end = time.monotonic() + SPARE_SECONDS + 2 * trial.seconds
    said = on_workers(partial(_work, trial, seed, end), trial.processes)
    milliseconds, active = np.array(said).mean(axis=0)[WARM_UP:].T.tolist()  # of each iteration
    return Found(trial=trial, milliseconds=tuple(milliseconds), active=tuple(active))
