"""The configurations of Hop's worker that the explorer is run on: named ones, and every setting with every other."""

from __future__ import annotations

from typing import Any

from benchmarks.explore.configuration import AT_ONCE, REORDERED, USUAL, Configuration, Explored
from benchmarks.explore.covering import Factors, Level
from benchmarks.explore.explorer import Exploration, Network
from benchmarks.explore.fail_stop import fail_stop
from benchmarks.explore.hop import hop_properties
from benchmarks.explore.hop_taken import Recording, of_the_worker, takes_what_came
from benchmarks.explore.reductions import Hop
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import check_setting
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.iteration_gap import IterationGap, SkipPolicy
from partreduce.verify.gap_bounds import exact_bounds


def explored(machine: Hop, network: Network) -> Explored:
    properties = hop_properties(machine, reordered=network.reorder)
    found = Explored(machine, properties)
    if machine.fine or machine.setting.notify_ack:
        found = Explored(Recording(machine), (*map(of_the_worker, properties), takes_what_came(machine)))
    return fail_stop(found) if network.suspicions else found


def hop(
    name: str,
    graph: Digraph,
    setting: IterationGap,
    network: Network = USUAL,
    *,
    fine: bool = False,
    symmetry: bool = False,
) -> Configuration:
    """Of a graph and a setting; in `fine` steps the events of a step are kept apart."""
    return Configuration(name, Hop(graph, setting, fine=fine), explored, network, symmetry)


def is_tight(configuration: Configuration, found: Exploration) -> bool:
    """Whether the exploration attains the exact bound of every pair."""
    return found.gaps == exact_bounds(configuration.machine.graph, configuration.machine.setting)


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

SMALL = (
    hop("standard in fine steps, ring of 3", ring(3), IterationGap(), fine=True),
    hop("standard, undirected ring of 3", both_ways(3), IterationGap()),
    hop("standard, undirected ring of 3, reordered", both_ways(3), IterationGap(), REORDERED),
    hop("staleness 1, ring of 3", ring(3), IterationGap(staleness=1)),
    hop("NOTIFY-ACK, ring of 3", ring(3), IterationGap(notify_ack=True)),
    hop("hybrid, tokens max_ig 2 in fine steps, pair", PAIR, IterationGap(backup=1, staleness=1, max_ig=2), fine=True),
    hop("skips up to 2, hybrid, tokens max_ig 2 in fine steps, pair", PAIR,
        IterationGap(backup=1, staleness=1, max_ig=2, skip=SkipPolicy(limit=2)), fine=True),
    hop("skips of 3, staleness 2, tokens max_ig 3 in fine steps, pair", PAIR,
        IterationGap(max_ig=3, staleness=2, skip=SkipPolicy(limit=3, trigger=3)), fine=True),
    hop("skips up to 2 from 3 behind, staleness 1, tokens max_ig 3 in fine steps, pair", PAIR,
        IterationGap(max_ig=3, staleness=1, skip=SkipPolicy(limit=2, behind=3)), fine=True),
    hop("skips up to 3, backup 1, tokens max_ig 3 in fine steps, pair", PAIR,
        IterationGap(backup=1, max_ig=3, skip=SkipPolicy(limit=3)), fine=True),
    hop("NOTIFY-ACK, undirected ring of 3", both_ways(3), IterationGap(notify_ack=True)),
    hop("NOTIFY-ACK, tokens max_ig 1, ring of 3", ring(3), IterationGap(notify_ack=True, max_ig=1)),
    hop("backup (1,0,1), tokens max_ig 1, undirected ring of 3", both_ways(3),
        IterationGap(backup=(1, 0, 1), max_ig=1)),
    hop("tokens max_ig 2 in fine steps, ring of 3", ring(3), IterationGap(max_ig=2), fine=True),
    hop("staleness 1, tokens max_ig 2, ring of 3", ring(3), IterationGap(staleness=1, max_ig=2)),
    hop("tokens max_ig 1, diamond", diamond(), IterationGap(max_ig=1)),
    hop("backup 1, tokens max_ig 1, undirected ring of 3", both_ways(3), IterationGap(backup=1, max_ig=1)),
    hop("hybrid backup 1, staleness 1, tokens max_ig 1, undirected ring of 3", both_ways(3),
        IterationGap(backup=1, staleness=1, max_ig=1)),
    hop("skips up to 2, backup 1, tokens max_ig 2, path of 3", PATH,
        IterationGap(backup=1, max_ig=2, skip=SkipPolicy(limit=2))),
    hop("skips up to 2, hybrid, tokens max_ig 2, undirected ring of 3, at once", both_ways(3),
        IterationGap(backup=1, staleness=1, max_ig=2, skip=SkipPolicy(limit=2)), AT_ONCE),
    hop("NOTIFY-ACK, ring of 4", ring(4), IterationGap(notify_ack=True)),
    hop("standard, ring of 5", ring(5), IterationGap()),
    hop("tokens max_ig 2, undirected ring of 3", both_ways(3), IterationGap(max_ig=2)),
    hop("skips up to 2, staleness 1, tokens max_ig 2, ring of 3", ring(3),
        IterationGap(staleness=1, max_ig=2, skip=SkipPolicy(limit=2))),
    hop("skips up to 2, staleness 1, tokens max_ig 3, ring of 3", ring(3),
        IterationGap(staleness=1, max_ig=3, skip=SkipPolicy(limit=2))),
    hop("tokens max_ig 1, undirected ring of 4", both_ways(4), IterationGap(max_ig=1)),
    hop("staleness 1, ring of 5", ring(5), IterationGap(staleness=1)),
    hop("NOTIFY-ACK, ring of 5", ring(5), IterationGap(notify_ack=True)),
)  # fmt: skip

