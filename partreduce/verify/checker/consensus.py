"""Claims `consensus`, `contraction` and `exact-consensus`: how periods of averaging reduce the workers' differences.

P is the matrix of a period (`period.py`), without steps, and without outer steps from shared outer parameters. Such an
outer step adds the same value to all workers: differences shrink in the same way, and the common value is another one.

Claim `consensus`: averaging alone, repeated, brings all workers to one common value. This value is the mean if
`doubly-stochastic` or `unit-sums` holds as well. A connected graph is not enough: a cyclic shift is connected and
doubly stochastic, and never converges. There are three methods of proof (and a fact, `gaps.py`, for reduces that leave
out some in-neighbors).

**Method `trees`, for groups.** Let 0 ≤ t < 2 in every group. *Theorem:* if a spanning tree of the workers can be made
of pairs that some group with 0 < t < 2 holds, then P contracts everything off the mean. A group replaces d = x − mean
on its members by (1 − t)·d. So no group lengthens a vector, and one with 0 < t < 2 keeps its length only if d = 0 on
the group, and then changes nothing. A period that keeps the length of a vector therefore finds it constant on each of
those groups, one after the other, hence along the tree, hence everywhere: off the mean it is 0. In finitely many
dimensions "every vector gets strictly shorter" is a factor below 1. A pair with t = 2 swaps its values, which breaks
the argument.

For rules the same condition is on the classes of characters (`period.py`). On the class of the empty set a tree joins
all local ranks. On another class a block acts as the mean, or, where it reaches across a digit of the class, as 0: that
ties its local ranks to one more vertex, the value 0, and a tree joins all local ranks *and* 0. A tree for every single
digit is enough: on a class of more digits more blocks act as 0, and a witness "these two are equal" becomes "both are
0".

**Method `graph`, for weighted graphs.** *Theorem:* rows that sum to 1 (the format makes them), no negative weight, a
positive weight on oneself in every round, and a root from which edges of positive weight lead to everyone. Then a power
of P has a positive column: own weights are positive, so what was reached stays reached, and each period follows at
least one more edge of the tree. Such a power shrinks max − min by a factor below 1.

*Under staleness* (`sync.iteration_gap`) the updates that a reduce averages are of different steps. *Theorem:* the same
tree suffices. A reduce of step k needs of every in-neighbor an update of step k − s or later. The newest that it holds
has been averaged, in this reduce or in an earlier one since it came, with a positive weight; it is at most s steps
older, and newer by no more than the gap. So in every stretch of as many steps as staleness, gap and longest skip are
together each edge of the tree is followed at least once, with a delay bounded likewise. That gap is finite, since the
reader refuses a graph with an edge over which it is not. The weights are one of finitely many: those of the file and
what is left of them, 1/(number taken + 1), or quotients of ages, which gap and staleness bound. Write the values of the
last so many steps of all workers into one vector: a stretch is a row-stochastic matrix of finitely many, and n
successive ones have a positive column, that of the root, so max − min of the vector shrinks by a factor below 1 (with
delays: Cao, Morse and Anderson, Agreeing asynchronously, IEEE Transactions on Automatic Control 53, 2008). Not the
mean, but one common value.

**Method `power`.** *Theorem:* if M = Pᵏ − J has ‖M‖₂ < 1 for some k, then P contracts everything off the mean. Rows of
P sum to 1, so with Q = I − J for what is off the mean Q·Pᵏ·x = Q·Pᵏ·Q·x = Q·M·Q·x, because Q·J = 0: k periods shrink
‖Q·x‖ by the factor ‖M‖₂ or more.

Claim `contraction`: ‖P − J‖₂ ≤ c; c² is a fraction. steps_per_round, prologue and delay do not matter: they determine
when new gradients arrive, and this claim bounds what a period of averaging leaves of an existing difference.

**Method `pivots`.** For rules M = P − J is split by classes of characters, which are orthogonal and all listed, so the
largest norm on a class is the norm, for every number of nodes with this number of digits. **Method `factor`, for
explicit groups and weighted graphs:** by a factor of integers, which the check makes itself (`linear_algebra.py`).
**Method `norms`.** ‖M‖₂² is the spectral radius of MᵀM, which no norm undercuts: ‖M‖₂² ≤ ‖MᵀM‖₁ ≤ ‖M‖₁·‖M‖∞ ≤ c².

Claim `exact-consensus`: one period leaves the mean at every worker, P = J.

**Method `product`.** P − J is multiplied out in integers (on every class of characters, for rules) and is 0.

**Method `labels`, for explicit groups of any size.** Every worker carries a different label 0 … n−1, written in mixed
radix. *Theorem:* if phase `first` + l averages exactly the workers whose labels agree in all digits but digit l, for
every l, then these phases together are J: after the first l of them a value depends on the remaining digits only, being
the mean over the others. The phases before and behind keep the sum, or a common value, because rows and columns of each
sum to 1: J·W = W·J = J.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from .linear_algebra import confirm_norm, confirm_norm_by_pivots
from .period import MAX_SIZE, averages_on_class, classes, distance_from_mean
from .refusal import Work, confirm, require
from .schedule import Schedule, keeps_something
from .strict_json import as_fraction

ZERO = -1
"""The vertex of a tree that stands for the value 0."""

MAX_ROWS = 1024
"""Most rows of a matrix that is factored."""


def check_by_trees(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """Raise a Refusal unless `entry` proves `consensus` by spanning trees: one, for rules one more per node digit."""
    confirm(
        schedule.form != "graph" and lengthens_nothing(schedule), place, "trees", "0 <= relaxation < 2 in every group"
    )
    listed_classes: list[list[int]] = [[], *([digit] for digit in range(len(schedule.radices)))]
    trees = entry["trees"]
    confirm(len(trees) == len(listed_classes), place, "trees", f"{len(listed_classes)} trees")
    for number, (digits, tree) in enumerate(zip(listed_classes, trees, strict=True)):
        _confirm_tree(schedule, digits, tree, f"{place}.trees[{number}]")


def lengthens_nothing(schedule: Schedule) -> bool:
    """Return whether every relaxation t has 0 ≤ t < 2, so that no group lengthens a vector or swaps two values."""
    return all(0 <= relaxation < 2 for sizes in schedule.group_sizes() for _, relaxation in sizes)


def _confirm_tree(schedule: Schedule, digits: Sequence[int], tree: list[Any], place: str) -> None:
    """Confirm that `tree` spans the workers (for rules the local ranks and, with `digits`, ZERO, the value 0).

    Its ascending edges are [phase, first worker of a group with 0 < relaxation < 2, another one of it]; from ZERO if
    the group acts as 0 on the class of `digits` (`period.py`). Each edge joins two separate components.
    """
    num_edges = schedule.width - (0 if digits else 1)
    confirm(len(tree) == num_edges, place, "…", f"{num_edges} witnesses")
    components = Components(schedule.width)
    previous: list[int] = [-1]
    first_of_group: dict[int, int] = {}  # of the contracting groups of the phase that comes next, by members
    for number, edge in enumerate(tree):
        at = f"{place}[{number}]"
        confirm(previous < edge and 0 <= edge[0] < schedule.period, at, edge, "a later [phase, worker, worker]")
        t, first, other = edge
        if t != previous[0]:
            averages = [average for average in averages_on_class(schedule.phases[t], digits) if average[2]]  # below 2
            first_of_group = {
                worker: ZERO if vanishes else members[0] for members, vanishes, _ in averages for worker in members
            }
        together = first != other and first_of_group.get(other) == first
        confirm(together, at, edge, f"workers of one contracting group of phase {t}")
        confirm(components.join(first, other), at, edge, "workers that no earlier witness joins")
        previous = edge


class Components:
    """The components of ZERO (the value 0) and the workers under the edges joined so far (union-find, path halving)."""

    def __init__(self, num_workers: int) -> None:
        self._parent = {vertex: vertex for vertex in range(ZERO, num_workers)}

    def join(self, one: int, other: int) -> bool:
        """Join the components of two vertices; return False if they are already in one."""
        root, other_root = self._root(one), self._root(other)
        self._parent[other_root] = root
        return root != other_root

    def _root(self, vertex: int) -> int:
        parent = self._parent
        while parent[vertex] != vertex:
            parent[vertex] = vertex = parent[parent[vertex]]
        return vertex


def check_by_graph(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """Raise a Refusal unless `entry` proves `consensus`: edges [round, source, target] from `root` to all workers."""
    confirm(schedule.form == "graph", place, "graph", "trees")
    needs_all = schedule.gap is None or not schedule.gap.has_backup
    confirm(needs_all, place, "graph", "workers that do without none of their in-neighbors")
    counts_weights = schedule.gap is None or schedule.gap.weights == "graph"
    are_positive = not counts_weights or all(map(keeps_something, schedule.rounds))
    confirm(are_positive, "schedule", "a weight", "positive weights on oneself, and none negative")
    positive = [
        {(source, target) for target, source, weight in edges if weight > 0 or not counts_weights}
        for edges in schedule.rounds
    ]
    reached, tree = {entry["root"]}, entry["tree"]
    confirm(len(tree) == schedule.num_workers - 1, place, "tree", "n - 1 edges")
    for number, edge in enumerate(tree):
        t, source, target = edge
        leads_on = 0 <= t < schedule.period and (source, target) in positive[t]
        leads_on = leads_on and source in reached and target not in reached
        rule = "an edge of positive weight from a reached worker to a new one"
        confirm(leads_on, f"{place}.tree[{number}]", edge, rule)
        reached.add(target)


def check_by_pivots(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """Raise a Refusal unless ‖P − J‖₂² ≤ `squared`; of claim `consensus`, unless ‖P^`periods` − J‖₂² ≤ `squared` < 1.

    P is the matrix of one period, J that of the mean.
    """
    work, at = Work(place), f"{place}.squared"
    squared, listed = as_fraction(entry["squared"], at), classes(schedule, place)
    require(schedule.width <= MAX_SIZE, place, "too large for exact pivots; use another method")
    for digits in listed:
        off_mean = distance_from_mean(schedule, digits, entry.get("periods", 1), work)
        confirm_norm_by_pivots(squared, off_mean, [1] * schedule.width, at, work)
    confirm(squared < 1 or "periods" not in entry, at, entry["squared"], "below 1")


def check_listed(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """Raise a Refusal unless ‖P − J‖₂² ≤ `squared` as in `check_by_pivots`, by `factor` or `norms`; not for rules."""
    work, at, method = Work(place), f"{place}.squared", entry["method"]
    confirm(schedule.form != "rule", place, method, "pivots on the classes of a rule")
    require(method == "norms" or schedule.width <= MAX_ROWS, place, f"over {MAX_ROWS} workers")
    squared = as_fraction(entry["squared"], at)
    rows, scale = distance_from_mean(schedule, (), 1, work)
    if method == "factor":
        confirm_norm(squared, rows, scale, at, work)
    else:
        largest = [max(sum(map(abs, line)) for line in lines) for lines in (rows, zip(*rows, strict=True))]
        product = Fraction(prod(largest), scale * scale)
        confirm(product <= squared, at, entry["squared"], f"at least {product}")


def check_by_product(schedule: Schedule, entry: dict[str, Any], place: str) -> None:  # noqa: ARG001 - as the others
    """Raise a Refusal unless one period, multiplied out, gives all workers the exact mean (`exact-consensus`)."""
    work = Work(place)
    for digits in classes(schedule, place):
        rows, _ = distance_from_mean(schedule, digits, 1, work)
        confirm(not any(map(any, rows)), place, "the product", "exactly the mean")


def check_by_labels(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """Raise a Refusal unless `labels` with `radices` prove `exact-consensus`: phase `first` + l averages digit l."""
    n, labels, radices, first = schedule.num_workers, entry["labels"], entry["radices"], entry["first"]
    confirm(schedule.form == "groups" and len(radices) < 32 and prod(radices) == n, place, radices, "product n")
    confirm(0 <= first <= schedule.period - len(radices), f"{place}.first", first, "a window inside the period")
    are_labels = len(labels) == len(set(labels)) == n and min(labels) == 0 and max(labels) < n
    confirm(are_labels, f"{place}.labels", "…", "a different label for every worker")
    for digit, radix in enumerate(radices):
        phase = schedule.phases[first + digit]
        at = f"{place}.labels and phase {first + digit}"
        confirm(len(phase) * radix == n, at, len(phase), f"{n // radix} groups")
        weight = prod(radices[digit + 1 :])  # of this digit in a label
        for members, _, relaxation in phase:
            # Labels that differ in this digit alone are smallest + value · weight, for all values of the digit. That
            # they begin at the value 0 follows, since such groups hold everybody: by induction from label 0 upwards.
            group_labels = sorted(labels[worker] for worker in members)
            smallest = group_labels[0]
            differ_here = group_labels == list(range(smallest, smallest + radix * weight, weight))
            confirm(differ_here and relaxation == 1, at, members, f"labels that differ in digit {digit} alone")
