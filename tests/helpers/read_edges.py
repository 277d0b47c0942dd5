"""Aimed documents for what the checker reads: of every limit and premise one that is just allowed, and one that is not.

`READ_EDGES` has rows like those of `helpers.edges`, without an entry: the document alone is read, by the loader too.
"""

from __future__ import annotations

from fractions import Fraction

from helpers.edges import Edge, document, graph, groups, rule

HUGE = 2**31
FAILURES = "failure_plans.py"


def reads(file, of, true, false, says):
    return Edge(file, of, (true, None), (false, None), says)


def over_all(nodes=2, size=1, **options):
    return document(nodes, size, kind="allreduce", **options)


def pipeline(**members):
    return over_all(sync={"pipeline": members})


def transport(size=2, **members):
    return over_all(2, size, transport=members)


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
    """Three nodes of two workers, or another schedule, with this failure plan."""
    planned = {"rule": "keep_groups", "failures": 1} | members
    given = {name: value for name, value in planned.items() if value is not None}
    return (raw or rule([3], 2, [([0, 1], [0])])) | {"failure_plan": given}


def outer(**members):
    return over_all(steps_per_round=2, payload={"outer": members})


def turns(steps_per_round, fragments, *, outer=None, **merge):
    """Fragments in turn, merged late where members of a merge are given."""
    payload = {"fragments": fragments} | ({"outer": outer} if outer else {})
    return over_all(steps_per_round=steps_per_round, payload=payload, **({"sync": {"merge": merge}} if merge else {}))


def nodes(*listed, **strategy):
    return {**groups(3, [[0, 1]]), "cluster": {"nodes": list(listed)}, **strategy}


def sized(num_nodes, size, raw=None):
    return {**(raw or groups(2, [[0, 1]])), "cluster": {"num_nodes": num_nodes, "workers_per_node": size}}


def more(raw):
    return {**raw, "strategy": {**raw["strategy"], "more": 1}}


def named(name):
    return {**groups(2, [[0, 1]]), "name": name}


def weights(*numbers, edges=((0, 1), (1, 0))):
    return document(2, 1, kind="neighbor", rounds=[{"edges": list(map(list, edges)), "weights": list(numbers)}])


def relaxation(factor):
    return groups(2, [([0, 1], factor)])


def block(radices=(2, 3), size=2, **members):
    raw = rule(radices, size, [([0], [0])])
    raw["strategy"]["phases"][0][0] |= members
    return raw


RING = (0, 1), (1, 2), (2, 0)
GROUPS = {"relaxation": "1/2", "group": [0, 1]}, {"group": [4, 5], "relaxation": "1/2"}, {"group": [2, 3]}
AXES, GAP, QUORUM, TABLES, SCHEDULE, STRICT = (
    f"{name}.py" for name in ("axes", "kept_gap", "quorum", "tables", "schedule", "strict_json")
)
LATE, COUNT = "strategy.sync.pipeline", "must be an integer 1..2147483647"
STARTED, KEPT = "strategy.sync.partial", "strategy.sync.iteration_gap"
TABLE, OUTER = "strategy.payload.tables[0]", "strategy.payload.outer"

RULED = {"codec": "int8", "algorithm": "hierarchical"}
FEEDBACK = {"codec": "int4", "error_feedback": True}
STARTED_SO = {"count": "open-round", "missed": "each", "staleness": 4, "grace": 0, "synchronize_every": 0, "seed": 0}
KEPT_SO = {"staleness": 0, "backup": 0, "weights": "graph", "update_order": "adapt_then_combine"}

