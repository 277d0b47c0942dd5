"""Breadth-first search over all reachable states; properties are checked on the distinct parts of states.

Under weak fairness an endless run without progress is a reachable fair cycle, so liveness looks for one.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import numpy.typing as npt

from benchmarks.explore.system import Label, Network, State, StoppedProcess, Symmetry, System
from partreduce.schedulers.protocols.base import Note, Received, Send


class View:
    """The processes' states (None after a crash), and the messages in flight, which are decoded on first access.

    `decoded` says whether messages were accessed: most properties depend on the processes alone.
    """

    __slots__ = ("_state", "_system", "decoded", "processes")

    def __init__(self, system: System, state: State) -> None:
        self._system, self._state, self.decoded = system, state, False
        values, stopped = system.locals.values, system.stopped
        self.processes: tuple[Any, ...] = tuple(
            [None if number == stopped else values[number] for number in state[: system.size]]
        )

    @property
    def cut_off(self) -> frozenset[int]:
        """The running processes on the other side of a cut."""
        system, state = self._system, self._state
        if not system.network.cuts:
            return frozenset()
        self.decoded = True
        running = [one for one, value in enumerate(self.processes) if value is not None]
        return frozenset(one for one in running if system.is_cut_off(state, one))

    @property
    def in_flight(self) -> Mapping[tuple[int, int], tuple[Any, ...]]:
        """The messages on their way by (source, destination), oldest first."""
        self.decoded = True
        return {(u, v): messages for u, v, messages in self._system.in_flight(self._state)}


@dataclass(frozen=True, slots=True)
class PerProcess:
    """A property of every single process; `check(process, state)` returns None or what is wrong."""

    name: str
    check: Callable[[int, Any], str | None]


class Pair(NamedTuple):
    """Two processes, their states, and the messages on their way from the first to the second and back."""

    first: int
    first_state: Any
    second: int
    second_state: Any
    there: tuple[Any, ...]
    back: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PerPair:
    """A property of every ordered pair in `pairs`; `check(pair)` returns None or what is wrong.

    Without `messages` the pair has none, and far fewer distinct parts must be checked.
    """

    name: str
    pairs: tuple[tuple[int, int], ...]
    check: Callable[[Pair], str | None]
    messages: bool = True


@dataclass(frozen=True, slots=True)
class PerState:
    """A property of whole states, the slowest kind; `check(view)` returns None or what is wrong."""

    name: str
    check: Callable[[View], str | None]


@dataclass(frozen=True, slots=True)
class NoDeadlock:
    """Every state in which nothing more can happen is a proper end."""

    name: str = "no deadlock"


@dataclass(frozen=True, slots=True)
class Progress:
    """No fair endless run without progress (`starving_loop`); `goal(label)` says whether a transition is progress.

    Fair means: an event that stays possible for a process, and a message that waits, happen at some time. Failures of
    the network need not happen.
    """

    name: str
    goal: Callable[[Any], bool]


Property = PerProcess | PerPair | PerState | NoDeadlock | Progress


def through(prop: Property, inner: Callable[[Any], Any]) -> Property:
    """Return a property of processes or pairs, checked on the states inside theirs (None: not checked)."""
    match prop:
        case PerProcess(name, check):

            def of_one(process: int, state: Any) -> str | None:
                held = inner(state)
                return None if held is None else check(process, held)

            return PerProcess(name, of_one)
        case PerPair(name, pairs, of_pair, messages):

            def of_two(pair: Pair) -> str | None:
                first, second = inner(pair.first_state), inner(pair.second_state)
                if first is None or second is None:
                    return None
                return of_pair(pair._replace(first_state=first, second_state=second))

            return PerPair(name, pairs, of_two, messages)
    return prop


CHUNK = 1 << 15
"""How many new states are checked at once; fewer at first, so that early failures are found soon."""
FIRST_CHUNK = 1 << 8
NO_ERROR = "no error in a transition"
"""The name of the additional finding if the protocol itself raises an error."""


class Breadth:
    """One search. After `run`: `states`, `parents`, `violations` (property name → (state index, what is wrong))."""

    def __init__(
        self,
        machine: Any,
        network: Network,
        *,
        properties: Sequence[Property],
        max_states: int,
        symmetry: bool,
        within: Callable[[View], bool] | None,
    ) -> None:
        self.system = System(machine, network)
        self.properties, self.max_states, self.within = properties, max_states, within
        self.shift = self.system.is_shiftable
        folding = Symmetry(self.system) if symmetry else None
        self.folding = folding if folding is not None and folding.permutations else None
        self.states: list[State] = []
        self.parents = array("q")
        self.violations: dict[str, tuple[int, str]] = {}
        self.transitions = self.seconds = 0.0
        self.depth, self.complete = 0, False
        self.gaps: npt.NDArray[np.int64] | None = None
        self._seen: list[set[tuple[Any, ...]]] = [set() for _ in properties]
        self._settled: dict[State, int] = {}
        """By the processes' states, a bit for each property that holds with any messages."""
        self._inside: dict[State, bool] = {}

    def normal(self, state: State) -> State:
        """Return the state that stands for this one: steps counted from the slowest process, and the least renaming."""
        if self.shift:
            state = self.system.lowered(state)
        return state if self.folding is None else self.folding.canonical(state)

    def run(self) -> None:
        """Search until all states are known, a property fails, or `max_states` are stored."""
        collecting = gc.isenabled()
        gc.disable()  # millions of small live tuples and no cycles: collections would only cost time
        try:
            self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> None:
        began = time.perf_counter()
        start = self.normal(self.system.start())
        known: set[State] = {start}
        self.states.append(start)
        self.parents.append(-1)
        successors, fold = self.system.successors, self.folding
        limited = self.within is not None
        watch_deadlock = any(isinstance(p, NoDeadlock) for p in self.properties)
        index, checked, level_end, transitions = 0, 0, 1, 0
        states, parents = self.states, self.parents
        cut = False
        while index < len(states) and not cut:
            state = states[index]
            try:
                found = successors(state, lower=self.shift)
            except Exception as error:  # noqa: BLE001 - whatever a protocol raises is a finding, with its trace
                self._violated(NO_ERROR, index, f"{type(error).__name__}: {error}")
                break
            transitions += len(found)
            if not found and watch_deadlock and not self.system.finished(state):
                self._violated("no deadlock", index, "nothing more can happen")
                break
            for _, after in found:
                target = after if fold is None else fold.canonical(after)
                if target not in known:
                    if limited and not self._keeps(target):
                        continue
                    if len(states) >= self.max_states:
                        cut = True
                        break
                    known.add(target)
                    states.append(target)
                    parents.append(index)
            index += 1
            if index == level_end:
                self.depth += index < len(states)
                level_end = len(states)
            if len(states) - checked >= min(CHUNK, checked or FIRST_CHUNK):
                self._check(checked, len(states))
                checked = len(states)
                if self.violations:
                    break
        self._check(checked, len(states))
        self.complete = index == len(states) and not cut
        self.transitions, self.seconds = transitions, time.perf_counter() - began

    def _keeps(self, state: State) -> bool:
        """Return whether a state is inside `within`; computed once per tuple of local states."""
        assert self.within is not None, "asked only where there is one"
        key = state[: self.system.size]
        known = self._inside.get(key)
        if known is None:
            known = self._inside[key] = self.within(View(self.system, state))
        return known

    def _violated(self, name: str, index: int, problem: str) -> None:
        if name not in self.violations or index < self.violations[name][0]:
            self.violations[name] = (index, problem)

    def _check(self, first: int, last: int) -> None:
        if first == last:
            return
        rows = np.array(self.states[first:last], dtype=np.int64)
        self._measure_gaps(rows)
        self._check_states(first, last)
        distinct: dict[tuple[int, ...], list[tuple[int, State]]] = {}
        for number, prop in enumerate(self.properties):
            for columns in self._columns_of(prop):
                if columns not in distinct:
                    distinct[columns] = _first_pieces(rows, columns)
                for offset, piece in distinct[columns]:
                    if (columns, piece) not in self._seen[number]:
                        self._seen[number].add((columns, piece))
                        if problem := self._problem(prop, columns, piece):
                            self._violated(prop.name, first + offset, problem)
                            break

    def _check_states(self, first: int, last: int) -> None:
        """Check properties of whole states; if only processes decided an answer, it holds for all states with them."""
        requested = [(1 << number, prop) for number, prop in enumerate(self.properties) if isinstance(prop, PerState)]
        size, settled, everything = self.system.size, self._settled, sum(bit for bit, _ in requested)
        for index in range(first, last) if requested else ():
            state = self.states[index]
            processes = state[:size]
            answered = settled.get(processes, 0)
            if answered == everything:
                continue
            view = View(self.system, state)
            for bit, prop in requested:
                if answered & bit:
                    continue
                view.decoded = False
                if problem := prop.check(view):
                    self._violated(prop.name, index, problem)
                elif not view.decoded:
                    answered |= bit
            settled[processes] = answered

    def _columns_of(self, prop: Property) -> list[tuple[int, ...]]:
        """Return the columns of states that a property uses, one tuple for each process or pair."""
        size = self.system.size
        if isinstance(prop, PerProcess):
            return [(process,) for process in range(size)]
        if not isinstance(prop, PerPair):
            return []
        places = {pair: size + index for index, pair in enumerate(self.system.channels)}
        if not prop.messages:
            return [(u, v) for u, v in prop.pairs]
        return [(u, v, places.get((u, v), -1), places.get((v, u), -1)) for u, v in prop.pairs]

    def _problem(self, prop: Property, columns: tuple[int, ...], piece: tuple[int, ...]) -> str | None:
        values = self.system.locals.values
        if isinstance(prop, PerProcess):
            state = values[piece[0]]
            return None if isinstance(state, StoppedProcess) else prop.check(columns[0], state)
        assert isinstance(prop, PerPair)
        u, v = values[piece[0]], values[piece[1]]
        if isinstance(u, StoppedProcess) or isinstance(v, StoppedProcess):
            return None
        there, back = (self.system.content(p) for p in piece[2:]) if prop.messages else ((), ())
        return prop.check(Pair(columns[0], u, columns[1], v, there, back))

    def _measure_gaps(self, rows: npt.NDArray[np.int64]) -> None:
        """Update the largest clock difference of every ordered pair, over states and their renamings."""
        size = self.system.size
        self.system.clock(0)
        clocks = [self.system.clock(number) for number in range(len(self.system.locals.values))]
        if not self.shift or any(clock is None for clock in clocks[1:]):
            return
        steps = np.array([0, *clocks[1:]], dtype=np.int64)[rows[:, :size]]
        best = np.array([[int((steps[:, i] - steps[:, j]).max()) for j in range(size)] for i in range(size)])
        for p in self.folding.permutations if self.folding else ():
            image = np.zeros_like(best)
            image[np.ix_(p, p)] = best
            best = np.maximum(best, image)
        self.gaps = best if self.gaps is None else np.maximum(self.gaps, best)


