"""Hop's worker (Luo et al., ASPLOS 2019) under all its settings: when it may send, reduce and continue.

A worker is *in* step k from the instant it enters k; it enters step 0 at the start. In step k it sends its update k to
its out-neighbors, waits for the updates that its setting requires, reduces, and enters k+1 if the token queues let it,
or skips to a later step. The rest is left to the driver: the numbers in an update, compute times, and whether a worker
computes before it sends (adapt-then-combine) or between sending and reducing (D-PSGD).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from partreduce.schedulers.protocols.base import Action, Note, Outcome, Received, Send, Signal, replace_at
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.round import Round
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap

SENDING, REDUCING, ENTERING = range(3)


@dataclass(frozen=True, slots=True)
class Update:
    """Message along an edge: the sender's update, that is, its parameters in a step."""

    step: int


@dataclass(frozen=True, slots=True)
class Token:
    """Message against an edge: the receiver of updates has advanced by `count` steps, and permits as many steps."""

    count: int


class Ack(Signal):
    """Message against an edge (NOTIFY-ACK): the update is reduced, and the next one may be sent."""


class SendUpdate(Signal):
    """Event: the worker sends its parameters, the update of its present step, to its out-neighbors."""


class Reduce(Signal):
    """Event: the worker averages the updates that its setting requires for the step."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Event: the worker advances by `by` steps; more than 1 is a skip, before which it averages once more."""

    by: int = 1


HopEvent = SendUpdate | Reduce | Advance | Received

# Shared tuples of events: runs of thousands of workers offer millions of them.
SEND: tuple[HopEvent, ...] = (SendUpdate(),)
REDUCE: tuple[HopEvent, ...] = (Reduce(),)
ENTER: tuple[HopEvent, ...] = (Advance(),)


