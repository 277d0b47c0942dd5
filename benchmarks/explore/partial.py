"""The properties of a partial all-reduce: rounds, quorum, lateness, conservation, equal replicas, a common end.

Written from eager-SGD's text (PPoPP 2020, Lemma 5.1: liveness, safety, quorum, staleness) and from what queues of
results add to it. Each gradient has a number, so that a state says where it is.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.explore.search.properties import NoDeadlock, Pair, PerPair, PerProcess, PerState, Property
from benchmarks.explore.search.view import View
from partreduce.schedulers.protocols.partial import Partial, PartialState
from partreduce.schedulers.protocols.partial_sides import CALLED, COMPUTING, MEETING, Begin, Call, End, Finish, Take
from partreduce.topo.strategies.quorum import Counting, Quorum, QuorumStart


def partial_properties(machine: Partial) -> tuple[Property, ...]:
    """All properties that apply to the machine's setting."""
    setting, n = machine.setting, machine.num_processes
    pairs = tuple((u, v) for u in range(n) for v in range(n) if u != v)

    def by_one(name: str, check: Callable[[int, PartialState], str | None]) -> PerProcess:
        return PerProcess(name, check)

    def by_two(name: str, check: Callable[[Pair], str | None]) -> PerPair:
        return PerPair(name, pairs, check, messages=False)

    listed: list[Property] = [
        NoDeadlock(),
        by_one("does what it may", lambda w, state: _does_what_it_may(machine, w, state)),
        by_two("one round at a time, with everybody", _one_round),
        by_one("a quorum has come", lambda _, state: _quorum_has_come(machine, state)),
        by_one("an arrival is for its round", lambda w, state: _arrival_in_place(setting, w, state)),
        PerState("rests only for want of a quorum", lambda view: _rests_rightly(machine, view)),
        by_one("each gradient is in one place", _in_one_place),
        by_two("each gradient counts once", _counts_once),
        by_one("results are taken in order", lambda w, state: _in_order(setting, w, state)),
        by_two("results are the same everywhere", _same_results),
        by_one("a call takes a result", lambda w, state: _call_takes(setting, w, state)),
        by_two("all end at the same round", _same_end),
    ]
    if setting.bound is not None:
        listed.append(by_one("no gradient is too late", lambda w, state: _late(setting, w, state)))
    if setting.keeps_equal:
        listed.append(by_one("queue within capacity", lambda w, state: _capacity(setting, w, state)))
    if setting.synchronise_every:
        listed.append(by_two("models are synchronised together", lambda pair: _synchronised(setting, pair)))
    return tuple(listed)


def _does_what_it_may(machine: Partial, w: int, state: PartialState) -> str | None:
    """The events that the text allows, no more and no fewer."""
    offered = set(machine.ready(w, state))
    allowed: set[object] = set()
    if state.stage == COMPUTING and not state.resting:
        allowed.add(Call() if machine.calls is None or state.calls < machine.calls[w] else End())
    waits = state.stage == CALLED or (state.resting and state.stage == COMPUTING)
    if waits and state.done > state.version:
        allowed.add(Take())
    if state.entered > state.done:
        if all(any(share.round == state.done for share in known) for known in state.shares):
            allowed.add(Finish())
    elif state.activated > state.entered and state.last < 0 and _has_room(machine.setting, state):
        allowed.add(Begin())
    if offered == allowed:
        return None
    return (
        f"worker {w} offers {sorted(map(str, offered - allowed))} too much, lacks {sorted(map(str, allowed - offered))}"
    )


def _has_room(setting: Quorum, state: PartialState) -> bool:
    """Whether nothing of this worker holds up its next round: a full queue, or a model that is not synchronised."""
    if setting.keeps_equal:
        return state.done - state.version < setting.staleness
    every = setting.synchronise_every
    return not every or state.synchronised == state.entered - state.entered % every or state.entered % every != 0


def _one_round(pair: Pair) -> str | None:
    """A round is over for one only after all have entered it, and nobody enters one before the last is over."""
    u, a, v, b, _, _ = pair
    if not 0 <= a.entered - a.done <= 1:
        return f"worker {u} has entered {a.entered} rounds and is done with {a.done}"
    if a.done > b.entered:
        return f"worker {u} is done with round {a.done - 1}, which worker {v} has not entered"
    return None


