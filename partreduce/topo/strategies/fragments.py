"""Fragments: parts of the model that take turns, each with the schedule's rounds at its own steps.

Source: Douillard et al., Streaming DiLoCo with overlapping communication, 2025 (arXiv 2501.18512), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import NamedTuple

from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.fields import Count, Title

Fragments = Count | tuple[tuple[Title, ...], ...]
"""Their number, the model then being cut between layers, or the patterns of each one's parameters."""


def number_of(fragments: Fragments) -> int:
    """P."""
    return fragments if isinstance(fragments, int) else len(fragments)


def round_ends(num_fragments: int, steps_per_round: int) -> tuple[int, ...]:
    """After which step of a round each fragment's turn ends: floor((p + 1) * steps_per_round / P), the last with all.

    With P <= steps_per_round they ascend, and at least steps_per_round div P steps lie between two of them.
    """
    return tuple((number + 1) * steps_per_round // num_fragments for number in range(num_fragments))


class Move(NamedTuple):
    """What all workers do to a fragment after `taken` steps of every round: they send it, or merge what they sent."""

    taken: int
    fragment: int
    merges: bool


def moves(num_fragments: int, steps_per_round: int, late: int) -> tuple[Move, ...]:
    """What a round does to its fragments, in the same order on all workers; each is merged `late` steps after sending.

    A fragment may be sent in the round before the one that merges it; the first round has nothing to merge then. So up
    to ceil(late * P / steps_per_round) are in flight at once: a merge makes room before the next is sent.
    """
    ends = round_ends(num_fragments, steps_per_round)
    merges = [Move(end, number, merges=True) for number, end in enumerate(ends)]
    sends = [Move((end - late - 1) % steps_per_round + 1, number, merges=False) for number, end in enumerate(ends)]
    return tuple(sorted(sends + merges, key=lambda move: (move.taken, move.merges is (late == 0))))


def check_fragments(fragments: Fragments) -> None:
    """Refuse lists that name no part of a model."""
    if isinstance(fragments, int):
        if fragments < 1:
            raise ScheduleError(f"payload.fragments: is {fragments}; a model has at least 1")
        return
    if len(fragments) < 2:
        raise ScheduleError(f"payload.fragments: has {len(fragments)} entries; leave it out, or give at least 2")
    seen: dict[str, int] = {}
    for place, patterns in enumerate(fragments):
        if not patterns:
            raise ScheduleError(
                f"payload.fragments[{place}]: is empty; give the names of its parameters, such as 'head.*'"
            )
        for pattern in patterns:
            if pattern in seen:
                raise ScheduleError(
                    f"payload.fragments[{place}]: has {pattern!r}, as fragment {seen[pattern]} has; "
                    "a parameter is in one fragment"
                )
            seen[pattern] = place


def assign(fragments: Fragments, parameters: Sequence[tuple[tuple[str, ...], int]]) -> list[int]:
    """The fragment of each parameter, given all names of each (tied weights have several) and how many numbers it has.

    By number the model is cut between layers, which are the modules that hold parameters, so that the largest fragment
    is as small as it can be. Patterns are those of the shell: `*` stands for any text, dots included.
    """
    if isinstance(fragments, int):
        return _cut(fragments, parameters)
    result: list[int] = []
    for names, _ in parameters:
        found = {
            number: pattern
            for number, patterns in enumerate(fragments)
            for pattern in patterns
            if any(fnmatchcase(name, pattern) for name in names)
        }
        if len(found) != 1:
            said = " and ".join(f"{number} ({pattern!r})" for number, pattern in found.items())
            said = f"fragments {said}" if found else "no fragment"
            raise InputError(
                f"model: parameter {names[0]!r} is in {said}; payload.fragments of the schedule has each "
                "parameter in exactly one"
            )
        result += found
    for number, patterns in enumerate(fragments):
        if number not in result:
            raise InputError(
                f"model: has no parameter for payload.fragments[{number}] of the schedule ({', '.join(patterns)}); "
                "leave that fragment out"
            )
    return result


def _cut(count: int, parameters: Sequence[tuple[tuple[str, ...], int]]) -> list[int]:
    layers = [list(layer) for _, layer in groupby(parameters, key=lambda one: one[0][0].rpartition(".")[0])]
    if len(layers) < count:
        raise InputError(
            f"model: has {len(layers)} layers with parameters, fewer than the {count} fragments of the schedule; "
            "take fewer, or give payload.fragments as lists of names"
        )
    sizes = [sum(size for _, size in layer) for layer in layers]
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _parts(sizes, middle, 1)[-1] < count else (middle + 1, high)
    return [number for number, layer in zip(_parts(sizes, low, count), layers, strict=True) for _ in layer]


def _parts(sizes: Sequence[int], room: int, least: int) -> list[int]:
    """Give neighbors the same number while they fit into `room` and `least` numbers can still be used."""
    numbers, number, filled = [], 0, 0
    for place, size in enumerate(sizes):
        is_full = filled + size > room
        is_scarce = len(sizes) - place <= least - 1 - number
        if place and (is_full or is_scarce):
            number, filled = number + 1, 0
        filled += size
        numbers.append(number)
    return numbers
