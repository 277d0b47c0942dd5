"""Properties of an asynchronous parameter server, and the configurations to explore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.explore.covering import convert
from benchmarks.explore.explorer import Target, configurations
from benchmarks.explore.search import NoDeadlock, Pair, PerPair, PerProcess, Property, View
from benchmarks.explore.system import Network
from partreduce.schedulers.protocols.shards import (
    CLOSED,
    COMPUTING,
    WAITING,
    Answer,
    Ask,
    Plan,
    Progress,
    Shards,
    ShardState,
    WorkerState,
)


def shards_properties(machine: Shards) -> tuple[Property, ...]:
    workers = range(machine.num_workers)
    to_shards = tuple((worker, shard) for worker in workers for shard in machine.shards)
    listed: list[Property] = [
        NoDeadlock(),
        PerProcess("does what it may", _does_what_it_may),
        PerPair("progress is added once", to_shards, _added_once),
        PerPair("a request is answered once", to_shards, _answered_once),
        PerPair("a worker finds its own progress", to_shards, _finds_its_own, messages=False),
        PerProcess("no worker waits that may continue", lambda _, state: _needless(machine, state)),
    ]
    if machine.staleness is not None:
        pairs = tuple((u, v) for u in workers for v in workers if u != v)
        listed += [
            PerPair("no worker is too far ahead", pairs, lambda pair: _too_far(machine, pair), messages=False),
            PerPair("what is taken is new enough", to_shards, lambda pair: _too_old(machine, pair), messages=False),
        ]
    return tuple(listed)


def _does_what_it_may(process: int, state: WorkerState | ShardState) -> str | None:
    """A worker without a model has nothing under way, and one that waits has."""
    if isinstance(state, ShardState):
        return None
    if state.stage == CLOSED and (state.under_way or state.missing):
        return f"worker {process} has no model to count from, and awaits answers of {sorted(state.missing)}"
    if state.missing and not state.under_way:
        return f"worker {process} has taken what {sorted(state.missing)} have not answered"
    if state.stage == WAITING and not state.under_way:
        return f"worker {process} waits for nothing"
    return None


def _requests(pair: Pair) -> list[Progress | Ask]:
    """Return a worker's requests that are on their way to a shard, or kept there for a later generation, each once."""
    shard: ShardState = pair.second_state
    kept = [request for source, request in shard.early if source == pair.first]
    return sorted({one for one in (*pair.there, *kept) if isinstance(one, Progress | Ask)}, key=lambda one: one.number)


def _added_once(pair: Pair) -> str | None:
    """What a worker has pushed is at the shard or on its way, once, in the same generation."""
    worker, mine, shard, other, _, _ = pair
    if mine.generation != other.generation or mine.stage == CLOSED:
        return None
    coming = [
        one
        for one in _requests(pair)
        if isinstance(one, Progress) and one.generation == mine.generation and one.number > other.last_requests[worker]
    ]
    if other.rounds[worker] + len(coming) == mine.round:
        return None
    return (
        f"worker {worker} has pushed up to round {mine.round}; shard {shard} has added up to {other.rounds[worker]}, "
        f"and {len(coming)} are on their way"
    )


def _answered_once(pair: Pair) -> str | None:
    """A shard owes an answer only while the request is on its way or kept there, or the answer is on its way."""
    worker, mine, shard, other, _, back = pair
    requested = any(one.number == mine.number for one in _requests(pair))
    kept = bool(other.waiting) and other.waiting[worker] == mine.number != 0
    answered = Answer(mine.number) in back
    if shard not in mine.missing:
        # A request may be repeated, and an answer to it, but the shard keeps none that has its answer.
        return f"shard {shard} keeps what worker {worker} has an answer to" if kept else None
    if requested or kept or answered:
        return None
    return f"worker {worker} awaits an answer of shard {shard}, and no one gives it"


def _finds_its_own(pair: Pair) -> str | None:
    """An answer is sent after its request was received."""
    worker, mine, shard, other, _, _ = pair
    if mine.generation != other.generation or not mine.under_way or shard in mine.missing:
        return None
    if other.last_requests[worker] == mine.number:
        return None
    return f"worker {worker} has an answer to request {mine.number}, which shard {shard} has not received"


def _needless(machine: Shards, state: WorkerState | ShardState) -> str | None:
    if isinstance(state, WorkerState) or not state.rounds:
        return None
    for worker, number in enumerate(state.waiting):
        ahead = state.rounds[worker] - min(state.rounds)
        if number and (machine.staleness is None or ahead <= machine.staleness):
            return f"worker {worker} is {ahead} rounds ahead and waits; it may be {machine.staleness} ahead"
    return None


def _too_far(machine: Shards, pair: Pair) -> str | None:
    """A worker that may be s rounds ahead has pushed at most one round more."""
    u, a, v, b, _, _ = pair
    assert machine.staleness is not None, "asked only where there is one"
    if a.generation != b.generation or CLOSED in (a.stage, b.stage):
        return None
    if a.round - b.round <= machine.staleness + 1:
        return None
    return f"worker {u} has pushed {a.round} rounds and worker {v} {b.round}; the staleness is {machine.staleness}"


def _too_old(machine: Shards, pair: Pair) -> str | None:
    """The model with which a worker computes has all workers' progress up to s rounds before its own."""
    worker, mine, shard, other, _, _ = pair
    assert machine.staleness is not None, "asked only where there is one"
    if mine.generation != other.generation or mine.stage != COMPUTING or shard in mine.missing:
        return None
    if (slowest := min(other.rounds)) >= mine.round - machine.staleness:
        return None
    return f"worker {worker} computes round {mine.round} with a shard that has only {slowest} rounds of somebody"


def all_have_come(machine: Shards) -> Callable[[View], bool]:
    """Return a `within` for the explorer: a worker enters the next generation when all have drained."""
    plan = machine.plan
    assert plan is not None, "without a plan there are endlessly many states"

    def check(view: View) -> bool:
        states = view.processes[: machine.num_workers]
        newest = max(state.generation for state in states)
        return all(
            state.generation == newest or (state.round == plan.drains[state.generation] and state.stage == COMPUTING)
            for state in states
        )

    return check


def prepare(machine: Shards, _: Network) -> Target:
    return Target(machine, shards_properties(machine), within=all_have_come(machine))


def _machine(row: dict[str, Any]) -> Shards:
    return Shards(**convert(row, plan=lambda plan: Plan(**plan)))


SMALL, LARGE = (configurations("shards", size, _machine, prepare) for size in ("small", "large"))
