"""The configurations of the partial all-reduce that the explorer is run on, small in the tests, larger on request."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.explore.partial import partial_properties
from partreduce.schedulers.protocols.partial import Partial
from partreduce.topo.strategies.quorum import Counting, MissedResults, Quorum, QuorumStart
from partreduce.verify.explore import Exploration, Network, explore


@dataclass(frozen=True, slots=True)
class PartialConfiguration:
    """One exploration: the setting, how many gradients each worker computes, who starts rounds, the network."""

    name: str
    setting: Quorum
    calls: tuple[int, ...]
    initiators: tuple[int, ...] | None = None
    network: Network = field(default_factory=Network)
    max_states: int = 2_000_000

    def machine(self, kind: type[Partial] = Partial) -> Partial:
        """The protocol, or one that differs from it."""
        return kind(self.setting, len(self.calls), self.calls, self.initiators)

    def run(self, machine: Partial | None = None) -> Exploration:
        """Explore with every property of the setting; `machine` may stand in for the protocol."""
        machine = machine or self.machine()
        properties = partial_properties(machine)
        return explore(machine, properties=properties, network=self.network, max_states=self.max_states)


AT_ONCE = Network(delay=False)
"""What a message that is late could change a thread that begins later changes as well: larger systems do without."""

SMALL = (
    PartialConfiguration("solo, C 1, 2 workers", Quorum(quorum=QuorumStart.SOLO, staleness=1), (2, 2)),
    PartialConfiguration("solo, C 2, 2 workers, at once",
                         Quorum(quorum=QuorumStart.SOLO, staleness=2), (3, 1), network=AT_ONCE),
    PartialConfiguration("solo by call, C 1, 2 workers",
                         Quorum(quorum=QuorumStart.SOLO, count=Counting.CALL, staleness=1), (2, 2)),
    PartialConfiguration("majority, C 1, 2 workers", Quorum(quorum=QuorumStart.MAJORITY, staleness=1), (2, 2), (0, 1)),
    PartialConfiguration("majority by call, C 2, 2 workers",
                         Quorum(quorum=QuorumStart.MAJORITY, count=Counting.CALL, staleness=2), (3, 2), (0, 0, 1)),
    PartialConfiguration("majority, C 1, 3 workers, at once",
                         Quorum(quorum=QuorumStart.MAJORITY, staleness=1), (1, 1, 1), (2, 0, 1), AT_ONCE),
    PartialConfiguration("2 of 3, C 1, at once", Quorum(quorum=2, staleness=1), (2, 2, 1), network=AT_ONCE),
    PartialConfiguration("2 of 3 by call, C 1, at once",
                         Quorum(quorum=2, count=Counting.CALL, staleness=1), (2, 1, 2), network=AT_ONCE),
    PartialConfiguration("2 of 2, C 1, reordered and doubled",
                         Quorum(quorum=2, staleness=1), (2, 1), network=Network(reorder=True, duplicates=1)),
    PartialConfiguration("solo, latest, synchronised every 2, 2 workers, at once",
                         Quorum(quorum=QuorumStart.SOLO, missed=MissedResults.LATEST, synchronise_every=2),
                         (2, 2), network=AT_ONCE),
    PartialConfiguration("solo by call, latest, synchronised every 2, 2 workers",
                         Quorum(quorum=QuorumStart.SOLO, count=Counting.CALL, missed=MissedResults.LATEST,
                                synchronise_every=2),
                         (2, 2)),
    PartialConfiguration("majority by call, latest, 2 workers",
                         Quorum(quorum=QuorumStart.MAJORITY, count=Counting.CALL, missed=MissedResults.LATEST),
                         (2, 2), (0, 1)),
)  # fmt: skip

LARGE = (
    PartialConfiguration("solo, C 2, 2 workers", Quorum(quorum=QuorumStart.SOLO, staleness=2), (3, 2)),
    PartialConfiguration("solo, C 1, 3 workers, at once",
                         Quorum(quorum=QuorumStart.SOLO, staleness=1), (2, 1, 1), network=AT_ONCE),
    PartialConfiguration("solo by call, C 2, 3 workers, at once",
                         Quorum(quorum=QuorumStart.SOLO, count=Counting.CALL, staleness=2), (2, 1, 1), network=AT_ONCE),
    PartialConfiguration("solo, 2 workers, reordered and doubled",
                         Quorum(quorum=QuorumStart.SOLO, staleness=1),
                         (1, 1), network=Network(reorder=True, duplicates=1)),
    PartialConfiguration("majority, C 1, 3 workers",
                         Quorum(quorum=QuorumStart.MAJORITY, staleness=1), (1, 1, 1), (0, 1, 2)),
    PartialConfiguration("majority, C 2, 3 workers, at once",
                         Quorum(quorum=QuorumStart.MAJORITY, staleness=2), (2, 1, 1), (2, 0, 1), AT_ONCE),
    PartialConfiguration("majority, C 2, 2 workers",
                         Quorum(quorum=QuorumStart.MAJORITY, staleness=2), (2, 3), (1, 0)),
    PartialConfiguration("majority by call, latest, 3 workers, at once",
                         Quorum(quorum=QuorumStart.MAJORITY, count=Counting.CALL, missed=MissedResults.LATEST),
                         (2, 2, 1), (0, 1, 2), AT_ONCE),
    PartialConfiguration("2 of 3, C 1", Quorum(quorum=2, staleness=1), (1, 1, 1)),
    PartialConfiguration("2 of 3, C 2, at once", Quorum(quorum=2, staleness=2), (2, 2, 2), network=AT_ONCE),
    PartialConfiguration("2 of 4, C 1, at once", Quorum(quorum=2, staleness=1), (1, 1, 1, 1), network=AT_ONCE),
    PartialConfiguration("3 of 4, C 1, at once", Quorum(quorum=3, staleness=1), (1, 1, 1, 1), network=AT_ONCE),
)  # fmt: skip
