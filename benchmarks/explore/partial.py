"""Properties of partial collectives: rounds, quorum, delay, each call once, equal results, a common end.

Written from eager-SGD's text (PPoPP 2020, Lemma 5.1: liveness, safety, quorum, staleness), and from what queues of
results add. Each call of a worker (one step with a gradient) has a number, so that a state shows where its gradient is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.explore.covering import Factors, convert, levels_of
from benchmarks.explore.explorer import AT_ONCE, REORDERED, USUAL, WILD, Configuration, Target, configurations
from benchmarks.explore.search import NoDeadlock, Pair, PerPair, PerProcess, PerState, Property, View
from benchmarks.explore.system import Network
from partreduce.schedulers.protocols.partial import (
    CALLED,
    COMPUTING,
    CONTINUES,
    MEETING,
    Begin,
    Call,
    End,
    Finish,
    Partial,
    PartialState,
    Share,
    Take,
)
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.partial import LateGradientPolicy, MissedResultPolicy, PartialAllReduce, QuorumStart


def partial_properties(machine: Partial) -> tuple[Property, ...]:
    setting, n = machine.setting, machine.num_processes
    pairs = tuple((u, v) for u in range(n) for v in range(n) if u != v)

    def by_two(name: str, check: Callable[[Pair], str | None]) -> PerPair:
        return PerPair(name, pairs, check, messages=False)

    listed: list[Property] = [
        NoDeadlock(),
        PerProcess("does what it may", lambda w, state: _does_what_it_may(machine, w, state)),
        by_two("one round at a time, with all", _one_round),
        PerProcess("a quorum has come", lambda _, state: _quorum_has_come(machine, state)),
        PerProcess("an arrival is for its round", lambda w, state: _arrival_in_place(setting, w, state)),
        PerState("rests only for want of a quorum", lambda view: _rests_rightly(machine, view)),
        PerState("no round that no one needs", _is_needed),
        PerProcess("each call is in one place", _in_one_place),
        by_two("each call counts once", _counts_once),
        PerProcess("results are taken in order", lambda w, state: _in_order(setting, w, state)),
        by_two("results are the same for all", _same_results),
        PerProcess("a call takes a result", lambda w, state: _call_takes(setting, w, state)),
        by_two("all end at the same round", _same_end),
    ]
    if setting.bound is not None:
        listed.append(PerProcess("nothing is too late", lambda w, state: _late(setting, w, state)))
    if setting.keeps_equal:
        listed.append(PerProcess("queue within capacity", lambda w, state: _capacity(setting, w, state)))
    if setting.synchronize_every:
        listed.append(by_two("models are synchronized together", lambda pair: _synchronizes(setting, pair)))
    return tuple(listed)


def _shares_of_round(state: PartialState) -> list[Share] | None:
    """Return each worker's share of the running round; None unless one runs and all of it is known."""
    if state.entered == state.done:
        return None
    found = [share for known in state.shares for share in known if share.round == state.done]
    return found if len(found) == len(state.shares) else None


def _has_room(setting: PartialAllReduce, state: PartialState) -> bool:
    """Return whether neither a full queue nor a model that is not synchronized delays this worker's next round."""
    if setting.keeps_equal:
        return state.done - state.version < setting.staleness
    every = setting.synchronize_every
    return not every or state.synchronized == state.entered - state.entered % every or state.entered % every != 0


def _does_what_it_may(machine: Partial, w: int, state: PartialState) -> str | None:
    """The possible events are those that the text allows, no more and no fewer."""
    offered = set(machine.ready(w, state))
    allowed: set[object] = set()
    if state.stage == COMPUTING and not state.resting:
        allowed.add(Call() if machine.calls is None or state.calls < machine.calls[w] else End())
    elif state.stage != MEETING and state.done > state.version:
        allowed.add(Take())
    if state.entered > state.done:
        if _shares_of_round(state) is not None:
            allowed.add(Finish())
    elif state.entered < state.activated and _has_room(machine.setting, state):
        allowed.add(Begin())
    if offered == allowed:
        return None
    return (
        f"worker {w} offers {sorted(map(str, offered - allowed))} too much, lacks {sorted(map(str, allowed - offered))}"
    )


