"""Properties of the group generator and its workers for the explorer, each stated from Prague's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.explore.covering import Factors, convert, levels_of
from benchmarks.explore.explorer import USUAL, Configuration, Target, configurations
from benchmarks.explore.reductions import GroupSystem
from benchmarks.explore.search import NoDeadlock, Pair, PerPair, PerProcess, PerState, Progress, Property, View
from benchmarks.explore.system import Network
from partreduce.schedulers.protocols.base import Crashed, Received, Send
from partreduce.schedulers.protocols.group_generator.draw import PATIENCE, GeneratorSetting
from partreduce.schedulers.protocols.group_generator.service import (
    ACTIVE,
    DEAD,
    LEFT,
    Ask,
    Bye,
    Evicted,
    GeneratorState,
    Grant,
    Void,
)
from partreduce.schedulers.protocols.group_generator.worker import (
    ASKED,
    ENDED,
    EVICTED,
    GRANTED,
    MEETING,
    Broke,
    Retry,
    WorkerState,
)
from partreduce.topo.strategies.dynamic_groups import GroupSplit, SlowWorkerPolicy


def generator_properties(system: GroupSystem, *, lossy: bool = False) -> tuple[Property, ...]:
    """Return all properties that apply to a system; `lossy`: messages may be lost and repeated."""
    n = system.setting.num_workers
    with_service = tuple((worker, n) for worker in range(n))
    pairs = tuple((u, v) for u in range(n) for v in range(n) if u != v)
    halves = tuple(pair for pair in pairs if pair[0] < pair[1])
    listed: list[Property] = [
        _of_service(n, "no worker in two running groups", _one_running_group),
        _of_service(n, "lock vector is the union of the running groups", _locks_are_running),
        _of_service(n, "one total order in all buffers", _one_order),
        _of_service(n, "groups have two members or more, all taking part", _living_groups),
        _of_service(n, "nothing waits that could start", _eager),
        _of_service(n, "who waits, waits for an older group", _waits_for_older),
        _of_service(n, "every request is answered once, or waits", _answered_or_waiting),
        PerPair("groups that workers are in are running", with_service, lambda pair: _known_grant(pair, lossy=lossy)),
        PerPair("members agree on their group", halves, _agreed_members, messages=False),
        PerPair("requests are received once, in order", with_service, partial(_in_step, system), messages=False),
        PerPair("costs are known", with_service, partial(_known_cost, system), messages=False),
        PerState("no group is lost", _no_group_is_lost),
    ]
    if system.collective:
        listed.append(PerPair("a group ends when all have entered it", pairs, _met_by_all, messages=False))
    if not system.breakers:  # else groups that were drawn in time may still be dissolved
        listed.append(_of_service(n, "no worker goes long without a group", _patient))
    if system.rounds is not None:
        listed.append(PerPair("rounds are counted", with_service, _count_rounds, messages=False))
    if system.rounds is None:
        listed += [
            Progress(f"worker {worker} averages again and again", partial(_averages, worker)) for worker in range(n)
        ]
    elif system.timeouts:
        listed.append(PerState("after a halt, asking again leads to the end", partial(_recovers, system)))
    else:
        listed.append(NoDeadlock())
    return tuple(listed)


def _of_service(n: int, name: str, check: Callable[[GeneratorState], str | None]) -> PerProcess:
    return PerProcess(name, lambda process, state: check(state[0]) if process == n else None)


def _one_running_group(state: GeneratorState) -> str | None:
    seen: dict[int, int] = {}
    for group in state.buffers.groups:
        for worker in group.active:
            if worker in seen:
                return f"worker {worker} is in the running groups {seen[worker]} and {group.seq}"
            seen[worker] = group.seq
    return None


def _locks_are_running(state: GeneratorState) -> str | None:
    running = {worker for group in state.buffers.groups for worker in group.active}
    locked = {worker for worker, bit in enumerate(state.buffers.locks) if bit}
    return None if running == locked else f"bits {sorted(locked)} are set; running are {sorted(running)}"


def _one_order(state: GeneratorState) -> str | None:
    seqs = [group.seq for group in state.buffers.groups]
    if seqs != sorted(set(seqs)) or any(seq >= state.buffers.next_seq for seq in seqs):
        return f"outstanding groups are {seqs}, the next is {state.buffers.next_seq}"
    for worker, buffer in enumerate(state.buffers.buffers):
        right = tuple(g.seq for g in state.buffers.groups if not g.running and worker in g.members)
        if buffer != right:
            return f"the buffer of worker {worker} is {buffer}; its groups are {right}"
        running = [g.seq for g in state.buffers.groups if worker in g.active]
        if buffer and running and buffer[0] < running[0]:
            return f"worker {worker} runs group {running[0]} before group {buffer[0]}"
    return None


def _living_groups(state: GeneratorState) -> str | None:
    for group in state.buffers.groups:
        if len(set(group.members)) < 2:
            return f"group {group.seq} has the members {group.members}"
        for worker in group.active or group.members:
            status = state.status[worker]
            if status == DEAD or (status == LEFT and not group.running):
                return f"worker {worker} has {status}, and group {group.seq} still counts on it"
    return None


def _eager(state: GeneratorState) -> str | None:
    busy: set[int] = set()
    for group in state.buffers.groups:
        if not group.running and busy.isdisjoint(group.members):
            return f"group {group.seq} {group.members} could run"
        busy.update(group.active or group.members)
    return None


def _waits_for_older(state: GeneratorState) -> str | None:
    """A waiting worker's group waits for a running group, or for an older one that waits itself."""
    for worker in state.waiting:
        buffer = state.buffers.buffers[worker]
        if not buffer or state.buffers.locks[worker]:
            return f"worker {worker} waits although nothing holds it back"
        head = next(group for group in state.buffers.groups if group.seq == buffer[0])
        ahead = [s for member in head.members for s in state.buffers.buffers[member] if s < head.seq]
        if not ahead and not any(state.buffers.locks[member] for member in head.members):
            return f"worker {worker} waits for group {head.seq}, which waits for nothing"
    return None


