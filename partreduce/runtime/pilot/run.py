"""Run a pilot on the current workers: train the user's job under each schedule, from equal starts, once per seed."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

from partreduce.runtime.arguments import checked_timeout
from partreduce.runtime.liveness.store_collectives import broadcast_decision
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.pilot.job import Curve, PilotJob, probes, reference
from partreduce.runtime.profile import cluster_of
from partreduce.runtime.sharding.row_access import evaluating
from partreduce.runtime.transport.rendezvous import default_world, place
from partreduce.runtime.transport.worlds import World
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule, schedule_of
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule

Build = Callable[[int], PilotJob]

EVALUATION_BATCHES = 4
POINTS = 20  # evaluations per run, besides the first one
PLANNING_SECONDS = 600.0  # timeout for worker 0 to choose further schedules
SAME = 1e-3  # starts whose losses differ by more than this (relative) count as different


def run_pilot(
    build: Build,
    *,
    steps: int,
    seeds: Sequence[int],
    warm_up: int = 0,
    data: str = "shuffled",
    cluster: Cluster | None = None,
    schedules: Sequence[Schedule] | None = None,
    then: Callable[[list[Curve]], Sequence[Schedule]] | None = None,
    timeout: float = 120.0,
    progress: Callable[[str], None] | None = None,
) -> list[Curve]:
    """Train the job under all-reduce and every probe, once per seed; all workers call it and get the same loss curves.

    Args:
        build: function that makes this worker's job from a seed.
        steps: optimizer steps of each run.
        seeds: seeds of the runs.
        warm_up: steps of all-reduce before each run, which do not count.
        data: how samples are distributed: `shuffled`, `per-worker` or `per-node`.
        cluster: shape of the cluster; by default that of the running job.
        schedules: schedules to compare with all-reduce; by default those of `probes`.
        then: called on worker 0 with the curves so far; returns further schedules to run, until it returns none.
        timeout: seconds that an average may wait for its members.
        progress: called with a line for each run.

    Raises:
        InputError: one worker, an unfit `build`, unequal jobs of one seed, or an infinite loss under all-reduce.
    """
    say = progress or (lambda _: None)
    where = cluster or cluster_of(_world(_built(build, seeds[0]), timeout))
    if where.num_workers < 2:
        raise InputError("pilot: has one worker, and averaging takes two or more; start it with --workers N")
    compared = [reference(where), *(schedules or probes(where, steps=steps, data=data))]
    curves: list[Curve] = []
    while compared:
        for number, (seed, schedule) in enumerate(itertools.product(seeds, compared)):
            if any(is_harder(schedule, curve.schedule) for curve in curves if not curve.is_stable):
                say(f"{number + 1} of {len(seeds) * len(compared)}: {schedule.name} is left out: its class is unstable")
                continue
            say(f"{number + 1} of {len(seeds) * len(compared)}: {schedule.name}, seed {seed}, {steps} steps")
            job = _built(build, seed)
            curve = _run(job, schedule, seed, steps=steps, warm_up=warm_up, timeout=timeout)
            check_other_start(curves, curve)
            if not curve.is_stable:
                say(f"{schedule.name}: its loss is no number any more; it is left out, and what is harder of its class")
            curves.append(curve)
        compared = [] if then is None else _next(_world(job, timeout), curves, then)
    return curves


def is_harder(schedule: Schedule, unstable: Schedule) -> bool:
    """Return whether to leave out a schedule because `unstable`, whose rounds are at most as long, diverged.

    Schedules that average with a delay are compared only with each other.
    """
    if schedule.strategy.averages_gradients or unstable.strategy.averages_gradients:
        return False  # the reference, or a pipeline, which is a kind of its own
    is_longer = int(schedule.worker_steps().max()) >= int(unstable.worker_steps().max())
    return is_longer and schedule.strategy.mixes_late == unstable.strategy.mixes_late


def check_other_start(earlier: Sequence[Curve], curve: Curve) -> None:
    """Raise InputError if a run's first loss differs from that of an earlier run with the same seed."""
    start = next((other.losses[0] for other in earlier if other.seed == curve.seed), curve.losses[0])
    if not math.isclose(curve.losses[0], start, rel_tol=SAME):
        raise InputError(
            f"pilot: two jobs of seed {curve.seed} start at losses {start:.6g} and {curve.losses[0]:.6g}; the function "
            "must draw parameters and batches from its seed alone"
        )


