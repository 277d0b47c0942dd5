"""Prague's group generator (Luo et al., ASPLOS 2020) as a minimal model: what is proved about its order and its locks.

The complete service is in `group_generator`; this model leaves out epochs, crashes, recovery and inter/intra phases,
so that whole runs of three and four workers can be explored.

A worker asks for a group when a round begins, computes, and averages with the group that it is granted. The generator
draws a group around the worker that asked (random), or divides all idle workers at once (global division). Every group
gets a sequence number and joins the *group buffers* of its members; when it stands first in all of them it starts, and
the *lock vector* locks its members. So groups run in one total order, whatever order messages arrive in, and a message
that arrives twice does no harm. The draw itself is an event that the driver chooses among `ready`: a seeded generator
at run time, all of them in the explorer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from preduce.schedulers.protocols.base import Action, Note, Outcome, Received, Send
from preduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """Message to the generator: the sender begins this round and will need a group for it. Repeating it is harmless."""

    round: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Message to a member: group `seq` starts. A group of one means: skip this round's averaging."""

    seq: int
    members: Members


@dataclass(frozen=True, slots=True)
class Join:
    """Message to a group's first member: the sender's parameters have arrived there."""

    seq: int


@dataclass(frozen=True, slots=True)
class Result:
    """Message from a group's first member: the mean."""

    seq: int


@dataclass(frozen=True, slots=True)
class Done:
    """Message to the generator: group `seq` has averaged; unlock its members."""

    seq: int