def _one_round(pair: Pair) -> str | None:
    """A round is over for a worker only after all have entered it; none enters a round before the last is over."""
    u, a, v, b, _, _ = pair
    if not 0 <= a.entered - a.done <= 1:
        return f"worker {u} has entered {a.entered} rounds and is done with {a.done}"
    return (
        f"worker {u} is done with round {b.entered}, which worker {v} has not entered" if b.entered < a.done else None
    )


def _quorum_has_come(machine: Partial, state: PartialState) -> str | None:
    """Enough workers contribute to the round, of those that had not ended; under majority the drawn worker does."""
    shares = _shares_of_round(state)
    if shares is None:
        return None
    continuing = [v for v, share in enumerate(shares) if not share.ended]
    come = [v for v, share in enumerate(shares) if share.gradients]
    quorum = machine.setting.quorum
    needed = min(quorum, len({*continuing, *come})) if isinstance(quorum, int) else min(1, len(continuing))
    if len(come) < needed:
        return f"round {state.done} has something of workers {come}; {needed} of {continuing} and these are needed"
    if quorum is QuorumStart.MAJORITY and continuing and not set(come) & set(_may_start(machine, state.done, shares)):
        return f"round {state.done} has something of workers {come}, but not of the one that starts it"
    return None


def _from_drawn(machine: Partial, round_: int) -> list[int]:
    """Return all workers in order, beginning with the one that is drawn under majority."""
    first = machine.initiators[round_ % len(machine.initiators)] if machine.initiators else 0
    return [(first + i) % machine.num_workers for i in range(machine.num_workers)]


def _may_start(machine: Partial, round_: int, shares: list[Share]) -> list[int]:
    """Return the workers, under majority, that may have been the first one not ended from the drawn worker on."""
    found = []
    for v in _from_drawn(machine, round_):
        found.append(v)
        if not shares[v].ended:
            break
    return found


def _arrival_in_place(setting: PartialAllReduce, w: int, state: PartialState) -> str | None:
    """A worker counts for the open round if and only if it has something for it; by call only in its own round."""
    counts, open_ = state.arrived[w], state.entered + 1
    is_in_time = setting.count is LateGradientPolicy.OPEN_ROUND or state.calls == open_ or state.resting
    if (counts == open_) != (bool(state.buffer) and is_in_time) or counts > open_:
        return f"worker {w} has {state.buffer} for round {state.entered} and counts for round {counts - 1}"
    return None


def _rests_rightly(machine: Partial, view: View) -> str | None:
    """If no thread can move and no message is on its way, every thread waits for a quorum or for room.

    So a round waits for no more calls than its quorum needs, and otherwise only for a full queue or a model that is not
    synchronized.
    """
    if any(view.in_flight.values()):
        return None
    states = view.processes
    if any({Begin(), Finish()} & set(machine.ready(w, state)) for w, state in enumerate(states)):
        return None
    if _is_held(machine, states):
        return None
    return f"all wait in round {min(map(_at, states))}, and nothing that may hold them up does"


def _at(state: PartialState) -> int:
    """Return the round in which a thread is, or which it enters next."""
    return state.entered - 1 if state.is_running else state.entered


def _is_held(machine: Partial, states: Sequence[PartialState]) -> bool:
    """Return whether a permitted reason delays the first round that is not over for all."""
    setting, round_ = machine.setting, min(map(_at, states))
    here = [state for state in states if _at(state) == round_]
    if any(not state.is_running and not _has_room(setting, state) for state in here):
        return True
    if len(here) < len(states) or any(state.is_running for state in here):
        return False  # the others could enter, or the sum end
    continuing = [v for v, state in enumerate(states) if not state.resting]
    come = [v for v, state in enumerate(states) if _arrival_counts(setting, state)]
    quorum = setting.quorum
    if not continuing:
        return round_ >= max(state.arrived[v] for v, state in enumerate(states))
    if isinstance(quorum, int):
        return len(come) < min(quorum, len({*come, *continuing}))
    if quorum is QuorumStart.MAJORITY:
        return next(v for v in _from_drawn(machine, round_) if v in continuing) not in come
    return not come


