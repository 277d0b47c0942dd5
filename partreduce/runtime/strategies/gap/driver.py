"""Run one worker's side of Hop's protocol between real processes; one lock guards its state and its arrays."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.liveness.wait_chain import format_workers
from partreduce.runtime.strategies.protocol_driver import EventLog, GenerationDriver, Missing, wait_for_missing
from partreduce.runtime.transport.mailbox import Message
from partreduce.runtime.transport.updates import Arrival, PayloadRings
from partreduce.schedulers.protocols import hop
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.topo.errors import InputError

PLACE, UPDATE, NUMBERS = "gap/place", "gap/update", ("tokens", "acked", "fresh")  # names in a checkpoint
Recipients = Mapping[int, tuple[int, ...]]  # ranks that get an update, each with the integers of its message


class Letter(NamedTuple):
    """A message without arrays to a neighbor: tokens, an acknowledgement, or the mark of a pause.

    A token lets the neighbor enter one more step; a mark says that all messages before the pause have been sent.
    `numbers` are the generation and how many of this kind were sent; in a mark, then the other two counts.
    """

    to: int
    kind: str
    numbers: tuple[int, ...]


class NeighborUpdates(NamedTuple):
    """Neighbors' parameters that a step averages: (source, step) of each, ascending (`used`), and each one's arrays."""

    step: int
    used: tuple[tuple[int, int], ...]
    arrays: tuple[list[torch.Tensor], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an event: messages (`letters`) and an update to send, updates to average, steps advanced (`by`)."""

    letters: tuple[Letter, ...] = ()
    update: Recipients = field(default_factory=dict)  # recipients of the update that was offered
    averaged: NeighborUpdates | None = None
    by: int = 0  # steps by which the worker advanced


Totals = Counter[tuple[int, str]]  # totals by (neighbor, "token" or "ack")


@dataclass(slots=True)
class _Part:
    """This worker's step and its totals of messages (`given`, `taken`) since the protocol was last restarted."""

    step: int  # current step, for messages and the log
    given: Totals = field(default_factory=Counter)  # totals sent to each neighbor since the start; part of messages
    taken: Totals = field(default_factory=Counter)  # totals last received from each neighbor
    is_offered: bool = False  # whether this step's update may be sent as soon as the protocol allows it


