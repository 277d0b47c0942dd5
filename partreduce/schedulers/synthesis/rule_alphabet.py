"""List the rule phases of a regular cluster: every way to put the local ranks into blocks with digit sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

import numpy as np

from partreduce.schedulers.synthesis.alphabet import Alphabet
from partreduce.schedulers.synthesis.hints import rule_rounds
from partreduce.schedulers.synthesis.problem import Problem
from partreduce.schedulers.synthesis.scoring import Space
from partreduce.topo.arithmetic.whole_numbers import divisors, prime_factors
from partreduce.topo.cluster import Cluster
from partreduce.topo.mixing import Operators
from partreduce.topo.rule import Block, RulePhase, RuleView, every_class
from partreduce.topo.timing import loads

MAX_ENUMERATED = 2500
"""Up to this many phases all are listed; beyond, only those with aligned blocks are."""
MAX_ENTRIES = 12_000_000
"""Entries of all mixing matrices together; where that would not hold them, fewer phases are listed, evenly spread."""
LEAST_PHASES = 64
"""So many are listed in any case where rules are searched at all."""
MOST_ENTRIES = 4 * MAX_ENTRIES
"""Entries that the matrices of the fewest phases may have; with more local ranks no rules are searched."""
MAX_DIGITS = 4
"""Digits of a node's index that rules may use: 2^4 classes of characters."""


def prime_radices(num_nodes: int) -> tuple[int, ...]:
    """The finest radices: prime factors, at most MAX_DIGITS of them (the smallest are merged)."""
    factors = list(prime_factors(num_nodes))
    while len(factors) > MAX_DIGITS:
        factors.sort()
        factors = [factors[0] * factors[1], *factors[2:]]
    return tuple(sorted(factors, reverse=True))


def count_phases(workers_per_node: int, num_digits: int) -> int:
    """How many rule phases there are: Σ over partitions of the local ranks of (2^k)^blocks. O(G²)."""
    labels = 2**num_digits
    counts = [1]
    for size in range(1, workers_per_node + 1):
        # The block of the last local rank takes j of the others.
        binomial, total = 1, 0
        for j in range(size):
            total += binomial * labels * counts[size - 1 - j]
            binomial = binomial * (size - 1 - j) // (j + 1)
        counts.append(total)
    return counts[-1]


def all_phases(workers_per_node: int, num_digits: int) -> Iterator[RulePhase]:
    """Every rule phase once; local ranks alone in their node skip."""
    sets = list(every_class(num_digits))

    def extend(rest: tuple[int, ...], blocks: tuple[Block, ...]) -> Iterator[RulePhase]:
        if not rest:
            yield tuple(block for block in blocks if len(block.local) > 1 or block.across)
            return
        first, others = rest[0], rest[1:]
        for size in range(len(others) + 1):
            for members in combinations(others, size):
                left = tuple(rank for rank in others if rank not in members)
                for across in sets:
                    yield from extend(left, (*blocks, Block((first, *members), across)))

    yield from extend(tuple(range(workers_per_node)), ())


def aligned_phases(workers_per_node: int, num_digits: int) -> Iterator[RulePhase]:
    """Phases with at most one crossing block of consecutive local ranks, the rest together, in halves, or skipping."""
    sets = list(every_class(num_digits))
    spans = [
        tuple(range(start, start + size))
        for size in divisors(workers_per_node)
        for start in range(0, workers_per_node, size)
    ]
    seen: set[RulePhase] = set()
    for size in divisors(workers_per_node):
        inside = [tuple(range(start, start + size)) for start in range(0, workers_per_node, size)]
        seen.add(tuple(Block(part) for part in inside if size > 1))
    for span in spans:
        rest = tuple(rank for rank in range(workers_per_node) if rank not in span)
        half = len(rest) // 2
        for across in sets[1:]:
            for parts in ((rest,), (rest[:half], rest[half:]), ()):
                seen.add((Block(span, across), *(Block(part) for part in parts if len(part) > 1)))
    yield from sorted(seen, key=lambda phase: (len(phase), str([str(block) for block in phase])))


def rule_space(workers_per_node: int, radices: Sequence[int]) -> Space:
    """The classes of the digit group: class c is the set of digits on which a character is non-trivial."""
    # Shapes: C = 2^k classes, one per set of digits; G local ranks.
    sets = list(every_class(len(radices)))
    num_workers = workers_per_node * prod(radices)
    multiplicity = np.array([prod(radices[d] - 1 for d in c) for c in sets], dtype=np.float64)
    eye = np.eye(workers_per_node)
    center = eye - 1.0 / workers_per_node  # the mean lives in the class of the empty set alone
    fresh = np.stack([center if not c else eye for c in sets])
    return Space(num_workers, multiplicity, fresh)


def rule_cost(phase: RulePhase, radices: Sequence[int], problem: Problem) -> float:
    """Seconds of one phase."""
    link_loads = loads.of_rule(
        phase, radices, problem.cluster, problem.hardware, model_bytes=problem.size, algorithm=problem.algorithm.value
    )
    return float(link_loads.seconds().max(initial=0.0))


def hinted_phases(problem: Problem, radices: Sequence[int]) -> Iterator[RulePhase]:
    """The phases of the problem's hints that can be said in these radices, of plain means only, in canonical order."""
    for hint in problem.hints:
        for phase in rule_rounds(hint, radices) or ():
            if all(block.relaxation == 1 for block in phase):
                kept = [b for b in phase if len(b.local) > 1 or b.across]
                yield tuple(sorted(kept, key=lambda block: block.local))


def holds_rules(cluster: Cluster) -> bool:
    """Whether the matrices of a cluster's rules fit into memory; else no rules are searched."""
    digits = min(MAX_DIGITS, len(prime_factors(cluster.num_nodes)))
    return LEAST_PHASES * (1 << digits) * (cluster.workers_per_node or 0) ** 2 <= MOST_ENTRIES


def rule_alphabet(problem: Problem, radices: tuple[int, ...] | None = None) -> Alphabet:
    """All rule phases of the problem's cluster within its group limit, pruned; aligned ones if there are too many."""
    size = problem.cluster.workers_per_node
    assert size is not None, "rules need a regular cluster"
    radices = radices if radices is not None else prime_radices(problem.cluster.num_nodes)
    complete = count_phases(size, len(radices)) <= MAX_ENUMERATED
    limit = problem.limits.max_group
    candidates = dict.fromkeys((all_phases if complete else aligned_phases)(size, len(radices)))
    if not complete:
        candidates |= dict.fromkeys(hinted_phases(problem, radices))
    phases = tuple(
        phase
        for phase in candidates
        if limit is None or all(len(b.local) * prod(radices[d] for d in b.across) <= limit for b in phase)
    )
    most = max(LEAST_PHASES, MAX_ENTRIES // (2 ** len(radices) * size**2))
    if len(phases) > most:
        everybody = Block(tuple(range(size)), tuple(range(len(radices))))
        spread = {phases[i] for i in np.linspace(0, len(phases) - 1, most, dtype=np.int64).tolist()}
        spread |= {(everybody,), *hinted_phases(problem, radices)}
        phases = tuple(phase for phase in phases if phase in spread)
    matrices = Operators.of_rule(RuleView(radices, phases, size), list(every_class(len(radices)))).matrices()
    matrices[:, 0] -= 1 / size
    costs = np.array([rule_cost(phase, radices, problem) for phase in phases])
    crosses = np.array([any(block.across for block in phase) for phase in phases])
    return Alphabet(problem.cluster, rule_space(size, radices), phases, matrices, costs, crosses, radices).prune()
