"""Connect workers with one CUDA device each through a store, and all-reduce over NCCL."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch

from partreduce.runtime.environment import NCCL_TEARS_DOWN
from partreduce.runtime.transport.communicators import Communicator, Sums, first_line
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.multistage_allreduce import QueuedSums, Stages
from partreduce.runtime.transport.store import Notes, watch_for_deaths
from partreduce.runtime.transport.torch_api import PrefixStore, Store, nccl_backend
from partreduce.runtime.transport.work import Background, BoundedCall, OverdueError
from partreduce.runtime.transport.worlds import DESTROY_SECONDS, MAX_GROUPS, World
from partreduce.topo.errors import InputError, UnavailableError
from partreduce.topo.phase import Group

PATIENCE = 10  # NCCL's watchdog, which kills the process silently, waits this many times longer than the run's timeout


class NcclWorld(World):
    """World (all workers of a run) with one CUDA device per worker; every group is a raw NCCL communicator.

    The user's process groups are not used. `attempt`, 1 for this process's first world, separates the store keys of its
    worlds: NCCL would find the IDs of an earlier world and wait for it forever. This class has never run on a GPU;
    docs/gpu.md describes what ran instead.
    """

    is_queued = True

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        device: torch.device,
        attempt: int = 1,
        max_groups: int = MAX_GROUPS,
    ) -> None:
        super().__init__(store, rank, size, timeout, prefix=f"partreduce/nccl/{attempt}", max_groups=max_groups)
        self.device = device
        self._attempt = attempt
        self._on_host: GlooWorld | None = None
        atexit.register(self.abandon)

    def with_prefix(self, prefix: str) -> NcclWorld:
        other = NcclWorld(
            self.store, self.rank, self.size, self.timeout, device=self.device, max_groups=self.max_groups
        )
        other.prefix, other._streams = prefix, self._streams
        return other

    def _staged(self, stages: Stages) -> Sums:
        return QueuedSums(stages, self.streams(self.device))

    def _connect(self, members: tuple[int, ...], place: str, within: timedelta | None) -> Communicator:
        """Connect as `World._connect` does, in a thread that is abandoned after the timeout: NCCL has no time limit."""
        limit = self.timeout if within is None else min(within, self.timeout)

        def connect() -> Communicator | UnavailableError:
            try:
                communicator = Communicator(members, self.rank, self.backend(members, place))
                return self._warmed_up(communicator, str(self.device), None)
            except UnavailableError as error:
                return error

        try:
            made = BoundedCall(connect).result(limit.total_seconds(), self._watch_over(members))
        except (RuntimeError, OverdueError) as error:
            raise UnavailableError(f"group {Group(members)}: NCCL could not connect it ({first_line(error)})") from None
        if isinstance(made, UnavailableError):
            raise made
        return made

    def backend(self, members: tuple[int, ...], place: str) -> Any:  # noqa: ANN401 - torch's, which has no typed base
        make = nccl_backend()
        options = make.Options()
        options.is_high_priority_stream = False
        options._timeout = self.timeout * PATIENCE  # noqa: SLF001 - torch's own way to set it
        with torch.cuda.device(self.device), _errors_are_ours():
            return make(PrefixStore(place, self.store), members.index(self.rank), len(members), options)

    def on_host(self) -> World:
        """Return a gloo world of the same workers, for rows of embedding tables and all-reduces in side threads.

        NCCL in a second thread would block the device, and the order of kernel launches would differ between workers.
        """
        if self.nodes is not None:
            host = self.relatives[0].on_host()
            host.signs = host.signs or self.signs
            return host
        if self._on_host is None:
            self._on_host = GlooWorld(self.store, self.rank, self.size, self.timeout, attempt=self._attempt)
            self._on_host.signs = self.signs
        return self._on_host

    def abandon(self) -> None:
        """Abort all communicators of this world at once, since aborting one by one can deadlock in NCCL.

        This ends NCCL's kernels on this worker; other workers read about a failure in the store within a second.
        """
        atexit.unregister(self.abandon)
        if self._on_host is not None:
            self._on_host.abandon()
        super().abandon()

    def _end(self, backends: list[Any], seconds: float = DESTROY_SECONDS) -> None:
        """Abort these NCCL backends together in a thread, and wait up to `seconds` for the thread."""
        if backends:
            ending = Background(_abort, backends, name="partreduce-destroy-group")
            ending.start()
            ending.join(seconds)


def _abort(backends: list[Any]) -> None:
    backends[0]._group_start()  # noqa: SLF001 - as torch.distributed does
    try:
        for backend in backends:
            backend.abort()
    finally:
        backends[0]._group_end()  # noqa: SLF001 - as above
        backends.clear()


@contextlib.contextmanager
def _errors_are_ours() -> Iterator[None]:
    """Return a context in which to create NCCL backends; without it torch kills the process when a peer fails."""
    if NCCL_TEARS_DOWN in os.environ:
        yield
        return
    os.environ[NCCL_TEARS_DOWN] = "0"
    try:
        yield
    finally:
        del os.environ[NCCL_TEARS_DOWN]


def place_of(device: torch.device) -> str:
    """Return a text that identifies a GPU: the machine's name and the device's UUID."""
    properties: Any = torch.cuda.get_device_properties(device)
    return f"{socket.gethostname()} {getattr(properties, 'uuid', device)}"


def check_shared_gpus(store: Store, rank: int, size: int, device: torch.device, attempt: int) -> None:
    """Raise InputError if two workers share a GPU; all workers call this, with a new `attempt` that is equal on all.

    Raises UnavailableError if a worker dies before that, or does not call this within the store's timeout.
    """
    notes, abort_reason = Notes(store, f"gpu/{attempt}"), watch_for_deaths(store, range(size))
    notes.write(str(rank), place_of(device))
    check_equal_places({other: notes.wait_for(str(other), abort_reason=abort_reason) for other in range(size)})


def check_equal_places(places: Mapping[int, str]) -> None:
    """Raise InputError if two ranks share a GPU; `places` maps each rank to the text of `place_of`."""
    first: dict[str, int] = {}
    for rank, place in places.items():
        if place in first:
            host, _, gpu = place.partition(" ")
            raise InputError(
                f"device: ranks {first[place]} and {rank} share GPU {gpu} of {host}, and NCCL needs one for each; "
                "start at most as many workers on a machine as it has GPUs, and move the model to "
                "torch.device('cuda', int(os.environ['LOCAL_RANK'])) before wrapping"
            )
        first[place] = rank
