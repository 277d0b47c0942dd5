"""Random runs with outer steps, and DiLoCo's algorithm in one process that says what they must give."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from helpers import outer_training
from helpers.outer_training import difference, trained
from helpers.random_schedules import groups_of_round, random_phase
from partreduce.topo.cluster import Cluster
from partreduce.topo.figures.outer_steps import outer_radius
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Anchor, Averaging, GroupPhases, Outer, Routes, Static


@dataclass(frozen=True)
class OuterRun:
    """A schedule with outer steps, and how each worker trains between them.

    `rounds` are those of each worker's own data; who has fewer goes on without.
    """

    schedule: Schedule
    rounds: tuple[int, ...]
    inner: str
    clip: float
    decay: float
    seed: int

    @property
    def outer(self) -> Outer:
        return self.schedule.strategy.what.outer


def random_run(seed: int) -> OuterRun:
    """H from 1 to 5, any lr, momentum and inner optimizer; over all alone, or with groups in between."""
    rng = random.Random(seed)
    n = rng.randint(2, 4)
    momentum = rng.choice([0, 0, 0.5, 0.9])
    outer = Outer(lr=rng.choice([0.3, 0.7, 1, 1.25]), momentum=momentum, nesterov=momentum > 0 and rng.random() < 0.6)
    pace = rng.choice([1, 2, 3, 5, tuple(rng.randint(1, 4) for _ in range(n))])
    averaging = rng.choice([Averaging.MEAN, Averaging.MEAN, Averaging.STEP_NORMALISED])
    options = {"pace": pace, "averaging": averaging, "what": Routes(outer=outer)}
    if rng.random() < 0.6:
        strategy: AllReduce | Static = AllReduce(**options)
        if strategy.averages_gradients:  # with a plain mean in each step it is DDP, which is another algorithm
            strategy = AllReduce(**options | {"pace": 2})
    else:
        own = rng.random() < 0.5 and not outer.is_plain
        phases = [random_phase(rng, n, exact=False) for _ in range(rng.randint(0, 2))]
        if own:
            phases = [Phase.from_groups(n, [group.members for group in phase]) for phase in phases]
            options["what"] = Routes(outer=replace(outer, anchor=Anchor.OWN))
        phases.insert(rng.randint(0, len(phases)), Phase.from_groups(n, [range(n)]))
        strategy = Static(phases=GroupPhases(tuple(phases)), prologue=rng.choice([0, 0, 1]), **options)
    schedule = Schedule(f"outer {seed}", Cluster.regular(1, n), strategy)
    if strategy.what.outer.has_own_anchors and (outer_radius(schedule) or 0) > 0.999:
        schedule = replace(schedule, strategy=replace(strategy, what=Routes(outer=outer)))
    longest = rng.randint(1, 5)
    rounds = tuple(longest if rng.random() < 0.7 else rng.randint(0, longest) for _ in range(n))
    inner = rng.choice(["adamw", "adamw", "sgd", "momentum"])
    return OuterRun(schedule, rounds, inner, rng.choice([0.0, 0.5]), rng.choice([1.0, 0.8]), seed)


class Worker(outer_training.Worker):
    """One worker's model, data, inner optimizer and learning-rate scheduler, as a user's script has them."""

    def __init__(self, case: OuterRun, rank: int) -> None:
        generator = torch.Generator().manual_seed(case.seed)
        shapes = [(5, 3), (5,), (1, 5)]
        parameters = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        super().__init__(case, rank, torch.nn.ParameterList(parameters))

    def backward(self) -> None:
        """Gradients of the next batch, clipped."""
        generator = torch.Generator().manual_seed(1000 * self.case.seed + 10 * self.taken + self.rank)
        self.taken += 1
        inputs = torch.randn(6, 3, generator=generator, dtype=torch.float64)
        first, bias, last = self.model
        outputs = torch.tanh(inputs @ first.T + bias) @ last.T
        (outputs[:, 0] - (inputs.sum(1) + self.rank).sin()).square().mean().backward()
        self.clip()

    def put(self, vector: torch.Tensor) -> None:
        torch.nn.utils.vector_to_parameters(vector, self.model.parameters())


def run(case: OuterRun, world) -> torch.Tensor:
    """Train as one worker; the parameters before the run ends."""
    steps = case.rounds[world.rank] * case.schedule.pace_of(world.rank)
    return trained(Worker(case, world.rank), world, steps, ended=lambda o: o.round == max(case.rounds))


def reference(case: OuterRun) -> list[torch.Tensor]:
    """The same by torch alone: torch.optim.SGD makes the outer steps of each worker's anchor."""
    schedule, n = case.schedule, case.schedule.num_workers
    workers = [Worker(case, rank) for rank in range(n)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(worker.inner, case.decay) for worker in workers]
    anchors = [torch.nn.Parameter(worker.values()) for worker in workers]
    rate, factor, nesterov = float(case.outer.lr), float(case.outer.momentum), case.outer.nesterov
    outers = [torch.optim.SGD([anchor], rate, factor, nesterov=nesterov) for anchor in anchors]
    for round_ in range(max(case.rounds)):
        starts = [worker.values() for worker in workers]
        for worker, scheduler in zip(workers, schedulers, strict=True):
            for _ in range(schedule.pace_of(worker.rank) if round_ < case.rounds[worker.rank] else 0):
                worker.inner.zero_grad()
                worker.backward()
                worker.inner.step()
                scheduler.step()
        for group in groups_of_round(schedule, round_):
            mean_pace = sum(map(schedule.pace_of, group.members)) / len(group.members)
            for member in group.members:
                if schedule.strategy.averaging is Averaging.STEP_NORMALISED:
                    moved = workers[member].values() - starts[member]
                    workers[member].put(starts[member] + mean_pace / schedule.pace_of(member) * moved)
            result = torch.stack([workers[member].values() for member in group.members]).mean(dim=0)
            for member in group.members:
                following = result
                if case.outer.has_own_anchors or len(group.members) == n:
                    anchors[member].grad = anchors[member].detach() - result
                    outers[member].step()
                    following = anchors[member].detach().clone()
                workers[member].put(torch.lerp(workers[member].values(), following, float(group.relax)))
    return [worker.values() for worker in workers]


def complaint(case: OuterRun, got: dict[int, torch.Tensor]) -> str:
    """How these workers' models differ from the reference's; empty if by no more than the order of sums explains."""
    return difference(case, reference(case), got)
