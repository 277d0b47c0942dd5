"""A model sharded by fully_shard (FSDP2), with replicas that average by a schedule.

    $ partreduce design 1x2 --build "local-sgd(every=4)" -o schedule.json
    $ torchrun --nproc-per-node 4 examples/train_sharded.py schedule.json
    loss of the mean model 0.002

Four ranks are two replicas of two shards each; a replica is a worker of the schedule.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import partreduce

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp_replicate", "dp_shard"))

torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(33, 33), nn.GELU()) for _ in range(4)], nn.Linear(33, 1))
for block in model:
    fully_shard(block, mesh=mesh["dp_shard"])  # where HSDP has mesh=mesh
fully_shard(model, mesh=mesh["dp_shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
optimizer = partreduce.DistributedOptimizer(optimizer, model, sys.argv[1], mesh=mesh["dp_replicate"])


def loss_of(batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch), batch[:, :3].sum(1, keepdim=True).tanh())


generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(120):
    batch = torch.randn(32, 33, generator=generator)
    loss = loss_of(batch)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

optimizer.finish()  # from here on every replica holds the mean of all
batch = torch.randn(2000, 33, generator=torch.Generator().manual_seed(99))
with torch.no_grad():
    loss = loss_of(batch)
if dist.get_rank() == 0:
    print(f"loss of the mean model {loss.item():.3f}")
dist.destroy_process_group()
