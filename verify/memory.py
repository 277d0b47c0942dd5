"""Claim `memory`: distinct groups and connections of the busiest worker, splits, and arrays beside the parameters.

What is counted, and what is assumed of the runtime, stands in `verify/checker/facts/memory.py`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from partreduce.topo.phase import Phase
from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Round
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.base import Averaging
from partreduce.verify.base import Claim, fact
from partreduce.verify.forms import Spread, of_block, of_everybody
from partreduce.verify.view import explicit_view, rule_view


def prove_memory(schedule: Schedule) -> Claim:
    """Count groups and arrays. Explicit: O(num_workers · period); rules: O(blocks), at any number of nodes."""
    strategy = schedule.strategy
    keeps_start = strategy.mixes_late or strategy.averaging is Averaging.STEP_NORMALISED
    codec = strategy.how.codec
    outer = strategy.what.outer
    has_reference = (codec is not Codec.NONE or not outer.is_plain) and not strategy.averages_gradients
    sums = strategy.when.lag + 1 if strategy.when.delays_gradients else 1
    arrays = (
        sums + int(keeps_start) + int(has_reference) + int(outer.momentum > 0) + 2 * int(strategy.how.error_feedback)
    )
    if strategy.graphs:
        groups, connections = 0, _most_neighbours(strategy.graphs)
        splits = len({graph for graph in strategy.graphs if len(graph)})
        sources = max(int(np.bincount(graph.targets, minlength=1).max()) for graph in strategy.graphs)
        arrays += sources
        what = f"exchanges with at most {connections} others"
        kept = f"one for the sums and {sources} for what its neighbours send"
    else:
        rule = rule_view(schedule)
        groups, connections, splits = (
            _of_rule(rule, schedule) if rule is not None else _of_phases(explicit_view(schedule) or (), schedule)
        )
        second = f" ({codec} has a second communicator for each that goes as a ring)" if codec.has_blocks else ""
        what = f"is in at most {groups} distinct groups{second}, with {connections} other members together"
        kept = "one for the sums" if sums == 1 else f"{sums} for the sums in flight and the one that is applied"
    kept += ", and one for the parameters with which a round began" if keeps_start else ""
    coded = "coded " if codec is not Codec.NONE else ""
    kept += f", and one for the reference from which {coded}differences are taken" if has_reference else ""
    kept += ", and one for the momentum of outer steps" if outer.momentum else ""
    kept += ", and at most two for what error feedback keeps" if strategy.how.error_feedback else ""
    text = (
        f"A worker {what}; {splits} different rounds of the period exchange anything. Beside its parameters it keeps "
        f"at most {arrays} arrays of their size ({kept}), so {arrays} scratch bytes for each byte of parameters."
    )
    return fact("memory", text, groups=groups, connections=connections, splits=splits, arrays=arrays)


def _most_neighbours(graphs: tuple[Round, ...]) -> int:
    pairs = {pair for graph in graphs for pair in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)}
    counts = Counter(one for one, _ in pairs | {(target, source) for source, target in pairs})
    return max(counts.values(), default=0)


def _of_rule(rule: RuleView, schedule: Schedule) -> tuple[int, int, int]:
    phases = [frozenset((b.local, b.across) for b in phase if b.makes_groups) for phase in rule.phases]
    distinct = frozenset().union(*phases)
    groups = np.zeros(rule.workers_per_node, dtype=np.int64)
    others = [0] * rule.workers_per_node
    has_all = False
    for local, across in distinct:
        spread = of_block(rule, schedule, local, across)
        times = spread.communicators(schedule.strategy.how)
        has_all = has_all or spread.size == schedule.num_workers
        groups[list(local)] += times
        for rank in local:
            others[rank] += times * (spread.size - 1)
    more = _of_prologue(schedule, has_all=has_all)
    return (
        int(groups.max()) + more,
        max(others) + more * (schedule.num_workers - 1),
        len({phase for phase in phases if phase}),
    )


def _of_prologue(schedule: Schedule, *, has_all: bool) -> int:
    """The communicators of all workers that the prologue adds to those of the period."""
    if schedule.prologue == 0 or has_all:
        return 0
    return of_everybody(schedule).communicators(schedule.strategy.how)


def _of_phases(phases: tuple[Phase, ...], schedule: Schedule) -> tuple[int, int, int]:
    """Whole groups are told apart by a sum of random numbers over their members, and by their size."""
    n = schedule.num_workers
    groups, others = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    filled = [phase for phase in phases if len(phase)]
    more = _of_prologue(schedule, has_all=any(int(phase.sizes.max()) == n for phase in filled))
    how, node_of = schedule.strategy.how, schedule.cluster.node_of()
    if not filled:
        return more, more * (n - 1), 0
    numbers = np.random.default_rng(0).integers(1, 2**62, n, dtype=np.int64)
    keys = [np.add.reduceat(numbers[p.members], p.offsets[:-1]) * 64 + p.sizes % 64 for p in filled]
    every = np.concatenate(keys)
    fresh = np.zeros(len(every), dtype=bool)
    fresh[np.unique(every, return_index=True)[1]] = True
    for phase, new in zip(filled, np.split(fresh, np.cumsum([len(key) for key in keys])[:-1]), strict=True):
        members, sizes = phase.members[np.repeat(new, phase.sizes)], phase.sizes[new]
        times = np.ones(len(sizes), dtype=np.int64)
        if how.codec.has_blocks:
            parts = np.split(members, np.cumsum(sizes)[:-1]) if len(sizes) else []
            times = np.array([Spread.of(node_of[part]).communicators(how) for part in parts], dtype=np.int64)
        groups[members] += np.repeat(times, sizes)  # groups of a phase share no worker
        others[members] += np.repeat(times * (sizes - 1), sizes)
    splits = len({key.tobytes() for key in keys})
    return int(groups.max()) + more, int(others.max()) + more * (n - 1), splits
