"""The named configurations of Hop's worker that the explorer is run on, small in the tests and larger on request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.explore.fail_stop import FailStop, among_the_living
from benchmarks.explore.hop import hop_properties
from benchmarks.explore.hop_taken import Recording, of_the_worker, takes_what_came
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import Hop
from partreduce.topo.strategies.gap import Gap, Reducing, Skip
from partreduce.verify.explore import Exploration, Network, explore
from partreduce.verify.gaps.exact import exact_bounds


@dataclass(frozen=True, slots=True)
class HopConfiguration:
    """One exploration of Hop's worker: graph, setting, network, and whether step events are kept apart."""

    name: str
    graph: Digraph
    setting: Gap
    network: Network = field(default_factory=Network)
    fine: bool = False
    symmetry: bool = False
    max_states: int = 2_000_000

    def machine(self) -> Hop:
        return Hop(self.graph, self.setting, fine=self.fine)

    def run(self, machine: Hop | None = None) -> Exploration:
        """Explore with every property of the setting; `machine` may stand in for the protocol."""
        machine = machine or self.machine()
        explored: Any = machine
        properties = hop_properties(machine, reordered=self.network.reorder)
        if self.fine or self.setting.notify_ack:
            explored = Recording(machine)
            properties = (*map(of_the_worker, properties), takes_what_came(machine))
        if self.network.suspicions:
            explored = FailStop(explored)
            properties = tuple(map(among_the_living, properties))
        return explore(
            explored,
            properties=properties,
            network=self.network,
            symmetry=self.symmetry,
            max_states=self.max_states,
        )

    def is_tight(self, found: Exploration) -> bool:
        """Whether the exploration attains the exact bound of every pair."""
        return found.gaps == exact_bounds(self.graph, self.setting)


def ring(n: int) -> Digraph:
    """The directed ring."""
    return Digraph.of(n, [(i, (i + 1) % n) for i in range(n)])


def both_ways(n: int) -> Digraph:
    """The undirected ring."""
    return Digraph.undirected(n, [(i, (i + 1) % n) for i in range(n)])


def diamond() -> Digraph:
    """0 sends to 1 and 2, both to 3, and 3 to 0: the smallest graph on which Hop's Theorem 2 is not tight."""
    return Digraph.of(4, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 0)])


PAIR = Digraph.undirected(2, [(0, 1)])
PATH = Digraph.undirected(3, [(0, 1), (1, 2)])
REORDER = Network(reorder=True)
STEPPING = Network(delay=False)

