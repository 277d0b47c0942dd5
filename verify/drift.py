"""Claims `drift-worker` and `drift-node`: at most so much in the steady state, for pushes of a worker or of a node.

Certified by the steady state Z rounded to integers: what one period changes of it, divided by 1 − contraction, bounds
how far it is from the true one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, fraction_above, not_proved, proved
from partreduce.verify.consensus_distance import FLOATS, LOOSE, SMALL, TIGHT
from partreduce.verify.contraction import MARGIN
from partreduce.verify.steady_state import (
    GUARD,
    MAX_BITS,
    MAX_ENTRIES,
    MAX_STEPS,
    ClassMotion,
    Motion,
    as_integers,
    motion_of,
    rounded_up,
    shown,
)
from partreduce.verify.view import rule_view

Matrix = npt.NDArray[np.float64]

SLOW = 1 - 1e-6
"""A contraction of one period from here on is too near to 1 for a bound of this kind."""
SMALLEST = 2.0**-60
"""The least c², where a period ends in the exact mean."""


def prove_drift(schedule: Schedule, push: Literal["worker", "node"]) -> Claim | None:
    """Prove a bound a little above the figure `drift`; None where a node is one worker or not seen (all-reduce)."""
    name = f"drift-{push}"
    motion = motion_of(schedule)
    if isinstance(motion, str):
        return not_proved(name, motion)
    pushes = _pushes(schedule, motion, push)
    if pushes is None:
        return None
    entries = len(motion.classes) * pushes.size
    if entries > MAX_ENTRIES or entries * motion.period * motion.instants > MAX_STEPS:
        return not_proved(name, "the steady states of all classes are too many numbers for a certificate.")
    norm = max(float(np.linalg.norm(part.product, 2)) for part in motion.classes)
    if norm > SLOW:
        text = "the contraction of the period from phase 0 is 1 or nearly so, which this check divides by."
        return not_proved(name, text)
    squared = fraction_above(max(norm**2 * (1 + max(motion.size, 16) * MARGIN), SMALLEST))
    factor = 2 / (1 - float(squared))
    pushed = _Pushed(motion, pushes)
    states = [pushed.steady_state(part) for part in motion.classes]
    root = sqrt(pushed.bound(states, [0.0] * len(states)))
    wanted = (TIGHT if motion.size <= SMALL else LOOSE) * max(root, 2.0**-20) / 2
    bits = max(1, ceil(log2(3 * factor * sqrt(pushes.shape[1] * motion.size / motion.num_workers) / wanted)))
    if bits > MAX_BITS:
        return not_proved(name, "workers agree too slowly for a certificate in integers.")
    rounded = [np.rint(np.ldexp(state, bits)) for state in states]
    starts = [np.ldexp(state, -bits) for state in rounded]
    pairs = zip(motion.classes, starts, strict=True)
    unit = 2.0 ** -(bits + GUARD)
    at_most = rounded_up(pushed.bound(starts, [pushed.distance(*pair, unit, factor) for pair in pairs]) * (1 + FLOATS))
    text = (
        f"drift for pushes of a {push} ≤ {shown(at_most)}: a state is listed that one period with its pushes "
        f"changes by next to nothing, and the true steady state is at most {factor:.3g} times as far away."
    )
    numbers = [as_integers(state, 0) for state in rounded]
    return proved(name, text, at_most=str(at_most), squared=str(squared), bits=bits, state=numbers)


def _pushes(schedule: Schedule, motion: Motion, push: Literal["worker", "node"]) -> Matrix | None:
    """U, a column for each push, shape (g, k); None where a push of a node is that of a worker, or no node is seen."""
    if push == "worker":
        return np.eye(motion.size)
    if schedule.cluster.num_nodes == schedule.num_workers:
        return None
    rule = rule_view(schedule)
    if motion.is_rule and rule is not None:
        sees_nodes = schedule.cluster.num_nodes == rule.num_nodes and schedule.cluster.is_regular
        return np.ones((motion.size, 1)) if sees_nodes else None
    node_of = schedule.cluster.node_of()
    return np.asarray(node_of[:, None] == np.arange(schedule.cluster.num_nodes), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _Pushed:
    """A schedule with what pushes its workers: U, a column for each push, shape (g, k)."""

    motion: Motion
    pushes: Matrix

    def steady_state(self, part: ClassMotion) -> Matrix:
        """The Z that a period with its pushes leaves as it is, shape (g, k)."""
        pushed = self._after_period(part, np.zeros_like(self.pushes))
        return np.asarray(np.linalg.solve(np.eye(self.motion.size) - part.product, pushed), dtype=np.float64)

    def distance(self, part: ClassMotion, start: Matrix, unit: float, factor: float) -> float:
        """How far the steady state may be from `start`, as the checker will find, and a little more."""
        residual = float(np.linalg.norm(part.off_mean(self._after_period(part, start) - start)))
        residual += float(np.linalg.norm(start)) * 1e-14
        rounding = (self.motion.period * (sqrt(self.pushes.size) + 1) + 3) * unit
        return (residual + rounding) * factor + rounding

    def bound(self, starts: Sequence[Matrix], distances: Sequence[float]) -> float:
        """The mean over all instants of ‖z‖²/n that these states lead to, if they are so far from the steady ones."""
        motion, total = self.motion, 0.0
        for part, start, distance in zip(motion.classes, starts, distances, strict=True):
            squares, state = 0.0, start
            for matrix, push in zip(part.matrices, motion.push, strict=True):
                for s in range(1, motion.instants):
                    squares += float((part.off_mean(state + motion.made(s)[:, None] * self.pushes) ** 2).sum())
                state = self._after_phase(part, matrix, push, state)
                squares += float((part.off_mean(state) ** 2).sum())
            # The checker takes roots upwards, in whole numbers.
            root = int(sqrt(motion.period * motion.instants)) + 1
            total += part.count * (sqrt(squares) + root * distance) ** 2
        return total / motion.num_instants

    def _after_period(self, part: ClassMotion, state: Matrix) -> Matrix:
        for matrix, push in zip(part.matrices, self.motion.push, strict=True):
            state = self._after_phase(part, matrix, push, state)
        return state

    def _after_phase(self, part: ClassMotion, matrix: Matrix, push: Matrix, state: Matrix) -> Matrix:
        move = push[:, None] * self.pushes
        if self.motion.is_late:
            return np.asarray(matrix @ state + part.off_mean(move))
        return np.asarray(matrix @ (state + move))
