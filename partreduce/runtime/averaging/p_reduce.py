"""Average tensors over a group of workers: the P-Reduce primitive of Prague (ASPLOS'20)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from fractions import Fraction
from math import isfinite
from numbers import Integral, Real

import torch

from partreduce.runtime.arguments import checked_timeout
from partreduce.runtime.averaging.bucket import Bucket, commit_mean
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.recorder import Recorder
from partreduce.runtime.torch_defaults import in_default_modes
from partreduce.runtime.transport.rendezvous import default_world, is_alone
from partreduce.runtime.transport.worlds import World
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group

SCRATCH_ARRAYS = 4


@check_arguments
def p_reduce(
    tensors: torch.Tensor | Sequence[torch.Tensor],
    group: Group | Iterable[int],
    relaxation: float | Fraction | None = None,
    *,
    timeout: float = 300.0,
    world: World | None = None,
) -> None:
    """Average tensors over a group of workers, in place: x ← x + relaxation · (mean − x). All members call it.

    Groups may differ from call to call and overlap over time. All workers must call their groups in one common order,
    such as a schedule's. The members connect at the first use of a group. With k members each sends 2(k−1)/k of the
    tensors' bytes. In a script without a launcher the call does nothing. On CUDA it waits for the device.

    Args:
        tensors: one real floating-point tensor or several; shapes and dtypes equal on all members.
        group: ranks, this worker's among them.
        relaxation: 1 is the plain mean; models approach each other only for 0 < relaxation < 2. By default the group's
            own factor, or 1.
        timeout: seconds to wait for the members.
        world: connection to the other workers; by default from the launcher's environment or the process group.

    Raises:
        InputError: this worker is no member or the only one, the tensors cannot be averaged, or a launcher's variables
            are incomplete.
        PeerFailedError: a member is gone, late or runs another operation; the tensors are unchanged.
    """
    reducer = queue_p_reduce(tensors, group, relaxation, timeout=timeout, world=world)
    if reducer is not None:
        reducer.flush()


@in_default_modes
def queue_p_reduce(
    tensors: torch.Tensor | Sequence[torch.Tensor],
    group: Group | Iterable[int],
    relaxation: float | Fraction | None = None,
    *,
    timeout: float = 300.0,
    world: World | None = None,
) -> Reducer | None:
    """Start a P-Reduce like `p_reduce`, but do not wait on CUDA; a failure is raised by a later call or by `flush`.

    Returns the reducer, which has `flush`, or None in a script without a launcher. After a failure the tensors are
    unchanged.
    """
    all_tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    _check_tensors(all_tensors)
    chosen = _checked_group(group)
    factor = _checked_relaxation(chosen.relaxation if relaxation is None else relaxation)
    timeout = checked_timeout(timeout)
    if is_alone(world):
        return None
    if world is None:
        world = default_world(all_tensors[0].device, timedelta(seconds=timeout), lambda _store, _rank, _size: None)
    if world.rank not in chosen.members:
        raise InputError(f"p_reduce: worker {world.rank} is not in group {chosen}; only members call it")
    if len(chosen.members) < 2 or chosen.members[0] < 0 or chosen.members[-1] >= world.size:
        raise InputError(f"p_reduce: group {chosen}: a group has at least 2 ranks of 0..{world.size - 1}")
    reducer: _PReducer | None = world.p_reducer
    if reducer is None:
        reducer = world.p_reducer = _PReducer(world)
    return reducer.run(all_tensors, chosen, factor, timeout)


class _PReducer:
    """State of `p_reduce` for one world: counts the calls per group and reuses a few scratch arrays."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._recorder = Recorder(world.rank)
        self._heartbeat = Heartbeat(world.store, world.rank, "p_reduce", beats=False)
        self._calls: dict[tuple[int, ...], int] = {}
        self._buckets: OrderedDict[tuple[torch.device, torch.dtype, int], Bucket] = OrderedDict()
        # One reducer for all calls, since it tracks the operations that the device has not finished.
        self._reducer = Reducer(world, [], self._recorder, self._heartbeat, key="p_reduce", timeout=0.0)

    def run(self, tensors: Sequence[torch.Tensor], group: Group, relaxation: float, timeout: float) -> Reducer:
        world, members, reducer = self.world, group.members, self._reducer
        reducer.timeout = reducer.checks.timeout = timeout
        if not world.has(members):
            world.create(members)
        call = self._calls[members] = self._calls.get(members, 0) + 1
        kinds = dict.fromkeys((tensor.device, tensor.dtype) for tensor in tensors)
        reducer.buckets = [self._bucket(kind, [t for t in tensors if (t.device, t.dtype) == kind]) for kind in kinds]
        layout = [(tuple(t.shape), str(t.dtype)) for t in tensors]
        reducer.agree("P-Reduce header", call, group, relaxation, layout, deferred=True)
        reduction = reducer.begin("P-Reduce", call, call, group)
        reducer.wait(reduction)

        def commit(_index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
            commit_mean(bucket, sums, relaxation, ok)
            _spread(bucket.flat, [t for t in tensors if (t.device, t.dtype) == (bucket.device, bucket.dtype)])

        reducer.commit(reduction, commit)
        return reducer

    def _bucket(self, kind: tuple[torch.device, torch.dtype], tensors: Sequence[torch.Tensor]) -> Bucket:
        """Return a bucket over one tensor's memory, or over a flat copy of several; `kind` is (device, dtype)."""
        size = sum(tensor.numel() for tensor in tensors)
        key = (*kind, size)
        bucket = self._buckets.pop(key, None) or Bucket(*kind, size, torch.empty(0), length=size)
        self._buckets[key] = bucket
        if len(self._buckets) > SCRATCH_ARRAYS:
            self._buckets.popitem(last=False)
        if len(tensors) == 1 and tensors[0].is_contiguous():
            bucket.flat = tensors[0].detach().view(-1)
        else:
            bucket.flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        return bucket


def _spread(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    start = 0
    for tensor in tensors:
        if tensor.data_ptr() != flat.data_ptr():
            tensor.detach().copy_(flat[start : start + tensor.numel()].view(tensor.shape))
        start += tensor.numel()


def _checked_group(group: Group | Iterable[int]) -> Group:
    """Return `group`, or a Group of the ranks in it. Raises InputError unless they are integers."""
    if isinstance(group, Group):
        return group
    ranks = list(group) if isinstance(group, Iterable) and not isinstance(group, str) else None
    if ranks is None or not all(isinstance(rank, Integral) and not isinstance(rank, bool) for rank in ranks):
        raise InputError(f"p_reduce: group is {str(group)[:80]!r}; it lists the ranks of its members, such as [0, 3]")
    return Group(tuple(sorted({int(rank) for rank in ranks})))


def _checked_relaxation(relaxation: float | Fraction) -> float:
    """Return the factor as a float. Raises InputError unless it is a finite number: NaN would spread to all members."""
    if not isinstance(relaxation, Real) or isinstance(relaxation, bool) or not isfinite(relaxation):
        value = str(relaxation)[:80]
        raise InputError(f"p_reduce: relaxation is {value!r}; it is a finite number, 1 for the plain mean")
    return float(relaxation)


def _check_tensors(tensors: Sequence[torch.Tensor]) -> None:
    if not tensors:
        raise InputError("p_reduce: no tensors; give at least one")
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"p_reduce: tensor {index} is a {type(tensor).__name__}; give tensors")
    if len(devices := {tensor.device for tensor in tensors}) > 1:
        raise InputError(f"p_reduce: tensors lie on {', '.join(sorted(map(str, devices)))}; one call takes one device")
    for index, tensor in enumerate(tensors):
        if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise InputError(f"p_reduce: tensor {index} is expanded, its elements share memory; give a clone() of it")
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            raise InputError(f"p_reduce: tensor {index} is {tensor.dtype}, {tensor.layout}; only dense real floats")
        if tensor.numel() == 0:
            raise InputError(f"p_reduce: tensor {index} is empty; leave it out")
