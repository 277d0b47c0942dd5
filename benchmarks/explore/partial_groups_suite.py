"""The configurations of partial averaging in groups for the explorer, small in the tests, larger on request."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.explore.partial_groups import partial_groups_properties
from partreduce.schedulers.protocols.partial_groups import PartialGroups
from partreduce.topo.strategies.quorum import Quorum, QuorumStart
from partreduce.verify.explore import Exploration, Network, explore

Phases = tuple[tuple[tuple[int, ...], ...], ...]
"""Of every round of a period its groups; who is in none rests."""


@dataclass(frozen=True, slots=True)
class GroupsConfiguration:
    """One exploration: the setting, the groups, how many calls each worker makes, who starts rounds, the network."""

    name: str
    setting: Quorum
    phases: Phases
    calls: tuple[int, ...]
    initiators: tuple[int, ...] | None = None
    network: Network = field(default_factory=Network)
    max_states: int = 2_000_000

    def machine(self, kind: type[PartialGroups] = PartialGroups) -> PartialGroups:
        """The protocol, or one that differs from it."""
        return kind(self.setting, len(self.calls), self.group_of, self.calls, self.initiators)

    def group_of(self, worker: int, round_: int) -> tuple[int, ...]:
        """The members of a worker's group in a round."""
        groups = self.phases[round_ % len(self.phases)]
        return next((group for group in groups if worker in group), (worker,))

    def run(self, machine: PartialGroups | None = None) -> Exploration:
        """Explore with every property; `machine` may stand in for the protocol."""
        machine = machine or self.machine()
        properties = partial_groups_properties(machine)
        return explore(machine, properties=properties, network=self.network, max_states=self.max_states)


AT_ONCE = Network(delay=False)
"""What a message that is late could change a thread that begins later changes as well: larger systems do without."""

NODE_THEN_ALL: Phases = (((0, 1), (2, 3)), ((0, 1, 2, 3),))
CHAIN: Phases = (((0, 1),), ((1, 2),))
"""Three workers: in each round one of them rests."""
ALL_OF_3: Phases = (((0, 1, 2),),)
PAIR: Phases = (((0, 1),),)
CROSSED: Phases = (((0, 1), (2, 3)), ((1, 2), (0, 3)))
ALL_THEN_PAIR: Phases = (((0, 1, 2),), ((1, 2),))

SOLO_1, SOLO_2 = Quorum(quorum=QuorumStart.SOLO, staleness=1), Quorum(quorum=QuorumStart.SOLO, staleness=2)
MAJORITY_1 = Quorum(quorum=QuorumStart.MAJORITY, staleness=1)
TWO_1, TWO_2 = Quorum(quorum=2, staleness=1), Quorum(quorum=2, staleness=2)

SMALL = (
    GroupsConfiguration("solo, C 1, a pair", SOLO_1, PAIR, (2, 2)),
    GroupsConfiguration("solo, C 2, a pair, at once", SOLO_2, PAIR, (3, 1), network=AT_ONCE),
    GroupsConfiguration("solo, C 1, a chain of 3, at once", SOLO_1, CHAIN, (2, 2, 1), network=AT_ONCE),
    GroupsConfiguration("solo, C 2, a chain of 3, at once", SOLO_2, CHAIN, (2, 1, 0), network=AT_ONCE),
    GroupsConfiguration("majority, C 1, 3 workers, at once", MAJORITY_1, ALL_OF_3, (2, 1, 0), (1, 2), AT_ONCE),
    GroupsConfiguration("2 of 3, C 1, at once", TWO_1, ALL_OF_3, (2, 2, 1), network=AT_ONCE),
    GroupsConfiguration("2 of 3, C 1", TWO_1, ALL_OF_3, (1, 1, 0)),
    GroupsConfiguration("2, C 2, node-then-all, at once", TWO_2, NODE_THEN_ALL, (2, 1, 0, 2), network=AT_ONCE),
    GroupsConfiguration("solo, C 1, node-then-all, at once", SOLO_1, NODE_THEN_ALL, (2, 0, 0, 0), network=AT_ONCE),
    GroupsConfiguration(
        "majority, C 1, node-then-all, at once", MAJORITY_1, NODE_THEN_ALL, (2, 1, 0, 1), (1, 2, 0), AT_ONCE
    ),
    GroupsConfiguration("solo, C 1, crossed pairs, at once", SOLO_1, CROSSED, (1, 1, 1, 0), network=AT_ONCE),
    GroupsConfiguration(
        "solo, C 1, a pair, reordered and doubled", SOLO_1, PAIR, (1, 1), network=Network(reorder=True, duplicates=1)
    ),
)

LARGE = (
    GroupsConfiguration("solo, C 1, node-then-all, 2 go on, at once", SOLO_1, NODE_THEN_ALL, (2, 0, 1, 0),
                        network=AT_ONCE),
    GroupsConfiguration("solo, C 1, node-then-all, 4 go on, at once", SOLO_1, NODE_THEN_ALL, (1, 1, 1, 1),
                        network=AT_ONCE),
    GroupsConfiguration("majority, C 1, node-then-all, 4 go on, at once", MAJORITY_1, NODE_THEN_ALL, (2, 1, 1, 1),
                        (1, 2, 0), AT_ONCE),
    GroupsConfiguration("2, C 2, node-then-all, 4 go on, at once", TWO_2, NODE_THEN_ALL, (3, 2, 2, 2),
                        network=AT_ONCE),
    GroupsConfiguration("solo, C 2, crossed pairs, at once", SOLO_2, CROSSED, (2, 1, 1, 1), network=AT_ONCE),
    GroupsConfiguration("solo, C 1, a chain of 3", SOLO_1, CHAIN, (2, 1, 1)),
    GroupsConfiguration("majority, C 1, all then a pair", MAJORITY_1, ALL_THEN_PAIR, (1, 1, 1), (2, 0)),
    GroupsConfiguration("2 of 3, C 1, 4 calls", TWO_1, ALL_OF_3, (2, 1, 1)),
    GroupsConfiguration("2 of 3, C 2", TWO_2, ALL_OF_3, (2, 1, 1)),
    GroupsConfiguration("2 of 3, C 1, reordered and doubled", TWO_1, ALL_OF_3, (1, 1, 0),
                        network=Network(reorder=True, duplicates=1)),
    GroupsConfiguration("solo, C 1, a pair, 3 calls, reordered and doubled", SOLO_1, PAIR, (2, 1),
                        network=Network(reorder=True, duplicates=1)),
)  # fmt: skip
