"""Boundary cases for what the checker requires of a file beyond the schema: a document just allowed, and one just not.

`READ_EDGES` has rows like `helpers.edges.EDGES`, without an entry; the loader must agree about the document.
"""

from fractions import Fraction

from helpers.edges import Edge, document, graph, groups, over_all, rule

HUGE = 2**31


def reads(of, true, false, says, file="schedule.py"):
    return Edge(file, of, (true, None), (false, None), says)


def pipeline(**members):
    return over_all(sync={"pipeline": members})


def gap(edges=((0, 1), (1, 2), (2, 0)), n=3, weight="1/3", **members):
    return graph(n, [(s, t, weight) for s, t in edges], sync={"iteration_gap": members})


def quorum(n=4, **members):
    return over_all(n, sync={"partial": members})


def table(**members):
    given = {"parameter": "t", "rows": 6, "columns": 2} | members
    return over_all(3, payload={"tables": [{name: value for name, value in given.items() if value is not None}]})


def tables(*names, **options):
    listed = [{"parameter": name, "rows": 6, "columns": 2} for name in names]
    return over_all(3, payload={"tables": listed, **options})


def plan(raw=None, **members):
    """Return three nodes of two workers, or another schedule, with this failure plan."""
    planned = {"rule": "keep_groups", "failures": 1} | members
    given = {name: value for name, value in planned.items() if value is not None}
    return (raw or rule([3], 2, [([0, 1], [0])])) | {"failure_plan": given}


def outer(**members):
    return over_all(steps_per_round=2, payload={"outer": members})


def turns(steps_per_round, fragments, *, outer=None, **merge):
    """Return a schedule whose fragments take turns, merged late if `merge` has members."""
    payload = ({"fragments": fragments} if fragments != 1 else {}) | ({"outer": outer} if outer else {})
    options = ({"payload": payload} if payload else {}) | ({"sync": {"merge": merge}} if merge else {})
    return over_all(steps_per_round=steps_per_round, **options)


def nodes(*listed, **strategy):
    return {**groups(3, [[0, 1]]), "cluster": {"nodes": list(listed)}, **strategy}


def with_sizes(num_nodes, size, raw=None):
    return {**(raw or groups(2, [[0, 1]])), "cluster": {"num_nodes": num_nodes, "workers_per_node": size}}


def weights(*numbers, edges=((0, 1), (1, 0))):
    return document(2, 1, kind="neighbor", rounds=[{"edges": list(map(list, edges)), "weights": list(numbers)}])


def block(radices=(2, 3), size=2, **members):
    raw = rule(radices, size, [([0], [0])])
    raw["strategy"]["phases"][0][0] |= members
    return raw


RING = (0, 1), (1, 2), (2, 0)
STARTED, KEPT = "strategy.sync.partial", "strategy.sync.iteration_gap"
TABLE, OUTER = "strategy.payload.tables[0]", "strategy.payload.outer"
FEW, ORDER = "ranks are 0..", "the numbers of a list ascend, each once"
ALL, MOMENTUM = [0, 1, 2, 3], {"outer": {"momentum": "1/2"}}
OWN = {"outer": {"lr": 2, "outer_params": "per_worker"}}


def event(of, true, false, says):
    return reads(of, true, false, says, "events.py")


