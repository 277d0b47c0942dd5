"""Train a small network on scikit-learn's digits: an ordinary single-process PyTorch script plus three lines (marked).

partreduce run --workers 8 examples/train_digits.py schedule.json
torchrun --nproc-per-node 8 examples/train_digits.py schedule.json
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import partreduce  # line 1

torch.manual_seed(0)
digits = load_digits()
order = torch.randperm(len(digits.target))
images = (torch.tensor(digits.data, dtype=torch.float32) / 16)[order]
labels = torch.tensor(digits.target)[order]
test_images, test_labels = images[1500:], labels[1500:]
images, labels = partreduce.shard_dataset(images[:1500]), partreduce.shard_dataset(labels[:1500])  # line 2

model = nn.Sequential(
    nn.Unflatten(1, (1, 8, 8)),
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 16, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
optimizer = partreduce.DistributedOptimizer(optimizer, model, sys.argv[1], timeout=60)  # line 3
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=150)
optimizer.register_stateful(scheduler)  # only `run --max-restarts` needs it: a worker that comes back continues with it

generator = torch.Generator().manual_seed(optimizer.rank)
for _ in optimizer.batches(range(150)):  # all end at the same round
    batch = torch.randint(len(images), (32,), generator=generator)
    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()

optimizer.finish()  # from here on every worker holds the mean of all models
with torch.no_grad():
    accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
if optimizer.rank == 0:
    print(f"last loss {loss.item():.3f}, test accuracy of the mean model {accuracy:.3f}")
