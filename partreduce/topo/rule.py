"""Rules: phases written for any number of nodes, in mixed-radix digits of the node index.

A node's index has digits 0, 1, …, k−1, digit 0 the most significant. A block (L, D) forms one group for every setting
of the digits outside D: the workers whose local rank lies in L, on the nodes that agree on those digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import prod

import numpy as np

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Whole
from partreduce.topo.phase import ONE, Group, Phase


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a rule: workers with these local ranks average across nodes that differ only in the digits `across`.

    The digits are those of the node's index in mixed radix, digit 0 the most significant. For radices (2, 3) node 4 =
    1·3 + 1 has the digits 1 and 1; with `across` (1,) its group is on the nodes 3, 4 and 5, with (0,) on 1 and 4. An
    empty `across` averages inside each node. `relaxation` is that of the groups (`Group`).
    """

    local: tuple[int, ...]
    across: tuple[int, ...] = ()
    relaxation: Fraction = field(default=ONE, hash=False)  # a fraction's hash takes longer than all else

    def __str__(self) -> str:
        """Format as `LW{0,3} across digits {0}`: the local workers, by local rank, and the digits averaged over."""
        place = "inside each node" if not self.across else "across digits {" + ",".join(map(str, self.across)) + "}"
        text = "LW{" + ",".join(map(str, self.local)) + "} " + place
        return text if self.relaxation == 1 else f"{text} relaxation {self.relaxation}"

    @property
    def makes_groups(self) -> bool:
        """Whether the block's groups have at least two workers: it has several local ranks or averages across nodes."""
        return len(self.local) > 1 or bool(self.across)


RulePhase = tuple[Block, ...]


def distinct(phases: Sequence[RulePhase]) -> list[tuple[int, RulePhase]]:
    """Return every phase once, with the index where it first occurs; equal phases that are different objects count.

    A period often repeats a few phases, and each may have as many blocks as a node has workers.
    """
    first: dict[int, tuple[int, RulePhase]] = {}
    for index, phase in enumerate(phases):
        first.setdefault(id(phase), (index, phase))
    return list(first.values())


def strides_of(radices: Sequence[int]) -> tuple[int, ...]:
    """Return the stride of each digit, shape of `radices`: node = Σ digit_d · stride_d."""
    return tuple(prod(radices[d + 1 :]) for d in range(len(radices)))


