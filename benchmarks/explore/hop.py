"""The properties of Hop's worker: gaps, queues, tokens and acknowledgements, each stated for the explorer."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.explore.search.properties import NoDeadlock, Pair, PerPair, PerProcess, Property
from partreduce.schedulers.protocols.base import Send
from partreduce.schedulers.protocols.hop import (
    ENTERING,
    REDUCING,
    SENDING,
    Ack,
    Advance,
    Hop,
    HopState,
    Reduce,
    SendUpdate,
    Token,
    Update,
)
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import NeighborAveraging, Round
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.gap_bounds import Matrix, exact_bounds


def hop_properties(machine: Hop, *, reordered: bool = False) -> tuple[Property, ...]:
    """All properties that apply to the machine's setting; `reordered` says that updates may overtake one another."""
    setting, graph = machine.setting, machine.graph
    bounds = exact_bounds(graph, setting)
    listed: list[Property] = [
        NoDeadlock(),
        _gap_bound(machine, bounds),
        _permission(machine),
        _queue_truth(machine),
        _sends(machine),
        _update_capacity(machine, bounds),
    ]
    if not reordered:
        listed.append(_updates_in_order(machine))
    if setting.max_ig is not None:
        listed += [_token_balance(machine, setting.max_ig), _token_capacity(machine, bounds, setting.max_ig)]
    if setting.skip is not None:
        listed += [_no_passing(machine), _skip_bound(machine)]
    if setting.notify_ack:
        listed.append(_ack_balance(machine))
    return tuple(listed)


def _gap_bound(machine: Hop, bounds: Matrix) -> PerPair:
    n = machine.num_processes

    def check(pair: Pair) -> str | None:
        i, a, j, b, _, _ = pair
        bound = bounds[i][j]
        gap = a.step - b.step
        if bound is None or gap <= bound:
            return None
        return f"worker {i} is {gap} steps ahead of worker {j}; the bound is {bound}"

    pairs = tuple((i, j) for i in range(n) for j in range(n) if i != j)
    return PerPair("gap within bound", pairs, check, messages=False)


def _permission(machine: Hop) -> PerProcess:
    """A worker may do exactly what its queues allow: nothing more (safety), nothing less (no needless waiting)."""
    setting = machine.setting
    spare = setting.backups(machine.num_processes)

    def check(v: int, state: HopState) -> str | None:
        offered = set(machine.ready(v, state))
        allowed = _allowed(machine, state, len(machine.graph.sources[v]) - spare[v])
        if offered == allowed:
            return None
        too_much, missing = offered - allowed, allowed - offered
        return f"worker {v} in {state}: offers {sorted(map(str, too_much))} too much, lacks {sorted(map(str, missing))}"

    return PerProcess("enters only what it may", check)


def _allowed(machine: Hop, state: HopState, needed: int) -> set[object]:
    """The events that the paper's text allows, from the queues' contents as sets of steps."""
    setting = machine.setting
    split = machine.fine or setting.notify_ack
    oldest = state.step - setting.staleness
    held = [{oldest + b for b in range(queue.bit_length()) if queue >> b & 1} for queue in state.updates]

    def reducible(step: int) -> bool:
        if setting.staleness:
            return sum(any(k >= step - setting.staleness for k in queue) for queue in held) >= needed
        return sum(step in queue for queue in held) >= needed

    if split and state.stage == SENDING:
        return {SendUpdate()} if not setting.notify_ack or all(state.acked) else set()
    if split and state.stage == REDUCING:
        return {Reduce()} if reducible(state.step) else set()
    if not split and not reducible(state.step):
        return set()
    if setting.skip is not None and setting.max_ig is not None:
        behind = [count - setting.max_ig for count in state.tokens]  # no out-neighbor is nearer than this
        jumps = [
            by
            for by in range(setting.skip.trigger, setting.skip.limit + 1)
            if behind
            and all(max(by, setting.skip.behind) <= ahead for ahead in behind)
            and reducible(state.step + by - 1)
        ]
        if jumps:
            return {Advance(max(jumps))}
    return {Advance()} if all(count >= 1 for count in state.tokens) else set()


def _sends(machine: Hop) -> PerProcess:
    """An update goes to all out-neighbors."""
    split = machine.fine or machine.setting.notify_ack

    def check(v: int, state: HopState) -> str | None:
        for event in machine.ready(v, state):
            after, actions = machine.step(v, state, event)
            sent = [(a.to, a.message.step) for a in actions if isinstance(a, Send) and isinstance(a.message, Update)]
            sends = isinstance(event, SendUpdate) or (isinstance(event, Advance) and not split)
            due = [(w, after.step) for w in machine.graph.targets[v]] if sends else []
            if sent != due:
                return f"worker {v} in {state} sends updates {sent}; due are {due}"
        return None

    return PerProcess("sends to all out-neighbors", check)


def _no_passing(machine: Hop) -> PerPair:
    """A skip never passes an out-neighbor, wherever its tokens are."""

    def check(pair: Pair) -> str | None:
        u, a, v, b, _, _ = pair
        for event in machine.ready(u, a):
            if isinstance(event, Advance) and event.by > 1 and a.step + event.by > b.step:
                return f"worker {u} may skip to step {a.step + event.by}; worker {v} is in step {b.step}"
        return None

    return PerPair("skips pass nobody", machine.graph.edges, check, messages=False)


