"""Bare sums: what one sum of all workers' gradients takes by its form and codec, side by side, without computing.

    python -m benchmarks.papers.sums               # 80 and 200 Mbit/s, 4x4 workers, 2.19 MB; needs root
    python -m benchmarks.papers.sums --minutes 3

Each way is a schedule under `preduce.DistributedOptimizer`; all of them are set up in the same 16 processes and take
turns, so that a repetition of one stands beside one of every other. A time is from the last worker's call of `step()`
to the last one's return; that includes what an SGD step of 548,074 parameters takes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.lab.late_and_small import HIERARCHICAL_INT8
from benchmarks.papers.rows import Results, Row, value
from preduce.topo.strategies.axes import Codec, Form, How

if TYPE_CHECKING:
    from benchmarks.lab.job import Job

PLAIN, BEST = "flat ring, fp32", "hierarchical, 8 bit across nodes"
WAYS: dict[str, How] = {
    PLAIN: How(),
    "flat ring, bfloat16": How(codec=Codec.BFLOAT16),
    "flat ring, float16": How(codec=Codec.FLOAT16),
    "flat, 8 bit": How(codec=Codec.INT8),
    "hierarchical, fp32": How(form=Form.HIERARCHICAL),
    "hierarchical, bfloat16 across nodes": replace(HIERARCHICAL_INT8, codec=Codec.BFLOAT16),
    BEST: HIERARCHICAL_INT8,
}
RATES = {"80mbit": 3.0, "200mbit": None}
"""Links, and what the best way is to reach there over the plain one."""
NUMBER = 548_074
TURNS = 12
LIMIT = 150.0
FIGURE, OVER = "One sum of 2.19 MB, 16 workers on 4 nodes", "Over the flat fp32 ring, one sum"
WHY = {
    OVER: "The paper has no such figure. A prototype had 3.5 at 80 and 3.0 at 200 Mbit/s.",
}


def measure(job: Job, node: int) -> None:
    """One worker: takes its part in every way's sums, in turns, and leaves its times in a file."""
    import torch

    import preduce
    from benchmarks.lab.baselines import use_environment

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(LIMIT) + 30)
    rank, everyone = use_environment(job, node), range(job.num_workers)
    torch.manual_seed(rank)
    little, gradient = torch.ones(1), torch.randn(NUMBER)
    made = {name: _optimizer(path) for name, path in job.options["schedules"].items()}
    times: dict[str, list[list[float]]] = {name: [] for name in made}
    end, turn = time.monotonic() + job.limit, 0
    while turn <= job.options["turns"]:
        for name, (optimizer, parameter) in made.items():
            parameter.grad = gradient.clone().view_as(parameter)
            preduce.p_reduce(little, everyone, timeout=60)
            start = time.monotonic()
            optimizer.step()
            if turn:  # the first connects the groups
                times[name].append([start, time.monotonic()])
        turn += 1
        late = torch.tensor([float(time.monotonic() > end)])
        preduce.p_reduce(late, everyone, timeout=60)
        if float(late) > 0:
            break
    (job.path / f"sums-{rank:03d}.json").write_text(json.dumps(times))
    preduce.p_reduce(little, everyone, timeout=60)


def _optimizer(schedule: str) -> tuple[Any, Any]:
    import torch

    import preduce

    model = torch.nn.Linear(NUMBER, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    return preduce.DistributedOptimizer(sgd, model, schedule, timeout=60.0), model.weight


def collected(folder: Path) -> dict[str, list[float]]:
    """Milliseconds of each turn: from the last worker's start to the last worker's end."""
    said = [json.loads(path.read_text()) for path in sorted(folder.glob("sums-*.json"))]
    return {
        name: [
            1e3 * (max(end for _, end in turn) - max(start for start, _ in turn))
            for turn in zip(*(worker[name] for worker in said), strict=True)
        ]
        for name in said[0]
    }


def run(minutes: float, turns: int = TURNS, rates: tuple[str, ...] = tuple(RATES)) -> Results:
    """Measure in the lab, within the time.

    Raises:
        NoLabError: this machine cannot hold it.
        RuntimeError: a worker failed; the message is the log's end.
    """
    from benchmarks.lab.crew import Crew
    from benchmarks.lab.job import Job
    from benchmarks.lab.network import Network, why_not
    from benchmarks.lab.run import leave_on_a_signal, machine
    from benchmarks.papers.cells import NoLabError
    from preduce.topo.cluster import Cluster
    from preduce.topo.document.writer import write_schedule
    from preduce.topo.schedule import Schedule
    from preduce.topo.strategies.allreduce import AllReduce

    if (reason := why_not()) is not None:
        raise NoLabError(reason)
    cluster = Cluster.regular(4, 4)
    scratch = Path(tempfile.mkdtemp(prefix="preduce-sums-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    leave_on_a_signal()
    rows: list[Row] = []
    try:
        schedules = {}
        for index, (name, how) in enumerate(WAYS.items()):
            schedules[name] = str(scratch / f"way-{index}.json")
            write_schedule(scratch / f"way-{index}.json", Schedule(f"way-{index}", cluster, AllReduce(how=how)))
        with Network(4, rates[0]) as network, Crew(network, scratch) as crew:
            for rate in rates:
                for node in range(4):
                    network.shape(node, rate)
                fields: dict[str, Any] = {
                    "num_nodes": 4,
                    "workers_per_node": 4,
                    "address": "",
                    "port": 0,
                    "how": "sums",
                }
                limit = min(LIMIT, 60 * minutes / len(rates))
                options = {"schedules": schedules, "turns": turns}
                job = Job(name=rate, folder=str(scratch / rate), limit=limit, options=options, **fields)
                if any(crew.run(job)):
                    raise RuntimeError(f"sums: {(scratch / rate / 'node-0.log').read_text()[-2000:]}")
                rows += rows_of(rate, collected(scratch / rate))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        shutil.rmtree(scratch, ignore_errors=True)
    return Results(paper="pipe-sgd", commit=str(machine()["commit"]), rows=tuple(rows), why=WHY)


def rows_of(rate: str, found: dict[str, list[float]]) -> list[Row]:
    """Milliseconds of every way, and the ratio of its turns to the plain ring's: pairs, as they stood side by side."""
    words = f"{rate.removesuffix('mbit')} Mbit/s"
    rows = [value(ms, figure=FIGURE, setting=f"{words}: {name}", unit="milliseconds") for name, ms in found.items()]
    rows += [
        value(
            [theirs / ours for theirs, ours in zip(found[PLAIN], found[name], strict=True)],
            figure=OVER,
            setting=f"{words}: {name}",
            aim=RATES[rate] if name == BEST else None,
        )
        for name in found
        if name != PLAIN
    ]
    return rows


def main() -> int:
    from benchmarks.papers import page
    from benchmarks.papers.cells import NoLabError
    from benchmarks.papers.rows import add

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0)
    chosen = parser.parse_args()
    try:
        found = run(chosen.minutes)
    except NoLabError as reason:
        print(f"lab: skipped: {reason}")
        return 0
    add(found)
    page.write()
    print(page.table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
