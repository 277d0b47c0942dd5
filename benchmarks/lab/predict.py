"""Simulator against lab: calibrate the cost model on one half of the cells, predict the others' step times.

All nodes of the lab share one machine, which a real cluster's do not. What computing and copying cost its few cores is
therefore added to what the virtual-time engine's stages take on the wire: so many seconds per byte that any worker
sends and per message, a fixed time per step, and what a codec takes for all workers on the host's cores. Sleeping and
the wire overlap; these seconds do not. In a pipeline those of an operation belong to the operation, so that they are
hidden behind other steps' computing, which sleeps.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.lab.setting import BACKWARD, SEGMENTS
from partreduce.runtime.virtual_time.case import Case
from partreduce.runtime.virtual_time.rounds import SharedHost, run_rounds
from partreduce.runtime.virtual_time.simulate import simulate
from partreduce.topo.hardware import CodecSeconds, Hardware, Link
from partreduce.topo.phase import Phase
from partreduce.topo.strategies.axes import Codec, Form
from partreduce.topo.timing.coding import Travel
from partreduce.topo.timing.loads import shape_of
from partreduce.topo.timing.traffic import of_sum

if TYPE_CHECKING:
    import numpy.typing as npt

    from benchmarks.lab.setting import Setting
    from partreduce.topo.schedule import Schedule

CLOSE = 0.15
STEPS = 48
MIN_CELLS = 8
NAMES = ("NIC latency", "NIC inefficiency", "host s per byte", "host s per message", "host s per step", "codec")
STARTS = ((1e-4, 1.05, 3e-10, 1e-5, 5e-3, 1.0), (5e-4, 1.05, 1e-9, 1e-6, 1e-2, 2.0))
CORES = os.cpu_count() or 1
"""All workers encode and decode on these: the lab's workers run where their results are looked at. The fitted figure
"codec" is how many times as long it takes as `topo.timing.coding` says of an undisturbed core."""

ON_HOST = tuple((codec.value, CodecSeconds()) for codec in Codec if codec is not Codec.NONE)
"""Codecs that take no time of a node's own, since the host that all nodes share does their work."""

UPPER = (1e-2, 1.3, 1e-8, 1e-3, 1e-1, 30.0)


@dataclass(frozen=True, slots=True)
class Point:
    """A cell that the simulator can predict: its schedule, form, setting, and what was measured (ms per step).

    `steps` are those of each worker.
    """

    contestant: str
    setting: Setting
    schedule: Schedule
    form: str
    measured: float
    model_bytes: int
    steps: int = STEPS


@dataclass(frozen=True, slots=True)
class Prediction:
    """One point with its prediction; `calibrated` says to which half it belongs."""

    contestant: str
    setting: str
    measured: float
    predicted: float
    calibrated: bool

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted / self.measured - 1


