"""The machines as the explorer visits them, with functions that map equivalent states to one.

The runtime does not use these. A machine may have

* `clock(process, state)`, `shifted(process, state, by)` and `shifted_message(message, by)` if its behavior does not
  change when all step numbers are lowered equally. Step numbers are then kept relative to the slowest process, so that
  endless runs have finitely many states. A process without a step number has the clock None.
* `symmetries()`, `renamed(process, state, permutation)` and `renamed_message(message, permutation)` if its behavior
  does not change when processes are renamed: process v becomes permutation[v]. The permutations are a group.
* `suspects`, the pairs (suspect, observer) in which the observer may take the suspect for dead, even if it lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import networkx as nx
from networkx.algorithms.isomorphism import DiGraphMatcher, categorical_node_match

from partreduce.schedulers.protocols import adpsgd, hop
from partreduce.schedulers.protocols.adpsgd import Answer, PairState
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.group_generator import worker as machines
from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers
from partreduce.schedulers.protocols.group_generator.service import Ask, GeneratorState, Grant, Void
from partreduce.schedulers.protocols.group_generator.worker import ENDED, EVICTED, Here, WorkerState
from partreduce.schedulers.protocols.hop import Ack, HopState, Token, Update


class Hop(hop.Hop):
    def clock(self, process: int, state: HopState) -> int:  # noqa: ARG002 - the same for every worker
        return state.step

    def shifted(self, process: int, state: HopState, by: int) -> HopState:  # noqa: ARG002 - as above
        """Lower the step; queues are relative to it."""
        return replace(state, step=state.step - by)

    def shifted_message(self, message: Update | Token | Ack, by: int) -> Update | Token | Ack:
        return Update(message.step - by) if isinstance(message, Update) else message

    def symmetries(self) -> Sequence[tuple[int, ...]]:
        """Return the graph's automorphisms that preserve the number of backup workers."""
        return automorphisms(self.graph, self.setting.backups(self.graph.num_workers))

    def renamed(self, process: int, state: HopState, permutation: tuple[int, ...]) -> HopState:
        image = permutation[process]
        sources = {permutation[u]: place for place, u in enumerate(self.graph.sources[process])}
        targets = {permutation[v]: place for place, v in enumerate(self.graph.targets[process])}
        by_target = [targets[v] for v in self.graph.targets[image]]
        return replace(
            state,
            updates=tuple(state.updates[sources[u]] for u in self.graph.sources[image]),
            tokens=tuple(state.tokens[place] for place in by_target) if state.tokens else (),
            acked=tuple(state.acked[place] for place in by_target) if state.acked else (),
            fresh=tuple(state.fresh[sources[u]] for u in self.graph.sources[image]) if state.fresh else (),
        )

    def renamed_message(self, message: Update | Token | Ack, permutation: tuple[int, ...]) -> Update | Token | Ack:  # noqa: ARG002 - names no worker
        return message


class Pairing(adpsgd.Pairing):
    def symmetries(self) -> Sequence[tuple[int, ...]]:
        """Return the graph's automorphisms that preserve the roles."""
        return automorphisms(self.graph, self.roles)

    def renamed(self, process: int, state: PairState, permutation: tuple[int, ...]) -> PairState:  # noqa: ARG002 - the state says it all
        waits_for = state.waits_for if state.waits_for < 0 else permutation[state.waits_for]
        return PairState(waits_for, tuple(permutation[asker] for asker in state.askers))

    def renamed_message(self, message: adpsgd.Ask | Answer, permutation: tuple[int, ...]) -> adpsgd.Ask | Answer:  # noqa: ARG002 - names no one
        return message


def all_both(graph: Digraph) -> Pairing:
    """Return the pairing in which every worker asks and answers, as on a graph without two sides."""
    return Pairing(graph, (adpsgd.Role.BOTH,) * graph.num_workers)


