"""Steps per round of several optimizers in one process: their group operations must come in one order on all workers.

An operation of one optimizer waits for the others' operation of the same round. With optimizers A and B of unequal
steps per round a worker may come to a round of B first where another comes to one of A first, and each waits for the
other.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from partreduce.runtime.transport.worlds import World
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule


class Scheduled(Protocol):
    """An optimizer that follows a schedule."""

    schedule: Schedule


_running: WeakKeyDictionary[World, WeakSet[Scheduled]] = WeakKeyDictionary()


def check_other_worker_steps(world: World, optimizer: Scheduled) -> None:
    """Refuse an optimizer whose steps per round are not a multiple of those of another one that runs in this process.

    Raises:
        InputError: naming both schedules; the same on all workers.
    """
    others = _running.setdefault(world, WeakSet())
    mine = optimizer.schedule
    for other in list(others):
        ending = other.__dict__.get("ending")
        if ending is None or not ending.is_running:
            others.discard(other)
            continue
        pairs = zip(mine.worker_steps().tolist(), other.schedule.worker_steps().tolist(), strict=True)
        if len({Fraction(int(own), int(their)) for own, their in pairs}) > 1:
            raise InputError(
                f"schedule {mine.name!r}: its steps per round {mine.worker_steps().tolist()} and those of "
                f"{other.schedule.name!r}, {other.schedule.worker_steps().tolist()}, which runs in the same process, "
                "are not in one proportion, so workers would wait for each other in a circle; give both the same "
                "steps per round"
            )
    others.add(optimizer)
