"""An asynchronous parameter server without tensors: pushes to shards of the model, and their answers.

Worker w is process w, the shard at `hosts[k]` process n + k. After each round a worker pushes its progress to all
shards and takes the model that they answer with: at once, or with `is_delayed` when its next round is over. A shard
adds what arrives, and delays its answer while the worker is more than `staleness` rounds ahead of the slowest. A
worker may also request the newest model without a push, and all together may restart from other parameters: a new
*generation*, which a shard enters when the worker on its host opens it.

Sources: Ho et al., More effective distributed ML via a stale synchronous parallel parameter server, NIPS 2013 (the
bound); Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014 (shards). Beyond them:
generations.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from partreduce.schedulers.protocols.base import Action, Note, Outcome, Received, Send, Signal, replace_at
from partreduce.topo.strategies.server import Server

CLOSED, COMPUTING, WAITING = range(3)
"""The stages of a worker: it has no model to start from, computes, or waits for answers without computing."""


@dataclass(frozen=True, slots=True)
class Open:
    """Event of a worker: it starts in this round from other parameters, which begins a new generation.

    These parameters initialize the shards (parts of the model at a server) that the worker hosts.
    """

    round: int


class Push(Signal):
    """Event of a worker: a round is over, and the change of its parameters is sent to all shards."""


class Pull(Signal):
    """Event of a worker: it requests the newest model, without progress."""


class Take(Signal):
    """Event of a worker: it takes the model with which all shards have answered."""


class Drain(Signal):
    """Event of a worker: it ends its generation and drops an answer of the shards that it has not taken yet.

    It can push and pull again only after `Open`. The driver raises this event before other parameters are loaded and at
    the end of the run, in both cases after the same round on all workers.
    """


@dataclass(frozen=True, slots=True)
class Opened:
    """Message to the shard on a worker's host: a generation begins in this round, from the worker's parameters."""

    generation: int
    round: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Message to a shard: the change of the worker's parameters in a round.

    `number` counts the worker's requests, `generation` how often it had started from other parameters before.
    """

    generation: int
    number: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Message to a shard: a request for the newest model, without progress; fields as of `Progress`."""

    generation: int
    number: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Message to a worker: the shard's present part of the model, in answer to request `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of a worker: `round` is the next round whose progress it sends, `missing` the shards that must answer.

    `number` counts its requests; `under_way` is whether the last one's answer is still to be taken or dropped.
    """

    stage: int = CLOSED
    generation: int = 0
    round: int = 0
    number: int = 0
    under_way: bool = False
    missing: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ShardState:
    """The state of a shard, one server's part of the model.

    For each worker it has the round of its last progress (`rounds`), the number of its last request (`last_requests`),
    and the number of the request that is not answered yet (`waiting`, 0: none). `early` holds the requests of a
    generation that has not begun here.
    """

    generation: int = -1
    rounds: tuple[int, ...] = ()
    last_requests: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    early: tuple[tuple[int, Progress | Ask], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What all workers do in a run of the simulator or of the explorer, where no training script decides.

    `rounds` is the number of rounds. Before each round listed in `pulls` workers request the newest model; before each
    round in `drains` they drop open answers and end the generation (`Drain`).
    """

    rounds: int
    pulls: tuple[int, ...] = ()
    drains: tuple[int, ...] = ()


ServerState = WorkerState | ShardState


@dataclass(frozen=True)
class Shards:
    """The parameter server's protocol for all workers and shards (parts of the model), as a state machine (`Machine`).

    Shard k is at worker `hosts[k]`. It does not answer a worker that is more than `staleness` rounds ahead of the
    slowest one (None: it answers at once). With `is_delayed` a worker takes the answers a round later. `plan` fixes the
    order of each worker's events; without it workers may execute any event that the protocol allows.
    """

    num_workers: int
    hosts: tuple[int, ...]
    staleness: int | None = None
    is_delayed: bool = False
    plan: Plan | None = None

    @property
    def num_processes(self) -> int:
        """The number of workers and shards; workers have the first numbers."""
        return self.num_workers + len(self.hosts)

    @property
    def shards(self) -> range:
        return range(self.num_workers, self.num_processes)

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        pairs = [(worker, shard) for worker in range(self.num_workers) for shard in self.shards]
        return (*pairs, *((shard, worker) for worker, shard in pairs))

    def start(self, process: int) -> Outcome[ServerState]:
        return (WorkerState() if process < self.num_workers else ShardState()), ()

    def ready(self, process: int, state: ServerState) -> Sequence[Hashable]:  # noqa: ARG002 - the state says it all
        """Return the events that a worker may execute; none for a shard, which only answers."""
        if isinstance(state, ShardState):
            return ()
        if state.stage == CLOSED:
            return (Open(state.round),)
        if state.missing:
            return ()  # also with delay: a round that computes meanwhile ends when the answers have arrived
        if state.stage == WAITING:
            return (Take(),)
        return (Push(), Pull(), Drain()) if self.plan is None else self._planned(self.plan, state)

    def _planned(self, plan: Plan, state: WorkerState) -> Sequence[Hashable]:
        if state.generation < sum(before <= state.round for before in plan.drains):
            return (Drain(),)
        if state.round == plan.rounds:
            return (Take(),) if state.under_way else ()
        is_requested = state.number > state.round + sum(before < state.round for before in plan.pulls)
        return (Pull(),) if state.round in plan.pulls and not is_requested else (Push(),)

    def step(self, process: int, state: ServerState, event: object) -> Outcome[ServerState]:
        if isinstance(state, WorkerState):
            return self._worker(process, state, event)
        match event:
            case Received(_, Opened(generation, round_)):
                return self._opened(state, generation, round_)
            case Received(source, Progress() | Ask() as request):
                return self._requested(state, source, request)
        raise AssertionError(f"not an event of a shard: {event}")

    def _worker(self, process: int, state: WorkerState, event: object) -> Outcome[ServerState]:
        match event:
            case Open(round_):
                opened = Opened(state.generation, round_)
                own = tuple(
                    Send(shard, opened) for shard, host in zip(self.shards, self.hosts, strict=True) if host == process
                )
                return replace(state, stage=COMPUTING, round=round_), own
            case Push():
                message = Progress(state.generation, state.number + 1)
                after = replace(state, stage=COMPUTING if self.is_delayed else WAITING, round=state.round + 1)
                return self._asks(after, message)
            case Pull():
                return self._asks(replace(state, stage=WAITING), Ask(state.generation, state.number + 1))
            case Take():
                return replace(state, stage=COMPUTING, under_way=False), _note_taken(state)
            case Drain():
                return replace(state, stage=CLOSED, generation=state.generation + 1, under_way=False), ()
            case Received(source, Answer(number)):
                if number != state.number:
                    return state, ()
                return replace(state, missing=state.missing - {source}), ()
        raise AssertionError(f"not an event of a worker: {event}")

    def _asks(self, state: WorkerState, request: Progress | Ask) -> Outcome[ServerState]:
        """Send `request` to all shards; the worker first takes the answer to its previous request, if still open."""
        after = replace(state, number=request.number, under_way=True, missing=frozenset(self.shards))
        return after, (*_note_taken(state), *(Send(shard, request) for shard in self.shards))

    def _opened(self, state: ShardState, generation: int, round_: int) -> Outcome[ServerState]:
        """Begin a generation (other parameters) at a shard, in round `round_`; handle requests that came before."""
        if generation <= state.generation:
            return state, ()  # a duplicate
        n = self.num_workers
        after: ServerState = ShardState(generation, (round_,) * n, (0,) * n, (0,) * n)
        actions: tuple[Action, ...] = (Note(("opened", generation)),)
        for source, request in state.early:
            assert isinstance(after, ShardState)
            after, more = self._requested(after, source, request)
            actions += more
        return after, actions

    def _requested(self, state: ShardState, source: int, request: Progress | Ask) -> Outcome[ServerState]:
        """Handle a request of worker `source` at a shard: add its progress, if any; answer all that may continue."""
        if request.generation > state.generation:
            return replace(state, early=(*state.early, (source, request))), ()
        if request.generation < state.generation:
            # Its worker has drained, or waits for this answer to drain: it drops the answer, like the progress here.
            return state, (Note(("dropped", source, request.number)), Send(source, Answer(request.number)))
        if request.number <= state.last_requests[source]:
            return state, (Note(("dropped", source, request.number)),)
        after = replace(state, last_requests=replace_at(state.last_requests, source, request.number))
        if isinstance(request, Ask):
            return after, (Send(source, Answer(request.number)),)
        rounds = replace_at(state.rounds, source, state.rounds[source] + 1)
        after, answers = self._answered(
            replace(after, rounds=rounds, waiting=replace_at(state.waiting, source, request.number))
        )
        return after, (Note(("added", source, request.number)), *answers)

    def _answered(self, state: ShardState) -> tuple[ShardState, tuple[Send, ...]]:
        furthest = None if self.staleness is None else min(state.rounds) + self.staleness
        ready = [
            worker
            for worker, number in enumerate(state.waiting)
            if number and (furthest is None or state.rounds[worker] <= furthest)
        ]
        waiting = tuple(0 if worker in ready else number for worker, number in enumerate(state.waiting))
        return replace(state, waiting=waiting), tuple(Send(worker, Answer(state.waiting[worker])) for worker in ready)

    def finished(self, process: int, state: ServerState) -> bool:  # noqa: ARG002 - as in Finishing
        """Whether the process has executed its plan; a shard may rest at any time."""
        if isinstance(state, ShardState):
            return True
        return self.plan is not None and state.round == self.plan.rounds and not state.under_way


def _note_taken(state: WorkerState) -> tuple[Action, ...]:
    return (Note(("taken", state.number)),) if state.under_way else ()


def shards_of(strategy: Server, num_workers: int, plan: Plan | None = None) -> Shards:
    """Return the protocol of a schedule; a synchronous server has staleness 0: it answers when a round is complete."""
    staleness = 0 if strategy.synchronous else strategy.staleness
    return Shards(num_workers, strategy.hosts, staleness, strategy.is_delayed, plan)
