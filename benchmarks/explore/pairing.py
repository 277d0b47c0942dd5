"""Properties of AD-PSGD's pairing, and the configurations to explore."""

from __future__ import annotations

from typing import Any

from benchmarks.explore.covering import Factors, levels_of
from benchmarks.explore.explorer import Configuration, Target, explore, fail_stop
from benchmarks.explore.reductions import Pairing, all_both, two_sides
from benchmarks.explore.search import NoDeadlock, Pair, PerPair, PerProcess, PerState, Property, Trace, View
from benchmarks.explore.system import Network
from partreduce.schedulers.protocols.adpsgd import Answer, Ask, PairState, Role
from partreduce.schedulers.protocols.digraph import Digraph


def pairing_properties(machine: Pairing, *, crashes: bool = False) -> tuple[Property, ...]:
    """Return all properties of a pairing; with `crashes` workers may wait for ever, but only for dead ones."""
    halt: Property = PerState("only the dead are waited for", _waits_for_the_dead) if crashes else NoDeadlock()
    return (
        halt,
        PerPair("a question is answered once", machine.graph.edges, _answered_once),
        PerProcess("only who answers is asked", lambda worker, state: _asks_who_answers(machine, worker, state)),
        PerProcess("who answers never waits", lambda worker, state: _never_waits(machine, worker, state)),
    )


def _answered_once(pair: Pair) -> str | None:
    """While a worker waits for another, the request is on its way or kept there, or the answer is on its way."""
    asker, mine, requested, other, there, back = pair
    if other.waits_for == asker or any(isinstance(message, Ask) for message in back):
        return None  # questions that cross are each other's answers
    questions = sum(isinstance(message, Ask) for message in there) + other.askers.count(asker)
    answers = sum(isinstance(message, Answer) for message in back)
    if questions + answers == (mine.waits_for == requested):
        return None
    word = "waits" if mine.waits_for == requested else "does not wait"
    return f"worker {asker} {word} for worker {requested}, with {questions} questions and {answers} answers open"


def _asks_who_answers(machine: Pairing, worker: int, state: PairState) -> str | None:
    partner = state.waits_for
    if partner < 0 or (machine.roles[partner] != Role.ACTIVE and partner in machine.graph.targets[worker]):
        return None
    return f"worker {worker} asks worker {partner}, which does not answer it"


def _never_waits(machine: Pairing, worker: int, state: PairState) -> str | None:
    if machine.roles[worker] != Role.PASSIVE or (state.waits_for < 0 and not state.askers):
        return None
    return f"worker {worker} only answers, and waits for {state.waits_for} and keeps {state.askers} waiting"


def _waits_for_the_dead(view: View) -> str | None:
    """If nothing moves between two live workers, neither waits for the other."""
    for worker, state in enumerate(view.processes):
        partner = -1 if state is None else state.waits_for
        if partner < 0 or view.processes[partner] is None:
            continue
        if not view.in_flight.get((worker, partner)) and not view.in_flight.get((partner, worker)):
            return f"worker {worker} waits for worker {partner}, which lives, and nothing is on its way between them"
    return None


def prepare(machine: Pairing, network: Network) -> Target:
    found = Target(machine, pairing_properties(machine, crashes=network.crashes > 0))
    return fail_stop(found) if network.suspicions else found


def _make(words: str, chosen: dict[str, Any]) -> Configuration:
    num_workers, edges, first = chosen["graph"]
    active = [v for v in range(num_workers) if (v in first) == (chosen["sides"] == "first")]
    between = [(u, v) for u in active for v in active if u < v] if chosen["extra"] else []
    network = Network(
        reorder=chosen["wire"],
        crashes=int(chosen["mishap"] == "crash"),
        suspicions=int(chosen["mishap"] == "suspicion"),
    )
    pairing = two_sides(Digraph.undirected(num_workers, [*edges, *between]), frozenset(active))
    return Configuration(words, pairing, prepare, network, chosen["symmetry"])


FACTORS = Factors(
    levels_of("pairing"),
    _make,
    # The largest graph would have 81,574 states with a wrong suspicion, five times those of all rows together.
    lambda chosen: bool(chosen["mishap"] != "suspicion" or len(chosen["graph"][1]) < 6),
)
"""A level of `graph` is (workers, edges, active workers); `extra` has edges between active ones, never used."""


def shortest_deadlock(num_workers: int) -> Trace | None:
    """Return the shortest run into a deadlock on a cycle of workers that all ask and answer."""
    cycle = Digraph.undirected(num_workers, [(i, (i + 1) % num_workers) for i in range(num_workers)])
    return explore(all_both(cycle), properties=(NoDeadlock(),)).finding("no deadlock").trace
