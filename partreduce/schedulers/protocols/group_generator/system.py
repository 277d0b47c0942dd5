"""Combine the group generator and its workers into one `Machine` for the explorer and virtual time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import factorial
from typing import Any

from partreduce.schedulers.protocols.base import Note, Outcome, Received
from partreduce.schedulers.protocols.group_generator.draw import CHOICE_BITS, GeneratorSetting
from partreduce.schedulers.protocols.group_generator.service import ACTIVE, GroupGenerator, Restarted
from partreduce.schedulers.protocols.group_generator.worker import GroupWorker, Retry
from partreduce.topo.errors import InputError

MODULUS = 4
"""Where request numbers wrap in endless runs: more than the requests of one worker that can be on their way."""


@dataclass(frozen=True)
class GroupSystem:
    """Workers 0..n−1 and the generator as process n, under one setting; a `Machine`.

    `rounds` of every worker may be None: endless, with sequence numbers counted from the oldest outstanding group. A
    draw comes out with one of `ways` random numbers: 1 explores one draw, k! all of k idle workers, None draws from the
    setting's seed, as at run time. Each worker may repeat `retries` times what may have been lost, also when nothing
    was, and the generator be killed and started again from its log `restarts` times. `costs` are what a round costs
    each worker to compute, as it reports it (empty: all the same; a tuple: of one round after the other, the last for
    all further ones). The collective of `breakers` may fail once although no worker has died; not in endless runs,
    where groups long past have equal numbers, so that one that broke would be taken for met.
    """

    setting: GeneratorSetting
    rounds: int | None = 2
    collective: bool = True
    ways: int | None = 1
    retries: int = 0
    costs: tuple[int | tuple[int, ...], ...] = ()
    breakers: tuple[int, ...] = ()
    restarts: int = 0

    def __post_init__(self) -> None:
        """Refuse what numbers counted from the oldest group cannot show."""
        if self.rounds is None and self.breakers:
            raise InputError(f"breakers: is {self.breakers}; an endless run has none: give rounds")

    @cached_property
    def generator(self) -> GroupGenerator:
        return GroupGenerator(self.setting, modulus=None if self.rounds is not None else MODULUS)

    @cached_property
    def worker(self) -> GroupWorker:
        modulus = None if self.rounds is not None else MODULUS
        return GroupWorker(self.setting.num_workers, rounds=self.rounds, collective=self.collective, modulus=modulus)

    @property
    def num_processes(self) -> int:
        """The workers and the generator."""
        return self.setting.num_workers + 1

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """To and from the generator; between workers where groups are met by messages."""
        n = self.setting.num_workers
        between = [(u, v) for u in range(n) for v in range(n) if u != v] if self.collective else []
        return [*((w, n) for w in range(n)), *((n, w) for w in range(n)), *between]

    def start(self, process: int) -> Outcome[Any]:
        """Every worker asks for its first group."""
        if process == self.setting.num_workers:
            return (self.generator.initial(), self.restarts), ()
        return self.worker.start(
            self.retries,
            None if self.ways is None else 0,
            breaks=int(process in self.breakers),
            cost=self.cost_of(process, 0),
        )

    def cost_of(self, worker: int, rounds: int) -> int:
        """What a worker's round costs it to compute, after so many rounds."""
        costs = self.costs[worker] if self.costs else 1
        return costs if isinstance(costs, int) else costs[min(rounds, len(costs) - 1)]

    def ready(self, process: int, state: Any) -> Sequence[Hashable]:  # noqa: ANN401 - as in Machine
        """Rounds that end, with every outcome of a later draw; a retry; a restart of the generator."""
        if process == self.setting.num_workers:
            return (Restarted(),) if state[1] and ACTIVE in state[0].status else ()
        events: list[Hashable] = []
        for kind in self.worker.ready(state):
            salts = (None,) if self.ways is None else self.salts
            events += [Retry()] if kind is Retry else [kind(salt) for salt in salts]
        return events

    def step(self, process: int, state: Any, event: object) -> Outcome[Any]:  # noqa: ANN401 - as in Machine
        if process < self.setting.num_workers:
            if isinstance(event, Received):
                return self.worker.received(process, state, event.source, event.message)
            if not isinstance(event, Retry):
                state = replace(state, cost=self.cost_of(process, state.rounds))
            return self.worker.step(process, state, event)
        if isinstance(event, Received):
            after, actions = self.generator.handle(state[0], event.source, event.message)
            return (after, state[1]), actions
        assert isinstance(event, Restarted), f"not an event of the generator: {event}"
        after, actions = self.generator.restarted(state[0])
        return (after, state[1] - 1), (*actions, Note(("restarted", after.generation)))

    @cached_property
    def salts(self) -> tuple[int, ...]:
        """Random numbers of which number k stands for order k of the workers and for choice k among known groups.

        An order is read from a number's lowest places (`shuffled`), a choice from its bits above `CHOICE_BITS`.
        """
        orders = factorial(self.setting.num_workers)
        return tuple(way + orders * -(-(way << CHOICE_BITS) // orders) for way in range(self.ways or 0))
