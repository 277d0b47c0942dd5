"""One worker of one job: trains by several ways in turns, and leaves times, bytes and losses in a file.

Turns stand side by side in the same processes, so that a drift of the machine's load hits all ways alike. Between
turns all workers meet, outside the clock; losses are taken there, too.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.lab.baselines import use_environment
from benchmarks.lab.worker import bytes_out
from benchmarks.papers.tables.ways import TIMEOUT, data_of, way_of

if TYPE_CHECKING:
    from benchmarks.lab.job import Job
    from benchmarks.papers.tables.ways import Data, Way
    from partreduce.runtime.transport.communicators import Communicator

READY, SHAPED = "ready", "shaped"
"""Files by which a job's workers and its starter agree when links become slow."""
PROBES = 20
JUDGED = 96
"""Samples of each worker in a judgement."""
START_SECONDS = 90.0


def measure(job: Job, node: int) -> None:
    """Everything a worker does; ends the process by an alarm if the job hangs, whatever it hangs in."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(job.limit))
    rank = use_environment(job, node)
    said: dict[str, Any] = {"rank": rank, "turns": {}, "failed": {}}
    try:
        _measure(job, rank, said)
    except Exception as error:  # noqa: BLE001 - whatever it is stands in the notes of the run
        said["failed"]["job"] = f"{type(error).__name__}: {error}"[:300]
        traceback.print_exc()
    _write(job, rank, said)
    if "job" in said["failed"]:
        os._exit(1)


def _measure(job: Job, rank: int, said: dict[str, Any]) -> None:
    from partreduce.runtime.transport.gloo import GlooWorld
    from partreduce.runtime.transport.rendezvous import connect_store

    timeout = timedelta(seconds=TIMEOUT)
    world = GlooWorld(connect_store(timeout), rank, job.num_workers, timeout)
    group = world.create(tuple(range(job.num_workers)), name="papers")
    said["probes"] = _probe(group)
    data = data_of(job.task, job.options["text"])
    runs = _made(job, rank, data, group, said)
    said["turns"] = {name: run.turns for name, run in runs.items()}
    for name, run in runs.items():  # the first step connects, and is not timed
        said["doing"] = f"{name}, first step"
        run.steps(1)
    _wait_for_links(job, rank, group)
    end = time.monotonic() + job.options["seconds"]
    turns = job.options["turns"]
    for turn in range(max(turns.values(), default=0)):
        for name, run in runs.items():
            if turn >= turns[name]:
                continue
            said["doing"] = f"{name}, turn {turn}"
            if meet(group, float(time.monotonic() > end)):
                break
            run.turn()
        _write(job, rank, said)
    for name, run in runs.items():
        said["doing"] = f"{name}, turn {turns[name]}"
        if job.options["judge"] and not run.is_over:
            run.judge()
    said.pop("doing", None)
    meet(group)


def _wait_for_links(job: Job, rank: int, group: Communicator) -> None:
    """Until now links were fast; whoever started the job shapes them when all have come so far."""
    meet(group)
    if rank == 0:
        (job.path / READY).touch()
    end = time.monotonic() + START_SECONDS
    while not (job.path / SHAPED).exists() and time.monotonic() < end:
        time.sleep(0.02)
    meet(group)


def _probe(group: Communicator) -> list[float]:
    """Seconds of all_to_alls with nothing in them, the first left out."""
    ones, taken = [1] * group.size, []
    for _ in range(PROBES + 1):
        begun = time.monotonic()
        group.all_to_all(torch.empty(group.size), torch.zeros(group.size), ones, ones).wait()
        taken.append(time.monotonic() - begun)
    return taken[1:]


def _made(job: Job, rank: int, data: Data, group: Communicator, said: dict[str, Any]) -> dict[str, _Run]:
    """All ways that could be made by all workers; the others' problems are said."""
    runs = {}
    for name in job.options["ways"]:
        problem = ""
        try:
            runs[name] = _Run(job, rank, data, way_of(name, job, group), group)
        except Exception as error:  # noqa: BLE001 - the others go on without it
            problem = f"{type(error).__name__}: {error}"[:300]
            traceback.print_exc()
        if meet(group, float(bool(problem))):
            runs.pop(name, None)
            said["failed"][name] = problem or "failed on another worker"
    return runs


class _Run:
    """One way under way: its steps so far and what its turns took, as `sessions.py` reads them."""

    def __init__(self, job: Job, rank: int, data: Data, way: Way, group: Communicator) -> None:
        self.job, self.rank, self.data, self.way, self.group = job, rank, data, way, group
        self.done, self.is_over = 0, False
        self.turns: list[list[float | None]] = []

    def turn(self) -> None:
        """Judge, and take the steps of one turn unless the target was reached."""
        loss = self.judge() if self.job.options["judge"] and not self.is_over else None
        if self.is_over:
            return
        meet(self.group)
        sent, begun, busy = bytes_out(), time.monotonic(), time.process_time()
        before, trained = self.done, self.steps(self.job.options["steps"])
        ended, busy = time.monotonic(), time.process_time() - busy
        meet(self.group)
        if loss is not None:
            self.turns.pop()
        self.turns.append([before, begun, ended, bytes_out() - sent, loss, trained, busy])

    def steps(self, count: int) -> float:
        """Train; returns the mean loss of this worker's batches. Computing sleeps a third forward, the rest back."""
        total = 0.0
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
            total += float(loss)
        return total / count

    def judge(self) -> float:
        """The mean of all workers' losses over samples that nobody trains on, as a turn that took no time."""
        batch = self.data.judged(self.rank, JUDGED)
        self.way.model.zero_grad()
        self.way.before(batch)
        with torch.no_grad():
            loss = float(self.way.model(batch))
        mean = meet(self.group, loss) / self.job.num_workers
        self.turns.append([self.done, 0.0, 0.0, 0, mean, 0.0, 0.0])
        self.is_over = mean <= (self.job.options["target"] or float("-inf"))
        return mean


def meet(group: Communicator, word: float = 0.0) -> float:
    """Wait for all; the sum of what they say."""
    said = torch.tensor([word])
    group.all_reduce(said).wait()
    return float(said)


def _write(job: Job, rank: int, said: dict[str, Any]) -> None:
    part = job.path / f"tables-{rank:03d}.part"
    part.write_text(json.dumps(said))
    part.replace(job.path / f"tables-{rank:03d}.json")
