"""The form `hierarchical` of a group's sum: shards are added inside each node, then across nodes, then handed back.

It applies to groups with the same number l ≥ 2 of workers on each of m ≥ 2 nodes; any other group keeps its ring. Every
worker sends 2(m−1)/m of its l-th of the tensor out of its node, and 2(l−1)/l of the tensor inside; a ring sends
2(k−1)/k of the tensor over whichever link comes next. A long tensor goes in parts, and while a part is on its way
across the nodes the next one is exchanged inside (the two stages are pipelined, as `topo.timing.cost` takes them).

Each shard is added up by one worker of a node in order of places, and its sum is copied: all members end with the same
bits, and so does every run.

A codec is for everything, or for what crosses the nodes only; what came across as codes is handed out as codes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch

from partreduce.runtime.codecs.coding import Coding
from partreduce.runtime.transport.block_sums import BlockStages, Bounds, Stage, block_bounds, code_size
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.staged import StagedSums, Stages
from partreduce.runtime.transport.through_servers import shard_bounds
from partreduce.runtime.transport.waiting import RunningWork
from partreduce.runtime.transport.worlds import World
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, MissingFeatureError, UnavailableError
from partreduce.topo.strategies.axes import CodecScope, Form

SMALL_BYTES = 1024
"""Shorter tensors, such as tags, go around the ring of the whole group: three stages would only add latencies."""
PART_BYTES = 8 * 2**20
"""A longer tensor goes in parts of at most about this size; one array of this size is kept for each group."""


def chosen_form(form: Form | str, device: torch.device) -> Form:
    """The form that the user asks for.

    Raises:
        InputError: no such form.
        MissingFeatureError: the parameters lie on a GPU.
    """
    try:
        chosen = Form(form)
    except ValueError:
        raise InputError(f"form: {form!r} is not one of {', '.join(one.value for one in Form)}") from None
    if chosen is Form.HIERARCHICAL and device.type == "cuda":
        raise MissingFeatureError(
            "form: 'hierarchical' runs on CPU over gloo only; leave form at ring, NCCL picks its own algorithm"
        )
    return chosen


def formed(world: World, form: Form, cluster: Cluster) -> World:
    """The world whose groups have this form: the given one for rings, else one beside it, made once per cluster.

    Raises:
        MissingFeatureError: the world is not one of gloo.
    """
    if form is Form.RING:
        return world
    if not isinstance(world, GlooWorld):
        raise MissingFeatureError("form: 'hierarchical' runs over gloo only; leave form at ring")
    nodes = tuple(cluster.node_of().tolist())
    for other in world.relatives:
        if isinstance(other, HierarchicalWorld) and other.nodes == nodes:
            return other
    return HierarchicalWorld(world, nodes)


class HierarchicalWorld(GlooWorld):
    """The workers of a given world, with groups of their own that are hierarchical wherever that applies.

    A group is up to three gloo groups of each member: all members, its part of the node, and its row (the workers with
    the same place on their nodes). They are made in this order, one group after another; parts of one group do not
    overlap, and neither do rows, so that this is one total order for all workers as well. No two groups share a part:
    each may then be destroyed without the other.
    """

    def __init__(self, base: GlooWorld, nodes: tuple[int, ...]) -> None:
        super().__init__(base.store, base.rank, base.size, base.timeout, max_groups=base.max_groups)
        self.nodes = nodes
        self.relatives = [base]
        base.relatives.append(self)
        self._device = base.gloo_device()
        self._prefix = f"partreduce/hierarchical/{hashlib.sha256(repr(nodes).encode()).hexdigest()[:16]}"

    def parts(self, members: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [members, *(levels_of(members, self.nodes, self.rank) or ())]

    def needs_second(self, members: tuple[int, ...]) -> bool:
        return levels_of(members, self.nodes, self.rank) is None

    def create(
        self, members: tuple[int, ...], *, name: str = "", instance: str = "", within: timedelta | None = None
    ) -> Communicator:
        whole = super().create(members, name=name, instance=instance, within=within)
        whole.is_inside_a_node = len({self.nodes[member] for member in members}) == 1
        levels = levels_of(members, self.nodes, self.rank)
        if levels is None:
            return whole
        made = []
        try:
            for level, part in zip(("inside", "across"), levels, strict=True):
                where = f"{self._place(members, name, instance)}/{level}/{','.join(map(str, part))}"
                made.append(self._connect(part, where, within))
        except UnavailableError:
            made.clear()
            self.destroy([members])
            raise
        return self._keep(members, name, HierarchicalCommunicator(whole, *made))


def levels_of(
    members: Sequence[int], nodes: Sequence[int], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(members on the node of `rank`, the members with its place on their nodes); None where the form is the ring.

    Args:
        members: of the group, ascending, `rank` among them.
        nodes: the node of every worker.
        rank: this worker.
    """
    on_node: dict[int, list[int]] = {}
    for member in members:
        on_node.setdefault(nodes[member], []).append(member)
    inside = on_node[nodes[rank]]
    if len(on_node) < 2 or len(inside) < 2 or any(len(part) != len(inside) for part in on_node.values()):
        return None
    place = inside.index(rank)
    return tuple(inside), tuple(sorted(part[place] for part in on_node.values()))


