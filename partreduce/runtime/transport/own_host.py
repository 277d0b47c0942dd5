"""Own host: the address at which the other workers of a run reach this process's sockets."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Any

from partreduce.runtime.environment import GLOO_SOCKET_IFNAME, MASTER_ADDR
from partreduce.runtime.transport.store_line import root_store
from partreduce.runtime.transport.torch_api import Store, TCPStore
from partreduce.topo.errors import UnavailableError


def own_host(store: Store) -> tuple[str, bool]:
    """(the address at which other workers reach this one, whether it is IPv6): the one that faces the run's store.

    `GLOO_SOCKET_IFNAME` names another interface, as for gloo. Where the store has no address and there is no launcher
    it is this machine only.

    Raises:
        UnavailableError: the interface has no address, or the store's host cannot be resolved or reached.
    """
    if interface := chosen_interface():
        return _address_of(interface), False
    if not (master := _host_of(store)):
        return "127.0.0.1", False
    try:
        family, _, _, _, place = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # sends nothing: asks the routing table
            return str(probe.getsockname()[0]), family == socket.AF_INET6
    except OSError as error:
        raise UnavailableError(
            f"host {master!r} of the run's store (MASTER_ADDR): cannot be resolved or reached ({error})"
        ) from None


def chosen_interface() -> str:
    """The network interface that `GLOO_SOCKET_IFNAME` names, the first one of several; empty for none."""
    return os.environ.get(GLOO_SOCKET_IFNAME, "").split(",")[0]


def has_address(store: Store) -> bool:
    """Whether the run's store says where the other workers are."""
    return bool(_host_of(store))


def _host_of(store: Store) -> str:
    """Where the run's store is; empty if nobody says."""
    root: Any = root_store(store)
    return root.host if isinstance(root, TCPStore) else os.environ.get(MASTER_ADDR, "")


def _address_of(interface: str) -> str:
    get_address = 0x8915  # SIOCGIFADDR
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", interface[:15].encode()))
    except OSError as error:
        raise UnavailableError(f"GLOO_SOCKET_IFNAME {interface!r}: has no IPv4 address ({error.strerror})") from None
    return socket.inet_ntoa(answer[20:24])
