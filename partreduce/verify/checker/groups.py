"""Facts `conflict-free`, `doubly-stochastic` and `unit-sums`: groups are disjoint; rows and columns sum to 1.

`conflict-free`: in every phase each worker is in at most one group, and all members agree on the group. All workers
read one file, so they agree. Listed groups are disjoint iff their members, counted together, are as many as the
different workers among them. Two workers of one block of a rule share a group iff their nodes agree in all digits
outside `across`, which is an equivalence: the groups of a block are disjoint. So a phase of a rule is free of
conflicts, for every number of nodes, iff no local rank is in two of its blocks. This is checked first: without it there
is no mixing matrix.

Rows that sum to 1 leave a common value alone, columns that sum to 1 keep the mean; with no negative entry as well,
every new value is a mean of old ones. `smallest_weight` is the smallest weight that a worker which averages gives, in
any round of the period, to itself or to a worker it averages with (all other entries of a mixing matrix are 0 or 1),
and 0 if no worker averages: the fact is `doubly-stochastic` if it is not negative, else `unit-sums`.

**Groups.** In a group of k workers with factor t the matrix has t/k off its diagonal and 1 − t + t/k on it. Rows and
columns sum to 1 for every t, and the smaller of the two numbers is the smallest entry. It is negative unless 0 ≤ t ≤
k/(k−1).

**Weighted graphs.** A worker keeps 1 − (the weights of its incoming edges), so rows sum to 1 as the format is made. The
column of a worker sums to 1 iff the sum of its outgoing weights equals that of its incoming ones, in every round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from math import prod
from typing import Any

from .refusal import Work, confirm, confirm_equal
from .schedule import Average, Edge, Numbers, Schedule, kept_weights
from .survives import hash_answers


def conflict(schedule: Schedule) -> tuple[int, int, list[Average]] | None:
    """Return the first phase with a worker (or local rank) in two groups, the worker, and the two groups; else None."""
    for t, phase in enumerate(schedule.phases):
        workers = list(chain.from_iterable(members for members, _, _ in phase))
        if len(set(workers)) < len(workers):
            seen: set[int] = set()
            for worker in workers:
                if worker in seen:
                    return t, worker, [average for average in phase if worker in average.members][:2]
                seen.add(worker)
    return None


def confirm_disjoint(schedule: Schedule) -> None:
    """Raise a Refusal if a worker is in two groups of one phase."""
    if (found := conflict(schedule)) is not None:
        t, worker, both = found
        groups = [average.members for average in both]
        confirm(False, f"schedule: phase {t}", groups, f"groups that do not share worker {worker}")


EVALUATED = 2**20
"""Most members of all workers' groups, over all phases, with which `group_of` is evaluated (1 for a skipped phase)."""


def check_membership(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """Raise a Refusal unless `entry` proves `membership` of a rule: `group_of` returns the group of the worker's block.

    `answers` is the SHA-256 of the results of all workers in every phase: the smallest member of the worker's group and
    the relaxation, or `-` if the worker skips. Workers with equal results form a group, so any difference in the groups
    changes the hash. If the results of all workers together are too long, they are not all evaluated and the claim is
    not made. *Assumed:* the function that was evaluated is the installed one, and each of its groups consists of the
    workers with equal results.
    """
    confirm(schedule.form == "rule", place, "membership", "a rule; explicit groups are read from one list")
    members = members_of_answers(schedule)
    confirm(members <= EVALUATED, place, "membership", f"answers of at most {EVALUATED} members in all; not {members}")
    text = hashlib.sha256()
    hash_answers(text, schedule, (), Work(place))
    confirm_equal(f"{place}.answers", entry["answers"], text.hexdigest())


def members_of_answers(schedule: Schedule) -> int:
    """Return the total size of the groups that all workers of a rule compute in all phases; 1 for a skipped phase."""
    members = schedule.period * schedule.width
    for local_ranks, across, _ in chain.from_iterable(schedule.phases):
        size = len(local_ranks) * prod(schedule.radices[digit] for digit in across)
        members += len(local_ranks) * (size - 1)
    return prod(schedule.radices) * members


def doubly_stochastic(schedule: Schedule, _: Work) -> Numbers | None:
    """Fact `doubly-stochastic`: return `smallest_weight` if no mixing matrix has a negative entry, else None."""
    return _sums(schedule, has_negative=False)


def unit_sums(schedule: Schedule, _: Work) -> Numbers | None:
    """Fact `unit-sums`: return `smallest_weight` if it is negative, else None."""
    return _sums(schedule, has_negative=True)


def _sums(schedule: Schedule, *, has_negative: bool) -> Numbers | None:
    """Return `smallest_weight` if its sign is as `has_negative` says; else None, also if a column does not sum to 1."""
    weights: list[Fraction] = []
    for sizes in schedule.group_sizes():
        for size, relaxation in sizes:
            weights += [relaxation / size, 1 - relaxation + relaxation / size]
    for edges in filter(None, schedule.rounds):
        listed = weights_of_round(edges)
        if listed is None:
            return None
        weights += listed
    smallest = min(weights, default=Fraction(0))
    return {"smallest_weight": str(smallest)} if (smallest < 0) is has_negative else None


def weights_of_round(edges: Sequence[Edge]) -> list[Fraction] | None:
    """Return the weights of a round's edges and those that their targets keep; None if a column does not sum to 1.

    All other entries of the matrix are 0, or 1 on the diagonal for a worker without incoming edges.
    """
    surplus: dict[int, Fraction] = {}
    for target, source, weight in edges:
        surplus[target] = surplus.get(target, Fraction(0)) - weight
        surplus[source] = surplus.get(source, Fraction(0)) + weight
    return None if any(surplus.values()) else [*kept_weights(edges), *(edge.weight for edge in edges)]
