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
    from preduce.runtime.transport.communicators import Communicator

JUDGED = 96
"""Samples of each worker in a judgement."""
START_SECONDS = 90.0


def measure(job: Job, node: int) -> None:
    """Everything a worker does; ends the process by an alarm if the job hangs, whatever it hangs in."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(START_SECONDS + 2 * job.limit))
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
    from preduce.runtime.transport.gloo import GlooWorld
    from preduce.runtime.transport.rendezvous import connect_store

    timeout = timedelta(seconds=TIMEOUT)
    world = GlooWorld(connect_store(timeout), rank, job.num_workers, timeout)
    group = world.create(tuple(range(job.num_workers)), name="papers")
    data = data_of(job.task, job.data_file or job.options.get("text", ""))
    ways: dict[str, Way] = {}
    for name in job.options["ways"]:
        problem = ""
        try:
            ways[name] = way_of(name, job, group)
        except Exception as error:  # noqa: BLE001 - the others go on without it
            problem = f"{type(error).__name__}: {error}"[:300]
            traceback.print_exc()
        if _meet(group, float(bool(problem))):
            ways.pop(name, None)
            said["failed"][name] = problem or "failed on another worker"
    end = time.monotonic() + job.limit
    steps, turns = job.options["steps"], job.options["turns"]
    done = dict.fromkeys(ways, 0)
    said["turns"] = {name: [] for name in ways}
    for name, way in ways.items():  # the first step connects, and is not timed
        said["doing"] = f"{name}, first step"
        _steps(job, rank, data, way, done[name], 1)
        done[name] += 1
    for turn in range(turns):
        for name, way in ways.items():
            if turn >= job.options.get("most", {}).get(name, turns):
                continue
            said["doing"] = f"{name}, turn {turn}"
            loss = _judged(job, rank, data, way, group) if job.options["judge"] else None
            _meet(group)
            sent, begun = bytes_out(), time.monotonic()
            trained = _steps(job, rank, data, way, done[name], steps)
            ended = time.monotonic()
            _meet(group)
            said["turns"][name].append([done[name], begun, ended, bytes_out() - sent, loss, trained])
            done[name] += steps
        if turn % 8 == 0:
            _write(job, rank, said)
        if _meet(group, float(time.monotonic() > end)):
            break
    if job.options["judge"]:
        for name, way in ways.items():
            said["turns"][name].append([done[name], 0.0, 0.0, 0, _judged(job, rank, data, way, group), 0.0])
    said.pop("doing")
    _meet(group)


def _steps(job: Job, rank: int, data: Data, way: Way, first: int, count: int) -> float:  # noqa: PLR0917 - as measured
    """Train; returns the mean loss of this worker's batches. Computing sleeps a third forward and two thirds back."""
    total = 0.0
    for step in range(first, first + count):
        batch = data.batch(job.seed, step, rank)
        way.model.zero_grad()
        way.before(batch)
        loss = way.model(batch)
        time.sleep(job.compute / 3)
        loss.backward()
        time.sleep(2 * job.compute / 3)
        way.step()
        total += float(loss)
    return total / count


def _judged(job: Job, rank: int, data: Data, way: Way, group: Communicator) -> float:
    """The mean of all workers' losses over samples that nobody trains on."""
    batch = data.judged(rank, JUDGED)
    way.model.zero_grad()
    way.before(batch)
    with torch.no_grad():
        loss = float(way.model(batch))
    said = torch.tensor([loss])
    group.all_reduce(said).wait()
    return float(said) / job.num_workers


def _meet(group: Communicator, word: float = 0.0) -> float:
    """Wait for all; the sum of what they say."""
    said = torch.tensor([word])
    group.all_reduce(said).wait()
    return float(said)


def _write(job: Job, rank: int, said: dict[str, Any]) -> None:
    part = job.path / f"tables-{rank:03d}.part"
    part.write_text(json.dumps(said))
    part.replace(job.path / f"tables-{rank:03d}.json")
