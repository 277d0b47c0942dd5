"""The configurations of the group generator that the explorer is run on.

Named ones were chosen by hand, each for a reason; what nobody thought of combining stands in the covering array, in all
pairs or triples.
"""

from __future__ import annotations

from typing import Any

from benchmarks.explore.configuration import AT_ONCE, USUAL, Configuration, Explored
from benchmarks.explore.covering import Factors, Level
from benchmarks.explore.explorer import Network
from benchmarks.explore.group_generator import generator_properties
from benchmarks.explore.reductions import GroupSystem
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.topo.strategies.dynamic_groups import GroupSplit, SlowWorkerPolicy


def explored(system: GroupSystem, network: Network) -> Explored:
    return Explored(system, generator_properties(system, lossy=network.losses > 0))


def generator(name: str, system: GroupSystem, network: Network = USUAL) -> Configuration:
    return Configuration(name, system, explored, network)


def random(nodes: tuple[int, ...], size: int = 2, threshold: int | None = None) -> GeneratorSetting:
    """Random groups."""
    return GeneratorSetting(nodes=nodes, group_size=size, division=GroupSplit.RANDOM, slow_threshold=threshold)


def divided(nodes: tuple[int, ...], size: int = 2, threshold: int | None = None) -> GeneratorSetting:
    """Global division."""
    return GeneratorSetting(nodes=nodes, group_size=size, division=GroupSplit.GLOBAL, slow_threshold=threshold)


def smart(
    nodes: tuple[int, ...],
    threshold: int | None = 1,
    *,
    rule: SlowWorkerPolicy = SlowWorkerPolicy.PAIR_LOCALLY,
    max_known: int | None = None,
) -> GeneratorSetting:
    """Inter and intra phases with the filter."""
    return GeneratorSetting(
        nodes=nodes, group_size=2, slow_threshold=threshold, slow_worker_policy=rule, max_known=max_known
    )


def meeting(
    nodes: tuple[int, ...],
    threshold: int | None = None,
    *,
    all_every: int = 1,
    slow_worker_policy: SlowWorkerPolicy = SlowWorkerPolicy.PAIR_LOCALLY,
) -> GeneratorSetting:
    """Groups of nodes, and now and then of all."""
    return GeneratorSetting(
        nodes=nodes,
        group_size=2,
        division=GroupSplit.NODE_THEN_ALL,
        slow_threshold=threshold,
        all_every=all_every,
        slow_worker_policy=slow_worker_policy,
    )


DETECTED = Network(crashes=1, detect=True)
ONE_NODE, TWO_NODES = (0, 0, 0), (0, 0, 1)
SLOW_FIRST, SLOW_LAST = (10, 1, 1), (1, 1, 10)
LATE = smart(TWO_NODES, rule=SlowWorkerPolicy.DEFER)

