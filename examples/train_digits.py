"""A small CNN on scikit-learn's digits: a single-process PyTorch script plus the lines that end in `# changed`.

    $ partreduce design 2x4 --build allreduce -o schedule.json
    $ partreduce run --schedule schedule.json examples/train_digits.py schedule.json
    [0] last loss 0.215, test accuracy of the mean model 0.923

ddp_after.py is a longer script, with epochs, checkpoints and evaluation.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import partreduce  # changed

torch.manual_seed(0)
digits = load_digits()
order = torch.randperm(len(digits.target))
images = (torch.tensor(digits.data, dtype=torch.float32) / 16)[order]
labels = torch.tensor(digits.target)[order]
test_images, test_labels = images[1500:], labels[1500:]
images, labels = partreduce.shard_dataset(images[:1500]), partreduce.shard_dataset(labels[:1500])  # changed

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
optimizer = partreduce.DistributedOptimizer(optimizer, model, sys.argv[1], timeout=60)  # changed
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=150)
optimizer.register_stateful(scheduler)  # only for `run --max-restarts`: a worker that joins copies it

generator = torch.Generator().manual_seed(optimizer.rank)
for _ in optimizer.batches(range(150)):  # changed: all end at the same round
    batch = torch.randint(len(images), (32,), generator=generator)
    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()

optimizer.finish()  # changed: from here on every worker holds the mean of all models
with torch.no_grad():
    accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
if optimizer.rank == 0:
    print(f"last loss {loss.item():.3f}, test accuracy of the mean model {accuracy:.3f}")
