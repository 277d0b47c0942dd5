"""The form `hierarchical` of a group's sum: shards are added inside each node, then across nodes, then handed back.

It applies to groups with the same number l ≥ 2 of workers on each of m ≥ 2 nodes; any other group keeps its ring. Every
worker sends 2(m−1)/m of its l-th of the tensor out of its node, and 2(l−1)/l of the tensor inside; a ring sends
2(k−1)/k of the tensor over whichever link comes next. A long tensor goes in parts, and while a part is on its way
across the nodes the next one is exchanged inside (the two stages are pipelined, as `topo.timing.cost` takes them).

Each shard is added up by one worker of a node in order of places, and its sum is copied: all members end with the same
bits, and so does every run.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING

import torch

from preduce.runtime.transport.communicators import Communicator
from preduce.runtime.transport.gloo import GlooWorld
from preduce.runtime.transport.through_servers import shard_bounds
from preduce.runtime.transport.waiting import OwnWork, pause_after
from preduce.topo.errors import InputError, MissingFeatureError, UnavailableError
from preduce.topo.strategies.axes import Form

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from preduce.runtime.transport.waiting import RunningWork
    from preduce.runtime.transport.worlds import World
    from preduce.topo.cluster import Cluster

RUNNABLE = (Form.RING, Form.HIERARCHICAL)
SMALL_BYTES = 1024
"""Shorter tensors, such as tags, go around the ring of the whole group: three stages would only add latencies."""
PART_BYTES = 8 * 2**20
"""A longer tensor goes in parts of at most about this size; one array of this size is kept for each group."""


def chosen_form(form: Form | str, device: torch.device) -> Form:
    """The form that the user asks for.

    Raises:
        InputError: no such form.
        MissingFeatureError: gloo has no such operation, or the parameters lie on a GPU.
    """
    try:
        chosen = Form(form)
    except ValueError:
        raise InputError(f"form: {form!r} is not one of {', '.join(one.value for one in RUNNABLE)}") from None
    if chosen not in RUNNABLE:
        raise MissingFeatureError(
            f"form: {chosen.value!r} can be planned but not run, gloo has none; use ring or hierarchical"
        )
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
        self._prefix = f"preduce/hierarchical/{hashlib.sha256(repr(nodes).encode()).hexdigest()[:16]}"

    def parts(self, members: tuple[int, ...]) -> list[tuple[int, ...]]:
        """See GlooWorld."""
        return [members, *(levels_of(members, self.nodes, self.rank) or ())]

    def create(self, members: tuple[int, ...], *, instance: str = "", within: timedelta | None = None) -> Communicator:
        """See GlooWorld."""
        whole = super().create(members, instance=instance, within=within)
        levels = levels_of(members, self.nodes, self.rank)
        if levels is None:
            return whole
        made = []
        try:
            for level, part in zip(("inside", "across"), levels, strict=True):
                name = f"{self._name(members, instance)}/{level}/{','.join(map(str, part))}"
                made.append(self._connect(part, name, within))
        except UnavailableError:
            made.clear()
            self.destroy([members])
            raise
        communicator = self._groups[members] = HierarchicalCommunicator(whole, *made)
        return communicator


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


class StagedWork(OwnWork):
    """A running sum of a group's thread."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._problem: str | None = None

    def end(self, problem: str | None = None) -> None:
        """Say that it has ended, and what went wrong."""
        self._problem = problem
        self._ended.set()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def ended_within(self, seconds: float) -> bool:
        """Wait until it has ended, at most so long."""
        return self._ended.wait(seconds)

    def wait(self) -> None:
        """Wait until it has ended, and raise what a stage raised."""
        self._ended.wait()
        if self._problem is not None:
            raise RuntimeError(self._problem)


