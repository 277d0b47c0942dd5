"""Bounded staleness (Hop, section 4): an update of step k − s or later serves in step k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.verify.gaps.lengths import scaled

if TYPE_CHECKING:
    from partreduce.verify.gaps.lengths import Length


def paper_bound(forward: Length, backward: Length, staleness: int) -> Length:  # noqa: ARG001 - one signature for all
    """Step(i) − Step(j) ≤ (s + 1) · length of the shortest path j → i."""
    return scaled(forward, staleness + 1)
