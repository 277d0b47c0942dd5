"""Claims `doubly-stochastic` and `unit-sums`: averaging neither moves the mean nor weighs anyone negatively."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from math import lcm

import numpy as np

from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Round
from partreduce.verify.base import Claim, fact, refuted
from partreduce.verify.view import explicit_view, rule_view

DOUBLY = "doubly-stochastic"
SUMS = "unit-sums"


def prove_doubly_stochastic(schedule: Schedule) -> Claim:
    """Prove that every mixing matrix has unit row and column sums and no negative entry, in exact arithmetic.

    A group of k workers with factor t has the entries t/k off and 1 − t + t/k on the diagonal: rows and columns sum
    to 1 for every t, and nothing is negative iff 0 ≤ t ≤ k/(k−1). Where an entry is negative the claim made is
    `unit-sums` instead, which is what the mean needs.
    """
    rule = rule_view(schedule)
    pairs = rule_pairs(rule) if rule is not None else explicit_pairs(schedule)
    smallest = min((min(t / k, 1 - t + t / k) for k, t in pairs), default=Fraction(0))
    text = "Every group's weights are symmetric and each row sums to 1, so rows and columns sum to 1"
    if smallest < 0:
        text += f"; the smallest weight is {smallest}, so the mean is kept although a weight is negative."
        return fact(SUMS, text, smallest_weight=str(smallest))
    text += f"; the smallest weight inside a group is {smallest}, so none is negative."
    return fact(DOUBLY, text, smallest_weight=str(smallest))


def explicit_pairs(schedule: Schedule) -> set[tuple[int, Fraction]]:
    """The distinct (size, relax) of an explicit schedule's groups."""
    result: set[tuple[int, Fraction]] = set()
    for phase in explicit_view(schedule) or ():
        if phase.relax is None:
            result.update((int(size), Fraction(1)) for size in np.unique(phase.sizes))
        else:
            result.update(zip(phase.sizes.tolist(), phase.relax, strict=True))
    return result


def rule_pairs(rule: RuleView) -> set[tuple[int, Fraction]]:
    """The distinct (size, relax) of a rule's groups on this cluster."""
    result = set()
    for block in (b for phase in rule.phases for b in phase if b.makes_groups):
        size = len(block.local)
        for digit in block.across:
            size *= rule.radices[digit]
        result.add((size, block.relax))
    return result


def prove_graph_sums(rounds: Iterable[Round]) -> Claim:
    """The same for weighted graphs: rows sum to 1 because each worker keeps the rest; columns are summed exactly."""
    smallest = Fraction(1)
    for t, listed in enumerate(rounds):
        scale = lcm(*(weight.denominator for weight in listed.weights))
        scaled = [int(weight * scale) for weight in listed.weights]
        given: dict[int, int] = defaultdict(int)
        taken: dict[int, int] = defaultdict(int)
        for source, target, index in zip(
            listed.sources.tolist(), listed.targets.tolist(), listed.weight_of.tolist(), strict=True
        ):
            given[source] += scaled[index]
            taken[target] += scaled[index]
        for worker in range(listed.num_workers):
            if given[worker] != taken[worker]:
                total = 1 - Fraction(taken[worker] - given[worker], scale)
                text = (
                    f"in round {t} the weights that others give to worker {worker}, and its own, sum to {total}, not "
                    "to 1: the mean of the parameters moves."
                )
                return refuted(DOUBLY, text, {"round": t, "worker": worker, "column_sum": str(total)})
        own = 1 - Fraction(max(taken.values(), default=0), scale)
        smallest = min(smallest, own, *listed.weights)
    text = f"Rows sum to 1 by construction and columns by exact addition; the smallest weight is {smallest}"
    if smallest < 0:
        return fact(SUMS, text + ", so the mean is kept although a weight is negative.", smallest_weight=str(smallest))
    return fact(DOUBLY, text + ", so none is negative.", smallest_weight=str(smallest))


def keeps_something(listed: Round) -> bool:
    """Whether no weight of a round is negative, and every worker keeps a positive one on itself."""
    return min(listed.weights, default=Fraction(0)) >= 0 and own_weights(listed) > 0


def own_weights(listed: Round) -> Fraction:
    """The smallest weight of a worker on itself in one round."""
    taken: dict[int, Fraction] = defaultdict(Fraction)
    for _, target, weight in listed.edges():
        taken[target] += weight
    return 1 - max(taken.values(), default=Fraction(0))
