"""Outer steps from each worker's own outer parameters: do workers agree, and how fast?

Where gradients are zero a worker's model is its outer parameters a, and a round of its group maps (a, b), b being its
outer momentum: with m the group's mean of a less its own, b <- momentum * b + m, a <- a + lr * b (with nesterov
lr * (m + momentum * b)); who stands in no group keeps both. One period is a linear map M that leaves equal outer
parameters without momentum alone. Off them its spectral radius says how fast everything else dies out: below 1 workers
agree and rest, at 1 or above they do not. So rate and momentum that one worker bears may be too much for groups.

For a rule M splits into a matrix of size 2G for each class of characters (G workers on a node), for any number of
nodes: on a class a block averages over its local ranks, or its mean is zero.
"""

from __future__ import annotations

from math import inf

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import InputError
from partreduce.topo.metrics.class_means import Means, means_of_class, means_of_groups
from partreduce.topo.rule import distinct_classes
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.outer import OuterStep

Matrix = npt.NDArray[np.float64]
Parts = list[tuple[tuple[int, ...], Matrix]]

MAX_SIZE = 64
"""Workers of an explicit schedule, or on a node of a rule, up to which operators are made."""
MAX_DIGITS = 12
EDGE = 1e-9
"""A radius that is nearer to 1 may be 1: groups that do not connect all workers have just that."""


def outer_radius(schedule: Schedule) -> float | None:
    """Spectral radius of one period off equal outer parameters without momentum; None if the matrix is too large."""
    parts = outer_operators(schedule)
    return None if parts is None else radius_of(parts)


def radius_of(parts: Parts) -> float:
    """The spectral radius of what `outer_operators` returns."""
    return max(_radius(part) for _, part in parts)


def check_unstable(schedule: Schedule) -> None:
    """Refuse outer steps from own outer parameters with which workers do not come to agree.

    Raises:
        InputError: the radius is 1 or more.
    """
    radius = outer_radius(schedule)
    if radius is not None and radius >= 1 - EDGE:
        raise InputError(
            f"payload.outer: with their own outer parameters workers of {schedule.name!r} do not come to agree: the "
            f"spectral radius of a period is {radius:.6g}, and only below 1 differences die out; take a smaller rate "
            "or momentum, groups that connect all workers, or shared outer parameters"
        )


def outer_operators(schedule: Schedule) -> Parts | None:
    """(class, off·M·off) for every class of digits with matrices of its own; one without digits for explicit groups.

    O(2^k · period · G³) for rules with k digits and G workers on a node, O(period · n³) for explicit groups. None where
    there are too many of either.
    """
    rule, outer = schedule.rule(), schedule.strategy.payload.outer
    if rule is None:
        n = schedule.num_workers
        if n > MAX_SIZE:
            return None
        return [((), _period(outer, n, means_of_groups(schedule.phased.steps(schedule.cluster)), True))]
    rule = rule.canonical
    if rule.num_digits > MAX_DIGITS or rule.workers_per_node > MAX_SIZE:
        return None
    return [
        (digits, _period(outer, rule.workers_per_node, means_of_class(rule, digits), not digits))
        for digits in distinct_classes(rule)
    ]


def _period(outer: OuterStep, size: int, phases: Means, off_mean: bool) -> Matrix:
    """off·M·off, shape (2·size, 2·size), for (a, b)."""
    lr, factor = float(outer.lr), float(outer.momentum)
    joint = np.eye(2 * size)
    for means in phases:
        before = joint.copy()
        for members, survives, _ in means:
            a, b = before[members], before[[size + member for member in members]]
            movement = (a.mean(axis=0) if survives else 0.0) - a
            momentum = factor * b + movement
            joint[[size + member for member in members]] = momentum
            joint[members] = a + lr * (movement + factor * momentum if outer.nesterov else momentum)
    if off_mean:
        off = np.eye(2 * size)
        off[:size, :size] -= 1 / size
        joint = off @ joint @ off
    return joint


def _radius(matrix: Matrix) -> float:
    return float(np.abs(np.linalg.eigvals(matrix)).max()) if np.isfinite(matrix).all() else inf
