"""How the sum of a group travels: in stages inside and across nodes, as a ring, or without the codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, CodecScope, Form, How


@dataclass(frozen=True, slots=True)
class Spread:
    """`inside` members on each of `nodes` nodes; where these have unequal numbers `inside` are all, and nodes is 0."""

    inside: int
    nodes: int

    @classmethod
    def of(cls, nodes: npt.NDArray[np.integer[Any]]) -> Spread:
        """The spread of members, given the node of each."""
        counts = np.unique(nodes, return_counts=True)[1]
        return cls(int(counts[0]), len(counts)) if (counts == counts[0]).all() else cls(len(nodes), 0)

    @property
    def size(self) -> int:
        return self.inside * max(self.nodes, 1)

    def has_stages(self, how: How) -> bool:
        """Whether sums have a stage inside nodes and one across them."""
        return how.form is Form.HIERARCHICAL and self.inside > 1 and self.nodes > 1

    def is_coded(self, how: How) -> bool:
        """Whether anything that is sent is rounded."""
        return how.codec is not Codec.NONE and not (how.where is CodecScope.ACROSS_NODES and self.nodes == 1)

    def communicators(self, how: How) -> int:
        """Those of a group, the stages of a form not counted: a second one where a codec of blocks goes as a ring."""
        return 2 if how.codec.has_blocks and not self.has_stages(how) else 1


def of_everybody(schedule: Schedule) -> Spread:
    """The group of all workers."""
    return Spread.of(schedule.cluster.node_of())


def of_block(rule: RuleView, schedule: Schedule, local: Sequence[int], across: Sequence[int]) -> Spread:
    """The groups of a block; a rule may see every worker as a node of its own, which has no other groups than that."""
    size = 1
    for digit in across:
        size *= rule.radices[digit]
    return of_everybody(schedule) if size * len(local) == schedule.num_workers else Spread(len(local), size)
