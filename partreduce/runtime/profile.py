"""Measure a cluster from inside a job: fit link latencies and bandwidths by the cost model, and check predictions."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import least_squares

from partreduce.runtime.arguments import checked_timeout
from partreduce.runtime.codecs import DTYPES, BlockCodec
from partreduce.runtime.environment import GROUP_RANK, SLURM_JOB, SLURM_NODEID, SLURM_TOPOLOGY
from partreduce.runtime.transport.rendezvous import default_world
from partreduce.runtime.transport.store import Notes, watch_for_deaths
from partreduce.runtime.transport.worlds import World
from partreduce.topo.cluster import Cluster
from partreduce.topo.codec_numbers import block_bytes
from partreduce.topo.hardware import CodecSeconds, Hardware, Link, Switch
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.slurm import switches_of
from partreduce.topo.strategies import GroupPhases, StaticGroups
from partreduce.topo.strategies.axes import RING, Codec
from partreduce.topo.timing.loads import Links, SummingGroups

WARM_UP = 1
STEP_REPETITIONS = 10
EVALUATIONS = 100  # of each fit; on noisy measurements some never end, while all other workers wait
MAX_NUMBERS = 2**24  # elements; of larger models only a part is coded, at the same time per byte
LATENCY_SCALE, INVERSE_SCALE = 1e-4, 1e-9
NEGLIGIBLE = 1e-3  # a fitted value below this fraction of its scale explains nothing and is set to 0
NEAR = {"PIX", "PXB"}  # `nvidia-smi topo` paths over PCIe bridges only: the NIC is local to the GPU


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured times of one phase (groups that all-reduce at the same time), with `size` bytes per worker.

    `seconds` has the time of the slowest worker in each repetition.
    """

    phase: Phase
    size: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        ordered = sorted(self.seconds)
        return ordered[len(ordered) // 2]


class Fit(NamedTuple):
    """Hardware parameters (latencies, bandwidths) fitted to measurements, and each measurement's relative error."""

    hardware: Hardware
    errors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """A cluster with its measured hardware, and how well that hardware predicts measured times.

    `checks` has phases that were not used in the fit, each with its predicted seconds; `fit_errors` has the relative
    errors for the phases that were.
    """

    cluster: Cluster
    checks: tuple[tuple[Measurement, float], ...]
    fit_errors: tuple[float, ...]

    @property
    def check_errors(self) -> tuple[float, ...]:
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
    """Measure links, contention, codecs and, given `step`, the compute time of every worker; all workers call it.

    Each calibration phase is timed with `model_bytes` bytes, a half and an eighth of it; the fit is checked on random
    phases.

    Args:
        cluster: shape of the cluster.
        model_bytes: bytes that a schedule will send per average.
        step: function that runs one training step, to measure compute time.
        repetitions: how many times each phase is timed.
        num_checks: number of random phases on which the fit is checked.
        seed: seed of these phases.
        timeout: limit of one operation in seconds.
        device: where the arrays are; by default the CPU.
        world: connection to the other workers; by default from the environment.
        progress: called with a line for each stage.

    Returns:
        The cluster with the fitted hardware, and the errors of the fit.

    Raises:
        InputError: an invalid timeout, or no launcher.
        UnavailableError: a worker does not connect.
    """
    where = device or torch.device("cpu")
    reached = world or default_world(
        where, timedelta(seconds=checked_timeout(timeout)), lambda _store, _rank, _size: None
    )
    say = progress or (lambda _: None)
    sizes = [max(4, model_bytes // part) for part in (1, 2, 8)]
    known = calibration_phases(cluster)
    unseen = random_phases(cluster, num_checks, np.random.default_rng(seed))
    all_phases = StaticGroups(phases=GroupPhases((*known, *unseen)))  # one schedule, to create all groups at once
    reached.prepare(Schedule("profile", cluster.shape(), all_phases))

    def time_phases(wanted: list[tuple[Phase, int]], what: str) -> list[Measurement]:
        say(f"{what} {len(wanted)} phases, {repetitions} times each")
        return measure_phases(reached, wanted, repetitions=repetitions, device=where)

    measured = time_phases([(phase, size) for size in sizes for phase in known], "measuring")
    base = Hardware(model_bytes=model_bytes) if step is None else _with_compute(reached, step, model_bytes, where)
    say("measuring the codecs")
    coded = measure_codecs(reached, model_bytes=model_bytes, repetitions=repetitions, device=where)
    base = replace(base, codec=coded)
    fit = _broadcast_fit(reached, measured, cluster, base, where)
    checked = time_phases([(phase, model_bytes) for phase in unseen], "checking the fit on")
    predictions = [predicted_seconds(measured, cluster, fit.hardware) for measured in checked]
    return Profile(replace(cluster, hardware=fit.hardware), tuple(zip(checked, predictions, strict=True)), fit.errors)


def _broadcast_fit(
    world: World, measured: Sequence[Measurement], cluster: Cluster, base: Hardware, device: torch.device
) -> Fit:
    """Fit links of `base` to measured phases on rank 0, and broadcast them by a tensor on `device`; return the fit."""
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
    """Time `step` on all workers at once; return a Hardware with the compute time of the fastest worker.

    It also has the jitter (standard deviation over mean of a worker's times), and the factors of the workers that take
    over 1.1 times as long as the fastest.
    """
    times = torch.zeros(world.size, STEP_REPETITIONS, device=device)
    step()
    for index in range(STEP_REPETITIONS):
        settle(device)  # so that kernels queued before do not count
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


def measure_phases(
    world: World, wanted: Sequence[tuple[Phase, int]], *, repetitions: int, device: torch.device
) -> list[Measurement]:
    """Time each (phase, bytes per worker) in `wanted`; all workers call it, with the phases' groups created before."""
    buffer = torch.zeros(max(max(1, size // 4) for _, size in wanted), dtype=torch.float32, device=device)

    def run(members: tuple[int, ...] | None, part: torch.Tensor) -> None:
        if members is not None:
            world.communicator(members).all_reduce(part).wait()

    runs = []
    for phase, size in wanted:
        mine = next((group.members for group in phase if world.rank in group.members), None)
        runs.append(partial(run, mine, buffer[: max(1, size // 4)]))
    times = torch.zeros(len(wanted), repetitions, world.size, dtype=torch.float32, device=device)
    times[:, :, world.rank] = _time_runs(world, runs, repetitions=repetitions, device=device)
    world.everyone().all_reduce(times).wait()
    slowest = times.max(dim=2).values
    return [Measurement(phase, size, tuple(row.tolist())) for (phase, size), row in zip(wanted, slowest, strict=True)]


def _time_runs(
    world: World, runs: Sequence[Callable[[], object]], *, repetitions: int, device: torch.device
) -> torch.Tensor:
    """Return how long each function in `runs` takes on this worker, in seconds, [runs, repetitions].

    Each repetition goes through all runs, so that a disturbance of the machine is spread over them. A run starts after
    an all-reduce of one element over all workers.
    """
    gate = torch.zeros(1, dtype=torch.float32, device=device)
    times = torch.zeros(len(runs), repetitions, dtype=torch.float32, device=device)
    for repetition in range(-WARM_UP, repetitions):
        for index, run in enumerate(runs):
            world.everyone().all_reduce(gate).wait()
            settle(device)
            started = perf_counter()
            run()
            settle(device)
            if repetition >= 0:
                times[index, repetition] = perf_counter() - started
    return times


def settle(device: torch.device) -> None:
    """Wait until a CUDA device has finished all queued work; does nothing on CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_codecs(
    world: World, *, model_bytes: int, repetitions: int, device: torch.device
) -> tuple[tuple[str, CodecSeconds], ...]:
    """Measure every codec's time in seconds per byte of float32: the slowest worker's median. All workers call it."""
    count = min(max(1, model_bytes // 4), MAX_NUMBERS)
    values = torch.randn(count, generator=torch.Generator().manual_seed(world.rank)).to(device)
    passes = _passes(values)
    times = _time_runs(world, list(passes.values()), repetitions=repetitions, device=device)
    medians = torch.zeros(world.size, len(passes), dtype=torch.float32, device=device)
    medians[world.rank] = times.median(dim=1).values
    world.everyone().all_reduce(medians).wait()
    slowest = dict(zip(passes, (medians.max(dim=0).values.double() / (4 * count)).tolist(), strict=True))
    names = sorted({codec for codec, _ in passes})
    return tuple(
        (codec, CodecSeconds(*(float(f"{slowest[codec, way]:.3g}") for way in ("encode", "decode")))) for codec in names
    )


def _passes(values: torch.Tensor) -> dict[tuple[str, str], Callable[[], object]]:
    passes: dict[tuple[str, str], Callable[[], object]] = {}
    for codec, dtype in DTYPES.items():
        short, back = values.to(dtype), torch.empty_like(values)
        passes[codec.value, "encode"] = partial(values.to, dtype)
        passes[codec.value, "decode"] = partial(back.copy_, short)
    if values.device.type == "cuda":
        return passes  # block codecs run on the CPU only
    decoded = torch.empty_like(values)
    for codec in (one for one in Codec if one.has_blocks):
        ours = BlockCodec(codec, RING.block)
        code = torch.zeros(block_bytes(codec, len(values), RING.block), dtype=torch.uint8)
        passes[codec.value, "encode"] = partial(ours.encode, values, code)
        passes[codec.value, "decode"] = partial(ours.decode, code, decoded)
    return passes


def calibration_phases(cluster: Cluster) -> list[Phase]:
    """Return phases (groups that all-reduce at once) for fitting hardware: inside and across nodes, of all sizes."""
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
    """Draw `count` random phases: disjoint groups of at least 2 workers; some workers may have no group."""
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


def predicted_seconds(
    measurement: Measurement, cluster: Cluster, hardware: Hardware, groups: SummingGroups | None = None
) -> float:
    """Return the seconds that the cost model predicts for a measured phase, that is, for its slowest group.

    `groups` are the phase's, computed before, which do not depend on the hardware.
    """
    groups = groups or _groups_of(measurement, cluster)
    links, size = Links.of(cluster, hardware), measurement.size
    return float(groups.loads(links, num_nics=hardware.num_nics, model_bytes=size).seconds().max(initial=0.0))


def _groups_of(measurement: Measurement, cluster: Cluster) -> SummingGroups:
    return SummingGroups.of(measurement.phase, cluster, RING.algorithm.value)


def fit_hardware(measurements: Sequence[Measurement], cluster: Cluster, base: Hardware) -> Fit:
    """Fit latency and inverse bandwidth of intra-node links, NICs and bus by least squares on log seconds.

    Phases with several concurrent groups distinguish a link from the bus. Four starting points are tried, and the best
    fit is returned. All other fields are copied from `base`.
    """
    across = cluster.num_nodes > 1
    measured = np.log([measurement.median for measurement in measurements])
    groups = [_groups_of(measurement, cluster) for measurement in measurements]

    def usual(*, crossing: bool) -> float:
        """Return log(median seconds per byte / `INVERSE_SCALE`) of phases that cross nodes (or do not)."""
        rates = [m.median / m.size for m in measurements if _crosses(m.phase, cluster) == crossing]
        return float(np.log(np.median(rates) / INVERSE_SCALE)) if rates else 0.0

    inside, nic = usual(crossing=False), usual(crossing=True)

    def hardware_of(logs: npt.NDArray[np.float64]) -> Hardware:
        values = np.exp(logs)
        links = [
            Link(float(values[i]) * LATENCY_SCALE, float(values[i + 1]) * INVERSE_SCALE) for i in range(0, len(logs), 2)
        ]
        return replace(base, inside=links[0], bus=links[1], nic=links[2] if across else base.nic)

    def predictions(hardware: Hardware) -> list[float]:
        return [predicted_seconds(m, cluster, hardware, of) for m, of in zip(measurements, groups, strict=True)]

    def residuals(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(np.log(np.maximum(predictions(hardware_of(logs)), 1e-9)) - measured)

    count = 6 if across else 4
    starts = [np.zeros(count), np.resize([0.0, -2.0], count), np.resize([-2.0, 0.0, 0.0, -1.0], count)]
    # A link that limits no phase has zero gradient, so a fit started far from a slow link would not find it.
    starts.append(np.array([0.0, inside, -2.0, inside - 2.0, 0.0, nic][:count]))
    closest = min(
        (
            least_squares(residuals, start, loss="soft_l1", bounds=(-12.0, 12.0), max_nfev=EVALUATIONS)
            for start in starts
        ),
        key=lambda result: float(result.cost),
    )
    hardware = _without_negligible(hardware_of(closest.x))
    errors = [seconds / m.median - 1 for seconds, m in zip(predictions(hardware), measurements, strict=True)]
    return Fit(hardware, tuple(errors))


def _crosses(phase: Phase, cluster: Cluster) -> bool:
    node_of = cluster.node_of()
    return any(len(np.unique(node_of[list(group.members)])) > 1 for group in phase)


def _without_negligible(hardware: Hardware) -> Hardware:
    def clean(link: Link) -> Link:
        return Link(
            link.latency if link.latency > NEGLIGIBLE * LATENCY_SCALE else 0.0,
            link.seconds_per_byte if link.seconds_per_byte > NEGLIGIBLE * INVERSE_SCALE else 0.0,
        )

    return replace(hardware, inside=clean(hardware.inside), nic=clean(hardware.nic), bus=clean(hardware.bus))


def cluster_of(world: World) -> Cluster:
    """Return the job's cluster, by launchers' node numbers, nodes ordered by lowest rank; all workers call it."""
    nodes: dict[str, list[int]] = {}
    own = os.environ.get(GROUP_RANK) or os.environ.get(SLURM_NODEID) or "0"
    for rank, node in enumerate(_gather_texts(world, "profile/node", own, range(world.size))):
        nodes.setdefault(node, []).append(rank)
    return Cluster.irregular(list(nodes.values()))


def _gather_texts(world: World, place: str, text: str, ranks: Sequence[int]) -> list[str]:
    notes, abort_reason = Notes(world.store, place), watch_for_deaths(world.store, ranks)
    notes.write(str(world.rank), text)
    return [notes.wait_for(str(rank), abort_reason=abort_reason) for rank in ranks]


def slurm_words(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the SLURM variables that describe the job (id, nodes, partition), by name; empty outside SLURM."""
    return {name: environment[name] for name in SLURM_JOB if environment.get(name)}


def slurm_switches(world: World, cluster: Cluster) -> tuple[Switch, ...]:
    """Return the switches, without bandwidths, that SLURM's topology plugin reports; all workers call it."""
    words = "\n".join(os.environ.get(name, "") for name in SLURM_TOPOLOGY)
    first = [cluster.workers_of(node)[0] for node in range(cluster.num_nodes)]
    return switches_of(_gather_texts(world, "profile/address", words, first))


def gpu_topology() -> str | None:
    """Return the output of `nvidia-smi topo -m`; None if the tool is missing or fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def num_rails(table: str) -> int:
    """Count the NICs local to a GPU (path PIX or PXB) in the output of `nvidia-smi topo -m`; at least 1."""
    rows = [line.split("\t") for line in table.splitlines() if "\t" in line]
    if not rows:
        return 1
    header = [cell.strip() for cell in rows[0]]
    rails = set()
    for row in rows[1:]:
        cells = [cell.strip() for cell in row]
        if not cells[0].startswith("GPU"):
            continue
        for name, path in zip(header[1:], cells[1:], strict=False):
            if name.startswith(("NIC", "mlx", "IB")) and path in NEAR:
                rails.add(name)
    return max(1, len(rails))