# fmt: off
READ_EDGES = [
    # what is said although it is the default is as if it were not said
    *(reads(file, f"the defaults of {case}", true, false, says) for file, case, true, false, says in (
        (AXES, "a pipeline", pipeline(drain="apply", total="mean"), pipeline(total="max"), f"{LATE}.total: must be"),
        (AXES, "a codec", transport(**RULED, where="all", block=256), transport(**RULED, where="here"),
            "transport.where: must be one"),
        (AXES, "transport", transport(algorithm="ring", codec="none", gradient_buckets="single"),
            transport(algorithm="tree"), "transport.algorithm: must be one of"),
        (AXES, "sync", over_all(sync="synchronous"), over_all(sync={"soon": 1}),
            "strategy.sync: has unknown keys ['so"),
        (QUORUM, "a quorum", quorum(quorum=2, **STARTED_SO), quorum(**STARTED_SO), "lacks ['quorum']"),
        (GAP, "a gap", gap(**KEPT_SO, notify_ack=False), gap(**KEPT_SO, notify_ack=0), "notify_ack: must be one of"),
        (TABLES, "a table", table(way="sharded", gradient="dense", codec="none"), table(codec=0), "codec: must be"),
        (TABLES, "tables", tables("a", local_aggregation=True, average=True, average_dense=True), tables("a", route=1),
            "strategy.payload: has unknown keys ['route']"),
        (TABLES, "an outer step", outer(optimizer="sgd", lr=1, momentum=0, nesterov=False, outer_params="shared"),
            outer(optimizer="sgd", lr=-1), f"{OUTER}.lr: above 0"),
        (SCHEDULE, "a strategy", groups(2, [[0, 1]], steps_per_round=1, averaging="mean", sync="synchronous",
            payload={}, transport={},
            prologue=0), groups(2, [[0, 1]], transport=[]), "strategy.transport: must be an object"),
    )),
    reads(AXES, "a pipeline is 2 wide", pipeline(width=2), pipeline(width=1), f"{LATE}.width: must be an integer 2.."),
    reads(AXES, "a width below 2^31", pipeline(width=HUGE - 1), pipeline(width=HUGE), f"{LATE}.width: {COUNT}"),
    reads(AXES, "a warm-up is not negative", pipeline(warm_up=0), pipeline(warm_up=-1), f"{LATE}.warm_up: must be an"),
    reads(AXES, "and below 2^53", pipeline(warm_up=2**53 - 1), pipeline(warm_up=2**53), "0..9007199254740991"),
    reads(AXES, "a drain is one of two", pipeline(drain="drop"), pipeline(drain=0),
        f"{LATE}.drain: must be one of ['a"),
    reads(AXES, "a switch is no number", over_all(transport={"codec": "int8", "error_feedback": True}),
        over_all(transport={"codec": "int8", "error_feedback": 1}), "strategy.transport.error_feedback: must be one "
        "of [Fal"),
    reads(AXES, "a pipeline has these members", pipeline(), pipeline(depth=2), f"{LATE}: has unknown keys ['depth']"),
    reads(AXES, "a pipeline of gradients in each step", pipeline(), over_all(sync={"pipeline": {}}, steps_per_round=2),
        "strategy.sync: a pipeline and a quorum go with allreduce at steps_per_round 1"),
    reads(AXES, "a pipeline is an object", pipeline(), over_all(sync={"pipeline": 2}), f"{LATE}: must be an object"),
    reads(AXES, "synchronous", over_all(sync="synchronous"), over_all(sync="delay"), "strategy.sync: must be one of "
    "['sync"),
    reads(AXES, "one round late", over_all(sync={"delay": 1}), over_all(sync={"delay": 2}),
        "strategy.sync.delay: must be"),
    *(reads(AXES, f"one answer to when, {name}", raw, both, "strategy.sync: has unknown keys ['delay']")
      for name, raw, both in (
        ("a gap", gap(), graph(3, [(s, t, "1/3") for s, t in RING], sync={"iteration_gap": {}, "delay": 1})),
        ("a quorum", quorum(quorum=2), over_all(4, sync={"partial": {"quorum": 2}, "delay": 1})),
        ("a pipeline", pipeline(), over_all(sync={"pipeline": {}, "delay": 1})),
        ("a merge", turns(4, 1, steps=1), over_all(steps_per_round=4, sync={"merge": {"steps": 1}, "delay": 1})),
    )),
    reads(AXES, "a block holds a number", transport(codec="int8", block=1), transport(codec="int8", block=0),
        "transport.block: must be"),
    reads(AXES, "a block below 2^31", transport(codec="int8", block=HUGE - 1), transport(codec="int8", block=HUGE),
        f"strategy.transport.block: {COUNT}"),
    *(reads(AXES, f"{member} is of int8 and int4", transport(codec="int8", **{member: value}),
        transport(codec="float16", **{member: value}), f"strategy.transport: ['{member}']: only int8 and int4 have it")
      for member, value in (
        ("block", 2), ("error_feedback", True),
    )),
    reads(AXES, "where needs a codec", transport(codec="float16", algorithm="hierarchical", where="across-nodes"),
        transport(algorithm="hierarchical", where="across-nodes"),
        "strategy.transport: where: goes with a codec and the algorithm hierarchical"),
    reads(AXES, "where needs the algorithm hierarchical",
        transport(codec="int8", algorithm="hierarchical", where="across-nodes"),
        transport(codec="int8", where="across-nodes"), "strategy.transport: where: goes with a codec and "
        "the algorithm hierarchical"),
    reads(AXES, "gradient_buckets are of gradients", transport(gradient_buckets="per_layer"),
        over_all(2, 2, transport={"gradient_buckets": "per_layer"}, steps_per_round=2),
        "strategy.transport: gradient_buckets: goes with gradients in each step"),
    *(reads(AXES, f"error_feedback is of sums over all, {case}", over_all(3, transport=FEEDBACK, steps_per_round=2),
        raw,
        "strategy.transport: error_feedback: goes with sums over all in each round, none of them "
        "late") for case, raw in (
        ("in time", over_all(3, transport=FEEDBACK, steps_per_round=2, sync={"delay": 1})),
        ("of allreduce", groups(3, [[0, 1, 2]], transport=FEEDBACK)),
    )),
    reads(AXES, "gradients that come late are averaged as they are sent", transport(gradient_buckets="per_layer"),
        over_all(2, 2, transport={"gradient_buckets": "per_layer"}, sync={"delay": 1}),
        "strategy.transport: gradient_buckets: goes with gradients in each step"),
    reads(SCHEDULE, "who keeps some of its own averages parameters", transport(gradient_buckets="per_layer"),
        over_all(2, 2, transport={"gradient_buckets": "per_layer"}, sync={"merge": {"alpha": "1/2"}}),
        "strategy.transport: gradient_buckets: goes with gradients in each step"),
    reads(AXES, "neighbors send parameters as they are", graph(2, [(0, 1, "1/2")], transport={"codec": "none"}),
        graph(2, [(0, 1, "1/2")], transport={"codec": "int8"}), "strategy.transport: parameters go to neighbors as "
        "they are"),
    # a gap
    reads(GAP, "a token", gap(max_ig=1), gap(max_ig=0), f"{KEPT}.max_ig: must be an integer 1..2147483647"),
    reads(GAP, "tokens below 2^31", gap(max_ig=HUGE - 1), gap(max_ig=HUGE), f"{KEPT}.max_ig: must be an integer 1.."),
    reads(GAP, "staleness below 2^16", gap(staleness=2**16 - 1), gap(staleness=2**16), f"{KEPT}.staleness: must be an"),
    reads(GAP, "staleness is not negative", gap(staleness=1), gap(staleness=-1), "must be an integer 0..65535"),
    reads(GAP, "a gap has these members", gap(max_ig=2), gap(most=2), f"{KEPT}: has unknown keys ['most']"),
    reads(GAP, "an order is one of two", gap(update_order="dpsgd"), gap(update_order="any"),
        f"{KEPT}.update_order: must be one of ['adapt_"),
    reads(GAP, "as many backup workers as in-neighbors", gap([*RING, (1, 0)], max_ig=1, backup=1),
        gap([*RING, (1, 0)], max_ig=1, backup=2),
        f"{KEPT}.backup: 1 number, or 1 a worker, and none above its in-neighbors"),
    reads(GAP, "of every worker", gap([*RING, (1, 0)], max_ig=1, backup=[2, 1, 1]),
        gap([*RING, (1, 0)], max_ig=1, backup=[1, 2, 1]), "none above its in-neighbors"),
    reads(GAP, "backup workers of each worker", gap(max_ig=1, backup=[0, 1, 0]), gap(max_ig=1, backup=[0, 1, 0, 0]),
        "1 number, or 1 a worker"),
    reads(GAP, "not fewer than none", gap(max_ig=1, backup=1), gap(max_ig=1, backup=-1),
        f"{KEPT}.backup: must hold integ"),
    reads(GAP, "backup workers need tokens", gap(max_ig=1, backup=1), gap(backup=1), f"{KEPT}: backup needs max_ig"),
    reads(GAP, "a skip of its trigger", gap(max_ig=3, staleness=1, skip={"limit": 3, "trigger": 3}),
        gap(max_ig=3, staleness=1, skip={"limit": 2, "trigger": 3}), f"{KEPT}.skip.limit: must be an integer 3.."),
    reads(GAP, "a trigger of 2", gap(max_ig=3, staleness=1, skip={"limit": 2, "trigger": 2}),
        gap(max_ig=3, staleness=1, skip={"limit": 2, "trigger": 1}),
        f"{KEPT}.skip.trigger: must be an integer 2..2147483647"),
    reads(GAP, "a skip from 2 behind", gap(max_ig=3, staleness=1, skip={"limit": 2, "behind": 2}),
        gap(max_ig=3, staleness=1, skip={"limit": 2, "behind": 1}),
        f"{KEPT}.skip.behind: must be an integer 2..2147483647"),
    reads(GAP, "a skip of 2, where no trigger is said", gap(max_ig=3, staleness=1, skip={"limit": 2}),
        gap(max_ig=3, staleness=1, skip={"limit": 1}), f"{KEPT}.skip.limit: must be an integer 2.."),
    reads(GAP, "a skip below 2^31", gap(max_ig=3, staleness=1, skip={"limit": HUGE - 1}),
        gap(max_ig=3, staleness=1, skip={"limit": HUGE}), "2..2147483647"),
    reads(GAP, "a skip has these members", gap(max_ig=3, staleness=1, skip={"limit": 2}),
        gap(max_ig=3, staleness=1, skip={"limit": 2, "most": 3}), f"{KEPT}.skip: has unknown keys ['most']"),
    reads(GAP, "a skip needs tokens", gap(max_ig=3, staleness=1, skip={"limit": 2}),
        gap(staleness=1, skip={"limit": 2}), f"{KEPT}: skip needs max_ig"),
    reads(GAP, "a skip goes with staleness", gap(max_ig=3, staleness=1, skip={"limit": 2}),
        gap(max_ig=3, skip={"limit": 2}), f"{KEPT}: skip goes with backup or staleness"),
    reads(GAP, "or with backup workers", gap(max_ig=3, backup=1, skip={"limit": 2}),
        gap(max_ig=3, backup=0, skip={"limit": 2}), f"{KEPT}: skip goes with backup or staleness"),
    reads(GAP, "iteration goes with staleness", gap(staleness=1, weights="iteration"), gap(weights="iteration"),
        f"{KEPT}: iteration goes with staleness"),
    *(reads(GAP, f"NOTIFY-ACK goes without {case}", gap(max_ig=3, notify_ack=True),
        gap(max_ig=3, notify_ack=True, **more), f"{KEPT}: notify_ack goes with neither") for case, more in (
        ("staleness", {"staleness": 1}), ("backup workers", {"backup": 1}),
    )),
    reads(GAP, "uniform weights where all updates count the same", gap(weight="1/2", weights="uniform"),
        gap(weight="1/3", weights="uniform"), f"{KEPT}.weights: is uniform; the weights of the round are others"),
    reads(GAP, "a way back over every edge", gap([(0, 1), (1, 0)]), gap([(0, 1), (1, 0), (1, 2)]),
        "strategy.rounds[0]: without max_ig a path leads back over every edge"),
    reads(GAP, "unless there are tokens", gap([(0, 1)], max_ig=1), gap([(0, 1)]), "a path leads back over every edge"),
    reads(GAP, "a way back through others", gap(RING), gap([(0, 1), (1, 2), (1, 0)]),
        "a path leads back over every edge"),
    *(reads(GAP, f"a gap of {case}", gap(), raw, f"{KEPT}: goes with 1 weighted graph, and 1 steps_per_round for "
    "all")
      for case, raw in (
        ("one round", graph(3, *[[(s, t, "1/3") for s, t in RING]] * 2, sync={"iteration_gap": {}})),
        ("one steps_per_round", graph(3, [(s, t, "1/3") for s, t in RING], sync={"iteration_gap": {}},
            steps_per_round=[1, 2, 1])),
        ("one steps_per_round, which is not listed", graph(3, [(s, t, "1/3") for s, t in RING],
            sync={"iteration_gap": {}}, steps_per_round=[1] * 3)),
        ("neighbors", groups(3, [[0, 1]], sync={"iteration_gap": {}})),
    )),
    # a quorum
    reads(QUORUM, "2 workers", quorum(quorum=2), quorum(quorum=1), f"{STARTED}.quorum: must be an integer 2..3"),
    reads(QUORUM, "fewer than all", quorum(quorum=3), quorum(quorum=4), f"{STARTED}.quorum: must be an integer 2..3"),
    reads(QUORUM, "or a word", quorum(quorum="solo"), quorum(quorum="one"),
        f"{STARTED}.quorum: must be one of ['solo'"),
    *(reads(QUORUM, f"{name} is one of two", quorum(quorum=2, **{name: value}), quorum(quorum=2, **{name: "any"}),
        f"{STARTED}.{name}: must be one of") for name, value in (
        ("count", "call"), ("missed", "latest"),
    )),
    *(reads(QUORUM, f"{name} of at least {least}", quorum(quorum=2, **{name: least}, **more),
        quorum(quorum=2, **{name: least - 1}, **more), f"{STARTED}.{name}: must be an integer {least}..2147483647")
      for name, least, more in (
        ("staleness", 1, {}), ("grace", 0, {}), ("synchronize_every", 0, {"missed": "latest"}),
    )),
    *(reads(QUORUM, f"{name} below 2^{bits}", quorum(quorum=start, **{name: 2**bits - 1}, **more),
        quorum(quorum=start, **{name: 2**bits}, **more), f"{STARTED}.{name}: must be an integer")
      for name, bits, start, more in (
        ("staleness", 31, 2, {}), ("seed", 53, "majority", {}),
    )),
    reads(QUORUM, "a seed is not negative", quorum(quorum="majority", seed=0), quorum(quorum="majority", seed=-1),
        "seed"),
    reads(QUORUM, "a seed draws majorities", quorum(quorum="majority", seed=1), quorum(quorum="solo", seed=1),
        f"{STARTED}: seed goes with the quorum majority"),
    reads(QUORUM, "the latest alone has no staleness", quorum(quorum=2, missed="latest"),
        quorum(quorum=2, missed="latest", staleness=3), f"{STARTED}: staleness goes with missed each"),
    reads(QUORUM, "models meet again where the latest counts", quorum(quorum=2, missed="latest", synchronize_every=9),
        quorum(quorum=2, synchronize_every=9), f"{STARTED}: synchronize_every goes with missed latest"),
    *(reads(QUORUM, f"a quorum sums {case}", quorum(quorum=2),
        over_all(4, sync={"partial": {"quorum": 2}}, transport=given),
        "strategy.transport: what a quorum sums goes as it is, when it is whole") for case, given in (
        ("without a codec", {"codec": "int8"}), ("the whole", {"gradient_buckets": "per_layer"}),
    )),
    reads(QUORUM, "a quorum of gradients in each step", quorum(quorum=2),
        over_all(4, sync={"partial": {"quorum": 2}}, steps_per_round=2),
        "strategy.sync: a pipeline and a quorum go with allreduce at steps_per_round 1"),
    # tables
    *(reads(TABLES, f"{name} of at least 1", table(**{name: 1}), table(**{name: 0}), f"{TABLE}.{name}: {COUNT}")
      for name in (
        "rows", "columns",
    )),
    *(reads(TABLES, f"{name} below 2^31", table(**{name: HUGE - 1}), table(**{name: HUGE}), f"{TABLE}.{name}: {COUNT}")
      for name in (
        "rows", "columns",
    )),
    reads(TABLES, "a parameter of 1000 characters", table(parameter="x" * 1000), table(parameter="x" * 1001),
        "has 1 to"),
    reads(TABLES, "a parameter has a name", table(parameter="x"), table(parameter=""),
        f"{TABLE}.parameter: has 1 to 1000"),
    reads(TABLES, "a table has a parameter", table(), table(parameter=None),
        f"{TABLE}: lacks ['p"),
    reads(TABLES, "a parameter is a text", table(parameter="7"), table(parameter=7), f"{TABLE}.parameter: must be a"),
    reads(TABLES, "a list", tables("a"), over_all(3, payload={"tables": {}}), "strategy.payload.tables: must be a "
    "list"),
    reads(TABLES, "a way of three", table(way="gather"), table(way="all"),
        f"{TABLE}.way: must be one of ['sharded', 'g"),
    reads(TABLES, "a gradient of two", table(gradient="sparse"), table(gradient=1),
        f"{TABLE}.gradient: must be one of ['"),
    reads(TABLES, "a codec of four", table(codec="bfloat16"), table(codec="int4"),
        f"{TABLE}.codec: must be one of ['none"),
    reads(TABLES, "a host is a worker", table(hosts=[2, 0]), table(hosts=[3, 0]),
        f"{TABLE}.hosts: must hold integers 0..2"),
    reads(TABLES, "each host once", table(hosts=[0, 1]), table(hosts=[1, 1]), f"{TABLE}.hosts: names each worker once"),
    reads(TABLES, "a part for every host", table(partitions=3), table(partitions=2),
        f"{TABLE}.partitions: must be an int"),
    reads(TABLES, "a row in every part", table(partitions=6), table(partitions=7), "must be an integer 3..6"),
    reads(TABLES, "a dense way has a dense gradient", table(way="gather", gradient="sparse"),
        table(way="dense", gradient="sparse"), f"{TABLE}.gradient: way dense has a dense gradient"),
    reads(TABLES, "a dense way has no codec of its own", table(way="gather", codec="int8"),
        table(way="dense", codec="int8"), f"{TABLE}.codec: way dense has the strategy's own codec"),
    *(reads(TABLES, f"{name} are of sharded tables", table(**{name: value}), table(way="gather", **{name: value}),
        f"{TABLE}: only a sharded table has hosts and partitions") for name, value in (
        ("hosts", [0, 1]), ("partitions", 4),
    )),
    reads(TABLES, "one route a parameter", tables("a", "b"), tables("a", "a"),
        "strategy.payload.tables: a parameter has one"),
    reads(TABLES, "settings are for tables", tables("a", average=False), tables(average=False),
        "settings are for tables"),
    *(reads(TABLES, f"{name} is a switch", tables("a", **{name: False}), tables("a", **{name: 0}),
        f"payload.{name}: must be") for name in (
        "local_aggregation", "average", "average_dense",
    )),
    *(reads(TABLES, f"steps that all share: {case}", tables("a"),
        {**raw, "strategy": {**raw["strategy"], "payload": tables("a")["strategy"]["payload"]}},
        "strategy.payload: tables are exc") for case, raw in (
        ("one steps_per_round", groups(3, [[0, 1]], steps_per_round=[1, 2, 1])), ("no gap", gap()),
            ("no quorum", quorum(3, quorum=2)),
    )),
    # outer steps
    *(reads(TABLES, f"an outer step's {rule}", outer(**true), outer(**false), f"{OUTER}{says}")
      for rule, true, false, says in (
        ("rate is above 0", {"lr": "1/100"}, {"lr": 0}, ".lr: above 0"),
        ("rate is a number", {"lr": 2}, {"lr": "x"}, ".lr: must be an integer or a fraction"),
        ("momentum is below 1", {"momentum": "99/100"}, {"momentum": 1}, ".momentum: at least 0 and below 1"),
        ("momentum is not negative", {"momentum": 0}, {"momentum": "-1/100"}, ".momentum: at least 0 and below 1"),
        ("momentum is a number", {"momentum": "1/2"}, {"momentum": []}, ".momentum: must be an integer or a frac"),
        ("numbers may be shortened", {"lr": "14/20", "momentum": "2/4"}, {"lr": "0.7"}, ".lr: must be an integer or"),
        ("outer_params is one of two", {"lr": 2, "outer_params": "shared"}, {"lr": 2, "outer_params": "mine"},
            ".outer_params: must be one"),
        ("optimizer is one", {"optimizer": "sgd"}, {"optimizer": "adam"}, ".optimizer: must be one of ['sgd']"),
        ("nesterov is a switch", {"nesterov": False}, {"nesterov": 0}, ".nesterov: must be one of [False, True]"),
        ("nesterov goes with a momentum", {"nesterov": True, "momentum": "1/100"}, {"nesterov": True, "momentum": 0},
            ".nesterov: goes with a momentum"),
        ("members are these", {"lr": 2}, {"rate": 2}, ": has unknown keys ['rate']"),
    )),
    reads(SCHEDULE, "outer parameters of each worker go without a codec", groups(3, [[0, 1, 2]],
        payload={"outer": {"lr": 2, "outer_params": "per_worker"}}),
            groups(3, [[0, 1, 2]], payload={"outer": {"lr": 2, "outer_params": "per_worker"}},
        transport={"codec": "int8"}), f"{OUTER}.outer_params: per_worker goes with plain fixed groups"),
    reads(SCHEDULE, "outer parameters of each worker go with plain means",
        groups(3, [[0, 1]], payload={"outer": {"lr": 2, "outer_params": "per_worker"}}),
        groups(3, [([0, 1], "1/2")], payload={"outer": {"lr": 2, "outer_params": "per_worker"}}),
        f"{OUTER}.outer_params: per_worker goes with plain fixed groups"),
    reads(SCHEDULE, "outer parameters of each worker go with fixed groups", groups(3, [[0, 1, 2]],
        payload={"outer": {"lr": 2, "outer_params": "per_worker"}}), outer(lr=2, outer_params="per_worker"),
        f"{OUTER}.outer_params: per_worker goes with plain fixed groups"),
    reads(TABLES, "outer parameters of each worker go with outer steps",
        groups(3, [[0, 1, 2]], payload={"outer": {"lr": 2, "outer_params": "per_worker"}}),
        groups(3, [[0, 1, 2]], payload={"outer": {"outer_params": "per_worker"}}),
            f"{OUTER}.outer_params: plain averaging"),
    reads(TABLES, "an outer step is an object", outer(), over_all(payload={"outer": 2}), f"{OUTER}: must be an object"),
    reads(TABLES, "an outer step is no setting of tables", over_all(steps_per_round=2, payload={"outer": {"lr": 2}}),
        over_all(steps_per_round=2, payload={"outer": {"lr": 2}, "average": False}), "strategy.payload: settings are "
        "for tables"),
    *(reads(SCHEDULE, f"outer steps act where {case}", groups(3, [[0, 1]], [[0, 1, 2]], payload={"outer": {"lr": 2}}),
        groups(3, *phases, payload={"outer": {"lr": 2}}, **more),
        f"{OUTER}: acts where a round of the period averages over all workers, "
        "synchronously") for case, phases, more in (
        ("all meet", [[[0, 1]]], {}), ("nobody is late", [[[0, 1, 2]]], {"sync": {"delay": 1}}),
    )),
    # turns of fragments, and merging late
    *(reads(TABLES, f"fragments {rule}", turns(4, true), turns(4, false), f"strategy.payload.fragments: {says}")
      for rule, true, false, says in (
        ("are at least 1", 1, 0, "must be an integer 1..2147483647"),
        ("are a number or lists", 2, "2", "must be an integer"),
        ("are 2 where they are listed", [["a"], ["b"]], [["a"]], "has 2 or more, each with a pattern"),
        ("have a pattern each", [["a"], ["b"]], [["a"], []], "has 2 or more, each with a pattern"),
        ("are lists of patterns", [["a"], ["b"]], [["a"], "b"], "must be a list"),
        ("have patterns that are texts", [["a"], ["b"]], [["a"], [1]], "must be a text"),
        ("have patterns of a letter or more", [["a"], ["b"]], [["a"], [""]], "a pattern has 1 to 1000 characters"),
        ("have patterns of 1000 letters", [["a"], ["b" * 1000]], [["a"], ["b" * 1001]],
            "a pattern has 1 to 1000 characters"),
        ("share no pattern", [["a"], ["b"]], [["a"], ["a"]], "a pattern stands in one fragment, once"),
    )),
    reads(TABLES, "fragments that are merged late are some", turns(4, [["a"], ["b"]], steps=1), turns(4, [], steps=1),
        "strategy.payload.fragments: has 2 or more, each with a pattern"),
    reads(SCHEDULE, "every fragment has a turn in a round", turns(4, 4), turns(4, 5),
        "strategy.payload.fragments: every fragment has a turn in each round"),
    reads(SCHEDULE, "every fragment has a turn in a round of everybody's",
        over_all(steps_per_round=[4, 9], payload={"fragments": 4}),
        over_all(steps_per_round=[9, 3], payload={"fragments": 4}), "strategy.payload.fragments: every fragment has "
        "a turn in each"),
    *(reads(SCHEDULE, f"a merge's {rule}", turns(8, 3, **true), turns(8, 3, **false), f"strategy.{says}")
      for rule, true, false, says in (
        ("steps are not negative", {"steps": 0, "alpha": "1/2"}, {"steps": -1, "alpha": "1/2"}, "sync.merge.steps"),
        ("steps end before it is sent again", {"steps": 7}, {"steps": 8}, "sync.merge.steps: merged before it is sent"),
        ("alpha is below 1", {"alpha": "99/100"}, {"alpha": 1}, "sync.merge.alpha: at least 0 and below 1"),
        ("alpha is not negative", {"steps": 1, "alpha": 0}, {"steps": 1, "alpha": "-1/99"}, "sync.merge.alpha: at"),
        ("alpha is a number", {"alpha": "1/2"}, {"alpha": "half"}, "sync.merge.alpha: must be an integer or"),
        ("members are these", {"steps": 1}, {"delay": 1}, "sync.merge: has unknown keys ['delay']"),
    )),
    reads(AXES, "a merge's steps are below 2^53", turns(300, 1, steps=200), turns(300, 1, steps=2**53),
        "strategy.sync.merge.steps: must be an integer 0..9007199254740991"),
    reads(SCHEDULE, "a merge is not synchronous", turns(8, 3, alpha="1/99"), turns(8, 3, alpha=0),
        "strategy.sync.merge: without steps and alpha it is synchronous"),
    *(reads(SCHEDULE, f"turns go with {case}", turns(4, 2), raw,
        "strategy.payload.fragments: goes with allreduce or groups, plain means") for case, raw in (
        ("groups synchronously", groups(3, [[0, 1, 2]], steps_per_round=4, sync={"merge": {"steps": 1}},
            payload={"fragments": 2})),
        ("groups with shared outer parameters", groups(3, [[0, 1, 2]], steps_per_round=4,
            payload={"fragments": 2, "outer": {"lr": "1/2", "outer_params": "per_worker"}})),
        ("no graphs", graph(2, [(0, 1, "1/2"), (1, 0, "1/2")], steps_per_round=4, payload={"fragments": 2})),
        ("plain means", over_all(steps_per_round=4, averaging="step-normalized", payload={"fragments": 2})),
        ("rounds that end", over_all(steps_per_round=4, sync={"delay": 1}, payload={"fragments": 2})),
    )),
    reads(SCHEDULE, "merging late goes with 1 steps_per_round", turns(4, 1, steps=1),
        over_all(steps_per_round=[4, 4], sync={"merge": {"steps": 1}}),
        "strategy.sync.merge: goes with allreduce or groups, plain means"),
    *(reads(SCHEDULE, f"a rate below the one from which outer parameters diverge, {case}",
        turns(2, 1, alpha=alpha, outer={"lr": str(limit - Fraction(1, 10**6)), **more}),
        turns(2, 1, alpha=alpha, outer={"lr": str(limit), **more}),
        "strategy.payload.outer.lr: outer parameters and models diverge") for case, alpha, limit, more in (
        ("without momentum", "9/10", Fraction(19, 9), {}),
        ("with momentum", "9/10", Fraction(19, 6), {"momentum": "1/2"}),
        ("with Nesterov's", "9/10", Fraction(19, 12), {"momentum": "1/2", "nesterov": True}),
    )),
    # the whole document
    reads(SCHEDULE, "a name", named("x"), named(""), "schedule.name: has 1 to 1000 printable characters"),
    reads(SCHEDULE, "a name of 1000 characters", named("x" * 1000), named("x" * 1001), "schedule.name: has 1 to 1000"),
    reads(SCHEDULE, "a name of one line", named("a b"), named("a\nb"), "schedule.name: has 1 to 1000 printable"),
    reads(SCHEDULE, "a name is a text", named("1"), named(1), "schedule.name: must be a text"),
    *(reads(SCHEDULE, f"{member} as it is", groups(2, [[0, 1]]), {**groups(2, [[0, 1]]), member: value}, says)
      for member, value, says in (
        ("format", "schedule", "schedule.format: must be one of ['partreduce.schedule']"),
        ("version", 2, "schedule.version: must be one of [1]"),
        ("certificate", [], "schedule.certificate: must be an object"),
        ("cluster", [], "schedule.cluster: must be an object"),
        ("strategy", [], "schedule.strategy: must be an object"), ("more", 1, "schedule: has unknown keys ['more']"),
    )),
    reads(SCHEDULE, "2 workers", sized(1, 2), sized(1, 1), "cluster: needs 2 to 2147483647 workers"),
    reads(SCHEDULE, "fewer than 2^31", sized(1, HUGE - 1, over_all()), sized(2, HUGE // 2, over_all()),
        "cluster: needs 2 to 2147483647"),
    reads(SCHEDULE, "a node", sized(1, 2), sized(0, 2), f"cluster.num_nodes: {COUNT}"),
    reads(SCHEDULE, "a worker on it", sized(2, 1), sized(2, 0), f"cluster.workers_per_node: {COUNT}"),
    reads(SCHEDULE, "every node holds a worker", nodes([0], [1, 2]), nodes([0], [1, 2], []),
        "cluster.nodes: every node"),
    reads(SCHEDULE, "a list of nodes", nodes([0], [1, 2]), sized(3, 1) | {"cluster": {"nodes": {}}},
        "nodes: must be a list"),
    reads(SCHEDULE, "every rank stands once", nodes([2], [1, 0]), nodes([2], [1, 2]),
        "cluster.nodes: ranks are 0..n-1"),
    reads(SCHEDULE, "ranks from 0 on", nodes([2], [1, 0]), nodes([3], [1, 2]), "cluster.nodes: ranks are 0..n-1, each"),
    reads(SCHEDULE, "a rank is not negative", nodes([2], [1, 0]), nodes([2], [1, -1]),
        "cluster.nodes: must hold integers"),
    reads(SCHEDULE, "a cluster says one of two things", nodes([0], [1, 2]),
        {**sized(3, 1), "cluster": {"nodes": [[0], [1, 2]], "num_nodes": 2}},
        "cluster: has unknown keys ['num_nodes']"),
    reads(SCHEDULE, "a cluster says no more", sized(2, 1),
        {**sized(2, 1), "cluster": {"num_nodes": 2, "workers_per_node": 1, "racks": 1}},
        "cluster: has unknown keys ['racks']"),
    *(reads(SCHEDULE, f"{raw['strategy']['kind']} says no more", raw, more(raw), "strategy: has unknown keys ['more']")
      for raw in (
        over_all(), graph(2, [(0, 1, "1/2")]), groups(2, [[0, 1]]),
    )),
    reads(SCHEDULE, "a list of phases", groups(2, []), document(2, 1, kind="static", phases={"group": [0, 1]}),
        "strategy.phases: must be a list"),
    reads(SCHEDULE, "a kind of three", over_all(), document(2, 1, kind="pairwise"),
        "strategy.kind: must be one of ['sta"),
    reads(SCHEDULE, "a phase", groups(2, []), groups(2), "strategy.phases: must hold at least 1"),
    reads(SCHEDULE, "a round", graph(2, []), graph(2), "strategy.rounds: must hold at least 1"),
    *(reads(SCHEDULE, f"a phase is a list of {case}", document(6, 1, kind="static", phases=[[*GROUPS]]),
        document(6, 1, kind="static", phases=[phase]), f"strategy.phases[0]: {says}") for case, phase, says in (
        ("groups", "group", "must be a list"), ("objects", [["group"]], "must be a list of objects"),
        ("groups and their factors", [{"relaxation": 1, "groups": [0, 1]}], "the object of a group holds group and"),
        ("lists of members", [{"group": "01"}], "groups of 2 or more"),
    )),
    reads(SCHEDULE, "two in a group", groups(3, [[0, 1]]), groups(3, [[0]]), "strategy.phases[0]: groups of 2 or more"),
    reads(SCHEDULE, "a member is a worker", groups(3, [[0, 2]]), groups(3, [[0, 3]]),
        "phases[0]: must hold integers 0..2"),
    reads(SCHEDULE, "each member once", groups(3, [[0, 2]]), groups(3, [[0, 2, 2]]),
        "a worker stands twice in a group"),
    reads(SCHEDULE, "steps_per_round of 1", groups(3, [[0, 2]], steps_per_round=1),
        groups(3, [[0, 2]], steps_per_round=0),
        "steps_per_round: must hold integers 1.."),
    reads(SCHEDULE, "steps_per_round below 2^31", groups(3, [[0, 2]], steps_per_round=HUGE - 1),
        groups(3, [[0, 2]], steps_per_round=HUGE),
        "strategy.steps_per_round"),
    reads(SCHEDULE, "steps_per_round of each worker", groups(3, [[0, 2]], steps_per_round=[1, 2, 3]),
        groups(3, [[0, 2]], steps_per_round=[1, 2]),
        "strategy.steps_per_round: needs 1 number, or 1 a worker"),
    reads(SCHEDULE, "no list of 1 steps_per_round", groups(3, [[0, 2]], steps_per_round=[1, 1, 1]),
        groups(3, [[0, 2]], steps_per_round=[1]),
        "strategy.steps_per_round: needs 1 number, or 1 a worker"),
    reads(SCHEDULE, "an averaging of two", groups(3, [[0, 2]], averaging="step-normalized"),
        groups(3, [[0, 2]], averaging="median"), "strategy.averaging: must be one of ['mean', 'step-normalized']"),
    reads(SCHEDULE, "a prologue is not negative", groups(3, [[0, 2]], prologue=0), groups(3, [[0, 2]], prologue=-1),
        "strategy.prologue: must be an integer 0..9007199254740991"),
    reads(SCHEDULE, "and below 2^53", groups(3, [[0, 2]], prologue=2**53 - 1), groups(3, [[0, 2]], prologue=2**53),
        "strategy.prologue: must be an integer 0.."),
    reads(SCHEDULE, "parameters are rounded where all meet", groups(3, [[0, 1, 2]], transport={"codec": "int8"}),
        groups(3, [[0, 1]], transport={"codec": "int8"}),
        "strategy.transport.codec: parameters are rounded where a round of the period averages over all"),
    # rules
    reads(SCHEDULE, "radices of 2", block((2, 3)), block((1, 6)), "strategy.node_radices: must hold integers 2.."),
    reads(SCHEDULE, "their product is the nodes", block(),
        {**block(), "cluster": {"num_nodes": 5, "workers_per_node": 2}},
        "strategy.node_radices: needs equal nodes, and a product of num_nodes"),
    reads(SCHEDULE, "of equal nodes", block((2,), 2), {**block((2,), 2), "cluster": {"nodes": [[0], [1, 2, 3]]}},
        "strategy.node_radices: needs equal nodes, and a product of num_nodes"),
    reads(SCHEDULE, "nodes in the order of ranks", {**block((2,), 2), "cluster": {"nodes": [[0, 1], [2, 3]]}},
        {**block((2,), 2), "cluster": {"nodes": [[0, 2], [1, 3]]}}, "strategy.node_radices: needs equal"),
    reads(SCHEDULE, "a local rank of the node", block(local=[1]), block(local=[2]),
        "phases[0][0].local: must hold integers 0"),
    reads(SCHEDULE, "a local rank at all", block(local=[1]), block(local=[]),
        "phases[0][0]: a block names at least 1 local"),
    reads(SCHEDULE, "a local rank once", block(local=[1, 0]), block(local=[1, 1]),
        "phases[0][0]: local names one twice"),
    reads(SCHEDULE, "a digit of the rule", block(across=[1]), block(across=[2]),
        "phases[0][0].across: must hold integers 0.."),
    reads(SCHEDULE, "a digit once", block(across=[1, 0]), block(across=[1, 1]), "phases[0][0]: across names one twice"),
    reads(SCHEDULE, "a block has these members", block(relaxation="1/2"), block(relaxed="1/2"),
        "phases[0][0]: has unknown keys"),
    reads(SCHEDULE, "a block's factor is a number", block(relaxation="1/2"), block(relaxation="half"),
        "phases[0][0].relaxation: must be an"),
    reads(SCHEDULE, "a list of blocks", block(), document(6, 2, kind="static", node_radices=[2, 3],
        phases=["local"]), "strategy.phases[0]: must be a list"),
    *(reads(SCHEDULE, f"blocks in the order of {case}", rule((2, 3), 2, listed), rule((2, 3), 2, [*listed, ([2], [])]),
        "strategy.phases[0][2].local: must hold integers 0..1") for case, listed in (
        ("their local ranks", [([1], [0]), ([0], [1])]), ("their digits", [([0], [1]), ([0], [0])]),
        ("their factors", [([0], [0], "1/2"), ([0], [0])]),
        ("their factors in lowest terms", [([0], [0], "1/3"), ([0], [0], "2/4")]),
    )),
    # weighted graphs
    *(reads(SCHEDULE, f"a round has {case}", weights("1/2", "1/3"),
        document(2, 1, kind="neighbor", rounds=[{"weights": "1/2", **members}]), f"strategy.rounds[0]{says}")
      for case, members, says in (
        ("edges", {}, ": lacks ['edges']"),
        ("a list of them", {"edges": {}}, ".edges: must be a list"),
        ("nothing else", {"edges": [], "relaxation": 1}, ": has unknown keys ['relaxation']"),
    )),
    reads(SCHEDULE, "a weight for each edge", weights("1/2", "1/3"), weights("1/2"),
        "rounds[0]: edges are pairs, each with"),
    reads(SCHEDULE, "an edge is a pair", weights("1/2", "1/3"), weights("1/2", "1/3", edges=[(0, 1), (1, 0, 1)]),
        "rounds[0]: edges are pairs"),
    reads(SCHEDULE, "an edge stands once", weights("1/2", "1/3"), weights("1/2", "1/3", edges=[(0, 1), (0, 1)]),
        "strategy.rounds[0]: an edge is given twice"),
    reads(SCHEDULE, "an edge joins two", weights("1/2", "1/3"), weights("1/2", "1/3", edges=[(0, 1), (1, 1)]),
        "strategy.rounds[0]: an edge joins a worker to itself"),
    reads(SCHEDULE, "an edge of workers", weights("1/2", "1/3"), weights("1/2", "1/3", edges=[(0, 1), (2, 0)]),
        "strategy.rounds[0].edges[1]: must hold integers 0..1"),
    reads(SCHEDULE, "a weight is a number", weights("1/2", "1/3"), weights("1/2", "x"),
        "strategy.rounds[0].weights[1]: must"),
    # numbers
    reads(STRICT, "64 digits", relaxation("9" * 64), relaxation("9" * 65), "must be an integer or a fraction such as "
    "4/3"),
    reads(STRICT, "64 digits below the line", relaxation(f"1/{'9' * 64}"), relaxation(f"1/{'9' * 65}"),
        "must be an integer or a frac"),
    reads(STRICT, "not divided by 0", relaxation("0/1"), relaxation("1/0"), "must be an integer or a fraction such "
    "as 4/3"),
    reads(STRICT, "digits of one alphabet", relaxation("1/2"), relaxation("١/٢"), "strategy.phases[0]: must be an "
    "integer or a"),
    reads(STRICT, "no sign but one minus", relaxation("-1/2"), relaxation("+1/2"),
        "must be an integer or a fraction such as 4/3"),
    reads(STRICT, "an integer below 2^53", relaxation(2**53 - 1), relaxation(2**53), "must be an integer or a "
    "fraction"),
    reads(STRICT, "and above -2^53", relaxation(1 - 2**53), relaxation(-(2**53)), "must be an integer or a fraction"),
    reads(STRICT, "no truth value", relaxation(1), relaxation(True), "must be an integer or a fraction"),
    reads(STRICT, "a text of 2^53", relaxation(str(2**53)), relaxation(f"{2**53}/0"), "must be an integer or a "
    "fraction"),
    reads(STRICT, "no list", relaxation("3"), relaxation(["3"]), "strategy.phases[0]: must be an integer or a "
    "fraction"),
    # failure plans
    reads(FAILURES, "one rule of three", plan(rule="all_reduce"), plan(rule="own"),
        "failure_plan.rule: must be one of"),
    reads(FAILURES, "a rule", plan(), plan(rule=None), "failure_plan: lacks ['rule']"),
    reads(FAILURES, "a number of failures", plan(), plan(failures=None), "failure_plan: lacks ['failures']"),
    reads(FAILURES, "nothing besides", plan(), plan(lost=[0]), "failure_plan: has unknown keys ['lost']"),
    reads(FAILURES, "a failure at least", plan(failures=1), plan(failures=0),
        "failure_plan.failures: must be an integer"),
    reads(FAILURES, "four at most", plan(failures=4), plan(failures=5), "failure_plan.failures: must be an integer"),
    reads(
        FAILURES,
        "two workers left",
        plan(groups(4, [[0, 1, 2, 3]]), failures=2),
        plan(groups(4, [[0, 1, 2, 3]]), failures=3),
        "failure_plan.failures: leaves 2 workers or more",
    ),
    reads(
        FAILURES,
        "no groups to keep beside All-Reduce",
        plan(over_all(2, 2), rule="all_reduce"),
        plan(over_all(2, 2), rule="keep_groups"),
        "failure_plan.rule: is all_reduce for strategy allreduce",
    ),
    reads(
        FAILURES,
        "a rule that is applied again",
        plan(rule="reapply_rule"),
        plan(groups(4, [[0, 1, 2, 3]]), rule="reapply_rule"),
        "failure_plan.rule: reapply_rule goes with node_radices",
    ),
    reads(
        FAILURES,
        "groups that can be listed",
        plan(rule([2**23], 2, [([0, 1], [0])])),
        plan(rule([2**23 + 1], 2, [([0, 1], [0])])),
        "failure_plan: is for at most 16777216 workers",
    ),
    *(
        reads(
            SCHEDULE,
            f"groups that share no worker, for {of}",
            plan(rule([2], 3, [([0, 1], [0]), ([2], [])]), rule=of),
            plan(rule([2], 3, [([0, 1], [0]), ([1, 2], [])]), rule=of),
            "failure_plan.rule: strategy.phases[0]: has groups that share a worker",
        )
        for of in ("keep_groups", "reapply_rule")
    ),
    reads(
        SCHEDULE,
        "listed groups that share no worker",
        plan(groups(4, [[0, 1], [2, 3]])),
        plan(groups(4, [[0, 1]], [[0, 1], [1, 2]])),
        "failure_plan.rule: strategy.phases[1]: has groups that share a worker",
    ),
    *(
        reads(
            FAILURES,
            f"survivors that continue by a plan that is proved: no {name}",
            plan(over_all(3, 1, steps_per_round=4), rule="all_reduce"),
            plan(of, rule="all_reduce"),
            "failure_plan: is for static and allreduce; no quorum, tables, layers in a pipeline",
        )
        for name, of in (
            ("layers in a pipeline", over_all(3, 1, sync={"pipeline": {}},
                transport={"gradient_buckets": "per_layer"})),
            ("late averages by unequal steps", groups(3, [[0, 1, 2]], steps_per_round=[1, 2, 3],
                averaging="step-normalized", sync={"delay": 1})),
            ("merge that keeps a part", turns(4, 1, steps=1, alpha="1/2")),
            ("outer parameters of each worker", groups(3, [[0, 1, 2]],
                payload={"outer": {"lr": "1/2", "outer_params": "per_worker"}})),
            ("tables", table()),
            ("a quorum", over_all(4, 1, sync={"partial": {"quorum": 2}})),
            ("weighted graphs", gap()),
        )
    ),
]
# fmt: on
