"""Find the other workers, from an initialized process group or from the environment variables that launchers set.

A script that runs as one process without a launcher, as in a debugger or a notebook, gets a world of one worker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from partreduce.runtime import environment as env
from partreduce.runtime.transport.communicators import first_line
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.nccl import NcclWorld, check_shared_gpus
from partreduce.runtime.transport.store import NamedPrefixStore, fresh_line, processes_of, root_store
from partreduce.runtime.transport.torch_api import Store, TCPStore, default_store
from partreduce.runtime.transport.waiting import Deadline
from partreduce.runtime.transport.work import BoundedCall, OverdueError
from partreduce.runtime.transport.worlds import World, over_gloo
from partreduce.topo.errors import InputError, UnavailableError
from partreduce.topo.schedule import Schedule

STORE_GRACE_SECONDS = 1.0  # extra time for torch's own error about a silent store
ASKED_SECONDS = 0.02  # between worker 0's checks for requests of the attempt's name
AT = "partreduce/attempts"
DESCRIPTORS = "/dev/fd"

_worlds: dict[tuple[str, tuple[int, ...]], World] = {}
"""This process's worlds, by kind of device and the averaging ranks, if workers are replicas of a mesh (else empty)."""
_attempts = 0


def place(mesh: DeviceMesh | None = None) -> tuple[int, int]:
    """Return (rank, number of workers) of this process; (0, 1) without a launcher.

    With `mesh`, the replicate dimension of a sharded model, workers are replicas. Raises InputError if the launcher's
    variables RANK and WORLD_SIZE are invalid.
    """
    if mesh is not None:
        return mesh.get_local_rank(), mesh.size()
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    size, rank = _number(env.WORLD_SIZE, 1, least=1), _number(env.RANK, 0)
    if rank >= size and os.environ.get(env.WORLD_SIZE):  # if unset, connecting raises a better error
        raise InputError(
            f"environment: RANK is {rank} and WORLD_SIZE is {size}; ranks are 0..{size - 1}: let `partreduce run` or "
            "torchrun set both"
        )
    return rank, size


def connect_store(timeout: timedelta) -> Store:
    """Return the run's key-value store: the process group's, the launcher's, or one hosted by rank 0.

    Raises InputError without the launcher's environment variables, UnavailableError if the store is silent for long.
    """
    if dist.is_initialized():
        return _prepare_store(NamedPrefixStore("partreduce", default_store()), dist.get_rank(), timeout)
    missing = [name for name in env.RENDEZVOUS if not os.environ.get(name)]
    if missing:
        raise InputError(
            f"environment: {', '.join(missing)} not set; start the script with `partreduce run --workers N script.py` "
            "or torchrun"
        )
    host, port, rank = os.environ[env.MASTER_ADDR], _number(env.MASTER_PORT, 0, least=1, most=65535), place()[0]
    by_launcher = _by_launcher()
    serves = rank == 0 and not by_launcher
    call: BoundedCall[Store] = BoundedCall(
        lambda: TCPStore(host, port, None, serves, timeout, wait_for_workers=False, multi_tenant=True)
    )
    try:
        # torch's own timeout does not apply if another program accepts the connection and never answers.
        bare = call.result(timeout.total_seconds() + STORE_GRACE_SECONDS)
    except (RuntimeError, OverdueError) as error:
        who = "the launcher" if by_launcher else "rank 0"
        silent = isinstance(error, OverdueError)
        reason = "something accepted the connection and did not answer: another program's port?" if silent else None
        raise UnavailableError(
            f"store at {host}:{port}: did not answer within {timeout.total_seconds():g} s; {who} hosts it "
            f"({reason or first_line(error)[:160]})"
        ) from None
    attempt = os.environ.get(env.RESTART_COUNT, "0")
    if may_be_started_again() and env.RUN_SECRET not in os.environ:  # `partreduce run` gives each attempt its own store
        attempt = f"named-{agreed_attempt(bare, *place(), timeout)}"
    store = NamedPrefixStore(f"partreduce/attempt-{attempt}", bare)
    return _prepare_store(store, rank, timeout)