@dataclass(frozen=True, slots=True)
class HopState:
    """The state of one worker. Queues are in the order of `Digraph.sources` and `Digraph.targets`.

    `updates[q]` has bit b set when the update of step (step − staleness + b) from source q is in the queue, so the
    queues move with the step. `tokens[q]` counts the tokens held from target q. `acked[q]` is whether target q has
    acknowledged the update before this step's. `fresh[q]` is whether an update of source q has arrived since the last
    reduce; only under staleness with `Hop.fine`, where it decides which updates are averaged.
    """

    step: int
    stage: int
    updates: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    acked: tuple[bool, ...] = ()
    fresh: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Hop:
    """Hop's protocol for all workers over `graph`, under one setting, as a state machine (`Machine`).

    With `fine` a step has three events (send, reduce, enter), as it has in a run; without it they are one event, which
    reaches the same gaps in fewer states. NOTIFY-ACK is always fine: its bound depends on the order of the three.

    A driver executes the notes: `("reduced", k, used)`, where used holds (source, step of the update) for all updates
    that step k averages with the worker's own, ascending by source; `("renewed", k, used)`, the same before a skip to
    step k+1; `("entered", k)`.

    A skip obeys three rules. It never passes an out-neighbor: tokens show how far the out-neighbors are at least, and a
    worker that holds t of them is t - max_ig behind. It waits for the same updates as a normal entry into that step, so
    no gap grows beyond its bound. And no worker ever waits for an update of a skipped step: all workers that would need
    it have left that step.
    """

    graph: Digraph
    setting: IterationGap
    fine: bool = False
    _split: bool = field(init=False, repr=False)
    _needed: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_setting(self.graph, self.setting)
        spare = self.setting.backups(self.graph.num_workers)
        is_split = self.fine or self.setting.notify_ack
        object.__setattr__(self, "_split", is_split)
        object.__setattr__(self, "_needed", tuple(len(s) - b for s, b in zip(self.graph.sources, spare, strict=True)))

    @property
    def num_processes(self) -> int:
        return self.graph.num_workers

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """All pairs that exchange messages: updates go along the edges, tokens and acknowledgements against them."""
        pairs = set(self.graph.edges)
        if self.setting.max_ig is not None or self.setting.notify_ack:
            pairs |= {(v, u) for u, v in self.graph.edges}
        return sorted(pairs)

    def start(self, process: int) -> Outcome[HopState]:
        targets = self.graph.targets[process]
        state = HopState(
            step=0,
            stage=SENDING if self._split else REDUCING,
            updates=(0,) * len(self.graph.sources[process]),
            tokens=() if self.setting.max_ig is None else (self.setting.max_ig,) * len(targets),
            acked=(True,) * len(targets) if self.setting.notify_ack else (),
            fresh=(False,) * len(self.graph.sources[process]) if self._split and self.setting.staleness else (),
        )
        return state, () if self._split else self._updates_to(process, state)

    def ready(self, process: int, state: HopState) -> Sequence[HopEvent]:
        if state.stage == SENDING:
            return SEND if all(state.acked) else ()
        if self._split and state.stage == REDUCING:
            return REDUCE if self._served(process, state, 1) else ()
        if not self._split and not self._served(process, state, 1):
            return ()
        if jump := self._jump(process, state):
            return (Advance(jump),)
        return ENTER if min(state.tokens, default=1) >= 1 else ()

    def step(self, process: int, state: HopState, event: object) -> Outcome[HopState]:
        # States are built field by field: `replace` is several times slower, and a large run builds millions.
        match event:
            case Received(source, Update(step)):
                return self._queued(process, state, source, step), ()
            case Received(source, Token(count)):
                place = self.graph.targets[process].index(source)
                tokens = replace_at(state.tokens, place, state.tokens[place] + count)
                return HopState(state.step, state.stage, state.updates, tokens, state.acked, state.fresh), ()
            case Received(source, Ack()):
                place = self.graph.targets[process].index(source)
                return replace(state, acked=replace_at(state.acked, place, True)), ()
            case SendUpdate():
                unacked = (False,) * len(state.acked)
                sent = HopState(state.step, REDUCING, state.updates, state.tokens, unacked, state.fresh)
                return sent, self._updates_to(process, state)
            case Reduce():
                acks: tuple[Action, ...] = ()
                if self.setting.notify_ack:
                    acks = tuple(Send(u, Ack()) for u in self.graph.sources[process])
                note = Note(("reduced", state.step, self._used(process, state, 1)))
                stale = (False,) * len(state.fresh)
                reduced = HopState(state.step, ENTERING, state.updates, state.tokens, state.acked, stale)
                return reduced, (*acks, note)
            case Advance(by):
                return self._advanced(process, state, by)
        raise AssertionError(f"not an event of Hop: {event}")

    def _served(self, process: int, state: HopState, by: int) -> bool:
        """Whether updates have arrived from enough in-neighbors for the worker to advance by `by` steps.

        They are those of step (step + by − 1), or under staleness recent enough ones.
        """
        if self.setting.staleness:
            have = sum(1 for queue in state.updates if queue >> (by - 1))
        else:
            have = sum(1 for queue in state.updates if queue >> (by - 1) & 1)
        return have >= self._needed[process]

    def _used(self, process: int, state: HopState, by: int) -> tuple[tuple[int, int], ...]:
        """Return the updates that a reduce of step (step + by − 1) averages with the worker's own: (source, step)."""
        oldest, used = state.step - self.setting.staleness, []
        for place, (source, queue) in enumerate(zip(self.graph.sources[process], state.updates, strict=True)):
            if self.setting.staleness:
                taken = queue.bit_length() - 1 if queue >> (by - 1) and state.fresh[place] else -1
            else:
                taken = by - 1 if queue >> (by - 1) & 1 else -1
            if taken >= 0:
                used.append((source, oldest + taken))
        return tuple(used)

    def _jump(self, process: int, state: HopState) -> int:
        """Return by how many steps the worker may skip ahead, by the rules in the class docstring; 0 if it may not."""
        skip, max_ig = self.setting.skip, self.setting.max_ig
        if skip is None or max_ig is None or not state.tokens:
            return 0
        behind = min(state.tokens) - max_ig  # the slowest out-neighbor is ahead by at least so many steps
        if behind < skip.behind:
            return 0
        for by in range(min(skip.limit, behind), skip.trigger - 1, -1):
            if self._served(process, state, by):
                return by
        return 0

    def _advanced(self, process: int, state: HopState, by: int) -> Outcome[HopState]:
        step = state.step + by
        entered = HopState(
            step=step,
            stage=SENDING if self._split else REDUCING,
            updates=tuple(queue >> by for queue in state.updates),
            tokens=tuple(count - by for count in state.tokens),
            acked=state.acked,
            fresh=tuple(by == 1 and new and queue > 1 for new, queue in zip(state.fresh, state.updates, strict=False)),
        )
        actions: tuple[Action, ...] = (Note(("entered", step)),)
        if by > 1 and self._split:
            actions = (Note(("renewed", step - 1, self._used(process, state, by))), *actions)
        if self.setting.max_ig is not None:
            token = Token(by)
            actions = (*[Send(u, token) for u in self.graph.sources[process]], *actions)
        return entered, actions if self._split else (*self._updates_to(process, entered), *actions)

    def _queued(self, process: int, state: HopState, source: int, step: int) -> HopState:
        """Put the update of `step` from `source` into its queue; drop one that is too old, or replaced by a newer."""
        bit = step - (state.step - self.setting.staleness)
        if bit < 0:
            return state
        place = self.graph.sources[process].index(source)
        queue = state.updates[place] | 1 << bit
        fresh = state.fresh
        if self.setting.staleness:
            is_newest = queue.bit_length() - 1 == bit
            queue = 1 << (queue.bit_length() - 1)
            fresh = replace_at(fresh, place, True) if is_newest and fresh else fresh
        updates = replace_at(state.updates, place, queue)
        return HopState(state.step, state.stage, updates, state.tokens, state.acked, fresh)

    def _updates_to(self, process: int, state: HopState) -> tuple[Action, ...]:
        update = Update(state.step)
        return tuple([Send(v, update) for v in self.graph.targets[process]])


