"""Configurations of the group generator from a covering array: what may go wrong with it, in all pairs and triples.

The named configurations of `group_generator_suite` were chosen by hand, each for a reason; what nobody thought of
combining stands here.
"""

from __future__ import annotations

from typing import Any

from benchmarks.explore.covering import Factors, Level
from benchmarks.explore.group_generator_suite import GeneratorConfiguration
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.group_generator.system import GroupSystem
from partreduce.topo.strategies.generated import Division, InitiatorRule
from partreduce.verify.explore import Network

LOSSY, REORDERED, DOUBLED = "a message lost", "reordered", "a message doubled"


def _possible(chosen: dict[str, Any]) -> bool:
    """A node of one worker has no groups of its own under node-then-all."""
    return bool(chosen["division"] != Division.NODE_THEN_ALL or chosen["nodes"] != (0, 0, 1))


def _make(words: str, chosen: dict[str, Any]) -> GeneratorConfiguration:
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
        initiator=slow or InitiatorRule.LAGGARD_LOCAL,
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
        timeouts=wire == LOSSY or bool(wire == REORDERED and ends_groups),
        costs=(*(1,) * (len(nodes) - 1), (10, 1)) if slow == InitiatorRule.LAGGARD_LATE else (),
    )
    network = Network(
        reorder=wire == REORDERED,
        losses=int(wire == LOSSY),
        duplicates=int(wire == DOUBLED),
        crashes=chosen["crashes"],
        suspicions=chosen["suspicions"],
        detect=True,
    )
    return GeneratorConfiguration(words, system, network)


FACTORS = Factors(
    {
        "nodes": [Level((0, 0), "2", 14), Level((0, 0, 0), "3", 400), Level((0, 0, 1), "3 on 2 nodes", 400)],
        "division": [
            Level(Division.RANDOM, "random pairs"),
            Level(Division.GLOBAL, "divided", 1.5),
            Level(Division.INTER_INTRA, "inter/intra"),
            Level(Division.NODE_THEN_ALL, "node-then-all", 1.7),
        ],
        "rounds": [Level(1, "1 round"), Level(2, "2 rounds", 4.2)],
        "ways": [Level(1, "1 draw"), Level(2, "2 draws", 3.6)],
        "max_known": [Level(None), Level(1, "known groups only", 1.1)],
        "slow": [
            Level(None),
            Level(InitiatorRule.PAPER, "filter of the paper", 2.2),
            Level(InitiatorRule.LAGGARD_LOCAL, "laggards local", 2.1),
            Level(InitiatorRule.LAGGARD_LATE, "laggards late", 1.1),
        ],
        "breakers": [Level(()), Level((1,), "broken once", 7.8)],
        "crashes": [Level(0), Level(1, "one crash", 15)],
        "suspicions": [Level(0), Level(1, "one taken for dead", 27)],
        "wire": [Level(""), Level(REORDERED, REORDERED, 1.3), Level(DOUBLED, DOUBLED, 11), Level(LOSSY, LOSSY, 3.5)],
        "restarts": [Level(0), Level(1, "generator restarted", 5)],
    },
    _make,
    _possible,
)
"""What is varied; the growths fit the logarithms of the numbers of states of 304 rows, by least squares."""


TWO_VOIDS = FACTORS.configuration(FACTORS.row(nodes=(0, 0, 0), breakers=(1,), suspicions=1, wire=REORDERED))
"""Four circumstances at once: word that two groups are void, of two epochs, overtaking one another. 190,426 states."""
