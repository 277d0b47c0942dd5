"""A training script with DistributedDataParallel; ddp_after.py is the same script with partreduce.

$ torchrun --nproc-per-node 4 examples/ddp_before.py
epoch 1: test accuracy 0.798
epoch 2: test accuracy 0.926
epoch 3: test accuracy 0.936
epoch 4: test accuracy 0.943
epoch 5: test accuracy 0.939
epoch 6: test accuracy 0.949
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per optimizer step")
parser.add_argument("--checkpoint", type=Path, default=Path("ddp.pt"))
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)
train, test = TensorDataset(images[:1500], labels[:1500]), (images[1500:], labels[1500:])
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 16, 10),
)  # fmt: skip
model = DistributedDataParallel(model)
sampler = DistributedSampler(train, drop_last=True)
loader = DataLoader(train, batch_size=16 * args.accumulate, sampler=sampler, drop_last=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.7)

first = 0
if args.checkpoint.exists():
    saved = torch.load(args.checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    first = saved["epoch"]

for epoch in range(first, args.epochs):
    model.train()
    sampler.set_epoch(epoch)
    for batch in loader:
        optimizer.zero_grad()
        for x, y in zip(*(part.chunk(args.accumulate) for part in batch), strict=True):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y) / args.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

    model.eval()
    with torch.no_grad():
        accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1}: test accuracy {accuracy:.3f}", flush=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save({**state, "epoch": epoch + 1}, args.checkpoint)

dist.destroy_process_group()