def hop_of(graph: Round, setting: IterationGap) -> Hop:
    """Return the protocol of a run over the edges of `graph`: workers send, reduce and advance by separate events."""
    return Hop(Digraph.from_edges_of(graph), setting, fine=True)


def check_setting(graph: Digraph, setting: IterationGap) -> None:
    """Raise ScheduleError for an iteration gap that contradicts itself or needs more in-neighbors than there are."""
    setting.check()
    setting.check_neighbors([len(sources) for sources in graph.sources])


def weights_of(
    gap: IterationGap, edge_weights: Mapping[int, Fraction], step: int, own_step: int, used: Sequence[tuple[int, int]]
) -> tuple[Fraction, list[Fraction]]:
    """Return the weights, of sum exactly 1, of a worker's own parameters and of the updates that it uses in a step.

    `edge_weights` are the graph's, by in-neighbor; `step` is k (before a skip: the last step that is skipped),
    `own_step` the step of the worker's own parameters; `used` holds (source, step of its update), ascending. The
    setting `gap.weights` decides. With `graph` the weight of an unused update is added to the worker's own. With
    `uniform` all weights are equal. With `iteration` and staleness s, parameters of step i weigh in proportion to i −
    (k − s) + 1, and the worker's own ones, which may be older than s steps, to at least 1. O(in-neighbors).
    """
    if gap.weights is EdgeWeighting.GRAPH:
        taken = [edge_weights[source] for source, _ in used]
        return 1 - sum(taken, Fraction(0)), taken
    if gap.weights is EdgeWeighting.UNIFORM:
        share = Fraction(1, len(used) + 1)
        return share, [share] * len(used)
    oldest = step - gap.staleness
    counts = [max(1, own_step - oldest + 1), *(of - oldest + 1 for _, of in used)]
    shares = [Fraction(count, sum(counts)) for count in counts]
    return shares[0], shares[1:]
