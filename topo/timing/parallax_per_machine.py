"""Parallax's table per machine (Kim et al., EuroSys 2019, section 3): bytes in and out of a machine for one variable.

The version of 2018 has another one, per GPU and outgoing (its Table 3), which is not this.

N machines with one worker each, a variable of w bytes of which a worker touches the share α in one step (1 if dense).
A parameter server on one of the machines exchanges the touched part with the N−1 others, in and out; a ring all-reduce
moves 4w(N−1)/N in and out; sparse gradients are gathered by everybody. Bytes count both directions, as in the paper.

    one variable        parameter server                    all-reduce or all-gather
    dense               2w(N−1) its server, 2w others       4w(N−1)/N
    sparse              2αw(N−1) its server, 2αw others     2αw(N−1)

With m variables spread evenly over the machines' servers a machine moves 4αwm(N−1)/N: once m/N as a server, and the
rest as a worker of the other servers. A dense variable costs the same either way; a sparse one is cheaper by servers
as soon as there are more than two machines.
"""

from __future__ import annotations

from enum import StrEnum

from partreduce.topo.errors import InputError


class Route(StrEnum):
    """How one variable is synchronised."""

    SERVER = "server"
    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"


def machine_server_bytes(num_machines: int, num_bytes: float, *, touched: float = 1.0, is_server: bool) -> float:
    """Bytes in and out of one machine for one variable on a parameter server."""
    _check(num_machines, num_bytes, touched)
    if num_machines == 1:
        return 0.0
    return 2 * touched * num_bytes * (num_machines - 1 if is_server else 1)


def machine_spread_server_bytes(num_machines: int, num_bytes: float, *, touched: float = 1.0) -> float:
    """Bytes in and out of each machine per variable when many variables are spread evenly over servers."""
    _check(num_machines, num_bytes, touched)
    return 4 * touched * num_bytes * (num_machines - 1) / num_machines


def machine_allreduce_bytes(num_machines: int, num_bytes: float) -> float:
    """Bytes in and out of each machine for a dense variable by a ring all-reduce."""
    _check(num_machines, num_bytes, 1.0)
    return 4 * num_bytes * (num_machines - 1) / num_machines


def machine_allgather_bytes(num_machines: int, num_bytes: float, *, touched: float) -> float:
    """Bytes in and out of each machine when everybody gathers everybody's sparse gradient."""
    _check(num_machines, num_bytes, touched)
    return 2 * touched * num_bytes * (num_machines - 1)


def cheapest_per_machine(
    num_machines: int, num_bytes: float, *, touched: float, is_sparse: bool
) -> tuple[Route, float]:
    """The route with the fewest bytes per machine, and those bytes; dense variables on a tie go by all-reduce.

    A sparse variable may also be treated as dense, which pays when nearly all of it is touched.
    """
    share = touched if is_sparse else 1.0
    options = [(machine_allreduce_bytes(num_machines, num_bytes), 0, Route.ALLREDUCE)]
    options.append((machine_spread_server_bytes(num_machines, num_bytes, touched=share), 1, Route.SERVER))
    if is_sparse:
        options.append((machine_allgather_bytes(num_machines, num_bytes, touched=touched), 2, Route.ALLGATHER))
    amount, _, route = min(options)
    return route, amount


def _check(num_machines: int, num_bytes: float, touched: float) -> None:
    if num_machines < 1:
        raise InputError(f"{num_machines} machines: there is at least 1")
    if not num_bytes >= 0:
        raise InputError(f"{num_bytes} bytes: a variable's size is >= 0")
    if not 0 <= touched <= 1:
        raise InputError(f"touched share {touched}: it lies in 0..1")
