"""How a worker finds the others: from an initialized process group, or from the environment that launchers set."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from partreduce.runtime.environment import (
    AGENT_STORE,
    MASTER_ADDR,
    MASTER_PORT,
    OVER_GLOO,
    RANK,
    RENDEZVOUS,
    RESTART_COUNT,
    RUN_SECRET,
    WORLD_SIZE,
)
from partreduce.runtime.transport.attempts import agreed_attempt, may_be_started_again
from partreduce.runtime.transport.communicators import first_line
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.nccl import NcclWorld, check_shared_gpus, over_gloo
from partreduce.runtime.transport.served_store import let_forks_go_without
from partreduce.runtime.transport.store_line import NamedPrefixStore, fresh_line, processes_of, root_store
from partreduce.runtime.transport.torch_api import Store, TCPStore, default_store
from partreduce.runtime.transport.work import BoundedCall, OverdueError
from partreduce.runtime.transport.worlds import World
from partreduce.topo.errors import InputError, UnavailableError

STORE_GRACE_SECONDS = 1.0
"""How much longer than the timeout we wait for torch to say by itself that the store does not answer."""

_worlds: dict[tuple[str, tuple[int, ...]], World] = {}
"""By kind of device and, where workers are the replicas of a mesh, the ranks that average."""
_attempts = 0


def place(mesh: DeviceMesh | None = None) -> tuple[int, int]:
    """(rank, number of workers) of this process, or of its replica; (0, 1) outside of any launcher."""
    if mesh is not None:
        return mesh.get_local_rank(), mesh.size()
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    size, rank = _number(WORLD_SIZE, 1, least=1), _number(RANK, 0)
    if rank >= size and os.environ.get(WORLD_SIZE):  # without it who connects says what is missing
        raise InputError(
            f"environment: RANK is {rank} and WORLD_SIZE is {size}; ranks are 0..{size - 1}: let `partreduce run` or "
            "torchrun set both"
        )
    return rank, size


def connect_store(timeout: timedelta) -> Store:
    """The store of the run: the process group's, or the launcher's, or one hosted by rank 0.

    Raises:
        InputError: this process was not started by a launcher.
        UnavailableError: the store did not answer within the timeout.
    """
    if dist.is_initialized():
        return _settled(NamedPrefixStore("partreduce", default_store()), dist.get_rank(), timeout)
    missing = [name for name in RENDEZVOUS if not os.environ.get(name)]
    if missing:
        raise InputError(
            f"environment: {', '.join(missing)} not set; start the script with `partreduce run --workers N script.py` "
            "or torchrun"
        )
    host, port, rank = os.environ[MASTER_ADDR], _number(MASTER_PORT, 0, least=1, most=65535), place()[0]
    by_launcher = _by_launcher()
    serves = rank == 0 and not by_launcher
    call: BoundedCall[Store] = BoundedCall(
        lambda: TCPStore(host, port, None, serves, timeout, wait_for_workers=False, multi_tenant=True)
    )
    try:
        # torch's own deadline does not hold where something accepts the connection and then says nothing.
        bare = call.result(timeout.total_seconds() + STORE_GRACE_SECONDS)
    except (RuntimeError, OverdueError) as error:
        who = "the launcher" if by_launcher else "rank 0"
        silent = isinstance(error, OverdueError)
        reason = "something took the connection and said nothing: another program's port?" if silent else None
        raise UnavailableError(
            f"store at {host}:{port}: did not answer within {timeout.total_seconds():g} s; {who} hosts it "
            f"({reason or first_line(error)[:160]})"
        ) from None
    attempt = os.environ.get(RESTART_COUNT, "0")
    if may_be_started_again() and RUN_SECRET not in os.environ:  # `partreduce run` gives each attempt its own store
        attempt = f"named-{agreed_attempt(bare, *place(), timeout)}"
    store = NamedPrefixStore(f"partreduce/attempt-{attempt}", bare)
    return _settled(store, rank, timeout)


def _settled(store: Store, rank: int, timeout: timedelta) -> Store:
    """The store, with what this process does about it."""
    fresh_line(store, timeout.total_seconds())
    if hosts_store(rank, store):
        served: Any = root_store(store)
        let_forks_go_without(served.port)
    return store


def hosts_store(rank: int, store: Store) -> bool:
    """Whether the store of the run ends with this process, as far as one can know: no launcher serves it."""
    return processes_of(store, rank)[0] == 0 and isinstance(root_store(store), TCPStore) and not _by_launcher()


def _by_launcher() -> bool:
    return os.environ.get(AGENT_STORE) == "True"


def default_world(
    device: torch.device,
    timeout: timedelta,
    check: Callable[[Store, int, int], None],
    mesh: DeviceMesh | None = None,
) -> World:
    """The world of this process, made once per kind of device; `check` runs before anything that could hang.

    With `mesh`, of one dimension, the workers are its replicas.

    Raises:
        InputError: no launcher, or a CUDA run without NCCL.
        UnavailableError: the store did not answer.
    """
    kind = "cuda" if device.type == "cuda" and not over_gloo() else "cpu"
    if kind == "cuda" and not dist.is_nccl_available():
        raise InputError(
            f"device: the parameters lie on {device} and this torch has no NCCL; install a build that has it, train on "
            f"the CPU, or set {OVER_GLOO}=1 to average through host memory, which is slow"
        )
    ranks = () if mesh is None else tuple(mesh.mesh.tolist())
    rank, size = place(mesh)
    if (kind, ranks) in _worlds:
        check(_worlds[kind, ranks].store, rank, size)
        return _worlds[kind, ranks]
    store = connect_store(timeout)
    rank, size = place(mesh)
    if mesh is not None:
        processes = {worker: [process] for worker, process in enumerate(ranks)}
        store = NamedPrefixStore(f"replicas-at-{ranks[0]}", store, processes)
    check(store, rank, size)
    global _attempts  # noqa: PLW0603 - the count belongs to the process, as the worlds do
    _attempts += 1  # counted equal on all workers: a failure here is one of all
    if kind == "cpu":
        world: World = GlooWorld(store, rank, size, timeout, attempt=_attempts)
    else:
        check_shared_gpus(store, rank, size, device, _attempts)
        world = NcclWorld(store, rank, size, timeout, device=device, attempt=_attempts)
    _worlds[kind, ranks] = world
    return world


def has_joined() -> bool:
    """Whether this process is, or was until its failure, part of a run."""
    return bool(_worlds)


def forget(world: World) -> None:
    """Let the next optimizer of this process start from scratch after a failure."""
    ended = world.kin()
    for kind in [kind for kind, known in _worlds.items() if known in ended]:
        del _worlds[kind]


def _number(name: str, default: int, *, least: int = 0, most: int = 2**31 - 1) -> int:
    """What an environment variable says; one that is empty is not set."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
    if not least <= number <= most:
        raise InputError(
            f"environment: {name} is {text[:40]!r}; it is a number in {least}..{most}, as `partreduce run` sets"
        )
    return number
