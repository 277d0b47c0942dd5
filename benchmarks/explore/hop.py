"""Properties of Hop's worker for the explorer: gaps, queues, tokens and acknowledgements."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.explore.covering import Factors, convert, levels_of
from benchmarks.explore.explorer import Around, Configuration, Exploration, Target, configurations, fail_stop
from benchmarks.explore.reductions import Hop
from benchmarks.explore.search import NoDeadlock, Pair, PerPair, PerProcess, Property, through
from benchmarks.explore.system import Network
from partreduce.schedulers.protocols.base import Note, Outcome, Received, Send
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import (
    ENTERING,
    REDUCING,
    SENDING,
    Ack,
    Advance,
    HopState,
    Reduce,
    SendUpdate,
    Token,
    Update,
    check_setting,
)
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.iteration_gap import IterationGap, SkipPolicy
from partreduce.verify.checker.refusal import Work
from partreduce.verify.gap_bounds import events_of


def hop_properties(machine: Hop, *, reordered: bool = False) -> tuple[Property, ...]:
    """Return all properties that apply to the machine's setting; `reordered`: updates may overtake one another."""
    setting, edges, truth, n = machine.setting, machine.graph.edges, _Truth(machine), machine.num_processes
    pairs = tuple((i, j) for i in range(n) for j in range(n) if i != j)
    listed: list[Property] = [
        NoDeadlock(),
        PerPair("gap within bound", pairs, truth.gap, messages=False),
        PerProcess("enters only what it may", truth.permission),
        PerPair("queue holds what arrived", edges, truth.queue),
        PerProcess("sends to all out-neighbors", truth.sends),
        PerPair("update queue within capacity", edges, truth.update_capacity),
    ]
    if not reordered:
        listed.append(PerPair("each update sent once, in order", edges, truth.order))
    if setting.max_ig is not None:
        listed.append(PerPair("tokens conserved", edges, truth.tokens))
        listed.append(PerPair("token queue within capacity", edges, truth.token_capacity))
    if setting.skip is not None:
        listed.append(PerPair("skips pass no one", edges, truth.passes_nobody, messages=False))
        listed.append(PerProcess("skip within its limit", truth.skip))
    if setting.notify_ack:
        listed.append(PerPair("acknowledged once reduced", edges, truth.acknowledgements))
    return tuple(listed)


Matrix = tuple[tuple[int | None, ...], ...]


def exact_bounds(graph: Digraph, setting: IterationGap) -> Matrix:
    """Return a matrix: entry [i][j] is the largest possible Step(i) − Step(j), None if unbounded. O(n·edges·log)."""
    events, workers = events_of(graph, setting), range(graph.num_workers)
    columns = [events.leads(j, workers, Work("gap", sys.maxsize)) for j in workers]
    return tuple(tuple(columns[j].get(i) for j in workers) for i in workers)


