"""Scenarios in which no work must be lost: checkpoints and unequal data when workers fail, and full disks."""

import os
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

import torch

from helpers.scenarios import main, pairs, rank, report, reporting, train, weights, wrapped
from partreduce import Cluster, Schedule, load_checkpoint, save_checkpoint
from partreduce.strategies import Averaging, DynamicGroups


def make_generated(**options):
    """Return a model and its optimizer under `dynamic_groups`; worker w's numbers are all w + 1, and steps add 0."""
    model = torch.nn.Linear(10, 10)
    schedule = Schedule("g", Cluster.regular(1, 4), DynamicGroups(group_size=3, slow_threshold=None, **options))
    optimizer = wrapped(model, schedule, lr=0.0, initial="keep")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(rank() + 1))
            parameter.grad = torch.zeros_like(parameter)
    return model, optimizer


def steps(optimizer, count, *, dies_at=None):
    for step in range(count):
        if rank() == 3 and step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.002 + 0.002 * (rank() == 1))
        optimizer.step()


def saving(*, dies):
    """Save three checkpoints between rounds; worker 3 may die after the first."""
    model, optimizer = make_generated()

    def loop():
        for _ in range(3):
            steps(optimizer, 12, dies_at=5 if dies and optimizer.steps else None)
            folder = save_checkpoint(optimizer, os.environ["PLACE"], extra={"rank": rank()})
        saved = weights(model).tolist()[0]
        with optimizer.mean_model():
            mean = weights(model).tolist()[0]
        optimizer.finish()
        report(folder=folder.name, saved=saved, mean=mean, final=weights(model).tolist()[0])

    reporting(loop)


def resuming():
    model, optimizer = make_generated()

    def loop():
        resumed = load_checkpoint(optimizer, os.environ["PLACE"])
        restored = weights(model).tolist()[0]
        steps(optimizer, 12)
        load_checkpoint(optimizer, os.environ["PLACE"])
        again = weights(model).tolist()[0]
        steps(optimizer, 3)
        optimizer.finish()
        report(round=resumed.round, extra=resumed.extra, restored=restored, again=again, steps=optimizer.steps)

    reporting(loop)


def joining(*, dies, **options):
    """Train with 20 + 10 w batches on worker w; worker 3 may die in the middle of its batches."""
    model, optimizer = make_generated(**options)

    def loop():
        with optimizer.join():
            steps(optimizer, 20 + 10 * rank(), dies_at=45 if dies else None)
        rounds = optimizer.round
        with optimizer.mean_model():
            mean = weights(model).tolist()[0]
        optimizer.finish()
        report(rounds=rounds, mean=mean, final=weights(model).tolist()[0], executed=optimizer.runner.client.executed)

    reporting(loop)


def full_trace_disk():
    """Write the trace when no file may grow, as on a full disk; the code after finish() must still run."""
    model = torch.nn.Linear(4, 1)
    optimizer = wrapped(model, pairs(), trace=os.environ["TRACE"])
    train(optimizer, model, 4)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def loop():
        with warnings.catch_warnings(record=True, action="always") as caught:
            optimizer.finish()
            optimizer.run.reducer.recorder.dump("again")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        torch.save(model.state_dict(), Path(os.environ["TRACE"], f"saved-{rank()}"))
        report(warnings=[str(one.message) for one in caught], finished=optimizer.ending.is_finished)

    reporting(loop)


SCENARIOS = {
    "saving": (4, lambda: saving(dies=False)),
    "saving, one dies": (4, lambda: saving(dies=True)),
    "resuming": (4, resuming),
    "joining": (4, lambda: joining(dies=False)),
    "joining, one dies": (4, lambda: joining(dies=True)),
    "joining, normalized": (4, lambda: joining(dies=False, averaging=Averaging.STEP_NORMALIZED)),
    "full trace disk": (4, full_trace_disk),
}

if __name__ == "__main__":
    sys.exit(main(SCENARIOS))
