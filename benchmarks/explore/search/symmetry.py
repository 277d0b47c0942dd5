"""Symmetry: states that differ only by a renaming of processes under which the machine is the same are one state."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.explore.reductions import Symmetric
from benchmarks.explore.search.system import State, Stopped, System, WorkedOut


class Symmetry:
    """The renamings of one system. `canonical` returns the least state among all renamed ones."""

    def __init__(self, system: System) -> None:
        self.system = system
        machine: Any = system.machine
        identity = tuple(range(system.size))
        found = machine.symmetries() if isinstance(machine, Symmetric) else ()
        self.permutations = [tuple(p) for p in found if tuple(p) != identity]
        self._width = system.size + len(system.channels)
        self._images = [self._image(p) for p in self.permutations]

    def _image(self, p: tuple[int, ...]) -> list[tuple[int, WorkedOut]]:
        """For each place of a renamed state, the place from which its number comes, and what it becomes there."""
        size, channels = self.system.size, self.system.channels
        places = {pair: size + index for index, pair in enumerate(channels)}
        contents = WorkedOut(partial(self._rename_content, p))
        contents[0] = 0
        image = [(0, contents)] * self._width
        for process in range(size):
            image[p[process]] = (process, WorkedOut(partial(self._rename_local, p, process)))
        for (u, v), place in places.items():
            image[places[p[u], p[v]]] = (place, contents)
        return image

    def canonical(self, state: State) -> State:
        """The representative of a state's orbit. O(permutations × width); most images are larger at once."""
        best = state
        for image in self._images:
            for (origin, renamed), least in zip(image, best, strict=False):  # budgets at the end have no name
                number = renamed[state[origin]]
                if number != least:
                    if number < least:
                        best = (*[renamed[state[origin]] for origin, renamed in image], *state[self._width :])
                    break
        return best

    def _rename_local(self, p: tuple[int, ...], process: int, local: int) -> int:
        value, machine = self.system.locals.values[local], self.system.machine
        if isinstance(value, Stopped):
            return local
        assert isinstance(machine, Symmetric)
        return self.system.locals(machine.renamed(process, value, p))

    def _rename_content(self, p: tuple[int, ...], content: int) -> int:
        machine = self.system.machine
        assert isinstance(machine, Symmetric)
        queue = [self.system.messages(machine.renamed_message(m, p)) for m in self.system.content(content)]
        return self.system.contents(tuple(sorted(queue)) if self.system.network.reorder else tuple(queue))
