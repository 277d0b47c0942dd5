"""Strategy `allreduce`: which runner carries it out, by what is averaged and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.runtime.strategies.gradient_means import GradientMeans
from preduce.runtime.strategies.pipeline import GradientPipeline
from preduce.runtime.strategies.progress_means import means_of_groups
from preduce.topo.strategies.axes import Pipeline

if TYPE_CHECKING:
    from preduce.runtime.strategies.base import Run, Runner
    from preduce.topo.strategies.allreduce import AllReduce


def all_reduce(strategy: AllReduce, run: Run) -> Runner:
    """The runner of all-reduce: of gradients in each step, at once or late, of parameters otherwise."""
    if isinstance(strategy.when, Pipeline):
        return GradientPipeline(strategy.when, run)
    return GradientMeans(run) if strategy.averages_gradients else means_of_groups(strategy, run)
