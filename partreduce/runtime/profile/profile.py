"""A whole profile: measure the calibration phases, fit, then check the fit on random phases that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from time import perf_counter

import numpy as np
import torch

from partreduce.runtime.arguments import checked_timeout
from partreduce.runtime.codecs import DTYPES, BlockCodec
from partreduce.runtime.profile.fit import Fit, fit_hardware, predicted_seconds
from partreduce.runtime.profile.measure import WARM_UP, Measurement, measure_phases, settle
from partreduce.runtime.transport.rendezvous import default_world
from partreduce.runtime.transport.worlds import World
from partreduce.topo.cluster import Cluster
from partreduce.topo.codec_numbers import block_bytes
from partreduce.topo.hardware import CodecSeconds, Hardware, Link
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, StaticGroups
from partreduce.topo.strategies.axes import RING, Codec

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
    world.prepare(Schedule("profile", cluster.shape(), StaticGroups(phases=GroupPhases(tuple(phases)))))


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
    metrics = known.tolist()
    inside, bus, nic = (Link(*metrics[i : i + 2]) for i in (0, 2, 4))
    return Fit(replace(base, inside=inside, bus=bus, nic=nic), tuple(metrics[6:]))


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


def calibration_phases(cluster: Cluster) -> list[Phase]:
    """One group and several at once, inside nodes and across them, from pairs to everybody; duplicates are left out."""
    n = cluster.num_workers
    nodes = [list(cluster.workers_of(node)) for node in range(cluster.num_nodes)]
    candidates: list[list[list[int]]] = [[list(range(n))]]
    for size in (2, 3, 4):
        chunks = [[node[i : i + size] for i in range(0, len(node) - size + 1, size)] for node in nodes]
        flat = [chunk for node in chunks for chunk in node]
        if flat:
            candidates += [[flat[0]], flat, flat[: max(1, len(flat) // 2)]]
    candidates += [[node] for node in nodes[:1] if len(node) > 1] + [[node for node in nodes if len(node) > 1]]
    if len(nodes) > 1:
        columns = [list(column) for column in zip(*nodes, strict=False)]
        pairs = [[a, b] for a, b in zip(nodes[0], nodes[1], strict=False)]
        candidates += [[columns[0]], columns, [pairs[0]], pairs]
    return list(dict.fromkeys(Phase.from_groups(n, groups) for groups in candidates if groups))


def random_phases(cluster: Cluster, count: int, rng: np.random.Generator) -> list[Phase]:
    """Random partitions into groups of 2 to n workers, some workers skipping; at least one group each."""
    n = cluster.num_workers
    phases: list[Phase] = []
    while len(phases) < count:
        order = rng.permutation(n).tolist()
        groups, start = [], 0
        while n - start >= 2:
            size = int(rng.integers(2, min(n - start, max(2, n // 2)) + 1))
            if rng.random() < 0.85:
                groups.append(order[start : start + size])
            start += size
        if groups:
            phases.append(Phase.from_groups(n, groups))
    return phases


MAX_NUMBERS = 2**24
"""Of a larger model a part is coded, which takes as long for each byte."""


def measure_codecs(
    world: World, *, model_bytes: int, repetitions: int, device: torch.device
) -> tuple[tuple[str, CodecSeconds], ...]:
    """Seconds per byte of float32 of every codec, by name; the slowest worker's median. All workers call this.

    Raises:
        UnavailableError: a worker is gone.
    """
    count = min(max(1, model_bytes // 4), MAX_NUMBERS)
    values = torch.randn(count, generator=torch.Generator().manual_seed(world.rank)).to(device)
    passes = _passes(values)
    times = torch.zeros(len(passes), repetitions, dtype=torch.float32, device=device)
    gate = torch.zeros(1, dtype=torch.float32, device=device)
    for repetition in range(-WARM_UP, repetitions):
        for index, run in enumerate(passes.values()):
            world.everyone().all_reduce(gate).wait()
            settle(device)
            started = perf_counter()
            run()
            settle(device)
            if repetition >= 0:
                times[index, repetition] = perf_counter() - started
    medians = torch.zeros(world.size, len(passes), dtype=torch.float32, device=device)
    medians[world.rank] = times.median(dim=1).values
    world.everyone().all_reduce(medians).wait()
    slowest = dict(zip(passes, (medians.max(dim=0).values.double() / (4 * count)).tolist(), strict=True))
    names = sorted({codec for codec, _ in passes})
    return tuple(
        (codec, CodecSeconds(*(float(f"{slowest[codec, way]:.3g}") for way in ("encode", "decode")))) for codec in names
    )


def _passes(values: torch.Tensor) -> dict[tuple[str, str], Callable[[], object]]:
    """(codec, encode or decode) → what does it, in the order in which they can run."""
    passes: dict[tuple[str, str], Callable[[], object]] = {}
    for codec, dtype in DTYPES.items():
        short, back = values.to(dtype), torch.empty_like(values)
        passes[codec.value, "encode"] = partial(values.to, dtype)
        passes[codec.value, "decode"] = partial(back.copy_, short)
    if values.device.type == "cuda":
        return passes  # the run-time has no codecs of blocks there
    decoded = torch.empty_like(values)
    for codec in (one for one in Codec if one.has_blocks):
        ours = BlockCodec(codec, RING.block)
        code = torch.zeros(block_bytes(codec, len(values), RING.block), dtype=torch.uint8)
        passes[codec.value, "encode"] = partial(ours.encode, values, code)
        passes[codec.value, "decode"] = partial(ours.decode, code, decoded)
    return passes
