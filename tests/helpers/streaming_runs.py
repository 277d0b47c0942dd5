"""Random runs with fragments that take turns, and streaming DiLoCo in one process that says what they must give."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from helpers import outer_training
from helpers.outer_training import difference, trained
from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, Lockstep, Merge, Outer, Routes, Static

LAYERS = ("0", "1", "2", "3")
"""Of the model below, in its order."""


@dataclass(frozen=True)
class StreamingRun:
    """A schedule over everybody, and how each worker trains between its operations.

    `steps` are those of each worker's own data; who has fewer goes on without, and all end with the longest's round.
    `turns` are the layers of each fragment.
    """

    schedule: Schedule
    turns: tuple[tuple[str, ...], ...]
    steps: tuple[int, ...]
    inner: str
    clip: float
    decay: float
    seed: int

    @property
    def rounds(self) -> int:
        """Those of the longest data, which all workers end with."""
        return max(-(-steps // self.schedule.pace_of(rank)) for rank, steps in enumerate(self.steps))


def random_run(seed: int) -> StreamingRun:
    """H from 1 to 9, P from 1 to 4, any lateness, alpha, outer and inner optimizer."""
    rng = random.Random(seed)
    n, pace = rng.randint(2, 4), rng.randint(1, 9)
    count = rng.randint(1, min(4, pace))
    momentum = rng.choice([0, 0.5, 0.9])
    outer = Outer(lr=rng.choice([0.3, 0.7, 1, 1.25]), momentum=momentum, nesterov=momentum > 0 and rng.random() < 0.6)
    late, alpha = rng.randrange(rng.choice([pace // count, pace])), rng.choice(["0", "0", "1/2", "3/4"])
    when = Merge(steps=late, alpha=alpha) if late or alpha != "0" else Lockstep()
    layers = list(LAYERS)
    if rng.random() < 0.5:
        fragments = count
        turns = {1: [LAYERS], 2: [LAYERS[:1], LAYERS[1:]], 3: [("0",), ("1",), ("2", "3")], 4: list(zip(LAYERS))}[count]
    else:
        rng.shuffle(layers)
        turns = [tuple(layers[number::count]) for number in range(count)]
        fragments = tuple(tuple(f"{layer}.*" for layer in turn) for turn in turns) if count > 1 else 1
    strategy = AllReduce(pace=pace, when=when, what=Routes(outer=outer, fragments=fragments))
    if strategy.averages_gradients:
        strategy = replace(strategy, pace=2)
    schedule = Schedule(f"streaming {seed}", Cluster.regular(1, n), strategy)
    longest = rng.randint(1, 3 * pace)
    steps = tuple(longest if rng.random() < 0.7 else rng.randint(0, longest) for _ in range(n))
    inner = rng.choice(["adamw", "adamw", "sgd", "momentum"])
    return StreamingRun(
        schedule, tuple(turns), steps, inner, rng.choice([0.0, 0.5]), rng.choice([1.0, 0.9]), seed
    )  # fmt: skip


def random_run_of_groups(seed: int) -> StreamingRun:
    """As `random_run` in lockstep, over random groups and at any paces; with outer steps where a round is of all."""
    rng, case = random.Random(seed), random_run(seed)
    n, strategy = case.schedule.num_workers, case.schedule.strategy
    phases = []
    for _ in range(rng.randint(1, 3)):
        ranks = rng.sample(range(n), n)
        cut = rng.choice([0, 1, 2])
        phases.append(Phase.from_groups(n, [part for part in (ranks[:cut], ranks[cut:]) if len(part) > 1]))
    what, has_all = strategy.what, any(len(phase.members) == n and len(phase) == 1 for phase in phases)
    paces = tuple(rng.randint(len(case.turns), 9) for _ in range(n))
    static = Static(
        phases=GroupPhases(tuple(phases)),
        pace=rng.choice([strategy.pace, paces]),
        what=what if has_all else replace(what, outer=Outer()),
    )
    return replace(case, schedule=Schedule(f"groups {seed}", case.schedule.cluster, static))


class Worker(outer_training.Worker):
    """One worker's model, data, inner optimizer and learning-rate scheduler, as a user's script has them."""

    def __init__(self, case: StreamingRun, rank: int) -> None:
        generator = torch.Generator().manual_seed(case.seed)  # workers are threads, which share torch's own
        sizes = [(3, 4), (4, 4), (4, 2), (2, 1)]
        model = torch.nn.Sequential(*(torch.nn.Linear(*size) for size in sizes)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
        super().__init__(case, rank, model)

    def backward(self) -> None:
        """Gradients of two batches, accumulated and clipped."""
        for part in range(2):
            generator = torch.Generator().manual_seed(1000 * self.case.seed + 20 * self.taken + 2 * self.rank + part)
            inputs = torch.randn(6, 3, generator=generator, dtype=torch.float64)
            outputs = inputs
            for layer in self.model:
                outputs = torch.tanh(layer(outputs))
            (0.5 * (outputs[:, 0] - (inputs.sum(1) + self.rank).sin()).square().mean()).backward()
        self.taken += 1
        self.clip()


def run(case: StreamingRun, world) -> torch.Tensor:
    """Train as one worker; the parameters before the run ends."""
    return trained(Worker(case, world.rank), world, case.steps[world.rank], ended=lambda o: o.round == case.rounds)


def fragments_of(
    case: StreamingRun, workers: list[Worker]
) -> tuple[list[list[list[torch.nn.Parameter]]], list[list[torch.nn.Parameter]], list[torch.optim.SGD]]:
    """Of each fragment every worker's parameters, the anchor, and torch's SGD that makes its outer steps."""
    outer = case.schedule.strategy.what.outer
    fragments = [
        [[p for layer in turn for p in worker.model[int(layer)].parameters()] for worker in workers]
        for turn in case.turns
    ]
    anchors = [[torch.nn.Parameter(p.detach().clone()) for p in fragment[0]] for fragment in fragments]
    options = {"lr": float(outer.lr), "momentum": float(outer.momentum), "nesterov": outer.nesterov}
    return fragments, anchors, [torch.optim.SGD(anchor, **options) for anchor in anchors]


def reference(case: StreamingRun) -> list[torch.Tensor]:
    """Algorithm 2 of the paper by torch alone, whose SGD makes the outer steps of each fragment's anchor."""
    strategy, n = case.schedule.strategy, case.schedule.num_workers
    pace, count = strategy.pace, len(case.turns)
    late = strategy.when.steps if isinstance(strategy.when, Merge) else 0
    alpha = float(strategy.when.alpha) if isinstance(strategy.when, Merge) else 0.0
    workers = [Worker(case, rank) for rank in range(n)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(worker.inner, case.decay) for worker in workers]
    fragments, anchors, outers = fragments_of(case, workers)
    for step in range(1, case.rounds * pace + 1):
        for worker, scheduler in zip(workers, schedulers, strict=True):
            if step <= case.steps[worker.rank]:
                worker.inner.zero_grad()
                worker.backward()
                worker.inner.step()
                scheduler.step()
        for number, (anchor, optimizer) in enumerate(zip(anchors, outers, strict=True)):
            turn = pace * (number + 1) // count
            if (step + late - turn) % pace == 0 and step + late >= turn:
                for place, one in enumerate(anchor):
                    mean = torch.stack([own[place].detach() for own in fragments[number]]).mean(dim=0)
                    one.grad = one.detach() - mean
            if (step - turn) % pace == 0 and step > late:  # else it would merge what was never sent
                optimizer.step()
                for own in fragments[number]:
                    for mine, one in zip(own, anchor, strict=True):
                        mine.data.copy_(alpha * mine + (1 - alpha) * one.detach())
    return [worker.values() for worker in workers]