def _answered_or_waiting(state: GeneratorState) -> str | None:
    for worker, request in enumerate(state.requests):
        answer, waits = state.answers[worker], state.waiting.count(worker)
        if state.status[worker] == DEAD:
            if waits:
                return f"worker {worker} is given up and still waits"
        elif waits != (request >= 0 and answer is None):
            return f"worker {worker} stands {waits} times in the queue; the answer to request {request} is {answer}"
        if answer is not None and answer.request != request:
            return f"the answer to request {request} of worker {worker} is kept as {answer}"
        if isinstance(answer, Bye) and (state.buffers.locks[worker] or state.buffers.buffers[worker]):
            return f"worker {worker} was let go while groups wait for it"
    return None


def _patient(state: GeneratorState) -> str | None:
    """A worker that continues to ask is in a group at least once in PATIENCE + 1 requests, while others take part."""
    taking_part = sum(status == ACTIVE for status in state.status)
    for worker, alone in enumerate(state.alone):
        if alone > PATIENCE and taking_part == len(state.status):
            return f"worker {worker} was left alone {alone} times in a row"
    return None


def _count_rounds(pair: Pair) -> str | None:
    """Every round counts once, however often its request is repeated."""
    worker, mine, _, (state, _), _, _ = pair
    if state.requests[worker] != mine.request or state.counts[worker] == mine.rounds + 1:
        return None
    return f"worker {worker} is in round {mine.rounds}; the generator has counted {state.counts[worker]} rounds"


def _known_cost(system: GroupSystem, pair: Pair) -> str | None:
    """With every request the generator learns the present cost of the worker's rounds."""
    worker, mine, _, (state, _), _, _ = pair
    cost = system.cost_of(worker, max(mine.rounds - (not mine.ask.computed), 0))
    if state.requests[worker] != mine.request or state.costs[worker] == cost:
        return None
    return f"a round of worker {worker} costs {cost}; the generator takes it to cost {state.costs[worker]}"


def _known_grant(pair: Pair, *, lossy: bool) -> str | None:
    """A worker is in no group unless the generator holds it to be running, or a message that it ended is on its way.

    If that message was lost, it may be sent again: a repeated request takes the group away.
    """
    worker, mine, _, (state, _), _, back = pair
    notified = [
        m for m in back if isinstance(m, Grant) and m.generation >= mine.generation and m.request == mine.request
    ]
    offered = [(m.seq, m.members) for m in notified] if mine.stage == ASKED else []
    held = [(mine.seq, mine.members)] if mine.stage in (GRANTED, MEETING) else []
    for seq, members in held + offered:
        if seq <= mine.met:
            return f"worker {worker} is given group {seq} after it met group {mine.met}"
        if worker not in members:
            return f"worker {worker} is given group {seq} {members}, to which it does not belong"
        ending = any(isinstance(m, Void) and m.seq == seq for m in back)
        group = next((g for g in state.buffers.groups if g.seq == seq and worker in g.active), None)
        gone = state.status[worker] == DEAD or any(isinstance(m, Evicted) for m in back)
        if group is None and not ending and not gone and not (lossy and _takes_back(state, worker)):
            return f"worker {worker} is in group {seq}, which the generator does not hold to be running"
        if group is not None and group.members != members:
            return f"worker {worker} takes group {seq} to be {members}; it is {group.members}"
    return None


