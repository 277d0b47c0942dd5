"""Skipping steps (Hop, section 5): why no gap grows by it, and how far a worker can get at once.

**No gap grows.** Count the steps that a worker skips as entered, their updates as sent and their reduces as done, all
at the instant of the skip. Then every need of the event graph holds at every instant, so every bound that follows from
them holds. To enter step k + d a worker takes d tokens of each out-neighbour, as d single steps would. It has the
updates that step k + d - 1 asks for, or fresher ones, and whoever sent update k + d - 1 counts as having sent all
before it: so each of the reduces that are counted has what it needs. What it sends or waits for at other times is as
without skipping.

**Nobody waits for a skipped update.** When u skips step m, every out-neighbour is past m, since u passes none. Without
staleness only an update of one's own step serves, so m serves none of them again. Under staleness a newer update serves
as well, and u sends one on arriving. So a job in which somebody can always go on without skips is one with skips: of
the workers in the smallest step take the one whose next event has the earliest tick; nothing that it waits for is
missing.

**Every bound is attained with skips as without.** Hold j in step 0 and let everybody else run, and skip, until nothing
moves: who still waits then waits for events that have not happened, not for updates that were skipped, so the counts
solve the equations of `exact`, which have one solution.

**How far.** Worker v skips by at most `limit`, past no out-neighbour, so by no more than any of them can be ahead, and
to a step for whose last reduce enough in-neighbours can have sent; never, where the slowest of them cannot be `behind`
steps ahead. Held back in its step it meets all of this at once, so a condition on when it may skip lets no gap grow and
moves no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.strategies.gap import Gap


def longest_skips(graph: Digraph, setting: Gap, bounds: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """For every worker the most steps that it can ever skip ahead at once, 0 if it never skips. O(edges log).

    `bounds` are [Step(u) − Step(v), Step(v) − Step(u)] at most, of every edge (u, v), −1 for no bound.
    """
    targets: list[list[float]] = [[] for _ in range(graph.num_workers)]
    sources: list[list[float]] = [[] for _ in range(graph.num_workers)]
    for (u, v), (ahead, back) in zip(graph.edges, bounds, strict=True):
        sources[v].append(inf if ahead < 0 else ahead)
        targets[u].append(inf if back < 0 else back)
    backups = setting.backups(graph.num_workers)
    return tuple(map(_longest, [setting] * graph.num_workers, backups, targets, sources))


def _longest(setting: Gap, spare: int, targets: Sequence[float], sources: Sequence[float]) -> int:
    """By how far out- and in-neighbours can be ahead."""
    if setting.skip is None or not targets:
        return 0
    if min(targets) < setting.skip.behind:
        return 0
    longest = min(setting.skip.limit, *targets)
    if needed := len(sources) - spare:
        longest = min(longest, sorted(sources)[-needed] + 1 + setting.staleness)
    return int(longest) if longest >= setting.skip.trigger else 0
