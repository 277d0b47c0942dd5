"""Cells with separately placed embedding tables on a device, whose rows are sent through host memory."""

from dataclasses import dataclass
from functools import partial

import torch
from torch.optim.swa_utils import AveragedModel

from helpers.device import cells
from helpers.device.cells import RANKS
from partreduce import Cluster, DistributedOptimizer, Schedule, clip_grad_norm_
from partreduce.strategies import AllReduce, Codec, Gradient, Payload, Placement, TablePlacement

WORDS, BAGS, WIDTH, SAMPLES, STEPS = 29, 13, 4, 6, 2


@dataclass(frozen=True)
class TableCell:
    """A job with two tables and a dense layer that all-reduce averages: placement of the tables, and training."""

    name: str
    optimizer: str = "sgd"
    way: Placement = Placement.SHARDED
    sparse: bool = False
    coalesces: bool = False
    weighted: bool = False
    codec: Codec = Codec.NONE
    clip: float | None = None
    max_norm: float | None = None
    padding: int | None = None
    moving: bool = False
    """Whether moving averages of the parameters are kept and evaluated."""
    drawn: bool = False
    """Whether the first table is created on the meta device and initialized by its owners."""

    @property
    def schedule(self):
        gradient = Gradient.SPARSE if self.sparse else Gradient.DENSE
        sizes = (("words.weight", WORDS), ("bag.weight", BAGS))
        routes = tuple(
            TablePlacement(parameter=name, rows=rows, columns=WIDTH, way=self.way, gradient=gradient, codec=self.codec)
            for name, rows in sizes
        )
        payload = Payload(tables=routes, local_aggregation=self.coalesces)
        return Schedule(self.name, Cluster.regular(2, RANKS // 2), AllReduce(payload=payload))


TABLE_CELLS = [
    TableCell("sharded, sparse SGD", sparse=True, padding=3),
    TableCell(
        "sharded, Adam, aggregated, weighted bags, int8",
        optimizer="adam",
        coalesces=True,
        weighted=True,
        codec=Codec.INT8,
    ),
    TableCell(
        "sharded, drawn, clipped, largest norm, moving averages", clip=0.02, max_norm=1.5, moving=True, drawn=True
    ),
    TableCell(
        "gathered, sparse SGD, aggregated, clipped", way=Placement.GATHER, sparse=True, coalesces=True, clip=0.02
    ),
]


class Model(torch.nn.Module):
    """An embedding of words, an embedding bag, and a layer over both."""

    def __init__(self, cell):
        super().__init__()
        with torch.device("meta" if cell.drawn else "cpu"):
            self.words = torch.nn.Embedding(
                WORDS, WIDTH, padding_idx=cell.padding, max_norm=cell.max_norm, sparse=cell.sparse
            )
        self.bag = torch.nn.EmbeddingBag(BAGS, WIDTH, mode="sum", sparse=cell.sparse)
        self.last = torch.nn.Linear(2 * WIDTH, 1)
        self.weighted = cell.weighted

    def forward(self, words, bags):
        """Return one number per sample, from words [samples, words] and bags [samples, bags]."""
        weights = (bags % 3).to(self.last.weight.dtype) / 2 if self.weighted else None
        both = torch.cat([self.words(words).sum(1), self.bag(bags, per_sample_weights=weights)], dim=1)
        output: torch.Tensor = self.last(both).squeeze(1)
        return output


def prepare(cell, rank):
    """Return a rank's model, which becomes worker 0's when wrapped, and its batches of words, bags and targets."""
    torch.manual_seed(rank)
    model = Model(cell)
    shapes = ((WORDS, (SAMPLES, 3)), (BAGS, (SAMPLES, 2)))
    batches = [(*(torch.randint(0, n, shape) for n, shape in shapes), torch.randn(SAMPLES)) for _ in range(STEPS)]
    return model, batches


def wrap_model(cell, model, device, world=None):
    """Return the model on a device, except a table that owners initialize, and its wrapped optimizer."""
    for name, part in model.named_children():
        if not (cell.drawn and name == "words"):
            part.to(device)
    inner = (
        torch.optim.Adam(model.parameters(), lr=0.02)
        if cell.optimizer == "adam"
        else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    timeout = 30.0 if world is None else world.timeout.total_seconds()
    return model, DistributedOptimizer(cells.of_user(inner), model, cell.schedule, timeout=timeout, world=world)


def train(cell, prepared, device, world=None):
    """Train one rank; return its outputs and parameters by name, and whole tables and optimizer states on worker 0."""
    model, optimizer = wrap_model(cell, prepared[0], device, world)
    moving = AveragedModel(model) if cell.moving else None
    for words, bags, targets in prepared[1]:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(words.to(device), bags.to(device)), targets.to(device)).backward()
        if cell.clip is not None:
            clip_grad_norm_(model.parameters(), cell.clip)
        optimizer.step()
        if moving is not None:
            moving.update_parameters(model)
    with torch.no_grad():
        words, bags, _ = prepared[1][0]
        values = {"outputs": (moving or model)(words.to(device), bags.to(device))}
    values |= {name: value.detach().clone() for name, value in (moving or model).named_parameters()}
    values |= {f"whole {name}": value for name, value in model.state_dict().items() if not value.is_meta}
    states = optimizer.state_dict()["state"]
    values |= {
        f"state {index} {key}": value.to_dense() if value.is_sparse else value
        for index, state in states.items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and not value.is_meta
    }
    optimizer.finish()
    return values


def _train_here(cell, world, prepared):
    device = world.simulated_device
    values = train(cell, prepared, device.device, world)
    device.settle()
    values = {name: value.detach().clone() for name, value in values.items()}
    device.settle()
    return {"values": values}


compare = partial(cells.compare, prepare=prepare, action=_train_here)
"""Return the largest difference between a cell on simulated ranks and its run without a device.

The ranks are `plain` or `simulated`. A GPU needs processes (`processes.tables`): autograd has one thread per device, in
which the exchange of one simulated rank would wait for ranks whose turn comes after it.
"""