class GapDriver(GenerationDriver[hop.HopState]):
    """Hop's state machine for one worker, with queues of updates: the parameters that neighbors sent after a step.

    A generation of the protocol ends when all queues are cleared. The updates' arrays are in `rings`, which are proved
    to be large enough. The mailbox's thread calls `send` for an offered update that the protocol allows only later.
    """

    machine: hop.Hop

    def __init__(
        self, machine: hop.Hop, rank: int, rings: PayloadRings, *, log: EventLog, send: Callable[[Recipients], None]
    ) -> None:
        super().__init__(machine, rank)
        self.rank, self.rings, self.log = rank, rings, log
        self.sources, self.targets = machine.graph.sources[rank], machine.graph.targets[rank]
        self._send = send
        self._part = _Part(0)
        self._marks: dict[int, int] = {}
        self._paused = 0

    def open(self, step: int, state: hop.HopState | None = None) -> None:
        """Enter step `step` with empty queues, or with the `state` of a checkpoint whose updates `rings` holds."""
        if state is None:
            state = replace(self.machine.start(self.rank)[0], step=step)
        with self.condition:
            self._part = _Part(step)
            self.rings.retire(step - self.machine.setting.staleness)
            self.log.add("entered", step)
            self._begin(state)

    def drop(self) -> None:
        with self.condition:
            self._generation += 1
            self._state, self._marks, self._paused = None, {}, 0
            self.rings.clear()

    def packed(self) -> dict[str, torch.Tensor]:
        """Return the protocol's state and queues as tensors by name, for a checkpoint; no message may be in flight."""
        state, machine, rings = self._state, self.machine, self.rings
        if state is None:
            return {}
        tensors = {PLACE: torch.tensor([state.step, state.stage])}
        for name in NUMBERS:
            if numbers := getattr(state, name):
                tensors[f"gap/{name}"] = torch.tensor([int(number) for number in numbers])
        oldest = state.step - machine.setting.staleness
        for source, queue in zip(self.sources, state.updates, strict=True):
            if queue:
                steps = [oldest + bit for bit in range(queue.bit_length()) if queue >> bit & 1]
                tensors[f"gap/queue/{source}"] = torch.tensor(steps)
            for step in rings.steps(source):
                for index, array in enumerate(rings.peek(source, step)):
                    tensors[f"{UPDATE}/{source}/{step}/{index}"] = array
        return tensors

    def unpack(self, round_: int, tensors: dict[str, torch.Tensor]) -> None:
        step, stage = tensors[PLACE].tolist()
        if step != round_:
            raise InputError(f"the queues are those of step {step}, and the checkpoint is of {round_}")
        oldest = step - self.machine.setting.staleness
        self.rings.clear(oldest)
        arrays: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith(f"{UPDATE}/"):
                source, of, index = map(int, name.removeprefix(f"{UPDATE}/").split("/"))
                arrays.setdefault((source, of), {})[index] = tensor
        for (source, of), parts in sorted(arrays.items()):
            self.rings.restore(source, of, [parts[index] for index in range(len(parts))])
        none = torch.tensor([], dtype=torch.int64)
        held = [tensors.get(f"gap/queue/{source}", none).tolist() for source in self.sources]
        tokens, acked, fresh = (tensors.get(f"gap/{name}", none).tolist() for name in NUMBERS)
        updates = tuple(sum(1 << of - oldest for of in steps) for steps in held)
        state = hop.HopState(
            step=step,
            stage=stage,
            updates=updates,
            tokens=tuple(tokens),
            acked=tuple(map(bool, acked)),
            fresh=tuple(map(bool, fresh)),
        )
        self.open(round_, state)

    def fire(self, kind: type[hop.Reduce | hop.Advance]) -> Outcome:
        """Average (`kind` is `Reduce`) or enter the next step (`Advance`), for which the protocol must be ready.

        The caller then sends the returned messages, without holding the lock. The lock is held while the event is
        chosen, since an arriving token can turn a step into a skip, or a skip into a longer one.
        """
        with self.condition:
            return self._fire(
                next(event for event in self.machine.ready(self.rank, self.open_state) if isinstance(event, kind))
            )

    def offer(self, tokens: Sequence[Letter]) -> Outcome:
        """Offer this step's update (the parameters); return what the caller must send now, which includes `tokens`.

        If the protocol allows the update only later, the mailbox's thread then sends it.
        """
        with self.condition:
            self._part.is_offered = True
            if not self._may_send():
                return Outcome(tuple(tokens))
            recipients = self._fire(hop.SendUpdate()).update
            riding = {letter.to: letter.numbers[1] for letter in tokens if letter.to in recipients}
            alone = tuple(letter for letter in tokens if letter.to not in recipients)
            update = {to: (*numbers[:-1], riding.get(to, 0)) for to, numbers in recipients.items()}
            return Outcome(alone, update)

    def _may_send(self) -> bool:
        return self._part.is_offered and self.open_state.stage == hop.SENDING and bool(self.ready())

    @property
    def has_left(self) -> bool:
        return self._state is None or not self._part.is_offered

    def missing(self) -> Missing | None:
        """Return the messages that this worker waits for, with their senders; None if it may continue. O(neighbors)."""
        with self.condition:
            if self.ready():
                return None
            state, step, staleness = self.open_state, self._part.step, self.machine.setting.staleness
            if state.stage == hop.SENDING:
                of = tuple(v for v, acked in zip(self.targets, state.acked, strict=True) if not acked)
                return Missing(f"the acknowledgement of its update of step {step - 1}", of, len(of))
            if state.stage == hop.REDUCING:
                have = [queue > 0 if staleness else queue & 1 for queue in state.updates]
                of = tuple(u for u, has in zip(self.sources, have, strict=True) if not has)
                spare = self.machine.setting.backups(self.machine.num_processes)[self.rank]
                later = " or later" if staleness else ""
                return Missing(f"an update of step {max(0, step - staleness)}{later}", of, len(of) - spare)
            assert state.stage == hop.ENTERING
            of = tuple(v for v, count in zip(self.targets, state.tokens, strict=True) if count < 1)
            return Missing(f"a token to enter step {step + 1}", of, len(of))

    def pause(self) -> tuple[Letter, ...]:
        """Start a pause, before an operation of all workers; return a mark for each neighbor, to be sent last."""
        with self.condition:
            self._paused += 1
            given: Totals = Counter() if self._state is None else self._part.given
            return tuple(
                Letter(to, "mark", (self._generation, self._paused, given[to, "token"], given[to, "ack"]))
                for to in self.neighbors
            )

    def unmarked(self) -> tuple[int, ...]:
        """Return the neighbors whose last message before this pause, a mark, has not arrived."""
        with self.condition:
            return tuple(rank for rank in self.neighbors if self._marks.get(rank, 0) < self._paused)

    def paused(self) -> frozenset[int]:
        """Return the neighbors that wait in a pause (an operation of all workers) which this worker has not started."""
        with self.condition:
            return frozenset(rank for rank, number in self._marks.items() if number > self._paused)

    @property
    def neighbors(self) -> tuple[int, ...]:
        return tuple(sorted({*self.sources, *self.targets}))

    def _generation_of(self, message: Message) -> int:
        return message.numbers[1 if message.kind == "update" else 0]

    def _can_take(self, message: Message) -> bool:
        return self._state is not None or message.kind == "mark"

    def _received(self, message: Message) -> None:
        source, numbers = message.source, message.numbers
        match message.kind:
            case "update":
                self._take_in(message)
            case "token" | "ack":
                self._count(source, message.kind, numbers[1])
            case "mark":
                self._marks[source] = numbers[1]
                if self._state is not None:  # urgent messages may arrive after the mark, which repeats their totals
                    self._count(source, "token", numbers[2])
                    self._count(source, "ack", numbers[3])

    def _take_in(self, message: Message) -> None:
        """Store one part of a neighbor's update; the first part also carries tokens, the last completes the update."""
        place, _, step, total = message.numbers
        if place == 0:
            self._count(message.source, "token", total)
        if self.rings.receive(message.source, step, place, message.payload) is not Arrival.MORE:
            self.step(Received(message.source, hop.Update(step)))
            self.log.add("update", step, source=message.source, fill=len(self.rings.steps(message.source)))

    def _count(self, source: int, kind: str, total: int) -> None:
        """Apply tokens (`kind` "token") or an acknowledgement ("ack"); `total` is how many `source` has sent so far."""
        part = self._part
        new = total - part.taken[source, kind]
        if new <= 0:
            return  # already received with another message
        part.taken[source, kind] = total
        if kind == "token":
            self.step(Received(source, hop.Token(new)))
            self.log.add("tokens", part.step, by=new, source=source)
            return
        assert new == 1, "the update of a step leaves when that of the step before is acknowledged"
        self.step(Received(source, hop.Ack()))
        self.log.add("ack", part.step, source=source)
        if self._may_send():
            self._send(self._fire(hop.SendUpdate()).update)

    def _fire(self, event: hop.HopEvent) -> Outcome:
        part = self._part
        assert event in self.ready(), f"{event} is not ready"
        actions = self.step(event)
        averaged = None
        for action in actions:
            match action:
                case Note((("reduced" | "renewed") as kind, int(step), tuple(used))):
                    arrays = tuple(self.rings.take(source, of) for source, of in used)  # checks that the steps match
                    averaged = NeighborUpdates(step, tuple((source, of) for source, of in used), arrays)
                    self.log.add(kind, step, used=averaged.used)
        if isinstance(event, hop.Advance):
            part.step += event.by
            self.rings.retire(part.step - self.machine.setting.staleness)
            self.log.add("entered", part.step, by=event.by)
        letters, update = [], {}
        for action in actions:
            match action:
                case Send(to, hop.Update()):
                    update[to] = (self._generation, part.step, 0)
                case Send(to, hop.Token(count)):
                    letters.append(self._numbered_letter(to, "token", count))
                case Send(to, hop.Ack()):
                    letters.append(self._numbered_letter(to, "ack", 1))
        if isinstance(event, hop.SendUpdate):
            part.is_offered = False
            self.log.add("sent", part.step)
        return Outcome(tuple(letters), update, averaged, event.by if isinstance(event, hop.Advance) else 0)

    def _numbered_letter(self, to: int, kind: str, count: int) -> Letter:
        given = self._part.given
        given[to, kind] += count
        return Letter(to, kind, (self._generation, given[to, kind]))


