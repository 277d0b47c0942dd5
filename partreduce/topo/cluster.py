"""The cluster: its nodes, the workers on each node and, where known, the hardware."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from partreduce.topo.argument_types import check_fields
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import Hardware

MAX_WORKERS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster: which worker runs on which node.

    Regular clusters (`workers_per_node` set) hold no per-worker data, so a million workers cost nothing; their ranks
    are contiguous: worker w runs on node w // workers_per_node with local rank w % workers_per_node. Irregular clusters
    list the ranks of every node. Build one with `regular`, `irregular` or `parse`.

    `hardware` (links, speeds) is ignored by `same_shape` and never written to a schedule file.
    """

    num_nodes: int
    workers_per_node: int | None
    nodes: tuple[tuple[int, ...], ...] | None = None
    hardware: Hardware | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_nodes < 1:
            raise InputError(f"cluster: num_nodes is {self.num_nodes}; a cluster has at least 1 node")
        if (self.workers_per_node is None) == (self.nodes is None):
            raise InputError("cluster: give either workers_per_node or the list of nodes, not both and not neither")
        if self.workers_per_node is not None:
            if self.workers_per_node < 1:
                raise InputError(
                    f"cluster: workers_per_node is {self.workers_per_node}; a node holds at least 1 worker"
                )
            if self.num_workers > MAX_WORKERS:
                raise InputError(f"cluster: {self.num_workers} workers; at most {MAX_WORKERS} are supported")
            return
        self._check_nodes()

    def _check_nodes(self) -> None:
        nodes = self.nodes or ()
        if len(nodes) != self.num_nodes:
            raise InputError(f"cluster: num_nodes is {self.num_nodes} but {len(nodes)} nodes are listed")
        total = sum(len(node) for node in nodes)
        seen = bytearray(total)
        for index, node in enumerate(nodes):
            if not node:
                raise InputError(f"cluster.nodes[{index}]: is empty; a node holds at least 1 worker")
            for worker in node:
                if not 0 <= worker < total:
                    rule = f"{total} workers are listed, so ranks are 0..{total - 1}, each once"
                    raise InputError(f"cluster.nodes[{index}]: worker {worker} is out of range; {rule}")
                if seen[worker]:
                    raise InputError(f"cluster.nodes[{index}]: worker {worker} is listed twice; each rank stands once")
                seen[worker] = 1

    @classmethod
    def regular(cls, num_nodes: int, workers_per_node: int, *, hardware: Hardware | None = None) -> Cluster:
        """Return a cluster of `num_nodes` nodes with `workers_per_node` workers each."""
        return cls(num_nodes, workers_per_node, None, hardware)

    @classmethod
    def irregular(cls, nodes: Sequence[Sequence[int]], *, hardware: Hardware | None = None) -> Cluster:
        """Return a cluster from ranks by node; regular if the lists are equally long and hold 0, 1, 2, … in order."""
        listed = tuple(tuple(int(worker) for worker in node) for node in nodes)
        sizes = {len(node) for node in listed}
        flat = [worker for node in listed for worker in node]
        if len(sizes) == 1 and 0 not in sizes and flat == list(range(len(flat))):
            return cls(len(listed), sizes.pop(), None, hardware)
        return cls(len(listed), None, listed, hardware)

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Read a cluster's shorthand: `4x4` is 4 nodes of 4 workers, `3,3,2` is three nodes of 3, 3 and 2 workers.

        Raises:
            InputError: the text has neither form.
        """
        text = text.strip()
        if match := re.fullmatch(r"([0-9]{1,10})[xX×]([0-9]{1,10})", text):
            return cls.regular(int(match[1]), int(match[2]))
        if re.fullmatch(r"[0-9]{1,10}(,[0-9]{1,10})*", text):
            sizes = [int(part) for part in text.split(",")]
            if 0 in sizes:
                raise InputError(f"cluster {text!r}: a node with 0 workers; every node holds at least 1")
            if sum(sizes) > MAX_WORKERS or (len(sizes) > 1 and sum(sizes) > 10**8):
                raise InputError(f"cluster {text!r}: too many workers; write large clusters as NODESxWORKERS")
            if len(set(sizes)) == 1:
                return cls.regular(len(sizes), sizes[0])
            starts = np.concatenate([[0], np.cumsum(sizes)])
            return cls.irregular([range(int(a), int(b)) for a, b in pairwise(starts)])
        raise InputError(
            f"cluster {text!r}: not understood; write NODESxWORKERS such as 4x4, or the workers of each node such as "
            "3,3,2, or name a .yaml or .json cluster file"
        )

    @property
    def is_regular(self) -> bool:
        """Whether every node holds the same number of workers, numbered contiguously."""
        return self.workers_per_node is not None

    @property
    def num_workers(self) -> int:
        """The number of workers, n."""
        if self.workers_per_node is not None:
            return self.num_nodes * self.workers_per_node
        return sum(len(node) for node in self.nodes or ())

    def node_sizes(self) -> npt.NDArray[np.int64]:
        """Return the number of workers of every node, shape (num_nodes,)."""
        if self.workers_per_node is not None:
            return np.full(self.num_nodes, self.workers_per_node, dtype=np.int64)
        return np.array([len(node) for node in self.nodes or ()], dtype=np.int64)

    def workers_of(self, node: int) -> tuple[int, ...]:
        """Return the ranks of the workers on one node, in local-rank order."""
        if self.workers_per_node is not None:
            start = node * self.workers_per_node
            return tuple(range(start, start + self.workers_per_node))
        assert self.nodes is not None
        return self.nodes[node]

    def node_of(self) -> npt.NDArray[np.int32]:
        """Return the node of every worker, shape (num_workers,)."""
        if self.workers_per_node is not None:
            return np.repeat(np.arange(self.num_nodes, dtype=np.int32), self.workers_per_node)
        result = np.empty(self.num_workers, dtype=np.int32)
        for index, node in enumerate(self.nodes or ()):
            result[list(node)] = index
        return result

    def local_rank_of(self) -> npt.NDArray[np.int32]:
        """Return the local rank of every worker, shape (num_workers,)."""
        if self.workers_per_node is not None:
            return np.tile(np.arange(self.workers_per_node, dtype=np.int32), self.num_nodes)
        result = np.empty(self.num_workers, dtype=np.int32)
        for node in self.nodes or ():
            result[list(node)] = np.arange(len(node))
        return result

    def without(self, failed: Collection[int]) -> Cluster:
        """Return the cluster without the ranks in `failed`; the other workers are renumbered from 0 in order of rank.

        Nodes that lose all their workers are removed. O(num_workers).

        Raises:
            InputError: no worker is left.
        """
        gone = np.zeros(self.num_workers, dtype=bool)
        gone[list(failed)] = True
        rank = (np.cumsum(~gone) - 1).tolist()
        kept = ([rank[w] for w in self.workers_of(node) if not gone[w]] for node in range(self.num_nodes))
        return Cluster.irregular([node for node in kept if node])

    def shape(self) -> Cluster:
        """Return the cluster without hardware, which is all that a schedule file states of it."""
        return self if self.hardware is None else replace(self, hardware=None)

    def same_shape(self, other: Cluster) -> bool:
        """Whether both clusters place the same ranks on the same nodes."""
        return self.shape() == other.shape()

    def __str__(self) -> str:
        """Return a shorthand such as `4x4`, or node sizes such as `3,3,2` for an irregular cluster, without ranks."""
        if self.workers_per_node is not None:
            return f"{self.num_nodes}x{self.workers_per_node}"
        return ",".join(str(len(node)) for node in self.nodes or ())