def _first_pieces(rows: npt.NDArray[np.int64], columns: tuple[int, ...]) -> list[tuple[int, State]]:
    """Return (index of its first row, content) of each distinct content of some columns, ascending.

    A column −1 is absent; its content is 0.
    """
    key = np.zeros(len(rows), dtype=np.int64)
    span = 1
    for column in (c for c in columns if c >= 0):
        size = int(rows[:, column].max()) + 1
        if span * size >= 2**62:  # renumber before the keys run out of bits
            _, key = np.unique(key, return_inverse=True)
            span = len(rows)
        key = key * size + rows[:, column]
        span *= size
    _, where = np.unique(key, return_index=True)
    where.sort()
    pieces = np.zeros((len(where), len(columns)), dtype=np.int64)
    for number, column in enumerate(columns):
        if column >= 0:
            pieces[:, number] = rows[where, column]
    return list(zip(where.tolist(), map(tuple, pieces.tolist()), strict=True))


MISHAPS = ("lose", "repeat", "crash", "cut")


def starving_loop(search: Breadth, goal: Progress) -> tuple[int, list[Label]] | None:
    """Return a stored state and the labels of a fair cycle through it without the goal, or None.

    Builds the graph of all transitions that are not the goal, takes its strongly connected components and keeps those
    that are fair: every process event and every channel that can move in *all* states of the component also moves on an
    edge inside it. O(states + transitions). Needs a search without symmetry, in which names do not change.
    """
    assert search.folding is None, "fairness is per process: explore without symmetry"
    index_of = {state: number for number, state in enumerate(search.states)}
    graph: nx.MultiDiGraph[int] = nx.MultiDiGraph()
    owed: list[frozenset[object]] = []
    for number, state in enumerate(search.states):
        moves = search.system.successors(state)
        owed.append(frozenset(_action(label) for label, _ in moves if label.verb not in MISHAPS))
        targets = ((label, index_of.get(search.normal(after))) for label, after in moves if not goal.goal(label))
        graph.add_edges_from((number, target, {"label": label}) for label, target in targets if target is not None)
    for inside in nx.strongly_connected_components(graph):
        component, everywhere = graph.subgraph(inside), frozenset.intersection(*(owed[state] for state in inside))
        taken = {_action(label) for *_, label in _edges_of(component)}
        if taken and everywhere <= taken:
            return _fair_cycle(component, everywhere, owed)
    return None


