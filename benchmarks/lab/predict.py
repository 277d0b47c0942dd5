"""Simulator against lab: calibrate the cost model on one half of the cells, predict the others' step times.

All nodes of the lab share one machine, which a real cluster's do not. What computing and copying cost its few cores is
therefore added to what the virtual-time engine's stages take on the wire: so many seconds per byte that any worker
sends and per message, for each second that codecs compute, and a fixed time per step. Sleeping and the wire overlap;
these seconds do not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.lab.setting import MODEL_LAYERS
from preduce.runtime.virtual_time.rounds import SharedHost, run_rounds
from preduce.runtime.virtual_time.simulate import simulate
from preduce.topo.hardware import Hardware, Link
from preduce.topo.phase import Phase
from preduce.topo.strategies.axes import Form
from preduce.topo.timing.coding import Coding
from preduce.topo.timing.traffic import Shape, of_sum

if TYPE_CHECKING:
    import numpy.typing as npt

    from benchmarks.lab.setting import Setting
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule

CLOSE = 0.15
STEPS = 48
MIN_CELLS = 8
NAMES = (
    "NIC latency",
    "NIC inefficiency",
    "host s per byte",
    "host s per message",
    "host s per step",
    "host s per codec s",
)
STARTS = ((1e-4, 1.05, 3e-10, 1e-5, 5e-3, 0.5), (5e-4, 1.05, 1e-9, 1e-6, 1e-2, 0.1))
UPPER = (1e-2, 1.3, 1e-8, 1e-3, 1e-1, 4.0)


@dataclass(frozen=True, slots=True)
class Point:
    """A cell that the simulator can predict: its schedule, form, setting, and what was measured (ms per step)."""

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
    timeline = simulate(point.schedule, hardware, compute=compute, num_rounds=rounds, form=form)
    return 1e3 * len(paces) / float((paces * rounds / timeline.finish[-1]).sum())


@dataclass(frozen=True, slots=True)
class OnHost:
    """What all workers together do in one round: models and messages sent, codec seconds per byte of the model."""

    models: float
    messages: float
    codec: float = 0.0


def traffic(schedule: Schedule, form: str) -> list[OnHost]:
    """Each round of a period. A ring of k workers sends 2(k−1) models in 2(k−1) messages of each worker."""
    coding = Coding.of(schedule.strategy.how, Hardware(nic=Link(0.0, 1.0)))
    found = []
    for step in schedule.steps():
        if isinstance(step, Phase):
            sizes, sums = step.sizes, of_sum(_shape(step, schedule.cluster), form, coding)
            found.append(OnHost(*(float((sizes * each).sum()) for each in (sums.sent, sums.messages, sums.codec))))
        else:
            found.append(OnHost(float(len(step.targets)), float(len(step.targets))))
    return found


def _shape(phase: Phase, cluster: Cluster) -> Shape:
    """How many workers each group has, and on how many nodes."""
    node_of = cluster.node_of()
    here = [np.unique(node_of[group], return_counts=True)[1] for group in np.split(phase.members, phase.offsets[1:-1])]
    return Shape(
        phase.sizes,
        np.array([len(counts) for counts in here]),
        np.array([counts.max() for counts in here], dtype=float),
        np.array([counts.min() for counts in here], dtype=float),
        np.concatenate(here).astype(float) if here else np.zeros(0),
    )


def predicted_ms(point: Point, values: npt.NDArray[np.float64]) -> float:
    """As `simulated_ms`, with the fitted figures and one host for all."""
    setting, schedule = point.setting, point.schedule
    nic = Link(float(values[0]), float(values[1]) * 8e-6 / setting.megabits)
    moved = traffic(schedule, point.form)
    per_byte, per_message, per_codec_second = (float(values[index]) for index in (2, 3, 5))
    on_host = tuple(
        (t.models * per_byte + t.codec * per_codec_second) * point.model_bytes + t.messages * per_message for t in moved
    )
    paces = schedule.paces()
    rounds = max(1, point.steps // int(paces.max()))
    timeline = run_rounds(
        schedule,
        Hardware(nic=nic, model_bytes=point.model_bytes, layers=MODEL_LAYERS[setting.task]),
        setting.compute_times(),
        num_rounds=rounds,
        seed=0,
        model_bytes=None,
        form=Form(point.form),
        host=SharedHost(float(values[4]), on_host),
    )
    return 1e3 * len(paces) / float((paces * rounds / timeline.finish[-1]).sum())


def calibrate(points: list[Point]) -> npt.NDArray[np.float64]:
    """Fit the figures by least squares on logarithms of step times; the better of two starting points."""
    from scipy.optimize import least_squares

    measured = np.log([point.measured for point in points])

    def residuals(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        values = np.exp(logs)
        return np.asarray(np.log([predicted_ms(p, values) for p in points]) - measured)

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
