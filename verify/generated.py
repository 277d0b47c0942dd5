"""Generated schedules: Prague's convergence conditions, λ₂ of E[WᵀW] below 1 and independent draws, checked exactly.

Groups drawn at run time have no fixed product to certify. Prague rests on the analysis of AD-PSGD: every W must be
doubly stochastic (group means always are), λ₂ of E[WᵀW] below 1, and W must not depend on the past.
The expectation is over the generator's draw when all workers take part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from preduce.topo.errors import ScheduleError
from preduce.topo.strategies.generated import Division, Generated

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster


@dataclass(frozen=True, slots=True)
class SecondEigenvalue:
    """λ₂ of E[WᵀW], as the larger root of λ² − trace·λ + determinant: exact, whether it is rational or not.

    For one operation (random, global division) the determinant is 0 and λ₂ = trace; for inter/intra it belongs to the
    inter phase followed by the intra phase.
    """

    trace: Fraction
    determinant: Fraction
    how: str

    @property
    def is_below_one(self) -> bool:
        """Whether both roots are below 1: the polynomial is positive at 1 and 1 lies right of its vertex."""
        return 1 - self.trace + self.determinant > 0 and self.trace < 2

    def __float__(self) -> float:
        """The eigenvalue, rounded."""
        return (float(self.trace) + math.sqrt(self.trace * self.trace - 4 * self.determinant)) / 2


@dataclass(frozen=True, slots=True)
class Conditions:
    """The answer: λ₂, whether it is below 1, and whether draws are independent of the past, with the reason."""

    second_eigenvalue: SecondEigenvalue
    contracts: bool
    independent: bool
    why: str

    @property
    def hold(self) -> bool:
        """Whether all of Prague's conditions are met."""
        return self.contracts and self.independent


def convergence_conditions(strategy: Generated, cluster: Cluster) -> Conditions:
    """Check Prague's convergence conditions for a generated schedule. O(number of nodes).

    Raises:
        ScheduleError: inter/intra groups on a cluster whose nodes differ in size.
    """
    n, g = cluster.num_workers, strategy.group_size
    if strategy.division == Division.RANDOM:
        second = SecondEigenvalue(one_group(n, g), Fraction(0), f"one uniformly random group of {g} among {n}")
    elif strategy.division == Division.GLOBAL:
        second = SecondEigenvalue(partition(n, g), Fraction(0), f"a uniformly random partition of {n} in groups of {g}")
    else:
        if cluster.workers_per_node is None:
            raise ScheduleError(f"cluster {cluster}: inter/intra groups are analysed for nodes of equal size")
        second = inter_intra(cluster.num_nodes, cluster.workers_per_node, g)
    independent = strategy.slow_threshold is None
    why = (
        "groups are drawn from the seed alone, among the workers that take part"
        if independent
        else f"slow_threshold {strategy.slow_threshold} leaves workers out by their progress: draws depend on the past"
    )
    return Conditions(second, second.is_below_one, independent, why)


def one_group(num_workers: int, size: int) -> Fraction:
    """λ₂ of E[WᵀW] when one uniformly random group of `size` averages and all others skip: (n − g)/(n − 1).

    W is an exchangeable projection of rank K (groups and skipping workers): E[WᵀW] is (E[K] − 1)/(n − 1) off the mean.
    """
    return Fraction(num_workers - size, num_workers - 1)


def partition(num_workers: int, size: int) -> Fraction:
    """λ₂ of E[WᵀW] for a uniformly random partition into groups of `size`; the rest forms one smaller group."""
    if num_workers == 1:
        return Fraction(0)
    return Fraction(-(-num_workers // size) - 1, num_workers - 1)


def inter_intra(num_nodes: int, workers_per_node: int, size: int) -> SecondEigenvalue:
    """λ₂ of E[WᵀW] for an inter phase and then an intra phase, exactly.

    Inter: the nodes' heads in a random partition, all others in random groups inside their node. Intra: all of a node.
    Off the mean only what differs between nodes survives the intra phase. There x is a value of the head and a value
    √(p−1)·o of the others, and with ρ = λ₂ of the heads' partition E[WᵀW] is (1/p)·[[ρ, ρ√(p−1)], [ρ√(p−1), p−1]]: the
    others' groups keep their node's sum, and E[H] = E[HᵀH] because H is a projection.
    """
    rho, p = partition(num_nodes, size), workers_per_node
    trace = (rho + p - 1) / p if num_nodes > 1 else Fraction(0)
    determinant = rho * (1 - rho) * (p - 1) / p**2 if num_nodes > 1 else Fraction(0)
    return SecondEigenvalue(
        trace, determinant, f"heads of {num_nodes} nodes in groups of {size}, then all {p} of a node"
    )
