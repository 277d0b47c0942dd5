"""Strategy `allreduce`: which runner carries it out, by what is averaged and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.runtime.strategies.gradient_means import GradientMeans
from partreduce.runtime.strategies.pipeline import GradientPipeline
from partreduce.runtime.strategies.progress_means import means_of_groups
from partreduce.runtime.strategies.quorum.gradients import QuorumGradients
from partreduce.topo.strategies.axes import Pipeline
from partreduce.topo.strategies.quorum import Quorum

if TYPE_CHECKING:
    from partreduce.runtime.strategies.base import Run, Runner
    from partreduce.topo.strategies.allreduce import AllReduce


def all_reduce(strategy: AllReduce, run: Run) -> Runner:
    """The runner of all-reduce: of gradients in each step, at once, late or by a quorum, of parameters otherwise."""
    if isinstance(strategy.when, Quorum):
        return QuorumGradients(strategy.when, run)
    if isinstance(strategy.when, Pipeline):
        return GradientPipeline(strategy.when, run)
    if strategy.averages_gradients:
        return GradientMeans(run, divisor=None if strategy.what.average_dense else 1)
    return means_of_groups(strategy, run)
