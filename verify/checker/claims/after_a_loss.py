"""Claim `consensus-after-a-loss`: whichever one worker is lost, the schedule brings the others to consensus.

Without worker w a group goes on with its other members, if it has two or more; on a weighted graph the edges of w
fall away, and what they weighed stays with whom they led to. For groups the survivors agree on their mean. The claim
says what the schedule can do, not that a run survives a loss: it has to leave w out of the groups, and to find out
about it.

**Method `order`, for groups** with 0 ≤ relax < 2, all of them. By the theorem of method `trees` (consensus.py)
survivors agree if pairs from groups with 0 < relax < 2 connect them. Let `order` list the workers so that everybody
but the first shares such a group with an earlier one, everybody but the last with a later one, and the first and the
last share one. *Theorem:* then all survivors are connected, whoever is lost. Those who stand before the lost worker
go from earlier to earlier ones and come to the first; those behind it go from later to later ones and come to the
last; and these two meet, or one of them was lost and there is only one side. (Such an order exists iff no loss
disconnects: an st-numbering.)

*Rules.* Let Q be the graph of the local ranks of one node and of one more vertex, ZERO, for all the other nodes: a
block inside nodes joins its local ranks, one across digits its local ranks and ZERO. *Theorem:* let the workers be
connected, on two nodes or more. Then they stay so without any one worker iff no local rank disconnects Q; so an order
of Q as above is enough. Suppose the loss of v = (node x, rank l) cut off some workers. Take the tree of the
two-connected parts of the graph of all workers. Shifts of the digits carry the graph into itself and move every
worker, so they fix the middle of that tree, which is a part B and no worker. Let H be what v cuts off from B, and
shift it by any digits but 0: v comes to another worker as deep in the tree, so H and its image are disjoint. Hence H
has no local rank twice. A group across nodes that meets H would hold a worker h of H and, at the same local rank, one
on another node; that one would have to be v, and h a shift of v, as deep in the tree as v is; but h lies below v. So
only groups inside node x meet H, and its local ranks are joined in Q to one another and to l alone: l disconnects Q.
That the workers are connected is seen on the classes of consensus.py. So the claim holds for every number of nodes
with so many digits.

**Method `roots`, for weighted graphs.** Own weights only grow by a loss, so the theorem of method `graph`
(consensus.py) applies to the survivors if some survivor leads to all the others over edges of positive weight without
w: `roots` names one for every w.

*The check is sound because* it looks up every step in the schedule itself. *It assumes* that groups are disjoint,
which `conflict-free` confirms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..period import averages_on_class
from ..refusal import Work, confirm
from ..schedule import keeps_something
from ..strict_json import as_integers
from .consensus import ZERO, Components

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..schedule import Schedule


def check_by_order(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`order`: all workers; for rules all local ranks, and ZERO if there are other nodes."""
    lengthens_nothing = schedule.form != "graph" and all(
        0 <= relax < 2 for sizes in schedule.group_sizes() for _, relax in sizes
    )
    confirm(lengthens_nothing, place, "order", "0 <= relax < 2 in every group")
    low, size = ZERO if schedule.radices else 0, schedule.width
    order = as_integers(entry["order"], f"{place}.order", low, size)
    is_complete = len(order) == size - low and len(set(order)) == len(order)
    confirm(is_complete, f"{place}.order", "…", "every worker (or local rank, and -1) once")
    if schedule.radices:
        Work(place).spend(100 * size * (1 + len(schedule.radices)))
        _confirm_connected(schedule, place)

    position = {vertex: number for number, vertex in enumerate(order)}
    last = len(order) - 1
    has_earlier, has_later = [False] * len(order), [False] * len(order)
    ends_meet = False
    for members in _joined(schedule, low):
        positions = sorted(map(position.__getitem__, members))
        for number in positions[1:]:
            has_earlier[number] = True
        for number in positions[:-1]:
            has_later[number] = True
        ends_meet = ends_meet or (positions[0] == 0 and positions[-1] == last)
    confirm(ends_meet, f"{place}.order", [order[0], order[-1]], "a first and a last that share a group")
    for number, vertex in enumerate(order):
        is_held = (number == 0 or has_earlier[number]) and (number == last or has_later[number])
        confirm(is_held, f"{place}.order[{number}]", vertex, "one that shares groups with an earlier and a later one")


def _joined(schedule: Schedule, low: int) -> Iterator[Sequence[int]]:
    """The sets that contracting groups join: workers, or for rules local ranks and ZERO. No relax is below 0, nor 2."""
    for phase in schedule.phases:
        for members, across, relax in phase:
            if relax:
                yield [*members, low] if across else members


def _confirm_connected(schedule: Schedule, place: str) -> None:
    """The workers of a rule are connected: on every class of at most one digit all local ranks (and ZERO) are."""
    for digits in [[], *([digit] for digit in range(len(schedule.radices)))]:
        components = Components(schedule.width)
        missing = schedule.width - (0 if digits else 1)
        for phase in schedule.phases:
            for members, vanishes, relax in averages_on_class(phase, digits):
                if relax:
                    first = ZERO if vanishes else members[0]
                    missing -= sum(components.join(first, other) for other in members if other != first)
        confirm(missing == 0, place, "a rule", f"groups that connect everybody (digits {digits})")


def check_by_roots(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`roots`: for every lost worker one that leads to all other survivors."""
    confirm(schedule.form == "graph", place, "roots", "order")
    confirm(
        all(map(keeps_something, schedule.rounds)), "schedule", "a weight", "positive weights on oneself, none negative"
    )
    n = schedule.num_workers
    roots = as_integers(entry["roots"], f"{place}.roots", 0, n)
    confirm(len(roots) == n, f"{place}.roots", len(roots), f"{n} roots")
    onward: dict[int, set[int]] = {}
    for edges in schedule.rounds:
        for target, source, weight in edges:
            if weight > 0:
                onward.setdefault(source, set()).add(target)
    work, num_edges = Work(place), sum(map(len, onward.values()))
    for lost, root in enumerate(roots):
        work.spend(30 * (n + num_edges))
        reached, waiting = {lost, root}, [root]
        while waiting:
            new = onward.get(waiting.pop(), set()) - reached
            reached |= new
            waiting += new
        confirm(root != lost and len(reached) == n, f"{place}.roots[{lost}]", root, "one that leads to all survivors")