def _built(build: Build, seed: int) -> PilotJob:
    torch.manual_seed(seed)
    try:
        inspect.signature(build).bind(seed)
    except TypeError:
        raise InputError("pilot: the function does not take the seed; write `def NAME(seed):`") from None
    job = build(seed)
    if not isinstance(job, PilotJob):
        raise InputError(f"pilot: the function returned a {type(job).__name__}; it returns a partreduce.PilotJob")
    return job


def _world(job: PilotJob, timeout: float) -> World:
    device = next(job.model.parameters()).device
    return default_world(device, timedelta(seconds=checked_timeout(timeout)), lambda _store, _rank, _size: None)


def _next(world: World, curves: list[Curve], then: Callable[[list[Curve]], Sequence[Schedule]]) -> list[Schedule]:
    """Return, on all workers, the schedules that `then` chooses on worker 0; its errors are raised on all."""
    found = broadcast_decision(
        world,
        f"pilot/after-{len(curves)}-runs",
        lambda: [dump_schedule(schedule) for schedule in then(curves)],
        PLANNING_SECONDS,
        who="pilot",
    )
    return [schedule_of(document) for document in found]


def _run(job: PilotJob, schedule: Schedule, seed: int, *, steps: int, warm_up: int, timeout: float) -> Curve:
    torch.manual_seed(1_000_003 * seed + place()[0])  # random numbers differ between workers, not between schedules
    batches = _endless(job)
    kept = list(itertools.islice(batches, EVALUATION_BATCHES))
    if warm_up:
        together = DistributedOptimizer(job.optimizer, job.model, reference(schedule.cluster), timeout=timeout)
        for batch in itertools.islice(batches, warm_up):
            _step(job, together, batch)
        together.finish()
    optimizer = DistributedOptimizer(job.optimizer, job.model, schedule, timeout=timeout)
    every, rank = max(1, steps // POINTS), place()[0]
    losses = []
    for step in range(steps + 1):
        if step % every == 0:
            with optimizer.mean_model(), torch.no_grad(), evaluating(job.model):
                losses.append(sum(float(job.loss(batch)) for batch in kept) / len(kept))
        if step < steps and schedule.stepping_at(step)[rank]:
            _step(job, optimizer, next(batches))
    curve = torch.tensor(losses, dtype=torch.float32, device=next(job.model.parameters()).device)
    with optimizer.mean_model():  # no other operation is in flight there, so the losses can be summed
        reducer = optimizer.run.reducer
        everyone = reducer.world.everyone()
        with reducer.recorded("sum of losses", steps, steps, everyone.members, curve.nbytes) as operation:
            reducer.wait_for(everyone.all_reduce(curve), operation)
    optimizer.finish()
    mean = tuple((curve / optimizer.num_workers).tolist())
    found = Curve(schedule, seed, every, mean)
    if found.is_reference and not found.is_stable:
        raise InputError(
            f"pilot: the loss under {schedule.name} (seed {seed}) is {next(x for x in mean if not math.isfinite(x))}; "
            "lower the learning rate, or take a later start"
        )
    return found


def _endless(job: PilotJob) -> Iterator[Any]:
    while True:
        empty = True
        for batch in job.batches:
            empty = False
            yield batch
        if empty:
            raise InputError("pilot: the job's batches are empty or ended; pass an iterable such as a DataLoader")


def _step(job: PilotJob, optimizer: DistributedOptimizer, batch: Any) -> None:  # noqa: ANN401 - the user's batch
    if job.step is not None:
        job.step(optimizer, batch)
        return
    optimizer.zero_grad()
    job.loss(batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    optimizer.step()
