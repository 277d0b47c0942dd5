"""Average each rank's local shards of a model that is sharded over the ranks of a replica (HSDP).

A worker of the schedule is then a replica. Each rank runs the schedule with the ranks of the other replicas that hold
the same shards; a `ShardSlot` gives access to a DTensor's local values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from partreduce.runtime.averaging.bucket import Slot
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor, without importing torch's DTensor module."""
    return hasattr(tensor, "device_mesh")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's local shard of a DTensor without a copy; return any other tensor unchanged."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)  # `to_local()` gives a view that autograd tracks
    return part


def like(parameter: Any, values: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - a parameter, or one that is sharded
    """Wrap local values as a DTensor with the sharding of `parameter`; return them unchanged if it is not sharded."""
    if not is_sharded(parameter):
        return values
    sharded: torch.Tensor = type(parameter.data).from_local(
        values,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return sharded


@dataclass(frozen=True, slots=True)
class ShardSlot(Slot):
    """Position of this rank's shard of a parameter in a bucket's flat array; `held` is FSDP's internal `FSDPParam`."""

    held: Any = None

    @property
    def values(self) -> torch.Tensor:
        return local(self.parameter)

    @property
    def room(self) -> int:
        """Number of elements that the shard occupies, with the padding that gives FSDP's shards equal lengths."""
        return self.values.numel() if self.held is None else int(self.held.padded_sharded_param_size.numel())

    @property
    def gradient(self) -> torch.Tensor | None:
        gradient = self.parameter.grad
        return None if gradient is None else local(gradient)

    def put_gradient(self, values: torch.Tensor | None) -> None:
        self.parameter.grad = None if values is None else like(self.parameter, values)

    def put(self, window: torch.Tensor) -> None:
        parameter: Any = self.parameter
        parameter._local_tensor = window  # noqa: SLF001 - as FSDP itself does it
        if self.held is not None:
            self.held._sharded_param_data = window.as_strided((self.room,), (1,))  # noqa: SLF001 - as above: it gathers from there

    def returns(self, flat: torch.Tensor) -> bool:
        """Move a shard that FSDP padded (first forward, loads) back into the flat array; return whether it could."""
        values = self.values
        if self.held is None or values.dtype != flat.dtype or values.device != flat.device:
            return False
        with torch.no_grad():
            self.put(self.window(flat).copy_(values))
        return True


class Sharders:
    """Access to a model's FSDP2 modules: reshards them, creates slots of shards; InputError for CPU offload."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules: list[Any] = []
        self._held: dict[torch.Tensor, Any] = {}
        self.shards = any(map(is_sharded, model.parameters()))  # whether any parameter is sharded
        if self.shards:
            from torch.distributed.fsdp import FSDPModule  # slow to import

            self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self.reshard()  # a forward pass may have left parameters gathered
        for module in self._modules:
            state = module._get_fsdp_state()  # noqa: SLF001 - torch has no public way to its flat shards
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # noqa: SLF001 - before torch 2.12
            self._held |= {one.sharded_param: one for group in groups if group is not None for one in group.fsdp_params}
        if any(one.offload_to_cpu for one in self._held.values()):
            raise InputError(
                "model: fully_shard was given an offload_policy, which keeps shards where it needs them; leave it out"
            )

    def reshard(self) -> None:
        """Reshard parameters that are still gathered after a forward pass without a backward pass."""
        for module in self._modules:
            module.reshard()

    def slot(self, slot: Slot) -> Slot:
        if not is_sharded(slot.parameter):
            return slot
        held = self._held.get(slot.parameter)
        return ShardSlot(slot.names, slot.parameter, slot.owners, slot.start, slot.stride, held=held)


def replica_of(model: torch.nn.Module, mesh: DeviceMesh | None, schedule: Schedule) -> list[int]:
    """Return the ranks over which this replica's model is sharded, this rank first; empty without `mesh`.

    `mesh` is the dimension of the replicas. Raises InputError if it does not fit the model's sharding, or if the
    schedule cannot run with sharded models.
    """
    shards: dict[str, Any] = {name: one for name, one in model.named_parameters() if is_sharded(one)}
    if mesh is None and shards:
        name, parameter = next(iter(shards.items()))
        over = f"DTensor over {_mesh_dims(parameter)}"
        raise InputError(
            f"model: parameter {name!r} is sharded ({over}); say along which dimension of "
            'the mesh the replicas lie, whose shards are averaged: DistributedOptimizer(..., mesh=mesh["dp_replicate"])'
        )
    if mesh is None:
        return []
    if not shards and mesh.size() < dist.get_world_size():
        raise InputError(
            f"mesh: has {mesh.size()} of {dist.get_world_size()} ranks, and no parameter of the model is sharded over "
            'the others; fully_shard(model, mesh=mesh["dp_shard"]) first, or leave mesh= out'
        )
    own, replicas, together = dist.get_rank(), set(mesh.mesh.tolist()), set[int]()
    for name, parameter in shards.items():
        ranks = set(parameter.device_mesh.mesh.flatten().tolist())
        if others := sorted((replicas & ranks) - {own}):
            raise InputError(
                f"model: parameter {name!r} lies on rank {others[0]}, too (over {_mesh_dims(parameter)}), which is of "
                "another replica by mesh=; give mesh= the replicas' dimension, and fully_shard the other one alone, "
                'mesh=mesh["dp_shard"], or torch averages over replicas as well'
            )
        if type(local(parameter)) is not torch.Tensor:
            raise InputError(
                f"model: the shards of parameter {name!r} are of type {type(local(parameter)).__name__}; only plain "
                "tensors are averaged, so shard it before any other library converts it"
            )
        together |= ranks
    if schedule.strategy.protocol:
        raise InputError(
            f"schedule {schedule.name!r}: its workers agree while the job runs ({schedule.strategy.protocol}), and the "
            "ranks of a sharded replica would agree apart; take fixed rounds: allreduce, static or neighbor, in "
            "synchronous, late or as a pipeline"
        )
    if schedule.strategy.payload.apart:
        raise InputError(
            f"schedule {schedule.name!r}: payload.tables spreads tables over workers, and fully_shard has spread the "
            "model already; leave one of the two out"
        )
    return [own, *sorted(together - {own})]


def replica_group(model: torch.nn.Module) -> dist.ProcessGroup:
    """Return the process group of the ranks over which a model is sharded. InputError for several mesh dimensions."""
    sharded: list[Any] = [parameter for parameter in model.parameters() if is_sharded(parameter)]
    mesh, *others = {parameter.device_mesh for parameter in sharded}
    if others or mesh.ndim > 1:
        raise InputError(
            "model: lies over several dimensions of a mesh, and a checkpoint is written over one; save the model by "
            "torch.distributed.checkpoint inside mean_model()"
        )
    group: dist.ProcessGroup = mesh.get_group()
    return group


def _mesh_dims(parameter: Any) -> str:  # noqa: ANN401 - a DTensor; only callers that have one import its module
    mesh: DeviceMesh = parameter.device_mesh
    return " × ".join(mesh.mesh_dim_names or ()) or f"a mesh of {mesh.size()}"
