"""Training with separately placed embedding tables, compared with one device that gets the whole batch."""

from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import partreduce
from partreduce import Cluster, PartreduceError
from partreduce.strategies import Gradient, Payload, Placement, TablePlacement

WORDS, WIDTH, BAGS = 29, 4, 13
SAMPLES = 8
CROSSED = Cluster.irregular([[0, 3], [2, 1]])
"""A cluster whose ranks, node by node, are a permutation that is not its own inverse."""
STEPS = 3


@dataclass(frozen=True)
class Case:
    """One run: placement and properties of the tables, and training."""

    optimizer: str = "sgd"
    cluster: str | Cluster = "2x2"
    way: Placement = Placement.SHARDED
    sparse: bool = False
    coalesces: bool = True
    average: bool = True
    average_dense: bool = True
    hosts: tuple[int, ...] = ()
    partitions: int | None = None
    padding: int | None = None
    max_norm: float | None = None
    mode: str = "sum"
    weighted: bool = False
    twice: bool = False
    backwards: int = 1
    clip: float | None = None
    dtype: torch.dtype = torch.float32
    codec: str = "none"
    """The codec of both tables' rows."""
    moving: bool = False
    """Whether moving averages of the model are kept and evaluated."""
    using: dict = field(default_factory=dict)
    """Arguments of `design` for the schedule of the dense parameters; all-reduce in every step by default."""


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.25),
    "adam": lambda p: torch.optim.Adam(p, lr=0.125),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.125),
    "sparseadam": lambda p: both(p),
}


class Several(torch.optim.Optimizer):
    """Several optimizers as one, as in docs/strategies/embeddings.md."""

    def __init__(self, *parts):
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        for part in parts:
            self.state.update(part.state)

    def step(self, closure=None):
        loss = None if closure is None else closure()
        groups = iter(self.param_groups)
        for part in self.parts:
            part.state, part.param_groups = self.state, [next(groups) for _ in part.param_groups]
            part.step()
        return loss


def both(parameters):
    """Return SparseAdam for the tables and Adam for the rest as one optimizer."""
    parameters = list(parameters)
    tables = [p for p in parameters if p.dim() == 2 and p.shape[1] == WIDTH]
    rest = [p for p in parameters if p.dim() != 2 or p.shape[1] != WIDTH]
    return Several(torch.optim.SparseAdam(tables, lr=0.125), torch.optim.Adam(rest, lr=0.125))


