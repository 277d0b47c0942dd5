"""How fast a period pulls workers together: contraction and spectral radius."""

from __future__ import annotations

from partreduce.topo.figures.sectors import Sectors, spectral_norms

ZERO = 1e-14
"""Norms below this are rounding: they are reported as 0."""

NEVER = 1 - 1e-12
"""A radius from here on is 1 up to rounding: such a schedule never converges."""


def contraction_of(sectors: Sectors, start: int = 0) -> float:
    """‖W_{s+T−1} … W_s − J‖₂. O(Σ C g³)."""
    return _clean(max(float(spectral_norms(batch.product(start)).max()) for batch in sectors.batches))


def contraction_per_start(sectors: Sectors) -> tuple[float, ...]:
    """The contraction of the period that starts at each phase. O(T Σ C g³ T)."""
    return tuple(contraction_of(sectors, start) for start in range(sectors.batches[0].period))


def radius_of(sectors: Sectors) -> float:
    """The spectral radius of the period product off the mean; it does not depend on the start. O(Σ C g³)."""
    return _clean(sectors.radius)


def _clean(value: float) -> float:
    return 0.0 if value < ZERO else value