class HierarchicalCommunicator(Communicator):
    """A group with the same number of members on each of its nodes.

    Sums run in a thread of the group, in order of calls; only that thread uses the two inner groups. Everything else,
    and short sums, is done by the gloo group of all members.
    """

    def __init__(self, whole: Communicator, inside: Communicator, across: Communicator) -> None:
        (backend,) = whole.close()
        super().__init__(whole.members, whole.members[whole.place], backend, whole.timeout)
        self._stages = _Stages(inside, across)
        self._thread: threading.Thread | None = None

    def all_reduce(self, tensor: torch.Tensor) -> RunningWork:
        """Start a sum over the group, in place.

        Raises:
            UnavailableError: the group was destroyed, or a connection of it is broken.
        """
        if tensor.nbytes < SMALL_BYTES or tensor.numel() < self._stages.inside.size:
            return super().all_reduce(tensor)
        self._live()
        if self._thread is None:
            self._thread = threading.Thread(target=self._stages.run, name="preduce-stages", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._stages.calls.put, None)
        work = StagedWork()
        self._stages.calls.put((tensor.view(-1), work))
        return work

    def close(self) -> list[object]:
        """Let go of what lies below and return it; sums that wait or run end with an error."""
        self._stages.closed = True
        self._stages.calls.put(None)
        return [*super().close(), *self._stages.inside.close(), *self._stages.across.close()]


class _Stages:
    """What the thread of a group does; it knows nothing of the group's communicator, so that this can go.

    After a failure every later sum fails: the members may not be at the same place of the order of operations.
    """

    def __init__(self, inside: Communicator, across: Communicator) -> None:
        self.inside, self.across = inside, across
        self.calls: queue.SimpleQueue[tuple[torch.Tensor, StagedWork] | None] = queue.SimpleQueue()
        self.closed = False
        self._failure: str | None = None
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def run(self) -> None:
        """Carry out sums in order of calls until there are no more."""
        while (call := self.calls.get()) is not None:
            tensor, work = call
            if self._failure is None:
                try:
                    with torch.no_grad():
                        self._sum(tensor)
                except (RuntimeError, UnavailableError) as error:
                    self._failure = str(error) or type(error).__name__
            work.end(self._failure)
            del call, tensor, work

    def _sum(self, tensor: torch.Tensor) -> None:
        """Three stages for each part; a part crosses the nodes while the next one is exchanged inside."""
        under_way: tuple[torch.Tensor, RunningWork] | None = None
        for start, end in shard_bounds(len(tensor), -(-tensor.nbytes // PART_BYTES)):
            part = tensor[start:end]
            crossing = self.across.all_reduce(self._added_inside(part))
            if under_way is not None:
                self._hand_out(*under_way)
            under_way = (part, crossing)
        assert under_way is not None, "there is at least one part"
        self._hand_out(*under_way)

    def _added_inside(self, part: torch.Tensor) -> torch.Tensor:
        """This worker's shard of a part, summed over the node."""
        lengths, own = self._shards(part)
        rows = self._rows(own)
        work = self.inside.all_to_all(rows.view(-1), part, [len(own)] * self.inside.size, lengths)
        self._wait(work)
        torch.add(rows[0], rows[1], out=own)
        for row in rows[2:]:
            own.add_(row)
        return own

    def _hand_out(self, part: torch.Tensor, crossing: RunningWork) -> None:
        """Give this worker's shard to its node, and take the others'."""
        self._wait(crossing)
        lengths, own = self._shards(part)
        rows = self._rows(own)
        rows.copy_(own.expand_as(rows))
        self._wait(self.inside.all_to_all(part, rows.view(-1), lengths, [len(own)] * self.inside.size))

    def _shards(self, part: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        """(the length of each member's shard, this worker's)."""
        bounds = shard_bounds(len(part), self.inside.size)
        start, end = bounds[self.inside.place]
        return [after - before for before, after in bounds], part[start:end]

    def _rows(self, own: torch.Tensor) -> torch.Tensor:
        """Room for one shard of each member of the node; used again by every stage."""
        needed = self.inside.size * own.nbytes
        if self._scratch.nbytes < needed:
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        return self._scratch[:needed].view(own.dtype).view(self.inside.size, len(own))

    def _wait(self, work: RunningWork) -> None:
        """Wait for one stage, without being in the library when the interpreter ends (see `transport.waiting`).

        Raises:
            RuntimeError: the stage failed or timed out, or the group is closed meanwhile.
        """
        start = time.monotonic()
        while not work.is_completed():
            if self.closed:
                raise RuntimeError("the group was destroyed while its sum was running")
            time.sleep(pause_after(time.monotonic() - start))
        work.wait()
