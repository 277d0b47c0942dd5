"""Boundary cases for the checker: for every inequality and premise, data that just satisfy it, and data that just fail.

`EDGES` has one row each: the checker's file, the rule in words, the true case, the false case, and a part of the
sentence that rejects the false one. tests/verify/checker/guards.md lists them.
"""

import json
from fractions import Fraction
from hashlib import sha256
from typing import Any, NamedTuple

from helpers.readings import read
from partreduce.verify import checker

Case = tuple[dict[str, Any], dict[str, Any]]
"""A schedule document and a certificate's entry."""


class Edge(NamedTuple):
    file: str
    rule: str
    true: Case
    false: Case
    says: str


def aside(file, rule, *row):
    """Return the row of a rule about entries; its true and its false entry belong to the same schedule."""
    raw, true, false, says = row
    return Edge(file, rule, (raw, true), (raw, false), says)


def document(nodes, size, **strategy):
    cluster = {"num_nodes": nodes, "workers_per_node": size}
    return {"format": "partreduce.schedule", "version": 1, "name": "x", "cluster": cluster, "strategy": strategy}


def groups(n, *phases, **options):
    """Return a static schedule; a group is a list of members, or (members, relaxation)."""
    listed = [
        [{"group": g} if isinstance(g, list) else {"group": g[0], "relaxation": g[1]} for g in phase]
        for phase in phases
    ]
    return document(n, 1, kind="static", phases=listed, **options)


def graph(n, *rounds, **options):
    """Return a schedule of weighted graphs; each round is a list of (source, target, weight)."""
    listed = []
    for edges in rounds:
        ascending = sorted(edges, key=lambda edge: (edge[1], edge[0]))
        weights = [weight for _, _, weight in ascending]
        is_same = len(set(map(str, weights))) == 1
        listed.append({"edges": [[s, t] for s, t, _ in ascending], "weights": weights[0] if is_same else weights})
    return document(n, 1, kind="neighbor", rounds=listed, **options)


def rule(radices, size, *phases, **options):
    """Return a rule; blocks are (local ranks, digits) or (local ranks, digits, relaxation)."""
    listed = [
        [dict(zip(("local", "across", "relaxation"), block, strict=False)) for block in phase] for phase in phases
    ]
    nodes = 1
    for radix in radices:
        nodes *= radix
    return document(nodes, size, kind="static", node_radices=list(radices), phases=listed, **options)


def certificate_of(schedule, *claims):
    """Return a certificate with these claims about a schedule that the checker has read."""
    shape = {"schedule_sha256": schedule.sha256, "num_workers": schedule.num_workers, "period": schedule.period}
    return {"format": "partreduce.certificate", "version": 1, **shape, "claims": list(claims)}


def certificate(raw, *claims, **changed):
    """Return a certificate with these claims about a schedule document, with some fields changed."""
    return certificate_of(checker.read_schedule(json.loads(json.dumps(raw))), *claims) | changed


def check_entry(raw, entry):
    """Return the checker's objection to one entry of a certificate; None if it holds."""
    return check_entry_of(read(raw), entry)


def check_entry_of(schedule, entry):
    """The same, of a schedule that the checker has read."""
    try:
        list(checker.check(json.loads(json.dumps(certificate_of(schedule, entry))), schedule))
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


def distance(at_most, *covariance, bits=8):
    return {"claim": "consensus-distance", "at_most": str(at_most), "bits": bits, "covariance": list(covariance)}


def answers(*lines):
    """Return the claim `membership`.

    Each line has every worker's smallest group member and relaxation in one phase, or "-".
    """
    return {"claim": "membership", "answers": sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()}


def losing(raw, rule="keep_groups", failures=1):
    return raw | {"failure_plan": {"rule": rule, "failures": failures}}


def survives(failures, classes, *after):
    """Return the claim `survives`: `classes` are (failed workers, bound), `after` each class's lines of `answers`."""
    text = "".join(f"{line}\n" for lines in after for line in lines.split(","))
    hashed = sha256(text.encode()).hexdigest() if after else ""
    listed = [{"failed": list(failed), "squared": str(squared)} for failed, squared in classes]
    return {"claim": "survives", "failures": failures, "classes": listed, "answers": hashed}


PRODUCT = {"claim": "exact-consensus", "method": "product"}
HALF = groups(2, [([0, 1], "1/2")])
"""A period halves a difference."""
TINY = Fraction(1, 10**12)
EVEN = graph(2, [(1, 0, "1/2"), (0, 1, "1/4")])
"""A round leaves a quarter of a difference; the limit is 1/3 of worker 0 plus 2/3 of worker 1."""


def meets(relaxation):
    return groups(3, [[0, 1]], [([1, 2], relaxation)])


def pair(first, second):
    return graph(2, [(1, 0, first), (0, 1, second)])


def four(*second):
    return groups(4, [[0, 1], [2, 3]], list(second))


def thirds(last, *, back=None):
    """Return a graph with the mean of three workers, then a round in which only two exchange."""
    mean = [(s, t, "1/3") for s in range(3) for t in range(3) if s != t]
    return graph(3, mean, [(0, 1, last), (1, 0, last if back is None else back)])


def settle(relaxation):
    """Return groups of two workers, then of all three: the mean of a period depends on nothing before it."""
    return groups(3, [([0, 1], relaxation)], [[0, 1, 2]])


