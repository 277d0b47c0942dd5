"""Finds the link metrics that explain measured phases best, under the very cost model that predicts schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from partreduce.runtime.profile.measure import Measurement
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.phase import Phase
from partreduce.topo.timing.cost import group_seconds

LATENCY_SCALE, INVERSE_SCALE = 1e-4, 1e-9
NEGLIGIBLE = 1e-3
"""A fitted metric this much below its scale is no part of the explanation and is written as 0."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted hardware and its relative errors on the measurements that it was fitted to."""

    hardware: Hardware
    errors: tuple[float, ...]


def predicted_seconds(measurement: Measurement, cluster: Cluster, hardware: Hardware) -> float:
    """What the cost model says about a measured phase."""
    seconds = group_seconds(measurement.phase, cluster, hardware, model_bytes=measurement.size)
    return float(seconds.max(initial=0.0))


def fit_hardware(measurements: Sequence[Measurement], cluster: Cluster, base: Hardware) -> Fit:
    """Fit latency and inverse bandwidth of links inside nodes, of NICs and of the bus, by least squares on logarithms.

    Which of a link and the bus explains a metric is only decided by phases with several groups at once, so the
    measurements should hold such phases. Four starting points; the best result counts.

    Args:
        measurements: of phases whose groups lie inside nodes and, for several nodes, across them.
        cluster: the shape.
        base: other properties (number of NICs, speeds) that are kept as they are.
    """
    across = cluster.num_nodes > 1
    measured = np.log([measurement.median for measurement in measurements])

    def usual(*, crossing: bool) -> float:
        """The logarithm of the usual seconds per byte of the phases in which groups cross nodes, or do not."""
        rates = [m.median / m.size for m in measurements if _crosses(m.phase, cluster) == crossing]
        return float(np.log(np.median(rates) / INVERSE_SCALE)) if rates else 0.0

    inside, nic = usual(crossing=False), usual(crossing=True)

    def hardware_of(logs: npt.NDArray[np.float64]) -> Hardware:
        values = np.exp(logs)
        links = [
            Link(float(values[i]) * LATENCY_SCALE, float(values[i + 1]) * INVERSE_SCALE) for i in range(0, len(logs), 2)
        ]
        return replace(base, inside=links[0], bus=links[1], nic=links[2] if across else base.nic)

    def residuals(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        hardware = hardware_of(logs)
        predictions = [predicted_seconds(measurement, cluster, hardware) for measurement in measurements]
        return np.asarray(np.log(np.maximum(predictions, 1e-9)) - measured)

    count = 6 if across else 4
    starts = [np.zeros(count), np.resize([0.0, -2.0], count), np.resize([-2.0, 0.0, 0.0, -1.0], count)]
    # A link that nothing waits for has no gradient, so one that is far slower than these would stay where it began.
    starts.append(np.array([0.0, inside, -2.0, inside - 2.0, 0.0, nic][:count]))
    closest = min(
        (least_squares(residuals, start, loss="soft_l1", bounds=(-12.0, 12.0)) for start in starts),
        key=lambda result: float(result.cost),
    )
    hardware = _without_negligible(hardware_of(closest.x))
    errors = [predicted_seconds(m, cluster, hardware) / m.median - 1 for m in measurements]
    return Fit(hardware, tuple(errors))


def _crosses(phase: Phase, cluster: Cluster) -> bool:
    """Whether any group has members on several nodes."""
    node_of = cluster.node_of()
    return any(len(np.unique(node_of[list(group.members)])) > 1 for group in phase)


def _without_negligible(hardware: Hardware) -> Hardware:
    def clean(link: Link) -> Link:
        return Link(
            link.latency if link.latency > NEGLIGIBLE * LATENCY_SCALE else 0.0,
            link.seconds_per_byte if link.seconds_per_byte > NEGLIGIBLE * INVERSE_SCALE else 0.0,
        )

    return replace(hardware, inside=clean(hardware.inside), nic=clean(hardware.nic), bus=clean(hardware.bus))
