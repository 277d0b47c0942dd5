"""One worker of one session: trains by several ways in turns, and leaves times, bytes and losses in a file.

Turns stand side by side in the same processes, so that a drift of the machine's load hits all ways alike. Between
turns all workers meet, outside the clock; losses are taken there, too.
"""

from __future__ import annotations

import json
import time

import numpy as np
import torch

from benchmarks import kit
from benchmarks.lab.setting import Job
from benchmarks.lab.worker import bytes_out, use_environment
from benchmarks.papers.tables.models import LanguageData
from benchmarks.papers.tables.ways import Way, way_of
from benchmarks.transport import Meet, joined

READY, SHAPED = "ready", "shaped"
"""Files by which a session's workers and its starter agree when links become slow."""
JUDGED = 96
"""Samples of each worker in a judgment."""
START_SECONDS = 90.0


def measure(job: Job, node: int) -> None:
    """Everything a worker does; an alarm ends the process if it hangs, whatever it hangs in."""
    kit.end_after(job.limit)
    rank = use_environment(job, node)
    world, meet = joined()
    group = world.create(tuple(range(world.size)), name="papers")
    data = LanguageData(np.load(job.options["text"], mmap_mode="r"))
    runs = {name: _Run(job, rank, data, way_of(name, job, group), meet) for name in job.options["ways"]}
    for run in runs.values():  # the first step connects, and is not timed
        run.steps(1)
    _wait_for_links(job, rank, meet)
    end = time.monotonic() + job.options["seconds"]
    for _ in range(job.options["turns"]):
        for run in runs.values():
            if meet(float(time.monotonic() > end)) == 0:
                run.turn()
        _write(job, rank, runs)
    for run in runs.values():
        if job.options["target"] and not run.is_over:
            run.judge()
    _write(job, rank, runs)
    meet(0.0)


def _wait_for_links(job: Job, rank: int, meet: Meet) -> None:
    """Until now links were fast; whoever started the session shapes them when all have come so far."""
    meet(0.0)
    if rank == 0:
        (job.path / READY).touch()
    end = time.monotonic() + START_SECONDS
    while not (job.path / SHAPED).exists() and time.monotonic() < end:
        time.sleep(0.02)
    meet(0.0)


class _Run:
    """One way under way; a turn is [steps before, start, end, bytes out of the node, loss before or none]."""

    def __init__(self, job: Job, rank: int, data: LanguageData, way: Way, meet: Meet) -> None:
        self.job, self.rank, self.data, self.way, self.meet = job, rank, data, way, meet
        self.done, self.is_over = 0, False
        self.turns: list[list[float | None]] = []

    def turn(self) -> None:
        """Judge, and take the steps of one turn unless the target was reached."""
        loss = self.judge() if self.job.options["target"] and not self.is_over else None
        if self.is_over:
            return
        self.meet(0.0)
        before, sent, begun = self.done, bytes_out(), time.monotonic()
        self.steps(self.job.options["steps"])
        ended = time.monotonic()
        self.meet(0.0)
        if loss is not None:
            self.turns.pop()
        self.turns.append([before, begun, ended, bytes_out() - sent, loss])

    def steps(self, count: int) -> None:
        """Train. Computing sleeps a third forward, the rest back."""
        for _ in range(count):
            batch = self.data.batch(self.job.seed, self.done, self.rank)
            self.way.model.zero_grad()
            self.way.before(batch)
            loss = self.way.model(batch)
            time.sleep(self.job.compute / 3)
            loss.backward()
            time.sleep(2 * self.job.compute / 3)
            self.way.step()
            self.done += 1

    def judge(self) -> float:
        """The mean of all workers' losses over samples that nobody trains on, as a turn that took no time."""
        batch = self.data.judged(self.rank, JUDGED)
        self.way.model.zero_grad()
        self.way.before(batch)
        with torch.no_grad():
            loss = float(self.way.model(batch))
        mean = self.meet(loss) / self.job.num_workers
        self.turns.append([self.done, 0.0, 0.0, 0, mean])
        self.is_over = mean <= self.job.options["target"]
        return mean


def _write(job: Job, rank: int, runs: dict[str, _Run]) -> None:
    part = job.path / f"tables-{rank:03d}.part"
    part.write_text(json.dumps({name: run.turns for name, run in runs.items()}))
    part.replace(job.path / f"tables-{rank:03d}.json")