def _quorum_has_come(machine: Partial, state: PartialState) -> str | None:
    """Whose arrivals a round asks for have a gradient in it, or their end."""
    if state.entered == state.done or not all(known and known[0].round == state.done for known in state.shares):
        return None
    going_on = [v for v in range(machine.num_processes) if not state.ended[v]]
    come = [v for v in going_on if state.shares[v][0].gradients or state.shares[v][0].ended]
    quorum = machine.setting.quorum
    needed = min(quorum, len(going_on)) if isinstance(quorum, int) else 1
    if len(come) < needed:
        return f"round {state.done} has something of workers {come}; {needed} of {going_on} are needed"
    if quorum is QuorumStart.MAJORITY and (drawn := _drawn(machine, state.done, going_on)) not in come:
        return f"round {state.done} has something of workers {come}, but nothing of worker {drawn}, who starts it"
    return None


def _drawn(machine: Partial, round_: int, going_on: list[int]) -> int:
    """Who starts a round under majority: the first worker from the drawn one on that has not ended."""
    n = machine.num_processes
    first = machine.initiators[round_ % len(machine.initiators)] if machine.initiators else 0
    return min(going_on, key=lambda v: (v - first) % n)


def _arrival_in_place(setting: Quorum, w: int, state: PartialState) -> str | None:
    """Whoever has something for the open round counts for it; by call only if it is the call of that round."""
    counts = state.arrived[w]
    if counts > state.entered + 1:
        return f"worker {w} counts for round {counts - 1}; its next is {state.entered}"
    is_in_time = setting.count is Counting.OPEN_ROUND or state.calls - 1 == state.entered
    if state.buffer and is_in_time and counts != state.entered + 1:
        return f"worker {w} has gradients {state.buffer} for round {state.entered} and counts for round {counts - 1}"
    if setting.count is Counting.CALL and not state.resting and counts > state.calls:
        return f"worker {w} has made {state.calls} calls and counts for round {counts - 1}"
    return None


def _rests_rightly(machine: Partial, view: View) -> str | None:
    """Where no thread can move and no message is on its way, those who wait are too few to start a round.

    So solo waits for nobody else's gradient, a quorum of Q for Q, and a drawn worker's round for that worker. Only full
    queues, and models that are not synchronised, hold a round up that is activated.
    """
    if any(view.in_flight.values()):
        return None
    states = view.processes
    if any({Begin(), Finish()} & set(machine.ready(w, state)) for w, state in enumerate(states)):
        return None
    held = [w for w, state in enumerate(states) if not state.is_running and not _has_room(machine.setting, state)]
    running = max(state.entered for state in states)
    behind = [w for w, state in enumerate(states) if state.entered < running]
    if behind or any(state.is_running for state in states):
        return None if set(behind) & set(held) else f"round {running - 1} runs; workers {behind} do not enter it"
    if held or any(state.last >= 0 for state in states):
        return None
    going_on = [w for w, ended in enumerate(states[0].ended) if not ended]
    waiting = [
        w for w in going_on if states[w].resting or (states[w].stage == CALLED and states[w].done == states[w].version)
    ]
    quorum = machine.setting.quorum
    if isinstance(quorum, int):
        is_enough = len(waiting) >= min(quorum, len(going_on))
    elif quorum is QuorumStart.MAJORITY:
        is_enough = _drawn(machine, running, going_on) in waiting
    else:
        is_enough = bool(waiting)
    return f"workers {waiting} wait for round {running}, and nothing starts it" if is_enough else None


def _in_one_place(w: int, state: PartialState) -> str | None:
    """A worker's gradients that no result has are in the sum that runs or in its buffer, each once and in order."""
    running = state.shares[w][0].gradients if state.entered > state.done and state.shares[w] else ()
    if state.entered > state.done and not state.shares[w]:
        return f"worker {w} is in round {state.done} without a share"
    there, right = (*running, *state.buffer), tuple(range(state.counted[w], state.calls))
    return None if there == right else f"worker {w} holds gradients {there}; results have not yet {right}"


