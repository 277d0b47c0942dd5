"""A whole profile: measure the calibration phases, fit, then check the fit on random phases that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from time import perf_counter

import numpy as np
import torch

from partreduce.runtime.arguments import checked_timeout
from partreduce.runtime.profile.codecs import measure_codecs
from partreduce.runtime.profile.fit import Fit, fit_hardware, predicted_seconds
from partreduce.runtime.profile.measure import Measurement, measure_phases, settle
from partreduce.runtime.profile.phases import calibration_phases, random_phases
from partreduce.runtime.transport.rendezvous import default_world
from partreduce.runtime.transport.worlds import World
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, Static

STEP_REPETITIONS = 10


@dataclass(frozen=True, slots=True)
class Profile:
    """The cluster with its measured hardware; `checks` are (measured, predicted) seconds of phases not fitted to.

    `fit_errors` are the relative errors on the phases that were fitted.
    """

    cluster: Cluster
    checks: tuple[tuple[Measurement, float], ...]
    fit_errors: tuple[float, ...]

    @property
    def check_errors(self) -> tuple[float, ...]:
        """Predicted over measured, minus 1, of every checked phase."""
        return tuple(predicted / measurement.median - 1 for measurement, predicted in self.checks)


def profile(
    cluster: Cluster,
    *,
    model_bytes: int,
    step: Callable[[], object] | None = None,
    repetitions: int = 7,
    num_checks: int = 10,
    seed: int = 0,
    timeout: float = 120.0,
    device: torch.device | None = None,
    world: World | None = None,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Measure links, contention, codecs and, given `step`, the compute time of every worker. All workers call this.

    Args:
        cluster: its shape; number of workers as in this run.
        model_bytes: the size that the schedule will move; also half and an eighth of it are measured.
        step: runs one training step of this worker; its median over 10 calls becomes `compute`, its spread `jitter`.
        repetitions: of every phase; medians count.
        num_checks: random phases on which the fit is checked afterwards.
        seed: of those phases.
        timeout: seconds for any single operation.
        device: cpu by default.
        world: how to reach the others; found from the launcher's environment by default.
        progress: told what is being measured.

    Raises:
        InputError: the run has another number of workers, or a group budget is exceeded.
        UnavailableError: a worker is gone.
    """
    where = device or torch.device("cpu")
    reached = world or default_world(
        where, timedelta(seconds=checked_timeout(timeout)), lambda _store, _rank, _size: None
    )
    say = progress or (lambda _: None)
    sizes = [max(4, model_bytes // part) for part in (1, 2, 8)]
    known = calibration_phases(cluster)
    unseen = random_phases(cluster, num_checks, np.random.default_rng(seed))
    _prepare(reached, cluster, [*known, *unseen])

    def timed(wanted: list[tuple[Phase, int]], what: str) -> list[Measurement]:
        say(f"{what} {len(wanted)} phases, {repetitions} times each")
        return measure_phases(reached, wanted, repetitions=repetitions, device=where)

    measured = timed([(phase, size) for size in sizes for phase in known], "measuring")
    base = Hardware(model_bytes=model_bytes) if step is None else _with_compute(reached, step, model_bytes, where)
    say("measuring the codecs")
    coded = measure_codecs(reached, model_bytes=model_bytes, repetitions=repetitions, device=where)
    base = replace(base, codec=coded)
    fit = _fitted(reached, measured, cluster, base, where)
    checked = timed([(phase, model_bytes) for phase in unseen], "checking the fit on")
    predictions = [predicted_seconds(measured, cluster, fit.hardware) for measured in checked]
    return Profile(replace(cluster, hardware=fit.hardware), tuple(zip(checked, predictions, strict=True)), fit.errors)


def _prepare(world: World, cluster: Cluster, phases: Sequence[Phase]) -> None:
    """Make all groups at once, through a schedule that holds every phase."""
    world.prepare(Schedule("profile", cluster.shape(), Static(phases=GroupPhases(tuple(phases)))))


def _fitted(
    world: World, measured: Sequence[Measurement], cluster: Cluster, base: Hardware, device: torch.device
) -> Fit:
    """Rank 0's fit, told to all: a fit takes seconds of one core, which workers of one node would take in turn."""
    known = torch.zeros(6 + len(measured), dtype=torch.float64, device=device)
    if world.rank == 0:
        fit = fit_hardware(measured, cluster, base)
        links = [
            (link.latency, link.seconds_per_byte) for link in (fit.hardware.inside, fit.hardware.bus, fit.hardware.nic)
        ]
        known += torch.tensor([*chain(*links), *fit.errors], dtype=torch.float64, device=device)
    world.everyone().all_reduce(known).wait()  # the others add zeros
    figures = known.tolist()
    inside, bus, nic = (Link(*figures[i : i + 2]) for i in (0, 2, 4))
    return Fit(replace(base, inside=inside, bus=bus, nic=nic), tuple(figures[6:]))


def _with_compute(world: World, step: Callable[[], object], model_bytes: int, device: torch.device) -> Hardware:
    """Everybody computes at the same time, as in training; workers slower than 1.1 times the fastest are noted."""
    times = torch.zeros(world.size, STEP_REPETITIONS, device=device)
    step()
    for index in range(STEP_REPETITIONS):
        settle(device)  # a step that was only queued has taken no time yet
        started = perf_counter()
        step()
        settle(device)
        times[world.rank, index] = perf_counter() - started
    world.everyone().all_reduce(times).wait()
    medians = times.median(dim=1).values
    fastest = float(medians.min())
    slow = [(rank, float(value) / fastest) for rank, value in enumerate(medians.tolist()) if value > 1.1 * fastest]
    jitter = float((times.std(dim=1) / times.mean(dim=1)).mean())
    slowdown = tuple((rank, round(factor, 3)) for rank, factor in slow)
    return Hardware(model_bytes=model_bytes, compute=fastest, slowdown=slowdown, jitter=round(jitter, 4))
