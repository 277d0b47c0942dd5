"""The properties of Prague's group generator, stated for the explorer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.protocols.prague_minimal import Draw, GeneratorState, PragueModel, Result, WorkerState
from preduce.verify.search.properties import NoDeadlock, PerProcess, PerState, Property

if TYPE_CHECKING:
    from preduce.verify.search.view import View


def prague_properties(machine: PragueModel) -> tuple[Property, ...]:
    """All properties. Runs are finite, as rounds are counted, so "no deadlock" says that every run ends well."""
    return (
        NoDeadlock(),
        PerProcess("lock vector is the union of running groups", _lock_vector),
        PerProcess("group buffers follow one total order", _one_order),
        PerProcess("draws serve the first in line with free workers", lambda p, state: _fair_draw(machine, p, state)),
        PerProcess("a worker averages only when it has computed", _computed),
        PerState("no worker averages in two groups at once", _no_overlap),
        PerState("no group lost or doubled", _none_lost),
    )


def _lock_vector(process: int, state: object) -> str | None:  # noqa: ARG001 - one signature for all
    if not isinstance(state, GeneratorState):
        return None
    members = [w for seq in state.running for w in dict(state.groups)[seq]]
    if len(members) != len(set(members)):
        return f"running groups share a worker: {[dict(state.groups)[seq] for seq in state.running]}"
    locked = {w for w, is_locked in enumerate(state.locked) if is_locked}
    return None if locked == set(members) else f"locked are {sorted(locked)}, in running groups {sorted(members)}"


def _one_order(process: int, state: object) -> str | None:  # noqa: ARG001 - one signature for all
    if not isinstance(state, GeneratorState):
        return None
    for worker, buffer in enumerate(state.buffers):
        expected = tuple(sorted(seq for seq, members in state.groups if worker in members))
        if buffer != expected:
            return f"the buffer of worker {worker} holds {buffer}; its open groups in order are {expected}"
        for seq in state.running:
            if seq in buffer and buffer[0] != seq:
                return f"group {seq} runs while worker {worker} has {buffer[0]} before it"
    return None


def _computed(process: int, state: object) -> str | None:
    if not isinstance(state, WorkerState) or not (state.computing and state.current is not None):
        return None
    return f"worker {process} averages in {state.current} while it computes"


def _fair_draw(machine: PragueModel, process: int, state: object) -> str | None:
    if not isinstance(state, GeneratorState) or not state.waiting:
        return None
    first = state.waiting[0]
    if len(set(state.waiting)) != len(state.waiting):
        return f"a worker waits twice: {state.waiting}"
    draws = [event.groups for event in machine.ready(process, state) if isinstance(event, Draw)]
    if not draws:
        return f"worker {first} waits and nothing can be drawn"
    for groups in draws:
        members = [w for group in groups for w in group]
        if first not in groups[0] or len(members) != len(set(members)):
            return f"draw {groups} for worker {first}"
        if any(state.assigned[w] >= machine.rounds for w in members):
            return f"draw {groups} takes a worker that has all its rounds: {state.assigned}"
        if any(len(group) > machine.group_size for group in groups):
            return f"draw {groups}: larger than {machine.group_size}"
        if machine.division and any(state.buffers[w] for w in members if w != first):
            return f"draw {groups} takes a worker that is not idle"
        if machine.slow_threshold is not None and any(
            state.asked[first] - state.asked[w] >= machine.slow_threshold for w in members
        ):
            return f"draw {groups} takes a worker that the filter leaves out"
        if not machine.division and machine.slow_threshold is None:
            free = sum(count < machine.rounds for w, count in enumerate(state.assigned) if w != first)
            if len(members) != min(machine.group_size, free + 1):
                return f"draw {groups} is smaller than it could be"
    return None


def _no_overlap(view: View) -> str | None:
    """Workers in different groups that share a member: one of the groups has its result on the way already."""
    workers = [(p, s) for p, s in enumerate(view.processes) if isinstance(s, WorkerState) and s.current is not None]
    for p, one in workers:
        for q, other in workers:
            a, b = one.current, other.current
            assert a is not None
            assert b is not None
            if a.seq < b.seq and set(a.members) & set(b.members):
                arriving = view.in_flight.get((a.members[0], p), ())
                if Result(a.seq) not in arriving:
                    return f"worker {p} is in group {a}, worker {q} in group {b}"
            if a.seq == b.seq and a.members != b.members:
                return f"workers {p} and {q} disagree about group {a.seq}: {a.members}, {b.members}"
    return None


def _none_lost(view: View) -> str | None:
    """Every group that a worker was put in is averaged by it once: it has done `round` of them, the rest are open."""
    service = view.processes[-1]
    if not isinstance(service, GeneratorState):
        return None
    for p, state in enumerate(view.processes[:-1]):
        if isinstance(state, WorkerState):
            # A group may be closed at the service while its mean is still on the way to the worker.
            arriving = state.current is not None and state.current.seq not in service.buffers[p]
            to_do = sum(1 for seq in service.buffers[p] if seq > state.last) + arriving
            if state.round + to_do != service.assigned[p]:
                return f"worker {p} averaged {state.round} times and has {to_do} to do of {service.assigned[p]} groups"
            if state.current is not None and (p not in state.current.members or state.current.seq <= state.last):
                return f"worker {p} is in group {state.current} after group {state.last}"
    return None
