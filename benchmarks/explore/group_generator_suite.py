"""The named configurations of the group generator that the explorer is run on; together more than a million states."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.explore.group_generator import generator_properties
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.group_generator.system import GroupSystem
from partreduce.topo.strategies.generated import Division, InitiatorRule
from partreduce.verify.explore import Exploration, Network, explore


@dataclass(frozen=True, slots=True)
class GeneratorConfiguration:
    """One exploration: the system and what may happen to its messages and processes."""

    name: str
    system: GroupSystem
    network: Network = field(default_factory=Network)
    max_states: int = 2_000_000

    def run(self, system: GroupSystem | None = None) -> Exploration:
        """Explore with every property; `system` may stand in for the system."""
        system = system or self.system
        return explore(
            system,
            properties=generator_properties(system, lossy=self.network.losses > 0),
            network=self.network,
            symmetry=False,
            max_states=self.max_states,
        )


def random(nodes: tuple[int, ...], size: int = 2, threshold: int | None = None) -> GeneratorSetting:
    """Random groups."""
    return GeneratorSetting(nodes=nodes, group_size=size, division=Division.RANDOM, slow_threshold=threshold)


def divided(nodes: tuple[int, ...], size: int = 2, threshold: int | None = None) -> GeneratorSetting:
    """Global division."""
    return GeneratorSetting(nodes=nodes, group_size=size, division=Division.GLOBAL, slow_threshold=threshold)


def smart(
    nodes: tuple[int, ...],
    threshold: int | None = 1,
    *,
    rule: InitiatorRule = InitiatorRule.LAGGARD_LOCAL,
    max_known: int | None = None,
) -> GeneratorSetting:
    """Inter and intra phases with the filter."""
    return GeneratorSetting(nodes=nodes, group_size=2, slow_threshold=threshold, initiator=rule, max_known=max_known)


def meeting(
    nodes: tuple[int, ...],
    threshold: int | None = None,
    *,
    all_every: int = 1,
    initiator: InitiatorRule = InitiatorRule.LAGGARD_LOCAL,
) -> GeneratorSetting:
    """Groups of nodes, and now and then of all."""
    return GeneratorSetting(
        nodes=nodes,
        group_size=2,
        division=Division.NODE_THEN_ALL,
        slow_threshold=threshold,
        all_every=all_every,
        initiator=initiator,
    )


DETECTED = Network(crashes=1, detect=True)
AT_ONCE = Network(delay=False)
ONE_NODE, TWO_NODES = (0, 0, 0), (0, 0, 1)
SLOW_FIRST, SLOW_LAST = (10, 1, 1), (1, 1, 10)
LATE = smart(TWO_NODES, rule=InitiatorRule.LAGGARD_LATE)

SMALL = (
    GeneratorConfiguration("random pairs of 2, endless", GroupSystem(random((0, 0)), rounds=None)),
    GeneratorConfiguration("random pairs of 3, 2 rounds, both draws", GroupSystem(random(ONE_NODE), ways=2)),
    GeneratorConfiguration("one group of 3, 2 rounds", GroupSystem(divided(ONE_NODE, 3))),
    GeneratorConfiguration("random pairs of 2, one message lost", GroupSystem(random((0, 0)), timeouts=True),
                           Network(losses=1)),
    GeneratorConfiguration("divided 3, one message lost", GroupSystem(divided(ONE_NODE), timeouts=True),
                           Network(losses=1)),
    GeneratorConfiguration("random pairs of 3, one message doubled", GroupSystem(random(ONE_NODE)),
                           Network(duplicates=1)),
    GeneratorConfiguration("random pairs of 2, reordered, one retry", GroupSystem(random((0, 0)), retries=1),
                           Network(reorder=True)),
    GeneratorConfiguration("divided 3, generator restarted once", GroupSystem(divided(ONE_NODE), restarts=1)),
    GeneratorConfiguration("divided 3, one crash", GroupSystem(divided(ONE_NODE)), DETECTED),
    GeneratorConfiguration("divided 4 on 2 nodes, 1 round", GroupSystem(divided((0, 0, 1, 1)), rounds=1, ways=2)),
    GeneratorConfiguration("inter/intra 4 on 2 nodes, 3 rounds, at once",
                           GroupSystem(smart((0, 0, 1, 1)), rounds=3, ways=2), AT_ONCE),
    GeneratorConfiguration("divided 4, 3 rounds, 3 draws, at once",
                           GroupSystem(divided((0, 0, 1, 1)), rounds=3, ways=3), AT_ONCE),
    GeneratorConfiguration("random pairs of 4, 6 draws, at once", GroupSystem(random((0, 0, 1, 1)), ways=6), AT_ONCE),
    GeneratorConfiguration("node-then-all 3, meeting every 2 rounds, endless",
                           GroupSystem(meeting(ONE_NODE, all_every=2), rounds=None)),
    GeneratorConfiguration("node-then-all 4 on 2 nodes, 1 round", GroupSystem(meeting((0, 0, 1, 1)), rounds=1)),
    GeneratorConfiguration("node-then-all 3, a laggard late",
                           GroupSystem(meeting(ONE_NODE, 1, initiator=InitiatorRule.LAGGARD_LATE), costs=SLOW_LAST)),
    GeneratorConfiguration("node-then-all 3, 1 round, one crash", GroupSystem(meeting(ONE_NODE), rounds=1), DETECTED),
    GeneratorConfiguration("one group of 3, 1 round, broken once",
                           GroupSystem(divided(ONE_NODE, 3), rounds=1, breakers=(0,))),
    GeneratorConfiguration("divided 3, broken once", GroupSystem(divided(ONE_NODE), breakers=(0,))),
    GeneratorConfiguration("random pairs of 2, broken by both, one message lost",
                           GroupSystem(random((0, 0)), breakers=(0, 1), timeouts=True), Network(losses=1)),
    GeneratorConfiguration("random pairs of 2, broken once, one loss and one crash",
                           GroupSystem(random((0, 0)), breakers=(0,), timeouts=True),
                           Network(losses=1, crashes=1, detect=True)),
    GeneratorConfiguration("random pairs of 3, 1 round, reordered", GroupSystem(random(ONE_NODE), rounds=1),
                           Network(reorder=True)),
    GeneratorConfiguration("random pairs of 2, reordered, one message doubled", GroupSystem(random((0, 0))),
                           Network(reorder=True, duplicates=1)),
    GeneratorConfiguration("random pairs of 3, filter at 1, both draws",
                           GroupSystem(random(ONE_NODE, threshold=1), ways=2)),
    GeneratorConfiguration("divided 3, 1 round, every draw", GroupSystem(divided(ONE_NODE), rounds=1, ways=6)),
    GeneratorConfiguration("divided 3, every draw, at once", GroupSystem(divided(ONE_NODE), ways=6), AT_ONCE),
)  # fmt: skip

MILLION = (
    GeneratorConfiguration("random pairs of 4, 1 round, every draw",
                           GroupSystem(random((0, 0, 1, 1)), rounds=1, ways=3)),
    GeneratorConfiguration("random pairs of 3, 3 rounds, both draws", GroupSystem(random(TWO_NODES), rounds=3, ways=2)),
    GeneratorConfiguration("inter/intra 3 on 2 nodes, both draws", GroupSystem(smart(TWO_NODES), ways=2)),
    GeneratorConfiguration("inter/intra 3, laggards late, 3 rounds", GroupSystem(LATE, rounds=3, costs=SLOW_LAST)),
    GeneratorConfiguration("inter/intra 3, laggards late, one message doubled", GroupSystem(LATE, costs=SLOW_LAST),
                           Network(duplicates=1)),
    GeneratorConfiguration("inter/intra 3, laggards late, 1 round, one crash",
                           GroupSystem(LATE, rounds=1, costs=SLOW_FIRST), DETECTED),
    GeneratorConfiguration("inter/intra 3, known groups only", GroupSystem(smart(TWO_NODES, max_known=1), ways=2)),
    GeneratorConfiguration("random pairs of 2, loss, doubling, crash and restart",
                           GroupSystem(random((0, 0)), timeouts=True, restarts=1),
                           Network(losses=1, duplicates=1, crashes=1, detect=True)),
    GeneratorConfiguration("inter/intra 3, doubled and restarted",
                           GroupSystem(smart(TWO_NODES), rounds=1, timeouts=True, restarts=1), Network(duplicates=1)),
    GeneratorConfiguration("random groups of 3, one crash", GroupSystem(random(TWO_NODES, 3)), DETECTED),
    GeneratorConfiguration("random groups of 3, 3 rounds, one crash", GroupSystem(random(TWO_NODES, 3), rounds=3),
                           DETECTED),
    GeneratorConfiguration("inter/intra 3, 1 round, one crash", GroupSystem(smart(TWO_NODES), rounds=1), DETECTED),
)  # fmt: skip

LARGE = (
    GeneratorConfiguration("divided 3, every draw", GroupSystem(divided(ONE_NODE), ways=6)),
    GeneratorConfiguration("inter/intra 3, laggards late, one crash", GroupSystem(LATE, costs=SLOW_LAST), DETECTED),
    GeneratorConfiguration("inter/intra 3, one crash", GroupSystem(smart(TWO_NODES)), DETECTED),
    GeneratorConfiguration("inter/intra 3, the paper's initiator, one crash",
                           GroupSystem(smart(TWO_NODES, rule=InitiatorRule.PAPER)), DETECTED),
)  # fmt: skip
