"""Bare sums: what one sum of all workers' gradients takes by its algorithm and codec, side by side, without computing.

    python -m benchmarks.papers pipe-sgd --only sums --minutes 4    # 80 and 200 Mbit/s, 4x4 workers, 2.19 MB; root

Four workers on four nodes, as in the paper, have flat sums only. All ways are set up in the same processes and take
turns, so that a repetition of one stands beside one of every other. A time is from the last worker's start to the last
one's end. Measured are the bare sums, of an array by a communicator of the run-time, and whole calls of
`DistributedOptimizer.step()`, which also pack gradients, compare tags and take an SGD step of 548,074 parameters.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks import kit
from benchmarks.kit import Way, spans, take_turns
from benchmarks.papers.rows import Row, value
from benchmarks.transport import PLAIN, SUMS, joined, sums
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.lab.crew import Lab
    from benchmarks.lab.setting import Job
    from benchmarks.papers.cells import Kept
    from benchmarks.transport import Meet

BEST = "hierarchical, 8 bit across nodes"
WAYS = {
    name: SUMS[name]
    for name in (
        PLAIN,
        "flat ring, bfloat16",
        "flat, 8 bit",
        "hierarchical, fp32",
        "hierarchical, bfloat16 across nodes",
        BEST,
    )
}
BARE, IN_STEPS = "a bare sum", "a step without computing"
BLOCKS = [
    (4, "200mbit", BARE),
    (1, "200mbit", BARE),
    (4, "80mbit", BARE),
    (4, "200mbit", IN_STEPS),
    (4, "80mbit", IN_STEPS),
]
"""Workers on each of 4 nodes, links, and what is measured."""
AIMS = {4: (BEST, 3.0), 1: ("flat, 8 bit", 2.5)}
"""What a way is to reach over the plain one as a bare sum, by the workers on a node."""
NUMBER = 548_074
TURNS = 12
LIMIT = 150.0


def measure(job: Job, node: int) -> None:
    """One worker: takes its part in every way's sums, in turns, and leaves its times in a file."""
    import torch

    from benchmarks.lab.worker import use_environment

    kit.end_after(LIMIT + 30)
    rank = use_environment(job, node)
    torch.manual_seed(rank)
    end = time.monotonic() + job.limit
    if job.options["what"] == BARE:
        world, meet = joined()
        ways = sums(world, NUMBER * 4e-6, job.num_nodes, ways_of(job.workers_per_node))
    else:
        ways, meet = _in_steps(job)
    times = take_turns(ways, meet, job.options["turns"], warm_up=1, end=end)  # the first connects the groups
    (job.path / f"sums-{rank:03d}.json").write_text(json.dumps(times))
    meet(0.0)


def _in_steps(job: Job) -> tuple[dict[str, Way], Meet]:
    import torch

    import partreduce

    everyone, gradient = range(job.num_workers), torch.randn(NUMBER)

    def meet(word: float) -> float:
        said = torch.tensor([word])
        partreduce.p_reduce(said, everyone, timeout=60)
        return float(said)

    def way(schedule: str) -> Way:
        model = torch.nn.Linear(NUMBER, 1, bias=False)
        sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
        optimizer = partreduce.DistributedOptimizer(sgd, model, schedule, timeout=60.0)

        def prepared(_: int) -> Callable[[], object]:
            model.weight.grad = gradient.clone().view_as(model.weight)
            return optimizer.step

        return prepared

    return {name: way(path) for name, path in job.options["schedules"].items()}, meet


def ways_of(each: int) -> dict[str, Transport]:
    """Without several workers on a node sums have no stages."""
    return {name: how for name, how in WAYS.items() if each > 1 or how.algorithm is AllReduceAlgorithm.RING}


def figures(what: str, each: int) -> tuple[str, str]:
    """The names of the two figures: milliseconds, and over the plain ring."""
    over = f"Over the flat fp32 ring: {what}" + ", 4 workers on 4 nodes" * (each == 1)
    return f"Milliseconds of {what}, 2.19 MB, {4 * each} workers on 4 nodes", over


def measure_all(minutes: float, _: str | None, kept: Kept) -> None:
    """Both kinds of sums over all links, within the time.

    Raises:
        NoLabError: this machine cannot hold the lab.
        RuntimeError: a worker failed; the message is the log's end.
    """
    from benchmarks.lab.crew import standing
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.document.writer import write_schedule
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.allreduce import AllReduce

    with standing(4) as lab:
        schedules = {}
        for index, (name, how) in enumerate(WAYS.items()):
            schedules[name] = str(lab.scratch / f"way-{index}.json")
            write_schedule(schedules[name], Schedule(f"way-{index}", Cluster.regular(4, 4), AllReduce(transport=how)))
        for each, rate, what in BLOCKS:
            options = {"what": what, "schedules": schedules, "turns": TURNS}
            ms = _measured(lab, each, rate, options, 60 * minutes / len(BLOCKS))
            kept.found.append({"each": each, "rate": rate, "what": what, "ms": ms})
            kept.write()


def rows(kept: Kept) -> list[Row]:
    return [row for one in kept.found for row in rows_of(one["each"], one["rate"], one["what"], one["ms"])]


def _measured(lab: Lab, each: int, rate: str, options: dict[str, Any], limit: float) -> dict[str, list[float]]:
    lab.shape(rate)
    job = lab.job(rate, "sums", each, limit=min(LIMIT, limit), options=options)
    if any(lab.crew.run(job)):
        raise RuntimeError(f"sums: {(job.path / 'node-0.log').read_text()[-2000:]}")
    return spans([json.loads(path.read_text()) for path in sorted(job.path.glob("sums-*.json"))])


def rows_of(each: int, rate: str, what: str, found: dict[str, list[float]]) -> list[Row]:
    """The ratio of every way's turns to the plain ring's, in pairs as they stood side by side; bare ones in ms, too."""
    words, (figure, over) = f"{rate.removesuffix('mbit')} Mbit/s", figures(what, each)
    way, least = AIMS[each]
    bare = found if what == BARE else {}
    rows = [value(ms, figure=figure, setting=f"{words}: {name}", unit="milliseconds") for name, ms in bare.items()]
    rows += [
        value(
            [theirs / ours for theirs, ours in zip(found[PLAIN], found[name], strict=True)],
            figure=over,
            setting=f"{words}: {name}",
            aim=least if name == way and what == BARE else None,
        )
        for name in found
        if name != PLAIN
    ]
    return rows