COVARIANCE = [2**20, 0, 2**20, 0, 0, 2**20]
HUGE_COVARIANCE = distance(10**9, COVARIANCE)
CUBE = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
NODES = rule([2], 2, [([0], [0])], [([0, 1], [])])
"""Local rank 0 averages across both nodes, then each node averages."""

MIXED = rule([2, 3], 4, [([0], [1], "1/2"), ([1, 2], [0]), ([3], [])])
"""Of each node's four workers the first averages along one digit, two along the other, and the last skips."""
ANSWERED = [line for v in range(6) for line in (f"{v // 3 * 12} 1/2", *[f"{v % 3 * 4 + 1} 1"] * 2, "-")]

FINE = groups(2, [([0, 1], f"{2**140 + 1}/{2**141}")])
"""A difference is a little less than halved; the numbers of k periods have 141·k bits."""

PACED = rule([2], 2, [([0], [0])], [([1], [0])], [([0, 1], [])], steps_per_round=[1, 2, 1, 3])
PACED_COVARIANCE = [2**20 * (i == j) for i in range(4) for j in range(i + 1)]
MEMBERSHIP = "groups.py"
TREES, GRAPHS = "consensus.py", "consensus.py"
RATE, EXACT = "consensus.py", "consensus.py"
STEADY, DISTANCE = "consensus_distance.py", "consensus_distance.py"

OUTER_STEPS = "outer_steps.py"


def own(*shape, **outer):
    """Return groups or a rule with outer steps from each worker's own outer parameters, at rate 1/2."""
    make = groups if isinstance(shape[0], int) else rule
    return make(*shape, payload={"outer": {"lr": "1/2", "outer_params": "per_worker", **outer}})


def agreeing(squared, *weights):
    return {"claim": "outer-consensus", "squared": squared, "weights": list(weights)}


OWN = own(2, [[0, 1]])
OWN_WEIGHT = [9, 0, 9, 0, 0, 2, 0, 0, 0, 2]
"""A difference x of outer parameters becomes x/2 with momentum −x: 9/4 + 2 is less than half of 9."""


def own_weight(n):
    """Return the same for n workers that all average together."""
    return [(9 if i < n else 2) * (i == j) for i in range(2 * n) for j in range(i + 1)]


def over_all(nodes=2, size=1, **options):
    return document(nodes, size, kind="allreduce", **options)


SURVIVES = "survives.py"
ALL_3 = groups(3, [[0, 1, 2]])
AFTER_3 = ["0 1,0 1"] * 3
"""The answers of three workers in one group, after the failure of each."""


def alone_3(*bounds):
    return list(zip(([0], [1], [2]), bounds, strict=True))


CHAIN_3 = groups(3, [[0, 1]], [[1, 2]])
PAIRED = rule([4], 2, [([0, 1], [])], [([0, 1], [0], "1/2")])
"""Nodes move half of the way towards each other, which leaves a quarter of the squared difference."""


def after_paired(nodes=4):
    """Return the answers after the failure of each worker; the one left alone on its node skips the first phase."""
    result = []
    for failed in range(2 * nodes):
        alone = failed // 2 * 2
        first = ["-" if i == alone else f"{(i + (i >= alone)) // 2 * 2 - (i >= alone)} 1" for i in range(2 * nodes - 1)]
        result.append(",".join([*first, *["0 1/2"] * (2 * nodes - 1)]))
    return result


TINY_TEXT = str(Fraction(1, 10**12))
HALVED = groups(3, [([0, 1, 2], "1/2")])
TWO_NODES = document(2, 2, kind="static", phases=[[{"group": [0, 1, 2, 3]}]])
CLASSES_OF_TWO_NODES = [([0], 0), ([2], 0), ([0, 1], 0), ([2, 3], 0)]
AFTER_TWO_NODES = [*["0 1,0 1,0 1"] * 4, *["0 1,0 1"] * 2]
DIGITS = rule([2, 2], 1, [([0], [0, 1])])
"""On three nodes this is a rule of one digit."""
SQUARE = rule([2, 2], 1, [([0], [0])], [([0], [1])])


def of_nodes(n):
    """Return a schedule of two nodes of n workers, all in one group."""
    return document(2, n, kind="static", phases=[[{"group": list(range(2 * n))}]])


def after_nodes(n):
    return [*[",".join(["0 1"] * (2 * n - 1))] * (2 * n), *[",".join(["0 1"] * n)] * 2]


def classes_of_nodes(n, of_workers, of_a_node):
    """Return the classes of failures on two nodes of n workers, with bounds: one worker, or a whole node."""
    nodes = [range(n), range(n, 2 * n)]
    return [*(([node[0]], of_workers) for node in nodes), *((list(node), of_a_node) for node in nodes)]


AFTER_A_PAIR = [",".join([*(f"{i // 2 * 2} 1" for i in range(6)), *["0 1/2"] * 6])] * 4
"""The answers of four pairs after the failure of one pair."""

