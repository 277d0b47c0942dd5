"""Properties of the membership of a run that continues after failures, and the configurations to explore."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from benchmarks.explore.covering import convert
from benchmarks.explore.explorer import Target, configurations
from benchmarks.explore.search import NoDeadlock, PerProcess, PerState, Property
from benchmarks.explore.search import View as Whole
from benchmarks.explore.system import Network
from partreduce.schedulers.protocols.membership.machine import Authority, Member, Membership
from partreduce.schedulers.protocols.membership.messages import Groups, Members, Phase


def membership_properties(machine: Membership, network: Network) -> tuple[Property, ...]:
    """Return all properties that apply.

    If live workers cannot be suspected, only dead ones are lost, and no run ends while enough workers live.
    """
    listed: list[Property] = [
        NoDeadlock(),
        PerState("one view in each generation, written down before it is sent", _one_view),
        PerState("what is committed is the sum of one generation", _of_one_generation),
        PerState("survivors hold the same", _the_same),
        PerProcess("no average before all are there", _not_too_early),
        PerState("a worker that is given up averages with no one", _keeps_out),
        PerState("a worker that is given up does not end well", _ends_well),
        PerProcess("views change by losses and joins alone", lambda _, state: _changes(state)),
        PerState("who has joined holds what the others do", lambda view: _alike(machine, view)),
        PerProcess("no more fail than may", lambda _, state: _too_many(machine, state)),
        PerProcess("nothing is left out that all can do", lambda worker, state: _left_out(machine, worker, state)),
    ]
    if not network.suspicions and not machine.leases:
        listed += [
            PerState("only the dead are given up", _only_the_dead),
            PerState("no one ends while enough live", lambda view: _ends_needlessly(machine, view)),
        ]
    return tuple(listed)


def _workers(view: Whole) -> list[tuple[int, Member]]:
    return [(worker, state) for worker, state in enumerate(view.processes[:-1]) if state is not None]


def _pairs(view: Whole) -> Iterator[tuple[int, Member, int, Member, bool]]:
    """Yield (worker, state, other, its state, whether both are in one view) for every two running workers."""
    for (worker, state), (other, its) in product(_workers(view), repeat=2):
        members = state.view.members
        yield worker, state, other, its, state.view == its.view and worker in members and other in members


def _one_view(view: Whole) -> str | None:
    authority = view.processes[-1]
    for worker, state, other, its, _ in _pairs(view):
        if state.view.generation == its.view.generation and state.view != its.view:
            return f"workers {worker} and {other} know {state.view} and {its.view}"
    for worker, state in _workers(view):
        if authority is not None and state.view.generation >= 0 and state.view not in authority.log:
            return f"worker {worker} knows {state.view}, which is not written down"
    return None


def _of_one_generation(view: Whole) -> str | None:
    """All members of a committed group had its sum in the same generation: each has committed, or is prepared.

    A member that has given the sum up since was not in the next view, or was lost and does not know of it yet.
    """
    states = dict(_workers(view))
    for worker, state in states.items():
        for place, generation, group in state.held:
            for other in group:
                its = states.get(other)
                if its is None or (place, generation, group) in its.held or its.view.generation > generation:
                    continue
                if not (
                    its.place == place and its.group == group and its.prepared and its.view.generation == generation
                ):
                    return (
                        f"worker {worker} committed {place} of generation {generation} with {other}, which is at "
                        f"{its.place}"
                    )
    return None


def _the_same(view: Whole) -> str | None:
    """Of two workers in one view, neither holds a mean over both that the other went past without applying it.

    Nor does a worker that has left, as the authority or it itself knows, together with one that continues.
    """
    left = frozenset() if view.processes[-1] is None else view.processes[-1].left
    for worker, state, other, its, together in _pairs(view):
        has_left = worker in left or state.phase is Phase.LEFT
        if not together and not (has_left and its.phase in (Phase.RUN, Phase.LEFT)):
            continue
        for place, generation, group in state.held:
            if other in group and its.place > place and (place, generation, group) not in its.held:
                where = f"the sum of {group} at {place} in generation {generation}"
                return f"workers {worker} and {other} part over {where}"
    return None


def _not_too_early(worker: int, state: Member | Authority) -> str | None:
    if isinstance(state, Member) and state.phase is Phase.REBUILD and worker == state.view.donor and not state.stands:
        return f"worker {worker} gives its state where it is in no operation of its rounds"
    if isinstance(state, Authority) or not state.group or state.phase is not Phase.RUN:
        return None
    if state.blank:
        return f"worker {worker} averages without a state"
    if state.place < state.view.resume:
        return f"worker {worker} averages at {state.place}, before {state.view.resume}"
    return None


def _keeps_out(view: Whole) -> str | None:
    authority = view.processes[-1]
    members = {} if authority is None else {one.generation: one.members for one in authority.log}
    for worker, state in _workers(view):
        for place, generation, group in state.held:
            if authority is not None and not set(group) <= set(members.get(generation, group)):
                return (
                    f"worker {worker} averaged at {place} of generation {generation} with {group}, of whom not "
                    "all are in it"
                )
        if state.phase is Phase.RUN and worker not in state.view.members:
            return f"worker {worker} runs in generation {state.view.generation}, to which it does not belong"
    return None


def _ends_well(view: Whole) -> str | None:
    authority = view.processes[-1]
    well = [worker for worker, state in _workers(view) if state.phase is Phase.LEFT]
    early = [worker for worker in well if authority is not None and worker not in authority.left]
    return f"workers {early} have left and the authority continues without them" if early else None


def _changes(state: Member | Authority) -> str | None:
    if isinstance(state, Member):
        return None
    for before, after in zip(state.log, state.log[1:], strict=False):
        new = set(after.members) - set(before.members)
        has_donor = not after.joined or after.donor in set(after.members) - set(after.joined)
        if (
            after.generation != before.generation + 1
            or not new <= set(after.joined) <= set(after.members)
            or not has_donor
        ):
            return f"{before} is followed by {after}"
    return None


def _alike(machine: Membership, view: Whole) -> str | None:
    """If all average in every round, a committed worker begins a round like every other worker in its view."""
    if machine.groups is not everybody:
        return None
    for worker, state, other, its, together in _pairs(view):
        if not together or not {state.phase, its.phase} <= {Phase.RUN, Phase.LEFT}:
            continue
        shared = min(len(state.held), len(its.held))
        if [one[0] for one in state.held[:shared]] != [one[0] for one in its.held[:shared]]:
            return f"workers {worker} and {other} of one view have committed {state.held} and {its.held}"
        if len(state.held) + 1 < len(its.held) and worker in state.view.joined:
            return f"worker {worker} has joined without what worker {other} has committed"
    return None


def _too_many(machine: Membership, state: Member | Authority) -> str | None:
    if isinstance(state, Member) or not state.view.members:
        return None
    lost = {worker for view in state.log for worker in view.members} - set(state.view.members) - state.left
    return f"{state.view} continues without {sorted(lost)}" if len(lost) > machine.max_failures else None


def _left_out(machine: Membership, worker: int, state: Member | Authority) -> str | None:
    """If all average in every round, no worker that continues misses the average of a round."""
    if isinstance(state, Authority) or machine.groups is not everybody or state.phase is not Phase.LEFT:
        return None
    if len(state.view.members) > 1 and len(state.held) < machine.rounds:
        return f"worker {worker} has left with {len(state.held)} averages of {machine.rounds}"
    return None


def _only_the_dead(view: Whole) -> str | None:
    authority = view.processes[-1]
    stateful = frozenset(worker for worker, state in _workers(view) if not state.blank)
    living = frozenset() if authority is None else authority.lost.intersection(stateful)
    reachable = sorted(living - view.cut_off) if living else []
    return f"workers {reachable} live and are given up" if reachable else None


def _ends_needlessly(machine: Membership, view: Whole) -> str | None:
    ended = [worker for worker, state in _workers(view) if state.phase is Phase.ENDED and not state.blank]
    if not ended:
        return None
    dead = sum(state is None for state in view.processes[:-1]) + len(view.cut_off)
    ended = [worker for worker in ended if worker not in view.cut_off]
    if ended and view.processes[-1] is not None and dead <= machine.max_failures:
        return f"workers {ended} end although {dead} are dead and {machine.max_failures} may be"
    return None


def everybody(members: Members, _round: int) -> tuple[Members, ...]:
    return (members,)


def pairs_then_all(members: Members, round_: int) -> tuple[Members, ...]:
    """Return the groups of a static schedule: the first two members, then the last two, then all."""
    return ((members[:2],), (members[-2:],), (members,))[round_ % 3]


def prepare(machine: Membership, network: Network) -> Target:
    return Target(machine, membership_properties(machine, network))


GROUPS: dict[str, Groups] = {"everybody": everybody, "pairs_then_all": pairs_then_all}


def _machine(row: dict[str, Any]) -> Membership:
    return Membership(**convert(row, groups=GROUPS.__getitem__))


SMALLEST, _small, LARGE = (
    configurations("membership", size, _machine, prepare) for size in ("smallest", "small", "large")
)
"""The smallest take seconds in all, and judge small changes to the protocol (`make mutants`)."""
SMALL = (*SMALLEST, *_small)
