"""Figures of explicit schedules too large for dense matrices: enclosed by Lanczos or sampled, and labelled so."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from topo.figures.base import Figure, Kind, absent
from topo.figures.chain import Chain
from topo.figures.group_sampling import GroupMotion, group_disagreement, group_drift
from topo.figures.lanczos import lanczos_norm
from topo.figures.rate import ZERO
from topo.figures.sampling import Motion, Sampled, sampled_disagreement, sampled_drift, sampled_radius
from topo.mixing import has_negative_entries, is_doubly_stochastic, steps_of
from topo.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topo.figures.limits import Limits
    from topo.mixing import Step
    from topo.schedule import Schedule


def large_contraction(schedule: Schedule, limit: Limits) -> Figure:
    """‖P − J‖₂ by Lanczos: `lower` is certain up to rounding, `upper` fails with probability 10⁻⁶ at most."""
    steps = steps_of(schedule)
    distinct = set(steps)
    if not all(is_doubly_stochastic(step) for step in distinct):
        return absent("not defined: a round is not doubly stochastic, so it moves the mean")
    if (parts := num_parts(steps)) > 1:
        return Figure(1.0, Kind.EXACT, f"the groups of a period leave the workers in {parts} separate parts")
    found = lanczos_norm(Chain.of_norm(steps), seed=limit.seed, max_steps=limit.lanczos_steps)
    upper = found.upper
    plain = all(_keeps_norm(step) if isinstance(step, Phase) else not has_negative_entries(step) for step in distinct)
    if plain:
        upper = min(upper, 1.0)  # each W is then a contraction: ‖W‖₂ ≤ √(‖W‖₁ ‖W‖∞) = 1, or eigenvalues in [−1, 1]
    value = 0.0 if found.lower < ZERO else min(found.lower, upper)
    how = (
        f"Lanczos, {found.steps} steps, residual {found.residual:.1e}: a lower bound; the upper bound fails with "
        "probability 1e-6 at most"
    )
    return Figure(value, Kind.ESTIMATE, how, lower=value, upper=upper)


def _keeps_norm(phase: Phase) -> bool:
    return phase.relax is None or all(0 <= factor <= 2 for factor in phase.relax)


def large_radius(schedule: Schedule, limit: Limits, contraction: Figure) -> Figure:
    """The spectral radius, sampled; it is at most the contraction."""
    if contraction.value == 0.0:
        return Figure(0.0, Kind.ESTIMATE, "at most the contraction", lower=0.0, upper=contraction.upper)
    value = sampled_radius(Motion.of(schedule), seed=limit.seed)
    upper = contraction.upper
    return Figure(
        value if upper is None else min(value, upper),
        Kind.ESTIMATE,
        "growth of a random vector over 24 periods; at most the contraction",
        lower=0.0,
        upper=upper,
    )


def large_disagreement(schedule: Schedule, limit: Limits) -> Figure:
    """Hutchinson's estimate with its standard error."""
    if (parts := num_parts(steps_of(schedule))) > 1:
        return _never(parts)
    probes, quick = _probes(schedule, limit), GroupMotion.of(schedule)
    if quick:
        found = group_disagreement(quick, probes=probes, seed=limit.seed, seconds=limit.seconds)
    else:
        found = sampled_disagreement(Motion.of(schedule), probes=probes, seed=limit.seed, seconds=limit.seconds)
    return _figure(found, "Hutchinson's estimate")


def large_drift(schedule: Schedule, limit: Limits, push: Literal["worker", "node"]) -> Figure:
    """The mean over random pushes with its standard error."""
    if (parts := num_parts(steps_of(schedule))) > 1:
        return _never(parts)
    probes, quick = _probes(schedule, limit), GroupMotion.of(schedule)
    if quick:
        found = group_drift(quick, push, probes=probes, seed=limit.seed, seconds=limit.seconds)
    else:
        found = sampled_drift(Motion.of(schedule), push, probes=probes, seed=limit.seed, seconds=limit.seconds)
    return _figure(found, "mean over random pushes")


def num_parts(steps: Sequence[Step]) -> int:
    """Into how many parts the workers fall that no group or edge of a period connects. O(T n)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = steps[0].num_workers
    sources, targets = [], []
    for step in set(steps):
        if isinstance(step, Phase):
            acts = step.relax_factors() != 0
            sources.append(step.members[np.repeat(acts, step.sizes)])
            targets.append(np.repeat(step.members[step.offsets[:-1]][acts], step.sizes[acts]))
        else:
            acts = step.edge_weights() != 0
            sources.append(step.sources[acts])
            targets.append(step.targets[acts])
    rows, columns = np.concatenate(sources), np.concatenate(targets)
    graph = coo_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(n, n))
    return int(connected_components(graph, directed=False)[0])


def _never(parts: int) -> Figure:
    return Figure(math.inf, Kind.EXACT, f"infinite: the groups of a period leave the workers in {parts} separate parts")


def _probes(schedule: Schedule, limit: Limits) -> int:
    """More probes where each is cheap and says little: about 2 million entries in all."""
    return max(limit.probes, min(64, 2**21 // schedule.num_workers))


def _figure(found: Sampled, method: str) -> Figure:
    probes = f"{found.probes} probe{'s' if found.probes > 1 else ''}"
    if not found.finished:
        return absent(
            f"{method}, {probes}: not settled within the time limit, because workers agree slowly or never; "
            f"{found.value:.6g} had been summed up by then"
        )
    if not math.isfinite(found.spread):
        return Figure(found.value, Kind.ESTIMATE, f"{method}, {probes}, no error known")
    how = f"{method}, {probes}, standard error {found.spread:.2g} ({found.spread / max(found.value, 1e-300):.1e} of it)"
    margin = 3 * found.spread
    return Figure(found.value, Kind.ESTIMATE, how, lower=max(0.0, found.value - margin), upper=found.value + margin)
