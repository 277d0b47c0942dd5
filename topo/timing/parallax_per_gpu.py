"""Parallax's table per GPU (Kim et al., arXiv 1808.02621, 2018, Table 3): the transfer that one variable asks for.

The version of EuroSys 2019 has another one, per machine and in both directions, which is `parallax_per_machine`.

N GPUs, a variable of b bytes of which a GPU touches the share α in one step (1 if dense). With parameter servers
a GPU pulls the variable and pushes its gradient; by MPI it takes part in a ring all-reduce, or in an all-gather of the
touched part.

    one variable        parameter server    MPI
    dense               2b                  2(N−1)b/N
    sparse              2αb                 2(N−1)αb

Only what belongs to the GPU as a worker counts: what the servers themselves move is not in it. So the table sees no
difference for dense variables, which EuroSys's does not see either, and for sparse ones a factor of N−1. Our own costs
(`topo.timing.tables`) count what leaves a node's NIC: (N−1)αb for the ring of an all-gather, which receives as many.
"""

from __future__ import annotations

from partreduce.topo.errors import InputError


def gpu_server_bytes(num_gpus: int, num_bytes: float, *, touched: float = 1.0) -> float:
    """Bytes for one GPU and one variable on parameter servers."""
    _check(num_gpus, num_bytes, touched)
    return 2 * touched * num_bytes


def gpu_allreduce_bytes(num_gpus: int, num_bytes: float) -> float:
    """Bytes for one GPU and one dense variable by a ring all-reduce."""
    _check(num_gpus, num_bytes, 1.0)
    return 2 * num_bytes * (num_gpus - 1) / num_gpus


def gpu_allgather_bytes(num_gpus: int, num_bytes: float, *, touched: float) -> float:
    """Bytes for one GPU and one sparse variable by an all-gather."""
    _check(num_gpus, num_bytes, touched)
    return 2 * touched * num_bytes * (num_gpus - 1)


def _check(num_gpus: int, num_bytes: float, touched: float) -> None:
    if num_gpus < 1:
        raise InputError(f"{num_gpus} GPUs: there is at least 1")
    if not num_bytes >= 0:
        raise InputError(f"{num_bytes} bytes: a variable's size is >= 0")
    if not 0 <= touched <= 1:
        raise InputError(f"touched share {touched}: it lies in 0..1")
