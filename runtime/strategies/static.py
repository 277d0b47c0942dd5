"""Strategy `static`: which runner carries it out, by when a group's round starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.runtime.strategies.progress_means import means_of_groups
from preduce.topo.errors import MissingFeatureError
from preduce.topo.strategies.quorum import Quorum

if TYPE_CHECKING:
    from preduce.runtime.strategies.base import Run, Runner
    from preduce.topo.strategies.static import Static


def static(strategy: Static, run: Run) -> Runner:
    """The runner of fixed groups: in lockstep, or late by a round.

    Raises:
        MissingFeatureError: a quorum.
    """
    if isinstance(strategy.when, Quorum):
        raise MissingFeatureError(f"schedule {run.schedule.name!r}: when.quorum cannot be executed by this version")
    return means_of_groups(strategy, run)