def _prepare_store(store: Store, rank: int, timeout: timedelta) -> Store:
    fresh_line(store, timeout.total_seconds())
    if hosts_store(rank, store):
        served: Any = root_store(store)
        close_in_forks(served.port)
    return store


def hosts_store(rank: int, store: Store) -> bool:
    """Return whether worker `rank`'s process hosts the run's store: that of rank 0 does, unless a launcher does."""
    return processes_of(store, rank)[0] == 0 and isinstance(root_store(store), TCPStore) and not _by_launcher()


def _by_launcher() -> bool:
    return os.environ.get(env.AGENT_STORE) == "True"


def default_world(
    device: torch.device,
    timeout: timedelta,
    check: Callable[[Store, int, int], None],
    mesh: DeviceMesh | None = None,
) -> World:
    """Return this process's world (its connection to all workers), created once per kind of device.

    `check`, called with store, rank and number of workers, runs before anything could hang. With a one-dimensional
    `mesh`, the replicate dimension of a sharded model, workers are replicas. Raises InputError if the device is CUDA
    and torch lacks NCCL, or if workers share a GPU; and all errors of `check` and `connect_store`.
    """
    kind = "cuda" if device.type == "cuda" and not over_gloo() else "cpu"
    if kind == "cuda" and not dist.is_nccl_available():
        raise InputError(
            f"device: the parameters lie on {device} and this torch has no NCCL; install a build that has it, train on "
            f"the CPU, or set {env.OVER_GLOO}=1 to average through host memory, which is slow"
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
    _attempts += 1  # equal on all workers, since a failure here occurs on all
    if kind == "cpu":
        world: World = GlooWorld(store, rank, size, timeout, attempt=_attempts)
    else:
        check_shared_gpus(store, rank, size, device, _attempts)
        world = NcclWorld(store, rank, size, timeout, device=device, attempt=_attempts)
    _worlds[kind, ranks] = world
    return world


def has_joined() -> bool:
    """Return whether this process is part of a run, or was until a failure."""
    return bool(_worlds)


def forget(world: World) -> None:
    """Discard a world, and its relatives, after a failure; this process's next optimizer creates another."""
    for kind in [kind for kind, known in _worlds.items() if known in (world, *world.relatives)]:
        del _worlds[kind]


def _number(name: str, default: int, *, least: int = 0, most: int = 2**31 - 1) -> int:
    """Return the integer in the environment variable `name`, `default` if empty. Raises InputError if out of range."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
    if not least <= number <= most:
        raise InputError(
            f"environment: {name} is {text[:40]!r}; it is a number in {least}..{most}, as `partreduce run` sets"
        )
    return number


def may_be_started_again() -> bool:
    """Return whether torchrun may restart the remaining nodes' workers after a failure (`--max-restarts` is not 0)."""
    return env.RUN_ID in os.environ and os.environ.get(env.AGENT_MAX_RESTARTS, "0") != "0"


def agreed_attempt(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Return a name for this start or restart of the job; all workers that torchrun started together get the same one.

    After a restart the store still has the keys of the last attempt, and torchrun's agents may disagree on the number
    of restarts. So each worker writes a random word to the store, and worker 0 writes the name under that word; words
    of an earlier attempt match no worker. Raises UnavailableError if a worker is missing after `timeout`.
    """

    def late(worker: int) -> UnavailableError:
        seconds = f"{timeout.total_seconds():g} s"
        return UnavailableError(f"worker {worker} did not come within {seconds} after torchrun started the workers")

    if rank:
        word = secrets.token_hex(16)
        store.set(f"{AT}/asked/{rank}", word)
        try:
            store.wait([f"{AT}/answer/{word}"], timeout)
        except RuntimeError:
            raise late(0) from None
        name = store.get(f"{AT}/answer/{word}").decode()
        store.set(f"{AT}/{name}/came/{rank}", "1")
        return name
    name, missing = str(store.add(f"{AT}/number", 1)), set(range(1, size))
    deadline, answered = Deadline(timeout.total_seconds()), dict[int, str]()
    while missing:
        for other in sorted(missing):
            if store.check([f"{AT}/{name}/came/{other}"]):
                missing.remove(other)
            elif store.check([f"{AT}/asked/{other}"]):
                word = store.get(f"{AT}/asked/{other}").decode()
                if answered.get(other) != word:
                    store.set(f"{AT}/answer/{word}", name)
                    answered[other] = word
        if missing and deadline.is_over:
            raise late(min(missing))
        time.sleep(ASKED_SECONDS if missing else 0)
    return name


_listeners: set[int] = set()
"""Inodes of the sockets of this process's store; later their port may belong to a socket of another process."""


def close_in_forks(port: int) -> None:
    """Close the store's sockets at this port in all child processes that are forked from now on.

    A forked child, such as a data loader's worker, may outlive this process and keep the sockets open, so that other
    workers' queries to the store would get no answer. The sockets are found by their port, since torch hides them.
    """
    _listeners.update(
        os.fstat(held.fileno()).st_ino
        for held in _tcp_sockets()
        if held.getsockname()[1] == port and held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    )


def _close_sockets() -> None:
    """Replace the store's sockets, in a forked child, by the null device; the store may close the descriptors later."""
    if not _listeners:
        return
    places = [(held.fileno(), held.getsockname()[1]) for held in _tcp_sockets()]
    ports = {port for descriptor, port in places if os.fstat(descriptor).st_ino in _listeners}
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, port in places:
        if port in ports:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _listeners.clear()


def _tcp_sockets() -> Iterator[socket.socket]:
    """Yield this process's TCP sockets; the caller may use each one only until it requests the next."""
    for entry in os.listdir(DESCRIPTORS):  # noqa: PTH208 - names are numbers here
        with contextlib.suppress(OSError):  # not a socket, or the descriptor of the listing
            held = socket.socket(fileno=int(entry))
            try:
                if held.family in (socket.AF_INET, socket.AF_INET6) and held.type == socket.SOCK_STREAM:
                    yield held
            finally:
                held.detach()


os.register_at_fork(after_in_child=_close_sockets)


def is_alone(world: World | None, mesh: DeviceMesh | None = None) -> bool:
    """Return whether this process is a job of one worker: without `world`, and with WORLD_SIZE 1 or no launcher."""
    if world is not None or place(mesh)[1] != 1:
        return False
    if dist.is_initialized() or os.environ.get(env.WORLD_SIZE):
        return True
    started = any(os.environ.get(name) for name in env.RENDEZVOUS)
    return not started and all(os.environ.get(name, "1") == "1" for name in env.SIZES_OF_LAUNCHERS)


def log_single_process(schedule: Schedule) -> None:
    """Print, once per schedule, that the script runs as a single process without averaging."""
    n = schedule.num_workers
    text = (
        f"partreduce: running as a single process; schedule {schedule.name!r} needs {n} workers, so nothing is "
        f"averaged; start it with `partreduce run --workers {n} SCRIPT` or torchrun\n"
    )
    _write_once(text)


@functools.cache
def _write_once(text: str) -> None:
    sys.stderr.write(text)


class SingleProcessWorld(World):
    """World of a script that runs as a single worker: it has no groups, averages nothing and never waits."""

    def __init__(self) -> None:
        store: Store = dist.HashStore()  # type: ignore[attr-defined]
        super().__init__(store, 0, 1, timedelta(seconds=1), prefix="")

    def prepare(self, schedule: Schedule) -> None: ...

    def communicator(self, members: Sequence[int], *, name: str = "") -> NoReturn:  # noqa: ARG002 - as all worlds
        raise UnavailableError(f"group of workers {list(members)}: this script runs alone")

    def create(self, members: tuple[int, ...], **_: object) -> NoReturn:
        self.communicator(members)