class _Truth:
    """Checks of a machine's states; each method returns None or what is wrong."""

    def __init__(self, machine: Hop) -> None:
        self.machine, self.graph, self.setting = machine, machine.graph, machine.setting
        self.bounds: Matrix = exact_bounds(self.graph, self.setting)
        self.spare = self.setting.backups(machine.num_processes)
        self.split = machine.fine or self.setting.notify_ack

    def gap(self, pair: Pair) -> str | None:
        i, a, j, b, _, _ = pair
        gap, bound = a.step - b.step, self.bounds[i][j]
        if bound is None or gap <= bound:
            return None
        return f"worker {i} is {gap} steps ahead of worker {j}; the bound is {bound}"

    def permission(self, v: int, state: HopState) -> str | None:
        """A worker may do exactly what its queues allow: no more (safety), and no less (no needless waiting)."""
        offered = set(self.machine.ready(v, state))
        allowed = self._allowed(state, len(self.graph.sources[v]) - self.spare[v])
        if offered == allowed:
            return None
        too_much, missing = offered - allowed, allowed - offered
        return f"worker {v} in {state}: offers {sorted(map(str, too_much))} too much, lacks {sorted(map(str, missing))}"

    def _allowed(self, state: HopState, needed: int) -> set[object]:
        """Return the events that the paper's text allows, from the queues' contents as sets of steps."""
        setting, oldest = self.setting, state.step - self.setting.staleness
        held = [{oldest + b for b in range(queue.bit_length()) if queue >> b & 1} for queue in state.updates]

        def reducible(step: int) -> bool:
            if setting.staleness:
                return sum(any(k >= step - setting.staleness for k in queue) for queue in held) >= needed
            return sum(step in queue for queue in held) >= needed

        if self.split and state.stage == SENDING:
            return {SendUpdate()} if not setting.notify_ack or all(state.acked) else set()
        if self.split and state.stage == REDUCING:
            return {Reduce()} if reducible(state.step) else set()
        if not self.split and not reducible(state.step):
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

    def sends(self, v: int, state: HopState) -> str | None:
        """An update is sent to all out-neighbors."""
        for event in self.machine.ready(v, state):
            after, actions = self.machine.step(v, state, event)
            sent = [(a.to, a.message.step) for a in actions if isinstance(a, Send) and isinstance(a.message, Update)]
            sends = isinstance(event, SendUpdate) or (isinstance(event, Advance) and not self.split)
            due = [(w, after.step) for w in self.graph.targets[v]] if sends else []
            if sent != due:
                return f"worker {v} in {state} sends updates {sent}; due are {due}"
        return None

    def passes_nobody(self, pair: Pair) -> str | None:
        """A skip never passes an out-neighbor, wherever its tokens are."""
        u, a, v, b, _, _ = pair
        for event in self.machine.ready(u, a):
            if isinstance(event, Advance) and event.by > 1 and a.step + event.by > b.step:
                return f"worker {u} may skip to step {a.step + event.by}; worker {v} is in step {b.step}"
        return None

    def skip(self, v: int, state: HopState) -> str | None:
        assert self.setting.skip is not None, "a property of settings that skip"
        by = max((event.by for event in self.machine.ready(v, state) if isinstance(event, Advance)), default=1)
        return None if by <= self.setting.skip.limit else f"worker {v} may skip {by} steps of {self.setting.skip.limit}"

    def _last_sent(self, state: HopState) -> int:
        return state.step - 1 if self.split and state.stage == SENDING else state.step

    def queue(self, pair: Pair) -> str | None:
        """A queue holds exactly the updates that were sent, have arrived and are still useful.

        Skipped updates were never sent, because their worker knew that the receiver was past their step. So without
        staleness none is missing from the receiver's step on. Under staleness the newest update stands for all, and a
        worker that has sent in its step has sent something at least as new.
        """
        u, a, v, b, there, _ = pair
        staleness, queue = self.setting.staleness, b.updates[self.graph.sources[v].index(u)]
        waiting = {m.step for m in there if isinstance(m, Update)}
        oldest = b.step - staleness
        sent = [k for k in range(oldest, self._last_sent(a) + 1) if k not in waiting]
        held = [oldest + bit for bit in range(queue.bit_length()) if queue >> bit & 1]
        expected = sent[-1:] if staleness else sent
        is_sure = self.setting.skip is None or not staleness or expected == [a.step]
        if not is_sure and len(held) <= 1 and set(held) <= set(sent):
            return None
        if held == expected or (not held and expected and expected[-1] < 0):
            return None  # steps below 0 may lie before the start of the run, where nothing was sent
        return f"queue {u} → {v} holds updates of steps {held}; it should hold {expected}"

    def order(self, pair: Pair) -> str | None:
        u, a, v, _, there, _ = pair
        steps = [m.step for m in there if isinstance(m, Update)]
        if steps == sorted(set(steps)) and (not steps or steps[-1] <= self._last_sent(a)):
            return None
        return f"updates of steps {steps} are on their way {u} → {v}, the sender is in step {a.step}"

    def update_capacity(self, pair: Pair) -> str | None:
        """Updates of the receiver's step or later, in the queue or on their way, fit the proved capacity."""
        u, _, v, b, there, _ = pair
        limit = _plus(self.bounds[u][v], 1)
        queue = b.updates[self.graph.sources[v].index(u)] >> self.setting.staleness
        count = queue.bit_count() + sum(1 for m in there if isinstance(m, Update) and m.step >= b.step)
        if limit is None or count <= limit:
            return None
        return f"{count} updates wait for worker {v} from worker {u}; the capacity is {limit}"

    def _tokens(self, pair: Pair) -> tuple[int, int]:
        """Return (tokens of the second worker that the first holds, tokens on their way to it)."""
        held = pair.first_state.tokens[self.graph.targets[pair.first].index(pair.second)]
        return held, sum(m.count for m in pair.back if isinstance(m, Token))

    def tokens(self, pair: Pair) -> str | None:
        """Tokens held and on their way are max_ig + Step(giver) − Step(taker): none is lost, none is created."""
        u, a, v, b, _, _ = pair
        held, moving = self._tokens(pair)
        right = (self.setting.max_ig or 0) + b.step - a.step
        if held + moving == right:
            return None
        return f"worker {u} has {held} tokens of worker {v} and {moving} on their way; there should be {right} in all"

    def token_capacity(self, pair: Pair) -> str | None:
        u, _, v, _, _, _ = pair
        held, moving = self._tokens(pair)
        limit, count = _plus(self.bounds[v][u], self.setting.max_ig or 0), held + moving
        if held >= 0 and (limit is None or count <= limit):
            return None
        return f"{count} tokens of worker {v} wait for worker {u} ({held} in hand); the capacity is {limit}"

    def acknowledgements(self, pair: Pair) -> str | None:
        """Every update is acknowledged once, after it is reduced."""
        u, a, v, b, _, back = pair
        acked = a.acked[self.graph.targets[u].index(v)]
        reduced = b.step if b.stage == ENTERING else b.step - 1
        open_ = self._last_sent(a) - reduced + sum(1 for m in back if isinstance(m, Ack))
        if open_ == (0 if acked else 1):
            return None
        word = "has" if acked else "has not"
        return f"worker {u} {word} its acknowledgement from worker {v}, with {open_} updates sent, not yet settled"


