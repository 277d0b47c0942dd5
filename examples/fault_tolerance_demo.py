"""A worker is killed during the run: the others continue, and its replacement joins them.

    $ partreduce design 1x4 --build allreduce -o schedule.json
    $ partreduce run --schedule schedule.json --tolerate-failures 1 --max-restarts 1 examples/fault_tolerance_demo.py \\
          schedule.json
    partreduce: worker 2 was killed by signal 9 (SIGKILL) while it trained; ...
    partreduce: without worker 2 the other 3 continue together from round 20; ...
    partreduce: worker 2 joined in round 116 with the state of worker 0, and all 4 continue together; ...
    [2] worker 2: step 300, test accuracy 0.892, replaced: True
    [0] worker 0: step 300, test accuracy 0.892, replaced: False
"""

import argparse
import os
import signal
import time

import torch
from sklearn.datasets import load_digits
from torch import nn

import partreduce

parser = argparse.ArgumentParser()
parser.add_argument("schedule")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--kill", type=int, default=20, help="the step in which worker 2 kills itself")
args = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
optimizer = partreduce.DistributedOptimizer(optimizer, model, args.schedule, timeout=60)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
optimizer.register_stateful(scheduler)  # a worker that joins copies it from another one
part = partreduce.shard_dataset(torch.arange(1500), order="strided")
is_replacement = "PARTREDUCE_RESTARTED" in os.environ

for _ in optimizer.batches(range(args.steps)):  # a worker that joins is given only the steps that are left
    if optimizer.rank == 2 and optimizer.steps == args.kill and not is_replacement:
        os.kill(os.getpid(), signal.SIGKILL)
    batch = part[torch.randint(len(part), (16,))]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()
    scheduler.step()
    time.sleep(0.02)  # stands for a larger model

optimizer.finish()  # every worker now holds the mean of all models
with torch.no_grad():
    accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
if optimizer.rank in {0, 2}:
    print(f"worker {optimizer.rank}: step {optimizer.steps}, test accuracy {accuracy:.3f}, replaced: {is_replacement}")
