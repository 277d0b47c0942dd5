"""A worker of the group generator as a pure state machine, and the system of workers and generator as one `Machine`.

The request is sent at the beginning of a round, so that its answer has arrived when the round is computed. The
group's collective is modeled by `Here` messages between its members: it ends for a worker once all others have entered.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import factorial
from typing import Any

from partreduce.schedulers.protocols.base import Action, Crashed, Note, Outcome, Received, Send, Signal
from partreduce.schedulers.protocols.group_generator.draw import CHOICE_BITS, GeneratorSetting
from partreduce.schedulers.protocols.group_generator.service import (
    ACTIVE,
    Alone,
    Answer,
    Ask,
    Bye,
    Evicted,
    Grant,
    GroupGenerator,
    Later,
    Restarted,
    Void,
)
from partreduce.topo.errors import InputError

ASKED, GRANTED, MEETING, ALONE, ENDED, EVICTED = "asked", "granted", "meeting", "alone", "ended", "evicted"
LATER = "later"
MODULUS = 4
"""The number at which request numbers wrap in endless runs; fewer requests of one worker can be in flight."""


@dataclass(frozen=True, slots=True)
class Here:
    """Message between members: the sender has entered the all-reduce of group `seq`; `answer` marks a reply to one."""

    seq: int
    answer: bool = False


@dataclass(frozen=True, slots=True)
class Asking:
    """An event after which the worker requests a group; `salt` is the draw's random number (None: by the seed)."""

    salt: int | None = None


class NextRound(Asking):
    """Event: the next round begins, after a round without a group."""


class Enter(Asking):
    """Event: the round is computed and the worker enters its group."""


class Computed(Asking):
    """Event: a slow worker, whose request was answered with `Later`, has computed its round and requests its group."""


class Broke(Asking):
    """Event: the group's collective failed or could not begin; its result is discarded."""


class Retry(Signal):
    """Event: the worker has waited long and repeats all messages that may have been lost."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of one worker of the group generator.

    `request` is the number of its last request, `ask`; `rounds` are computed. `seq` and `members` are its group, `met`
    is the last group that it finished (−1: none); `here` are the (seq, member) pairs whose `Here` has arrived for
    groups that it has not finished. It may still repeat messages `retries` times, and its group's collective may fail
    `breaks` times. `cost` is the compute time of a round.
    """

    stage: str
    request: int
    rounds: int
    ask: Ask
    generation: int = 0
    seq: int = -1
    members: tuple[int, ...] = ()
    met: int = -1
    here: tuple[tuple[int, int], ...] = ()
    retries: int = 0
    breaks: int = 0
    cost: int = 0


Stepped = tuple[WorkerState, tuple[Action, ...]]


