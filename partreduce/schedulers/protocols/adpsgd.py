"""AD-PSGD's pairing (Lian et al., ICML 2018): a worker averages with one neighbor at a time, asynchronously.

An *active* worker picks a passive neighbor, sends it a request, and waits for the answer; a *passive* worker answers at
once. If the graph is bipartite the two sides have these roles, and a worker that gets a request is never waiting.
Otherwise workers have both roles, and may wait for one another in a cycle (Prague, Figure 2a).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from partreduce.schedulers.protocols.base import Action, Note, Outcome, Received, Send, Signal
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.pairwise import Pairwise


class Role(StrEnum):
    """The role of a worker: active (it sends requests to average), passive (it answers them), or both."""

    ACTIVE = "active"
    PASSIVE = "passive"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Choose:
    """Event: the worker has computed and picks a neighbor to average with."""

    partner: int


class Ask(Signal):
    """Message with the sender's parameters: a request to average them with the receiver's and answer with the mean."""


class Answer(Signal):
    """Message with the average of both workers' parameters."""


@dataclass(frozen=True, slots=True)
class PairState:
    """The state of one worker: the worker it waits for (−1: none), and the workers that wait for it, in order."""

    waits_for: int = -1
    askers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pairing:
    """AD-PSGD's protocol for all workers over an undirected graph, as a state machine (`Machine`); a role per worker.

    Two workers that send each other a request at the same time have both sent their parameters, so each treats the
    other's request as the answer. A worker that waits queues other requests until it has its answer: the averaging is
    atomic.
    """

    graph: Digraph
    roles: tuple[Role, ...]

    def __post_init__(self) -> None:
        if not self.graph.is_symmetric:
            raise InputError("pairing: workers of a pair average with each other; give an undirected graph")
        if len(self.roles) != self.graph.num_workers:
            raise InputError(f"roles: has {len(self.roles)} entries for {self.graph.num_workers} workers")

    @property
    def num_processes(self) -> int:
        return self.graph.num_workers

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        return self.graph.edges

    def start(self, process: int) -> Outcome[PairState]:  # noqa: ARG002 - all start in the same state
        return PairState(), ()

    def ready(self, process: int, state: PairState) -> Sequence[Choose]:
        """Return an event for each neighbor that answers requests, for the driver to pick one; none while it waits."""
        if state.waits_for >= 0 or self.roles[process] == Role.PASSIVE:
            return ()
        return tuple(Choose(v) for v in self.graph.targets[process] if self.roles[v] != Role.ACTIVE)

    def step(self, process: int, state: PairState, event: object) -> Outcome[PairState]:  # noqa: ARG002 - as in Machine
        match event:
            case Choose(partner):
                return replace(state, waits_for=partner), (Send(partner, Ask()),)
            case Received(source, Ask()) if state.waits_for == source:
                return self._served(state, source)
            case Received(source, Ask()) if state.waits_for >= 0:
                return replace(state, askers=(*state.askers, source)), ()
            case Received(source, Ask()):
                return state, (Send(source, Answer()), Note(("averaged", source)))
            case Received(source, Answer()):
                return self._served(state, source)
        raise AssertionError(f"not an event of the pairing: {event}")

    def _served(self, state: PairState, partner: int) -> Outcome[PairState]:
        """End the exchange with `partner`, and answer all workers whose request arrived during it."""
        answers: tuple[Action, ...] = tuple(Send(asker, Answer()) for asker in state.askers)
        return PairState(), (Note(("averaged", partner)), *answers)


def two_sides(graph: Digraph, active: frozenset[int]) -> Pairing:
    """Return the pairing in which the `active` workers send requests and all others answer."""
    return Pairing(graph, tuple(Role.ACTIVE if v in active else Role.PASSIVE for v in range(graph.num_workers)))


def pairing_of(strategy: Pairwise, num_workers: int) -> Pairing:
    """Return the pairing of a schedule: over its edges, or of every active worker with every passive one."""
    edges = [(worker, other) for worker in strategy.active for other in strategy.passive_of(worker, num_workers)]
    return two_sides(Digraph.undirected(num_workers, edges), frozenset(strategy.active))