def _edges_of(graph: nx.MultiDiGraph[int]) -> list[tuple[int, int, Label]]:
    return list(graph.edges(data="label"))


def _action(label: Label) -> object:
    """Return what fairness counts as one action: the events of a process, or the deliveries of a channel."""
    return ("channel", label.channel) if label.channel >= 0 else ("process", label.process)


def _fair_cycle(
    component: nx.MultiDiGraph[int], everywhere: frozenset[object], owed: list[frozenset[object]]
) -> tuple[int, list[Label]]:
    """Return (state, labels) of a cycle that takes all actions owed everywhere and passes a state for each other."""
    start = here = min(component)
    labels: list[Label] = []

    def walk(target: int) -> None:
        nonlocal here
        path = nx.shortest_path(component, here, target)
        labels.extend(next(iter(component[u][v].values()))["label"] for u, v in pairwise(path))
        here = target

    edges = _edges_of(component)
    first_of = {_action(label): (source, target, label) for source, target, label in reversed(edges)}
    wanted = [first_of[action] for action in sorted(everywhere, key=str)] or edges[:1]
    for source, target, label in wanted:
        walk(source)
        labels.append(label)
        here = target
    for action in sorted(frozenset.union(*(owed[state] for state in component)) - everywhere, key=str):
        walk(next(state for state in component if action not in owed[state]))
    walk(start)
    return start, labels


