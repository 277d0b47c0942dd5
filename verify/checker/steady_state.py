"""What workers add between two averagings, and how far that keeps them apart: the ground of disagreement and drift.

**The model.** A round of worker i has `pace` steps. With P the largest pace a round has P equal instants: at instant
s < P worker i has made ⌊s·pace/P⌋ of its steps and nothing is averaged yet; at instant P it has made all, and W acts.
Late averages come in before the steps of their round instead: x ← W·x + (steps), and otherwise x ← W·(x + steps). A
figure is the mean over all instants of a period of ‖x − mean‖²/n, in the steady state.

**Classes.** As in `period.py` a rule is a G × G matrix on each class of characters. Steps of unit variance, independent
for each worker, have unit variance on every character, and what is the same on a whole node is the vector of ones
there. The squared distance to the mean is the sum over all characters but that of the mean, so the sum over classes,
each times its number of characters.

**Without the mean.** Let Q = I − J on the class that holds the mean, and Q = I on others. Rows of W sum to 1, so
Q·W = Q·W·Q: what is off the mean after a round depends on what was off the mean before. So the mean may be left in
while a period is computed, and taken out at its end.

**No phase lengthens.** Groups with 0 ≤ relax ≤ 2 have the eigenvalues 1 and 1 − relax. A matrix without negative
entries whose rows and columns sum to 1 has ‖W‖₂² ≤ ‖W‖₁·‖W‖∞ = 1. Both are asked of every phase, and everything below
rests on it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from .claims.stochastic import weights_of_round
from .period import after_phase, classes, growth_bits
from .refusal import confirm, require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .linear_algebra import IntegerMatrix
    from .refusal import Work
    from .schedule import Schedule

GUARD = 16
"""Bits that are kept below those of the certificate's own numbers while a period is computed."""

MAX_BITS = 64
MAX_ROWS = 1024
MAX_MATRIX_BITS = 2**30
"""The integers of one matrix may have so many bits together."""


class Steps(NamedTuple):
    """The pace of every place (worker, or local rank of a rule), and P, the number of instants in a round."""

    paces: list[int]
    instants: int

    def made(self, s: int) -> list[int]:
        """The steps that every place has made at instant s of a round."""
        return [s * pace // self.instants for pace in self.paces]


def read_steps(schedule: Schedule, place: str, work: Work) -> Steps:
    """The paces of the places of a schedule for which these figures are checked: no phase lengthens, all is small.

    Raises:
        Refusal: it is another schedule.
    """
    require(schedule.width <= MAX_ROWS, place, f"over {MAX_ROWS} rows")
    for sizes in schedule.group_sizes():
        is_tame = all(0 <= relax <= 2 for _, relax in sizes)
        confirm(is_tame, place, "relax", "0 <= relax <= 2 in every group")
    for t, edges in enumerate(schedule.rounds):
        smallest = min(weights_of_round(edges, f"schedule: round {t}"))
        confirm(smallest >= 0, place, str(smallest), "no negative weight")
    paces, width = schedule.paces, schedule.width
    longest = 2 * max(growth_bits(schedule, t) for t in range(schedule.period))  # W acts from both sides
    require(width * width * longest <= MAX_MATRIX_BITS, place, "factors with too long denominators for this check")
    if len(paces) == 1:
        of_places = paces * width
    else:
        of_places = paces[:width]
        are_alike = all(paces[at : at + width] == of_places for at in range(0, len(paces), width))
        confirm(are_alike, place, "paces", "the same paces on all nodes")
    weighs_all_alike = not schedule.is_step_normalised or len(set(of_places)) == 1
    confirm(weighs_all_alike, place, "step-normalised", "one pace, or plain means")
    steps = Steps(of_places, max(of_places))
    work.spend(200 * steps.instants * width, place)
    return steps


def classes_with_counts(schedule: Schedule, place: str) -> list[tuple[list[int], int]]:
    """Every class that `period.classes` lists, with the number of characters that it stands for."""
    listed = classes(schedule, place)
    all_across = list({frozenset(block.across) for phase in schedule.phases for block in phase})

    def pattern(varying: frozenset[int]) -> tuple[bool, ...]:
        return (bool(varying), *(not varying.isdisjoint(across) for across in all_across))

    counts = dict.fromkeys((pattern(frozenset(digits)) for digits in listed), 0)
    for subset in range(2 ** len(schedule.radices)):
        varying = frozenset(digit for digit in range(len(schedule.radices)) if subset >> digit & 1)
        counts[pattern(varying)] += prod(schedule.radices[digit] - 1 for digit in varying)
    return [(digits, counts[pattern(frozenset(digits))]) for digits in listed]


def rounded_after_phase(
    schedule: Schedule, t: int, digits: Sequence[int], rows: IntegerMatrix, *, both_sides: bool
) -> IntegerMatrix:
    """W·X, or W·X·Wᵀ for a symmetric X, for the W of phase t on a class; entries are rounded to the nearest integer."""
    rows, scale = after_phase(schedule, t, digits, rows)
    if both_sides:
        rows, factor = after_phase(schedule, t, digits, list(map(list, zip(*rows, strict=True))))
        scale *= factor
    twice = 2 * scale
    return [[(2 * entry + scale) // twice for entry in row] for row in rows]
