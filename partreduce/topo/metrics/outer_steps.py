"""Test whether workers with separate outer parameters reach agreement under outer steps, and how fast.

Where gradients are zero a worker's model is its outer parameters a, and a round of its group maps (a, b), b being its
outer momentum: with m the group's mean of a less its own, b <- momentum * b + m, a <- a + lr * b (with nesterov lr * (m
+ momentum * b)); a worker without a group keeps both. One period is a linear map M that fixes equal outer parameters
without momentum. On the complement its spectral radius is the rate of decay: below 1 the workers agree and come to
rest, at 1 or above they do not. So rate and momentum that are stable for one worker may be unstable for groups.

For a rule M splits into a matrix of size 2G for each class of characters (G workers on a node), for any number of
nodes: on a class a block averages over its local ranks, or its mean is zero.

`largest_rate` tests the same for workers with local momentum that average over a graph. Along an eigenvector of W with
eigenvalue λ and a direction of curvature h, with learning rate r and momentum β (heavy ball, m ← β m + h x, u = −r m),
the difference between workers evolves as

    serial order    x ← λ (x − r m)      parallel order    x ← λ x − r m

Both have determinant β λ, and Jury's conditions (E. I. Jury, 1964) give the rates below which it decays: in the serial
order r h < (1 − β)(1 − λ) / −λ for λ < 0 and r h < (1 + β)(1 + λ) / λ for λ > 0, in the parallel order r h < (1 + β)(1
+ λ). The mean of all workers (λ = 1) is stable below 2 (1 + β) in both. So a graph whose matrix has a negative
eigenvalue allows, in the serial order, far less momentum than All-Reduce.
"""

from __future__ import annotations

from math import inf

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import InputError
from partreduce.topo.mixing import Operators, mixing_matrix
from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.rule import distinct_classes
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.outer import OuterStep

Matrix = npt.NDArray[np.float64]
Parts = list[tuple[tuple[int, ...], Matrix]]

MAX_SIZE = 64
"""Most workers of an explicit schedule, or on a node of a rule, for which operators are computed."""
MAX_DIGITS = 12
EDGE = 1e-9
"""A radius nearer to 1 may be 1: groups that do not connect all workers have exactly 1."""


def outer_radius(schedule: Schedule) -> float | None:
    """Return the spectral radius of one period off equal outer parameters without momentum; None if too large."""
    parts = outer_operators(schedule)
    return None if parts is None else radius_of(parts)


def radius_of(parts: Parts) -> float:
    """Return the spectral radius of the result of `outer_operators`."""
    matrices = [part for _, part in parts]
    if not np.isfinite(matrices).all():
        return inf
    return float(np.abs(np.linalg.eigvals(matrices)).max())


def check_unstable(schedule: Schedule) -> None:
    """Raise for separate outer parameters under which the workers do not reach agreement."""
    radius = outer_radius(schedule)
    if radius is not None and radius >= 1 - EDGE:
        raise InputError(
            f"payload.outer: with their own outer parameters workers of {schedule.name!r} do not come to agree: the "
            f"spectral radius of a period is {radius:.6g}, and only below 1 differences die out; take a smaller rate "
            "or momentum, groups that connect all workers, or shared outer parameters"
        )


def outer_operators(schedule: Schedule) -> Parts | None:
    """Return (class, off·M·off) for every class of digits with a matrix; explicit groups have one without digits.

    O(2^k · period · G³) for rules with k digits and G workers on a node, O(period · n³) for explicit groups. None if
    either is too large.
    """
    rule, outer = schedule.rule(), schedule.strategy.payload.outer
    if rule is None:
        if schedule.num_workers > MAX_SIZE:
            return None
        classes: list[tuple[int, ...]] = [()]
        operators = Operators(schedule.phased.steps(schedule.cluster))
    else:
        rule = rule.canonical
        if rule.num_digits > MAX_DIGITS or rule.workers_per_node > MAX_SIZE:
            return None
        classes = distinct_classes(rule)
        operators = Operators.of_rule(rule, classes)
    joint = _period(outer, operators, len(classes))
    off = np.eye(joint.shape[-1])
    off[: operators.size, : operators.size] -= 1 / operators.size
    return [(digits, matrix if digits else off @ matrix @ off) for digits, matrix in zip(classes, joint, strict=True)]


def _period(outer: OuterStep, operators: Operators, num_classes: int) -> Matrix:
    """Return M on every class, shape (C, 2·size, 2·size), for (a, b)."""
    lr, factor, size = float(outer.lr), float(outer.momentum), operators.size
    units = np.broadcast_to(np.eye(2 * size).reshape(2, size, 1, 2 * size), (2, size, num_classes, 2 * size))
    a, b = units
    for t, phase in enumerate(operators.rounds):
        assert isinstance(phase, Phase), "outer steps are made by groups"
        inside = (phase.labels() >= 0)[:, None, None]
        movement = operators.apply(t, a) - a
        momentum = factor * b + movement
        a = np.where(inside, a + lr * (movement + factor * momentum if outer.nesterov else momentum), a)
        b = np.where(inside, momentum, b)
    return np.concatenate([a, b]).swapaxes(0, 1)


def largest_rate(graph: Round, momentum: float, *, parallel: bool) -> float:
    """Return the largest learning rate times curvature at which no difference between workers grows. O(n³).

    For symmetric weights, which have real eigenvalues; for others the symmetric part is used, which gives no bound.
    `momentum` is β, 0 <= β < 1; `parallel` means that parameters are averaged during computing (x ← Wx + u), not
    afterwards (x ← W(x + u)).
    """
    matrix = mixing_matrix(graph)
    eigenvalues = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    limits = [2 * (1 + momentum)]
    for value in eigenvalues.tolist():
        if parallel:
            limits.append((1 + momentum) * (1 + value))
        elif value > 0:
            limits.append((1 + momentum) * (1 + value) / value)
        elif value < 0:
            limits.append((1 - momentum) * (1 - value) / -value)
    return float(min(limits))