def _takes_back(state: GeneratorState, worker: int) -> bool:
    """Return whether a repeated request would take the group away after the message of its end was lost."""
    answer = state.answers[worker]
    return answer is not None and not isinstance(answer, Grant)


def _agreed_members(pair: Pair) -> str | None:
    u, a, v, b, _, _ = pair
    both = a.stage in (GRANTED, MEETING) and b.stage in (GRANTED, MEETING)
    if both and a.seq == b.seq and a.members != b.members:
        return f"workers {u} and {v} take group {a.seq} to be {a.members} and {b.members}"
    return None


def _met_by_all(pair: Pair) -> str | None:
    """A group is over for one member only after every other member has entered it."""
    u, a, v, b, _, _ = pair
    if b.stage == GRANTED and a.met == b.seq and u in b.members:
        return f"worker {u} is out of group {b.seq}, which worker {v} has not entered"
    return None


def _in_step(system: GroupSystem, pair: Pair) -> str | None:
    """The generator has received the worker's present request or, while that is on its way, the previous one."""
    worker, mine, _, (state, _), _, _ = pair
    last = state.requests[worker]
    known = last == mine.request
    if not known and system.generator.following(last) != mine.request:
        return f"worker {worker} is at request {mine.request}; the generator has received {last}"
    if not known and mine.stage not in (ASKED, EVICTED):
        return f"worker {worker} is {mine.stage} on request {mine.request}, which the generator has not received"
    return None


def _no_group_is_lost(view: View) -> str | None:
    """When all workers have ended, every started group was finished or declared void."""
    *workers, service = view.processes
    if service is None or any(w is not None and w.stage not in (ENDED, EVICTED) for w in workers):
        return None
    state: GeneratorState = service[0]
    if any(isinstance(m, Ask | Crashed) for box in view.in_flight.values() for m in box):
        return None
    left = [g.seq for g in state.buffers.groups if any(workers[w] is not None for w in g.members)]
    if any(worker is None for worker in workers):
        left = [seq for seq in left if state.buffers.group(seq).active == ()]
    return f"all workers have ended and the groups {left} are outstanding" if left else None


def _averages(worker: int, label: Any) -> bool:
    """In a fair endless run every worker is granted a group again and again."""
    return label.process == worker and any(note[0] == "executed" for note in label.notes)


def _recovers(system: GroupSystem, view: View) -> str | None:
    """If nothing moves and workers wait, timeouts of one worker after another bring all of them to the end."""
    n = system.setting.num_workers
    states = list(view.processes)
    if any(view.in_flight.values()) or any(_moves(system, s) for w, s in enumerate(states[:n])) or states[n] is None:
        return None
    for _ in range(2 * n + 2 * (system.rounds or 0)):
        for worker in range(n):
            state = states[worker]
            if state is None:  # the failure detector speaks again as well
                _send(system, states, [(worker, Send(n, Crashed()))])
            if state is not None and state.stage in (ASKED, MEETING):
                _run(system, states, worker, Retry(), replace(state, retries=1))
        if all(state is None or state.stage in (ENDED, EVICTED) for state in states[:n]):
            return None
    stuck = [w for w in range(n) if states[w] is not None and states[w].stage not in (ENDED, EVICTED)]
    return f"asking again never leads workers {stuck} to the end"


def _moves(system: GroupSystem, state: WorkerState | None) -> bool:
    return state is not None and bool([k for k in system.worker.ready(state) if k not in (Retry, Broke)])


def _run(system: GroupSystem, states: list[Any], worker: int, event: object, before: WorkerState) -> None:
    """Apply one event and everything that follows, messages first, in order of sending."""
    states[worker], actions = system.step(worker, before, event)
    _send(system, states, [(worker, a) for a in actions if isinstance(a, Send)])


