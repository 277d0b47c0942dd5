"""Row layout: on which worker each row of a sharded table lies, and at which place of that worker's shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from partreduce.topo.strategies.payload import Payload, TablePlacement


class Layout(Protocol):
    """Who has a row, and where."""

    def owner_of(self, rows: torch.Tensor) -> torch.Tensor:
        """The worker that has each of these rows, int64."""

    def place_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Each row's place in the array of the worker that has it, int64."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Row r lies in part r mod P, and part p on host p mod H; a host's rows stand in ascending order.

    A host h has K = ⌈(P − h)/H⌉ of the P parts, so the row of part p = h + jH in turn q = r div P is its (qK + j)-th.
    """

    num_rows: int
    hosts: tuple[int, ...]
    partitions: int

    @classmethod
    def of(cls, routes: Payload, route: TablePlacement, num_workers: int) -> RowLayout:
        return cls(route.rows, routes.hosts(route, num_workers), routes.partitions(route, num_workers))

    def owner_of(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.hosts)[rows % self.partitions % len(self.hosts)]

    def place_of(self, rows: torch.Tensor) -> torch.Tensor:
        num_hosts = len(self.hosts)
        part = rows % self.partitions
        host = part % num_hosts
        parts_of_host = (self.partitions - host + num_hosts - 1) // num_hosts
        return rows // self.partitions * parts_of_host + part // num_hosts

    def rows_of(self, worker: int) -> torch.Tensor:
        """The rows that lie on a worker, ascending. O(rows of it)."""
        if worker not in self.hosts:
            return torch.empty(0, dtype=torch.int64)
        parts = torch.arange(self.hosts.index(worker), self.partitions, len(self.hosts))
        turns = torch.arange(0, self.num_rows, self.partitions)
        rows = (turns[:, None] + parts[None, :]).view(-1)  # [turns · parts], ascending
        return rows[rows < self.num_rows]


@dataclass(frozen=True, slots=True)
class BlockOnFirst:
    """A block of rows that worker 0 has, in the order of their numbers, from `first` on."""

    first: int

    def owner_of(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(rows)

    def place_of(self, rows: torch.Tensor) -> torch.Tensor:
        return rows - self.first