def _arrival_counts(setting: PartialAllReduce, state: PartialState) -> bool:
    """Return whether a worker counts for its open round; by call only with the call of that round, or all of them."""
    own = setting.count is LateGradientPolicy.OPEN_ROUND or state.calls == state.entered + 1 or state.resting
    return bool(state.buffer) and own


def _is_needed(view: View) -> str | None:
    """A round is entered only if some worker has arrived for it, or for a later one."""
    needed = max(state.arrived[w] for w, state in enumerate(view.processes))
    beyond = [(w, state.entered) for w, state in enumerate(view.processes) if state.entered > needed]
    return f"(worker, rounds entered) {beyond}, and no one has come for more than {needed}" if beyond else None


def _in_one_place(w: int, state: PartialState) -> str | None:
    """A worker's calls without a result are in the running round or in its buffer, each once and in order."""
    running = tuple(n for share in state.shares[w] for n in share.gradients)
    if len(state.shares[w]) != state.is_running:
        return f"worker {w} has {len(state.shares[w])} shares of its own under way"
    there, right = (*running, *state.buffer), tuple(range(state.counted, state.calls))
    if there == right:
        return None
    return f"worker {w} has {there} in its round and buffer; of {state.calls} calls {state.counted} are in results"


def _counts_once(pair: Pair) -> str | None:
    """A worker has of another's calls what that one sent: no more, and each in its own round."""
    u, a, v, b, _, _ = pair
    for share in a.shares[v]:
        if share.round >= b.entered:
            return f"worker {u} has a share of round {share.round}, which worker {v} has not entered"
        own = [other for other in b.shares[v] if other.round == share.round]
        if own and own[0] != share:
            return f"worker {u} has {share} of worker {v}, whose own is {own[0]}"
    return None


def _in_order(setting: PartialAllReduce, w: int, state: PartialState) -> str | None:
    """Every result waits, in order, until it is taken; with latest only the newest."""
    held = tuple(result.round for result in state.results)
    if setting.keeps_equal:
        right = tuple(range(state.version, state.done))
    elif setting.count is LateGradientPolicy.CALL and not state.resting:
        right = (state.done - 1,) if state.done else ()
    else:
        right = (state.done - 1,) if state.done > state.version else ()
    if held == right or (not setting.keeps_equal and state.version == state.done):
        return None
    return f"results {held} wait for worker {w}, which has taken {state.version} of {state.done}"


def _same_results(pair: Pair) -> str | None:
    """All workers have the same calls in a round."""
    u, a, v, b, _, _ = pair
    other = {result.round: result for result in b.results}
    for result in a.results:
        if other.get(result.round, result) != result:
            return f"round {result.round} is {result.counts} at worker {u}, {other[result.round].counts} at worker {v}"
    return None


def _call_takes(setting: PartialAllReduce, w: int, state: PartialState) -> str | None:
    """No worker computes further without a result; by call every worker calls once in each round."""
    waits = state.stage == CALLED
    if state.calls - waits > state.version:
        return f"worker {w} has made {state.calls} calls and taken {state.version} rounds"
    if setting.count is LateGradientPolicy.CALL and not state.resting and state.calls - waits != state.version:
        return f"worker {w} has taken {state.version} rounds in {state.calls} calls"
    return None


def _same_end(pair: Pair) -> str | None:
    """A worker that knows the last round knows the right one, and leaves nothing behind."""
    u, a, v, b, _, _ = pair
    if b.resting and b.lasts[v] != b.arrived[v] - 1:
        return f"worker {v} came last for round {b.arrived[v] - 1} and says {b.lasts[v]}"
    if a.lasts[v] not in (CONTINUES, b.lasts[v]):
        return f"worker {u} takes worker {v} to need round {a.lasts[v]}, it says {b.lasts[v]}"
    last = a.last
    if last is None:
        return None
    if not b.resting or b.entered > last + 1:
        return f"worker {u} ends at round {last}; worker {v} has entered {b.entered} and may continue"
    if b.version > last and (b.buffer or b.counted != b.calls):
        return f"worker {v} ends with {b.buffer} in its buffer, {b.counted} of {b.calls} calls in results"
    return None


