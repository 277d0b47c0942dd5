"""Symmetry: states that differ only by a renaming of processes under which the machine is the same are one state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preduce.schedulers.protocols.base import Symmetric
from preduce.verify.search.system import Stopped

if TYPE_CHECKING:
    from preduce.verify.search.system import State, System


class Symmetry:
    """The renamings of one system. `canonical` returns the least state among all renamed ones."""

    def __init__(self, system: System) -> None:
        self.system = system
        machine: Any = system.machine
        identity = tuple(range(system.size))
        found = machine.symmetries() if isinstance(machine, Symmetric) else ()
        self.permutations = [tuple(p) for p in found if tuple(p) != identity]
        places = {pair: system.size + index for index, pair in enumerate(system.channels)}
        self._from: list[list[int]] = []
        for p in self.permutations:
            moved = [0] * (system.size + len(system.channels))
            for process in range(system.size):
                moved[p[process]] = process
            for (u, v), place in places.items():
                moved[places[p[u], p[v]]] = place
            self._from.append(moved)
        self._locals: list[dict[int, int]] = [{} for _ in self.permutations]
        self._contents: list[dict[int, int]] = [{0: 0} for _ in self.permutations]

    def canonical(self, state: State) -> State:
        """The representative of a state's orbit. O(permutations × width)."""
        best, size = state, self.system.size
        for index, moved in enumerate(self._from):
            renamed, contents = self._locals[index], self._contents[index]
            candidate = []
            for place, origin in enumerate(moved):
                if place < size:
                    key = state[origin] * size + origin
                    number = renamed.get(key)
                    if number is None:
                        number = renamed[key] = self._rename_local(index, origin, state[origin])
                else:
                    number = contents.get(state[origin])
                    if number is None:
                        number = contents[state[origin]] = self._rename_content(index, state[origin])
                candidate.append(number)
            image = (*candidate, *state[len(moved) :])
            best = min(best, image)
        return best

    def _rename_local(self, index: int, process: int, local: int) -> int:
        value, machine = self.system.locals.values[local], self.system.machine
        if isinstance(value, Stopped):
            return local
        assert isinstance(machine, Symmetric)
        return self.system.locals(machine.renamed(process, value, self.permutations[index]))

    def _rename_content(self, index: int, content: int) -> int:
        machine = self.system.machine
        assert isinstance(machine, Symmetric)
        queue = [
            self.system.messages(machine.renamed_message(m, self.permutations[index]))
            for m in self.system.content(content)
        ]
        return self.system.contents(tuple(sorted(queue)) if self.system.network.reorder else tuple(queue))