LARGE = (
    hop("tokens max_ig 2, ring of 5", ring(5), IterationGap(max_ig=2)),
    hop("tokens max_ig 1, ring of 6", ring(6), IterationGap(max_ig=1)),
    hop("backup 1, tokens max_ig 2, undirected ring of 3", both_ways(3), IterationGap(backup=1, max_ig=2)),
    hop("tokens max_ig 3, ring of 10, at once", ring(10), IterationGap(max_ig=3), AT_ONCE),
    hop("tokens max_ig 3, ring of 12, at once", ring(12), IterationGap(max_ig=3), AT_ONCE),
    hop("tokens max_ig 2, undirected ring of 4, folded", both_ways(4), IterationGap(max_ig=2), symmetry=True),
    hop("tokens max_ig 3, ring of 5, folded", ring(5), IterationGap(max_ig=3), symmetry=True),
    hop("NOTIFY-ACK, ring of 6", ring(6), IterationGap(notify_ack=True)),
    hop("staleness 2, ring of 4", ring(4), IterationGap(staleness=2)),
    hop("tokens max_ig 1, ring of 7, folded", ring(7), IterationGap(max_ig=1), symmetry=True),
)  # fmt: skip


def _possible(chosen: dict[str, Any]) -> bool:
    """What Hop refuses is left out, what may halt by its own rules, and what has no end of states."""
    graph, setting = chosen["graph"], _setting(chosen)
    try:
        check_setting(graph, setting)
    except InputError:
        return False
    backed = any(setting.backups(graph.num_workers))
    if backed and (setting.max_ig is None or not graph.is_symmetric):
        return False  # gaps without bound, or updates that wait without bound, and tokens that do not
    if graph == diamond() and (setting.skip is not None or setting.max_ig == 2 or chosen["suspicions"]):
        return False  # more states than the others together
    # An update that nobody needs may be overtaken for ever, or lie before a worker that has ended.
    lasting = backed or setting.skip is not None
    return not (lasting and chosen["suspicions"]) and not ((lasting or setting.staleness) and chosen["wire"])


def _setting(chosen: dict[str, Any]) -> IterationGap:
    graph, backup = chosen["graph"], chosen["backup"]
    spare = tuple(int(backup == "all" or (backup == "one" and v == 0)) for v in range(graph.num_workers))
    return IterationGap(
        max_ig=chosen["max_ig"],
        staleness=chosen["staleness"],
        backup=spare,
        notify_ack=chosen["notify_ack"],
        skip=chosen["skip"],
    )


def _make(words: str, chosen: dict[str, Any]) -> Configuration:
    """The configuration that a row stands for."""
    network = Network(reorder=chosen["wire"], suspicions=chosen["suspicions"])
    return hop(words, chosen["graph"], _setting(chosen), network, fine=chosen["fine"], symmetry=chosen["symmetry"])


FACTORS = Factors(
    {
        "graph": [
            Level(ring(3), "ring of 3", 100),
            Level(PATH, "path of 3", 100),
            Level(both_ways(3), "undirected ring of 3", 400),
            Level(diamond(), "diamond", 2000),
        ],
        "max_ig": [Level(None), Level(1, "tokens max_ig 1", 3), Level(2, "tokens max_ig 2", 10)],
        "staleness": [Level(0), Level(1, "staleness 1", 3)],
        "backup": [Level(""), Level("one", "a backup for worker 0", 3), Level("all", "backup 1", 10)],
        "notify_ack": [Level(False), Level(True, "NOTIFY-ACK", 3)],
        "skip": [Level(None), Level(SkipPolicy(limit=2), "skips up to 2", 3)],
        "fine": [Level(False), Level(True, "fine steps", 3)],
        "wire": [Level(False), Level(True, "reordered", 2)],
        "suspicions": [Level(0), Level(1, "one taken for dead", 10)],
        "symmetry": [Level(False), Level(True, "folded", 0.5)],
    },
    _make,
    _possible,
)
