"""After how many rounds everybody has met everybody, directly or through others.

Let a worker *meet* another in a round if a group that holds both averages then (relaxation not 0), or if it takes from
the other over an edge (weight not 0). What began at worker i before round t is, after the rounds t … s, at the
*reached* set: i itself at first; then, round by round, who meets somebody in it. `rounds_to_meet` is the smallest R
such that any R successive rounds take any worker to everybody. Two things follow from it.

**Nobody is more than R rounds ahead.** Let worker i be in round r, so it has not begun to exchange in round r + 1. An
exchange completes only when all whom one meets have begun it. So who meets i in round r + 1 cannot leave that
round, who meets one of those in round r + 2 cannot leave that one, and after R rounds everybody is held up: all
are in round r + R at most. For a graph of one round R is its largest distance, Hop's bound. Late averages change
nothing: they are begun with their round, and a round is not left before they are there. A pipeline of gradients leaves
round s before its average is there, but not before that of round s − d, where d is its lag. So who meets i in round
r + 1 cannot leave round r + 1 + d, and nobody is more than R + d rounds ahead.

**Everything arrives after R rounds,** if nobody gives up all of its own value: then reached sets hold whom they held.

**Rules.** Start at local rank l of a node x. The nodes that are reached at a local rank always are a union of sets
"all nodes that agree with x outside the digits F", so a family of sets F says all: an average over the local ranks L
across the digits D turns the families of L into their union with D added to each member. A union of proper ones never
holds a node that differs from x in every digit, so all nodes are reached exactly when F = all digits is in the
family. By symmetry x does not matter, and radices do not either: R is the same for every number of nodes with so many
digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from .refusal import Work
from .schedule import Schedule

Families = list[set[int]]
"""For every local rank sets of digits, as bits of an integer."""


def rounds_to_meet(schedule: Schedule, work: Work) -> int | None:
    """R, over all rounds of the period in which it can begin; None where some workers never meet."""
    find = _of_rule if schedule.form == "rule" else _of_all
    found = 0
    for start in range(schedule.period):
        rounds = find(schedule, start, work)
        if rounds is None:
            return None
        found = max(found, rounds)
    return found


def reached_sets(schedule: Schedule, start: int, work: Work) -> Iterator[list[int]]:
    """From whom something has arrived at every worker, as bits of an integer, after 1, 2, … rounds from round `start`.

    Ends when nothing can change any more. Not for rules.
    """
    n, period = schedule.num_workers, schedule.period
    work.spend(n * (n // 8 + 40))  # before the first list is made
    arrived = [1 << worker for worker in range(n)]
    meetings: list[list[tuple[list[int], list[int]]]] = [
        [(list(members), list(members)) for members, _, relaxation in phase if relaxation] for phase in schedule.phases
    ]
    for edges in schedule.rounds:
        sources: dict[int, list[int]] = {}
        for target, source, weight in edges:
            if weight:
                sources.setdefault(target, [target]).append(source)
        meetings.append([([target], heard) for target, heard in sources.items()])
    quiet = 0
    for t in count(start):
        before = arrived
        arrived = list(before)
        for targets, heard in meetings[t % period]:
            work.spend((len(heard) + len(targets)) * (40 + n // 64))
            together = 0
            for source in heard:
                together |= before[source]
            for target in targets:
                arrived[target] = together
        work.spend(n * 10)
        quiet = quiet + 1 if arrived == before else 0
        if quiet >= period:
            return
        yield arrived


def _of_all(schedule: Schedule, start: int, work: Work) -> int | None:
    everybody = (1 << schedule.num_workers) - 1
    for number, arrived in enumerate(reached_sets(schedule, start, work), 1):
        if all(bits == everybody for bits in arrived):
            return number
    return None


def _of_rule(schedule: Schedule, start: int, work: Work) -> int | None:
    size, period = schedule.width, schedule.period
    work.spend(size * size * 10)
    phases = [
        [(members, sum(1 << digit for digit in across)) for members, across, relaxation in phase if relaxation]
        for phase in schedule.phases
    ]
    full = (1 << len(schedule.radices)) - 1
    slowest = 0
    # Two local ranks that share all their blocks can change places, so that both reach everybody equally fast.
    blocks: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    for t, phase in enumerate(phases):
        for index, (members, _) in enumerate(phase):
            work.spend(10 * len(members))
            for member in members:
                blocks[member].append((t, index))
    alike = {tuple(shared): rank for rank, shared in enumerate(blocks)}
    for rank in alike.values():
        families: Families = [{0} if other == rank else set() for other in range(size)]
        number = quiet = 0
        while not all(full in family for family in families):
            changed = False
            for members, across in phases[(start + number) % period]:
                together = {digits | across for member in members for digits in families[member]}
                work.spend(100 + len(members) * 10 + len(together) ** 2)
                together = {one for one in together if not any(one & other == one != other for other in together)}
                for member in members:
                    changed |= families[member] != together
                    families[member] = together
            number += 1
            quiet = 0 if changed else quiet + 1
            work.spend(size * 10)
            if quiet >= period:
                return None
        slowest = max(slowest, number)
    return slowest
