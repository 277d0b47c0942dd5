"""Scripts that use accelerate, in real worker processes; run as `python -m helpers.accelerate_runs`."""

from types import SimpleNamespace

import torch
from accelerate import Accelerator, DistributedType
from accelerate.local_sgd import LocalSGD

from helpers.scenarios import everyone, main, network, pairs, rank, report, weights
from partreduce import ScheduleAverager, ScheduleLocalSGD
from partreduce.errors import InputError

PARTS = 2


def train_by(accelerator, local_sgd):
    """Train twelve steps of two microbatches; return every worker's parameters at the end of the loop, and after it."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    generator = torch.Generator().manual_seed(100 + rank())
    with local_sgd(accelerator, model) as averaging:
        for _ in range(12 * PARTS):
            x = torch.randn(16, 4, generator=generator)
            with accelerator.accumulate(model):
                accelerator.backward((model(x) - x.sum(1, keepdim=True).sin()).square().mean())
                optimizer.step()
                averaging.step()
                optimizer.zero_grad()
        live = weights(model)
    return live.tolist(), weights(model).tolist()


def by_hand(schedule):
    """Train the same with a plain loop and the class that has the interface of torch's averager."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    averager = ScheduleAverager(schedule)
    generator = torch.Generator().manual_seed(100 + rank())
    for _ in range(12):
        for _ in range(PARTS):
            x = torch.randn(16, 4, generator=generator)
            ((model(x) - x.sum(1, keepdim=True).sin()).square().mean() / PARTS).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        optimizer.zero_grad()
    return weights(model).tolist()


def local_sgd():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
    theirs = train_by(accelerator, lambda one, model: LocalSGD(one, model, 3 * PARTS))
    ours = train_by(accelerator, lambda one, model: ScheduleLocalSGD(one, model, everyone(3)))
    grouped = train_by(accelerator, lambda one, model: ScheduleLocalSGD(one, model, pairs()))
    off = train_by(accelerator, lambda one, model: ScheduleLocalSGD(one, model, pairs(), enabled=False))
    try:
        ScheduleLocalSGD(SimpleNamespace(distributed_type=DistributedType.FSDP), network(), pairs())
        message = ""
    except InputError as error:
        message = str(error)
    report(theirs=theirs, ours=ours, grouped=grouped, by_hand=by_hand(pairs()), off=off, message=message)


SCENARIOS = {"local sgd": (4, local_sgd)}


if __name__ == "__main__":
    main(SCENARIOS)