def _counts_once(pair: Pair) -> str | None:
    """What results have counted agrees, and what a share adds goes on from there."""
    u, a, v, b, _, _ = pair
    for share in b.shares[u]:
        own = next((other for other in a.shares[u] if other.round == share.round), None)
        if own is not None and own != share:
            return f"worker {v} sums {share} of worker {u}, which brought {own}"
        if share.round == b.done and share.gradients != tuple(range(b.counted[u], b.counted[u] + len(share.gradients))):
            return f"round {share.round} at worker {v} takes gradients {share.gradients} after {b.counted[u]} of them"
    if a.done == b.done and a.counted != b.counted:
        return f"after {a.done} rounds worker {u} has counted {a.counted}, worker {v} {b.counted}"
    if a.done == b.done - 1 and a.entered > a.done and b.counted[u] != a.counted[u] + len(a.shares[u][0].gradients):
        return f"worker {v} has counted {b.counted[u]} gradients of worker {u} in {b.done} rounds"
    return None


def _in_order(setting: Quorum, w: int, state: PartialState) -> str | None:
    """Every result waits, in order, until it is taken; with latest only the newest."""
    held = tuple(result.round for result in state.results)
    if setting.keeps_equal:
        right = tuple(range(state.version, state.done))
    elif setting.count is Counting.CALL and not state.resting:
        right = (state.done - 1,) if state.done else ()
    else:
        right = (state.done - 1,) if state.done > state.version else ()
    if held == right or (not setting.keeps_equal and state.version == state.done):
        return None
    return f"results {held} wait for worker {w}, which has taken {state.version} of {state.done}"


def _same_results(pair: Pair) -> str | None:
    """Equal replicas: in each round all have the same sum, and know the same of who has ended."""
    u, a, v, b, _, _ = pair
    other = {result.round: result for result in b.results}
    for result in a.results:
        if other.get(result.round, result) != result:
            return f"round {result.round} is {result.counts} at worker {u}, {other[result.round].counts} at worker {v}"
    if a.done == b.done and (a.ended, a.last) != (b.ended, b.last):
        return f"after {a.done} rounds workers {u} and {v} differ on who has ended: {a.ended}, {b.ended}"
    return None


def _call_takes(setting: Quorum, w: int, state: PartialState) -> str | None:
    """Nobody computes on without a result; by call every worker calls once in each round."""
    waits = state.stage == CALLED
    if state.calls - waits > state.version:
        return f"worker {w} has made {state.calls} calls and taken {state.version} rounds"
    if setting.count is Counting.CALL and not state.resting and state.calls - waits != state.version:
        return f"worker {w} has taken {state.version} rounds in {state.calls} calls"
    return None


def _same_end(pair: Pair) -> str | None:
    """One round is the last of all; it leaves no gradient behind."""
    u, a, v, b, _, _ = pair
    if a.last < 0:
        return None
    if b.last not in (-1, a.last) or a.entered > a.last + 1 or b.entered > a.last + 1:
        return f"worker {u} ends at round {a.last}, worker {v} at {b.last}; they have entered {a.entered}, {b.entered}"
    if not (a.resting and b.resting) or a.buffer or b.buffer:
        return (
            f"round {a.last} is the last one, and workers {u} and {v} have {a.buffer}, {b.buffer} left, or more to come"
        )
    if a.counted[v] != b.calls:
        return f"worker {v} has computed {b.calls} gradients; {a.counted[v]} are in the sums"
    return None


def _late(setting: Quorum, w: int, state: PartialState) -> str | None:
    """So many rounds lie between a gradient's weights and its own round, at most."""
    assert setting.bound is not None
    ages = [state.entered - state.oldest] if state.buffer else []
    ages += [share.round - share.oldest for share in state.shares[w] if share.gradients]
    if max(ages, default=0) > setting.bound:
        return f"a gradient of worker {w} is {max(ages)} rounds late; the bound is {setting.bound}"
    return None


def _capacity(setting: Quorum, w: int, state: PartialState) -> str | None:
    used = len(state.results) + state.is_running
    if used <= setting.staleness:
        return None
    return f"{used} results have places at worker {w}; its queue holds {setting.staleness}"


def _synchronised(setting: Quorum, pair: Pair) -> str | None:
    """A mean of models has all of them, and rounds go on only after it."""
    u, a, v, b, _, _ = pair
    every = setting.synchronise_every
    if a.synchronised > b.version:
        return f"worker {u} is synchronised at round {a.synchronised}; worker {v} has taken {b.version}"
    due = max(a.entered - 1, 0) // every * every
    if a.synchronised < due or (a.stage != MEETING and a.version // every * every > a.synchronised):
        return f"worker {u} has entered {a.entered} rounds, taken {a.version}, and is synchronised at {a.synchronised}"
    return None