def _plus(bound: int | None, amount: int) -> int | None:
    return None if bound is None else bound + amount


NOTHING = -(2**60)
"""Stands for no useful update received."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker, and for every in-neighbor the newest update received since the last reduce (or `NOTHING`)."""

    worker: HopState
    arrived: tuple[int, ...]


class Recording(Around):
    """A machine of Hop's workers with a `WorkerRecord` for each."""

    def inner(self, state: WorkerRecord) -> HopState:
        return state.worker

    def start(self, process: int) -> Outcome[WorkerRecord]:
        state, actions = self.machine.start(process)
        return WorkerRecord(state, (NOTHING,) * len(self.machine.graph.sources[process])), actions

    def step(self, process: int, state: WorkerRecord, event: object) -> Outcome[WorkerRecord]:
        """Do what the machine does; a reduce, also one before a skip, empties the record."""
        after, actions = self.machine.step(process, state.worker, event)
        arrived, staleness = state.arrived, self.machine.setting.staleness
        if not staleness:  # a reduce takes the updates of its step, whenever they came
            return WorkerRecord(after, arrived), actions
        if isinstance(event, Received) and isinstance(event.message, Update):
            place = self.machine.graph.sources[process].index(event.source)
            held = state.worker.step - staleness + state.worker.updates[place].bit_length() - 1
            if event.message.step >= held or not state.worker.updates[place]:  # else a newer one has overtaken it
                arrived = (*arrived[:place], max(arrived[place], event.message.step), *arrived[place + 1 :])
        elif isinstance(event, Reduce) or (isinstance(event, Advance) and event.by > 1):
            arrived = (NOTHING,) * len(arrived)
        oldest = after.step - staleness
        return WorkerRecord(after, tuple(k if k >= oldest else NOTHING for k in arrived)), actions

    def shifted(self, process: int, state: WorkerRecord, by: int) -> WorkerRecord:
        arrived = tuple(k - by if k > NOTHING else k for k in state.arrived)
        return WorkerRecord(self.machine.shifted(process, state.worker, by), arrived)

    def renamed(self, process: int, state: WorkerRecord, permutation: tuple[int, ...]) -> WorkerRecord:
        places = {permutation[u]: place for place, u in enumerate(self.machine.graph.sources[process])}
        arrived = tuple(state.arrived[places[u]] for u in self.machine.graph.sources[permutation[process]])
        return WorkerRecord(self.machine.renamed(process, state.worker, permutation), arrived)


