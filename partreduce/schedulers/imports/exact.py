"""Recover exact weights from decimal numbers, and balance weights that are off by rounding.

Corrections are collected in `Notes`, one sentence per kind of correction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite

import numpy as np

from partreduce.topo.errors import ScheduleError

TOLERANCE = Fraction(1, 10**7)
"""Imbalances below this are attributed to rounding; larger ones are left for `verify` to refute."""
SINGLE_DENOMINATOR = 1000
"""The largest denominator of the fractions that a 32-bit number is read as.

Of all 32-bit numbers below 1, 2 % are the rounding of a fraction with a denominator up to this.
"""


@dataclass(slots=True)
class Notes:
    """The corrections of weights that an import made, and the settings that it read.

    `rounded` counts weights that were read as the fraction that they round, such as `example`; `balanced` counts edges
    that `balance_weights` changed, by up to `change`; workers' own weights were off by up to `own`.
    """

    rounded: int = 0
    example: str = ""
    balanced: int = 0
    change: Fraction = Fraction(0)
    own: Fraction = Fraction(0)
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    """DiLoCo settings as (name, value, meaning), and claims about them as (claim, status, reason)."""

    def lines(self) -> list[str]:
        """Return one sentence for each kind of correction."""
        found = []
        if self.rounded:
            which = "1 weight was" if self.rounded == 1 else f"{self.rounded} weights were"
            found.append(f"{which} read as the nearest simple fraction, {self.example}")
        if self.own:
            found.append(
                f"own weights changed by up to {float(self.own):.2g}, so that what a worker receives sums to 1"
            )
        if self.balanced:
            edges = "1 edge" if self.balanced == 1 else f"{self.balanced} edges"
            change = f"the weights of {edges} changed by up to {float(self.change):.2g}"
            found.append(f"{change}, so that every worker sends as much as it receives")
        return found


_NOTES: ContextVar[Notes | None] = ContextVar("_NOTES", default=None)


@contextmanager
def notes() -> Iterator[Notes]:
    """Collect the corrections that imports make inside the `with` block, in the Notes that it yields."""
    gathered = Notes()
    token = _NOTES.set(gathered)
    try:
        yield gathered
    finally:
        _NOTES.reset(token)


def current_notes() -> Notes:
    """Return the notes of the enclosing `notes()` block; outside of any, notes that are discarded."""
    return _NOTES.get() or Notes()


def exact(value: object, place: str) -> Fraction:
    """Return the fraction that was rounded to this decimal number: 0.333333333 gives 1/3; `place` is for messages.

    A fraction with a denominator up to 10⁴ within 1e-8 is preferred. A 32-bit number (or its shortest decimal) becomes
    the fraction with a denominator up to 1,000 that rounds to it, if there is one: 0.6666667 is 2/3. Any other number
    becomes a fraction within 1e-12; `Notes` count changes beyond that.

    Raises ScheduleError for what is no finite number ≥ 0.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ScheduleError(f"{place}: weight {value!r} is not a number") from None
    if not isfinite(number):
        raise ScheduleError(f"{place}: weight {value} is not finite")
    if number < 0:
        raise ScheduleError(f"{place}: weight {value} is negative; weights are shares from 0 to 1")
    near = Fraction(number).limit_denominator(10**4)
    simple = near if abs(float(near) - number) <= 1e-8 else _rounded_to_single(number)
    if simple is None:
        return Fraction(number).limit_denominator(10**12)
    if abs(float(simple) - number) > 1e-12:
        gathered = current_notes()
        gathered.rounded += 1
        gathered.example = gathered.example or f"such as {simple} for {value} ({place})"
    return simple


def _rounded_to_single(number: float) -> Fraction | None:
    """Return the fraction with a denominator up to 1,000 that rounds to this 32-bit number; None if there is none."""
    rounded = np.float32(number)
    if number not in (float(rounded), float(str(rounded))):
        return None
    simple = Fraction(number).limit_denominator(SINGLE_DENOMINATOR)
    return simple if np.float32(float(simple)) == rounded else None


def check_own_weights(num_workers: int, weight_of: Mapping[tuple[int, int], Fraction]) -> None:
    """Raise ScheduleError unless a worker's weight on itself, if given, is 1 minus its incoming weights (up to 1e-6).

    `weight_of` maps (source, target) to a weight.
    """
    incoming = [Fraction(0)] * num_workers
    for (source, target), weight in weight_of.items():
        if source != target:
            incoming[target] += weight
    for worker, total in enumerate(incoming):
        own, gathered = weight_of.get((worker, worker)), current_notes()
        if own is None:
            continue
        gathered.own = max(gathered.own, abs(own + total - 1))
        if abs(own + total - 1) > Fraction(1, 10**6):
            raise ScheduleError(
                f"worker {worker}: receives weights that sum to {float(own + total):g}, its own included; they sum to 1"
            )


def balance_weights(
    num_workers: int, sources: Sequence[int], targets: Sequence[int], weights: Sequence[Fraction]
) -> list[Fraction]:
    """Correct weights along spanning trees so that every worker's outgoing weights sum to its incoming ones.

    Only imbalances below 1e-7 are corrected, which come from rounding; `verify` refutes larger ones.
    """
    import networkx as nx

    excess = [Fraction(0)] * num_workers  # outgoing minus incoming weights
    edge_of: dict[tuple[int, int], int] = {}  # the first edge between two workers
    for e, (a, b) in enumerate(zip(sources, targets, strict=True)):
        excess[a] += weights[e]
        excess[b] -= weights[e]
        edge_of.setdefault((min(a, b), max(a, b)), e)
    result = list(weights)
    if not any(excess) or max(map(abs, excess)) > TOLERANCE:
        return result
    graph = nx.Graph(list(edge_of))
    for part in nx.connected_components(graph):  # one round of a stack need not connect all workers
        for above, worker in reversed(list(nx.bfs_edges(graph, min(part)))):
            # Leaves first: each moves its excess to the edge toward the root, whose own excess is 0 in the end.
            e = edge_of[min(above, worker), max(above, worker)]
            result[e] += -excess[worker] if sources[e] == worker else excess[worker]
            excess[above] += excess[worker]
    gathered = current_notes()
    changes = [abs(after - before) for before, after in zip(weights, result, strict=True) if after != before]
    gathered.balanced += len(changes)
    gathered.change = max(gathered.change, *changes)
    return result