def wait_in_step(
    step: int,
    done: Callable[[], bool],
    missing: Callable[[], Missing | None],
    condition: threading.Condition,
    heartbeat: Heartbeat,
    *,
    timeout: float,
    check_failure: Callable[[], None],
    pausing: bool = False,
    paused: Callable[[], frozenset[int]] = frozenset,
) -> None:
    """Wait until `done()`, like `wait_for_missing`; raise once too few neighbors are left to send what `step` needs.

    Fewer than all can suffice, with backup workers or staleness. In a pause, an operation of all workers (`pausing`), a
    neighbor after its last step still sends. `paused` returns the workers in a pause that this one has not entered.
    """
    wait_for_missing(
        done,
        missing,
        condition,
        heartbeat,
        timeout,
        why=lambda lack: (
            _hopeless(heartbeat, lack, None)
            if pausing
            else _hopeless(heartbeat, lack, step) or _unequal(heartbeat, lack, step, paused())
        ),
        check_failure=check_failure,
        describe=lambda lack: (
            f"worker {heartbeat.rank} waited in step {step} for {lack.what} from {format_workers(lack.of)}"
        ),
        place=f"in step {step} ",
    )


def _hopeless(heartbeat: Heartbeat, lack: Missing, step: int | None) -> str | None:
    """Return why too few of the `lack.needed` messages can still arrive, as a clause for an error; None if enough can.

    With a `step`, a neighbor that ended before taking it counts as gone.
    """
    if (problem := heartbeat.store_lost()) is not None:
        return str(problem)
    last_steps = {rank: heartbeat.read("finished", rank) for rank in lack.of} if step is not None else {}
    ended = {rank for rank, last in last_steps.items() if last is not None and step is not None and int(last) <= step}
    gone = heartbeat.lost(lack.of) | ended
    if len(lack.of) - len(gone) >= lack.needed:
        return None
    return heartbeat.failure_reason(sorted(gone), step)


def _unequal(heartbeat: Heartbeat, lack: Missing, step: int, paused: frozenset[int]) -> str | None:
    """Return why too few messages can arrive, as neighbors wait for this worker in another operation; else None."""
    waiting = [rank for rank in lack.of if rank in paused or heartbeat.in_other_gathering([rank], step) is not None]
    if len(lack.of) - len(waiting) >= lack.needed:
        return None
    return heartbeat.in_other_gathering(waiting, step) or (
        f"worker {waiting[0]} waits for all in mean_model(), save_checkpoint() or another place where all meet, which "
        f"this worker has passed: {heartbeat.unequal}"
    )