def takes_what_came(machine: Hop) -> PerProcess:
    """A reduce averages each in-neighbor's newest update since the last reduce, if it is new enough.

    Without staleness, it averages the updates of its step.
    """
    setting = machine.setting

    def check(v: int, state: WorkerRecord) -> str | None:
        worker = state.worker
        for event in machine.ready(v, worker):
            by = event.by if isinstance(event, Advance) else 1
            if isinstance(event, SendUpdate) or (isinstance(event, Advance) and by == 1):
                continue
            notes: list[Any] = [a.what for a in machine.step(v, worker, event)[1] if isinstance(a, Note)]
            step = worker.step + by - 1
            word = "reduced" if isinstance(event, Reduce) else "renewed"
            notified = [what for what in notes if what[0] != "entered"]
            right = (word, step, due_average(v, state, step))
            if notified != [right]:
                return f"worker {v} tells {notified}; it should tell {right}"
        return None

    def due_average(v: int, state: WorkerRecord, step: int) -> tuple[tuple[int, int], ...]:
        fitting, first = [], state.worker.step - setting.staleness
        for u, queue, arrived in zip(machine.graph.sources[v], state.worker.updates, state.arrived, strict=True):
            held = {first + bit for bit in range(queue.bit_length()) if queue >> bit & 1}
            served = arrived
            if not setting.staleness:
                served = step if step in held else NOTHING
            if served >= step - setting.staleness:
                fitting.append((u, served))
        return tuple(fitting)

    return PerProcess("averages what came", check)


def prepare(machine: Hop, network: Network) -> Target:
    properties = hop_properties(machine, reordered=network.reorder)
    found = Target(machine, properties)
    if machine.fine or machine.setting.notify_ack:
        recording = Recording(machine)
        of_workers = (through(prop, recording.inner) for prop in properties)
        found = Target(recording, (*of_workers, takes_what_came(machine)))
    return fail_stop(found) if network.suspicions else found


def is_tight(configuration: Configuration, found: Exploration) -> bool:
    """Return whether the exploration attains the exact bound of every pair."""
    return found.gaps == exact_bounds(configuration.machine.graph, configuration.machine.setting)


def ring(n: int) -> Digraph:
    return Digraph.of(n, [(i, (i + 1) % n) for i in range(n)])


def both_ways(n: int) -> Digraph:
    return Digraph.undirected(n, [(i, (i + 1) % n) for i in range(n)])


def diamond() -> Digraph:
    """Return the smallest graph on which Hop's Theorem 2 is not tight: 0 sends to 1 and 2, both to 3, and 3 to 0."""
    return Digraph.of(4, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 0)])


PAIR = Digraph.undirected(2, [(0, 1)])
PATH = Digraph.undirected(3, [(0, 1), (1, 2)])

GRAPHS = {"pair": PAIR, "path": PATH, "diamond": diamond()}


def _graph(name: str) -> Digraph:
    kind, _, size = name.rpartition(" ")
    return GRAPHS[name] if name in GRAPHS else {"ring": ring, "both ways": both_ways}[kind](int(size))


def _gap(row: dict[str, Any]) -> IterationGap:
    return IterationGap(**convert(row, skip=lambda skip: SkipPolicy(**skip)))


def _machine(row: dict[str, Any]) -> Hop:
    return Hop(_graph(row["graph"]), _gap(row["gap"]), fine=row.get("fine", False))


SMALL, LARGE = (configurations("hop", size, _machine, prepare) for size in ("small", "large"))


def _possible(chosen: dict[str, Any]) -> bool:
    """Exclude settings that Hop rejects, that may halt by their own rules, and those with infinitely many states."""
    graph, setting = _graph(chosen["graph"]), _setting(chosen)
    try:
        check_setting(graph, setting)
    except InputError:
        return False
    backed = any(setting.backups(graph.num_workers))
    if backed and (setting.max_ig is None or not graph.is_symmetric):
        return False  # gaps without bound, or updates that wait without bound, and tokens that do not
    if graph == diamond() and (setting.skip is not None or setting.max_ig == 2 or chosen["suspicions"]):
        return False  # more states than the others together
    # An update that no worker needs may be overtaken for ever, or lie before a worker that has ended.
    lasting = backed or setting.skip is not None
    return not (lasting and chosen["suspicions"]) and not ((lasting or setting.staleness) and chosen["wire"])


def _setting(chosen: dict[str, Any]) -> IterationGap:
    workers, backup = range(_graph(chosen["graph"]).num_workers), chosen["backup"]
    spare = tuple(int(backup == "all" or (backup == "one" and v == 0)) for v in workers)
    names = ("max_ig", "staleness", "notify_ack", "skip")
    return _gap({name: chosen[name] for name in names} | {"backup": spare})


def _make(words: str, chosen: dict[str, Any]) -> Configuration:
    network = Network(reorder=chosen["wire"], suspicions=chosen["suspicions"])
    machine = Hop(_graph(chosen["graph"]), _setting(chosen), fine=chosen["fine"])
    return Configuration(words, machine, prepare, network, chosen["symmetry"])


FACTORS = Factors(levels_of("hop"), _make, _possible)
