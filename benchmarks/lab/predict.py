"""Simulator against lab: calibrate the cost model on one half of the cells, predict the others' step times."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.virtual import simulate
from topo.hardware import Hardware, Link
from topo.timing.compute import ComputeTimes, RandomSlowdown
from topo.timing.cost import Form

if TYPE_CHECKING:
    import numpy.typing as npt
    from lab.setting import Setting

    from topo.schedule import Schedule

CLOSE = 0.15
STEPS = 48
NAMES = ("NIC latency", "NIC inefficiency", "inside latency", "inside s/B", "bus latency", "bus s/B", "compute extra")
STARTS = ((1e-4, 1.05, 1e-4, 3e-10, 1e-4, 3e-10, 2e-3), (1e-3, 1.0, 1e-3, 1e-9, 1e-5, 1e-10, 5e-3))


@dataclass(frozen=True, slots=True)
class Point:
    """A cell that the simulator can predict: its schedule, form, setting, and what was measured (ms per step)."""

    contestant: str
    setting: Setting
    schedule: Schedule
    form: str
    measured: float


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


def simulated_ms(point: Point, hardware: Hardware, compute: float, *, steps: int = STEPS) -> float:
    """Milliseconds per step as the lab counts them: workers ÷ (steps of all per second)."""
    setting = point.setting
    disturbed = RandomSlowdown(setting.random_factor, setting.random_chance) if setting.random_chance else None
    times = ComputeTimes(base=compute, slowdown=setting.slow, disturbance=disturbed)
    paces = point.schedule.paces()
    rounds = max(1, steps // int(paces.max()))
    timeline = simulate(point.schedule, hardware, compute=times, num_rounds=rounds, form=Form(point.form))
    return 1e3 * len(paces) / float((paces * rounds / timeline.finish[-1]).sum())


def hardware_of(values: npt.NDArray[np.float64], setting: Setting, model_bytes: int) -> Hardware:
    """The seven fitted figures as the cost model's hardware, for one link rate."""
    nic = Link(float(values[0]), float(values[1]) * 8e-6 / setting.megabits)
    return Hardware(
        inside=Link(float(values[2]), float(values[3])),
        nic=nic,
        bus=Link(float(values[4]), float(values[5])),
        model_bytes=model_bytes,
    )


def calibrate(points: list[Point], *, compute: float, model_bytes: int) -> npt.NDArray[np.float64]:
    """Fit the figures by least squares on logarithms of step times; the better of two starting points."""
    from scipy.optimize import least_squares

    measured = np.log([point.measured for point in points])

    def residuals(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        values = np.exp(logs)
        predicted = [
            simulated_ms(p, hardware_of(values, p.setting, model_bytes), compute + values[6], steps=STEPS // 3)
            for p in points
        ]
        return np.asarray(np.log(predicted) - measured)

    found = [
        least_squares(residuals, np.log(start), loss="soft_l1", f_scale=0.1, bounds=(-28.0, 1.0), max_nfev=20)
        for start in STARTS
    ]
    return np.asarray(np.exp(min(found, key=lambda result: float(result.cost)).x))


def against_lab(points: list[Point], *, compute: float, model_bytes: int) -> dict[str, Any]:
    """Calibrate on every second cell (in the order of setting and contestant), predict all, count the close ones."""
    ordered = sorted(points, key=lambda p: (p.setting.name, p.contestant))
    half = ordered[::2]
    values = calibrate(half, compute=compute, model_bytes=model_bytes)
    predictions = [
        Prediction(
            p.contestant,
            p.setting.name,
            p.measured,
            simulated_ms(p, hardware_of(values, p.setting, model_bytes), compute + values[6]),
            calibrated=index % 2 == 0,
        )
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


def by_profile(points: list[Point], hardware: dict[str, Hardware], *, compute: float) -> list[Prediction]:
    """The same cells predicted from profiled links alone, without a look at any measured step time."""
    return [
        Prediction(
            p.contestant, p.setting.name, p.measured, simulated_ms(p, replace(hardware[p.setting.name]), compute), False
        )
        for p in points
        if p.setting.name in hardware
    ]