def _send(system: GroupSystem, states: list[Any], queue: list[tuple[int, Send]]) -> None:
    """Deliver messages and apply what they cause, until nothing moves."""
    n = system.setting.num_workers
    while True:
        for source, send in queue:
            if states[send.to] is not None:
                states[send.to], more = system.step(send.to, states[send.to], Received(source, send.message))
                queue.extend((send.to, a) for a in more if isinstance(a, Send))
        queue = []
        for other in range(n):
            if _moves(system, states[other]):
                event = next(e for e in system.ready(other, states[other]) if not isinstance(e, Retry | Broke))
                states[other], actions = system.step(other, states[other], event)
                queue += [(other, a) for a in actions if isinstance(a, Send)]
        if not queue:
            return


def prepare(system: GroupSystem, network: Network) -> Target:
    return Target(system, generator_properties(system, lossy=network.losses > 0))


def generator(name: str, system: GroupSystem, network: Network = USUAL) -> Configuration:
    return Configuration(name, system, prepare, network)


def random(nodes: tuple[int, ...], size: int = 2, **more: Any) -> GeneratorSetting:
    usual = {"division": GroupSplit.RANDOM, "slow_threshold": None}
    return GeneratorSetting(nodes=nodes, group_size=size, **usual | more)


def split_globally(nodes: tuple[int, ...], size: int = 2) -> GeneratorSetting:
    return random(nodes, size, division=GroupSplit.GLOBAL)


def smart(nodes: tuple[int, ...], slow_threshold: int | None = 1, **more: Any) -> GeneratorSetting:
    """Return a setting with inter-node and intra-node phases and the filter for slow workers."""
    return random(nodes, division=GroupSplit.INTER_INTRA, slow_threshold=slow_threshold, **more)


def meeting(nodes: tuple[int, ...], slow_threshold: int | None = None, **more: Any) -> GeneratorSetting:
    """Return a setting with groups of nodes, and sometimes of all workers."""
    return random(nodes, division=GroupSplit.NODE_THEN_ALL, slow_threshold=slow_threshold, **{"all_every": 1, **more})


KINDS: dict[str, Any] = {"division": GroupSplit, "slow_worker_policy": SlowWorkerPolicy}


def _machine(row: dict[str, Any]) -> GroupSystem:
    return GroupSystem(**{**row, "setting": GeneratorSetting(**convert(row["setting"], **KINDS))})


SMALL, LARGE = (configurations("generator", size, _machine, prepare) for size in ("small", "large"))

LOSSY, OVERTAKING, DOUBLED = "a message lost", "reordered", "a message doubled"


def _possible(chosen: dict[str, Any]) -> bool:
    """Exclude nodes of one worker under node-then-all, which have no groups."""
    return bool(chosen["division"] != GroupSplit.NODE_THEN_ALL or chosen["nodes"] != (0, 0, 1))


def _make(words: str, chosen: dict[str, Any]) -> Configuration:
    """Return the configuration of a row.

    Repeated requests (`timeouts`) are needed with lost messages, and with groups that end while messages overtake: the
    message that a group is void may arrive before the one that it runs.
    """
    slow, nodes, wire = chosen["slow"], chosen["nodes"], chosen["wire"]
    ends_groups = chosen["breakers"] or chosen["crashes"] or chosen["suspicions"]
    setting = {name: chosen[name] for name in ("nodes", "division", "max_known")}
    setting |= {"group_size": 2, "all_every": 1, "slow_threshold": slow and 1}
    setting |= {"slow_worker_policy": slow} if slow else {}
    row = {name: chosen[name] for name in ("rounds", "ways", "breakers", "restarts")}
    row["timeouts"] = wire == LOSSY or bool(wire == OVERTAKING and ends_groups)
    row["costs"] = (*(1,) * (len(nodes) - 1), (10, 1)) if slow == SlowWorkerPolicy.DEFER else ()
    network = Network(
        reorder=wire == OVERTAKING,
        losses=int(wire == LOSSY),
        duplicates=int(wire == DOUBLED),
        crashes=chosen["crashes"],
        suspicions=chosen["suspicions"],
        detect=True,
    )
    return generator(words, _machine({**row, "setting": setting}), network)


FACTORS = Factors(levels_of("generator"), _make, _possible)
"""The factors; their growths fit the logarithms of the numbers of states of 304 rows by least squares."""
TWO_VOIDS = FACTORS.configuration(FACTORS.row(nodes=(0, 0, 0), breakers=(1,), suspicions=1, wire=OVERTAKING))
"""Two groups are void and messages of two generations overtake each other: 190,426 states."""
LARGE = (*LARGE, TWO_VOIDS)
