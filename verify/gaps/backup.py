"""Backup workers (Hop, section 4), alone or with staleness (the hybrid): a worker does without some in-neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partreduce.verify.gaps.lengths import Length


def paper_bound(forward: Length, backward: Length) -> Length:  # noqa: ARG001 - one signature for all settings
    """Nothing is guaranteed without token queues."""
    return None
