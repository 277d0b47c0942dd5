"""DiLoCo across two nodes: a small character-level GPT on the source of Python's standard library.

Each node trains with AdamW; an outer Nesterov step over both follows every 15 steps.

    $ partreduce design 2x1 --build "diloco(every=15,lr=1,momentum=0.5)" -o diloco.json
    $ partreduce run --schedule diloco.json examples/gpt_diloco.py diloco.json
    [0] step 50: validation loss of the mean model 2.70
    [0] step 100: validation loss of the mean model 2.50
    [0] step 150: validation loss of the mean model 2.44
    [0] this schedule sends 32 kB per step out of a node
    [0] All-Reduce in every step sends 483 kB per step out of a node

`design 2x1` means two nodes of one worker. With several GPUs in a node, shard the model over them, so that a node stays
one worker: see train_sharded.py. On two machines run the second command on each, with --nnodes 2 --node-rank I
--rdzv-endpoint HOST:PORT.
"""

import argparse
import inspect
import math

import torch
from torch import nn

import partreduce

parser = argparse.ArgumentParser()
parser.add_argument("schedule")
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--width", type=int, default=64)
args = parser.parse_args()
CONTEXT, BATCH, HEADS, LAYERS = 64, 16, 4, 2


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.token, self.position = nn.Embedding(128, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def source_of(*modules):
    text = "".join(inspect.getsource(module) for module in modules)
    return torch.tensor([min(ord(character), 127) for character in text])


def sample(text, count, generator):
    starts = torch.randint(len(text) - CONTEXT - 1, (count,), generator=generator)
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def loss_of(model, inputs, targets):
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


torch.manual_seed(0)
train, validation = source_of(argparse, inspect), sample(source_of(__import__("textwrap")), 64, None)
train = partreduce.shard_dataset(train, order="contiguous")  # each worker has a part of the text
model = GPT(args.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
optimizer = partreduce.DistributedOptimizer(optimizer, model, args.schedule, outer_state="host")
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1, (step + 1) / 10) * (0.55 + 0.45 * math.cos(math.pi * min(1, step / args.steps)))
)

generator = torch.Generator().manual_seed(optimizer.rank)
for step in range(args.steps):
    optimizer.zero_grad()
    loss_of(model, *sample(train, BATCH, generator)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # each worker's own gradient: parameters are averaged
    optimizer.step()
    scheduler.step()
    if (step + 1) % (args.steps // 3) == 0:
        with optimizer.mean_model(), torch.no_grad():
            loss = loss_of(model, *validation).item()
        if optimizer.rank == 0:
            print(f"step {step + 1}: validation loss of the mean model {loss:.2f}", flush=True)

optimizer.finish()  # every worker now holds the mean of all models
if optimizer.rank == 0:
    hardware = partreduce.Hardware(model_bytes=4 * sum(parameter.numel() for parameter in model.parameters()))
    for name, schedule in {
        "this schedule": partreduce.load_schedule(args.schedule),
        "All-Reduce in every step": partreduce.design("2x1", build="allreduce"),
    }.items():
        print(f"{name} sends {partreduce.predict(schedule, hardware).nic_bytes / 1e3:.0f} kB per step out of a node")