def reference_of_groups(case: StreamingRun) -> list[torch.Tensor]:
    """Round by round, fragment by fragment: all take their own steps until its turn, and then groups average."""
    schedule, count = case.schedule, len(case.turns)
    workers = [Worker(case, rank) for rank in range(schedule.num_workers)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(worker.inner, case.decay) for worker in workers]
    fragments, anchors, outers = fragments_of(case, workers)
    for round_, number in ((round_, number) for round_ in range(case.rounds) for number in range(count)):
        for worker, scheduler in zip(workers, schedulers, strict=True):
            pace = schedule.pace_of(worker.rank)
            for step in range(number * pace // count, (number + 1) * pace // count):
                if round_ * pace + step < case.steps[worker.rank]:
                    worker.inner.zero_grad()
                    worker.backward()
                    worker.inner.step()
                    scheduler.step()
        for group in schedule.phase(round_):
            held = [fragments[number][rank] for rank in group.members]
            means = [torch.stack([one.detach() for one in same]).mean(dim=0) for same in zip(*held, strict=True)]
            if len(group.members) == schedule.num_workers:
                for anchor, mean in zip(anchors[number], means, strict=True):
                    anchor.grad = anchor.detach() - mean
                outers[number].step()
                means = [anchor.detach().clone() for anchor in anchors[number]]
            for own in held:
                for mine, mean in zip(own, means, strict=True):
                    mine.data.copy_(mean)
    return [worker.values() for worker in workers]


def complaint(case: StreamingRun, got: dict[int, torch.Tensor]) -> str:
    """How these workers' models differ from the reference's; empty if by no more than the order of sums explains."""
    in_groups = case.schedule.strategy.kind == "static"
    return difference(case, (reference_of_groups if in_groups else reference)(case), got)
