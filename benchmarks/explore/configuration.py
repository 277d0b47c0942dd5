"""One exploration of a protocol: its machine, what may happen to its messages and processes, and what must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from benchmarks.explore.explorer import Exploration, Network, explore
from benchmarks.explore.search.properties import Property
from benchmarks.explore.search.view import View

USUAL = Network()
AT_ONCE = Network(delay=False)
"""What a message that is late could change a thread that begins later changes as well: larger systems do without."""
REORDERED = Network(reorder=True)
WILD = Network(reorder=True, duplicates=1)


@dataclass(frozen=True, slots=True)
class Explored:
    """What is explored in place of a machine, with its properties; `within` is that of `explore`."""

    machine: Any
    properties: tuple[Property, ...]
    within: Callable[[View], bool] | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """`prepared` is the protocol's: of a machine and a network it makes what is explored."""

    name: str
    machine: Any
    prepared: Callable[[Any, Network], Explored]
    network: Network = USUAL
    symmetry: bool = False
    max_states: int = 2_000_000

    def of(self, kind: type[Any]) -> Any:  # noqa: ANN401 - of that class
        """The machine's setting in a class that differs from its own."""
        return kind(**{one.name: getattr(self.machine, one.name) for one in fields(self.machine) if one.init})

    def explored(self, machine: Any = None) -> Explored:  # noqa: ANN401 - of the machine's class, or one that differs
        return self.prepared(machine or self.machine, self.network)

    def run(self, machine: Any = None) -> Exploration:  # noqa: ANN401 - as above
        """Explore with every property; `machine` may stand in for the protocol."""
        found = self.explored(machine)
        return explore(
            found.machine,
            properties=found.properties,
            network=self.network,
            symmetry=self.symmetry,
            max_states=self.max_states,
            within=found.within,
        )
