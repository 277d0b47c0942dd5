"""Partial collectives without tensors: which worker starts a round, its sum, and the use of its results.

A round is a sum of gradients over all workers (partial all-reduce). It starts when enough workers have arrived, and
includes all that have.

A worker has two sides. Its *training* computes a gradient, *calls* (which hands the gradient over) and takes
results. Its *thread* takes part in the rounds, strictly 0, 1, 2, …: it enters a round once that may start, with the
gradients handed over by then, and is done with it when all workers have entered. Gradients computed during a round
wait in the worker's buffer for the next one.

Source: Li et al., Taming unbalanced training workloads in deep learning with partial collective operations, PPoPP 2020,
section 4; beyond it results wait in a queue of limited length instead of being overwritten, a quorum may be any number,
and workers may end.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from hashlib import shake_256
from itertools import permutations

from partreduce.schedulers.protocols.base import Action, Note, Outcome, Received, Send, Signal, replace_at
from partreduce.topo.strategies.partial import LateGradientPolicy, MissedResultPolicy, PartialAllReduce, QuorumStart

COMPUTING, CALLED, MEETING = range(3)
"""The stages of the training: it computes, waits for a result after a call, or waits to average models."""
CONTINUES = -2
"""Stands for the last round that a worker needs, until it is known that the worker has ended."""


@dataclass(frozen=True, slots=True)
class Activate:
    """Message: the partial all-reduce of round `round` may start."""

    round: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Message, if the quorum is a number: the sender has arrived for round `round`, that is, has a gradient for it."""

    round: int


@dataclass(frozen=True, slots=True)
class Here:
    """Message (with `synchronize_every`): the sender waits to average models at the beginning of round `round`."""

    round: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Message: the sender has no more data; `round` is the last round that has a gradient of the sender (−1: none)."""

    round: int


@dataclass(frozen=True, slots=True)
class Share:
    """Message: a worker's contribution to the sum of a round: which of its gradients are in it.

    A worker counts its gradients 0, 1, 2, …; `gradients` holds these numbers, since the protocol has no tensors. A
    driver with a real collective starts the collective instead of sending shares. Two fields are for observers:
    `oldest` is how many rounds the worker had taken when it began to compute its oldest gradient (−1: none), `ended`
    whether it has ended.
    """

    round: int
    gradients: tuple[int, ...]
    oldest: int = -1
    ended: bool = False


class Call(Signal):
    """Event of a worker's training: it has computed a gradient and hands it over to the communication thread."""


class End(Signal):
    """Event of a worker's training: it has no more data, and from now on only takes results."""


class Begin(Signal):
    """Event of a worker's communication thread: it enters the next round with all gradients handed over so far.

    The setting `grace` affects only when this happens.
    """


class Finish(Signal):
    """Event of a worker's communication thread: the sum of the round is complete."""


class Take(Signal):
    """Event of a worker's training: it takes results of rounds and applies them."""


@dataclass(frozen=True, slots=True)
class Result:
    """The sum of a round; `counts` is the number of gradients of each worker in it."""

    round: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartialState:
    """The state of one worker under a partial collective. Its gradients are numbered 0, 1, 2, … in order of its calls.

    Its training side computes gradients: `calls` made, `version` rounds whose results it has taken, `stage`, whether it
    has ended (`resting`); `buffer` holds the gradients that are in no round, `oldest` is the version with which the
    oldest of them was begun (−1: none). Its thread takes part in the rounds: rounds `entered`, rounds `done`, `results`
    that wait for the training, `shares[w]` of worker w in rounds that are not done, `counted` own calls in rounds done.

    Knowledge about others: `arrived[w]` is 1 + the last round for which worker w has arrived, `lasts[w]` the last round
    that w needs (`CONTINUES` before it ends), `activated` how many rounds may start. `synchronized` is the round up to
    which models are averaged, `here[w]` the round before which worker w waits to average models.
    """

    calls: int = 0
    version: int = 0
    stage: int = COMPUTING
    resting: bool = False
    buffer: tuple[int, ...] = ()
    oldest: int = -1
    entered: int = 0
    done: int = 0
    results: tuple[Result, ...] = ()
    shares: tuple[tuple[Share, ...], ...] = ()
    counted: int = 0
    arrived: tuple[int, ...] = ()
    lasts: tuple[int, ...] = ()
    activated: int = 0
    synchronized: int = 0
    here: tuple[int, ...] = ()

    @property
    def is_running(self) -> bool:
        return self.entered > self.done

    @property
    def last(self) -> int | None:
        """The last round that any worker needs; None while some worker continues, as far as this one knows."""
        return None if CONTINUES in self.lasts else max(self.lasts)


