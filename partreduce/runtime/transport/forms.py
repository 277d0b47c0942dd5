"""Algorithms: how the groups of a run add up, as the schedule or the user asks, and the world whose groups do so."""

from __future__ import annotations

import hashlib

import torch

from partreduce.runtime.environment import OVER_GLOO
from partreduce.runtime.transport.nccl import over_gloo
from partreduce.runtime.transport.worlds import GroupTable, World
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, MissingDependencyError
from partreduce.topo.strategies.axes import AllReduceAlgorithm


def chosen_algorithm(algorithm: AllReduceAlgorithm | str, device: torch.device) -> AllReduceAlgorithm:
    """The algorithm that the user asks for.

    Raises:
        InputError: no such algorithm.
        MissingDependencyError: CUDA tensors that go over gloo.
    """
    try:
        chosen = AllReduceAlgorithm(algorithm)
    except ValueError:
        raise InputError(
            f"algorithm: {algorithm!r} is not one of {', '.join(one.value for one in AllReduceAlgorithm)}"
        ) from None
    if chosen is AllReduceAlgorithm.HIERARCHICAL:
        check_stages_over_gloo("algorithm: 'hierarchical'", device, "leave algorithm at ring")
    return chosen


def check_stages_over_gloo(what: str, device: torch.device, instead: str) -> None:
    """Refuse sums of several stages where CUDA tensors go over gloo.

    Raises:
        MissingDependencyError: as said.
    """
    if device.type == "cuda" and over_gloo():
        raise MissingDependencyError(
            f"{what}: adds up in stages, which over gloo are a host thread's, and no CUDA stream waits for that; unset "
            f"{OVER_GLOO}, or {instead}"
        )


def formed(world: World, algorithm: AllReduceAlgorithm, cluster: Cluster) -> World:
    """The world whose groups add up so: the given one for rings, else a second one, made once per cluster."""
    if algorithm is AllReduceAlgorithm.RING:
        return world
    assert isinstance(world, GroupTable), "what makes groups"
    nodes = tuple(cluster.node_of().tolist())
    for other in world.relatives:
        if other.nodes == nodes:
            return other
    digest = hashlib.sha256(repr((world.size, nodes)).encode()).hexdigest()[:16]
    made = world.beside(f"{world.prefix}/hierarchical/{digest}")
    made.nodes, made.relatives = nodes, [world]
    world.relatives.append(made)
    return made
