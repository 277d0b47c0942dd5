"""Hop's worker (Luo et al., ASPLOS 2019) as a minimal model of all its settings: updates and tokens, no tensors.

A worker is *in* step k from the instant it enters k; it enters step 0 at the start. In step k it sends its update k to
its out-neighbours, waits for the updates that its setting asks for, reduces, and enters k+1 if the token queues let it.
The model leaves out what the bounds do not depend on (the numbers in an update, how long work takes).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from preduce.schedulers.protocols.base import Action, Note, Outcome, Received, Send
from preduce.schedulers.protocols.digraph import Digraph, automorphisms
from preduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

SENDING, REDUCING, ENTERING = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class HopSetting:
    """One row of Hop's Table 1, or a combination of rows.

    `max_ig`: token queues with this maximum iteration gap over one edge (None: none). `staleness` s: an update of step
    k−s or later serves in step k. `backup`: how many of its in-neighbours a worker may do without, one number or one
    per worker; because a worker's own update is always there, it does not matter whether N_in counts the self-loop, as
    the paper does, or not. `notify_ack`: update k is sent only after every out-neighbour acknowledged k−1.
    `max_jump`: a worker that holds tokens enough may skip to step k+d, d ≤ max_jump (1: it never skips).
    """

    max_ig: int | None = None
    staleness: int = 0
    backup: int | tuple[int, ...] = 0
    notify_ack: bool = False
    max_jump: int = 1

    def backups(self, num_workers: int) -> tuple[int, ...]:
        """Backup workers of each worker, shape (num_workers,).

        Raises:
            InputError: a number too many or too few, or a negative one.
        """
        given = (self.backup,) * num_workers if isinstance(self.backup, int) else self.backup
        if len(given) != num_workers:
            raise InputError(f"backup: has {len(given)} numbers; give 1 number or 1 for each of {num_workers} workers")
        if min(given, default=0) < 0:
            raise InputError(f"backup: {min(given)} is not a number of workers >= 0")
        return given

    def check(self, graph: Digraph) -> None:
        """Refuse settings that do not fit the graph or one another.

        Raises:
            InputError: naming the field, its value and the rule.
        """
        if self.max_ig is not None and self.max_ig < 0:
            raise InputError(f"max_ig: is {self.max_ig}; a token queue starts with at least 0 tokens")
        if self.staleness < 0:
            raise InputError(f"staleness: is {self.staleness}; it is a number of steps >= 0")
        if self.max_jump < 1:
            raise InputError(f"max_jump: is {self.max_jump}; a worker advances by at least 1 step")
        if self.max_jump > 1 and self.max_ig is None:
            raise InputError("max_jump: skipping is steered by token queues; give max_ig as well")
        backups = self.backups(graph.num_workers)
        if self.notify_ack and (any(backups) or self.staleness or self.max_jump > 1):
            raise InputError(
                "notify_ack: needs every update of every step; backup, staleness and max_jump do not go with it"
            )
        for worker, spare in enumerate(backups):
            if spare > len(graph.sources[worker]):
                raise InputError(
                    f"backup[{worker}]: is {spare}, but worker {worker} has only {len(graph.sources[worker])} "
                    "in-neighbours besides itself"
                )


@dataclass(frozen=True, slots=True)
class Update:
    """Message along an edge: the sender's update of a step."""

    step: int


