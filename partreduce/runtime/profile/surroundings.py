"""What the machine says about itself: which ranks share a node, what SLURM knows, and `nvidia-smi topo -m`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from partreduce.runtime.environment import GROUP_RANK, SLURM_JOB, SLURM_NODEID, SLURM_TOPOLOGY
from partreduce.runtime.transport.store import Notes
from partreduce.runtime.transport.worlds import World
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Switch
from partreduce.topo.slurm import switches_of

NEAR = {"PIX", "PXB"}
"""Paths that cross PCIe bridges only: such a NIC belongs to its GPU."""


def cluster_of(world: World) -> Cluster:
    """The shape of the running job: ranks with the same node number share a node, nodes ordered by their first rank.

    torchrun and `partreduce run` set GROUP_RANK; under srun SLURM_NODEID says the same.

    Raises:
        UnavailableError: a rank did not say where it runs within the store's timeout.
    """
    node = os.environ.get(GROUP_RANK) or os.environ.get(SLURM_NODEID) or "0"
    notes = Notes(world.store, "profile/node")
    notes.write(str(world.rank), node)
    nodes: dict[str, list[int]] = {}
    for rank in range(world.size):
        nodes.setdefault(notes.wait_for(str(rank)), []).append(rank)
    return Cluster.irregular(list(nodes.values()))


def slurm_words(environment: Mapping[str, str]) -> dict[str, str]:
    """What SLURM says about the job; empty outside of SLURM."""
    return {name: environment[name] for name in SLURM_JOB if environment.get(name)}


def slurm_switches(world: World, cluster: Cluster) -> tuple[Switch, ...]:
    """The switches that SLURM names above the nodes of the job, without bandwidths; none where it names none.

    Raises:
        UnavailableError: a rank did not say where it runs within the store's timeout.
    """
    words = [os.environ.get(name, "") for name in SLURM_TOPOLOGY]
    notes = Notes(world.store, "profile/address")
    notes.write(str(world.rank), "\n".join(words))
    first = [cluster.workers_of(node)[0] for node in range(cluster.num_nodes)]
    return switches_of([notes.wait_for(str(rank)) for rank in first])


def gpu_topology() -> str | None:
    """The table that `nvidia-smi topo -m` prints, or None where it does not exist or fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout if done.returncode == 0 else None


def num_rails(table: str) -> int:
    """NICs of the node that sit next to a GPU (path PIX or PXB): its rails; at least 1."""
    rows = [line.split("\t") for line in table.splitlines() if "\t" in line]
    if not rows:
        return 1
    header = [cell.strip() for cell in rows[0]]
    rails = set()
    for row in rows[1:]:
        cells = [cell.strip() for cell in row]
        if not cells[0].startswith("GPU"):
            continue
        for name, path in zip(header[1:], cells[1:], strict=False):
            if name.startswith(("NIC", "mlx", "IB")) and path in NEAR:
                rails.add(name)
    return max(1, len(rails))