def two_sides(graph: Digraph, active: frozenset[int]) -> Pairing:
    """Return the pairing in which the `active` workers ask and all others answer."""
    return Pairing(graph, adpsgd.two_sides(graph, active).roles)


@dataclass(frozen=True)
class GroupSystem(machines.GroupSystem):
    """The group generator and its workers; sequence numbers count from the oldest outstanding group.

    With `timeouts` a state in which workers wait and nothing moves is no end, because a timeout would wake them.
    """

    timeouts: bool = False

    @property
    def suspects(self) -> Sequence[tuple[int, int]]:
        """The generator with each worker: it evicts workers that are silent for longer than its lease.

        A worker that suspects the generator ends, which is a crash of that worker; one whose members do not arrive
        reports that its group broke (`breakers`).
        """
        n = self.setting.num_workers
        return tuple((worker, n) for worker in range(n))

    def finished(self, process: int, state: Any) -> bool:
        """Return whether a worker has ended or was evicted, or no worker waits for the generator."""
        if process < self.setting.num_workers:
            return self.timeouts or state.stage in (ENDED, EVICTED)
        return self.timeouts or not state[0].waiting

    def clock(self, process: int, state: Any) -> int | None:  # noqa: ARG002 - as in Machine
        """Return the oldest group that is not over, for the generator; workers follow it."""
        if self.rounds is not None or isinstance(state, WorkerState):
            return None
        buffers: GroupBuffers = state[0].buffers
        return buffers.groups[0].seq if buffers.groups else buffers.next_seq

    def shifted(self, process: int, state: Any, by: int) -> Any:  # noqa: ARG002 - as in Machine
        """Lower every sequence number; those of groups that ended long ago become equal."""
        if isinstance(state, WorkerState):
            here = tuple((seq - by, member) for seq, member in state.here if seq - by > -1)
            return replace(
                state,
                seq=max(state.seq - by, -1),
                met=max(state.met - by, -1),
                here=here,
                ask=self.shifted_message(state.ask, by),
            )
        inner: GeneratorState = state[0]
        answers = tuple(self.shifted_message(answer, by) for answer in inner.answers)
        return replace(inner, buffers=_lower(inner.buffers, by), answers=answers), state[1]

    def shifted_message(self, message: Any, by: int) -> Any:
        if isinstance(message, Ask):
            return replace(message, done=max(message.done - by, -1))
        if isinstance(message, Grant | Void | Here):
            return replace(message, seq=max(message.seq - by, -1))
        return message


def _lower(buffers: GroupBuffers, by: int) -> GroupBuffers:
    return replace(
        buffers,
        groups=tuple(replace(group, seq=group.seq - by) for group in buffers.groups),
        buffers=tuple(tuple(seq - by for seq in buffer) for buffer in buffers.buffers),
        next_seq=buffers.next_seq - by,
    )


def automorphisms(graph: Digraph, labels: Sequence[object], *, limit: int = 64) -> tuple[tuple[int, ...], ...]:
    """Return the permutations of the workers that preserve edges and labels: symmetries that a search may fold.

    If there are more than `limit`, only the identity and the cyclic shifts that are automorphisms are returned (also a
    group), because every permutation costs time in every state.
    """
    n = graph.num_workers
    labelled: nx.DiGraph[int] = nx.DiGraph(graph.edges)
    labelled.add_nodes_from((v, {"label": labels[v]}) for v in range(n))
    same_label = categorical_node_match("label", None)
    images = DiGraphMatcher(labelled, labelled, node_match=same_label).isomorphisms_iter()
    found = [tuple(image[v] for v in range(n)) for image in islice(images, limit + 1)]
    if len(found) <= limit:
        return tuple(found)
    shifts = (tuple((v + k) % n for v in range(n)) for k in range(n))
    return tuple(
        p
        for p in shifts
        if all(labels[v] == labels[p[v]] for v in range(n))
        and {(p[u], p[v]) for u, v in graph.edges} == set(graph.edges)
    )