@dataclass(frozen=True, slots=True)
class Computed:
    """Event of a worker: the round's steps are done."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Event of the generator: these groups are made, the first one for the worker that waits longest."""

    groups: tuple[Members, ...]


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker. `current` is the group that it takes part in, `granted` the one that it will join when ready.

    `joined` lists (seq, member) of what has arrived here as the first member of a group; `last` is the last group that
    it averaged with (−1: none): whatever arrives about that or an earlier one is old.
    """

    round: int
    computing: bool = True
    current: Grant | None = None
    granted: Grant | None = None
    joined: tuple[tuple[int, int], ...] = ()
    last: int = -1


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """The service. `asked[w]` is the last round that w asked for (−1: none), `assigned[w]` how many groups it got.

    `waiting` lists the workers that still need a group, in order of arrival; `buffers[w]` the numbers of w's open
    groups in order; `groups` the open groups; `running` those that have started; `locked` the lock vector.
    """

    asked: tuple[int, ...]
    assigned: tuple[int, ...]
    waiting: tuple[int, ...]
    buffers: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, Members], ...]
    running: tuple[int, ...]
    locked: tuple[bool, ...]
    next_seq: int = 0


PragueState = WorkerState | GeneratorState


@dataclass(frozen=True)
class PragueModel:
    """Workers 0..num_workers−1 and the generator, process num_workers; each worker runs `rounds` rounds.

    `division` divides all idle workers at once instead of drawing one group. `slow_threshold` is the filter: workers
    that are that many rounds behind the one that asked are left out of its groups.

    Raises:
        InputError: a group size below 2 or above the number of workers, no round, or a threshold below 1.
    """

    num_workers: int
    group_size: int
    rounds: int
    division: bool = False
    slow_threshold: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 2 <= self.group_size <= self.num_workers:
            raise InputError(f"group_size: is {self.group_size}; it lies between 2 and {self.num_workers} workers")
        if self.rounds < 1:
            raise InputError(f"rounds: is {self.rounds}; it is a number >= 1")
        if self.slow_threshold is not None and self.slow_threshold < 1:
            raise InputError(f"slow_threshold: is {self.slow_threshold}; it is a number of rounds >= 1, or None")

    @property
    def num_processes(self) -> int:
        """The workers and the generator."""
        return self.num_workers + 1

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """Everybody with everybody."""
        return [(u, v) for u in range(self.num_processes) for v in range(self.num_processes) if u != v]

    def start(self, process: int) -> Outcome[PragueState]:
        """Workers ask for their first group and begin to compute."""
        n = self.num_workers
        if process == n:
            return GeneratorState((-1,) * n, (0,) * n, (), ((),) * n, (), (), (False,) * n), ()
        return WorkerState(0), (Send(n, Request(0)),)

    def ready(self, process: int, state: PragueState) -> Sequence[object]:  # noqa: ARG002 - as in Machine
        """A worker ends its computation; the generator draws for whoever waits longest."""
        if isinstance(state, WorkerState):
            return (Computed(),) if state.computing else ()
        return tuple(map(Draw, self._draws(state))) if state.waiting else ()

    def finished(self, process: int, state: PragueState) -> bool:  # noqa: ARG002 - as in Machine
        """All rounds are done, no group is open."""
        if isinstance(state, WorkerState):
            return state.round == self.rounds
        return not state.groups and not state.waiting

    def step(self, process: int, state: PragueState, event: object) -> Outcome[PragueState]:
        """One event of a worker or of the generator."""
        if isinstance(state, WorkerState):
            return self._worker(process, state, event)
        match event:
            case Draw(groups):
                return self._started(self._drawn(state, groups))
            case Received(worker, Request(round_)):
                return self._asked(state, worker, round_), ()
            case Received(_, Done(seq)):
                return self._started(self._closed(state, seq)) if seq in state.running else (state, ())
        raise AssertionError(f"not an event of the generator: {event}")

    # The worker.

    def _worker(self, me: int, state: WorkerState, event: object) -> Outcome[PragueState]:
        match event:
            case Computed():
                return self._join_if_ready(me, replace(state, computing=False))
            case Received(_, Grant(seq) | Join(seq) | Result(seq)) if seq <= state.last:
                return state, ()
            case Received(_, Grant() as grant):
                return self._join_if_ready(me, state if grant == state.current else replace(state, granted=grant))
            case Received(source, Join(seq)):
                joined = tuple(sorted({*state.joined, (seq, source)}))
                return self._averaged_if_complete(me, replace(state, joined=joined))
            case Received(_, Result()):
                return self._next_round(state, ())
        raise AssertionError(f"not an event of a worker: {event}")

    def _join_if_ready(self, me: int, state: WorkerState) -> Outcome[PragueState]:
        if state.computing or state.current is not None or state.granted is None or state.round == self.rounds:
            return state, ()
        grant = state.granted
        state = replace(state, current=grant, granted=None)
        if grant.members[0] == me:
            return self._averaged_if_complete(me, state)
        return state, (Send(grant.members[0], Join(grant.seq)),)

    def _averaged_if_complete(self, me: int, state: WorkerState) -> Outcome[PragueState]:
        group = state.current
        if group is None or group.members[0] != me:
            return state, ()
        others = {member for seq, member in state.joined if seq == group.seq}
        if others != set(group.members) - {me}:
            return state, ()
        left = tuple(entry for entry in state.joined if entry[0] != group.seq)
        results = tuple(Send(member, Result(group.seq)) for member in group.members[1:])
        return self._next_round(replace(state, joined=left), (*results, Send(self.num_workers, Done(group.seq))))

    def _next_round(self, state: WorkerState, actions: tuple[Action, ...]) -> Outcome[PragueState]:
        group = state.current
        assert group is not None
        more = state.round + 1 < self.rounds
        after = replace(state, round=state.round + 1, computing=more, current=None, last=group.seq)
        request = (Send(self.num_workers, Request(after.round)),) if more else ()
        return after, (*actions, Note(("averaged", group.seq)), *request)

    # The generator.

    def _asked(self, state: GeneratorState, worker: int, round_: int) -> GeneratorState:
        asked = max(round_, state.asked[worker])
        state = replace(state, asked=_changed(state.asked, worker, asked))
        if asked >= state.assigned[worker] and worker not in state.waiting:
            state = replace(state, waiting=(*state.waiting, worker))
        return state

    def _draws(self, state: GeneratorState) -> Iterator[tuple[Members, ...]]:
        """Every way to serve the worker that waits longest."""
        first = state.waiting[0]
        others = [
            w
            for w in range(self.num_workers)
            if w != first and state.assigned[w] < self.rounds and not self._is_slow(state, first, w)
        ]
        if not self.division:
            size = min(self.group_size - 1, len(others))
            yield from ((tuple(sorted((first, *rest))),) for rest in combinations(others, size))
            return
        idle = [w for w in others if not state.buffers[w]]
        yield from self._divisions((first, *idle))

    def _divisions(self, workers: Members) -> Iterator[tuple[Members, ...]]:
        """Every division of idle workers into groups, the group of the first worker in front.

        What does not fill a group forms one smaller group, or, if it is one worker, stays idle (but never the first).
        """
        first, rest = workers[0], workers[1:]
        remainder = len(workers) % self.group_size
        if not rest:
            yield (workers,)
        elif remainder == 1:
            for idle in rest:
                yield from self._full_divisions(tuple(w for w in workers if w != idle))
        elif remainder:
            for small in combinations(workers, remainder):
                for groups in self._full_divisions(tuple(w for w in workers if w not in small)):
                    small_group = tuple(sorted(small))
                    yield (small_group, *groups) if first in small else (*groups, small_group)
        else:
            yield from self._full_divisions(workers)

    def _full_divisions(self, workers: Members) -> Iterator[tuple[Members, ...]]:
        """Every division into groups of exactly the group size."""
        if not workers:
            yield ()
            return
        for chosen in combinations(workers[1:], self.group_size - 1):
            left = tuple(w for w in workers[1:] if w not in chosen)
            yield from ((tuple(sorted((workers[0], *chosen))), *more) for more in self._full_divisions(left))

    def _is_slow(self, state: GeneratorState, first: int, other: int) -> bool:
        return self.slow_threshold is not None and state.asked[first] - state.asked[other] >= self.slow_threshold

    def _drawn(self, state: GeneratorState, groups: Iterable[Members]) -> GeneratorState:
        """Number the groups, push them to the buffers of their members, and let those wait no longer."""
        for members in groups:
            seq = state.next_seq
            state = replace(
                state,
                groups=(*state.groups, (seq, members)),
                buffers=tuple((*b, seq) if w in members else b for w, b in enumerate(state.buffers)),
                assigned=tuple(count + (w in members) for w, count in enumerate(state.assigned)),
                next_seq=seq + 1,
            )
        waiting = tuple(w for w in state.waiting if state.asked[w] >= state.assigned[w])
        return replace(state, waiting=waiting)

    def _started(self, state: GeneratorState) -> Outcome[PragueState]:
        """Start, in order, every group that stands first in all its members' buffers and whose members are free."""
        grants: list[Action] = []
        for seq, members in state.groups:
            first_everywhere = all(state.buffers[w][0] == seq for w in members)
            if seq in state.running or not first_everywhere or any(state.locked[w] for w in members):
                continue
            locked = tuple(is_locked or w in members for w, is_locked in enumerate(state.locked))
            state = replace(state, running=(*state.running, seq), locked=locked)
            grants += [Send(w, Grant(seq, members)) for w in members]
        return state, tuple(grants)

    def _closed(self, state: GeneratorState, seq: int) -> GeneratorState:
        """A group has averaged: unlock its members and take it out of their buffers."""
        members = dict(state.groups)[seq]
        return replace(
            state,
            groups=tuple(entry for entry in state.groups if entry[0] != seq),
            running=tuple(other for other in state.running if other != seq),
            locked=tuple(is_locked and w not in members for w, is_locked in enumerate(state.locked)),
            buffers=tuple(tuple(s for s in b if s != seq) for b in state.buffers),
        )

    def describe(self, process: int, event: object) -> str:
        """As a reader would say it."""
        if isinstance(event, Draw):
            groups = ", ".join("{" + ",".join(map(str, group)) + "}" for group in event.groups)
            return f"the generator draws {groups}"
        return f"worker {process} has computed"

    def describe_message(self, message: object) -> str:
        """As a reader would say it."""
        match message:
            case Request(round_):
                return f"request for round {round_}"
            case Grant(seq, members):
                return f"grant of group {seq} {{{','.join(map(str, members))}}}"
            case Join(seq):
                return f"parameters for group {seq}"
            case Result(seq):
                return f"mean of group {seq}"
            case Done(seq):
                return f"group {seq} done"
        return str(message)


def _changed(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])