# fmt: off
SURVIVING = [
    aside(SURVIVES, "as many workers as the plan says", losing(ALL_3), survives(1, alone_3(0, 0, 0), *AFTER_3),
        survives(2, alone_3(0, 0, 0), *AFTER_3), ".failures is 2; expected 1"),
    aside(SURVIVES, "every class of failures", losing(ALL_3), survives(1, alone_3(0, 0, 0), *AFTER_3),
        survives(1, alone_3(0, 0, 0)[:2], *AFTER_3), ".classes is 2; expected 3 classes of failures"),
    aside(SURVIVES, "of one node as well", losing(TWO_NODES), survives(1, CLASSES_OF_TWO_NODES, *AFTER_TWO_NODES),
        survives(1, CLASSES_OF_TWO_NODES[:2], *AFTER_TWO_NODES), ".classes is 2; expected 4 classes of failures"),
    aside(SURVIVES, "the smallest failure stands for its class", losing(TWO_NODES),
        survives(1, CLASSES_OF_TWO_NODES, *AFTER_TWO_NODES),
        survives(1, [([1], 0), *CLASSES_OF_TWO_NODES[1:]], *AFTER_TWO_NODES), ".classes[0].failed[0] is 1; expected 0"),
    aside(SURVIVES, "smaller failures first", losing(TWO_NODES), survives(1, CLASSES_OF_TWO_NODES, *AFTER_TWO_NODES),
        survives(1, sorted(CLASSES_OF_TWO_NODES), *AFTER_TWO_NODES),
        ".classes[1].failed is [0, 1]; expected a list of 1: [2]"),
    aside(SURVIVES, "under All-Reduce no class", losing(ALL_3, "all_reduce"), survives(1, [], *AFTER_3),
        survives(1, alone_3(0, 0, 0), *AFTER_3), ".classes is 3; expected 0 classes of failures"),
    aside(SURVIVES, "a rule that is applied again is without the last node", losing(DIGITS, "reapply_rule"),
        survives(1, [([3], 0)], *["0 1,0 1,0 1"] * 4), survives(1, [([0], 0)], *["0 1,0 1,0 1"] * 4),
        ".classes[0].failed[0] is 0; expected 3"),
    aside(SURVIVES, "all survivors keep of their own what all workers kept",
        losing(document(3, 1, kind="allreduce", sync={"merge": {"alpha": "1/3"}}), "all_reduce"),
        survives(1, [], *["0 2/3,0 2/3"] * 3), survives(1, [], *AFTER_3), ".answers"),
    aside(SURVIVES, "a rule that is applied again has its groups on the nodes that are left",
        losing(SQUARE, "reapply_rule"), survives(1, [([3], 0)], *["0 1,0 1,0 1,-,-,-"] * 4),
        survives(1, [([3], 0)], *["0 1,-,0 1,-,1 1,1 1"] * 4), ".answers"),
    Edge(SURVIVES, "of schedules with a failure plan only", (losing(ALL_3), survives(1, alone_3(0, 0, 0), *AFTER_3)),
        (ALL_3, survives(1, [], *AFTER_3)), 'is "survives"; expected a schedule with a failure plan'),
    aside(SURVIVES, "a bound of at most 1", losing(ALL_3), survives(1, alone_3(1, 1, 1), *AFTER_3),
        survives(1, alone_3(1, 1, 1 + TINY), *AFTER_3),
        '.classes[2].squared is "1000000000001/1000000000000"; expected from 0 to 1'),
    Edge(SURVIVES, "the kept groups join all survivors", (losing(CHAIN_3, "all_reduce"), survives(1, [], *AFTER_3)),
        (losing(CHAIN_3), survives(1, alone_3(1, 1, 1), "-,-,0 1,0 1", "-,-,-,-", "0 1,0 1,-,-")),
        '.classes[1] is "consensus"; expected groups that join all survivors; they leave 2 parts'),
    Edge(SURVIVES, "relaxation > 0 in groups that join",
        (losing(groups(3, [([0, 1, 2], TINY_TEXT)])), survives(1, alone_3(1, 1, 1), *[f"0 {TINY},0 {TINY}"] * 3)),
        (losing(groups(3, [([0, 1, 2], 0)])), survives(1, alone_3(1, 1, 1), *["0 0,0 0"] * 3)), "they leave 2 parts"),
    Edge(SURVIVES, "relaxation < 2 in every group",
        (losing(groups(3, [([0, 1, 2], str(2 - TINY))])),
            survives(1, alone_3(1, 1, 1), *[f"0 {2 - TINY},0 {2 - TINY}"] * 3)),
        (losing(groups(3, [([0, 1, 2], 2)], [[0, 1, 2]])), survives(1, alone_3(1, 1, 1), *["0 2,0 2,0 1,0 1"] * 3)),
        "expected 0 <= relaxation < 2 in every group"),
    Edge(SURVIVES, "relaxation >= 0 in every group",
        (losing(groups(3, [([0, 1, 2], 0)], [[0, 1, 2]])), survives(1, alone_3(1, 1, 1), *["0 0,0 0,0 1,0 1"] * 3)),
        (losing(groups(3, [([0, 1, 2], str(-TINY))], [[0, 1, 2]])),
            survives(1, alone_3(1, 1, 1), *[f"0 {-TINY},0 {-TINY},0 1,0 1"] * 3)),
        "expected 0 <= relaxation < 2 in every group"),
    aside(SURVIVES, "what a period of listed groups leaves of differences", losing(HALVED),
        survives(1, alone_3("1/4", "1/4", "1/4"), *["0 1/2,0 1/2"] * 3),
        survives(1, alone_3("1/4", "1/4", Fraction(1, 4) - TINY), *["0 1/2,0 1/2"] * 3), ".classes[2] is"),
    aside(SURVIVES, "what a rule leaves of differences between nodes without failed workers", losing(PAIRED),
        survives(1, [([0], "1/4"), ([0, 1], "1/4")], *after_paired(), *AFTER_A_PAIR),
        survives(1, [([0], Fraction(1, 4) - TINY), ([0, 1], "1/4")], *after_paired(), *AFTER_A_PAIR),
        "expected a larger one, on functions that differ between other nodes"),
    aside(SURVIVES, "what a rule leaves of differences to the node of the failed worker",
        losing(rule([2], 2, [([0, 1], [])], [([0, 1], [0], "1/2")])),
        survives(1, [([0], "1/4"), ([0, 1], 0)], *after_paired(2), *["0 1,0 1,0 1/2,0 1/2"] * 2),
        survives(1, [([0], Fraction(1, 4) - TINY), ([0, 1], 0)], *after_paired(2), *["0 1,0 1,0 1/2,0 1/2"] * 2),
        "expected a larger one: the matrix is indefinite"),
    Edge(SURVIVES, "nodes without failed workers meet, too",
        (losing(rule([3], 1, [([0], [0])])), survives(1, [([0], 0)], *["0 1,0 1"] * 3)),
        (losing(rule([3], 1, [([0], [])])), survives(1, [([0], 1)], *["-,-"] * 3)), "they leave 2 parts"),
    Edge(SURVIVES, "answers wherever there are at most 2^20 lines",
        (losing(over_all(2**11), "all_reduce"), survives(1, [])),
        (losing(over_all(2**9), "all_reduce"), survives(1, [])), ".answers"),
    Edge(SURVIVES, "a bound below 1 for at most 64 cells",
        (losing(of_nodes(64)), survives(1, classes_of_nodes(64, 1, 0), *after_nodes(64))),
        (losing(of_nodes(65)), survives(1, classes_of_nodes(65, 1, 0), *after_nodes(65))),
        "expected 1: there are over 64 cells"),
]

