"""Alone: the world of a script that runs as one process, without a launcher, as in a debugger or a notebook.

Nothing is averaged there and nobody is waited for. Whatever waits for all workers asks `Run.everyone`, which is this
one worker, so that saving, evaluating and finishing work as in a run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from partreduce.runtime.environment import RENDEZVOUS, SIZES_OF_LAUNCHERS, WORLD_SIZE
from partreduce.runtime.transport.rendezvous import place
from partreduce.runtime.transport.streams import Streams, streams_of
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.waiting import SignsOfLife
from partreduce.runtime.transport.worlds import World
from partreduce.topo.errors import UnavailableError
from partreduce.topo.schedule import Schedule


def is_alone(world: World | None, mesh: DeviceMesh | None = None) -> bool:
    """Whether this process is a job of one worker: WORLD_SIZE is 1, or no launcher has set anything."""
    if world is not None or place(mesh)[1] != 1:
        return False
    if dist.is_initialized() or os.environ.get(WORLD_SIZE):
        return True
    started = any(os.environ.get(name) for name in RENDEZVOUS)
    return not started and all(os.environ.get(name, "1") == "1" for name in SIZES_OF_LAUNCHERS)


_said: set[str] = set()


def log_single_process(schedule: Schedule) -> None:
    """One line for each schedule of the process."""
    n = schedule.num_workers
    text = (
        f"partreduce: this script runs alone, and schedule {schedule.name!r} is for {n} workers: nothing is averaged; "
        f"start it with `partreduce run --workers {n} SCRIPT` or torchrun for that\n"
    )
    if text not in _said:
        _said.add(text)
        sys.stderr.write(text)


class SingleProcessWorld:
    """One worker and nobody else; a `World` without groups."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.store: Store = dist.HashStore()  # type: ignore[attr-defined]
        self.timeout = timedelta(seconds=1)
        self.signs: SignsOfLife | None = None

    def prepare(self, schedule: Schedule) -> None:
        """No group is needed."""

    def communicator(self, members: Sequence[int], *, name: str = "") -> NoReturn:  # noqa: ARG002 - as below
        raise UnavailableError(f"group of workers {list(members)}: this script runs alone")

    def everyone(self) -> NoReturn:
        self.communicator([0])

    def has(self, members: Sequence[int], *, name: str = "") -> bool:  # noqa: ARG002 - the face of all worlds
        return False

    def create(self, members: tuple[int, ...], *, name: str = "") -> NoReturn:  # noqa: ARG002 - as above
        self.communicator(members)

    def streams(self, device: torch.device) -> Streams:
        return streams_of(device)

    def next_instance(self) -> int:
        """Each optimizer has a world of its own."""
        return 1

    def on_host(self) -> World:
        """This world: nothing travels."""
        return self

    def kin(self) -> Sequence[World]:
        return [self]

    def abandon(self) -> None:
        """Nothing is held."""