def simulated_ms(point: Point, hardware: Hardware) -> float:
    """Milliseconds per step as the lab counts them, on a cluster whose nodes share nothing but the network."""
    paces = point.schedule.paces()
    rounds = max(1, point.steps // int(paces.max()))
    compute, form = point.setting.compute_times(), Form(point.form)
    timeline = simulate(
        point.schedule, in_segments(hardware, point.setting.task), compute=compute, num_rounds=rounds, form=form
    )
    return 1e3 * len(paces) / float((paces * rounds / timeline.finish[-1]).sum())


def in_segments(hardware: Hardware, task: str) -> Hardware:
    """With the segments of the task's gradient: one place more than layers, since layers wait before they compute."""
    segments = SEGMENTS[task]
    return replace(hardware, layers=segments, backward=BACKWARD * len(segments) / (len(segments) - 1))


@dataclass(frozen=True, slots=True)
class HostWork:
    """What the host does for one round: models and messages that all workers together send, and seconds of codecs."""

    models: float
    messages: float
    codec_seconds: float


def host_work(point: Point) -> list[HostWork]:
    """Of each round of a period.

    A ring of k workers sends 2(k−1) models in 2(k−1) messages of each worker; a codec sends fewer bytes and computes,
    for all workers on the cores that they share.
    """
    schedule, found = point.schedule, []
    hardware = in_segments(Hardware(nic=Link(0.0, 1.0)), point.setting.task)
    travel = Travel.of(schedule.strategy.how, hardware, Form(point.form))
    for step in schedule.steps():
        if isinstance(step, Phase):
            shape, _ = shape_of(step, schedule.cluster)
            traffic = of_sum(shape, travel.form.value, travel.coding)
            messages = len(travel.shares) * (shape.sizes * traffic.messages).sum()
            seconds = point.model_bytes * (shape.sizes * traffic.codec).sum() / CORES
            found.append(HostWork(float((shape.sizes * traffic.sent).sum()), float(messages), float(seconds)))
        else:
            found.append(HostWork(float(len(step.targets)), float(len(step.targets)), 0.0))
    return found


def predicted_ms(point: Point, values: npt.NDArray[np.float64], *, works: list[HostWork] | None = None) -> float:
    """As `simulated_ms`, with the six fitted figures and one host for all, whose `works` may be known already."""
    setting, schedule = point.setting, point.schedule
    nic = Link(float(values[0]), float(values[1]) * 8e-6 / setting.megabits)
    by_byte, by_message, codec = float(values[2]) * point.model_bytes, float(values[3]), float(values[5])
    on_host = tuple(
        work.models * by_byte + work.messages * by_message + work.codec_seconds * codec
        for work in works or host_work(point)
    )
    paces = schedule.paces()
    rounds = max(1, point.steps // int(paces.max()))
    hardware = in_segments(Hardware(nic=nic, codec=ON_HOST, model_bytes=point.model_bytes), setting.task)
    case = Case(schedule, hardware, setting.compute_times(), rounds, seed=0, model_bytes=None, form=Form(point.form))
    timeline = run_rounds(case, host=SharedHost(float(values[4]), on_host))
    return 1e3 * len(paces) / float((paces * rounds / timeline.finish[-1]).sum())


def calibrate(points: list[Point]) -> npt.NDArray[np.float64]:
    """Fit the figures by least squares on logarithms of step times; the better of two starting points."""
    from scipy.optimize import least_squares

    measured = np.log([point.measured for point in points])
    works = [host_work(point) for point in points]

    def residuals(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        values = np.exp(logs)
        return np.asarray(
            np.log([predicted_ms(p, values, works=w) for p, w in zip(points, works, strict=True)]) - measured
        )

    bounds = (-28.0, np.log(UPPER))
    found = [
        least_squares(residuals, np.log(start), loss="soft_l1", f_scale=0.1, bounds=bounds, max_nfev=30)
        for start in STARTS
    ]
    return np.asarray(np.exp(min(found, key=lambda result: float(result.cost)).x))


def against_lab(points: list[Point]) -> dict[str, Any]:
    """Calibrate on every second cell (in the order of setting and contestant), predict all, count the close ones."""
    ordered = sorted(points, key=lambda p: (p.setting.name, p.contestant))
    values = calibrate(ordered[::2])
    predictions = [
        Prediction(p.contestant, p.setting.name, p.measured, predicted_ms(p, values), calibrated=index % 2 == 0)
        for index, p in enumerate(ordered)
    ]
    other = [p for p in predictions if not p.calibrated]
    close = sum(abs(p.error) <= CLOSE for p in other)
    return {
        "figures": dict(zip(NAMES, values.tolist(), strict=True)),
        "predicted_half": len(other),
        "within_15_percent": close / len(other) if other else None,
        "median_error": float(np.median([abs(p.error) for p in other])) if other else None,
        "points": [asdict(p) for p in predictions],
    }


def by_profile(points: list[Point], hardware: dict[str, Hardware]) -> list[Prediction]:
    """The same cells predicted from profiled links alone, without a look at any measured step time."""
    return [
        Prediction(p.contestant, p.setting.name, p.measured, simulated_ms(p, hardware[p.setting.name]), False)
        for p in points
        if p.setting.name in hardware
    ]


def predicted(points: list[Point], profiles: dict[str, Hardware]) -> dict[str, Any] | None:
    """Both predictions with their summary in words; None for too few cells."""
    if len(points) < MIN_CELLS:
        return None
    found = against_lab(points)
    profiled = by_profile(points, profiles)
    close = sum(abs(p.error) <= CLOSE for p in profiled)
    found["from_profile"] = [asdict(p) for p in profiled]
    figures = ", ".join(f"{key} {value:.3g}" for key, value in found["figures"].items())
    found["words"] = (
        f"Calibrated on {len(points) - found['predicted_half']} cells, every second one in the order of setting and "
        f"contestant ({figures}); of the other {found['predicted_half']} cells {found['within_15_percent']:.0%} were "
        f"predicted within 15 % (median error {found['median_error']:.1%})."
        + (f" From the profile alone: {close} of {len(profiled)} within 15 %." if profiled else "")
    )
    return found
