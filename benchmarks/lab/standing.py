"""The lab standing: network, crew and scratch folder, all gone when the context is left, whatever ends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kit import command, commit
from benchmarks.lab.crew import Crew
from benchmarks.lab.job import Job
from benchmarks.lab.network import Network, why_not

FAST = "1gbit"


class NoLabError(Exception):
    """This machine cannot hold the lab; the message says why."""


@dataclass(frozen=True, slots=True)
class Lab:
    """Where jobs run."""

    network: Network
    crew: Crew
    scratch: Path

    def shape(self, rate: str) -> None:
        """All links alike."""
        for node in range(self.network.num_nodes):
            self.network.shape(node, rate)

    def job(self, name: str, how: str, workers_per_node: int, **fields: Any) -> Job:  # noqa: ANN401 - of Job
        folder = Path(tempfile.mkdtemp(prefix=f"{how}-", dir=self.scratch))
        size = {"num_nodes": self.network.num_nodes, "workers_per_node": workers_per_node}
        return Job(name=name, folder=str(folder), how=how, **size, **fields)


@contextlib.contextmanager
def standing(num_nodes: int) -> Iterator[Lab]:
    """The lab on so many nodes, with fast links; SIGTERM ends it by the ordinary way.

    Raises:
        NoLabError: as said.
    """
    if (reason := why_not()) is not None:
        raise NoLabError(reason)
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    scratch = Path(tempfile.mkdtemp(prefix="partreduce-lab-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        with Network(num_nodes, FAST) as network, Crew(network, scratch) as crew:
            yield Lab(network, crew, scratch)
    finally:
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(scratch, ignore_errors=True)


def provenance(module: str) -> dict[str, object]:
    """Where and with what a module of the benchmarks measured something."""
    import torch

    return {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, Linux {os.uname().release}, torch {torch.__version__}, gloo",
        "command": command(module),
    }