def _late(setting: PartialAllReduce, w: int, state: PartialState) -> str | None:
    """The rounds between the weights of a call and the round that contains it do not exceed the bound."""
    assert setting.bound is not None
    ages = [state.entered - state.oldest] if state.buffer else []
    ages += [share.round - share.oldest for share in state.shares[w] if share.gradients]
    if max(ages, default=0) <= setting.bound:
        return None
    return f"a call of worker {w} is {max(ages)} rounds late; the bound is {setting.bound}"


def _capacity(setting: PartialAllReduce, w: int, state: PartialState) -> str | None:
    used = len(state.results) + state.is_running
    if used <= setting.staleness:
        return None
    return f"{used} results have places at worker {w}; its queue holds {setting.staleness}"


def _synchronizes(setting: PartialAllReduce, pair: Pair) -> str | None:
    """A mean of models includes all of them, and rounds continue only after it."""
    u, a, v, b, _, _ = pair
    every = setting.synchronize_every
    if a.synchronized > b.version:
        return f"worker {u} is synchronized at round {a.synchronized}; worker {v} has taken {b.version}"
    due = max(a.entered - 1, 0) // every * every
    if a.synchronized < due or (a.stage != MEETING and a.version // every * every > a.synchronized):
        return f"worker {u} has entered {a.entered} rounds, taken {a.version}, and is synchronized at {a.synchronized}"
    return None


def prepare(machine: Partial, _: Network) -> Target:
    return Target(machine, partial_properties(machine))


def _quorum(quorum: int | str) -> int | QuorumStart:
    return quorum if isinstance(quorum, int) else QuorumStart(quorum)


def _partial(row: dict[str, Any]) -> PartialAllReduce:
    return PartialAllReduce(**convert(row, quorum=_quorum, count=LateGradientPolicy, missed=MissedResultPolicy))


def _machine(row: dict[str, Any]) -> Partial:
    """Return the machine of a row; `calls` are the workers' numbers of calls, `initiators` start rounds."""
    return Partial(_partial(row["quorum"]), len(row["calls"]), row["calls"], row.get("initiators"))


SMALL, LARGE = (configurations("partial", size, _machine, prepare) for size in ("small", "large"))
NETWORKS = {"at once": AT_ONCE, "usual": USUAL, "reordered": REORDERED, "reordered and doubled": WILD}


def _setting(chosen: dict[str, Any]) -> PartialAllReduce:
    missed, every = chosen["missed"]
    names = {name: chosen[name] for name in ("quorum", "count")}
    setting = _partial({**names, "missed": missed, "synchronize_every": every})
    return replace(setting, staleness=chosen["staleness"]) if setting.keeps_equal else setting


def _possible(chosen: dict[str, Any]) -> bool:
    """Exclude settings that a quorum rejects, and three workers with delayed messages, which have too many states."""
    setting = _setting(chosen)
    if not setting.keeps_equal and chosen["staleness"] > 1:
        return False  # no queue whose length could vary
    try:
        setting.check()
    except InputError:
        return False
    if chosen["initiators"] != (0,) and setting.quorum is not QuorumStart.MAJORITY:
        return False  # no initiator is drawn
    return len(chosen["calls"]) == 2 or bool(chosen["wire"] == "at once")


def _make(words: str, chosen: dict[str, Any]) -> Configuration:
    machine = Partial(_setting(chosen), len(chosen["calls"]), chosen["calls"], chosen["initiators"])
    return Configuration(words, machine, prepare, NETWORKS[chosen["wire"]])


FACTORS = Factors(levels_of("partial"), _make, _possible)
"""A level of `calls` lists the number of gradients of each worker."""