class GroupWorker:
    """The state machine of a worker, whose group generator is process `service`; methods return the next state.

    The worker runs `rounds` rounds (None: endless); request numbers wrap at `modulus` (None: never). With `collective`
    members of a group exchange `Here` messages; without it a worker may leave a group at any time after it entered,
    which covers every real collective but cannot show members that wait for one another.
    """

    def __init__(
        self, service: int, *, rounds: int | None = None, collective: bool = True, modulus: int | None = None
    ) -> None:
        self.service, self.rounds, self.collective, self.modulus = service, rounds, collective, modulus

    def start(self, retries: int, salt: int | None, *, breaks: int = 0, cost: int = 0) -> Stepped:
        ask = Ask(0, -1, self.rounds == 0, cost=cost, salt=salt)
        state = WorkerState(ASKED, 0, 0, ask, retries=retries, breaks=breaks, cost=cost)
        return state, (Send(self.service, ask),)

    def ready(self, state: WorkerState) -> Sequence[type]:
        possible: list[type] = []
        if state.stage == ALONE:
            possible.append(NextRound)
        if state.stage == GRANTED:
            possible.append(Enter)
        if state.stage == LATER:
            possible.append(Computed)
        if state.retries > 0 and state.stage in (ASKED, GRANTED, MEETING):
            possible.append(Retry)
        if state.breaks > 0 and state.stage in (GRANTED, MEETING):
            possible.append(Broke)
        return possible

    def step(self, worker: int, state: WorkerState, event: object) -> Stepped:
        match event:
            case NextRound(salt):
                return self.next_ask(state, -1, salt)
            case Enter(salt):
                return self.entered(worker, state, salt)
            case Computed(salt):
                return self.next_ask(state, -1, salt, computed=True)
            case Broke(salt):
                return self.handle_broken(replace(state, breaks=max(state.breaks - 1, 0)), salt)
            case Retry():
                state = replace(state, retries=state.retries - 1)
                return state, (*self.reminders(worker, state), Send(self.service, state.ask))
        raise AssertionError(f"not an event of a worker: {event}")

    def received(self, worker: int, state: WorkerState, source: int, message: object) -> Stepped:
        """Handle a message of process `source`; one of an older generation, other request or ended group is ignored."""
        match message:
            case Crashed() if source == self.service:
                return replace(state, stage=EVICTED, seq=-1, members=()), (Note(("service lost",)),)
            case Crashed():
                return state, ()  # only the generator declares a member failed, so that all receive it in one order
            case Here(seq, answer):
                return self.met_by(worker, state, source, seq, answer=answer)
            case Evicted():
                return replace(state, stage=EVICTED, seq=-1, members=()), (Note(("evicted",)),)
            case Void(generation, seq):  # never out of date: no group is granted again once it is void
                state = replace(state, generation=max(generation, state.generation))
                return (self.without_group(state) if self.holds(state, seq) else state), ()
            case Answer() if message.generation < state.generation or message.request != state.request:
                return state, ()
            case Answer():
                return self.handle_answer(replace(state, generation=message.generation), message)
        raise AssertionError(f"not a message to a worker: {message}")

    def holds(self, state: WorkerState, seq: int) -> bool:
        return state.stage in (GRANTED, MEETING) and state.seq == seq

    def handle_answer(self, state: WorkerState, answer: Answer) -> Stepped:
        """Handle the answer to the present request; a repeated answer is ignored unless it cancels a group."""
        if state.stage == ASKED:
            if isinstance(answer, Grant):
                return replace(state, stage=GRANTED, seq=answer.seq, members=answer.members), ()
            return replace(state, stage={Bye: ENDED, Later: LATER}.get(type(answer), ALONE)), ()
        if state.stage in (GRANTED, MEETING) and isinstance(answer, Alone):
            return self.without_group(state), ()
        return state, ()

    def without_group(self, state: WorkerState) -> WorkerState:
        """Return the state after the group was canceled: the round continues without a group."""
        return replace(state, stage=ALONE, seq=-1, members=(), here=_after(state.here, state.seq))

    def entered(self, worker: int, state: WorkerState, salt: int | None) -> Stepped:
        """Enter the group: send `Here` to its members; if all have entered, finish it (see `finished` for `salt`)."""
        if not self.collective:
            return self.finished(state, salt)
        sent = tuple(Send(member, Here(state.seq)) for member in state.members if member != worker)
        state, actions = self.if_complete(worker, replace(state, stage=MEETING, ask=replace(state.ask, salt=salt)))
        return state, (*sent, *actions)

    def reminders(self, worker: int, state: WorkerState) -> tuple[Action, ...]:
        """Return the `Here` messages to repeat: those to members that are not known to have entered the group."""
        if state.stage != MEETING:
            return ()
        missing = (m for m in state.members if m != worker and (state.seq, m) not in state.here)
        return tuple(Send(member, Here(state.seq)) for member in missing)

    def met_by(self, worker: int, state: WorkerState, source: int, seq: int, *, answer: bool) -> Stepped:
        """Handle `Here`: `source` has entered group `seq`, which this worker may have finished or not entered yet."""
        if seq <= state.met:
            return state, (() if answer else (Send(source, Here(seq, answer=True)),))
        if (seq, source) in state.here or state.stage in (ENDED, EVICTED):
            return state, ()
        state = replace(state, here=tuple(sorted((*state.here, (seq, source)))))
        return self.if_complete(worker, state) if state.stage == MEETING else (state, ())

    def if_complete(self, worker: int, state: WorkerState) -> Stepped:
        if all(member == worker or (state.seq, member) in state.here for member in state.members):
            return self.finished(state, state.ask.salt)
        return state, ()

    def finished(self, state: WorkerState, salt: int | None) -> Stepped:
        """End the group at this worker, and report that with the next request, which has the random number `salt`."""
        note = Note(("executed", state.seq, state.members))
        done = state.seq
        state = replace(state, seq=-1, members=(), met=max(done, state.met), here=_after(state.here, done))
        state, actions = self.next_ask(state, done, salt)
        return state, (note, *actions)

    def handle_broken(self, state: WorkerState, salt: int | None) -> Stepped:
        """Continue without the group, whose collective failed; the next request reports it (`salt` as in `Asking`)."""
        note = Note(("broken", state.seq, state.members))
        failed = state.seq
        state, actions = self.next_ask(self.without_group(state), failed, salt, failed=True)
        return state, (note, *actions)

    def next_ask(
        self, state: WorkerState, done: int, salt: int | None, *, failed: bool = False, computed: bool = False
    ) -> Stepped:
        """Send the next request, which reports group `done` (−1: none) as finished or failed; arguments as in `Ask`."""
        request = state.request + 1 if self.modulus is None else (state.request + 1) % self.modulus
        rounds = state.rounds if self.rounds is None or computed else state.rounds + 1
        ask = Ask(request, done, self.rounds is not None and rounds >= self.rounds, failed, computed, state.cost, salt)
        return replace(state, stage=ASKED, request=request, rounds=rounds, ask=ask), (Send(self.service, ask),)


