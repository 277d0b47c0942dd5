"""Write known schedules of the cluster in the phases of an alphabet, as hints for the search.

They are the start of the search and its baseline: their phases join alphabets that are not complete, and their costs
are budgets at which the search is asked for more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import TypeVar

from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.problem import Problem
from partreduce.topo.errors import PartreduceError
from partreduce.topo.phase import Phase
from partreduce.topo.rule import Block, RulePhase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import StepsPerRound
from partreduce.topo.timing.cost import communication

Round = TypeVar("Round")


def budgets_of(problem: Problem) -> tuple[float, ...]:
    """What the hints communicate, in seconds per step, rising, each once."""
    costs = {
        communication(hint, problem.hardware, model_bytes=problem.size, algorithm=problem.algorithm).per_step
        for hint in problem.hints
    }
    return tuple(sorted(cost for cost in costs if cost > 0))


def rule_rounds(hint: Schedule, radices: Sequence[int]) -> tuple[RulePhase, ...] | None:
    """The rounds of a hint as rule phases over finer radices; None if they cannot be said in these digits."""
    strategy, rule = hint.strategy, hint.rule(by_node=True)
    if rule is None or strategy.is_delayed:
        return None
    digits = _refinement(rule.radices, radices)
    if digits is None:
        return None
    rounds = tuple(
        tuple(Block(b.local, tuple(d for c in b.across for d in digits[c]), b.relaxation) for b in phase)
        for phase in rule.phases
    )
    return _spaced(rounds, strategy.steps_per_round, ())


def group_rounds(hint: Schedule) -> tuple[Phase, ...] | None:
    """The rounds of a hint as explicit phases; None if it does not average groups."""
    strategy, size = hint.strategy, hint.num_workers
    silent = Phase.from_groups(size, ())
    if not hint.is_phased or strategy.is_delayed:
        return None
    try:
        return _spaced(tuple(hint.phase(t) for t in range(hint.period)), strategy.steps_per_round, silent)
    except PartreduceError:
        return None


def indices_of(alphabet: Alphabet, hints: Iterable[Schedule]) -> Iterator[Indices | None]:
    """Each hint's rounds as phase indices; None where the alphabet lacks one, and a full average to stand in for it."""
    place = {_key(phase): index for index, phase in enumerate(alphabet.phases)}
    full = alphabet.full_average()  # pruned phases cost at least as much as it
    rounds: Sequence[RulePhase | Phase] | None
    for hint in hints:
        rounds = group_rounds(hint) if alphabet.radices is None else rule_rounds(hint, alphabet.radices)
        spelled = None if rounds is None else [place.get(_key(phase), full) for phase in rounds]
        yield None if spelled is None or None in spelled else tuple(index for index in spelled if index is not None)


def _spaced(rounds: tuple[Round, ...], steps_per_round: StepsPerRound, silent: Round) -> tuple[Round, ...]:
    """The same rounds with one step each: the other steps of equal rounds become silent phases; unequal ones stay."""
    gap = (silent,) * (steps_per_round - 1) if isinstance(steps_per_round, int) else ()
    return tuple(phase for one in rounds for phase in (*gap, one))


def _key(phase: RulePhase | Phase) -> Hashable:
    if isinstance(phase, Phase):
        return phase
    named = ((frozenset(b.local), frozenset(b.across), b.relaxation) for b in phase)
    return frozenset(block for block in named if len(block[0]) > 1 or block[1])


def _refinement(coarse: Sequence[int], fine: Sequence[int]) -> list[tuple[int, ...]] | None:
    """For each digit of `coarse` the consecutive digits of `fine` that make it up; None if they do not."""
    ends = list(accumulate(fine, mul))
    result, start = [], 0
    for reached in accumulate(coarse, mul):
        if reached not in ends:
            return None
        stop = ends.index(reached) + 1
        result.append(tuple(range(start, stop)))
        start = stop
    return result if prod(coarse) == prod(fine) else None