@dataclass(frozen=True, slots=True)
class Token:
    """Message against an edge: the receiver of updates moved on by `count` steps."""

    count: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Message against an edge (NOTIFY-ACK): your update is reduced, the next may come."""


@dataclass(frozen=True, slots=True)
class SendUpdate:
    """Event: the worker sends the update of its step."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Event: the worker averages the updates that its step asks for."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Event: the worker moves on by `by` steps (more than 1 is a skip)."""

    by: int = 1


HopEvent = SendUpdate | Reduce | Advance | Received


@dataclass(frozen=True, slots=True)
class HopState:
    """One worker. Queues stand in the order of `Digraph.sources` and `Digraph.targets`.

    `updates[q]` has bit b set when the update of step (step − staleness + b) from source q is in the queue, so the
    queues move with the step. `tokens[q]` counts the tokens in hand from target q. `acked[q]` says whether target q
    has acknowledged the update before this step's.
    """

    step: int
    stage: int
    updates: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    acked: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Hop:
    """All workers of a job under one setting; a `Machine` that the explorer can shift and rename.

    With `fine` a step has three events (send, reduce, enter); without it they are one, which reaches the same gaps in
    fewer states. NOTIFY-ACK is always fine: its bound depends on the order of the three.
    """

    graph: Digraph
    setting: HopSetting
    fine: bool = False
    _split: bool = field(init=False, repr=False)
    _needed: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the setting against the graph."""
        self.setting.check(self.graph)
        spare = self.setting.backups(self.graph.num_workers)
        object.__setattr__(self, "_split", self.fine or self.setting.notify_ack)
        object.__setattr__(self, "_needed", tuple(len(s) - b for s, b in zip(self.graph.sources, spare, strict=True)))

    @property
    def num_processes(self) -> int:
        """The number of workers."""
        return self.graph.num_workers

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """Updates go along the edges; tokens and acknowledgements against them."""
        pairs = set(self.graph.edges)
        if self.setting.max_ig is not None or self.setting.notify_ack:
            pairs |= {(v, u) for u, v in self.graph.edges}
        return sorted(pairs)

    def start(self, process: int) -> Outcome[HopState]:
        """Step 0, entered; the token queues are full, nothing is unacknowledged."""
        targets = self.graph.targets[process]
        state = HopState(
            step=0,
            stage=SENDING if self._split else REDUCING,
            updates=(0,) * len(self.graph.sources[process]),
            tokens=() if self.setting.max_ig is None else (self.setting.max_ig,) * len(targets),
            acked=(True,) * len(targets) if self.setting.notify_ack else (),
        )
        return state, () if self._split else self._updates_to(process, 0)

    def ready(self, process: int, state: HopState) -> Sequence[HopEvent]:
        """What the worker may do next by itself."""
        if state.stage == SENDING:
            return (SendUpdate(),) if all(state.acked) else ()
        if self._split and state.stage == REDUCING:
            return (Reduce(),) if self._served(process, state, 1) else ()
        return tuple(Advance(by) for by in range(1, self.setting.max_jump + 1) if self._may_advance(process, state, by))

    def step(self, process: int, state: HopState, event: object) -> Outcome[HopState]:
        """One event of one worker."""
        match event:
            case Received(source, Update(step)):
                return self._queued(process, state, source, step), ()
            case Received(source, Token(count)):
                place = self.graph.targets[process].index(source)
                return replace(state, tokens=_changed(state.tokens, place, state.tokens[place] + count)), ()
            case Received(source, Ack()):
                place = self.graph.targets[process].index(source)
                return replace(state, acked=_changed(state.acked, place, True)), ()
            case SendUpdate():
                unacked = (False,) * len(state.acked)
                return replace(state, stage=REDUCING, acked=unacked), self._updates_to(process, state.step)
            case Reduce():
                acks: tuple[Action, ...] = ()
                if self.setting.notify_ack:
                    acks = tuple(Send(u, Ack()) for u in self.graph.sources[process])
                return replace(state, stage=ENTERING), (*acks, Note(("reduced", state.step)))
            case Advance(by):
                return self._advanced(process, state, by)
        raise AssertionError(f"not an event of Hop: {event}")

    def _served(self, process: int, state: HopState, by: int) -> bool:
        """Whether the updates of step (step + by − 1), or fresh enough ones, are there from enough in-neighbours."""
        if self.setting.staleness:
            have = sum(1 for queue in state.updates if queue >> (by - 1))
        else:
            have = sum(1 for queue in state.updates if queue >> (by - 1) & 1)
        return have >= self._needed[process]

    def _may_advance(self, process: int, state: HopState, by: int) -> bool:
        # What a worker has reduced stays in its queues until it moves on; a skip renews its parameters.
        return by <= min(state.tokens, default=by) and self._served(process, state, by)

    def _advanced(self, process: int, state: HopState, by: int) -> Outcome[HopState]:
        step = state.step + by
        entered = HopState(
            step=step,
            stage=SENDING if self._split else REDUCING,
            updates=tuple(queue >> by for queue in state.updates),
            tokens=tuple(count - by for count in state.tokens),
            acked=state.acked,
        )
        actions: tuple[Action, ...] = (Note(("entered", step)),)
        if self.setting.max_ig is not None:
            actions = (*(Send(u, Token(by)) for u in self.graph.sources[process]), *actions)
        return entered, actions if self._split else (*self._updates_to(process, step), *actions)

    def _queued(self, process: int, state: HopState, source: int, step: int) -> HopState:
        """The update joins its queue; one too old to serve is thrown away, one that a newer one replaces as well."""
        bit = step - (state.step - self.setting.staleness)
        if bit < 0:
            return state
        place = self.graph.sources[process].index(source)
        queue = state.updates[place] | 1 << bit
        if self.setting.staleness:
            queue = 1 << (queue.bit_length() - 1)
        return replace(state, updates=_changed(state.updates, place, queue))

    def _updates_to(self, process: int, step: int) -> tuple[Action, ...]:
        return tuple(Send(v, Update(step)) for v in self.graph.targets[process])

    # What the explorer's reductions need: see Shiftable, Symmetric and Describing in base.py.

    def clock(self, process: int, state: HopState) -> int:  # noqa: ARG002 - the same for every worker
        """The step that the worker is in."""
        return state.step

    def shifted(self, process: int, state: HopState, by: int) -> HopState:  # noqa: ARG002 - as above
        """Queues are relative to the step, so only the step moves."""
        return replace(state, step=state.step - by)

    def shifted_message(self, message: Update | Token | Ack, by: int) -> Update | Token | Ack:
        """Only updates carry a step."""
        return Update(message.step - by) if isinstance(message, Update) else message

    def symmetries(self) -> Sequence[tuple[int, ...]]:
        """The graph's automorphisms that keep the number of backup workers."""
        return automorphisms(self.graph, self.setting.backups(self.graph.num_workers))

    def renamed(self, process: int, state: HopState, permutation: tuple[int, ...]) -> HopState:
        """Queues are put in the order of the new names."""
        image = permutation[process]
        sources = {permutation[u]: place for place, u in enumerate(self.graph.sources[process])}
        targets = {permutation[v]: place for place, v in enumerate(self.graph.targets[process])}
        by_target = [targets[v] for v in self.graph.targets[image]]
        return replace(
            state,
            updates=tuple(state.updates[sources[u]] for u in self.graph.sources[image]),
            tokens=tuple(state.tokens[place] for place in by_target) if state.tokens else (),
            acked=tuple(state.acked[place] for place in by_target) if state.acked else (),
        )

    def renamed_message(self, message: Update | Token | Ack, permutation: tuple[int, ...]) -> Update | Token | Ack:  # noqa: ARG002 - names no worker
        """No message names a worker."""
        return message

    def describe(self, process: int, event: HopEvent) -> str:
        """As a reader would say it."""
        match event:
            case SendUpdate():
                return f"worker {process} sends its update"
            case Reduce():
                return f"worker {process} reduces"
            case Advance(1):
                return f"worker {process} enters its next step"
            case Advance(by):
                return f"worker {process} skips {by} steps ahead"
        return f"worker {process}: {event}"

    def describe_message(self, message: Update | Token | Ack) -> str:
        """As a reader would say it."""
        match message:
            case Update(step):
                return f"update of step {step}"
            case Token(count):
                return "1 token" if count == 1 else f"{count} tokens"
        return "acknowledgement"


def _changed(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])
