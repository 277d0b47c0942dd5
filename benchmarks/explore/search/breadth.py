"""Breadth-first search over every reachable state, with properties checked on the distinct pieces of states."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.explore.search.network import Network
from benchmarks.explore.search.properties import NoDeadlock, Pair, PerPair, PerProcess, PerState, Property
from benchmarks.explore.search.symmetry import Symmetry
from benchmarks.explore.search.system import State, Stopped, System
from benchmarks.explore.search.view import View

CHUNK = 1 << 15
"""Properties are checked on so many new states at once; at first on fewer, so that what fails soon is soon found."""
FIRST_CHUNK = 1 << 8
NO_ERROR = "no error in a transition"
"""The name of the finding that is added when the protocol itself raises."""


class Breadth:
    """One search. After `run`: `states`, `parents`, `violations` (property name → (state index, what is wrong))."""

    def __init__(
        self,
        machine: Any,  # noqa: ANN401 - any Machine, of any state type
        network: Network,
        *,
        properties: Sequence[Property],
        max_states: int,
        symmetry: bool,
        within: Callable[[View], bool] | None,
        max_gap: int | None,
    ) -> None:
        self.system = System(machine, network)
        self.properties, self.max_states, self.within, self.max_gap = properties, max_states, within, max_gap
        self.shift = self.system.shiftable is not None
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
        """By the processes of a state, the bits of the properties that hold of them whatever is on its way."""
        self._inside: dict[State, bool] = {}

    def normal(self, state: State) -> State:
        """The state that stands for this one: step numbers from the slowest process, least renaming."""
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
        limited = self.within is not None or self.max_gap is not None
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
        """Whether a state is inside the stated limits of the exploration; asked once per tuple of local states."""
        key = state[: self.system.size]
        if self.max_gap is not None and max(clock or 0 for clock in map(self.system.clock, key)) > self.max_gap:
            return False
        if self.within is None:
            return True
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
        """Check whole states; only once where the processes alone gave the answer, which then is that of all such."""
        asked = [(1 << number, prop) for number, prop in enumerate(self.properties) if isinstance(prop, PerState)]
        size, settled, everything = self.system.size, self._settled, sum(bit for bit, _ in asked)
        for index in range(first, last) if asked else ():
            state = self.states[index]
            processes = state[:size]
            answered = settled.get(processes, 0)
            if answered == everything:
                continue
            view = View(self.system, state)
            for bit, prop in asked:
                if answered & bit:
                    continue
                view.decoded = False
                if problem := prop.check(view):
                    self._violated(prop.name, index, problem)
                elif not view.decoded:
                    answered |= bit
            settled[processes] = answered

    def _columns_of(self, prop: Property) -> list[tuple[int, ...]]:
        """The parts of a state that a property looks at, once for each process or pair that it speaks of."""
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
            return None if isinstance(state, Stopped) else prop.check(columns[0], state)
        assert isinstance(prop, PerPair)
        u, v = values[piece[0]], values[piece[1]]
        if isinstance(u, Stopped) or isinstance(v, Stopped):
            return None
        there, back = (self.system.content(p) for p in piece[2:]) if prop.messages else ((), ())
        return prop.check(Pair(columns[0], u, columns[1], v, there, back))

    def _measure_gaps(self, rows: npt.NDArray[np.int64]) -> None:
        """The largest clock difference of every ordered pair, over states and their renamings."""
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
    """The first row of each distinct content of some columns, ascending, with the content.

    −1 stands for a column that is not there; its content is 0.
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