def longest_skips(machine: Hop) -> list[int]:
    """For every worker the most steps that it can ever skip at once, as the checker states it."""
    n = machine.graph.num_workers
    rounds = Round.from_edges(n, [(u, v, Fraction(1, n)) for u, v in machine.graph.edges])
    kept = Schedule("skips", Cluster.regular(n, 1), NeighborAveraging(rounds=(rounds,), sync=machine.setting))
    return list(ScheduleFacts(kept).numbers("skip")["longest"])


def _skip_bound(machine: Hop) -> PerProcess:
    longest = longest_skips(machine)

    def check(v: int, state: HopState) -> str | None:
        for event in machine.ready(v, state):
            if isinstance(event, Advance) and event.by > max(1, longest[v]):
                return f"worker {v} may skip {event.by} steps; the bound is {longest[v]}"
        return None

    return PerProcess("skip within bound", check)


def _last_sent(machine: Hop, state: HopState) -> int:
    split = machine.fine or machine.setting.notify_ack
    return state.step - 1 if split and state.stage == SENDING else state.step


def _queue_truth(machine: Hop) -> PerPair:
    """A queue holds exactly the updates that were sent, have arrived and can still serve.

    Updates that were skipped were never sent. Whoever skipped them knew that the receiver was past their step: so of
    the steps from the receiver's on, which are all that serve without staleness, none is missing.
    Under staleness the newest stands for all, and who has sent in its step has sent something at least as new.
    """
    staleness = machine.setting.staleness

    def check(pair: Pair) -> str | None:
        u, a, v, b, there, _ = pair
        queue = b.updates[machine.graph.sources[v].index(u)]
        waiting = {m.step for m in there if isinstance(m, Update)}
        oldest = b.step - staleness
        sent = [k for k in range(oldest, _last_sent(machine, a) + 1) if k not in waiting]
        held = [oldest + bit for bit in range(queue.bit_length()) if queue >> bit & 1]
        expected = sent[-1:] if staleness else sent
        is_sure = machine.setting.skip is None or not staleness or expected == [a.step]
        if not is_sure and len(held) <= 1 and set(held) <= set(sent):
            return None
        if held == expected or (not held and expected and expected[-1] < 0):
            return None  # steps below 0 may lie before the start of the run, where nothing was sent
        return f"queue {u} → {v} holds updates of steps {held}; it should hold {expected}"

    return PerPair("queue holds what arrived", machine.graph.edges, check)


def _updates_in_order(machine: Hop) -> PerPair:
    def check(pair: Pair) -> str | None:
        u, a, v, _, there, _ = pair
        steps = [m.step for m in there if isinstance(m, Update)]
        if steps == sorted(set(steps)) and (not steps or steps[-1] <= _last_sent(machine, a)):
            return None
        return f"updates of steps {steps} are on their way {u} → {v}, the sender is in step {a.step}"

    return PerPair("each update sent once, in order", machine.graph.edges, check)


def _update_capacity(machine: Hop, bounds: Matrix) -> PerPair:
    """Updates of the receiver's step or later, in the queue or on their way, fit the proved capacity."""

    def check(pair: Pair) -> str | None:
        u, _, v, b, there, _ = pair
        limit = _plus(bounds[u][v], 1)
        queue = b.updates[machine.graph.sources[v].index(u)] >> machine.setting.staleness
        count = queue.bit_count() + sum(1 for m in there if isinstance(m, Update) and m.step >= b.step)
        if limit is None or count <= limit:
            return None
        return f"{count} updates wait for worker {v} from worker {u}; the capacity is {limit}"

    return PerPair("update queue within capacity", machine.graph.edges, check)


def _plus(bound: int | None, amount: int) -> int | None:
    return None if bound is None else bound + amount


def _token_balance(machine: Hop, max_ig: int) -> PerPair:
    """Tokens in hand and on their way are max_ig + Step(giver) − Step(taker): none lost, none made."""

    def check(pair: Pair) -> str | None:
        u, a, v, b, _, back = pair
        held = a.tokens[machine.graph.targets[u].index(v)]
        moving = sum(m.count for m in back if isinstance(m, Token))
        right = max_ig + b.step - a.step
        if held + moving == right:
            return None
        return f"worker {u} has {held} tokens of worker {v} and {moving} on their way; there should be {right} in all"

    return PerPair("tokens conserved", machine.graph.edges, check)


def _token_capacity(machine: Hop, bounds: Matrix, max_ig: int) -> PerPair:
    def check(pair: Pair) -> str | None:
        u, a, v, _, _, back = pair
        limit = _plus(bounds[v][u], max_ig)
        held = a.tokens[machine.graph.targets[u].index(v)]
        count = held + sum(m.count for m in back if isinstance(m, Token))
        if held >= 0 and (limit is None or count <= limit):
            return None
        return f"{count} tokens of worker {v} wait for worker {u} ({held} in hand); the capacity is {limit}"

    return PerPair("token queue within capacity", machine.graph.edges, check)


def _ack_balance(machine: Hop) -> PerPair:
    """Every update is acknowledged once, after it is reduced."""

    def check(pair: Pair) -> str | None:
        u, a, v, b, _, back = pair
        acked = a.acked[machine.graph.targets[u].index(v)]
        reduced = b.step if b.stage == ENTERING else b.step - 1
        open_ = _last_sent(machine, a) - reduced + sum(1 for m in back if isinstance(m, Ack))
        if open_ == (0 if acked else 1):
            return None
        word = "has" if acked else "has not"
        return f"worker {u} {word} its acknowledgement from worker {v}, with {open_} updates sent, not yet settled"

    return PerPair("acknowledged once reduced", machine.graph.edges, check)
