"""Explicit phases in bulk: lists of groups to flat arrays and back, fast enough for millions of groups."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import chain, pairwise
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import DocumentError
from partreduce.topo.fraction import dump_fraction, parse_fraction
from partreduce.topo.phase import ONE, Phase
from partreduce.topo.place import child

_KEYS = {("group",), ("group", "relaxation"), ("relaxation", "group")}


def is_clean(phase: object) -> TypeGuard[list[dict[str, Any]]]:
    """Whether a raw phase surely satisfies the closed model of groups; False only sends it to the slow, naming check.

    Everything here runs at the speed of C loops: a model object per group would take minutes for a million workers.
    """
    if type(phase) is not list or not set(map(type, phase)) <= {dict} or not set(map(tuple, phase)) <= _KEYS:
        return False
    groups = [item["group"] for item in phase]
    if not set(map(type, groups)) <= {list} or min(map(len, groups), default=2) < 2:
        return False
    if not set(map(type, chain.from_iterable(groups))) <= {int}:
        return False
    try:
        for raw in {(type(item["relaxation"]), item["relaxation"]) for item in phase if "relaxation" in item}:
            parse_fraction(raw[1])
    except (TypeError, ValueError):
        return False
    return True


def phase_of(phase: list[dict[str, Any]], num_workers: int, place: str) -> Phase:
    """The Phase of a checked list of groups in any order. O(size log size), vectorized."""
    groups = [item["group"] for item in phase]
    sizes = np.fromiter(map(len, groups), dtype=np.int64, count=len(groups))
    flat = np.fromiter(chain.from_iterable(groups), dtype=np.int64, count=int(sizes.sum()))
    owner = np.repeat(np.arange(len(groups)), sizes)
    bad = np.flatnonzero((flat < 0) | (flat >= num_workers))
    if len(bad):
        where, starts = int(bad[0]), np.cumsum(sizes) - sizes
        inside = f"{child(place, int(owner[where]))}.group"
        problem = f"rank {int(flat[where])} is out of range; ranks are 0..{num_workers - 1}"
        raise DocumentError(child(inside, where - int(starts[owner[where]])), problem)
    same = owner[1:] == owner[:-1]
    if np.any((np.diff(flat) < 0) & same):
        flat = flat[np.lexsort((flat, owner))]
    twice = np.flatnonzero((np.diff(flat) == 0) & same)
    if len(twice):
        inside = f"{child(place, int(owner[twice[0]]))}.group"
        raise DocumentError(inside, f"worker {int(flat[twice[0]])} stands twice in it; keep it once")
    return _sort_groups(num_workers, flat, sizes, _relaxation_of(phase))


def _relaxation_of(phase: list[dict[str, Any]]) -> tuple[Fraction, ...] | None:
    if set(map(len, phase)) <= {1}:
        return None
    known: dict[int | str, Fraction] = {}
    factors = []
    for item in phase:
        raw = item.get("relaxation", 1)
        if raw not in known:
            known[raw] = raw if isinstance(raw, Fraction) else parse_fraction(raw)
        factors.append(known[raw])
    return None if all(factor == 1 for factor in known.values()) else tuple(factors)


def _sort_groups(
    num_workers: int, flat: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], relaxation: tuple[Fraction, ...] | None
) -> Phase:
    """Put groups (each ascending) into canonical order: by members, then by relaxation."""
    starts = np.cumsum(sizes) - sizes
    firsts = flat[starts]
    order = np.argsort(firsts, kind="stable")
    ties = np.diff(firsts[order]) == 0
    if ties.any():  # overlapping groups: where first members are equal, the order needs whole groups
        tied = np.flatnonzero(np.append(ties, False) | np.append(False, ties))
        ends, factors = starts + sizes, relaxation or (ONE,) * len(sizes)
        by_members = sorted(order[tied].tolist(), key=lambda g: (flat[starts[g] : ends[g]].tolist(), factors[g]))
        order[tied] = by_members
    if np.any(np.diff(order) < 0):
        sizes, starts = sizes[order], starts[order]
        ends = np.cumsum(sizes)
        flat = flat[np.arange(len(flat)) - np.repeat(ends - sizes, sizes) + np.repeat(starts, sizes)]
        relaxation = relaxation and tuple(relaxation[index] for index in order.tolist())
    return Phase.from_arrays(num_workers, flat.astype(np.int32), sizes, relaxation)


def plain_phase(phase: Phase) -> list[dict[str, Any]]:
    """The groups as a document holds them; `relaxation` is left out where it is 1."""
    groups = _lists(phase)
    if phase.relaxation is None:
        return [{"group": group} for group in groups]
    return [
        {"group": group} if factor == 1 else {"group": group, "relaxation": dump_fraction(factor)}
        for group, factor in zip(groups, phase.relaxation, strict=True)
    ]


def phase_text(phase: Phase, *, spaced: bool) -> str:
    """The JSON text of `plain_phase`. Plain groups are written at the speed of C code."""
    separators = (", ", ": ") if spaced else (",", ":")
    if phase.relaxation is not None or not len(phase):
        return json.dumps(plain_phase(phase), sort_keys=True, separators=separators)
    lists = json.dumps(_lists(phase), separators=separators)[1:-1]
    comma, key = separators[0], json.dumps("group") + separators[1]
    return "[{" + key + lists.replace(f"]{comma}[", f"]}}{comma}{{{key}[") + "}]"


def _lists(phase: Phase) -> list[list[int]]:
    sizes = phase.sizes
    if len(sizes) and sizes.min() == sizes.max():
        listed: list[list[int]] = phase.members.reshape(-1, int(sizes[0])).tolist()
        return listed
    flat, bounds = phase.members.tolist(), phase.offsets.tolist()
    return [flat[start:end] for start, end in pairwise(bounds)]
