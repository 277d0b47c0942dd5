"""Random runs with outer steps, of whole models or of fragments in turn, and what torch alone makes of them."""

import random
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import torch

from helpers.random_schedules import groups_of_round, random_phase
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st
from partreduce.topo.metrics.stability import outer_radius

LAYERS = ("0", "1", "2", "3")
"""Of the model below, in its order."""
INNER = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, eps=1e-4),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
}


@dataclass(frozen=True)
class OuterRun:
    """A schedule with outer steps, and how each worker trains between its averages.

    `steps` are those of each worker's own data; who has fewer continues without, and all end with the longest's round.
    `turns` are the layers of each fragment.
    """

    schedule: Schedule
    steps: tuple[int, ...]
    turns: tuple[tuple[str, ...], ...] = (LAYERS,)
    inner: str = "adamw"
    clip: float = 0.5
    decay: float = 1.0
    seed: int = 3

    @property
    def outer(self):
        return self.schedule.strategy.payload.outer

    @property
    def rounds(self):
        """Those of the longest data, which all workers end with."""
        return max(-(-steps // self.schedule.steps_per_round_of(rank)) for rank, steps in enumerate(self.steps))


def random_outer(rng, momenta):
    momentum = rng.choice(momenta)
    rate = rng.choice([0.3, 0.7, 1, 1.25])
    return st.OuterStep(lr=rate, momentum=momentum, nesterov=momentum > 0 and rng.random() < 0.6)


def random_run(seed):
    """H from 1 to 5, any lr, momentum and inner optimizer; over all alone, or with groups in between."""
    rng = random.Random(seed)
    n, outer = rng.randint(2, 4), random_outer(rng, [0, 0, 0.5, 0.9])
    steps_per_round = rng.choice([1, 2, 3, 5, tuple(rng.randint(1, 4) for _ in range(n))])
    averaging = rng.choice([st.Averaging.MEAN, st.Averaging.MEAN, st.Averaging.STEP_NORMALIZED])
    options = {"steps_per_round": steps_per_round, "averaging": averaging, "payload": st.Payload(outer=outer)}
    if rng.random() < 0.6:
        strategy: st.AllReduce | st.StaticGroups = st.AllReduce(**options)
        if strategy.averages_gradients:  # with a plain mean in each step it is DDP, which is another algorithm
            strategy = st.AllReduce(**options | {"steps_per_round": 2})
    else:
        own = rng.random() < 0.5 and not outer.is_plain
        phases = [random_phase(rng, n, exact=False) for _ in range(rng.randint(0, 2))]
        if own:
            phases = [st.Phase.from_groups(n, [group.members for group in phase]) for phase in phases]
            options["payload"] = st.Payload(outer=replace(outer, outer_params=st.OuterParams.PER_WORKER))
        phases = [phase if own or not _is_of_all(phase) else _settling(phase, outer) for phase in phases]
        phases.insert(rng.randint(0, len(phases)), st.Phase.from_groups(n, [range(n)]))
        strategy = st.StaticGroups(phases=st.GroupPhases(tuple(phases)), prologue=rng.choice([0, 0, 1]), **options)
    schedule = Schedule(f"outer {seed}", Cluster.regular(1, n), strategy)
    if strategy.payload.outer.has_own_outer_params and (outer_radius(schedule) or 0) > 0.999:
        schedule = replace(schedule, strategy=replace(strategy, payload=st.Payload(outer=outer)))
    longest = rng.randint(1, 5)
    rounds = [longest if rng.random() < 0.7 else rng.randint(0, longest) for _ in range(n)]
    steps = tuple(count * schedule.steps_per_round_of(rank) for rank, count in enumerate(rounds))
    inner, clip, decay = rng.choice(["adamw", "adamw", "sgd", "momentum"]), rng.choice([0.0, 0.5]), rng.choice([1, 0.8])
    return OuterRun(schedule, steps, inner=inner, clip=clip, decay=decay, seed=seed)


def _is_of_all(phase):
    return len(phase) == 1 and len(phase.members) == phase.num_workers


def _settling(phase, outer):
    """A round of all makes outer steps: those of others than relaxations of 0 to 1, one with momentum, are refused."""
    (group,) = phase
    kept = group.relaxation if 0 < group.relaxation <= 1 and not outer.momentum else 1
    return st.Phase.from_groups(phase.num_workers, [replace(group, relaxation=Fraction(kept))])


def random_run_in_turns(seed):
    """H from 1 to 9, P from 1 to 4, any delay, alpha, outer and inner optimizer."""
    rng = random.Random(seed)
    n, steps_per_round = rng.randint(2, 4), rng.randint(1, 9)
    count = rng.randint(1, min(4, steps_per_round))
    outer = random_outer(rng, [0, 0.5, 0.9])
    late, alpha = (
        rng.randrange(rng.choice([steps_per_round // count, steps_per_round])),
        rng.choice(["0", "0", "1/2", "3/4"]),
    )
    sync = st.DelayedMerge(steps=late, alpha=alpha) if late or alpha != "0" else st.Synchronous()
    layers = list(LAYERS)
    if rng.random() < 0.5:
        fragments = count
        turns = {1: [LAYERS], 2: [LAYERS[:1], LAYERS[1:]], 3: [("0",), ("1",), ("2", "3")], 4: list(zip(LAYERS))}[count]
    else:
        rng.shuffle(layers)
        turns = [tuple(layers[number::count]) for number in range(count)]
        fragments = tuple(tuple(f"{layer}.*" for layer in turn) for turn in turns) if count > 1 else 1
    strategy = st.AllReduce(
        steps_per_round=steps_per_round, sync=sync, payload=st.Payload(outer=outer, fragments=fragments)
    )
    if strategy.averages_gradients:
        strategy = replace(strategy, steps_per_round=2)
    schedule = Schedule(f"in turns {seed}", Cluster.regular(1, n), strategy)
    longest = rng.randint(1, 3 * steps_per_round)
    steps = tuple(longest if rng.random() < 0.7 else rng.randint(0, longest) for _ in range(n))
    inner, clip, decay = rng.choice(["adamw", "adamw", "sgd", "momentum"]), rng.choice([0.0, 0.5]), rng.choice([1, 0.9])
    return OuterRun(schedule, steps, tuple(turns), inner, clip, decay, seed)


def random_run_of_groups(seed):
    """As in turns, over random groups and at any steps per round; with outer steps where a round is of all."""
    rng, case = random.Random(seed), random_run_in_turns(seed)
    n, strategy = case.schedule.num_workers, case.schedule.strategy
    phases = []
    for _ in range(rng.randint(1, 3)):
        ranks = rng.sample(range(n), n)
        cut = rng.choice([0, 1, 2])
        phases.append(st.Phase.from_groups(n, [part for part in (ranks[:cut], ranks[cut:]) if len(part) > 1]))
    payload, has_all = strategy.payload, any(_is_of_all(phase) for phase in phases)
    worker_steps = tuple(rng.randint(len(case.turns), 9) for _ in range(n))
    static = st.StaticGroups(
        phases=st.GroupPhases(tuple(phases)),
        steps_per_round=rng.choice([strategy.steps_per_round, worker_steps]),
        payload=payload if has_all else replace(payload, outer=st.OuterStep()),
    )
    return replace(case, schedule=Schedule(f"groups {seed}", case.schedule.cluster, static))


class Worker:
    """One worker's model, data, and inner optimizer, as a user's script has them."""

    def __init__(self, case, rank):
        self.case, self.rank, self.taken = case, rank, 0
        generator = torch.Generator().manual_seed(case.seed)  # workers are threads, which share torch's own
        sizes = [(3, 4), (4, 4), (4, 2), (2, 1)]
        self.model = torch.nn.Sequential(*(torch.nn.Linear(*size) for size in sizes)).double()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
        self.inner = INNER[case.inner](self.model.parameters())

    def backward(self):
        """Gradients of two batches, accumulated and clipped."""
        for part in range(2):
            generator = torch.Generator().manual_seed(1000 * self.case.seed + 20 * self.taken + 2 * self.rank + part)
            inputs = torch.randn(6, 3, generator=generator, dtype=torch.float64)
            outputs = inputs
            for layer in self.model:
                outputs = torch.tanh(layer(outputs))
            (0.5 * (outputs[:, 0] - (inputs.sum(1) + self.rank).sin()).square().mean()).backward()
        self.taken += 1
        if self.case.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.case.clip)

    def values(self):
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()])


class Training:
    """One worker's run, that may stop between any two steps."""

    def __init__(self, world, worker, **options):
        self.worker = worker
        self.optimizer = DistributedOptimizer(
            worker.inner, worker.model, worker.case.schedule, world=world, **{"timeout": 120} | options
        )

    def steps(self, count):
        for _ in range(count):
            self.worker.taken = self.optimizer.steps
            self.optimizer.zero_grad()
            self.worker.backward()
            self.optimizer.step()
        return self.worker.values()

    def to_the_end(self, count):
        """Steps on uneven data: each worker has two fewer than the one before, and all end with the first's round."""
        with self.optimizer.join():
            self.steps(count - 2 * self.worker.rank)
        return self.worker.values()


def run(case, world):
    """Train as one worker, whose data ends after its steps; the parameters before the run ends."""
    worker = Worker(case, world.rank)
    optimizer = DistributedOptimizer(worker.inner, worker.model, case.schedule, timeout=120, world=world)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, case.decay)
    with optimizer.join():
        for _ in range(case.steps[world.rank]):
            optimizer.zero_grad()
            worker.backward()
            optimizer.step()
            scheduler.step()
    assert optimizer.round == case.rounds
    last = worker.values()
    optimizer.finish()
    return last


class Part:
    """A worker's share of a fragment: its parameters, the outer ones, and torch's SGD that makes the outer steps."""

    def __init__(self, worker, turn, outer):
        self.own = [p for layer in turn for p in worker.model[int(layer)].parameters()]
        self.outer_params = [torch.nn.Parameter(p.detach().clone()) for p in self.own]
        options = {"lr": float(outer.lr), "momentum": float(outer.momentum), "nesterov": outer.nesterov}
        self.optimizer = torch.optim.SGD(self.outer_params, **options)

    def hear(self, means):
        for start, mean in zip(self.outer_params, means, strict=True):
            start.grad = start.detach() - mean

    def outer_step(self):
        self.optimizer.step()
        return [start.detach().clone() for start in self.outer_params]

    def move(self, values, share):
        """So far toward these values."""
        for mine, value in zip(self.own, values, strict=True):
            mine.data.copy_(torch.lerp(mine.detach(), value, share))


def means_of(parts):
    return [torch.stack([p.detach() for p in same]).mean(dim=0) for same in zip(*(p.own for p in parts), strict=True)]


class Alone:
    """All workers of a run in one process, by torch alone."""

    def __init__(self, case):
        self.case, self.workers = case, [Worker(case, rank) for rank in range(case.schedule.num_workers)]
        self.schedulers = [torch.optim.lr_scheduler.ExponentialLR(one.inner, case.decay) for one in self.workers]
        self.parts = [[Part(worker, turn, case.outer) for worker in self.workers] for turn in case.turns]

    def step(self, rank, step):
        """A worker's own, if it has data for it."""
        worker = self.workers[rank]
        if step < self.case.steps[rank]:
            worker.inner.zero_grad()
            worker.backward()
            worker.inner.step()
            self.schedulers[rank].step()

    def in_rounds(self):
        """Fragment by fragment: all take their own steps until its turn, and then groups average it."""
        schedule, count = self.case.schedule, len(self.parts)
        for round_, number in product(range(self.case.rounds), range(count)):
            starts = [[p.detach().clone() for p in part.own] for part in self.parts[number]]
            for rank in range(schedule.num_workers):
                steps_per_round = schedule.steps_per_round_of(rank)
                for step in range(number * steps_per_round // count, (number + 1) * steps_per_round // count):
                    self.step(rank, round_ * steps_per_round + step)
            for group in groups_of_round(schedule, round_):
                parts = [self.parts[number][rank] for rank in group.members]
                if schedule.strategy.averaging is st.Averaging.STEP_NORMALIZED:
                    mean_steps_per_round = sum(map(schedule.steps_per_round_of, group.members)) / len(parts)
                    for rank, part in zip(group.members, parts, strict=True):
                        part.move(starts[rank], 1 - mean_steps_per_round / schedule.steps_per_round_of(rank))
                means = means_of(parts)
                for part in parts:
                    part.hear(means)
                    steps = self.case.outer.has_own_outer_params or len(parts) == schedule.num_workers
                    part.move(part.outer_step() if steps else means, float(group.relaxation))

    def merged_late(self):
        """Algorithm 2 of streaming DiLoCo's paper."""
        strategy, count = self.case.schedule.strategy, len(self.parts)
        steps_per_round, late, share = strategy.steps_per_round, strategy.sync.steps, 1 - float(strategy.sync.alpha)
        for step in range(1, self.case.rounds * steps_per_round + 1):
            for rank in range(len(self.workers)):
                self.step(rank, step - 1)
            for number, parts in enumerate(self.parts):
                turn = steps_per_round * (number + 1) // count
                if (step + late - turn) % steps_per_round == 0 and step + late >= turn:
                    means = means_of(parts)
                    for part in parts:
                        part.hear(means)
                if (step - turn) % steps_per_round == 0 and step > late:  # else it would merge what was never sent
                    for part in parts:
                        part.move(part.outer_step(), share)


def reference(case):
    """Every worker's parameters at the end."""
    alone = Alone(case)
    if isinstance(case.schedule.strategy.sync, st.DelayedMerge):
        alone.merged_late()
    else:
        alone.in_rounds()
    return [worker.values() for worker in alone.workers]


def complaint(case, got):
    """How these workers' models differ from the reference's by more than the order of sums explains; empty if not."""
    wanted = reference(case)
    error = max(float((values - wanted[rank]).abs().max()) for rank, values in got.items())
    return "" if error <= 1e-9 else f"{case.schedule.name}: off by {error:g}; {case}"