SMALL = (
    generator("random pairs of 2, endless", GroupSystem(random((0, 0)), rounds=None)),
    generator("random pairs of 3, 2 rounds, both draws", GroupSystem(random(ONE_NODE), ways=2)),
    generator("one group of 3, 2 rounds", GroupSystem(divided(ONE_NODE, 3))),
    generator("random pairs of 2, one message lost", GroupSystem(random((0, 0)), timeouts=True), Network(losses=1)),
    generator("divided 3, one message lost", GroupSystem(divided(ONE_NODE), timeouts=True), Network(losses=1)),
    generator("random pairs of 3, one message doubled", GroupSystem(random(ONE_NODE)), Network(duplicates=1)),
    generator("random pairs of 2, reordered, one retry", GroupSystem(random((0, 0)), retries=1), Network(reorder=True)),
    generator("divided 3, generator restarted once", GroupSystem(divided(ONE_NODE), restarts=1)),
    generator("divided 3, one crash", GroupSystem(divided(ONE_NODE)), DETECTED),
    generator("divided 4 on 2 nodes, 1 round", GroupSystem(divided((0, 0, 1, 1)), rounds=1, ways=2)),
    generator("inter/intra 4 on 2 nodes, 3 rounds, at once", GroupSystem(smart((0, 0, 1, 1)), rounds=3, ways=2),
              AT_ONCE),
    generator("divided 4, 3 rounds, 3 draws, at once", GroupSystem(divided((0, 0, 1, 1)), rounds=3, ways=3), AT_ONCE),
    generator("node-then-all 3, meeting every 2 rounds, endless",
              GroupSystem(meeting(ONE_NODE, all_every=2), rounds=None)),
    generator("node-then-all 4 on 2 nodes, 1 round", GroupSystem(meeting((0, 0, 1, 1)), rounds=1)),
    generator("node-then-all 3, a straggler late",
              GroupSystem(meeting(ONE_NODE, 1, slow_worker_policy=SlowWorkerPolicy.DEFER), costs=SLOW_LAST)),
    generator("node-then-all 3, 1 round, one crash", GroupSystem(meeting(ONE_NODE), rounds=1), DETECTED),
    generator("one group of 3, 1 round, broken once", GroupSystem(divided(ONE_NODE, 3), rounds=1, breakers=(0,))),
    generator("divided 3, broken once", GroupSystem(divided(ONE_NODE), breakers=(0,))),
    generator("random pairs of 2, broken by both, one message lost",
              GroupSystem(random((0, 0)), breakers=(0, 1), timeouts=True), Network(losses=1)),
    generator("random pairs of 2, broken once, one loss and one crash",
              GroupSystem(random((0, 0)), breakers=(0,), timeouts=True), Network(losses=1, crashes=1, detect=True)),
    generator("random pairs of 3, 1 round, reordered", GroupSystem(random(ONE_NODE), rounds=1), Network(reorder=True)),
    generator("random pairs of 2, reordered, one message doubled", GroupSystem(random((0, 0))),
              Network(reorder=True, duplicates=1)),
    generator("random pairs of 3, filter at 1, both draws", GroupSystem(random(ONE_NODE, threshold=1), ways=2)),
    generator("divided 3, 1 round, every draw", GroupSystem(divided(ONE_NODE), rounds=1, ways=6)),
    generator("divided 3, every draw, at once", GroupSystem(divided(ONE_NODE), ways=6), AT_ONCE),
    generator("inter/intra 3, stragglers late, 3 rounds", GroupSystem(LATE, rounds=3, costs=SLOW_LAST)),
    generator("inter/intra 3, stragglers late, one message doubled", GroupSystem(LATE, costs=SLOW_LAST),
              Network(duplicates=1)),
    generator("inter/intra 3, stragglers late, 1 round, one crash", GroupSystem(LATE, rounds=1, costs=SLOW_FIRST),
              DETECTED),
    generator("random pairs of 2, loss, doubling, crash and restart",
              GroupSystem(random((0, 0)), timeouts=True, restarts=1),
              Network(losses=1, duplicates=1, crashes=1, detect=True)),
    generator("inter/intra 3, 1 round, one crash", GroupSystem(smart(TWO_NODES), rounds=1), DETECTED),
)  # fmt: skip

LOSSY, OVERTAKING, DOUBLED = "a message lost", "reordered", "a message doubled"


def _possible(chosen: dict[str, Any]) -> bool:
    """A node of one worker has no groups of its own under node-then-all."""
    return bool(chosen["division"] != GroupSplit.NODE_THEN_ALL or chosen["nodes"] != (0, 0, 1))


def _make(words: str, chosen: dict[str, Any]) -> Configuration:
    """The configuration that a row stands for.

    Asking again (`timeouts`) belongs to a lost message, and to a group that ends while messages overtake: word that it
    is void may come before word that it runs.
    """
    slow, nodes, wire = chosen["slow"], chosen["nodes"], chosen["wire"]
    ends_groups = chosen["breakers"] or chosen["crashes"] or chosen["suspicions"]
    setting = GeneratorSetting(
        nodes=nodes,
        group_size=2,
        division=chosen["division"],
        slow_worker_policy=slow or SlowWorkerPolicy.PAIR_LOCALLY,
        slow_threshold=None if slow is None else 1,
        all_every=1,
        max_known=chosen["max_known"],
    )
    system = GroupSystem(
        setting,
        rounds=chosen["rounds"],
        ways=chosen["ways"],
        breakers=chosen["breakers"],
        restarts=chosen["restarts"],
        timeouts=wire == LOSSY or bool(wire == OVERTAKING and ends_groups),
        costs=(*(1,) * (len(nodes) - 1), (10, 1)) if slow == SlowWorkerPolicy.DEFER else (),
    )
    network = Network(
        reorder=wire == OVERTAKING,
        losses=int(wire == LOSSY),
        duplicates=int(wire == DOUBLED),
        crashes=chosen["crashes"],
        suspicions=chosen["suspicions"],
        detect=True,
    )
    return generator(words, system, network)


