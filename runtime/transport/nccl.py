"""NcclWorld: workers with one CUDA device each, whose groups are splits of the default process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from preduce.runtime.transport.needed_groups import distinct_partitions
from preduce.runtime.transport.torch_api import default_group
from preduce.runtime.transport.worlds import MAX_GROUPS, GroupTable
from preduce.topo.errors import InputError
from preduce.topo.phase import Group

if TYPE_CHECKING:
    from datetime import timedelta

    import torch

    from preduce.runtime.transport.torch_api import Store
    from preduce.topo.schedule import Schedule


class NcclWorld(GroupTable):
    """Workers with one CUDA device each; groups are splits of the default process group, one split per distinct phase.

    This path has never been executed on a GPU.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        device: torch.device,
        max_splits: int = MAX_GROUPS,
    ) -> None:
        super().__init__(store, rank, size, timeout)
        self.device, self.max_splits = device, max_splits
        self._splits: set[tuple[tuple[int, ...], ...]] = set()

    def prepare(self, schedule: Schedule) -> None:
        """Split once per distinct phase, on all workers in one order; see World.prepare.

        Raises:
            InputError: more distinct phases than allowed; each costs GPU memory for a communicator.
        """
        world = tuple(range(self.size))
        if world not in self._groups:
            self._keep(world, default_group(), str(self.device))
        partitions = distinct_partitions(schedule)
        if len(partitions) > self.max_splits:
            raise InputError(
                f"schedule {schedule.name!r}: has {len(partitions)} distinct phases and each needs a communicator "
                f"of its own on the GPU; at most {self.max_splits} are allowed; repeat phases"
            )
        for index, partition in enumerate(partitions):
            if partition in self._splits or partition == (world,):
                continue
            self._splits.add(partition)
            split = dist.split_group(
                split_ranks=[list(members) for members in partition],
                timeout=self.timeout,
                group_desc=f"preduce {schedule.name} phase {index}: " + " ".join(str(Group(m)) for m in partition[:8]),
            )
            mine = next((members for members in partition if self.rank in members), None)
            if split is not None and mine is not None and mine not in self._groups:
                self._keep(mine, split, str(self.device))

    def abandon(self) -> None:
        """Abort all communicators of the process together: one by one can deadlock in NCCL."""
        super().abandon()
        abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
        if abort is not None and dist.is_initialized():
            abort()