# fmt: off
EDGES = [
    # membership
    aside(MEMBERSHIP, "every group is along its block's digits, with its factor", MIXED, answers(*ANSWERED),
        answers(*ANSWERED[:20], "0 1/2", *ANSWERED[21:]), ".answers"),
    aside(MEMBERSHIP, "a worker alone in its block skips", MIXED, answers(*ANSWERED), answers(*ANSWERED[:-1], "23 1"),
        ".answers"),
    aside(MEMBERSHIP, "every phase is answered", NODES, answers("0 1", "-", "0 1", "-", "0 1", "0 1", "2 1", "2 1"),
        answers("0 1", "-", "0 1", "-"), ".answers"),
    Edge(MEMBERSHIP, "of rules only", (rule([2], 1, [([0], [0])]), answers("0 1", "0 1")),
        (groups(2, [[0, 1]]), answers("0 1", "0 1")), '(membership) is "membership"; expected a rule'),
    Edge(MEMBERSHIP, "at most 2^20 members in all answers", (rule([1024], 1, [([0], [0])]), answers(*["0 1"] * 1024)),
        (rule([1025], 1, [([0], [0])]), answers(*["0 1"] * 1025)),
        '(membership) is "membership"; expected answers of at most 1048576 members in all; not 1050625'),
    # no claim before groups are disjoint
    Edge("groups.py", "groups of one phase share no worker",
        (groups(4, [[0, 1], [2, 3]], [[1, 2]]), trees([[0, 0, 1], [0, 2, 3], [1, 1, 2]])),
        (groups(6, [[0, 1], [2, 3], [3, 4], [3, 5]], [[1, 2]]), trees([])),
        "schedule: phase 0 is [[2, 3], [3, 4]]; expected groups that do not share worker 3"),
    # consensus by trees
    Edge(TREES, "relaxation < 2 in every group", (four(([0, 3], "199/100"), [1, 2]),
        trees([[0, 0, 1], [0, 2, 3], [1, 1, 2]])), (four(([0, 3], 2), [1, 2]),
        trees([[0, 0, 1], [0, 2, 3], [1, 1, 2]])),
        '(consensus/trees) is "trees"; expected 0 <= relaxation < 2 in every group'),
    Edge(TREES, "0 <= relaxation in every group", (four(([0, 3], 0), [1, 2]), trees([[0, 0, 1], [0, 2, 3], [1, 1, 2]])),
        (four(([0, 3], "-1/100"), [1, 2]), trees([[0, 0, 1], [0, 2, 3], [1, 1, 2]])),
        '(consensus/trees) is "trees"; expected 0 <= relaxation < 2 in every group'),
    Edge(TREES, "a witness pair stands in a group that contracts: relaxation > 0",
        (meets("1/100"), trees([[0, 0, 1], [1, 1, 2]])), (meets(0), trees([[0, 0, 1], [1, 1, 2]])),
        "one contracting group of phase 1"),
    aside(TREES, "a witness pair stands in one group of its phase", meets(1), trees([[0, 0, 1], [1, 1, 2]]),
        trees([[0, 0, 1], [1, 0, 2]]), "one contracting group of phase 1"),
    aside(TREES, "a witness joins two different workers", meets(1), trees([[0, 0, 1], [1, 1, 2]]),
        trees([[0, 0, 1], [1, 1, 1]]), "one contracting group"),
    aside(TREES, "a witness joins what was apart", groups(3, [[0, 1, 2]], [[0, 1]]), trees([[0, 0, 1], [0, 0, 2]]),
        trees([[0, 0, 1], [1, 0, 1]]), "no earlier witness joins"),
    aside(TREES, "n - 1 witnesses", meets(1), trees([[0, 0, 1], [1, 1, 2]]), trees([[0, 0, 1]]),
        '.trees[0] is "\\u2026"; expected 2 witnesses'),
    aside(TREES, "witnesses in order", meets(1), trees([[0, 0, 1], [1, 1, 2]]), trees([[1, 1, 2], [0, 0, 1]]),
        "a later [phase, worker, worker]"),
    aside(TREES, "a phase of the period", meets(1), trees([[0, 0, 1], [1, 1, 2]]), trees([[0, 0, 1], [2, 1, 2]]),
        "a later [phase, worker, worker]"),
    aside(TREES, "a phase is not negative", meets(1), trees([[0, 0, 1], [1, 1, 2]]), trees([[-1, 1, 2], [0, 0, 1]]),
        "a later [phase, worker, worker]"),
    aside(TREES, "three integers", meets(1), trees([[0, 0, 1], [1, 1, 2]]), trees([[0, 0, 1], [1, 1, 2, 2]]),
        "trees[0][1]: must hold 3 items"),
    aside(TREES, "a rule has a tree for each digit", NODES, trees([[1, 0, 1]], [[0, -1, 0], [1, 0, 1]]),
        trees([[1, 0, 1]]), 'is "trees"; expected 2 trees'),
    aside(TREES, "along a digit groups inside nodes tie nothing to 0", NODES,
        trees([[1, 0, 1]], [[0, -1, 0], [1, 0, 1]]), trees([[1, 0, 1]], [[0, -1, 0], [1, -1, 1]]),
        "one contracting group of phase 1"),
    aside(TREES, "along a digit 0 is a vertex of the tree", NODES, trees([[1, 0, 1]], [[0, -1, 0], [1, 0, 1]]),
        trees([[1, 0, 1]], [[1, 0, 1]]), "2 witnesses"),
    Edge(TREES, "of groups only", (HALF, trees([[0, 0, 1]])), (EVEN, trees([[0, 0, 1]])), 'is "trees"; expected 0 <='),
    # consensus by a graph
    Edge(GRAPHS, "a positive weight on oneself", (pair("99/100", "1/4"), tree(0, [0, 0, 1])),
        (pair(1, "1/4"), tree(0, [0, 0, 1])), "positive weights on oneself"),
    Edge(GRAPHS, "no negative weight", (graph(3, [(0, 1, "1/2"), (0, 2, "1/2"), (1, 2, 0)]),
        tree(0, [0, 0, 1], [0, 0, 2])), (graph(3, [(0, 1, "1/2"), (0, 2, "1/2"), (1, 2, "-1/100")]),
        tree(0, [0, 0, 1], [0, 0, 2])), "none negative"),
    Edge(GRAPHS, "in every round", (graph(2, [(0, 1, "1/2")], [(1, 0, "99/100")]), tree(0, [0, 0, 1])),
        (graph(2, [(0, 1, "1/2")], [(1, 0, 1)]), tree(0, [0, 0, 1])), "positive weights on oneself"),
    Edge(GRAPHS, "an edge of the tree weighs something", (graph(2, [(0, 1, "1/100")]), tree(0, [0, 0, 1])),
        (graph(2, [(0, 1, 0)]), tree(0, [0, 0, 1])), "expected an edge of positive weight"),
    aside(GRAPHS, "an edge of the tree leads from a reached worker", graph(3, [(0, 1, "1/2"), (1, 2, "1/2")]),
        tree(0, [0, 0, 1], [0, 1, 2]), tree(0, [0, 1, 2], [0, 0, 1]), "reached"),
    aside(GRAPHS, "an edge of the tree leads to a new worker", graph(3, [(0, 1, "1/4"), (1, 0, "1/4"), (1, 2, "1/2")]),
        tree(0, [0, 0, 1], [0, 1, 2]), tree(0, [0, 0, 1], [0, 1, 0]), "to a new one"),
    aside(GRAPHS, "the root is the one from which all are reached", EVEN, tree(1, [0, 1, 0]), tree(0, [0, 1, 0]),
        "reached"),
    aside(GRAPHS, "n - 1 edges", EVEN, tree(0, [0, 0, 1]), tree(0), 'is "tree"; expected n - 1 edges'),
    aside(GRAPHS, "an edge of its round", graph(2, [(0, 1, "1/2")], [(1, 0, "1/2")]), tree(0, [0, 0, 1]),
        tree(0, [1, 0, 1]), "expected an edge of positive weight"),
    aside(GRAPHS, "a round of the period", EVEN, tree(0, [0, 0, 1]), tree(0, [1, 0, 1]),
        "expected an edge of positive weight"),
    Edge(GRAPHS, "where the file's weights count, they decide under staleness too",
        (pair("-1/2", "1/2") | {"strategy": pair("-1/2", "1/2")["strategy"]
        | {"sync": {"iteration_gap": {"staleness": 1, "weights": "uniform"}}}}, tree(1, [0, 1, 0])),
        (pair(0, "1/2") | {"strategy": pair(0, "1/2")["strategy"] | {"sync": {"iteration_gap": {"staleness": 1}}}},
        tree(1, [0, 1, 0])), "expected an edge of positive weight"),
    Edge(GRAPHS, "no worker does without an in-neighbor", (pair("1/4", "1/2")
        | {"strategy": pair("1/4", "1/2")["strategy"] | {"sync": {"iteration_gap": {"max_ig": 1, "backup": [0, 0]}}}},
        tree(0, [0, 0, 1])), (pair("1/4", "1/2") | {"strategy": pair("1/4", "1/2")["strategy"]
        | {"sync": {"iteration_gap": {"max_ig": 1, "backup": [0, 1]}}}}, tree(0, [0, 0, 1])),
        'is "graph"; expected workers that do without none'),
    Edge(GRAPHS, "of weighted graphs only", (EVEN, tree(0, [0, 0, 1])), (HALF, tree(0, [0, 0, 1])),
        'is "graph"; expected trees'),
    # consensus by a power, contraction
    aside(GRAPHS, "the norm of the power is at most the bound", HALF, power(1, "1/4"), power(1, Fraction(1, 4) - TINY),
        "expected a larger one"),
    Edge(GRAPHS, "the bound is below 1", (groups(2, [([0, 1], "1/1000")]), power(1, Fraction(999, 1000) ** 2)),
        (groups(2, [([0, 1], 0)]), power(1, 1)), "below 1"),
    aside(GRAPHS, "as many periods as said", HALF, power(2, "1/16"), power(1, "1/16"), "expected a larger one"),
    aside(GRAPHS, "at least one period", groups(2, [[0, 1]]), power(1, 0), power(0, 0), "1..1000"),
    aside(GRAPHS, "at most 1000 periods", groups(2, [[0, 1]]), power(1000, 0), power(1001, 0), "1..1000"),
    aside(GRAPHS, "no numbers of 2^17 bits or more", FINE, power(2, "1/4"), power(924, "1/4"),
        "too large for this check"),
    aside(RATE, "c squared bounds the norm, by pivots", HALF, rate("pivots", "1/4"),
        rate("pivots", Fraction(1, 4) - TINY), "expected a larger one"),
    aside(RATE, "on every class of a rule", rule([2], 1, [([0], [0], "1/3")]), rate("pivots", "4/9"),
        rate("pivots", Fraction(4, 9) - TINY), "expected a larger one"),
    Edge(RATE, "up to 64 rows by pivots", (groups(64, [list(range(64))]), rate("pivots", 0)),
        (groups(65, [list(range(65))]), rate("pivots", 0)), "too large for exact pivots"),
    Edge(RATE, "up to 12 digits by pivots", (rule([2] * 12, 1, [([0], list(range(12)))]), rate("pivots", 0)),
        (rule([2] * 13, 1, [([0], list(range(13)))]), rate("pivots", 0)),
        "claims[0] (contraction/pivots): over 12 digits"),
    aside("linear_algebra.py", "no zero pivot above other entries", HALF, rate("pivots", "1/4"), rate("pivots", "1/8"),
        'is "indefinite"; expected a bound whose matrix has no zero pivot'),
    Edge(RATE, "the norms multiply to c squared at most", (groups(3, [[0, 1, 2]]), rate("norms", 0)),
        (HALF, rate("norms", Fraction(1, 4) - TINY)), '249999999999/1000000000000"; expected at least 1/4'),
    aside(RATE, "equal to their product is enough", HALF, rate("norms", "1/4"), rate("norms", "6/25"), "at least 1/4"),
    aside(RATE, "rows and columns both count", graph(3, [(0, 1, "1/2"), (0, 2, "1/2")]), rate("norms", "4/3"),
        rate("norms", Fraction(4, 3) - TINY), "at least 4/3"),
    Edge(RATE, "norms of listed groups only", (HALF, rate("norms", 1)), (NODES, rate("norms", 1)),
        'is "norms"; expected pivots on the classes'),
    Edge(RATE, "a factor of listed groups only", (HALF, rate("factor", 1)), (NODES, rate("factor", 1)),
        'is "factor"; expected pivots on the classes'),
    aside("linear_algebra.py", "c squared bounds the norm, by a factor", HALF,
        rate("factor", Fraction(1, 4) + Fraction(1, 2**29)), rate("factor", "1/4"), "indefinite, or nearly so"),
    aside("linear_algebra.py", "no bound below 2^-128", groups(2, [[0, 1]]), rate("factor", Fraction(1, 2**128)),
        rate("factor", Fraction(1, 2**128 + 1)), f'is "1/{2**128 + 1}"; expected at least 1/'),
    # exact consensus
    Edge(EXACT, "the product is the mean exactly", (groups(2, [[0, 1]]), PRODUCT),
        (groups(2, [([0, 1], "999999/1000000")]), PRODUCT), "expected exactly the mean"),
    Edge(EXACT, "on every class", (rule([2], 2, [([0, 1], [0])]), PRODUCT), (rule([2], 2, [([0, 1], [])]), PRODUCT),
        "expected exactly the mean"),
    aside(EXACT, "labels that differ in one digit alone", groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3]),
        labels(0, [2, 2], [0, 1, 2, 3]), "digit 0 alone"),
    aside(EXACT, "a different label for every worker", groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3]),
        labels(0, [2, 2], [0, 2, 0, 2]), '.labels is "\\u2026"; expected a different label for every worker'),
    aside(EXACT, "a label for every worker", groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3]),
        labels(0, [2, 2], [0, 2, 1]), "a different label"),
    *(aside(EXACT, f"labels {case}", groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3]),
        labels(0, [2, 2], [label + shift for label in (0, 2, 1, 3)]), "a different label")
      for case, shift in (("up to n - 1", 1), ("from 0 on", -1))),
    aside(EXACT, "radices multiply to n", groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3]),
        labels(0, [2], [0, 2, 1, 3]), "product n"),
    Edge(EXACT, "as many groups as there are settings of the others",
        (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3])),
        (groups(4, [[0, 1]], CUBE[1]), labels(0, [2, 2], [0, 2, 1, 3])), "2 groups"),
    Edge(EXACT, "plain means", (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3])),
        (groups(4, [[0, 1], ([2, 3], "999/1000")], CUBE[1]), labels(0, [2, 2], [0, 2, 1, 3])), "digit 0 alone"),
    aside(EXACT, "a window inside the period", groups(4, [[0, 3]], *CUBE), labels(1, [2, 2], [0, 2, 1, 3]),
        labels(2, [2, 2], [0, 2, 1, 3]), "a window inside"),
    Edge(EXACT, "labels of listed groups only", (groups(4, *CUBE), labels(0, [2, 2], [0, 2, 1, 3])),
        (rule([4], 1, [([0], [0])]), labels(0, [4], [0, 1, 2, 3])), "product n"),
    # what keeps workers apart
    Edge(STEADY, "relaxation <= 2 in every group", (settle(2), HUGE_COVARIANCE), (settle("5/2"), HUGE_COVARIANCE),
        'is "relaxation"; expected 0 <= relaxation <= 2 in every group'),
    Edge(STEADY, "0 <= relaxation in every group", (settle(0), HUGE_COVARIANCE), (settle("-1/2"), HUGE_COVARIANCE),
        'is "relaxation"; expected 0 <= relaxation <= 2 in every group'),
    Edge(STEADY, "no negative weight, in round 2 either", (thirds("1/9"), HUGE_COVARIANCE),
        (thirds("-1/9"), HUGE_COVARIANCE), "expected no negative weight"),
    Edge(STEADY, "a weight may be 0", (thirds(0), HUGE_COVARIANCE), (thirds("-1/100"), HUGE_COVARIANCE),
        "no negative weight"),
    Edge(STEADY, "no worker keeps less than nothing", (thirds(1), HUGE_COVARIANCE),
        (thirds("101/100"), HUGE_COVARIANCE), "no negative weight"),
    Edge(STEADY, "columns sum to 1, in round 2 either", (thirds("1/9"), HUGE_COVARIANCE),
        (thirds("1/9", back="1/8"), HUGE_COVARIANCE), 'is "a column"; expected columns that sum to 1'),
    aside(DISTANCE, "X is more than a period makes of it", HALF, distance(10**6, [49, -39, 49]),
        distance(10**6, [47, -37, 47]), "more than a period makes of it"),
    aside(DISTANCE, "the traces come to the bound at most", HALF, distance("557/2500", [110, -90, 110]),
        distance("1113/5000", [110, -90, 110]), "at least 0.2226"),
    aside(DISTANCE, "a matrix for every class", NODES, distance(10**6, *[[2**20, 0, 2**20]] * 2),
        distance(99, [2**20, 0, 2**20]), "2 classes"),
    Edge(DISTANCE, "of up to 12 digits", (rule([2] * 12, 1, [([0], list(range(12)))]),
        distance(10**6, [2**20], [2**20])), (rule([2] * 13, 1, [([0], list(range(13)))]),
        distance(10**6, [2**20], [2**20])), "claims[0] (consensus-distance): over 12 digits"),
    aside(DISTANCE, "a triangle of as many rows as workers", HALF, distance(10**6, [49, -39, 49]),
        distance(10**6, [49, -39]), "3 numbers"),
    # ranges of what may stand in an entry
    aside(DISTANCE, "up to 64 bits", HALF, distance(10**6, [2**70, 0, 2**70], bits=64),
        distance(10**6, [2**70, 0, 2**70], bits=65), ".bits: must be an integer 0..64"),
    aside(DISTANCE, "numbers of the covariance below 2^96", HALF, distance(10**30, [2**96 - 1, 0, 2**96 - 1], bits=0),
        distance(10**30, [2**96, 0, 2**96], bits=0), ".covariance[0][0]: must be an integer -"),
    aside(DISTANCE, "and at least -2^96", HALF, distance(10**30, [2**96 - 1, -(2**95), 2**96 - 1], bits=0),
        distance(10**30, [2**96 - 1, -(2**96) - 1, 2**96 - 1], bits=0), ".covariance[0][1]: must be an integer -"),
    # near the limits of what is checked at all
    aside(DISTANCE, "the very bound", HALF, distance(Fraction(7471105, 2**25), [110, -90, 110]),
        distance(Fraction(7471105, 2**25) - TINY, [110, -90, 110]), "at least 0.2226"),
    # averages that allow for steps per round 1, 2, 3; the prover's data
    *(Edge(file, f"up to 1024 {payload}", true, false, says) for file, payload, true, false, says in (
        (RATE, "rows", (HALF, rate("factor", 1)), (groups(1025, [[0, 1]]), rate("factor", 1)), "over 1024 workers"),
        (STEADY, "places", (HALF, distance(10**6, [49, -39, 49])), (groups(1025, [[0, 1]]), distance(10**6, [])),
            "claims[0] (consensus-distance): over 1024 rows"),
        (STEADY, "workers of different steps_per_round", (PACED, distance(10**6, PACED_COVARIANCE)),
            (rule([1025], 1, [([0], [0])], steps_per_round=[2] + [1] * 1024), distance(10**6, [])),
            "claims[0] (consensus-distance): over 1024 workers of different steps_per_round"),
    )),
    Edge(STEADY, "numbers of a reasonable length", (HALF, distance(10**6, [49, -39, 49])),
        (groups(1024, [([2 * i, 2 * i + 1], f"1/{10**63 + k}") for i, k in enumerate((1, 3, 7))]), distance(9, [])),
        "claims[0] (consensus-distance): factors with too long denominators"),
    Edge("period.py", "up to 12 digits", (rule([2] * 12, 1, [([0], list(range(12)))]), PRODUCT),
        (rule([2] * 13, 1, [([0], list(range(13)))]), PRODUCT), "claims[0] (exact-consensus/product): over 12 digits"),
    # outer steps from each worker's own outer parameters
    aside(OUTER_STEPS, "below 1 workers come to agree", OWN, agreeing("1/2", OWN_WEIGHT), agreeing("1", OWN_WEIGHT),
        '.squared is "1"; expected below 1'),
    aside(OUTER_STEPS, "a period shortens by c: 9 c² is above 9/4 + 2", OWN, agreeing("19/40", OWN_WEIGHT),
        agreeing("17/36", OWN_WEIGHT), ".squared"),
    aside(OUTER_STEPS, "P is more than the identity", OWN, agreeing("1/2", [9, 0, 9, 0, 0, 2, 0, 0, 0, 2]),
        agreeing("1/2", [9, 0, 9, 0, 0, 1, 0, 0, 0, 1]), ".weights[0] is"),
    aside(OUTER_STEPS, "P is more than the identity off the diagonal too", OWN,
        agreeing("1/2", [20, 0, 20, 0, 0, 3, 0, 0, 1, 3]), agreeing("1/2", [20, 0, 20, 0, 0, 2, 0, 0, 1, 2]),
        '.weights[0] is "a matrix"; expected a positive semidefinite one: the matrix is indefinite'),
    Edge(OUTER_STEPS, "up to 64 workers", (own(64, [list(range(64))]), agreeing("1/2", own_weight(64))),
        (own(65, [list(range(65))]), agreeing("1/2", own_weight(65))),
        "claims[0] (outer-consensus): over 64 workers, or workers on a node of a rule"),
    Edge(OUTER_STEPS, "up to 12 digits of a rule", (own([2] * 12, 1, [([0], list(range(12)))]),
        agreeing("1/2", own_weight(1), own_weight(1))), (own([2] * 13, 1, [([0], list(range(13)))]),
        agreeing("1/2", own_weight(1), own_weight(1))), "claims[0] (outer-consensus): over 12 digits"),
    Edge(OUTER_STEPS, "with momentum a period shortens less", (OWN, agreeing("1/2", OWN_WEIGHT)),
        (own(2, [[0, 1]], momentum="9/10"), agreeing("1/2", OWN_WEIGHT)), ".squared"),
    Edge(OUTER_STEPS, "on every class: nodes that never meet do not agree",
        (own([2], 2, [([0, 1], [0])]), agreeing("1/2", OWN_WEIGHT, OWN_WEIGHT)),
        (own([2], 2, [([0, 1], [])]), agreeing("1/2", OWN_WEIGHT, OWN_WEIGHT)), ".squared"),
    aside(OUTER_STEPS, "a P for every class", own([2], 2, [([0, 1], [0])]), agreeing("1/2", OWN_WEIGHT, OWN_WEIGHT),
        agreeing("1/2", OWN_WEIGHT), ".weights is 1; expected 2 classes"),
    aside(OUTER_STEPS, "a triangle of two rows for each worker", OWN, agreeing("1/2", OWN_WEIGHT),
        agreeing("1/2", OWN_WEIGHT[:9]), ".weights[0] is 9; expected 10 numbers"),
    aside(OUTER_STEPS, "an integer of up to 64 bits", OWN,
        agreeing("1/2", [9 * 2**60, 0, 9 * 2**60, 0, 0, 2**61, 0, 0, 0, 2**61]),
        agreeing("1/2", [2**64, 0, 2**64, 0, 0, 2**61, 0, 0, 0, 2**61]), ".weights[0]"),
    Edge(OUTER_STEPS, "only where each worker has outer parameters of its own", (OWN, agreeing("1/2", OWN_WEIGHT)),
        (HALF, agreeing("1/2", OWN_WEIGHT)), "expected a claim about rounds"),
    aside("claims.py", "who is whose member, whatever groups do", own([2], 1, [([0], [0])]), answers("0 1", "0 1"),
        answers("0 1", "-"), "(membership).answers"),
    Edge(OUTER_STEPS, "no claim about matrices where outer parameters are", (HALF, rate("pivots", "1/4")),
        (OWN, rate("pivots", "1/4")), "expected a claim about own outer parameters"),
    aside("strict_json.py", "a fraction in lowest terms", HALF, rate("pivots", "1/4"), rate("pivots", "2/8"),
        '.squared is "2/8"; expected a fraction string in lowest terms'),
    *SURVIVING,
]
# fmt: on
