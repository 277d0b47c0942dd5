"""Prague's group generator (Luo et al., ASPLOS 2020) as a pure state machine: one answer per round's request.

A worker sends a request at the beginning of a round, which also reports that it is done with its last group. The
answer is the group of the round (`Grant`), no group (`Alone`), or the end (`Bye`). Every grant has a sequence number; a
worker enters its groups in that order. Requests are numbered by the worker, so a repeated or late one is recognized.
The whole state is a fold over the messages received, so a log of the messages restores it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from partreduce.schedulers.protocols.base import Action, Crashed, Note, Send, Signal, replace_at
from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers, Locking, Outstanding
from partreduce.schedulers.protocols.group_generator.draw import Drawing, GeneratorSetting, Situation, salt_of

ACTIVE, LEFT, DEAD = "active", "left", "dead"


@dataclass(frozen=True, slots=True)
class Ask:
    """Message to the generator: a worker's request number `request`; `done` is the group that it finished (−1: none).

    `last`: the worker has no further rounds; it gets the group that waits for it, if any, and else `Bye`.
    `failed`: the group did not average, because a member was absent or the collective failed.
    `computed`: the round of the previous request, which was answered with `Later`, is computed.
    `cost` is the compute time of a round of this worker, in any unit that all share (0: unknown).
    `salt` is the random number of a draw, for drivers that choose it; None draws from the seed.
    """

    request: int
    done: int = -1
    last: bool = False
    failed: bool = False
    computed: bool = False
    cost: int = 0
    salt: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Base of the answers to a worker's request; `generation` counts failures and restarts."""

    generation: int
    request: int


@dataclass(frozen=True, slots=True)
class Grant(Answer):
    """Answer to a request: average in group `seq`, with these members, at the end of the round."""

    seq: int
    members: tuple[int, ...]


class Alone(Answer):
    """Answer to a request: the worker has no group in this round."""


class Later(Answer):
    """Answer to a slow worker: repeat the request once the round is computed, so that no other member waits for it."""


class Bye(Answer):
    """Answer to a last request: no group waits for the worker, so it may end."""


@dataclass(frozen=True, slots=True)
class Void:
    """Message to a member: group `seq` is canceled because a member failed; continue without it."""

    generation: int
    seq: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """Answer to a worker that is no longer part of the job."""

    generation: int


class Restarted(Signal):
    """Event of the generator: it was restarted from its log; earlier answers are invalid."""


Reply = Answer | Void | Evicted


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """The state of the generator; its tuples have one entry per worker, in order of ranks.

    `requests` are the last request numbers (−1: none yet), `answers` the answers to them (None: not yet), `waiting` the
    workers without an answer in order of arrival, `counts` the rounds requested, `alone` the requests in a row without
    a group, `status` whether it takes part, `costs` the compute time of a round. `known` are the groups drawn before,
    `draws` their number, `apart` the requests since the last group of all (for divisions that count them).
    """

    buffers: GroupBuffers
    requests: tuple[int, ...]
    answers: tuple[Answer | None, ...]
    counts: tuple[int, ...]
    alone: tuple[int, ...]
    status: tuple[str, ...]
    waiting: tuple[int, ...] = ()
    known: tuple[tuple[int, ...], ...] = ()
    generation: int = 0
    draws: int = 0
    costs: tuple[int, ...] = ()
    apart: int = 0


Stepped = tuple[GeneratorState, tuple[Action, ...]]