SMALL = (
    HopConfiguration("standard in fine steps, ring of 3", ring(3), Gap(), fine=True),
    HopConfiguration("standard, undirected ring of 3", both_ways(3), Gap()),
    HopConfiguration("standard, undirected ring of 3, reordered", both_ways(3), Gap(), REORDER),
    HopConfiguration("staleness 1, ring of 3", ring(3), Gap(staleness=1)),
    HopConfiguration("NOTIFY-ACK, ring of 3", ring(3), Gap(notify_ack=True)),
    HopConfiguration("the newest again, hybrid, tokens max_ig 2 in fine steps, pair", PAIR,
                     Gap(backup=1, staleness=1, max_ig=2, reduce=Reducing.NEWEST), fine=True),
    HopConfiguration("inquiry, skips up to 2, hybrid, tokens max_ig 2 in fine steps, pair", PAIR,
                     Gap(backup=1, staleness=1, max_ig=2, skip=Skip(limit=2), inquire=True), fine=True),
    HopConfiguration("skips of 3, staleness 2, tokens max_ig 3 in fine steps, pair", PAIR,
                     Gap(max_ig=3, staleness=2, skip=Skip(limit=3, trigger=3)), fine=True),
    HopConfiguration("skips up to 3, backup 1, tokens max_ig 3 in fine steps, pair", PAIR,
                     Gap(backup=1, max_ig=3, skip=Skip(limit=3)), fine=True),
    HopConfiguration("NOTIFY-ACK, undirected ring of 3", both_ways(3), Gap(notify_ack=True)),
    HopConfiguration("NOTIFY-ACK, tokens max_ig 1, ring of 3", ring(3), Gap(notify_ack=True, max_ig=1)),
    HopConfiguration("backup (1,0,1), tokens max_ig 1, undirected ring of 3", both_ways(3),
                     Gap(backup=(1, 0, 1), max_ig=1)),
    HopConfiguration("tokens max_ig 2 in fine steps, ring of 3", ring(3), Gap(max_ig=2), fine=True),
    HopConfiguration("staleness 1, tokens max_ig 2, ring of 3", ring(3), Gap(staleness=1, max_ig=2)),
    HopConfiguration("tokens max_ig 1, diamond", diamond(), Gap(max_ig=1)),
    HopConfiguration("backup 1, tokens max_ig 1, undirected ring of 3", both_ways(3), Gap(backup=1, max_ig=1)),
    HopConfiguration("hybrid backup 1, staleness 1, tokens max_ig 1, undirected ring of 3", both_ways(3),
                     Gap(backup=1, staleness=1, max_ig=1)),
    HopConfiguration("inquiry, skips up to 2, backup 1, tokens max_ig 2, path of 3", PATH,
                     Gap(backup=1, max_ig=2, skip=Skip(limit=2), inquire=True)),
    HopConfiguration("skips up to 2, hybrid, tokens max_ig 2, undirected ring of 3, at once", both_ways(3),
                     Gap(backup=1, staleness=1, max_ig=2, skip=Skip(limit=2)), STEPPING),
    HopConfiguration("NOTIFY-ACK, ring of 4", ring(4), Gap(notify_ack=True)),
    HopConfiguration("standard, ring of 5", ring(5), Gap()),
    HopConfiguration("tokens max_ig 2, undirected ring of 3", both_ways(3), Gap(max_ig=2)),
    HopConfiguration("skips up to 2, staleness 1, tokens max_ig 2, ring of 3", ring(3),
                     Gap(staleness=1, max_ig=2, skip=Skip(limit=2))),
)  # fmt: skip

MILLION = (
    HopConfiguration("tokens max_ig 2, ring of 5", ring(5), Gap(max_ig=2)),
    HopConfiguration("tokens max_ig 1, ring of 6", ring(6), Gap(max_ig=1)),
    HopConfiguration("backup 1, tokens max_ig 2, undirected ring of 3", both_ways(3), Gap(backup=1, max_ig=2)),
    HopConfiguration("skips up to 2, staleness 1, tokens max_ig 3, ring of 3", ring(3),
                     Gap(staleness=1, max_ig=3, skip=Skip(limit=2))),
    HopConfiguration("tokens max_ig 1, undirected ring of 4", both_ways(4), Gap(max_ig=1)),
    HopConfiguration("staleness 1, ring of 5", ring(5), Gap(staleness=1)),
    HopConfiguration("NOTIFY-ACK, ring of 5", ring(5), Gap(notify_ack=True)),
    HopConfiguration("tokens max_ig 3, ring of 10, at once", ring(10), Gap(max_ig=3), STEPPING),
)  # fmt: skip

LARGE = (
    HopConfiguration("tokens max_ig 3, ring of 12, at once", ring(12), Gap(max_ig=3), STEPPING),
    HopConfiguration("tokens max_ig 2, undirected ring of 4, folded", both_ways(4), Gap(max_ig=2), symmetry=True),
    HopConfiguration("tokens max_ig 3, ring of 5, folded", ring(5), Gap(max_ig=3), symmetry=True),
    HopConfiguration("NOTIFY-ACK, ring of 6", ring(6), Gap(notify_ack=True)),
    HopConfiguration("staleness 2, ring of 4", ring(4), Gap(staleness=2)),
    HopConfiguration("tokens max_ig 1, ring of 7, folded", ring(7), Gap(max_ig=1), symmetry=True),
)
