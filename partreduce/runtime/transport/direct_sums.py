"""Direct sums: each member collects its part of a short array from all, adds it up, and hands the sum to all.

A ring of k members passes 2(k-1) messages one after the other, so of a short array a sum takes as long as they take to
be noticed. Here each member sends as many of the same length, but all at once: a sum waits for two, as the two halves
of Rabenseifner's all-reduce (Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in
MPICH, 2005) with one exchange each. Short is what does not overflow a link's queue (see `in_rounds`), between members
that have a node each: others would send over their node's link what a ring does not.
"""

from __future__ import annotations

import torch

from partreduce.runtime.codecs.coding import Coding
from partreduce.runtime.transport.coded_sums import block_bounds
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.in_rounds import BURST_BYTES
from partreduce.runtime.transport.staged import Stages


def longest_direct(num_members: int) -> int:
    """Bytes of the longest array that a group of so many members adds up directly; 0 where a ring is as short."""
    return BURST_BYTES // (num_members - 1) * num_members if num_members > 2 else 0


class DirectStages(Stages):
    """Sums over one group that nothing else uses; each part is added in order of places, and all get the same bits."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self._group = group

    def sum(self, tensor: torch.Tensor, coding: Coding | None) -> None:
        assert coding is None, "what is coded goes by the group's own ways"
        group = self._group
        lengths = [end - start for start, end in block_bounds(len(tensor), group.size, 1)]
        own = lengths[group.place]
        rows = tensor.new_empty(group.size, own)
        self.wait(group.all_to_all(rows.view(-1), tensor, [own] * group.size, lengths))
        total = rows[0].clone()
        for row in rows[1:]:
            total.add_(row)
        rows.copy_(total.expand_as(rows))
        self.wait(group.all_to_all(tensor, rows.view(-1), lengths, [own] * group.size))