class GroupGenerator:
    """The group generator as a state machine: `handle` returns the next state.

    O(num_workers) per message without a draw. In endless runs of the explorer request numbers wrap at `modulus`, and
    counts of rounds are relative to the least.
    """

    def __init__(self, setting: GeneratorSetting, *, modulus: int | None = None) -> None:
        self.setting, self.modulus = setting, modulus
        self.locking, self.drawing = Locking(), Drawing(setting)

    def initial(self) -> GeneratorState:
        n = self.setting.num_workers
        none = (0,) * n
        return GeneratorState(GroupBuffers.empty(n), (-1,) * n, (None,) * n, none, none, (ACTIVE,) * n, costs=none)

    def handle(self, state: GeneratorState, source: int, message: object) -> Stepped:
        """Return the next state and the messages to send after one message from worker `source`."""
        match message:
            case Crashed():
                return self.crashed(state, source)
            case Ask() if state.status[source] == DEAD:
                return state, (Send(source, Evicted(state.generation)),)
            case Ask() if self.is_repeated(state, source, message):
                return state, self.repeated(state, source)
            case Ask() if message.request == self.following(state.requests[source]):
                return self.handle_request(state, source, message)
            case Ask():
                return state, ()  # late, or from an earlier process of the worker: no answer is needed
        raise AssertionError(f"not a message to the group generator: {message}")

    def restarted(self, state: GeneratorState) -> Stepped:
        """Return the state after a restart from the log: in a new generation, workers repeat their requests."""
        return replace(state, generation=state.generation + 1), ()

    def following(self, request: int) -> int:
        return request + 1 if self.modulus is None else (request + 1) % self.modulus

    def is_repeated(self, state: GeneratorState, worker: int, ask: Ask) -> bool:
        return ask.request == state.requests[worker]

    def repeated(self, state: GeneratorState, worker: int) -> tuple[Action, ...]:
        """Return the message that repeats the last answer, in the present generation; empty if there is none."""
        answer = state.answers[worker]
        return () if answer is None else (Send(worker, replace(answer, generation=state.generation)),)

    def handle_request(self, state: GeneratorState, worker: int, ask: Ask) -> Stepped:
        """Handle a new request: release the worker's last group, draw groups if it has none, start groups, answer."""
        state = replace(
            state,
            requests=replace_at(state.requests, worker, ask.request),
            answers=replace_at(state.answers, worker, None),
            counts=state.counts if ask.computed else self.counted(state, worker),
            costs=replace_at(state.costs, worker, ask.cost),
            apart=state.apart if ask.computed else self.drawing.further(state.apart),
        )
        state, voids = self.failed(state, worker, ask) if ask.failed else (self.done(state, worker, ask), ())
        state = replace(state, status=replace_at(state.status, worker, LEFT if ask.last else ACTIVE))
        if ask.last:
            state = replace(state, buffers=self.locking.withdrawn(state.buffers, worker))
        elif not state.buffers.buffers[worker] and not state.buffers.locks[worker]:
            if not ask.computed and self.is_late(state, worker):
                later = Later(state.generation, ask.request)
                state, actions = self.served(self.record_answer(state, worker, later))
                return state, (*voids, Send(worker, later), *actions)
            state = self.drawn(state, worker, ask)
        state, actions = self.served(replace(state, waiting=(*state.waiting, worker)))
        return state, (*voids, *actions)

    def failed(self, state: GeneratorState, worker: int, ask: Ask) -> Stepped:
        """End a group for all its members after one, `worker`, reported with its request `ask` that the group failed.

        The other members are not drawn until they send their next request. It need not be known yet which member
        failed: a dead one never sends a request, so no further group is granted with it until it is evicted.
        """
        group = state.buffers.running_of(worker)
        if group is None or group.seq != ask.done:
            return state, ()
        buffers, ended = self.locking.dissolved(state.buffers, (group,))
        state = self.forgotten(replace(state, generation=state.generation + 1, buffers=buffers), ended)
        for member in group.active:
            if member != worker:
                state = self.set_aside(state, member)
        return state, self.notify_void(state, ended, worker)

    def set_aside(self, state: GeneratorState, worker: int) -> GeneratorState:
        """Exclude a worker from draws until its next request: it is removed from all groups that have not started."""
        buffers = self.locking.withdrawn(state.buffers, worker)
        return replace(state, status=replace_at(state.status, worker, LEFT), buffers=buffers)

    def done(self, state: GeneratorState, worker: int, ask: Ask) -> GeneratorState:
        """Let a worker leave its running group if `ask` reports that the worker is done with it."""
        group = state.buffers.running_of(worker)
        if group is None or group.seq != ask.done:
            return state
        return replace(state, buffers=self.locking.released(state.buffers, worker))

    def takes_part(self, state: GeneratorState, worker: int) -> bool:
        """Whether a draw may include a worker: it is active and was not answered `Later`."""
        return state.status[worker] == ACTIVE and not isinstance(state.answers[worker], Later)

    def is_late(self, state: GeneratorState, worker: int) -> bool:
        """Whether a worker is so slow that its group is drawn only after it has computed."""
        return worker in (self.slow(state) or ())

    def slow(self, state: GeneratorState) -> frozenset[int] | None:
        """Return the slow workers that take part; None if slowness follows from counts of rounds, not compute times."""
        return self.drawing.slow({w: c for w, c in enumerate(state.costs) if state.status[w] == ACTIVE})

    def situation(self, state: GeneratorState, worker: int, salt: int) -> Situation:
        alive = frozenset(w for w in range(len(state.status)) if w == worker or self.takes_part(state, w))
        idle = self.idle(state, alive)
        alone = state.alone[worker]
        now = Situation(worker, alive, idle, state.counts, alone, state.known, salt, self.slow(state))
        return replace(now, due=self.drawing.is_due(now, state.apart))

    def counted(self, state: GeneratorState, worker: int) -> tuple[int, ...]:
        """Return the rounds requested by each worker, one more for `worker`; with `modulus` relative to the slowest."""
        counts = replace_at(state.counts, worker, state.counts[worker] + 1)
        if self.modulus is None:
            return counts
        least = min(count for count, status in zip(counts, state.status, strict=True) if status == ACTIVE)
        limit = (self.setting.slow_threshold or 0) + 1
        return tuple(min(max(count - least, 0), limit) for count in counts)

    def drawn(self, state: GeneratorState, worker: int, ask: Ask) -> GeneratorState:
        """Draw groups for a worker that waits in none, and append them to the buffers of their members."""
        salt = ask.salt
        if salt is None:
            salt = salt_of(self.setting.seed, state.draws, self.setting.num_workers)
            state = replace(state, draws=state.draws + 1)
        buffers, known = state.buffers, state.known
        now = self.situation(state, worker, salt)
        for members in self.drawing.draw(now):
            buffers = self.locking.pushed(buffers, members)
            if self.setting.max_known is not None and members not in known:
                known = (*known, members)
        return replace(state, buffers=buffers, known=known, apart=0 if now.due else state.apart)

    def idle(self, state: GeneratorState, alive: frozenset[int]) -> frozenset[int]:
        """Return those of `alive` that wait in no group; they may be in a running one: their next round is free."""
        return frozenset(worker for worker in alive if not state.buffers.buffers[worker])

    def served(self, state: GeneratorState) -> Stepped:
        """Start all groups that can start, then send every answer that is decided, in order of arrival."""
        buffers, begun = self.locking.started(state.buffers)
        state = replace(state, buffers=buffers)
        actions: list[Action] = [Note(("started", group.seq, group.members)) for group in begun]
        for worker in state.waiting:
            answer = self.answer(state, worker)
            if answer is not None:
                actions.append(Send(worker, answer))
                state = self.record_answer(state, worker, answer)
        return state, tuple(actions)

    def answer(self, state: GeneratorState, worker: int) -> Answer | None:
        """Return the answer to a waiting worker; None while its group cannot start."""
        running = state.buffers.running_of(worker)
        generation, request = state.generation, state.requests[worker]
        if running is not None:
            return Grant(generation, request, running.seq, running.members)
        if state.buffers.buffers[worker]:
            return None
        return Bye(generation, request) if state.status[worker] == LEFT else Alone(generation, request)

    def record_answer(self, state: GeneratorState, worker: int, answer: Answer) -> GeneratorState:
        """Record the answer, so that a repeated request gets it again."""
        alone = state.alone[worker] if isinstance(answer, Later) else 0
        if isinstance(answer, Alone):
            alone = min(state.alone[worker] + 1, 99)
        return replace(
            state,
            waiting=tuple(other for other in state.waiting if other != worker),
            answers=replace_at(state.answers, worker, answer),
            alone=replace_at(state.alone, worker, alone),
        )

    def crashed(self, state: GeneratorState, worker: int) -> Stepped:
        """Evict a worker that failed or seems to have; it may be alive. A new generation begins."""
        if state.status[worker] == DEAD:
            return state, ()
        state = replace(
            state,
            generation=state.generation + 1,
            status=replace_at(state.status, worker, DEAD),
            waiting=tuple(other for other in state.waiting if other != worker),
            buffers=self.locking.withdrawn(state.buffers, worker),
        )
        buffers, groups = self.locking.voided(state.buffers, worker)
        state = self.forgotten(replace(state, buffers=buffers), groups)
        state, sent = self.served(state)
        return state, (Send(worker, Evicted(state.generation)), *self.notify_void(state, groups, worker), *sent)

    def forgotten(self, state: GeneratorState, groups: tuple[Outstanding, ...]) -> GeneratorState:
        """Replace recorded answers that name a canceled group by `Alone`, which repeated requests then receive."""
        seqs = {group.seq for group in groups}
        answers = tuple(
            Alone(a.generation, a.request) if isinstance(a, Grant) and a.seq in seqs else a for a in state.answers
        )
        return replace(state, answers=answers)

    def notify_void(self, state: GeneratorState, groups: tuple[Outstanding, ...], dead: int) -> tuple[Action, ...]:
        """Return the `Void` messages to members that may wait in these groups, in which worker `dead` failed."""
        actions: list[Action] = []
        for group in groups:
            actions.append(Note(("void", group.seq, group.members)))
            actions += [Send(member, Void(state.generation, group.seq)) for member in group.active if member != dead]
        return tuple(actions)
