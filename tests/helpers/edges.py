"""Aimed cases for the checker: of every inequality and premise data that is just true, and data that is just false.

`EDGES` has one row each: the file of the checker, the rule in words, what is just true, what is just false, and a part
of the sentence with which that is refused. docs/theory/guards.md lists them.
"""

from __future__ import annotations

import json
from fractions import Fraction
from hashlib import sha256
from typing import Any, NamedTuple

from partreduce.verify import checker

Case = tuple[dict[str, Any], dict[str, Any]]
"""A schedule's document, and an entry."""


class Edge(NamedTuple):
    file: str
    rule: str
    true: Case
    false: Case
    says: str


def document(nodes, size, **strategy):
    cluster = {"num_nodes": nodes, "workers_per_node": size}
    return {"format": "partreduce.schedule", "version": 1, "name": "x", "cluster": cluster, "strategy": strategy}


def groups(n, *phases, **options):
    """A static schedule; a member list, or (member list, relax)."""
    listed = [
        [{"group": g} if isinstance(g, list) else {"group": g[0], "relax": g[1]} for g in phase] for phase in phases
    ]
    return document(n, 1, kind="static", phases=listed, **options)


def graph(n, *rounds, **options):
    """A weighted graph; each round a list of (source, target, weight)."""
    listed = [{"edges": [[s, t] for s, t, _ in r], "weights": [w for _, _, w in r]} for r in rounds]
    return document(n, 1, kind="neighbor", rounds=listed, **options)


def rule(radices, size, *phases, **options):
    """Blocks (local ranks, digits) or (local ranks, digits, relax)."""
    listed = [[dict(zip(("local", "across", "relax"), block, strict=False)) for block in phase] for phase in phases]
    nodes = 1
    for radix in radices:
        nodes *= radix
    return document(nodes, size, kind="static", node_radices=list(radices), phases=listed, **options)


def said(raw, entry):
    """What the checker says against one entry of a certificate, None if it holds."""
    read = checker.read_schedule(json.loads(json.dumps(raw)))
    shape = {"schedule_sha256": read.sha256, "num_workers": read.num_workers, "period": read.period}
    document = {"format": "partreduce.certificate", "version": 1, **shape, "claims": [entry]}
    try:
        list(checker.check(json.loads(json.dumps(document)), read))
    except checker.Refusal as refusal:
        return refusal.sentence
    return None


def trees(*listed):
    return {"claim": "consensus", "method": "trees", "trees": [list(tree) for tree in listed]}


def tree(root, *edges):
    return {"claim": "consensus", "method": "graph", "root": root, "tree": list(edges)}


def power(periods, squared):
    return {"claim": "consensus", "method": "power", "periods": periods, "squared": str(squared)}


def rate(method, squared):
    return {"claim": "contraction", "method": method, "squared": str(squared)}


def labels(first, radices, listed):
    return {"claim": "exact-consensus", "method": "labels", "first": first, "radices": radices, "labels": listed}


def order(*listed):
    return {"claim": "consensus-after-a-loss", "method": "order", "order": list(listed)}


def roots(*listed):
    return {"claim": "consensus-after-a-loss", "method": "roots", "roots": list(listed)}


def limit(weights, error, rate, form, floor):
    entry = {"claim": "limit", "weights": list(map(str, weights)), "error": str(error), "rate": str(rate)}
    return {**entry, "form": form, "floor": floor}


def distance(at_most, *covariance, bits=8):
    return {"claim": "consensus-distance", "at_most": str(at_most), "bits": bits, "covariance": list(covariance)}


def drift(at_most, squared, *state, bits=8, of="worker"):
    entry = {"claim": f"drift-{of}", "at_most": str(at_most), "bits": bits, "squared": str(squared)}
    return {**entry, "state": list(state)}


def gap(kind, at_least, less_than, *measure):
    entry = {"claim": f"spectral-gap-{kind}", "at_least": str(at_least), "less_than": str(less_than)}
    return {**entry, "measure": list(map(str, measure))}


def answers(*lines):
    """What every worker answers in every phase: the smallest member of its group and the relax, or "-"."""
    return {"claim": "membership", "answers": sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()}


PRODUCT = {"claim": "exact-consensus", "method": "product"}
PROBABLE = {"claim": "exact-consensus-probable"}
HALF = groups(2, [([0, 1], "1/2")])
"""A difference is halved."""
TINY = Fraction(1, 10**12)
EVEN = graph(2, [(1, 0, "1/2"), (0, 1, "1/4")])
"""A difference is a quarter after each round; the limit is 1/3 of worker 0 and 2/3 of worker 1."""


def meets(relax):
    return groups(3, [[0, 1]], [([1, 2], relax)])


def pair(first, second):
    return graph(2, [(1, 0, first), (0, 1, second)])


def four(*second):
    return groups(4, [[0, 1], [2, 3]], list(second))


def thirds(last, *, back=None):
    """The mean of three, and then a round in which only two exchange."""
    mean = [(s, t, "1/3") for s in range(3) for t in range(3) if s != t]
    return graph(3, mean, [(0, 1, last), (1, 0, last if back is None else back)])


def whole(n):
    """Everybody averages with everybody in one round."""
    return graph(n, [(s, t, f"1/{n}") for s in range(n) for t in range(n) if s != t])


def diagonal(n):
    """The lower triangle of a multiple of the identity."""
    return [[2**20 * (i == j) for j in range(i + 1)] for i in range(n)]


def settled(relax, *, late=False):
    """Two workers, then the mean of all three: a period forgets everything."""
    when = {"when": {"late": 1}} if late else {}
    return groups(3, [([0, 1], relax)], [[0, 1, 2]], **when)


BOTH = [[0, 1], [0, 2], [1, 2]]
COVARIANCE = [2**20, 0, 2**20, 0, 0, 2**20]
HUGE_COVARIANCE = distance(10**9, COVARIANCE)
ZERO_STATE = drift(10**9, TINY, [0] * 9)
CUBE = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
STAR4 = [(0, v, "1/8") for v in range(1, 4)] + [(v, 0, "1/8") for v in range(1, 4)]
ROUND4 = [(v, (v + d) % 4, "1/4") for v in range(4) for d in (1, 3)]
MEAN4 = [[3 * 2**20], [-(2**20), 3 * 2**20], [-(2**20), -(2**20), 3 * 2**20]]
"""The squared distance to the mean of four, in differences to the last: its smallest eigenvalue is 2^20."""
K3 = [(s, t, "1/4") for s in range(3) for t in range(3) if s != t]
NODES = rule([2], 2, [([0], [0])], [([0, 1], [])])
"""Local rank 0 across both nodes, then each node by itself."""

MIXED = rule([2, 3], 4, [([0], [1], "1/2"), ([1, 2], [0]), ([3], [])])
"""Of each node's four workers the first goes along one digit, two along the other, and the last skips."""
ANSWERED = [line for v in range(6) for line in (f"{v // 3 * 12} 1/2", *[f"{v % 3 * 4 + 1} 1"] * 2, "-")]

