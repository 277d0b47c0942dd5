"""The script of ddp_before.py with partreduce instead of DistributedDataParallel; changed lines end in `# changed`.

    $ partreduce design 2x2 --build "node-then-all(node_rounds=3)" -o schedule.json
    $ partreduce run --schedule schedule.json examples/ddp_after.py schedule.json
    [0] epoch 1: test accuracy 0.855
    [0] epoch 2: test accuracy 0.926
    [0] epoch 3: test accuracy 0.933
    [0] epoch 4: test accuracy 0.936
    [0] epoch 5: test accuracy 0.946
    [0] epoch 6: test accuracy 0.939

The schedule averages inside each node in every step, and over all workers in every fourth.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset  # changed

import partreduce  # changed

parser = argparse.ArgumentParser()
parser.add_argument("schedule")  # changed
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per optimizer step")
parser.add_argument("--checkpoints", default="checkpoints")  # changed: a folder
args = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)
train, test = TensorDataset(images[:1500], labels[:1500]), (images[1500:], labels[1500:])
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 16, 10),
)  # fmt: skip
order = torch.Generator()
part = partreduce.shard_dataset(train)  # changed: instead of the DistributedSampler
loader = DataLoader(part, batch_size=16 * args.accumulate, shuffle=True, generator=order, drop_last=True)  # changed
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
optimizer = partreduce.DistributedOptimizer(optimizer, model, args.schedule)  # changed: instead of DDP
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.7)

first = 0
if resumed := partreduce.load_checkpoint(optimizer, args.checkpoints):  # changed: on all workers
    scheduler.load_state_dict(resumed.extra["scheduler"])
    first = resumed.extra["epoch"]

for epoch in range(first, args.epochs):
    model.train()
    order.manual_seed(1000 * epoch + optimizer.rank)
    for batch in optimizer.batches(loader):  # changed
        optimizer.zero_grad()
        for x, y in zip(*(part.chunk(args.accumulate) for part in batch), strict=True):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y) / args.accumulate
            loss.backward()
        partreduce.clip_grad_norm_(model.parameters(), 1.0)  # changed
        optimizer.step()
        scheduler.step()

    model.eval()
    with optimizer.mean_model(), torch.no_grad():  # changed: all workers evaluate the mean of their models
        accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
    if optimizer.rank == 0:
        print(f"epoch {epoch + 1}: test accuracy {accuracy:.3f}", flush=True)
    extra = {"epoch": epoch + 1, "scheduler": scheduler.state_dict()}
    partreduce.save_checkpoint(optimizer, args.checkpoints, extra=extra)  # changed: on all workers

optimizer.finish()  # changed: every worker now holds the mean of all models