class Model(nn.Module):
    """An embedding, an embedding bag and a dense layer; all numbers are multiples of 1/8."""

    def __init__(self, case):
        super().__init__()
        sparse, norm = case.sparse, case.max_norm
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=case.padding, max_norm=norm, sparse=sparse)
        self.bag = nn.EmbeddingBag(BAGS, WIDTH, mode=case.mode, padding_idx=case.padding, sparse=sparse)
        self.last = nn.Linear(2 * WIDTH, 1)
        self.case = case
        self.to(case.dtype)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-8, 9, parameter.shape, generator=generator) / 8)

    def forward(self, words, bags):
        found = self.words(words).sum(1)  # [samples, words, columns] → [samples, columns]
        if self.case.twice:
            found = found + self.words(words[:, :1] // 2).sum(1)
        weights = (bags % 3).to(self.case.dtype) / 2 if self.case.weighted else None
        return self.last(torch.cat([found, self.bag(bags, per_sample_weights=weights)], dim=1)).squeeze(1)


def data_of(case):
    """Return the words and bags of each step, small numbers most often, and the factors of the outputs in the loss."""
    generator = torch.Generator().manual_seed(7)
    words = (torch.rand(STEPS, case.backwards, SAMPLES, 3, generator=generator) ** 2 * WORDS).long()
    bags = torch.randint(0, BAGS, (STEPS, case.backwards, SAMPLES, 2), generator=generator)
    targets = torch.randint(-2, 3, (STEPS, case.backwards, SAMPLES), generator=generator).to(case.dtype)
    return words, bags, targets


def schedule_of(case):
    schedule = partreduce.design(case.cluster, **(case.using or {"build": "allreduce"}))
    sharded = case.way is Placement.SHARDED
    gradient = Gradient.SPARSE if case.sparse else Gradient.DENSE
    words = TablePlacement(
        parameter="words.weight",
        rows=WORDS,
        columns=WIDTH,
        way=case.way,
        gradient=gradient,
        partitions=case.partitions,
        hosts=case.hosts if sharded else (),
        codec=case.codec,
    )
    bags = TablePlacement(
        parameter="bag.weight", rows=BAGS, columns=WIDTH, way=case.way, gradient=gradient, codec=case.codec
    )
    payload = Payload(
        tables=(words, bags), local_aggregation=case.coalesces, average=case.average, average_dense=case.average_dense
    )
    return replace(schedule, strategy=replace(schedule.strategy, payload=payload))


def train(case, model, optimizer, data, clip):
    """Take all steps; return the moving averages of the model, None if none are kept."""
    moving = AveragedModel(model, avg_fn=lambda old, new, _: (old + new) / 2) if case.moving else None
    for words, bags, targets in zip(*data, strict=True):
        optimizer.zero_grad()
        for part in zip(words, bags, targets, strict=True):
            # A sum, of which the mean over 4 workers is a fourth of the whole batch's: exact on dyadic numbers.
            ((model(*part[:2]) * part[2]).sum() / 16).backward()
        if case.clip is not None:
            clip(list(model.parameters()), case.clip)
        optimizer.step()
        if moving is not None:
            moving.update_parameters(model)
    return moving


def on_one_device(case):
    """Train with whole batches; return the model, its moving averages (or None), and outputs for the first batch."""
    model = Model(case)
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    words, bags, targets = data_of(case)
    tables = [model.words.weight, model.bag.weight]
    others = [parameter for parameter in model.parameters() if all(parameter is not table for table in tables)]
    for parameter in (*(() if case.average else tables), *(() if case.average_dense else others)):
        parameter.register_hook(lambda gradient: 4 * gradient)
    moving = train(case, model, optimizer, (words, bags, targets / 4), clip_as_torch)
    with torch.no_grad():
        outputs = (moving or model)(words[0, 0], bags[0, 0])
    return model, moving, outputs


def clip_as_torch(parameters, max_norm):
    """Clip by norm as torch does, over the stored numbers of gradients; torch itself does not support sparse ones."""
    gradients = [p.grad.coalesce() if p.grad.is_sparse else p.grad for p in parameters]
    stored = [gradient.values() if gradient.is_sparse else gradient for gradient in gradients]
    total = torch.linalg.vector_norm(torch.cat([numbers.view(-1) for numbers in stored]))
    for numbers in stored:
        numbers.mul_(torch.clamp(max_norm / (total + 1e-6), max=1.0))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def start(case, world, model=None, **keywords):
    model = Model(case) if model is None else model
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    return model, partreduce.DistributedOptimizer(
        optimizer, model, schedule_of(case), world=world, timeout=60, **keywords
    )


def all_gather_json(ranks, act):
    """Return the error of `act(world)`, which must be the same line on all 4 workers; "" if it raises none."""

    def run(world):
        try:
            act(world)
        except PartreduceError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    results = ranks.run(4, run)
    assert len(set(results)) == 1, results
    return results[0]


def part_of(data, rank, num_workers=4):
    each = SAMPLES // num_workers
    return tuple(array[:, :, rank * each : (rank + 1) * each] for array in data)


def over_workers(case, ranks):
    """Train on 4 workers; return by rank the state dicts of model and moving averages, and outputs for its samples."""

    def act(world):
        model, optimizer = start(case, world)
        moving = train(case, model, optimizer, part_of(data_of(case), world.rank), partreduce.clip_grad_norm_)
        inputs = part_of(data_of(case), world.rank)
        with torch.no_grad():
            outputs = (moving or model)(inputs[0][0, 0], inputs[1][0, 0])
        states = model.state_dict(), None if moving is None else moving.module.state_dict(), outputs
        optimizer.finish()
        return states

    return ranks.run(4, act)
