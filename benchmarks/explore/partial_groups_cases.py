"""The configurations of partial averaging in groups that the explorer is run on."""

from __future__ import annotations

from benchmarks.explore.configuration import AT_ONCE, USUAL, WILD, Configuration, Explored
from benchmarks.explore.explorer import Network
from benchmarks.explore.partial_groups import partial_groups_properties
from partreduce.schedulers.protocols.partial_groups import PartialGroups
from partreduce.topo.strategies.quorum import Quorum, QuorumStart

Numbers = tuple[int, ...]
Phases = tuple[tuple[Numbers, ...], ...]
"""Of every round of a period its groups; who is in none rests."""


def groups(  # noqa: PLR0917 - a table's columns
    name: str,
    setting: Quorum,
    phases: Phases,
    calls: Numbers,
    initiators: Numbers | None = None,
    network: Network = USUAL,
) -> Configuration:
    """`calls` says how many calls each worker makes, `initiators` who starts rounds."""

    def group_of(worker: int, round_: int) -> Numbers:
        there = phases[round_ % len(phases)]
        return next((group for group in there if worker in group), (worker,))

    machine = PartialGroups(setting, len(calls), group_of, calls, initiators)
    return Configuration(
        name, machine, lambda machine, _: Explored(machine, partial_groups_properties(machine)), network
    )


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
    groups("solo, C 1, a pair", SOLO_1, PAIR, (2, 2)),
    groups("solo, C 2, a pair, at once", SOLO_2, PAIR, (3, 1), network=AT_ONCE),
    groups("solo, C 1, a chain of 3, at once", SOLO_1, CHAIN, (2, 2, 1), network=AT_ONCE),
    groups("solo, C 2, a chain of 3, at once", SOLO_2, CHAIN, (2, 1, 0), network=AT_ONCE),
    groups("majority, C 1, 3 workers, at once", MAJORITY_1, ALL_OF_3, (2, 1, 0), (1, 2), AT_ONCE),
    groups("2 of 3, C 1, at once", TWO_1, ALL_OF_3, (2, 2, 1), network=AT_ONCE),
    groups("2 of 3, C 1", TWO_1, ALL_OF_3, (1, 1, 0)),
    groups("2, C 2, node-then-all, at once", TWO_2, NODE_THEN_ALL, (2, 1, 0, 2), network=AT_ONCE),
    groups("solo, C 1, node-then-all, at once", SOLO_1, NODE_THEN_ALL, (2, 0, 0, 0), network=AT_ONCE),
    groups("majority, C 1, node-then-all, at once", MAJORITY_1, NODE_THEN_ALL, (2, 1, 0, 1), (1, 2, 0), AT_ONCE ),
    groups("solo, C 1, crossed pairs, at once", SOLO_1, CROSSED, (1, 1, 1, 0), network=AT_ONCE),
    groups("solo, C 1, a pair, reordered and doubled", SOLO_1, PAIR, (1, 1),
           network=WILD),
)  # fmt: skip

LARGE = (
    groups("solo, C 1, node-then-all, 2 go on, at once", SOLO_1, NODE_THEN_ALL, (2, 0, 1, 0), network=AT_ONCE),
    groups("solo, C 1, node-then-all, 4 go on, at once", SOLO_1, NODE_THEN_ALL, (1, 1, 1, 1), network=AT_ONCE),
    groups("majority, C 1, node-then-all, 4 go on, at once", MAJORITY_1, NODE_THEN_ALL, (2, 1, 1, 1), (1, 2, 0),
           AT_ONCE),
    groups("2, C 2, node-then-all, 4 go on, at once", TWO_2, NODE_THEN_ALL, (3, 2, 2, 2), network=AT_ONCE),
    groups("solo, C 2, crossed pairs, at once", SOLO_2, CROSSED, (2, 1, 1, 1), network=AT_ONCE),
    groups("solo, C 1, a chain of 3", SOLO_1, CHAIN, (2, 1, 1)),
    groups("majority, C 1, all then a pair", MAJORITY_1, ALL_THEN_PAIR, (1, 1, 1), (2, 0)),
    groups("2 of 3, C 1, 4 calls", TWO_1, ALL_OF_3, (2, 1, 1)),
    groups("2 of 3, C 2", TWO_2, ALL_OF_3, (2, 1, 1)),
    groups("2 of 3, C 1, reordered and doubled", TWO_1, ALL_OF_3, (1, 1, 0),
           network=WILD),
    groups("solo, C 1, a pair, 3 calls, reordered and doubled", SOLO_1, PAIR, (2, 1),
           network=WILD),
)  # fmt: skip
