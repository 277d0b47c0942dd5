"""A CNN on 32×32 color images over a slow link: train under any schedule, and see what it costs on your network.

    $ partreduce design 2x2 --build allreduce -o allreduce.json
    $ partreduce run --schedule allreduce.json examples/cnn_slow_link.py allreduce.json
    [0] All-Reduce of gradients in every step
    [0] test accuracy of the mean model 0.673 after 138 steps
    [0] predicted: 248 ms per step, 439 kB out of a node
    $ partreduce design 2x2 --build "node-then-all(node_rounds=15)" -o schedule.json
    $ partreduce run --schedule schedule.json examples/cnn_slow_link.py schedule.json
    [0] average inside each node every step, all workers every 16 steps (hierarchical local SGD)
    [0] test accuracy of the mean model 0.731 after 138 steps
    [0] predicted: 165 ms per step, 27 kB out of a node

Real workers on this machine train the model; times per step are predicted for a link of --link bytes per second
between the nodes. The images are scikit-learn's digits in random colors on a noisy background, because CIFAR-10 would
have to be downloaded.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import partreduce

parser = argparse.ArgumentParser()
parser.add_argument("schedule")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--link", type=float, default=5e6, help="bytes per second between nodes; 5e6 is 40 Mbit/s")
parser.add_argument("--compute", type=float, default=0.16, help="seconds of computing per step")
args = parser.parse_args()


class Residual(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(before, after, 1, stride=2, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def make_color_images(images, generator):
    """Images of shape (count, 8, 8) as (count, 3, 32, 32)."""
    large = nn.functional.interpolate(images.unsqueeze(1), size=32, mode="bilinear")
    colors = torch.rand(len(images), 2, 3, 1, 1, generator=generator)
    noise = 0.2 * torch.randn(len(images), 3, 32, 32, generator=generator)
    return large * colors[:, 0] + (1 - large) * 0.5 * colors[:, 1] + noise


torch.manual_seed(0)
digits = load_digits()
images = make_color_images(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.Generator().manual_seed(1))
labels = torch.tensor(digits.target)
part = partreduce.shard_dataset(TensorDataset(images[:1500], labels[:1500]))
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(),
    Residual(16, 32), Residual(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
optimizer = partreduce.DistributedOptimizer(optimizer, model, args.schedule)
loader = DataLoader(part, batch_size=16, shuffle=True, drop_last=True)

for _epoch in range(args.epochs):
    for x, y in optimizer.batches(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

optimizer.finish()  # every worker now holds the mean of all models
if optimizer.rank == 0:
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
    schedule = partreduce.load_schedule(args.schedule)
    link = partreduce.Link(seconds_per_byte=1 / args.link)
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    cost = partreduce.predict(schedule, partreduce.Hardware(nic=link, model_bytes=size, compute=args.compute))
    print(partreduce.describe(schedule))
    print(f"test accuracy of the mean model {accuracy:.3f} after {optimizer.steps} steps")
    print(f"predicted: {1e3 * cost.step_seconds:.0f} ms per step, {cost.nic_bytes / 1e3:.0f} kB out of a node")
