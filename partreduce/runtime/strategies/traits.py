"""List the traits of a schedule's kind that engine, checkpoints and checks need, as one table."""

from __future__ import annotations

from dataclasses import dataclass

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.iteration_gap import IterationGap, UpdateOrder
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.strategies.server import Server


@dataclass(frozen=True, slots=True)
class Traits:
    """What the engine, checkpoints and checks have to know of a schedule's kind."""

    averages_gradients: bool
    """Before each step; else parameters, after the last one of a round."""
    keeps_equal: bool
    """Whether all workers step with the same mean gradients, so that their models are equal wherever all meet."""
    agrees_on_end: bool = False
    """Whether the protocol itself tells who has no more data, so that nothing of it goes by the store."""
    drains_together: bool = False
    """Whether no worker may begin to `drain` before all others are ready to: they still answer one another."""
    carries_state: bool = False
    """Whether the optimizer's state dict holds `state()`, too, as it holds the wrapped optimizer's own momentum."""
    measures_from_start: bool = False
    """Whether rounds depend on the model that the first step finds, which has to be everybody's then."""
    needs_round_start: bool = False
    """Whether what a round's end does depends on the parameters with which the round began."""
    saves_inside_rounds: bool = False
    """Whether a checkpoint may lie inside a round, because `state()` says all that the rest of the round needs."""


def traits_of(schedule: Schedule) -> Traits:
    """The traits of a schedule's kind."""
    strategy = schedule.strategy
    has_equal_steps = len(set(schedule.worker_steps().tolist())) == 1
    normalizes = strategy.averaging is Averaging.STEP_NORMALIZED
    if isinstance(strategy.sync, PartialAllReduce):
        return Traits(True, strategy.sync.keeps_equal, agrees_on_end=True)
    if strategy.averages_gradients:
        return Traits(True, keeps_equal=True, carries_state=True)
    if isinstance(strategy, DynamicGroups):
        return Traits(False, keeps_equal=False, needs_round_start=normalizes)
    if isinstance(strategy.sync, IterationGap):
        is_parallel = strategy.sync.update_order is UpdateOrder.DPSGD
        return Traits(False, keeps_equal=False, drains_together=True, needs_round_start=is_parallel)
    if isinstance(strategy, Pairwise) or (isinstance(strategy, Server) and not strategy.synchronous):
        return Traits(
            False, keeps_equal=False, drains_together=True, measures_from_start=isinstance(strategy, Server),
            needs_round_start=normalizes and not has_equal_steps,
        )  # fmt: skip
    takes_turns = strategy.takes_turns
    has_outer_state = takes_turns or not strategy.payload.outer.is_plain
    return Traits(
        False,
        keeps_equal=False,
        carries_state=has_outer_state,
        measures_from_start=has_outer_state,
        needs_round_start=not takes_turns and (normalizes or strategy.is_delayed),
        # At unequal steps per round a worker may have had turns in a round that others still lack.
        saves_inside_rounds=not takes_turns or has_equal_steps,
    )
