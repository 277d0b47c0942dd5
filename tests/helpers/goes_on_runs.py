"""A run that goes on after losses, with deaths at instants that are chosen, and what it must come to by hand.

Gradients do not depend on the model and are multiples of 12/8: their means over 4, 3 and 2 workers are exact, so the
replay, which knows nothing but who was in which sum, has the same bits.
"""

import io
import json
import os
import signal
import sys
import warnings

import torch

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.launcher.launch import launch
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.worker.epochs import Epochs
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce

RATE = 0.25
START = (1.0, -2.0, 0.5)


def gradient(rank, step):
    """What a worker adds in a step."""
    return tuple(12 / 8 * ((rank + 1) * (step + place) % 7 - 3) for place in range(len(START)))


def at(kind, method, when, number=signal.SIGKILL):
    """Let this process die, once, as a method of a class is called `when` that says so."""
    original = getattr(kind, method)

    def patched(self, *arguments, **named):
        if when(self, *arguments, **named):
            os.kill(os.getpid(), number)
        return original(self, *arguments, **named)

    setattr(kind, method, patched)


def fail_after_confirm(round_):
    """Let a confirm be broken here that all others have."""
    original = Reducer.agree

    def agree(self, kind, in_round, group, *fields, deferred=False):
        original(self, kind, in_round, group, *fields, deferred=deferred)
        if kind == "confirm" and in_round == round_ and len(group.members) == 4:
            operation = self.recorder.begin("confirm that breaks", round_, round_, group.members, 16)
            raise self.outlives.broke(operation, RuntimeError("broken here"))

    Reducer.agree = agree


def fail(_round):
    """Let this worker's script have an error of its own."""

    def begin(*_arguments, **_named):
        raise ZeroDivisionError

    Reducer.begin = begin


INSTANTS = {
    "before the sum": lambda r: at(Reducer, "begin", lambda _, kind, step, in_round, *a, **n: in_round == r),
    "in the sum": lambda r: at(Reducer, "wait", lambda _, reduction: reduction.operation.round == r),
    "prepared": lambda r: at(Reducer, "agree", lambda _, kind, in_round, *a, **n: in_round == r),
    "confirmed": lambda r: at(Reducer, "commit", lambda _, reduction, action: reduction.operation.round == r),
    "voting": lambda _: at(Epochs, "_awaited_view", lambda *_: True),
    "rebuilding": lambda _: at(Epochs, "_is_rebuilt", lambda *_: True),
    "in mean_model()": lambda _: at(Reducer, "begin", lambda _, kind, *a, **n: kind == "mean model"),
    "confirm breaks": fail_after_confirm,
    "stopped": lambda r: at(Reducer, "begin", lambda _, kind, step, in_round, *a, **n: in_round == r, signal.SIGSTOP),
    "an error": fail,
}


def run(deaths, *, pace=1, steps=9, workers=4, most_lost=3, evaluate=(), timeout=60.0, strategy=None, contingencies=()):
    """(exit code, what each worker said at its end, all that was written) of a run.

    Args:
        deaths: by rank, (instant, round).
        pace: steps a round; gradients are averaged where it is 1.
        steps: of each worker.
        workers: at the start.
        most_lost: how many may be.
        evaluate: after which steps the mean model is looked at.
        timeout: of the optimizer, in seconds.
        strategy: in place of `allreduce` at this pace.
        contingencies: what the schedule plans.
    """

    def work():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_: sys.stderr.write(f"{message}\n")  # pytest would keep them
        rank = int(os.environ["RANK"])
        for instant, round_ in [deaths[rank]] if rank in deaths else []:
            INSTANTS[instant](round_)
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
        kind = strategy or AllReduce(pace=pace)
        schedule = Schedule("goes on", Cluster.regular(1, workers), kind, contingencies=contingencies)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), RATE), model, schedule, timeout=timeout)
        means = []
        for step in optimizer.batches(range(steps)):
            optimizer.zero_grad()
            (model.weight * torch.tensor(gradient(rank, step), dtype=torch.float64)).sum().backward()
            optimizer.step()
            if step in evaluate:
                with optimizer.mean_model() as mean:
                    means.append(mean.weight.tolist())
        own = model.weight.tolist()
        optimizer.finish()
        said = {"rank": rank, "own": own, "end": model.weight.tolist(), "means": means, **optimizer.stats()}
        sys.stdout.write(f"REPORT {json.dumps(said)}\n")

    output = io.StringIO()
    code = launch(work, num_workers=workers, threads=1, most_lost=most_lost, output=output)
    text = output.getvalue()
    said = [json.loads(line.split("REPORT ", 1)[1]) for line in text.splitlines() if "REPORT " in line]
    return code, {one["rank"]: one for one in said}, text


def replayed(groups_in, survivors, *, pace=1, steps=9, workers=4, gradients=None):
    """What survivors hold before `finish()`, by rank; `groups_in(round)` are those whose means are taken."""
    models = {rank: list(START) for rank in range(workers)}
    for step in range(steps):
        groups = groups_in(step // pace)
        if gradients or (gradients is None and pace == 1):
            (members,) = groups
            moves = [sum(g) / len(members) for g in zip(*(gradient(rank, step) for rank in members), strict=True)]
            models = {rank: [x - RATE * g for x, g in zip(model, moves, strict=True)] for rank, model in models.items()}
            continue
        for rank, model in models.items():
            models[rank] = [x - RATE * g for x, g in zip(model, gradient(rank, step), strict=True)]
        for members in groups if step % pace == pace - 1 else ():
            mean = [sum(x) / len(members) for x in zip(*(models[rank] for rank in members), strict=True)]
            models = {rank: list(mean) if rank in members else model for rank, model in models.items()}
    return {rank: models[rank] for rank in survivors}
