"""Figure 9 of eager-SGD's paper: how long a call waits where worker i comes i skews late, by who starts the sum.

Real processes of this machine over loopback; no root is needed. An iteration begins at an instant of the one clock that
all read, which rank 0 names when all have met; worker i sleeps for i skews and calls. A gradient is one in the place of
its iteration, so the sum says whose gradients of this iteration are in it: the active processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import count, islice
from multiprocessing import get_context
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from benchmarks import kit
from benchmarks.kit import import_all, on_workers
from benchmarks.papers.cells import Kept
from benchmarks.papers.rows import Curve, Row, ratio, value
from benchmarks.transport import joined

if TYPE_CHECKING:
    from benchmarks.transport import Meet
    from partreduce.topo.schedule import Schedule


os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


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
    """Run a trial in processes of their own."""
    seed = even_seed(replace(trial, size=4, skew=0.0))[0] if trial.mode == MAJORITY else 0
    end = time.monotonic() + SPARE_SECONDS + 2 * trial.seconds
    said = on_workers(partial(_work, trial, seed, end), trial.processes)
    milliseconds, active = np.array(said).mean(axis=0)[WARM_UP:].T.tolist()  # of each iteration
    return Found(trial=trial, milliseconds=tuple(milliseconds), active=tuple(active))


FIGURE = "Figure 9: latency of a synchronous sum over that of a partial one"
CALLS = "Figure 9: milliseconds that a call takes"
ACTIVE = "Figure 9: processes whose gradients of the same call are in a sum"
OVER_MAJORITY = "Figure 9: latency of a majority over that of half of the workers"
PLOT = "Figure 9: latency of a synchronous sum over that of a partial one, over skew"

SKEW, OTHER = 50.0, 20.0
"""Milliseconds from one worker's call to the next one's: of the smallest arrays, and of larger ones."""
SKEWS = (1.0, 5.0, OTHER)
"""What the curve has besides."""
SIZES = {64: "64 B", 1 << 16: "64 KiB", 1 << 20: "1 MiB", 8 << 20: "8 MiB"}
ITERATIONS = {SYNCHRONOUS: 6, SOLO: 9, MAJORITY: 21, HALF: 9}
FEWER = 12
"""Calls of larger arrays and of the curve, at most."""
PAPER = {SOLO: 53.32, MAJORITY: 2.46}
AIM_OF_HALF = 1.4
PAPER_ACTIVE = {SOLO: 1.0, MAJORITY: 16.0}


def measure_all(minutes: float, _: str | None, kept: Kept) -> None:
    """All trials that the time is enough for."""
    found, notes = measure(trials(), 60 * minutes)
    kept.found += [asdict(one) for one in found]
    kept.notes += notes


def trials() -> list[Trial]:
    """What Figure 9 needs, the most important first."""
    main = [(processes, 64, SKEW, MODES) for processes in (32, 16, 64)]
    curve = [(32, 64, skew, MODES[:3]) for skew in SKEWS]
    sizes = [(processes, size, OTHER, MODES) for size in (1 << 20, 8 << 20) for processes in (32, 16)]
    return [
        Trial(processes=processes, size=size, skew=skew, mode=mode, iterations=_iterations(mode, skew))
        for processes, size, skew, modes in (*main, *curve, *sizes, (32, 1 << 16, OTHER, MODES))
        for mode in modes
    ]


def _iterations(mode: str, skew: float) -> int:
    return ITERATIONS[mode] if skew == SKEW else min(FEWER, ITERATIONS[mode])


def limit(mode: str, processes: int) -> float | None:
    """The gain where only skew is waited for; solo's has none."""
    if mode == MAJORITY:
        return 3 * processes / (processes + 1)
    if mode == HALF:
        last = processes // 2 - 1  # the rank whose call completes the quorum
        return (processes - 1) / 2 / (last * (last + 1) / 2 / processes)
    return None


def _by_setting(kept: Kept) -> dict[tuple[int, int, float], dict[str, Found]]:
    blocks: dict[tuple[int, int, float], dict[str, Found]] = {}
    for each in map(FOUND.validate_python, kept.found):
        trial = each.trial
        blocks.setdefault((trial.processes, trial.size, trial.skew), {})[trial.mode] = each
    return blocks