def _after(here: tuple[tuple[int, int], ...], seq: int) -> tuple[tuple[int, int], ...]:
    return tuple(pair for pair in here if pair[0] > seq)


@dataclass(frozen=True)
class GroupSystem:
    """Workers 0..n−1 and the generator, process n, as one state machine (`Machine`), to be explored and simulated.

    Args:
        setting: the settings of the generator.
        rounds: rounds of each worker; None: endless, with groups numbered from the oldest that has not ended.
        collective: whether members of a group exchange `Here` messages (see `GroupWorker`).
        ways: how many random numbers a draw may use: 1 explores one draw, k! all draws of k idle workers; None: one
            number from the setting's seed, as at run time.
        retries: how often each worker may repeat the messages that may be lost, even if none is.
        costs: each worker's compute time of a round: a number, or one per round (the last for all further ones).
        breakers: workers whose collective may fail once, though no worker died; none in endless runs.
        restarts: how often the generator may be killed and restarted from its log.
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
        """Raise InputError for breakers in an endless run: its repeating numbers cannot tell finished groups apart."""
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
        return self.setting.num_workers + 1

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """All pairs of a worker and the generator; with `collective` also all pairs of workers."""
        n = self.setting.num_workers
        between = [(u, v) for u in range(n) for v in range(n) if u != v] if self.collective else []
        return [*((w, n) for w in range(n)), *((n, w) for w in range(n)), *between]

    def start(self, process: int) -> Outcome[Any]:
        if process == self.setting.num_workers:
            return (self.generator.initial(), self.restarts), ()
        return self.worker.start(
            self.retries,
            None if self.ways is None else 0,
            breaks=int(process in self.breakers),
            cost=self.cost_of(process, 0),
        )

    def cost_of(self, worker: int, rounds: int) -> int:
        costs = self.costs[worker] if self.costs else 1
        return costs if isinstance(costs, int) else costs[min(rounds, len(costs) - 1)]

    def ready(self, process: int, state: Any) -> Sequence[Hashable]:  # noqa: ANN401 - as in Machine
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
        """The random numbers of a draw: number k gives order k of the workers and choice k among known groups.

        `order_from_salt` reads an order from a number's low digits; the choice is in its bits above `CHOICE_BITS`.
        """
        orders = factorial(self.setting.num_workers)
        return tuple(way + orders * -(-(way << CHOICE_BITS) // orders) for way in range(self.ways or 0))
