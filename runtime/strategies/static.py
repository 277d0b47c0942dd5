"""Strategy `static`: which runner carries it out, by when a group's round starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.runtime.strategies.progress_means import means_of_groups
from partreduce.runtime.strategies.quorum.groups import QuorumGroups
from partreduce.topo.strategies.quorum import Quorum

if TYPE_CHECKING:
    from partreduce.runtime.strategies.base import Run, Runner
    from partreduce.topo.strategies.static import Static


def static(strategy: Static, run: Run) -> Runner:
    """The runner of fixed groups: in lockstep, late by a round, or by a quorum of each."""
    if isinstance(strategy.when, Quorum):
        return QuorumGroups(strategy.when, run)
    return means_of_groups(strategy, run)