FACTORS = Factors(
    {
        "nodes": [Level((0, 0), "2", 14), Level((0, 0, 0), "3", 400), Level((0, 0, 1), "3 on 2 nodes", 400)],
        "division": [
            Level(GroupSplit.RANDOM, "random pairs"),
            Level(GroupSplit.GLOBAL, "divided", 1.5),
            Level(GroupSplit.INTER_INTRA, "inter/intra"),
            Level(GroupSplit.NODE_THEN_ALL, "node-then-all", 1.7),
        ],
        "rounds": [Level(1, "1 round"), Level(2, "2 rounds", 4.2)],
        "ways": [Level(1, "1 draw"), Level(2, "2 draws", 3.6)],
        "max_known": [Level(None), Level(1, "known groups only", 1.1)],
        "slow": [
            Level(None),
            Level(SlowWorkerPolicy.PAPER, "filter of the paper", 2.2),
            Level(SlowWorkerPolicy.PAIR_LOCALLY, "stragglers local", 2.1),
            Level(SlowWorkerPolicy.DEFER, "stragglers late", 1.1),
        ],
        "breakers": [Level(()), Level((1,), "broken once", 7.8)],
        "crashes": [Level(0), Level(1, "one crash", 15)],
        "suspicions": [Level(0), Level(1, "one taken for dead", 27)],
        "wire": [Level(""), Level(OVERTAKING, OVERTAKING, 1.3), Level(DOUBLED, DOUBLED, 11), Level(LOSSY, LOSSY, 3.5)],
        "restarts": [Level(0), Level(1, "generator restarted", 5)],
    },
    _make,
    _possible,
)
"""What is varied; the growths fit the logarithms of the numbers of states of 304 rows, by least squares."""

TWO_VOIDS = FACTORS.configuration(FACTORS.row(nodes=(0, 0, 0), breakers=(1,), suspicions=1, wire=OVERTAKING))
"""Four circumstances: two groups are void, and messages of two generations overtake each other: 190,426 states."""

LARGE = (
    generator("random pairs of 4, 6 draws, at once", GroupSystem(random((0, 0, 1, 1)), ways=6), AT_ONCE),
    generator("random pairs of 4, 1 round, every draw", GroupSystem(random((0, 0, 1, 1)), rounds=1, ways=3)),
    generator("random pairs of 3, 3 rounds, both draws", GroupSystem(random(TWO_NODES), rounds=3, ways=2)),
    generator("inter/intra 3 on 2 nodes, both draws", GroupSystem(smart(TWO_NODES), ways=2)),
    generator("inter/intra 3, known groups only", GroupSystem(smart(TWO_NODES, max_known=1), ways=2)),
    generator("inter/intra 3, doubled and restarted",
              GroupSystem(smart(TWO_NODES), rounds=1, timeouts=True, restarts=1), Network(duplicates=1)),
    generator("random groups of 3, one crash", GroupSystem(random(TWO_NODES, 3)), DETECTED),
    generator("random groups of 3, 3 rounds, one crash", GroupSystem(random(TWO_NODES, 3), rounds=3), DETECTED),
    generator("divided 3, every draw", GroupSystem(divided(ONE_NODE), ways=6)),
    generator("inter/intra 3, stragglers late, one crash", GroupSystem(LATE, costs=SLOW_LAST), DETECTED),
    generator("inter/intra 3, one crash", GroupSystem(smart(TWO_NODES)), DETECTED),
    generator("inter/intra 3, the paper's initiator, one crash",
              GroupSystem(smart(TWO_NODES, rule=SlowWorkerPolicy.PAPER)), DETECTED),
    TWO_VOIDS,
)  # fmt: skip