def thirds(values: Sequence[float]) -> list[float]:
    """Means of three runs of iterations, so that what varies from draw to draw does not look like spread."""
    size = max(1, len(values) // 3)
    parts = [values[place : place + size] for place in range(0, 3 * size, size)]
    return [sum(part) / len(part) for part in parts if part]


def _of(calls: Sequence[float], **fields: Any) -> Row:  # noqa: ANN401 - fields of Row
    return _around(value(thirds(calls), **fields), mean(calls))


def _ratio(theirs: Found, ours: Found, **fields: Any) -> Row:  # noqa: ANN401 - fields of Row
    return _around(ratio(thirds(theirs.milliseconds), thirds(ours.milliseconds), **fields), _gain(theirs, ours))


def _around(row: Row, middle: float) -> Row:
    """A row with the ends of thirds of the iterations, and the mean of all of them."""
    return replace(row, measured=middle, low=min(row.low, middle), high=max(row.high, middle))


def _gain(theirs: Found, ours: Found) -> float:
    return mean(theirs.milliseconds) / mean(ours.milliseconds)


def rows(kept: Kept) -> Iterator[Row]:
    """Latencies, their ratios, and active processes."""
    blocks = _by_setting(kept)
    for (processes, size, skew), block in blocks.items():
        where = f"{processes} processes, {SIZES[size]}, {skew:g} ms"
        base, majority = block.get(SYNCHRONOUS), block.get(MAJORITY)
        for mode, each in block.items():
            setting = f"{where}: {mode}"
            if base is not None and mode != SYNCHRONOUS:
                yield _ratio(base, each, figure=FIGURE, setting=setting, **_said(mode, processes, size, skew))
            yield _of(each.milliseconds, figure=CALLS, setting=setting, unit="milliseconds")
            if mode != SYNCHRONOUS:
                paper = PAPER_ACTIVE.get(mode) if processes == 32 else None
                yield _of(each.active, figure=ACTIVE, setting=setting, unit="workers", paper=paper)
        if majority is not None and HALF in block:
            limits = limit(HALF, processes), limit(MAJORITY, processes)
            assert limits[0] is not None
            assert limits[1] is not None
            predicted = limits[0] / limits[1]
            yield _ratio(
                majority, block[HALF], figure=OVER_MAJORITY, setting=where, aim=AIM_OF_HALF, predicted=predicted
            )


def _said(mode: str, processes: int, size: int, skew: float) -> dict[str, Any]:
    """What the paper printed of 32 processes, what is aimed at, and what is to be expected."""
    known = limit(mode, processes)
    usual = skew == SKEW and size == min(SIZES)
    aims = {SOLO: 53.0 if processes == 32 else None, MAJORITY: known and 0.95 * known}
    return {
        "paper": PAPER.get(mode) if processes == 32 and usual else None,
        "aim": aims.get(mode) if usual else None,
        "predicted": known,
    }


def curves(kept: Kept) -> Iterator[Curve]:
    """The gain over skew, of 32 processes and 64 bytes; beside it over all skew ÷ what a sum takes."""
    blocks = {where: block for where, block in _by_setting(kept).items() if where[:2] == (32, 64)}
    spare = [
        mean(block[SYNCHRONOUS].milliseconds) - 31 * where[2] / 2
        for where, block in blocks.items()
        if SYNCHRONOUS in block
    ]
    if not spare:
        return
    sum_ms = max(0.1, median(spare))
    for mode in (SOLO, MAJORITY, HALF):
        known = sorted(
            (where[2], _gain(block[SYNCHRONOUS], block[mode]))
            for where, block in blocks.items()
            if mode in block and SYNCHRONOUS in block
        )
        if len(known) > 1:
            skews, gains = zip(*known, strict=True)
            over = tuple(32 * skew / sum_ms for skew in skews)
            yield Curve(plot=PLOT, name=mode, at=skews, losses=gains, steps=over)