NORMALISED = graph(
    3,
    [(0, 1, "1/4"), (1, 0, "1/4")],
    [(1, 2, "1/4"), (2, 1, "1/4")],
    pace=[1, 2, 3],
    averaging="step-normalised",
)
NORMALISED_DRIFT, NORMALISED_RATE = Fraction(3603994593, 2**26), Fraction(558949831, 2**30)
NORMALISED_STATE = [39146837, -11184811, -55924053, -11184811, 16777216, 0, -27962027, -5592405, 55924053]
SHARED = groups(3, [[0, 1]], [[1, 2]], pace=[1, 2, 3], averaging="step-normalised")
SHARED_DRIFT, SHARED_RATE = Fraction(3705072227, 2**29), Fraction(67108865, 2**28)
SHARED_STATE = [20505486, -13048946, -41010972, -10252743, 6524473, 20505486, -10252743, 6524473, 20505486]
FINE = groups(2, [([0, 1], f"{2**140 + 1}/{2**141}")])
"""A difference is a little less than halved; the numbers of k periods have 141·k bits."""

FORWARD = [(0, 1, "1/4"), (0, 2, "1/4"), (1, 2, "1/4")]
PAIRS = document(2, 2, kind="static", phases=[[{"group": [0, 1, 2, 3], "relax": "1/2"}]])
PACED = rule([2], 2, [([0], [0])], [([1], [0])], [([0, 1], [])], pace=[1, 2, 1, 3])
PACED_COVARIANCE = [2**20 * (i == j) for i in range(4) for j in range(i + 1)]
HALF_DRIFT = Fraction(281476285335025, 2**49)
PAIRS_DRIFT = Fraction(11448469483311632077389025243161, 2**98)
PACED_DISTANCE = Fraction(515710648349, 301989888)
UNEVEN = {**groups(3, [[0, 1, 2]]), "cluster": {"nodes": [[0, 2], [1]]}}

MEMBERSHIP = "claims/membership.py"
TREES, GRAPHS, LOSS = "claims/consensus.py", "claims/consensus.py", "claims/after_a_loss.py"
RATE, EXACT, LIMIT = "claims/contraction.py", "claims/exact_consensus.py", "claims/limit.py"
STEADY, DISTANCE, DRIFT, GAPS = (
    "steady_state.py",
    "claims/consensus_distance.py",
    "claims/drift.py",
    "claims/spectral_gap.py",
)

OUTER_STEPS = "claims/outer_steps.py"


def own(*shape, **outer):
    """Two workers or more whose groups make outer steps from anchors of their own, at rate 1/2."""
    make = groups if isinstance(shape[0], int) else rule
    return make(*shape, what={"outer": {"lr": "1/2", "anchor": "own", **outer}})


def agreeing(squared, *weights):
    return {"claim": "outer-consensus", "squared": squared, "weights": list(weights)}


OWN = own(2, [[0, 1]])
OWN_WEIGHT = [9, 0, 9, 0, 0, 2, 0, 0, 0, 2]
"""A difference x of anchors becomes x/2, and momentum -x: 9/4 + 2 is less than half of 9."""