def replay_loop(search: Breadth, start: State, labels: list[Label]) -> tuple[list[Label], list[State]]:
    """Return the true labels and states along a cycle of labels from a true state."""
    taken, states = [], [start]
    for label in labels:
        key = (label.verb, label.process, label.channel)
        found, after = next(
            (found, after)
            for found, after in search.system.successors(states[-1])
            if (found.verb, found.process, found.channel) == key and (key[2] >= 0 or found.event == label.event)
        )
        taken.append(found)
        states.append(after)
    return taken, states


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One event: `verb` is step, deliver, lose, repeat, crash, suspect or cut; `text` says what was sent, too."""

    verb: str
    process: int
    text: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A shortest run from the start to a violation, and its last state.

    `loop` is the index of the step at which the run begins to repeat for ever, None for a finite run.
    """

    num_processes: int
    steps: tuple[TraceStep, ...]
    end: View
    loop: int | None = None

    def __str__(self) -> str:
        lines = []
        for number, step in enumerate(self.steps, start=1):
            if self.loop == number - 1:
                lines.append("   -- from here on the run repeats --")
            lines.append(f"{number:3d}. {step.text}")
        lines.append("end: " + "; ".join(f"{p}: {state}" for p, state in enumerate(self.end.processes)))
        for (u, v), messages in self.end.in_flight.items():
            lines.append(f"     in flight {u} → {v}: " + ", ".join(map(str, messages)))
        return "\n".join(lines)


def path_to(search: Breadth, index: int) -> tuple[list[Label], list[State]]:
    """Return the transitions from the start to a stored state, and the states on the way with true steps and names.

    Stored states stand for many (shifted, renamed) ones, so the run is replayed: each next true state is the successor
    whose normal form is the next stored one.
    """
    chain = [index]
    while search.parents[chain[-1]] >= 0:
        chain.append(search.parents[chain[-1]])
    labels: list[Label] = []
    states = [search.system.start()]
    for target in reversed(chain[:-1]):
        label, state = next(
            (label, state)
            for label, state in search.system.successors(states[-1])
            if search.normal(state) == search.states[target]
        )
        labels.append(label)
        states.append(state)
    return labels, states


def trace_of(system: System, labels: list[Label], states: list[State], loop: int | None = None) -> Trace:
    steps = tuple(_describe(system, label, states[number]) for number, label in enumerate(labels))
    return Trace(system.size, steps, View(system, states[-1]), loop)


def _describe(system: System, label: Label, before: State) -> TraceStep:
    event, process, notes = label.event, label.process, label.notes
    sends: list[str] = []
    if event is not None and label.verb != "lose" and system.is_running(before, process):
        _, actions = system.machine.step(process, system.locals.values[before[process]], event)
        sends = [f"sends {a.message} to {a.to}" for a in actions if isinstance(a, Send)]
        notes = tuple(a.what for a in actions if isinstance(a, Note))
    text = {
        "crash": f"{process} crashes",
        "cut": f"{process} is cut off",
        "suspect": f"{process} takes {getattr(event, 'source', None)} for dead",
    }.get(label.verb, f"{process}: {event}")
    if isinstance(event, Received) and label.verb != "suspect":
        verbs = {"deliver": "arrives", "lose": "is lost", "repeat": "arrives and will arrive again"}
        text = f"{event.source} → {process}: {event.message} {verbs[label.verb]}"
    text += "".join(f" ({_note(note)})" for note in notes) + (f", {'; '.join(sends)}" if sends else "")
    return TraceStep(label.verb, process, text)


def _note(what: Any) -> str:
    return " ".join(map(str, what)) if isinstance(what, tuple) else str(what)
