"""One worker is 5 times slower: wait for it in every step, or let it take one step where the others take five.

    $ partreduce design 1x4 --build allreduce -o allreduce.json
    $ partreduce run --schedule allreduce.json examples/straggler_demo.py allreduce.json
    [0] worker 0: 115 steps in 26.3 s, accuracy of the mean model 0.865
    [3] worker 3: 115 steps in 26.3 s, accuracy of the mean model 0.865
    $ partreduce design 1x4 --set slow=3:5x --set compute=40ms --model-bytes 41kB \\
        --select 'paced allreduce' -o schedule.json
    $ partreduce run --schedule schedule.json examples/straggler_demo.py schedule.json
    [0] worker 0: 100 steps in 5.2 s, accuracy of the mean model 0.852
    [3] worker 3: 20 steps in 5.2 s, accuracy of the mean model 0.852

Sleep stands for computing, so the workers do not compete for cores.
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import partreduce

parser = argparse.ArgumentParser()
parser.add_argument("schedule")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--compute", type=float, default=0.04, help="seconds of a step")
parser.add_argument("--slow", type=float, default=5, help="how many times as long worker 3 takes")
args = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
part = partreduce.shard_dataset(TensorDataset(images[:1500], labels[:1500]))
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
optimizer = partreduce.DistributedOptimizer(optimizer, model, args.schedule)
loader = DataLoader(part, batch_size=16, shuffle=True, drop_last=True)
seconds = args.compute * (args.slow if optimizer.rank == 3 else 1)

began = time.perf_counter()
for _epoch in range(args.epochs):
    for x, y in optimizer.batches(loader):  # fewer batches on the slow worker
        ends = time.perf_counter() + seconds
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        time.sleep(max(0.0, ends - time.perf_counter()))
        optimizer.step()
taken = time.perf_counter() - began

optimizer.finish()  # every worker now holds the mean of all models
with torch.no_grad():
    accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
if optimizer.rank in {0, 3}:
    print(
        f"worker {optimizer.rank}: {optimizer.steps} steps in {taken:.1f} s, accuracy of the mean model {accuracy:.3f}"
    )
