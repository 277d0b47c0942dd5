"""Define the job that a pilot trains, the schedules that it compares, and its results; without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedAveraging, GroupPhases, StaticGroups, Synchronous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from partreduce.runtime.optimizer import DistributedOptimizer

MIN_STEPS = 24
ROUNDS = 3  # every probe must have at least this many rounds in a run

WORKER_STEPS = (2, 4, 8, 16)
LARGEST_ON_SORTED_DATA = 8  # a short run does not show the cost of more steps per round on such data


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotJob:
    """A new training job of one worker, which a pilot trains for a few dozen steps under several schedules.

    The function that builds it takes a seed and derives all random numbers from it, so that two calls with one seed
    have equal parameters and equal batches in the same order. Batches may (and usually do) differ between workers.

    Args:
        model: the module to train; load a checkpoint to measure a later phase of training.
        optimizer: the plain torch optimizer of its parameters, not wrapped.
        batches: this worker's batches, such as a DataLoader; iterated again when it ends. The first few are used for
            evaluation.
        loss: function that returns the loss of a batch.
        step: function of (optimizer, batch) for one training step with the wrapped optimizer, if it is more than
            `zero_grad`, `backward`, `step`.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterable[Any]
    loss: Callable[[Any], torch.Tensor]
    step: Callable[[DistributedOptimizer, Any], object] | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses of the mean model in one pilot run, on fixed evaluation batches, at step 0 and every `every` steps."""

    schedule: Schedule
    seed: int
    every: int
    losses: tuple[float, ...]

    @property
    def is_reference(self) -> bool:
        """Whether this run used the schedule that all others are compared with: synchronous all-reduce in each step."""
        return self.schedule.strategy.averages_gradients and not self.schedule.strategy.sync.lag

    @property
    def is_stable(self) -> bool:
        return all(map(isfinite, self.losses))


def reference(cluster: Cluster) -> Schedule:
    """Return the schedule with which the others are compared: all-reduce in each step."""
    return Schedule("allreduce", cluster.shape(), AllReduce())


def probes(cluster: Cluster, *, steps: int, data: str) -> list[Schedule]:
    """Return the schedules that a pilot compares: all-reduce every k steps, ring pairs, node-then-all, and delayed.

    Their consensus distances differ by a factor of ten, to measure what consensus distance costs. Some average a round
    later, to measure what delay costs. `steps` is the length of a run; `data` says how samples are distributed (see
    `run_pilot`). Raises InputError if the run is too short, or for data per node on one node.
    """
    if data == "per-node" and cluster.num_nodes == 1:
        raise InputError(
            "data: differ per node, and there is one node; start the workers on several, or with --nodes M"
        )
    if steps < MIN_STEPS:
        raise InputError(f"steps: are {steps}; a pilot has at least {MIN_STEPS}")
    least, most = (4, 16) if data == "shuffled" else (2, LARGEST_ON_SORTED_DATA)
    worker_steps = [
        steps_per_round
        for steps_per_round in WORKER_STEPS
        if least <= steps_per_round <= most and steps_per_round * ROUNDS <= steps
    ]
    shape = cluster.shape()
    found = [
        Schedule(f"allreduce-every-{steps_per_round}", shape, AllReduce(steps_per_round=steps_per_round))
        for steps_per_round in worker_steps
    ]
    if cluster.num_workers > 2:  # two workers have no other pair
        found.append(ring_pairs(cluster, worker_steps[0]))
    if cluster.num_nodes > 1 and cluster.num_workers > cluster.num_nodes:
        found.append(node_then_all(cluster))
    found.append(Schedule("allreduce-late", shape, AllReduce(sync=DelayedAveraging())))
    found += [
        Schedule(
            f"allreduce-every-{steps_per_round}-late",
            shape,
            AllReduce(steps_per_round=steps_per_round, sync=DelayedAveraging()),
        )
        for steps_per_round in worker_steps[:2]
    ]
    return found


def node_then_all(cluster: Cluster) -> Schedule:
    """Return a schedule with three rounds inside nodes, then one over all workers."""
    n = cluster.num_workers
    nodes = Phase.from_groups(n, [own for node in range(cluster.num_nodes) if len(own := cluster.workers_of(node)) > 1])
    phases = GroupPhases((nodes, nodes, nodes, Phase.from_groups(n, [range(n)])))
    return Schedule("node-then-all", cluster.shape(), StaticGroups(phases=phases))


def ring_pairs(cluster: Cluster, steps_per_round: int, *, late: bool = False) -> Schedule:
    """Return a schedule in which neighbors on the ring of ranks average in pairs, with `late` a round later."""
    n = cluster.num_workers
    first = [[i, i + 1] for i in range(0, n - 1, 2)]
    second = [[i, (i + 1) % n] for i in range(1, n - n % 2, 2)]
    phases = GroupPhases((Phase.from_groups(n, first), Phase.from_groups(n, second)))
    name = f"ring-pairs-every-{steps_per_round}" + ("-late" if late else "")
    return Schedule(
        name,
        cluster.shape(),
        StaticGroups(
            phases=phases, steps_per_round=steps_per_round, sync=DelayedAveraging() if late else Synchronous()
        ),
    )