EDGES = [
    # membership
    Edge(
        MEMBERSHIP,
        "every group is along its block's digits, with its factor",
        (MIXED, answers(*ANSWERED)),
        (MIXED, answers(*ANSWERED[:20], "0 1/2", *ANSWERED[21:])),
        ".answers",
    ),
    Edge(
        MEMBERSHIP,
        "a worker alone in its block skips",
        (MIXED, answers(*ANSWERED)),
        (MIXED, answers(*ANSWERED[:-1], "23 1")),
        ".answers",
    ),
    Edge(
        MEMBERSHIP,
        "every phase is answered",
        (NODES, answers("0 1", "-", "0 1", "-", "0 1", "0 1", "2 1", "2 1")),
        (NODES, answers("0 1", "-", "0 1", "-")),
        ".answers",
    ),
    Edge(
        MEMBERSHIP,
        "of rules only",
        (rule([2], 1, [([0], [0])]), answers("0 1", "0 1")),
        (groups(2, [[0, 1]]), answers("0 1", "0 1")),
        '(membership) is "membership"; expected a rule',
    ),
    Edge(
        MEMBERSHIP,
        "at most 2^20 members in all answers",
        (rule([1024], 1, [([0], [0])]), answers(*["0 1"] * 1024)),
        (rule([1025], 1, [([0], [0])]), answers(*["0 1"] * 1025)),
        '(membership) is "membership"; expected answers of at most 1048576 members in all; not 1050625',
    ),
    Edge(
        MEMBERSHIP,
        "a worker that skips counts",
        (rule([1023], 2, [([0], [0])]), answers(*["0 1", "-"] * 1023)),
        (rule([1024], 2, [([0], [0])]), answers(*["0 1", "-"] * 1024)),
        "not 1049600",
    ),
    Edge(
        MEMBERSHIP,
        "local ranks count in each other's answers",
        (rule([512], 2, [([0, 1], [0])]), answers(*["0 1"] * 1024)),
        (rule([513], 2, [([0, 1], [0])]), answers(*["0 1"] * 1026)),
        "not 1052676",
    ),
    Edge(
        MEMBERSHIP,
        "phases count together",
        (rule([724], 1, [([0], [0])], [([0], [0])]), answers(*["0 1"] * 1448)),
        (rule([725], 1, [([0], [0])], [([0], [0])]), answers(*["0 1"] * 1450)),
        "not 1051250",
    ),
    # no claim before groups are disjoint
    Edge(
        "facts/conflict_free.py",
        "groups of one phase share no worker",
        (groups(4, [[0, 1], [2, 3]], [[1, 2]]), trees([[0, 0, 1], [0, 2, 3], [1, 1, 2]])),
        (groups(6, [[0, 1], [2, 3], [3, 4], [3, 5]], [[1, 2]]), trees([])),
        "schedule: phase 0 is [[2, 3], [3, 4]]; expected groups that do not share worker 3",
    ),
    # consensus by trees
    Edge(
        TREES,
        "relax < 2 in every group",
        (four(([0, 3], "199/100"), [1, 2]), trees([[0, 0, 1], [0, 2, 3], [1, 1, 2]])),
        (four(([0, 3], 2), [1, 2]), trees([[0, 0, 1], [0, 2, 3], [1, 1, 2]])),
        "0 <= relax < 2",
    ),
    Edge(
        TREES,
        "0 <= relax in every group",
        (four(([0, 3], 0), [1, 2]), trees([[0, 0, 1], [0, 2, 3], [1, 1, 2]])),
        (four(([0, 3], "-1/100"), [1, 2]), trees([[0, 0, 1], [0, 2, 3], [1, 1, 2]])),
        "0 <= relax < 2",
    ),
    Edge(
        TREES,
        "a witness pair stands in a group that contracts: relax > 0",
        (meets("1/100"), trees([[0, 0, 1], [1, 1, 2]])),
        (meets(0), trees([[0, 0, 1], [1, 1, 2]])),
        "one contracting group of phase 1",
    ),
    Edge(
        TREES,
        "a witness pair stands in one group of its phase",
        (meets(1), trees([[0, 0, 1], [1, 1, 2]])),
        (meets(1), trees([[0, 0, 1], [1, 0, 2]])),
        "one contracting group of phase 1",
    ),
    Edge(
        TREES,
        "a witness joins two different workers",
        (meets(1), trees([[0, 0, 1], [1, 1, 2]])),
        (meets(1), trees([[0, 0, 1], [1, 1, 1]])),
        "one contracting group",
    ),
    Edge(
        TREES,
        "a witness joins what was apart",
        (groups(3, [[0, 1, 2]], [[0, 1]]), trees([[0, 0, 1], [0, 0, 2]])),
        (groups(3, [[0, 1, 2]], [[0, 1]]), trees([[0, 0, 1], [1, 0, 1]])),
        "no earlier witness joins",
    ),
    Edge(
        TREES,
        "n - 1 witnesses",
        (meets(1), trees([[0, 0, 1], [1, 1, 2]])),
        (meets(1), trees([[0, 0, 1]])),
        "2 witnesses",
    ),
    Edge(
        TREES,
        "witnesses in order",
        (meets(1), trees([[0, 0, 1], [1, 1, 2]])),
        (meets(1), trees([[1, 1, 2], [0, 0, 1]])),
        "a later [phase, worker, worker]",
    ),
    Edge(
        TREES,
        "a phase of the period",
        (meets(1), trees([[0, 0, 1], [1, 1, 2]])),
        (meets(1), trees([[0, 0, 1], [2, 1, 2]])),
        "a later [phase, worker, worker]",
    ),
    Edge(
        TREES,
        "a phase is not negative",
        (meets(1), trees([[0, 0, 1], [1, 1, 2]])),
        (meets(1), trees([[-1, 1, 2], [0, 0, 1]])),
        "a later [phase, worker, worker]",
    ),
    Edge(
        TREES,
        "three integers",
        (meets(1), trees([[0, 0, 1], [1, 1, 2]])),
        (meets(1), trees([[0, 0, 1], [1, 1, 2, 2]])),
        "a later [phase, worker, worker]",
    ),
    Edge(
        TREES,
        "a rule has a tree for each digit",
        (NODES, trees([[1, 0, 1]], [[0, -1, 0], [1, 0, 1]])),
        (NODES, trees([[1, 0, 1]])),
        "2 trees",
    ),
    Edge(
        TREES,
        "along a digit groups inside nodes tie nothing to 0",
        (NODES, trees([[1, 0, 1]], [[0, -1, 0], [1, 0, 1]])),
        (NODES, trees([[1, 0, 1]], [[0, -1, 0], [1, -1, 1]])),
        "one contracting group of phase 1",
    ),
    Edge(
        TREES,
        "along a digit 0 is a vertex of the tree",
        (NODES, trees([[1, 0, 1]], [[0, -1, 0], [1, 0, 1]])),
        (NODES, trees([[1, 0, 1]], [[1, 0, 1]])),
        "2 witnesses",
    ),
    Edge(TREES, "of groups only", (HALF, trees([[0, 0, 1]])), (EVEN, trees([[0, 0, 1]])), "0 <= relax < 2"),
    # consensus by a graph
    Edge(
        GRAPHS,
        "a positive weight on oneself",
        (pair("99/100", "1/4"), tree(0, [0, 0, 1])),
        (pair(1, "1/4"), tree(0, [0, 0, 1])),
        "positive weights on oneself",
    ),
    Edge(
        GRAPHS,
        "no negative weight",
        (graph(3, [(0, 1, "1/2"), (0, 2, "1/2"), (1, 2, 0)]), tree(0, [0, 0, 1], [0, 0, 2])),
        (graph(3, [(0, 1, "1/2"), (0, 2, "1/2"), (1, 2, "-1/100")]), tree(0, [0, 0, 1], [0, 0, 2])),
        "none negative",
    ),
    Edge(
        GRAPHS,
        "in every round",
        (graph(2, [(0, 1, "1/2")], [(1, 0, "99/100")]), tree(0, [0, 0, 1])),
        (graph(2, [(0, 1, "1/2")], [(1, 0, 1)]), tree(0, [0, 0, 1])),
        "positive weights on oneself",
    ),
    Edge(
        GRAPHS,
        "an edge of the tree weighs something",
        (graph(2, [(0, 1, "1/100")]), tree(0, [0, 0, 1])),
        (graph(2, [(0, 1, 0)]), tree(0, [0, 0, 1])),
        "an edge of positive weight",
    ),
    Edge(
        GRAPHS,
        "an edge of the tree leads from a reached worker",
        (graph(3, [(0, 1, "1/2"), (1, 2, "1/2")]), tree(0, [0, 0, 1], [0, 1, 2])),
        (graph(3, [(0, 1, "1/2"), (1, 2, "1/2")]), tree(0, [0, 1, 2], [0, 0, 1])),
        "reached",
    ),
    Edge(
        GRAPHS,
        "an edge of the tree leads to a new worker",
        (graph(3, [(0, 1, "1/4"), (1, 0, "1/4"), (1, 2, "1/2")]), tree(0, [0, 0, 1], [0, 1, 2])),
        (graph(3, [(0, 1, "1/4"), (1, 0, "1/4"), (1, 2, "1/2")]), tree(0, [0, 0, 1], [0, 1, 0])),
        "to a new one",
    ),
    Edge(
        GRAPHS,
        "the root is the one from which all are reached",
        (EVEN, tree(1, [0, 1, 0])),
        (EVEN, tree(0, [0, 1, 0])),
        "reached",
    ),
    Edge(GRAPHS, "n - 1 edges", (EVEN, tree(0, [0, 0, 1])), (EVEN, tree(0)), "n - 1 edges"),
    Edge(
        GRAPHS,
        "an edge of its round",
        (graph(2, [(0, 1, "1/2")], [(1, 0, "1/2")]), tree(0, [0, 0, 1])),
        (graph(2, [(0, 1, "1/2")], [(1, 0, "1/2")]), tree(0, [1, 0, 1])),
        "an edge of positive weight",
    ),
    Edge(
        GRAPHS,
        "a round of the period",
        (EVEN, tree(0, [0, 0, 1])),
        (EVEN, tree(0, [1, 0, 1])),
        "an edge of positive weight",
    ),
    Edge(
        GRAPHS,
        "where the file's weights count, they decide under staleness too",
        (
            pair("-1/2", "1/2")
            | {"strategy": pair("-1/2", "1/2")["strategy"] | {"when": {"gap": {"staleness": 1, "weights": "uniform"}}}},
            tree(1, [0, 1, 0]),
        ),
        (
            pair(0, "1/2") | {"strategy": pair(0, "1/2")["strategy"] | {"when": {"gap": {"staleness": 1}}}},
            tree(1, [0, 1, 0]),
        ),
        "an edge of positive weight",
    ),
    Edge(
        GRAPHS,
        "nobody does without an in-neighbour",
        (
            pair("1/4", "1/2")
            | {"strategy": pair("1/4", "1/2")["strategy"] | {"when": {"gap": {"max_ig": 1, "backup": [0, 0]}}}},
            tree(0, [0, 0, 1]),
        ),
        (
            pair("1/4", "1/2")
            | {"strategy": pair("1/4", "1/2")["strategy"] | {"when": {"gap": {"max_ig": 1, "backup": [0, 1]}}}},
            tree(0, [0, 0, 1]),
        ),
        'is "graph"; expected workers that do without none',
    ),
    Edge(GRAPHS, "of weighted graphs only", (EVEN, tree(0, [0, 0, 1])), (HALF, tree(0, [0, 0, 1])), "expected trees"),
    # consensus by a power, contraction
    Edge(
        GRAPHS,
        "the norm of the power is at most the bound",
        (HALF, power(1, "1/4")),
        (HALF, power(1, Fraction(1, 4) - TINY)),
        "a larger one",
    ),
    Edge(
        GRAPHS,
        "the bound is below 1",
        (groups(2, [([0, 1], "1/1000")]), power(1, Fraction(999, 1000) ** 2)),
        (groups(2, [([0, 1], 0)]), power(1, 1)),
        "below 1",
    ),
    Edge(GRAPHS, "as many periods as said", (HALF, power(2, "1/16")), (HALF, power(1, "1/16")), "a larger one"),
    Edge(
        GRAPHS, "at least one period", (groups(2, [[0, 1]]), power(1, 0)), (groups(2, [[0, 1]]), power(0, 0)), "1..1000"
    ),
    Edge(
        GRAPHS,
        "at most 1000 periods",
        (groups(2, [[0, 1]]), power(1000, 0)),
        (groups(2, [[0, 1]]), power(1001, 0)),
        "1..1000",
    ),
    Edge(
        GRAPHS,
        "no numbers of 2^17 bits or more",
        (FINE, power(2, "1/4")),
        (FINE, power(924, "1/4")),
        "too large for this check",
    ),
    Edge(
        RATE,
        "c squared bounds the norm, by pivots",
        (HALF, rate("pivots", "1/4")),
        (HALF, rate("pivots", Fraction(1, 4) - TINY)),
        "a larger one",
    ),
    Edge(
        RATE,
        "on every class of a rule",
        (rule([2], 1, [([0], [0], "1/3")]), rate("pivots", "4/9")),
        (rule([2], 1, [([0], [0], "1/3")]), rate("pivots", Fraction(4, 9) - TINY)),
        "a larger one",
    ),
    Edge(
        RATE,
        "up to 64 rows by pivots",
        (groups(64, [list(range(64))]), rate("pivots", 0)),
        (groups(65, [list(range(65))]), rate("pivots", 0)),
        "too large for exact pivots",
    ),
    Edge(
        "linear_algebra.py",
        "no zero pivot above other entries",
        (HALF, rate("pivots", "1/4")),
        (HALF, rate("pivots", "1/8")),
        'is "indefinite"; expected a bound whose matrix has no zero pivot',
    ),
    Edge(
        RATE,
        "the norms multiply to c squared at most",
        (groups(3, [[0, 1, 2]]), rate("norms", 0)),
        (HALF, rate("norms", Fraction(1, 4) - TINY)),
        '249999999999/1000000000000"; expected at least 1/4',
    ),
    Edge(
        RATE,
        "equal to their product is enough",
        (HALF, rate("norms", "1/4")),
        (HALF, rate("norms", "6/25")),
        "at least 1/4",
    ),
    Edge(
        RATE,
        "rows and columns both count",
        (graph(3, [(0, 1, "1/2"), (0, 2, "1/2")]), rate("norms", "4/3")),
        (graph(3, [(0, 1, "1/2"), (0, 2, "1/2")]), rate("norms", Fraction(4, 3) - TINY)),
        "at least 4/3",
    ),
    Edge(
        RATE,
        "norms of listed groups only",
        (HALF, rate("norms", 1)),
        (NODES, rate("norms", 1)),
        'is "norms"; expected pivots on the classes',
    ),
    Edge(
        RATE,
        "a factor of listed groups only",
        (HALF, rate("factor", 1)),
        (NODES, rate("factor", 1)),
        'is "factor"; expected pivots on the classes',
    ),
    Edge(
        "linear_algebra.py",
        "c squared bounds the norm, by a factor",
        (HALF, rate("factor", Fraction(1, 4) + Fraction(1, 2**29))),
        (HALF, rate("factor", "1/4")),
        "indefinite, or nearly so",
    ),
    Edge(
        "linear_algebra.py",
        "no bound below 2^-128",
        (groups(2, [[0, 1]]), rate("factor", Fraction(1, 2**128))),
        (groups(2, [[0, 1]]), rate("factor", Fraction(1, 2**128 + 1))),
        f'is "1/{2**128 + 1}"; expected at least 1/',
    ),
    # exact consensus
    Edge(
        EXACT,
        "the product is the mean exactly",
        (groups(2, [[0, 1]]), PRODUCT),
        (groups(2, [([0, 1], "999999/1000000")]), PRODUCT),
        "exactly the mean",
    ),
    Edge(
        EXACT,
        "on every class",
        (rule([2], 2, [([0, 1], [0])]), PRODUCT),
        (rule([2], 2, [([0, 1], [])]), PRODUCT),
        "exactly the mean",
    ),
    Edge(
        EXACT,
        "labels that differ in one digit alone",
        (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3])),
        (groups(4, *CUBE), labels(0, [2, 2], [0, 1, 2, 3])),
        "digit 0 alone",
    ),
    Edge(
        EXACT,
        "a different label for every worker",
        (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3])),
        (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 0, 2])),
        "a different label",
    ),
    Edge(
        EXACT,
        "a label for every worker",
        (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3])),
        (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1])),
        "a different label",
    ),
    Edge(
        EXACT,
        "radices multiply to n",
        (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3])),
        (groups(4, *CUBE), labels(0, [2], [0, 2, 1, 3])),
        "product n",
    ),
    Edge(
        EXACT,
        "as many groups as there are settings of the others",
        (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3])),
        (groups(4, [[0, 1]], CUBE[1]), labels(0, [2, 2], [0, 2, 1, 3])),
        "2 groups",
    ),
    Edge(
        EXACT,
        "plain means",
        (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3])),
        (groups(4, [[0, 1], ([2, 3], "999/1000")], CUBE[1]), labels(0, [2, 2], [0, 2, 1, 3])),
        "digit 0 alone",
    ),
    Edge(
        EXACT,
        "a window inside the period",
        (groups(4, [[0, 3]], *CUBE), labels(1, [2, 2], [0, 2, 1, 3])),
        (groups(4, [[0, 3]], *CUBE), labels(2, [2, 2], [0, 2, 1, 3])),
        "a window inside",
    ),
    Edge(
        EXACT,
        "labels of listed groups only",
        (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3])),
        (rule([4], 1, [([0], [0])]), labels(0, [4], [0, 1, 2, 3])),
        "product n",
    ),
    Edge(
        EXACT,
        "two vectors come to their means",
        (groups(4, *CUBE), PROBABLE),
        (groups(4, CUBE[0], [[0, 2]]), PROBABLE),
        "modulo a drawn prime",
    ),
    Edge(
        EXACT,
        "a modular test of listed groups only",
        (groups(4, *CUBE), PROBABLE),
        (rule([4], 1, [([0], [0])]), PROBABLE),
        "explicit groups",
    ),
    Edge(
        EXACT,
        "factors of up to 6 digits",
        (groups(2, [[0, 1]], [([0, 1], 10**6)]), PROBABLE),
        (groups(2, [[0, 1]], [([0, 1], 10**6 + 1)]), PROBABLE),
        "is 1000001; expected relax factors of at most 6 digits",
    ),
    # consensus after a loss
    Edge(
        LOSS,
        "the first and the last share a group",
        (groups(3, *[[one] for one in BOTH]), order(0, 1, 2)),
        (groups(3, [[0, 1]], [[1, 2]]), order(0, 1, 2)),
        ".order is [0, 2]; expected a first and a last",
    ),
    Edge(
        LOSS,
        "everybody but the first has an earlier one",
        (groups(4, [[0, 1], [2, 3]], [[0, 3], [1, 2]]), order(0, 1, 2, 3)),
        (groups(4, [[0, 3]], [[0, 1]], [[2, 3]]), order(0, 2, 1, 3)),
        "an earlier and a later one",
    ),
    Edge(
        LOSS,
        "everybody but the last has a later one",
        (groups(4, [[0, 1], [2, 3]], [[0, 3], [1, 2]]), order(0, 1, 2, 3)),
        (groups(4, [[0, 3]], [[0, 1]], [[0, 2]], [[2, 3]]), order(0, 2, 1, 3)),
        "an earlier and a later one",
    ),
    Edge(
        LOSS,
        "a group contracts: relax > 0",
        (groups(3, [[0, 1]], [[1, 2]], [([0, 2], "1/100")]), order(0, 1, 2)),
        (groups(3, [[0, 1]], [[1, 2]], [([0, 2], 0)]), order(0, 1, 2)),
        "a first and a last",
    ),
    Edge(
        LOSS,
        "relax < 2 in every group",
        (groups(3, [[0, 1]], [[1, 2]], [([0, 2], "199/100")]), order(0, 1, 2)),
        (groups(3, *[[one] for one in BOTH], [([0, 2], 2)]), order(0, 1, 2)),
        "0 <= relax < 2",
    ),
    Edge(
        LOSS,
        "0 <= relax in every group",
        (groups(3, *[[one] for one in BOTH], [([0, 2], 0)]), order(0, 1, 2)),
        (groups(3, *[[one] for one in BOTH], [([0, 2], "-1/9")]), order(0, 1, 2)),
        "0 <= relax < 2",
    ),
    Edge(
        LOSS,
        "every worker once",
        (groups(3, *[[one] for one in BOTH]), order(0, 1, 2)),
        (groups(3, *[[one] for one in BOTH]), order(0, 1, 1)),
        "once",
    ),
    Edge(
        LOSS,
        "a rule's order holds the vertex of the other nodes",
        (rule([2], 2, [([0, 1], [0])]), order(-1, 0, 1)),
        (rule([2], 2, [([0, 1], [0])]), order(0, 1)),
        "and -1",
    ),
    Edge(
        LOSS,
        "a rule's workers are connected along every digit",
        (rule([2, 2], 1, [([0], [0, 1])]), order(-1, 0)),
        (rule([2, 2], 1, [([0], [0])]), order(-1, 0)),
        "groups that connect everybody (digits [1])",
    ),
    Edge(
        LOSS,
        "a rule's local ranks are connected",
        (rule([2], 2, [([0, 1], [0])]), order(-1, 0, 1)),
        (rule([2], 2, [([0], [0]), ([1], [0])]), order(-1, 0, 1)),
        "groups that connect everybody (digits [])",
    ),
    Edge(
        LOSS,
        "an order of groups only",
        (groups(3, *[[one] for one in BOTH]), order(0, 1, 2)),
        (graph(3, K3), order(0, 1, 2)),
        "0 <= relax < 2",
    ),
    Edge(
        LOSS,
        "a root leads to all survivors",
        (graph(4, ROUND4), roots(1, 0, 0, 0)),
        (graph(4, STAR4), roots(1, 0, 0, 0)),
        "leads to all survivors",
    ),
    Edge(
        LOSS,
        "a root is not the lost one",
        (graph(4, ROUND4), roots(1, 0, 0, 0)),
        (graph(4, ROUND4), roots(1, 1, 0, 0)),
        "leads to all survivors",
    ),
    Edge(
        LOSS,
        "a root for every worker",
        (graph(4, ROUND4), roots(1, 0, 0, 0)),
        (graph(4, ROUND4), roots(1, 0, 0)),
        "4 roots",
    ),
    Edge(
        LOSS,
        "edges of the way weigh something",
        (graph(3, K3), roots(1, 0, 0)),
        (graph(3, [(s, t, 0 if (s, t) in ((1, 2), (2, 1)) else w) for s, t, w in K3]), roots(1, 0, 0)),
        "leads to all survivors",
    ),
    Edge(
        LOSS,
        "no negative weight",
        (graph(3, K3), roots(1, 0, 0)),
        (graph(3, K3, [(0, 1, "-1/100"), (1, 0, "-1/100")]), roots(1, 0, 0)),
        "none negative",
    ),
    Edge(
        LOSS,
        "a positive weight on oneself",
        (graph(3, K3, [(0, 1, "99/100")]), roots(1, 0, 0)),
        (graph(3, K3, [(0, 1, 1)]), roots(1, 0, 0)),
        "positive weights on oneself",
    ),
    Edge(
        LOSS,
        "roots of weighted graphs only",
        (graph(3, K3), roots(1, 0, 0)),
        (groups(3, *[[one] for one in BOTH]), roots(1, 0, 0)),
        "expected order",
    ),
    # limit: differences shrink to a quarter
    Edge(
        LIMIT,
        "r bounds every eigenvalue but one",
        (EVEN, limit(["1/3", "2/3"], 0, Fraction(1, 4) + TINY, [[2**20]], 1)),
        (EVEN, limit(["1/3", "2/3"], 0, Fraction(1, 4) - TINY, [[2**20]], 1)),
        ".rate",
    ),
    Edge(
        LIMIT,
        "r is below 1",
        (graph(2, [(0, 1, "1/1000")]), limit([1, 0], 0, Fraction(999, 1000) + TINY, [[2**20]], 1)),
        (graph(2, [(0, 1, 0)]), limit([1, 0], 0, 1, [[2**20]], 1)),
        "below 1",
    ),
    Edge(
        LIMIT,
        "r is not negative",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 1)),
        (EVEN, limit(["1/3", "2/3"], 0, "-1/2", [[2**20]], 1)),
        "above 0 and below 1",
    ),
    Edge(
        LIMIT,
        "u bounds the form from below",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 2**20 - 1)),
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 2**20 + 1)),
        ".floor",
    ),
    Edge(
        LIMIT,
        "u is positive",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 1)),
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 0)),
        ".floor",
    ),
    Edge(
        LIMIT,
        "weights sum to 1",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 1)),
        (EVEN, limit(["1/3", Fraction(2, 3) + TINY], 9, "1/2", [[2**20]], 1)),
        "sum to 1",
    ),
    Edge(
        LIMIT,
        "a weight for every worker",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 1)),
        (EVEN, limit([1], 9, "1/2", [[2**20]], 1)),
        "2 weights",
    ),
    # w = (1/3 + e, 2/3 - e): d = -3e/4, H = 4u, so the error is (3e/4)·2/(1 - 1/2) = 3e
    Edge(
        LIMIT,
        "the error covers what a period changes",
        (EVEN, limit([Fraction(1, 3) + TINY, Fraction(2, 3) - TINY], 3 * TINY, "1/2", [[2**20]], 2**18)),
        (EVEN, limit([Fraction(1, 3) + TINY, Fraction(2, 3) - TINY], 3 * TINY - TINY**2, "1/2", [[2**20]], 2**18)),
        "an error that covers",
    ),
    Edge(
        LIMIT,
        "the error is not negative",
        (EVEN, limit(["1/3", "2/3"], 1, "1/2", [[2**20]], 1)),
        (EVEN, limit(["1/3", "2/3"], -1, "1/2", [[2**20]], 1)),
        "an error that covers",
    ),
    Edge(
        LIMIT,
        "the form is a triangle",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 1)),
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20, 0]], 1)),
        "rows of 1, 2",
    ),
    Edge(
        LIMIT,
        "the form has n - 1 rows",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 1)),
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20], [0, 1]], 1)),
        "1 rows",
    ),
    Edge(
        LIMIT,
        "of weighted graphs only",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 1)),
        (groups(2, [([0, 1], "1/2")]), limit(["1/2", "1/2"], 0, "3/4", [[2**20]], 1)),
        "a weighted graph",
    ),
    # what keeps workers apart
    Edge(
        STEADY,
        "relax <= 2 in every group",
        (settled(2), HUGE_COVARIANCE),
        (settled("5/2"), HUGE_COVARIANCE),
        "0 <= relax <= 2",
    ),
    Edge(
        STEADY,
        "0 <= relax in every group",
        (settled(0), HUGE_COVARIANCE),
        (settled("-1/2"), HUGE_COVARIANCE),
        "0 <= relax <= 2",
    ),
    Edge(STEADY, "so for drift: relax <= 2", (settled(2), ZERO_STATE), (settled("5/2"), ZERO_STATE), "0 <= relax <= 2"),
    Edge(
        STEADY,
        "no negative weight, in round 2 either",
        (thirds("1/9"), ZERO_STATE),
        (thirds("-1/9"), ZERO_STATE),
        "no negative weight",
    ),
    Edge(STEADY, "a weight may be 0", (thirds(0), ZERO_STATE), (thirds("-1/100"), ZERO_STATE), "no negative weight"),
    Edge(
        STEADY,
        "no worker keeps less than nothing",
        (thirds(1), ZERO_STATE),
        (thirds("101/100"), ZERO_STATE),
        "no negative weight",
    ),
    Edge(
        STEADY,
        "columns sum to 1, in round 2 either",
        (thirds("1/9"), ZERO_STATE),
        (thirds("1/9", back="1/8"), ZERO_STATE),
        "columns that sum to 1",
    ),
    Edge(
        DISTANCE,
        "X is more than a period makes of it",
        (HALF, distance(10**6, [49, -39, 49])),
        (HALF, distance(10**6, [47, -37, 47])),
        "more than a period makes of it",
    ),
    Edge(
        DISTANCE,
        "the traces come to the bound at most",
        (HALF, distance("557/2500", [110, -90, 110])),
        (HALF, distance("1113/5000", [110, -90, 110])),
        "at least 0.2226",
    ),
    Edge(
        DISTANCE,
        "a matrix for every class",
        (NODES, distance(10**6, *[[2**20, 0, 2**20]] * 2)),
        (NODES, distance(99, [2**20, 0, 2**20])),
        "2 classes",
    ),
    Edge(
        DISTANCE,
        "a triangle of as many rows as workers",
        (HALF, distance(10**6, [49, -39, 49])),
        (HALF, distance(10**6, [49, -39])),
        "3 numbers",
    ),
    Edge(
        DRIFT,
        "c squared < 1",
        (groups(2, [([0, 1], "1/1000")]), drift(10**9, 1 - Fraction(1, 1000), [0] * 4)),
        (groups(4, [[0, 1], [2, 3]]), drift(1000, 1, [0] * 16)),
        "below 1",
    ),
    Edge(
        DRIFT,
        "c squared bounds the norm",
        (HALF, drift(10**6, Fraction(1, 4) + Fraction(1, 2**29), [0] * 4)),
        (HALF, drift(10**6, Fraction(1, 4) - TINY, [0] * 4)),
        "a larger one",
    ),
    Edge(
        DRIFT,
        "so on every class: nodes that never meet drift without end",
        (NODES, drift(10**6, "3/4", [0] * 4, [0] * 4)),
        (rule([2], 2, [([0, 1], [])]), drift(10**6, "3/4", [0] * 4, [0] * 4)),
        "a larger one",
    ),
    # Z = 0: S = 1/4, r = 1/2, 2/(1 - c²) = 8/3, and 2 stands for the root of N: (1/2 + 2·4/3)² / 2; exact: 1/2
    Edge(
        DRIFT,
        "the squares come to the bound at most",
        (HALF, drift(Fraction(50139, 10000), Fraction(1, 4) + Fraction(1, 2**29), [0] * 4, bits=32)),
        (HALF, drift(Fraction(50138, 10000), Fraction(1, 4) + Fraction(1, 2**29), [0] * 4, bits=32)),
        "at least 5.0138",
    ),
    Edge(
        DRIFT,
        "a state that stays says the drift itself",
        (
            HALF,
            drift(
                Fraction(1, 2) + Fraction(1, 10**6),
                Fraction(1, 4) + Fraction(1, 2**29),
                [2**31, -(2**31), -(2**31), 2**31],
                bits=32,
            ),
        ),
        (HALF, drift(Fraction(1, 2), Fraction(1, 4) + Fraction(1, 2**29), [2**31, -(2**31), -(2**31), 2**31], bits=32)),
        "at least 0.5",
    ),
    Edge(
        DRIFT,
        "a state for every class",
        (NODES, drift(10**6, "3/4", [0] * 4, [0] * 4)),
        (NODES, drift(10**6, "3/4", [0] * 4)),
        "2 classes",
    ),
    Edge(
        DRIFT,
        "a column for each push",
        (NODES, drift(10**6, "3/4", [0] * 2, [0] * 2, of="node")),
        (NODES, drift(10**6, "3/4", [0] * 4, [0] * 4, of="node")),
        "a column for each push",
    ),
    Edge(
        DRIFT,
        "a node's push where the rule sees nodes",
        (NODES, drift(10**6, "3/4", [0] * 2, [0] * 2, of="node")),
        (document(2, 2, kind="allreduce"), drift(10**6, "3/4", [0], [0], of="node")),
        "sees the nodes",
    ),
    Edge(
        DRIFT,
        "a push for each node as the file lists them",
        (UNEVEN, drift(10**6, "3/4", [0] * 6, of="node")),
        (UNEVEN, drift(10**6, "3/4", [0] * 9, of="node")),
        "a column for each push",
    ),
    # averages that allow for paces 1, 2, 3; the prover's data
    Edge(
        DRIFT,
        "an edge averages what the mean pace of all workers pushes",
        (NORMALISED, drift(NORMALISED_DRIFT, NORMALISED_RATE, NORMALISED_STATE, bits=23)),
        (NORMALISED, drift(NORMALISED_DRIFT * (1 - Fraction(1, 10**6)), NORMALISED_RATE, NORMALISED_STATE, bits=23)),
        ".at_most",
    ),
    Edge(
        DRIFT,
        "a group averages what its own mean pace pushes",
        (SHARED, drift(SHARED_DRIFT, SHARED_RATE, SHARED_STATE, bits=24)),
        (SHARED, drift(SHARED_DRIFT * (1 - Fraction(1, 10**6)), SHARED_RATE, SHARED_STATE, bits=24)),
        ".at_most",
    ),
    # gaps: K3 with weights 1/4 has the eigenvalues 1, 1/4, 1/4
    Edge(
        GAPS,
        "at_least bounds the gap from below",
        (graph(3, K3), gap("slem", "3/4", "4/5", 1, 1, 1)),
        (graph(3, K3), gap("slem", Fraction(3, 4) + TINY, "4/5", 1, 1, 1)),
        "0 to 1 eigenvalues",
    ),
    Edge(
        GAPS,
        "less_than bounds it from above",
        (graph(3, K3), gap("slem", "2/3", Fraction(3, 4) + TINY, 1, 1, 1)),
        (graph(3, K3), gap("slem", "2/3", "3/4", 1, 1, 1)),
        "2 to 3 eigenvalues",
    ),
    Edge(
        GAPS,
        "by modulus: the negative end counts",
        (pair("3/4", "3/4"), gap("slem", "1/2", Fraction(1, 2) + TINY, 1, 1)),
        (pair("3/4", "3/4"), gap("slem", Fraction(1, 2) + TINY, 1, 1, 1)),
        "0 to 1 eigenvalues",
    ),
    Edge(
        GAPS,
        "hop: by real order, without self-loops",
        (graph(3, K3), gap("hop", "3/2", Fraction(3, 2) + TINY, 2, 2, 2)),
        (graph(3, K3), gap("hop", Fraction(3, 2) + TINY, 2, 2, 2, 2)),
        "0 to 1 eigenvalues",
    ),
    Edge(
        GAPS,
        "sigma: the bounds are squared",
        (graph(3, K3), gap("sigma", "3/4", Fraction(3, 4) + TINY, 1, 1, 1)),
        (graph(3, K3), gap("sigma", Fraction(3, 4) + TINY, 1, 1, 1, 1)),
        "0 to 1 eigenvalues",
    ),
    Edge(
        GAPS,
        "the measure makes it symmetric",
        (EVEN, gap("slem", "3/4", "4/5", 1, 2)),
        (EVEN, gap("slem", "3/4", "4/5", 1, 1)),
        "a reversible or undirected graph",
    ),
    Edge(
        GAPS,
        "the measure of hop is that of degrees",
        (graph(3, K3), gap("hop", "3/2", 2, 2, 2, 2)),
        (graph(3, K3), gap("hop", "3/2", 2, 1, 1, 1)),
        "measure",
    ),
    Edge(
        GAPS,
        "the measure is positive",
        (EVEN, gap("slem", "3/4", "4/5", 1, 2)),
        (EVEN, gap("slem", "3/4", "4/5", -1, -2)),
        "a positive number",
    ),
    Edge(
        GAPS,
        "a measure for each worker",
        (EVEN, gap("slem", "3/4", "4/5", 1, 2)),
        (EVEN, gap("slem", "3/4", "4/5", 1, 2, 3)),
        "a positive number for each",
    ),
    Edge(
        GAPS,
        "one round",
        (graph(3, K3), gap("slem", "3/4", "4/5", 1, 1, 1)),
        (graph(3, K3, K3), gap("slem", "3/4", "4/5", 1, 1, 1)),
        "a graph of one round",
    ),
    Edge(
        GAPS,
        "up to 64 workers",
        (graph(64, []), gap("slem", 0, Fraction(1, 9), *[1] * 64)),
        (graph(65, []), gap("slem", 0, "1/9", *[1] * 65)),
        "n <= 64",
    ),
    Edge(
        LIMIT,
        "r bounds the eigenvalues in every direction",
        (graph(4, ROUND4), limit(["1/4"] * 4, 0, Fraction(1, 2) + TINY, MEAN4, 2**19)),
        (graph(4, ROUND4), limit(["1/4"] * 4, 0, Fraction(1, 2) - TINY, MEAN4, 2**19)),
        ".rate",
    ),
    Edge(
        LIMIT,
        "u bounds the form in every direction",
        (graph(4, ROUND4), limit(["1/4"] * 4, 0, "3/4", MEAN4, 2**20 - 1)),
        (graph(4, ROUND4), limit(["1/4"] * 4, 0, "3/4", MEAN4, 2**20 + 1)),
        ".floor",
    ),
    # ranges of what may stand in an entry
    Edge(
        LIMIT,
        "numbers of the form below 2^256",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**256 - 1]], 1)),
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**256]], 1)),
        ".form[0]: must hold integers",
    ),
    Edge(
        LIMIT,
        "and above -2^256",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**20]], 1)),
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[-(2**256)]], 1)),
        ".form[0]: must hold integers",
    ),
    Edge(
        LIMIT,
        "u below 2^256",
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**256 - 1]], 2**256 - 2**240)),
        (EVEN, limit(["1/3", "2/3"], 0, "1/2", [[2**256 - 1]], 2**256)),
        ".floor: must be an integer",
    ),
    Edge(
        DISTANCE,
        "up to 64 bits",
        (HALF, distance(10**6, [2**70, 0, 2**70], bits=64)),
        (HALF, distance(10**6, [2**70, 0, 2**70], bits=65)),
        ".bits: must be an integer 0..64",
    ),
    Edge(
        DISTANCE,
        "numbers of the covariance below 2^96",
        (HALF, distance(10**30, [2**96 - 1, 0, 2**96 - 1], bits=0)),
        (HALF, distance(10**30, [2**96, 0, 2**96], bits=0)),
        ".covariance[0]: must hold integers",
    ),
    Edge(
        DISTANCE,
        "and at least -2^96",
        (HALF, distance(10**30, [2**96 - 1, -(2**95), 2**96 - 1], bits=0)),
        (HALF, distance(10**30, [2**96 - 1, -(2**96) - 1, 2**96 - 1], bits=0)),
        ".covariance[0]: must hold integers",
    ),
    Edge(
        DRIFT,
        "up to 64 bits",
        (HALF, drift(10**6, "1/2", [0] * 4, bits=64)),
        (HALF, drift(10**6, "1/2", [0] * 4, bits=65)),
        ".bits: must be an integer 0..64",
    ),
    Edge(
        DRIFT,
        "numbers of the state below 2^96",
        (HALF, drift(10**70, "1/2", [2**96 - 1, 0, 0, -(2**96)], bits=0)),
        (HALF, drift(10**70, "1/2", [2**96, 0, 0, 0], bits=0)),
        ".state[0]: must hold integers",
    ),
    # near the limits of what is checked at all
    Edge(
        MEMBERSHIP,
        "a worker that skips before others",
        (rule([2], 2, [([1], [0])]), answers("-", "1 1", "-", "1 1")),
        (rule([2], 2, [([1], [0])]), answers("-", "1 1", "-", "-")),
        ".answers",
    ),
    Edge(
        LOSS,
        "a rule's groups contract: relax > 0",
        (rule([2, 2], 1, [([0], [0])], [([0], [1], "1/100")]), order(-1, 0)),
        (rule([2, 2], 1, [([0], [0])], [([0], [1], 0)]), order(-1, 0)),
        "groups that connect everybody (digits [1])",
    ),
    Edge(
        LOSS,
        "a root leads on over every edge",
        (graph(3, FORWARD), roots(1, 0, 0)),
        (graph(3, FORWARD), roots(1, 0, 1)),
        ".roots[2] is 1; expected one that leads to all survivors",
    ),
    *(
        Edge(
            "certificate.py",
            f"of steps that are known: {claim['claim']}",
            (groups(3, *[[one] for one in BOTH]), claim),
            (groups(3, *[[one] for one in BOTH], when={"quorum": {"quorum": "solo"}}), claim),
            "; expected a claim about groups by quorum",
        )
        for claim in (order(0, 1, 2), distance(10**9, COVARIANCE), drift(10**9, "3/4", [0] * 9))
    ),
    Edge(
        DISTANCE,
        "the very bound",
        (HALF, distance(Fraction(7471105, 2**25), [110, -90, 110])),
        (HALF, distance(Fraction(7471105, 2**25) - TINY, [110, -90, 110])),
        "at least 0.2226",
    ),
    Edge(
        DRIFT,
        "the very bound, with what rounding leaves",
        (HALF, drift(HALF_DRIFT, "1/2", [2**7, -(2**7), -(2**7), 2**7])),
        (HALF, drift(HALF_DRIFT - TINY, "1/2", [2**7, -(2**7), -(2**7), 2**7])),
        "at least 0.5000",
    ),
    Edge(
        DRIFT,
        "nodes that the file does not list",
        (PAIRS, drift(PAIRS_DRIFT, "3/4", [0] * 8, of="node", bits=32)),
        (PAIRS, drift(PAIRS_DRIFT - TINY, "3/4", [0] * 8, of="node", bits=32)),
        ".at_most",
    ),
    Edge(
        STEADY,
        "a rule whose nodes have other paces, group by group",
        (PACED, distance(PACED_DISTANCE, PACED_COVARIANCE)),
        (PACED, distance(PACED_DISTANCE - TINY, PACED_COVARIANCE)),
        ".at_most",
    ),
    *(
        Edge(file, f"up to 1024 {what}", true, false, says)
        for file, what, true, false, says in (
            (RATE, "rows", (HALF, rate("factor", 1)), (groups(1025, [[0, 1]]), rate("factor", 1)), "over 1024 workers"),
            (
                STEADY,
                "places",
                (HALF, distance(10**6, [49, -39, 49])),
                (groups(1025, [[0, 1]]), distance(10**6, [])),
                "claims[0] (consensus-distance): over 1024 rows",
            ),
            (
                STEADY,
                "places that are pushed",
                (HALF, drift(10**6, "1/2", [0] * 4)),
                (groups(1025, [[0, 1]]), drift(10**6, "1/2", [])),
                "claims[0] (drift-worker): over 1024 rows",
            ),
            (
                STEADY,
                "workers of different pace",
                (PACED, distance(10**6, PACED_COVARIANCE)),
                (rule([1025], 1, [([0], [0])], pace=[2] + [1] * 1024), distance(10**6, [])),
                "claims[0] (consensus-distance): over 1024 workers of different pace",
            ),
        )
    ),
    Edge(
        STEADY,
        "numbers of a reasonable length",
        (HALF, distance(10**6, [49, -39, 49])),
        (groups(1024, [([2 * i, 2 * i + 1], f"1/{10**63 + k}") for i, k in enumerate((1, 3, 7))]), distance(9, [])),
        "claims[0] (consensus-distance): factors with too long denominators",
    ),
    Edge(
        "period.py",
        "up to 12 digits",
        (rule([2] * 12, 1, [([0], list(range(12)))]), PRODUCT),
        (rule([2] * 13, 1, [([0], list(range(13)))]), PRODUCT),
        "claims[0] (exact-consensus/product): over 12 digits",
    ),
    # the first two meet, the first and the last, and the last two: 2/3 of the way is the mean of all three
    Edge(
        EXACT,
        "a factor is divided by what stands below its line",
        (groups(3, [[0, 1]], [([1, 2], "2/3")], [[0, 2]]), PROBABLE),
        (groups(3, [[0, 1]], [([1, 2], "333333/500000")], [[0, 2]]), PROBABLE),
        "modulo a drawn prime",
    ),
    Edge(EXACT, "no groups make no mean", (groups(4, *CUBE), PROBABLE), (groups(2, []), PROBABLE), "modulo a drawn"),
    Edge(
        EXACT,
        "up to 5*10^7 workers times phases",
        (groups(4, *CUBE), PROBABLE),
        (groups(5 * 10**7 + 1, [[0, 1]]), PROBABLE),
        "claims[0] (exact-consensus-probable): over 50000000 workers times phases",
    ),
    Edge(
        LIMIT,
        "r is above 0",
        (pair("1/2", "1/2"), limit(["1/2", "1/2"], 0, TINY, [[2**20]], 1)),
        (pair("1/2", "1/2"), limit(["1/2", "1/2"], 0, 0, [[2**20]], 1)),
        "a rate above 0 and below 1",
    ),
    Edge(
        LIMIT,
        "up to 64 workers",
        *((whole(n), limit([f"1/{n}"] * n, 0, "1/2", diagonal(n - 1), 1)) for n in (64, 65)),
        "(limit) is 65; expected a weighted graph of up to 64 workers",
    ),
    Edge(
        GAPS,
        "a number below 0 lies below every modulus",
        (graph(3, K3), gap("slem", "3/4", "3/2", 1, 1, 1)),
        (graph(3, K3), gap("slem", "5/4", "3/2", 1, 1, 1)),
        '.at_least is "5/4"; expected 0 to 1 eigenvalues beyond, not 3',
    ),
    Edge(
        GAPS,
        "nobody is left out by a measure of 0",
        (graph(3, K3), gap("slem", "3/4", "4/5", 1, 1, 1)),
        (graph(3, [(0, 1, "1/4"), (1, 0, "1/4"), (0, 2, "1/10")]), gap("slem", "1/2", "3/4", 1, 1, 0)),
        "a positive number for each",
    ),
    # outer steps from anchors of each worker's own
    Edge(
        OUTER_STEPS,
        "below 1 workers come to agree",
        (OWN, agreeing("1/2", OWN_WEIGHT)),
        (OWN, agreeing("1", OWN_WEIGHT)),
        '.squared is "1"; expected below 1',
    ),
    Edge(
        OUTER_STEPS,
        "a period shortens by c: 9 c² is above 9/4 + 2",
        (OWN, agreeing("19/40", OWN_WEIGHT)),
        (OWN, agreeing("17/36", OWN_WEIGHT)),
        ".squared",
    ),
    Edge(
        OUTER_STEPS,
        "P is more than the identity",
        (OWN, agreeing("1/2", [9, 0, 9, 0, 0, 2, 0, 0, 0, 2])),
        (OWN, agreeing("1/2", [9, 0, 9, 0, 0, 1, 0, 0, 0, 1])),
        ".weights[0] is",
    ),
    Edge(
        OUTER_STEPS,
        "with momentum a period shortens less",
        (OWN, agreeing("1/2", OWN_WEIGHT)),
        (own(2, [[0, 1]], momentum="9/10"), agreeing("1/2", OWN_WEIGHT)),
        ".squared",
    ),
    Edge(
        OUTER_STEPS,
        "on every class: nodes that never meet do not agree",
        (own([2], 2, [([0, 1], [0])]), agreeing("1/2", OWN_WEIGHT, OWN_WEIGHT)),
        (own([2], 2, [([0, 1], [])]), agreeing("1/2", OWN_WEIGHT, OWN_WEIGHT)),
        ".squared",
    ),
    Edge(
        OUTER_STEPS,
        "a P for every class",
        (own([2], 2, [([0, 1], [0])]), agreeing("1/2", OWN_WEIGHT, OWN_WEIGHT)),
        (own([2], 2, [([0, 1], [0])]), agreeing("1/2", OWN_WEIGHT)),
        ".weights is 1; expected 2 classes",
    ),
    Edge(
        OUTER_STEPS,
        "a triangle of two rows for each worker",
        (OWN, agreeing("1/2", OWN_WEIGHT)),
        (OWN, agreeing("1/2", OWN_WEIGHT[:9])),
        ".weights[0] is 9; expected a triangle of 4 rows",
    ),
    Edge(
        OUTER_STEPS,
        "an integer of up to 64 bits",
        (OWN, agreeing("1/2", [9 * 2**60, 0, 9 * 2**60, 0, 0, 2**61, 0, 0, 0, 2**61])),
        (OWN, agreeing("1/2", [2**64, 0, 2**64, 0, 0, 2**61, 0, 0, 0, 2**61])),
        ".weights[0]",
    ),
    Edge(
        OUTER_STEPS,
        "only where anchors are each worker's own",
        (OWN, agreeing("1/2", OWN_WEIGHT)),
        (HALF, agreeing("1/2", OWN_WEIGHT)),
        "expected a claim about rounds",
    ),
    Edge(
        OUTER_STEPS,
        "no claim about matrices where anchors are",
        (HALF, rate("pivots", "1/4")),
        (OWN, rate("pivots", "1/4")),
        "expected a claim about own anchors",
    ),
    Edge(
        "strict_json.py",
        "a fraction in lowest terms",
        (HALF, rate("pivots", "1/4")),
        (HALF, rate("pivots", "2/8")),
        '.squared is "2/8"; expected a fraction string in lowest terms',
    ),
]
