"""How long step() takes in two checkouts, measured alternately in one run.

    python -m benchmarks.step_overhead OTHER             # a `git worktree`, also of an older tree; then this checkout
    python -m benchmarks.step_overhead OTHER --turns 41

In each turn four processes of each checkout step under All-Reduce with 8 MB of parameters over loopback (the slowest
of them counts), and two more measure the processor time that is ours: step() of a small model of 4 parameters, and of
128, with three workers that answer at once, less the wrap optimizer's own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
WORKERS = 4
LAYERS = (2, 64)
"""Of the models whose steps are timed alone; each has two parameters."""


def wrap(store: Any, rank: int, num_workers: int, width: int, layers: int = 2) -> tuple[Any, Any]:
    """An optimizer under All-Reduce in each step, and its model: one number out of layers of width² numbers each."""
    import torch

    import partreduce
    from partreduce.runtime.transport.gloo import GlooWorld

    assert Path(partreduce.__file__).parents[1].samefile("."), "a checkout is found, and not an installation"
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers - 1)], torch.nn.Linear(width, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = partreduce.Schedule("a", partreduce.Cluster.regular(1, num_workers), partreduce.strategies.AllReduce())
    world = GlooWorld(store, rank, num_workers, timedelta(seconds=60))
    return partreduce.DistributedOptimizer(inner, model, schedule, world=world), model


class AnswersAtOnce:
    """In place of gloo: the sum of equal arrays of so many workers, there as soon as it is asked for."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers

    def allreduce(self, tensors: list[Any], _options: object) -> AnswersAtOnce:
        tensors[0].mul_(self.num_workers)
        return self

    def is_completed(self) -> bool:
        return True

    def wait(self, *_limit: object) -> None:
        """It is there."""


def alone(layers: int) -> tuple[Any, Any]:
    """Worker 0 of four that have met in this process, and whose sums take no time."""
    import torch.distributed as dist

    store = dist.HashStore()
    found: dict[int, tuple[Any, Any]] = {}

    def work(rank: int) -> None:
        found[rank] = wrap(store, rank, WORKERS, 8, layers)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    optimizer, model = found[0]
    optimizer.run.reducer.world.everyone()._backend = AnswersAtOnce(WORKERS)  # noqa: SLF001 - of whatever checkout
    return optimizer, model


def take_turns(port: int, side: str, rank: int, turns: int) -> None:
    """A process of one checkout: rank 0 to 3 of its workers, or further ones, which measure what is ours alone."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    is_alone = rank >= WORKERS
    own = dist.PrefixStore(f"workers of {side}", store)  # type: ignore[attr-defined]
    optimizer, model = alone(LAYERS[rank - WORKERS]) if is_alone else wrap(own, rank, WORKERS, 1414)
    batch, repeated = torch.ones(1, model[0].in_features), 200 if is_alone else 10
    apart = [torch.nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    for parameter in apart:
        parameter.grad = torch.ones_like(parameter)
    plain = torch.optim.SGD(apart, lr=0.01)  # over its own numbers, since no one may step the wrap one by itself

    def seconds(step: Callable[[], object]) -> tuple[float, float]:
        waited = worked = 0.0  # by the wall's clock, and of processors
        for _ in range(repeated):
            optimizer.zero_grad()
            model(batch).sum().backward()
            start, before = time.perf_counter(), time.process_time()
            step()
            waited, worked = waited + time.perf_counter() - start, worked + time.process_time() - before
        return waited / repeated, worked / repeated

    for turn in range(-1, turns):  # the first one is not counted
        store.wait([f"{turn} {side} {rank if is_alone else 'together'}"], timedelta(minutes=9))
        waited, worked = seconds(optimizer.step)
        if is_alone:
            worked -= seconds(plain.step)[1]
        store.set(f"{turn} {side} {rank} took", json.dumps([waited, worked]))
    store.wait(["over"], timedelta(minutes=9))
    os._exit(0)  # no one finishes a run of which only one worker is real


def times(roots: list[Path], turns: int) -> None:
    """Print how long steps take in each checkout, and the ratio of the last to the first, by turns."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    started = [
        subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), "--turns", str(turns), "--process", *map(str, place)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        )
        for side, root in enumerate(roots)
        for place in ((store.port, side, rank) for rank in range(WORKERS + len(LAYERS)))
    ]
    together = list(range(WORKERS))
    asked = {"together": together} | {str(rank): [rank] for rank in range(WORKERS, WORKERS + len(LAYERS))}
    took: dict[tuple[str, int], list[list[list[float]]]] = {(who, side): [] for who in asked for side in range(2)}
    for turn in range(-1, turns):
        for who, ranks in asked.items():
            for side in range(len(roots)) if turn % 2 else reversed(range(len(roots))):
                store.set(f"{turn} {side} {who}", "1")
                keys = [f"{turn} {side} {rank} took" for rank in ranks]
                store.wait(keys, timedelta(minutes=9))
                if turn >= 0:
                    took[who, side].append([json.loads(store.get(key)) for key in keys])
    store.set("over", "1")
    for process in started:
        process.wait()
    print("| what | before | now | now ÷ before [quarters] |\n|---|--:|--:|--:|")
    rows: list[tuple[str, str, float, Callable[[list[list[float]]], float]]] = [
        ("step(), 4 workers, 8 MB, ms", "together", 1e3, lambda of_turn: max(waited for waited, _ in of_turn)),
        ("the same, ms of all processors", "together", 1e3, lambda of_turn: sum(worked for _, worked in of_turn)),
    ]
    for rank, layers in enumerate(LAYERS, WORKERS):
        what = f"ours of a step of {2 * layers} parameters, µs of the processor"
        rows.append((what, str(rank), 1e6, lambda of_turn: of_turn[0][1]))
    for what, who, unit, number in rows:
        before, now = ([number(of_turn) for of_turn in took[who, side]] for side in range(2))
        low, middle, high = statistics.quantiles((new / old for old, new in zip(before, now, strict=True)), n=4)
        row = f"{unit * statistics.median(before):.3g} | {unit * statistics.median(now):.3g}"
        print(f"| {what} | {row} | {middle:.3f} [{low:.3f}-{high:.3f}] |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="another checkout, whose numbers come first")
    parser.add_argument("--turns", type=int, default=15, help="how often the two are measured, alternately")
    parser.add_argument("--process", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process is not None:
        port, side, rank = given.process
        take_turns(int(port), side, int(rank), given.turns)
    elif given.other is None or given.turns < 2:
        parser.error("name another checkout, and at least 2 turns")
    else:
        times([given.other.resolve(), ROOT], given.turns)


if __name__ == "__main__":
    main()
