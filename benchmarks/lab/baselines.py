"""What the lab compares with: torch's own ways of synchronizing, as their users would write them."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.lab.job import Job


def joined(job: Job) -> Any:  # noqa: ANN401 - a process group
    """Join the run as a user of torch does; this worker's node's group."""
    _join(job)
    return _group_of_node(job)


def _join(job: Job) -> None:
    dist.init_process_group("gloo", timeout=_patience(job))


def _patience(job: Job) -> timedelta:
    return timedelta(seconds=job.limit + 20)


def _group_of_node(job: Job) -> Any:  # noqa: ANN401 - a process group
    """This worker's node's; all workers make all nodes' together."""
    size, nodes = job.workers_per_node, range(job.num_nodes)
    made = [dist.new_group(list(range(n * size, (n + 1) * size)), timeout=_patience(job)) for n in nodes]
    return made[dist.get_rank() // size]


class Alone:
    """Nobody synchronizes: what the lab's own machinery leaves of the compute-only limit. The others step like it."""

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        self.model, self._optimizer = model, optimizer

    def step(self) -> None:
        self._optimizer.step()

    def close(self) -> None:
        """Torch's own clean-up can wait for peers; the process ends now anyway."""


class Ddp(Alone):
    """DistributedDataParallel with its default buckets (1 MB, then 25 MB), which it sends during backward.

    The `hook` of the options writes gradients in float16, or as PowerSGD's products of that `rank`.
    """

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        _join(job)
        caps = {"bucket_cap_mb": job.options["bucket"]} if "bucket" in job.options else {}
        # Backward averages the gradients.
        super().__init__(
            job, torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, **caps), optimizer
        )
        model_of_all: Any = self.model
        match job.options.get("hook"):
            case "float16":
                model_of_all.register_comm_hook(None, default_hooks.fp16_compress_hook)
            case "PowerSGD":
                state = powerSGD_hook.PowerSGDState(
                    None, matrix_approximation_rank=job.options["rank"], start_powerSGD_iter=2
                )
                model_of_all.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


class Hierarchical(Alone):
    """All-reduce of the gradients in two levels: scatter sums in the node, reduce shards across nodes, gather."""

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        _join(job)
        super().__init__(job, model, optimizer)
        rank, size = dist.get_rank(), job.workers_per_node
        rows = [dist.new_group(list(range(r, job.num_workers, size)), timeout=_patience(job)) for r in range(size)]
        self._node, self._row, self._place = _group_of_node(job), rows[rank % size], rank % size
        length = sum(p.numel() for p in model.parameters())
        self._flat = torch.zeros(-(-length // size) * size)
        self._shards = list(self._flat.chunk(size))
        self._mine = torch.zeros_like(self._shards[0])
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)

    def step(self) -> None:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        start = 0
        for parameter in parameters:
            self._flat[start : start + parameter.numel()] = parameter.grad.flatten()  # type: ignore[union-attr]
            start += parameter.numel()
        self._flat.div_(dist.get_world_size())
        dist.reduce_scatter(self._mine, self._shards, group=self._node)
        dist.all_reduce(self._mine, group=self._row)
        dist.all_gather(self._shards, self._mine, group=self._node)
        start = 0
        for parameter in parameters:
            parameter.grad.copy_(self._flat[start : start + parameter.numel()].view_as(parameter))  # type: ignore[union-attr]
            start += parameter.numel()
        self._optimizer.step()


class TorchAverager(Alone):
    """PyTorch's own HierarchicalModelAverager: node averages every `inner` steps, a global one every `outer`."""

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from collections import OrderedDict

        from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager

        _join(job)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        super().__init__(job, model, optimizer)
        inner, outer = job.options["inner"], job.options["outer"]
        periods = OrderedDict([(inner, job.workers_per_node), (outer, job.num_workers)])
        self._averager: Any = HierarchicalModelAverager(period_group_size_dict=periods)

    def step(self) -> None:
        """Step alone, then average as the averager counts."""
        self._optimizer.step()
        self._averager.average_parameters(self.model.parameters())


class PostLocal(Alone):
    """PyTorch's own post-local SGD: gradients are averaged in the node in each step, models by all in every `outer`."""

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        _join(job)
        whole: Any = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        state = post_localSGD_hook.PostLocalSGDState(None, _group_of_node(job), start_localSGD_iter=1)
        whole.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=job.options["outer"], warmup_steps=0)
        super().__init__(job, whole, PostLocalSGDOptimizer(optimizer, averager))


KINDS: dict[str, type[Alone]] = {
    "alone": Alone,
    "ddp": Ddp,
    "hierarchical": Hierarchical,
    "torch-averager": TorchAverager,
    "post-local": PostLocal,
}


def use_environment(job: Job, node: int) -> int:
    """Turn the launcher's place on its node into the place in the run; returns the rank."""
    rank = job.first_of(node) + int(os.environ["LOCAL_RANK"])
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(job.num_workers),
        GROUP_RANK=str(node),
        GROUP_WORLD_SIZE=str(job.num_nodes),
        MASTER_ADDR=job.address,
        MASTER_PORT=str(job.port),
        GLOO_SOCKET_IFNAME="eth0",
        **job.environment,
    )
    return rank