class HierarchicalCommunicator(Communicator):
    """A group with the same number of members on each of its nodes.

    Sums run in a thread of the group, in order of calls; only that thread uses the two inner groups. Everything else,
    and short sums, is done by the gloo group of all members.
    """

    def __init__(self, whole: Communicator, inside: Communicator, across: Communicator) -> None:
        (backend,) = whole.close()
        super().__init__(whole.members, whole.members[whole.place], backend, whole.timeout)
        self.sums = StagedSums(_Levels(inside, across))
        self._levels = inside, across

    def all_reduce(self, tensor: torch.Tensor, coding: Coding | None = None) -> RunningWork:
        """Start a sum over the group, in place; see Communicator. A short tensor is never coded.

        Raises:
            UnavailableError: the group was destroyed, or a connection of it is broken.
        """
        if tensor.nbytes < SMALL_BYTES or tensor.numel() < self._levels[0].size:
            return super().all_reduce(tensor)
        self._live()
        return self.sums.start(tensor, coding)

    def close(self) -> list[object]:
        """Let go of what lies below and return it; sums that wait or run end with an error."""
        self.sums.close()
        return [*super().close(), *(backend for level in self._levels for backend in level.close())]


class _Levels(Stages):
    """The stages of a sum: inside the node, across nodes, inside the node again."""

    def __init__(self, inside: Communicator, across: Communicator) -> None:
        super().__init__()
        self.inside, self.across = inside, across
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._blocks = BlockStages(self.wait)

    def sum(self, tensor: torch.Tensor, coding: Coding | None) -> None:
        """A part crosses the nodes while the next one is exchanged inside."""
        if coding is not None and coding.in_blocks:
            self._in_parts(tensor, coding.how.block, lambda part, index: self._in_blocks(part, index, coding))
            return
        dtype = None if coding is None else coding.dtype
        if dtype is None or coding is None or coding.how.where is CodecScope.ACROSS_NODES:
            self._in_parts(tensor, 1, lambda part, _index: self._plain(part, dtype or part.dtype))
            return
        short = tensor.to(dtype)
        self._in_parts(short, 1, lambda part, _index: self._plain(part, dtype))
        tensor.copy_(short)

    def _in_parts(
        self, tensor: torch.Tensor, block: int, begin: Callable[[torch.Tensor, int], Callable[[], None]]
    ) -> None:
        """`begin` each part, and end it when the next one has begun."""
        end_last: Callable[[], None] | None = None
        for index, (start, end) in enumerate(block_bounds(len(tensor), -(-tensor.nbytes // PART_BYTES), block)):
            if start == end:
                continue
            end_this = begin(tensor[start:end], index)
            if end_last is not None:
                end_last()
            end_last = end_this
        assert end_last is not None, "there is at least one part"
        end_last()

    def _plain(self, part: torch.Tensor, dtype: torch.dtype) -> Callable[[], None]:
        """Three stages, of which the second, and what it hands out, may have a shorter dtype than the part."""
        bounds = shard_bounds(len(part), self.inside.size)
        own = self._added_inside(part, bounds)
        crossing_sum = own.to(dtype)
        crossing = self.across.all_reduce(crossing_sum)

        def end() -> None:
            self.wait(crossing)
            if dtype is part.dtype:
                self._hand_out(part, crossing_sum, bounds)
            else:
                short = torch.empty_like(part, dtype=dtype)
                self._hand_out(short, crossing_sum, bounds)
                part.copy_(short)

        return end

    def _added_inside(self, part: torch.Tensor, bounds: Bounds) -> torch.Tensor:
        """This worker's shard of a part, summed over the node."""
        start, end = bounds[self.inside.place]
        own = part[start:end]
        rows = self._rows(own)
        work = self.inside.all_to_all(rows.view(-1), part, [len(own)] * self.inside.size, lengths_of(bounds))
        self.wait(work)
        torch.add(rows[0], rows[1], out=own)
        for row in rows[2:]:
            own.add_(row)
        return own

    def _hand_out(self, part: torch.Tensor, own: torch.Tensor, bounds: Bounds) -> None:
        """Give this worker's shard to its node, and take the others'."""
        rows = self._rows(own)
        rows.copy_(own.expand_as(rows))
        self.wait(self.inside.all_to_all(part, rows.view(-1), lengths_of(bounds), [len(own)] * self.inside.size))

    def _in_blocks(self, part: torch.Tensor, index: int, coding: Coding) -> Callable[[], None]:
        """Codes cross the nodes, and are handed out inside as they came: nobody rounds once more."""
        stages, how, inside, across = self._blocks, coding.how, self.inside, self.across
        bounds = block_bounds(len(part), inside.size, how.block)
        # At most two parts are under way at the same time.
        within, crosses = (Stage(f"{where} {index}", f"{where} {index % 2}") for where in ("inside", "across"))
        if coding.how.where is CodecScope.ACROSS_NODES:
            own = self._added_inside(part, bounds)
        else:
            own = stages.total(stages.scatter(inside, part, coding, within), how)
        crossing = stages.scatter(across, own, coding, crosses)

        def end() -> None:
            finer = [block_bounds(end - start, across.size, how.block) for start, end in bounds]
            size = max(code_size(shard, how) for shard in finer)
            code = stages.own_code(stages.total(crossing, how), size, coding, crosses)
            row = stages.gather(across, code, crosses)  # [nodes, bytes]
            codes = stages.gather(inside, row.view(-1), within).view(inside.size, across.size, size)
            for (start, stop), shard, mine in zip(bounds, finer, codes, strict=True):
                stages.decode(shard, list(mine), part[start:stop], how)

        return end

    def _rows(self, own: torch.Tensor) -> torch.Tensor:
        """Room for one shard of each member of the node; used again by every stage."""
        needed = self.inside.size * own.nbytes
        if self._scratch.nbytes < needed:
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        return self._scratch[:needed].view(own.dtype).view(self.inside.size, len(own))


def lengths_of(bounds: Bounds) -> list[int]:
    """The length of each part."""
    return [end - start for start, end in bounds]
