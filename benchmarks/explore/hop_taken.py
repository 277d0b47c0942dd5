"""What Hop's reduces take: a record of what came since the last one is kept with each worker, and compared.

Under bounded staleness the worker keeps one bit an in-neighbor that says whether its update is new. Whether that bit
is right cannot be seen in a state alone, because an update that was averaged stays in its queue to unblock a later
step. So the machine here writes down what has come; where the worker is right, what is written down follows from its
state, and no state is added.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.explore.reductions import Hop
from benchmarks.explore.search.properties import PerProcess, Property, through
from partreduce.schedulers.protocols.base import Note, Outcome, Received
from partreduce.schedulers.protocols.hop import Advance, HopState, Reduce, SendUpdate, Update

NOTHING = -(2**60)
"""No update that could still serve has come."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A worker, and of every in-neighbor the newest update that has come since the last reduce (or `NOTHING`)."""

    worker: HopState
    came: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """A machine of Hop's workers, each with its record."""

    machine: Hop

    @property
    def num_processes(self) -> int:
        return self.machine.num_processes

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        return self.machine.channels

    def start(self, process: int) -> Outcome[Recorded]:
        state, actions = self.machine.start(process)
        return Recorded(state, (NOTHING,) * len(self.machine.graph.sources[process])), actions

    def ready(self, process: int, state: Recorded) -> Sequence[Hashable]:
        return tuple(self.machine.ready(process, state.worker))

    def step(self, process: int, state: Recorded, event: object) -> Outcome[Recorded]:
        """As the machine; a reduce, also one before a skip, empties the record."""
        after, actions = self.machine.step(process, state.worker, event)
        came = state.came
        if not self.machine.setting.staleness:  # a reduce takes the updates of its step, whenever they came
            return Recorded(after, came), actions
        if isinstance(event, Received) and isinstance(event.message, Update):
            place = self.machine.graph.sources[process].index(event.source)
            held = state.worker.step - self.machine.setting.staleness + state.worker.updates[place].bit_length() - 1
            if event.message.step >= held or not state.worker.updates[place]:  # else a newer one has overtaken it
                came = (*came[:place], max(came[place], event.message.step), *came[place + 1 :])
        elif isinstance(event, Reduce) or (isinstance(event, Advance) and event.by > 1):
            came = (NOTHING,) * len(came)
        oldest = after.step - self.machine.setting.staleness
        return Recorded(after, tuple(k if k >= oldest else NOTHING for k in came)), actions

    # The machine's reductions.

    def clock(self, process: int, state: Recorded) -> int:
        return self.machine.clock(process, state.worker)

    def shifted(self, process: int, state: Recorded, by: int) -> Recorded:
        came = tuple(k - by if k > NOTHING else k for k in state.came)
        return Recorded(self.machine.shifted(process, state.worker, by), came)

    def shifted_message(self, message: Any, by: int) -> Any:  # noqa: ANN401 - as in Shiftable
        return self.machine.shifted_message(message, by)

    def symmetries(self) -> Sequence[tuple[int, ...]]:
        return self.machine.symmetries()

    def renamed(self, process: int, state: Recorded, permutation: tuple[int, ...]) -> Recorded:
        """The record is put in the order of the new names."""
        places = {permutation[u]: place for place, u in enumerate(self.machine.graph.sources[process])}
        came = tuple(state.came[places[u]] for u in self.machine.graph.sources[permutation[process]])
        return Recorded(self.machine.renamed(process, state.worker, permutation), came)

    def renamed_message(self, message: Any, permutation: tuple[int, ...]) -> Any:  # noqa: ANN401 - as in Symmetric
        return self.machine.renamed_message(message, permutation)


def of_the_worker(prop: Property) -> Property:
    """A property of Hop's workers, asked of recorded ones."""
    return through(prop, lambda state: state.worker)


def takes_what_came(machine: Hop) -> PerProcess:
    """A reduce averages the newest update that has come since the last one, of everybody of whom one has that serves.

    Without staleness, it averages the updates of its step.
    """
    setting = machine.setting

    def check(v: int, state: Recorded) -> str | None:
        worker = state.worker
        for event in machine.ready(v, worker):
            by = event.by if isinstance(event, Advance) else 1
            if isinstance(event, SendUpdate) or (isinstance(event, Advance) and by == 1):
                continue
            notes: list[Any] = [a.what for a in machine.step(v, worker, event)[1] if isinstance(a, Note)]
            step = worker.step + by - 1
            word = "reduced" if isinstance(event, Reduce) else "renewed"
            told = [what for what in notes if what[0] != "entered"]
            right = (word, step, expected(v, state, step))
            if told != [right]:
                return f"worker {v} tells {told}; it should tell {right}"
        return None

    def expected(v: int, state: Recorded, step: int) -> tuple[tuple[int, int], ...]:
        fitting, first = [], state.worker.step - setting.staleness
        for u, queue, came in zip(machine.graph.sources[v], state.worker.updates, state.came, strict=True):
            held = {first + bit for bit in range(queue.bit_length()) if queue >> bit & 1}
            served = came
            if not setting.staleness:
                served = step if step in held else NOTHING
            if served >= step - setting.staleness:
                fitting.append((u, served))
        return tuple(fitting)

    return PerProcess("averages what came", check)