# fmt: off
READ_EDGES = [
    # a cluster, and groups, blocks and edges on it
    reads("2 workers", with_sizes(1, 2), with_sizes(1, 1), "cluster: needs 2 to 2147483647 workers"),
    reads("fewer than 2^31", with_sizes(1, HUGE - 1, over_all()), with_sizes(2, HUGE // 2, over_all()),
        "cluster: needs 2 to 2147483647"),
    reads("every rank stands once", nodes([2], [1, 0]), nodes([2], [1, 2]), "cluster.nodes: ranks are 0..n-1"),
    reads("a member is a worker", groups(3, [[0, 2]]), groups(3, [[0, 3]]), f"strategy.phases[0]: {FEW}2"),
    reads("each member once", groups(3, [[0, 2]]), groups(3, [[0, 2, 2]]), ORDER),
    reads("steps_per_round of each worker", groups(3, [[0, 2]], steps_per_round=[1, 2, 3]),
        groups(3, [[0, 2]], steps_per_round=[1, 2]), "strategy.steps_per_round: needs 1 number, or 1 a worker"),
    reads("their product is the nodes", block(), {**block(), "cluster": {"num_nodes": 5, "workers_per_node": 2}},
        "strategy.node_radices: needs equal nodes, and a product of num_nodes"),
    reads("of equal nodes", block((2,), 2), {**block((2,), 2), "cluster": {"nodes": [[0], [1, 2, 3]]}},
        "strategy.node_radices: needs equal nodes, and a product of num_nodes"),
    reads("a local rank of the node", block(local=[1]), block(local=[2]), f"strategy.phases[0]: {FEW}1"),
    reads("a digit of the rule", block(across=[1]), block(across=[2]), "strategy.phases: digits are 0..1"),
    reads("a digit once", block(across=[1, 0]), block(across=[1, 1]), ORDER),
    *(reads(f"blocks in the order of {case}", rule((2, 3), 2, listed), rule((2, 3), 2, [*listed, ([2], [])]),
        f"strategy.phases[0]: {FEW}1") for case, listed in (
        ("their factors", [([0], [0], "1/2"), ([0], [0])]),
    )),
    reads("a weight for each edge", weights("1/2", "1/3"), weights("1/2"),
        "strategy.rounds[0]: workers 0..1, a weight for each edge"),
    reads("an edge stands once", weights("1/2", "1/3"), weights("1/2", "1/3", edges=[(0, 1), (0, 1)]),
        "strategy.rounds[0]: edges ascend by target"),
    reads("an edge joins two", weights("1/2", "1/3"), weights("1/2", "1/3", edges=[(0, 1), (1, 1)]),
        "strategy.rounds[0]: an edge joins a worker to itself"),
    reads("an edge of workers", weights("1/2", "1/3"), weights("1/2", "1/3", edges=[(0, 1), (2, 0)]),
        "strategy.rounds[0]: workers 0..1, a weight for each edge"),
    # what is averaged, and when
    reads("a pipeline of gradients in each step", pipeline(), over_all(sync={"pipeline": {}}, steps_per_round=2),
        "strategy.sync: a pipeline and a quorum go with allreduce at steps_per_round 1"),
    reads("parameters are rounded where all meet", groups(3, [[0, 1, 2]], transport={"codec": "int8"}),
        groups(3, [[0, 1]], transport={"codec": "int8"}),
        "strategy.transport.codec: parameters are rounded where a round of the period averages over all"),
    reads("two at least", quorum(quorum=2), quorum(quorum=1), f"{STARTED}.quorum: must be an integer 2..3"),
    reads("fewer than all", quorum(quorum=3), quorum(quorum=4), f"{STARTED}.quorum: must be an integer 2..3"),
    reads("a quorum of gradients in each step", quorum(quorum=2),
        over_all(4, sync={"partial": {"quorum": 2}}, steps_per_round=2),
        "strategy.sync: a pipeline and a quorum go with allreduce at steps_per_round 1"),
    reads("a codec of four", table(codec="bfloat16"), table(codec="int4"), f"{TABLE}.codec: must be one of ['none"),
    reads("a host is a worker", table(hosts=[2, 0]), table(hosts=[3, 0]), f"{TABLE}.hosts: names workers, each once"),
    reads("each host once", table(hosts=[0, 1]), table(hosts=[1, 1]), f"{TABLE}.hosts: names workers, each once"),
    reads("a dense way has no codec of its own", table(way="gather", codec="int8"), table(way="dense", codec="int8"),
        f"{TABLE}.codec: way dense has the strategy's own codec"),
    reads("one route a parameter", tables("a", "b"), tables("a", "a"), "strategy.payload.tables: a parameter has one"),
    *(reads(f"steps that all share: {case}", tables("a"),
        {**raw, "strategy": {**raw["strategy"], "payload": tables("a")["strategy"]["payload"]}},
        "strategy.payload: tables are exc") for case, raw in (
        ("one steps_per_round", groups(3, [[0, 1]], steps_per_round=[1, 2, 1])), ("no gap", gap()),
            ("no quorum", quorum(3, quorum=2)),
    )),
    *(reads(f"an outer step's {rule}", outer(**true), outer(**false), f"{OUTER}{says}")
      for rule, true, false, says in (
        ("rate is above 0", {"lr": "1/100"}, {"lr": 0}, ".lr: above 0"),
        ("momentum is below 1", {"momentum": "99/100"}, {"momentum": 1}, ".momentum: at least 0 and below 1"),
        ("momentum is not negative", {"momentum": "1/99"}, {"momentum": "-1/99"}, ".momentum: at least 0 and below 1"),
    )),
    reads("outer parameters of each worker go without a codec", groups(3, [[0, 1, 2]],
        payload={"outer": {"lr": 2, "outer_params": "per_worker"}}),
            groups(3, [[0, 1, 2]], payload={"outer": {"lr": 2, "outer_params": "per_worker"}},
        transport={"codec": "int8"}), f"{OUTER}.outer_params: per_worker goes with plain fixed groups"),
    reads("outer parameters of each worker go with plain means",
        groups(3, [[0, 1]], payload={"outer": {"lr": 2, "outer_params": "per_worker"}}),
        groups(3, [([0, 1], "1/2")], payload={"outer": {"lr": 2, "outer_params": "per_worker"}}),
        f"{OUTER}.outer_params: per_worker goes with plain fixed groups"),
    reads("outer parameters of each worker go with fixed groups", groups(3, [[0, 1, 2]],
        payload={"outer": {"lr": 2, "outer_params": "per_worker"}}), outer(lr=2, outer_params="per_worker"),
        f"{OUTER}.outer_params: per_worker goes with plain fixed groups"),
    *(reads(f"outer steps act where {case}", groups(3, [[0, 1]], [[0, 1, 2]], payload={"outer": {"lr": 2}}),
        groups(3, *phases, payload={"outer": {"lr": 2}}, **more),
        f"{OUTER}: acts where a round of the period averages over all workers, "
        "synchronously") for case, phases, more in (
        ("all meet", [[[0, 1]]], {}), ("no worker is late", [[[0, 1, 2]]], {"sync": {"delay": 1}}),
    )),
    # turns of fragments, and merging late
    reads("a part at least", turns(4, [["a"], ["b"]]), turns(4, []), "strategy.payload.fragments: there is no part"),
    reads("every fragment has a turn in a round of everybody's",
        over_all(steps_per_round=[4, 9], payload={"fragments": 4}),
        over_all(steps_per_round=[9, 3], payload={"fragments": 4}), "strategy.payload.fragments: every fragment has "
        "a turn in each"),
    *(reads(f"a merge's {rule}", turns(8, 3, **true), turns(8, 3, **false), f"strategy.{says}")
      for rule, true, false, says in (
        ("steps end before it is sent again", {"steps": 7}, {"steps": 8}, "sync.merge.steps: merged before it is sent"),
        ("alpha is below 1", {"alpha": "99/100"}, {"alpha": 1}, "sync.merge.alpha: at least 0 and below 1"),
        ("alpha is not negative", {"steps": 1, "alpha": 0}, {"steps": 1, "alpha": "-1/99"}, "sync.merge.alpha: at"),
    )),
    *(reads(f"turns go with {case}", turns(4, 2), raw,
        "strategy.payload.fragments: goes with allreduce or groups, plain means") for case, raw in (
        ("groups synchronously", groups(3, [[0, 1, 2]], steps_per_round=4, sync={"merge": {"steps": 1}},
            payload={"fragments": 2})),
        ("groups with shared outer parameters", groups(3, [[0, 1, 2]], steps_per_round=4,
            payload={"fragments": 2, "outer": {"lr": "1/2", "outer_params": "per_worker"}})),
        ("no graphs", graph(2, [(0, 1, "1/2"), (1, 0, "1/2")], steps_per_round=4, payload={"fragments": 2})),
        ("plain means", over_all(steps_per_round=4, averaging="step-normalized", payload={"fragments": 2})),
        ("rounds that end", over_all(steps_per_round=4, sync={"delay": 1}, payload={"fragments": 2})),
    )),
    reads("merging late goes with 1 steps_per_round", turns(4, 1, steps=1),
        over_all(steps_per_round=[4, 5], sync={"merge": {"steps": 1}}),
        "strategy.sync.merge: goes with allreduce or groups, plain means"),
    *(reads(f"a rate below the one from which outer parameters diverge, {case}",
        turns(2, 1, alpha=alpha, outer={"lr": str(limit - Fraction(1, 10**6)), **more}),
        turns(2, 1, alpha=alpha, outer={"lr": str(limit), **more}),
        "strategy.payload.outer.lr: outer parameters and models diverge") for case, alpha, limit, more in (
        ("with momentum", "9/10", Fraction(19, 6), {"momentum": "1/2"}),
        ("with Nesterov's", "9/10", Fraction(19, 12), {"momentum": "1/2", "nesterov": True}),
    )),
    *(reads(f"a rate below the one from which outer parameters diverge, {case}",
        groups(4, *phases, payload={"outer": {"lr": str(limit - Fraction(1, 10**6)), **more}}),
        groups(4, *phases, payload={"outer": {"lr": str(limit), **more}}),
        "strategy.payload.outer.lr: outer parameters and models diverge") for case, phases, limit, more in (
        ("where one of several leaves 3/5", [[ALL], [(ALL, "2/5")], [(ALL, "3/4")]], Fraction(8, 3), {}),
        ("where a group of all leaves 3/5, with Nesterov's", [[(ALL, "2/5")], [[0, 1]]], Fraction(32, 15),
            {"momentum": "1/3", "nesterov": True}),
    )),
    *(reads(f"outer steps go with a relaxation {case}", groups(4, [(ALL, true)], payload={"outer": {"lr": "1/2"}}),
        groups(4, [(ALL, false)], payload={"outer": {"lr": "1/2"}}), f"{OUTER}: goes with 0 < relaxation <= 1")
      for case, true, false in (("above 0", "1/99", 0), ("of 1 at most", 1, "100/99"))),
    reads("an outer momentum goes with one relaxation in rounds of all",
        groups(4, [(ALL, "1/2")], [([0, 1], "1/3")], [(ALL, "1/2")], payload=MOMENTUM),
        groups(4, [(ALL, "1/2")], [([0, 1], "1/3")], [(ALL, "2/3")], payload=MOMENTUM),
        f"{OUTER}.momentum: goes with one relaxation"),
    reads("a group that may be one of all survivors leaves as much as outer steps bear",
        plan(groups(4, [([0, 1, 2], "1/2")], [ALL], payload={"outer": {"lr": "299/100"}}), rule="keep_groups"),
        plan(groups(4, [([0, 1, 2], "1/2")], [ALL], payload={"outer": {"lr": 3}}), rule="keep_groups"),
        f"{OUTER}.lr: outer parameters and models diverge"),
    # a gap
    event("a token", gap(max_ig=1), gap(max_ig=0), f"{KEPT}.max_ig: must be an integer 1..2147483647"),
    event("as many backup workers as in-neighbors", gap([*RING, (1, 0)], max_ig=1, backup=1),
        gap([*RING, (1, 0)], max_ig=1, backup=2),
        f"{KEPT}.backup: 1 number, or 1 a worker, and none above its in-neighbors"),
    event("of every worker", gap([*RING, (1, 0)], max_ig=1, backup=[2, 1, 1]),
        gap([*RING, (1, 0)], max_ig=1, backup=[1, 2, 1]), "none above its in-neighbors"),
    event("backup workers of each worker", gap(max_ig=1, backup=[0, 1, 0]), gap(max_ig=1, backup=[0, 1, 0, 0]),
        "1 number, or 1 a worker"),
    event("backup workers need tokens", gap(max_ig=1, backup=1), gap(backup=1), f"{KEPT}: backup needs max_ig"),
    event("a skip needs tokens", gap(max_ig=3, staleness=1, skip={"limit": 2}), gap(staleness=1, skip={"limit": 2}),
        f"{KEPT}: skip needs max_ig"),
    event("a skip goes with staleness", gap(max_ig=3, staleness=1, skip={"limit": 2}), gap(max_ig=3, skip={"limit": 2}),
        f"{KEPT}: skip goes with backup or staleness"),
    event("or with backup workers", gap(max_ig=3, backup=1, skip={"limit": 2}), gap(max_ig=3, skip={"limit": 2}),
        f"{KEPT}: skip goes with backup or staleness"),
    *(event(f"NOTIFY-ACK goes without {case}", gap(max_ig=3, notify_ack=True),
        gap(max_ig=3, notify_ack=True, **more), f"{KEPT}: notify_ack goes with neither") for case, more in (
        ("staleness", {"staleness": 1}), ("backup workers", {"backup": 1}),
    )),
    event("uniform weights where all updates count the same", gap(weight="1/2", weights="uniform"),
        gap(weight="1/3", weights="uniform"), f"{KEPT}.weights: is uniform; the weights of the round are others"),
    event("a way back over every edge", gap([(0, 1), (1, 0)]), gap([(0, 1), (1, 0), (1, 2)]),
        "strategy.rounds[0]: without max_ig a path leads back over every edge"),
    event("unless there are tokens", gap([(0, 1)], max_ig=1), gap([(0, 1)]), "a path leads back over every edge"),
    *(event(f"a gap of {case}", gap(), raw, f"{KEPT}: goes with 1 weighted graph, and 1 steps_per_round for "
    "all")
      for case, raw in (
        ("one round", graph(3, *[[(s, t, "1/3") for s, t in RING]] * 2, sync={"iteration_gap": {}})),
        ("one steps_per_round", graph(3, [(s, t, "1/3") for s, t in RING], sync={"iteration_gap": {}},
            steps_per_round=[1, 2, 1])),
        ("neighbors", groups(3, [[0, 1]], sync={"iteration_gap": {}})),
    )),
    reads("a known kind", over_all(), document(2, 1, kind="all-reduce"),
        "strategy.kind: must be one of ['static', 'neighbor', 'allreduce']"),
    # failure plans
    reads("two workers left", plan(groups(4, [ALL]), failures=2), plan(groups(4, [ALL]), failures=3),
        "failure_plan.failures: leaves 2 workers or more"),
    reads("no groups to keep next to All-Reduce", plan(over_all(2, 2), rule="all_reduce"),
        plan(over_all(2, 2), rule="keep_groups"),
        "failure_plan.rule: reapply_rule goes with node_radices, and all_reduce"),
    reads("a rule that is applied again", plan(rule="reapply_rule"), plan(groups(4, [ALL]), rule="reapply_rule"),
        "failure_plan.rule: reapply_rule goes with node_radices"),
    *(reads(f"survivors that continue by a plan that is proved: no {name}",
        plan(over_all(3, 1, steps_per_round=4), rule="all_reduce"), plan(of, rule="all_reduce"),
        "failure_plan: is for static and allreduce; no quorum, tables, layers in a pipeline")
      for name, of in (
            ("layers in a pipeline", over_all(3, 1, sync={"pipeline": {}},
                transport={"gradient_buckets": "per_layer"})),
            ("late averages by unequal steps", groups(3, [[0, 1, 2]], steps_per_round=[1, 2, 3],
                averaging="step-normalized", sync={"delay": 1})),
            ("outer parameters of each worker", groups(3, [[0, 1, 2]],
                payload={"outer": {"lr": "1/2", "outer_params": "per_worker"}})),
            ("tables", table()),
            ("a quorum", over_all(4, 1, sync={"partial": {"quorum": 2}})),
            ("weighted graphs", gap()),
    )),
    reads("survivors of late plain means, whatever the steps", *(plan(groups(3, [[0, 1, 2]], steps_per_round=[1, 2, 3],
        sync={"delay": 1}, **averaging)) for averaging in ({}, {"averaging": "step-normalized"})),
        "failure_plan: is for static and allreduce; no quorum, tables, layers in a pipeline, late averages by steps"),
]
# fmt: on