@dataclass(frozen=True)
class Partial:
    """Partial all-reduce of all workers under one setting, as a state machine (`Machine`).

    Each worker has a training loop, which computes gradients, and a communication *thread*, which enters the rounds
    (all-reduces) in order. A round is *activated* when it may start, because enough workers have a gradient for it.

    A driver executes the notes: `("begun", round, calls)` empties the buffer into the round; `("finished", round,
    counts)` has the sum; `("taken", rounds, version)` applies these results, ascending, or their sum, and the worker
    has then taken `version` rounds; `("synchronized", round)` averages the models.

    End of a run: a worker without more data sends all workers the number of the last round for which it has arrived. A
    quorum is counted among the workers that have arrived or still have data. When no worker has data, rounds start up
    to the largest of these numbers, so every gradient is in a round and no further round runs.

    `calls` is how many calls each worker makes before it ends, None if a driver decides; `initiators` are, under
    `majority`, the workers that start rounds, in turn, None if they are drawn. With `collective` threads exchange
    `Share` messages; without it a thread may be done at any time after it has entered, for drivers with a collective.
    """

    setting: PartialAllReduce
    num_workers: int
    calls: tuple[int, ...] | None = None
    initiators: tuple[int, ...] | None = None
    collective: bool = True

    def __post_init__(self) -> None:
        self.setting.check()

    @property
    def num_processes(self) -> int:
        return self.num_workers

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """All pairs of workers: every worker sends to every other, at least when it ends."""
        return tuple(permutations(range(self.num_workers), 2))

    def start(self, process: int) -> Outcome[PartialState]:  # noqa: ARG002 - all start in the same state
        n = self.num_workers
        none = (0,) * n
        here = none if self.setting.synchronize_every else ()
        return PartialState(shares=((),) * n, arrived=none, lasts=(CONTINUES,) * n, here=here), ()

    def ready(self, process: int, state: PartialState) -> Sequence[Hashable]:
        found: list[Hashable] = []
        if state.stage == COMPUTING and not state.resting:
            is_last = self.calls is not None and state.calls >= self.calls[process]
            found.append(End() if is_last else Call())
        elif self._may_take(state):
            found.append(Take())
        if state.is_running:
            if self._is_summed(state):
                found.append(Finish())
        elif self._may_begin(state):
            found.append(Begin())
        return found

    def step(self, process: int, state: PartialState, event: object) -> Outcome[PartialState]:
        match event:
            case Call():
                return self._called(process, state)
            case End():
                return self._ended(process, state)
            case Begin():
                return self._begun(process, state)
            case Finish():
                return self._finished(process, state)
            case Take():
                return self._taken(process, state)
            case Received(_, Activate(round_)):
                return self._started(process, _activating(state, round_ + 1))
            case Received(source, Arrived(round_)):
                known = max(state.arrived[source], round_ + 1)
                received = replace(state, arrived=replace_at(state.arrived, source, known))
                # A message about a round implies that the rounds before it have started, so it replaces earlier ones
                # of the same kind from the same worker: those may be lost.
                return self._started(process, _activating(received, round_))
            case Received(source, Ended(last)):
                return self._started(process, replace(state, lasts=replace_at(state.lasts, source, last)))
            case Received(source, Share() as share):
                return self._shared(state, source, share), ()
            case Received(source, Here(round_)):
                return self._met(replace(state, here=replace_at(state.here, source, max(state.here[source], round_))))
        raise AssertionError(f"not an event of a partial collective: {event}")

    def finished(self, process: int, state: PartialState) -> bool:  # noqa: ARG002 - as in Finishing
        is_over = state.last is not None and state.version == state.last + 1
        return is_over and state.resting and state.stage == COMPUTING

    # The training.

    def _called(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """Add a gradient to the buffer; the worker arrives for the next round that its communication thread will enter.

        If the setting's `count` is "call", it only arrives for the round with the call's own number.
        """
        called = replace(
            state,
            calls=state.calls + 1,
            stage=CALLED,
            buffer=(*state.buffer, state.calls),
            oldest=state.version if state.oldest < 0 else state.oldest,
        )
        if self.setting.count is LateGradientPolicy.CALL and state.calls < state.entered:
            return called, ()  # its round has started without it
        return self._come(process, called)

    def _ended(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """End the worker: its last round is the one that takes its remaining gradient, or the last that it entered."""
        come, notices = self._come(process, state) if state.buffer else (state, ())
        last = come.arrived[process] - 1
        ended = replace(come, resting=True, lasts=replace_at(come.lasts, process, last))
        started, actions = self._started(process, ended)
        return started, (*notices, *actions, *self._to_others(process, Ended(last)))

    def _may_take(self, state: PartialState) -> bool:
        """Whether there are results that the training has not taken, and it does not wait to average models."""
        return state.stage != MEETING and state.done > state.version

    def _taken(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """Take results: one of them if the setting's `count` is "call" and the worker has not ended, else all.

        With `count` "call" and `missed` "latest", a call that is behind takes the newest result, even if the call
        before took it.
        """
        taken, version = state.results, state.done
        left: tuple[Result, ...] = ()
        if self.setting.count is LateGradientPolicy.CALL and not state.resting:
            version = state.version + 1
            if self.setting.missed is MissedResultPolicy.LATEST:
                left = state.results
            else:
                taken, left = state.results[:1], state.results[1:]
        state = replace(state, stage=COMPUTING, results=left, version=version)
        note = Note(("taken", tuple(result.round for result in taken), version))
        every = self.setting.synchronize_every
        if not every or version % every:
            return state, (note,)
        waits = replace(state, stage=MEETING, here=replace_at(state.here, process, version))
        met, actions = self._met(waits)
        return met, (note, *self._to_others(process, Here(version)), *actions)

    def _met(self, state: PartialState) -> Outcome[PartialState]:
        """Once all workers wait to average their models, let this worker average and continue."""
        if state.stage != MEETING or min(state.here) < state.version:
            return state, ()
        return replace(state, stage=COMPUTING, synchronized=state.version), (Note(("synchronized", state.version)),)

    # The start of rounds.

    def _to_others(self, process: int, message: Hashable) -> tuple[Action, ...]:
        return tuple(Send(v, message) for v in range(self.num_workers) if v != process)

    def _come(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """Record that this worker has a gradient for the next round; send `Arrived` to all if `quorum` is a number."""
        if state.arrived[process] > state.entered:
            return state, ()
        come = replace(state, arrived=replace_at(state.arrived, process, state.entered + 1))
        is_counted = isinstance(self.setting.quorum, int)
        notices = self._to_others(process, Arrived(state.entered)) if is_counted else ()
        started, actions = self._started(process, come)
        return started, (*notices, *actions)

    def _started(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """Let the next round start if its quorum has arrived and this worker is one that may start it."""
        open_ = state.entered
        if open_ < state.activated:
            return state, ()
        continuing, quorum = _continuing(state), self.setting.quorum
        if (last := state.last) is not None:
            may_start = open_ <= last
        elif isinstance(quorum, int):
            # Arrivals of workers that have ended since still count: a quorum that one worker saw stays a quorum.
            come = [v for v, known in enumerate(state.arrived) if known > open_]
            may_start = self._is_quorate(len(come), len({*come, *continuing}))
        else:
            may_start = state.arrived[process] > open_
            if quorum is QuorumStart.MAJORITY:
                may_start = may_start and self._initiator(open_, continuing) == process
        if not may_start:
            return state, ()
        started = _activating(state, open_ + 1)
        if continuing and isinstance(quorum, int):
            return started, ()  # all workers receive the same arrivals
        return started, self._to_others(process, Activate(open_))

    def _is_quorate(self, come: int, counted: int) -> bool:
        """Whether a round may start if `come` workers have arrived, of `counted` that have arrived or still may."""
        return come >= self.setting.needed(counted)

    def _initiator(self, round_: int, continuing: Sequence[int]) -> int:
        """Return the worker that starts a round under quorum `majority`: the drawn one, or the next that continues."""
        drawn = self._drawn(round_)
        return min(continuing, key=lambda v: (v - drawn) % self.num_workers)

    def _drawn(self, round_: int) -> int:
        """Return the next of `initiators` or, without them, draw a worker uniformly, from seed and round only."""
        if self.initiators:
            return self.initiators[round_ % len(self.initiators)]
        words = f"partreduce quorum, seed {self.setting.seed}, round {round_}"
        return int.from_bytes(shake_256(words.encode()).digest(8)) % self.num_workers

    def awaited(self, process: int, state: PartialState) -> tuple[int, ...]:
        """Return the workers whose arrival may start the round that this one waits for; if unknown, all others."""
        continuing = _continuing(state)
        if self.setting.quorum is QuorumStart.MAJORITY and continuing:
            return (self._initiator(state.entered, continuing),)
        missing = tuple(v for v in continuing if v != process and state.arrived[v] <= state.entered)
        return missing or tuple(v for v in range(self.num_workers) if v != process)

    # The thread.

    def _may_begin(self, state: PartialState) -> bool:
        """Whether the worker's communication thread may enter its next round (all-reduce).

        That is: the round is activated (may start), the queue of results has room, no average of models comes first.
        """
        if state.entered >= state.activated:
            return False
        if self.setting.missed is not MissedResultPolicy.LATEST:
            return len(state.results) < self.setting.staleness
        every = self.setting.synchronize_every
        return not every or state.entered % every != 0 or state.synchronized == state.entered

    def _begun(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """Enter the next round with the gradients in the buffer; later gradients wait for the round after it."""
        share = Share(state.entered, state.buffer, state.oldest, state.resting)
        begun = replace(state, buffer=(), oldest=-1, entered=state.entered + 1)
        sent: tuple[Action, ...] = ()
        if self.collective:
            begun = self._shared(begun, process, share)
            sent = self._to_others(process, share)
        started, actions = self._started(process, begun)
        return started, (*sent, Note(("begun", share.round, share.gradients)), *actions)

    def _shared(self, state: PartialState, source: int, share: Share) -> PartialState:
        """Keep the contribution `share` of worker `source` to a round, unless it is known or the round is done."""
        known = state.shares[source]
        if share.round < state.done or share.round in [other.round for other in known]:
            return state
        kept = tuple(sorted((*known, share), key=lambda other: other.round))
        return replace(state, shares=replace_at(state.shares, source, kept))

    def _is_summed(self, state: PartialState) -> bool:
        """Whether all workers have entered the running round, so that its sum is complete."""
        return not self.collective or all(known and known[0].round == state.done for known in state.shares)

    def _finished(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """End the running round, and put its result into the queue that the training side takes results from.

        If the setting's `missed` is "latest", the result replaces those in the queue.
        """
        counts = tuple(len(known[0].gradients) for known in state.shares) if self.collective else ()
        result = Result(state.done, counts)
        done = replace(
            state,
            done=state.done + 1,
            results=(result,) if self.setting.missed is MissedResultPolicy.LATEST else (*state.results, result),
            shares=tuple(known[1:] for known in state.shares),
            counted=state.counted + (counts[process] if counts else 0),
        )
        return done, (Note(("finished", result.round, result.counts)),)


def _activating(state: PartialState, rounds: int) -> PartialState:
    return replace(state, activated=rounds) if rounds > state.activated else state


def _continuing(state: PartialState) -> list[int]:
    return [v for v, last in enumerate(state.lasts) if last == CONTINUES]