def digit_of(node: int, stride: int, radix: int) -> int:
    """Return the digit with this stride and radix of a node's index in mixed radix, 0 … radix − 1."""
    return (node // stride) % radix


def representative(node: int, radices: Sequence[int], across: Sequence[int]) -> int:
    """Return `node` with the digits `across` of its index set to 0: nodes share a group iff the results are equal."""
    strides = strides_of(radices)
    return node - sum(digit_of(node, strides[d], radices[d]) * strides[d] for d in across)


def representatives(nodes: Whole, radices: Sequence[int], across: Sequence[int]) -> Whole:
    """Return `representative` of every entry of an array of nodes. Vectorized."""
    strides, result = strides_of(radices), nodes.copy()
    for d in across:
        result -= (nodes // strides[d]) % radices[d] * strides[d]
    return result


def nodes_of_group(node: int, radices: Sequence[int], across: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes of a group that contains `node` and averages over the digits `across`, ascending. O(size)."""
    strides = strides_of(radices)
    nodes = [representative(node, radices, across)]
    for d in sorted(across):
        nodes = [base + value * strides[d] for base in nodes for value in range(radices[d])]
    return tuple(nodes)


def group_of(worker: int, phase: RulePhase, workers_per_node: int, radices: Sequence[int]) -> Group | None:
    """Return the group of one worker in a phase of a rule, None if the worker skips.

    `radices` are those of the digits of the node index, the most significant first. O(size of the group), without
    expanding the phase, so that workers can call it at run time.
    """
    node, local = worker // workers_per_node, worker % workers_per_node
    for block in phase:
        if local in block.local:
            members = tuple(
                other * workers_per_node + rank
                for other in nodes_of_group(node, radices, block.across)
                for rank in sorted(block.local)
            )
            return Group(members, block.relaxation) if block.makes_groups else None
    return None


@dataclass(frozen=True, slots=True)
class RuleView:
    """A rule: phases of blocks (`Block`), the radices of the node index's digits, and the workers per node."""

    radices: tuple[int, ...]
    phases: tuple[RulePhase, ...]
    workers_per_node: int

    @property
    def num_nodes(self) -> int:
        return prod(self.radices)

    @property
    def num_digits(self) -> int:
        return len(self.radices)

    @property
    def canonical(self) -> RuleView:
        """The same rule with blocks, local ranks and digits in ascending order."""
        phases = (
            sorted(
                (Block(tuple(sorted(b.local)), tuple(sorted(b.across)), b.relaxation) for b in phase),
                key=lambda block: (block.local, block.across, str(block.relaxation)),
            )
            for phase in self.phases
        )
        return RuleView(self.radices, tuple(map(tuple, phases)), self.workers_per_node)

    def span(self, block: Block) -> int:
        """Return the number of nodes in each group of the block."""
        return prod(self.radices[digit] for digit in block.across)

    def shared_rank(self) -> int | None:
        """Return the index of the first phase in which two blocks share a local rank; None if there is none.

        Groups of that phase overlap, so that it has no mixing matrix.
        """
        for index, phase in distinct(self.phases):
            ranks = [rank for block in phase for rank in block.local]
            if len(set(ranks)) != len(ranks):
                return index
        return None

    def group_of(self, worker: int, index: int) -> Group | None:
        """Return the group of one worker in phase `index`, None if the worker skips. O(size of the group)."""
        return group_of(worker, self.phases[index], self.workers_per_node, self.radices)

    def expand(self, index: int) -> Phase:
        """Return the explicit groups of phase `index`; ScheduleError if blocks share a local rank. O(n log n)."""
        phase = self.phases[index]
        ranks = [rank for block in phase for rank in block.local]
        if len(set(ranks)) != len(ranks):
            raise ScheduleError("blocks of one phase share a local rank; groups of one phase are disjoint")
        # labels (num_nodes, workers_per_node): equal labels average together, -1 skips
        labels = np.full((self.num_nodes, self.workers_per_node), -1, dtype=np.int64)
        relaxation: dict[int, Fraction] = {}
        for number, block in enumerate(phase):
            keys = representatives(np.arange(self.num_nodes), self.radices, block.across)
            for rank in block.local:
                labels[:, rank] = keys * len(phase) + number
            if block.relaxation != 1:
                relaxation.update((int(key) * len(phase) + number, block.relaxation) for key in np.unique(keys))
        return Phase.from_labels(labels.reshape(-1), relaxation or None)


def check_rule(phases: Sequence[RulePhase], cluster: Cluster, radices: Sequence[int]) -> None:
    """Raise ScheduleError if the rule does not fit the cluster; `verify` rejects blocks that share a local rank."""
    if not cluster.is_regular:
        raise ScheduleError(f"rules need equally sized nodes; the cluster is {cluster}; use explicit groups")
    if any(radix < 2 for radix in radices) or prod(radices) != cluster.num_nodes:
        raise ScheduleError(
            f"node_radices {list(radices)}: every radix is >= 2 and their product is the number of nodes, "
            f"{cluster.num_nodes}"
        )
    for t, phase in distinct(phases):
        for b, block in enumerate(phase):
            place = f"phases[{t}][{b}]"
            _check_indices(f"{place}.local", block.local, cluster.workers_per_node or 0, "local rank")
            _check_indices(f"{place}.across", block.across, len(radices), "digit")
            if not block.local:
                raise ScheduleError(f"{place}.local: is empty; a block names at least one local rank")


def _check_indices(place: str, values: Sequence[int], bound: int, word: str) -> None:
    for value in values:
        if not 0 <= value < bound:
            raise ScheduleError(f"{place}: {word} {value} is out of range; there are {bound}, numbered from 0")
    if len(set(values)) != len(values):
        raise ScheduleError(f"{place}: {list(values)} names a {word} twice")


def every_class(num_digits: int) -> Iterator[tuple[int, ...]]:
    """Yield all sets of digits 0 … num_digits − 1, by size, then in lexicographic order, the empty set first."""
    for size in range(num_digits + 1):
        yield from combinations(range(num_digits), size)


def distinct_classes(rule: RuleView) -> list[tuple[int, ...]]:
    """Return sets of node digits, one for each group of classes with equal mixing matrices. O(2^k) for k digits.

    The class of a set of digits holds the values that vary along exactly these digits of the node index. A block's mean
    is zero on it if the block averages over one of them. Classes on which the same blocks have the mean zero have equal
    matrices; the result has the first of them.
    """
    seen: dict[tuple[bool, ...], tuple[int, ...]] = {}
    for digits in every_class(rule.num_digits):
        pattern = (not digits, *(bool(set(digits) & set(b.across)) for phase in rule.phases for b in phase))
        seen.setdefault(pattern, digits)
    return list(seen.values())
