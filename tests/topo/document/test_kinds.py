"""Kinds without fixed phases, iteration gaps and quorums in documents: round trips, canonical forms, and errors."""

import json
from fractions import Fraction

import pytest

from helpers.readings import agree, document
from helpers.refusals import check_error
from helpers.small import of_edges
from partreduce import Cluster, Schedule
from partreduce.errors import DocumentError, InputError, ScheduleError
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.strategies import Phase
from partreduce.topo.document.canonical import canonical_bytes
from partreduce.topo.strategies import (
    AllReduce,
    Codec,
    DynamicGroups,
    EdgeWeighting,
    GradientBuckets,
    GroupPhases,
    GroupSplit,
    IterationGap,
    MissedResultPolicy,
    PartialAllReduce,
    QuorumStart,
    SkipPolicy,
    SlowWorkerPolicy,
    StaticGroups,
    Transport,
    UpdateOrder,
)
from partreduce.verify import checker


def parse(strategy, *shape):
    return parse_schedule(json.dumps(document(strategy, *shape)))


def test_node_then_all_needs_two_workers_per_node():
    with pytest.raises(ScheduleError, match=r"division: node-then-all averages inside nodes and node 1 has one worker"):
        DynamicGroups(division=GroupSplit.NODE_THEN_ALL).check(Cluster(2, None, ((0, 1), (2,))))
    DynamicGroups(division=GroupSplit.NODE_THEN_ALL).check(Cluster.regular(2, 2))


def test_defaults_of_dynamic_groups_are_not_written():
    schedule = parse({"kind": "dynamic_groups"})
    assert dump_schedule(schedule)["strategy"] == {"kind": "dynamic_groups"}
    strategy = schedule.strategy
    assert (strategy.division, strategy.slow_worker_policy) == (GroupSplit.INTER_INTRA, SlowWorkerPolicy.PAIR_LOCALLY)
    spelled = {"kind": "dynamic_groups", "group_size": 3, "division": "inter-intra", "slow_threshold": 4, "seed": 0}
    assert parse(spelled) == schedule
    unfiltered = {"kind": "dynamic_groups", "slow_threshold": None}
    assert dump_schedule(parse(unfiltered))["strategy"] == unfiltered, "null is not the default"


def test_order_of_active_and_edges_is_ignored_but_not_of_hosts():
    one = {"kind": "pairwise", "active": [0, 3], "edges": [[0, 1], [3, 2]]}
    other = {"kind": "pairwise", "active": [3, 0], "edges": [[2, 3], [1, 0]]}
    assert canonical_bytes(parse(one)) == canonical_bytes(parse(other))
    shards = [canonical_bytes(parse({"kind": "server", "hosts": hosts})) for hosts in ([0, 1], [1, 0])]
    assert shards[0] != shards[1]


@pytest.mark.parametrize(("strategy", "place", "problem"), [
    ({"kind": "dynamic_groups", "group_size": 1}, "strategy.group_size", "is 1; it must be >= 2"),
    ({"kind": "dynamic_groups", "group_size": 5}, "strategy.group_size", "between 2 and the number of workers, 4"),
    ({"kind": "dynamic_groups", "division": "smart"}, "strategy.division", "must be"),
    ({"kind": "dynamic_groups", "groupsize": 2}, "strategy", 'did you mean "group_size"?'),
    ({"kind": "dynamic_groups", "steps_per_round": [1, 2]}, "strategy.steps_per_round", "2 entries"),
    ({"kind": "pairwise"}, "strategy", 'the key "active" is missing'),
    ({"kind": "pairwise", "active": []}, "strategy.active", "at least 1 is active"),
    ({"kind": "pairwise", "active": [0, 1, 2, 3]}, "strategy.active", "at least 1 passive"),
    ({"kind": "pairwise", "active": [0, 0]}, "strategy.active", "at most once"),
    ({"kind": "pairwise", "active": [0], "edges": [[1, 2]]}, "strategy.edges[0]", "joins two passive workers"),
    ({"kind": "pairwise", "active": [0], "edges": [[0, 4]]}, "strategy.edges[0]", "outside 0..3"),
    ({"kind": "pairwise", "active": [0], "edges": [[0, 1, 2]]}, "strategy.edges[0]", "too long"),
    ({"kind": "pairwise", "active": [0], "edges": [[0, 1], [1, 0]]}, "strategy.edges[1]", "given twice"),
    ({"kind": "server", "hosts": []}, "strategy.hosts", "lists at least one rank"),
    ({"kind": "server", "hosts": [4]}, "strategy.hosts", "rank of 0..3"),
    ({"kind": "server", "hosts": [1, 1]}, "strategy.hosts", "each once"),
    ({"kind": "server", "staleness": 2}, "strategy.staleness", "only an asynchronous server has one"),
    *(({"kind": "allreduce", "sync": {"partial": partial}}, f"strategy.sync.partial{place}", problem)
        for partial, place, problem in (
            ({}, "", 'the key "quorum" is missing'),
            ({"quorum": 0}, ".quorum", 'is 0; it must be "solo" or "majority", or a number of workers'),
            ({"quorum": True}, ".quorum", 'is true; it must be "solo" or "majority", or a number of workers'),
            ({"quorum": 2.0}, ".quorum", 'is 2.0; it must be "solo" or "majority", or a number of workers'),
            ({"quorum": "solo", "grace": 0.5}, ".grace", "is 0.5"),
            ({"quorum": "solo", "majority": 1}, "", 'has the unknown key "majority"'),
            (3, "", "is 3; it must be an object"))),
])  # fmt: skip
def test_invalid_strategies_are_rejected_with_their_place(strategy, place, problem):
    with pytest.raises(DocumentError) as caught:
        parse(strategy)
    assert caught.value.place == place
    assert problem in caught.value.problem


# `sync.iteration_gap` in documents


RING = [(i, (i + d) % 4, Fraction(1, 3)) for i in range(4) for d in (1, 3)]
ONE_WAY = [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2)), (1, 2, Fraction(1, 2)), (2, 3, Fraction(1, 2))]

GAPS = {
    "standard": (IterationGap(), {}),
    "tokens": (IterationGap(max_ig=4), {"max_ig": 4}),
    "paper": (IterationGap(max_ig=4, staleness=5, skip=SkipPolicy(limit=10), weights=EdgeWeighting.ITERATION,
        update_order=UpdateOrder.DPSGD),
        {"max_ig": 4, "staleness": 5, "skip": {"limit": 10}, "weights": "iteration", "update_order": "dpsgd"}),
    "backups": (IterationGap(max_ig=1, backup=(1, 0, 2, 0), weights=EdgeWeighting.UNIFORM),
        {"max_ig": 1, "backup": [1, 0, 2, 0], "weights": "uniform"}),
    "skips": (IterationGap(max_ig=2, staleness=1, skip=SkipPolicy(limit=5, trigger=3)),
        {"max_ig": 2, "staleness": 1, "skip": {"limit": 5, "trigger": 3}}),
    "notify-ack": (IterationGap(notify_ack=True, weights=EdgeWeighting.UNIFORM),
        {"notify_ack": True, "weights": "uniform"}),
}  # fmt: skip


def gap_document(gap, edges=RING, **members):
    ascending = sorted(edges, key=lambda edge: (edge[1], edge[0]))
    rounds = [{"edges": [[s, t] for s, t, _ in ascending], "weights": str(ascending[0][2])}]
    return document({"kind": "neighbor", "rounds": rounds, "sync": {"iteration_gap": gap}, **members}, 4, 1)


@pytest.mark.parametrize("name", GAPS)
def test_gap_round_trips_with_one_hash_in_loader_and_checker(name):
    gap, raw = GAPS[name]
    schedule = of_edges("s", Cluster.regular(4, 1), RING, sync=gap)
    dumped = dump_schedule(schedule)
    assert dumped["strategy"]["sync"] == {"iteration_gap": raw}
    assert parse_schedule(json.dumps(dumped).encode()).strategy == schedule.strategy
    every = {"max_ig": None, "staleness": 0, "backup": 0, "notify_ack": False, "skip": None}
    spelled = every | {"weights": "graph", "update_order": "adapt_then_combine"} | raw
    if "skip" in raw:
        spelled["skip"] = {"trigger": 2, "behind": 2, **raw["skip"]}
    for written in (raw, spelled):
        loaded = parse_schedule(json.dumps(gap_document(written)).encode())
        assert loaded.strategy == schedule.strategy
        assert agree(gap_document(written))
        read = checker.read_schedule(dump_schedule(loaded))
        assert read.sha256 == schedule_sha256(loaded) == schedule_sha256(schedule)
        assert (read.gap.takes_all, read.is_late) == (gap.takes_all, gap.update_order is UpdateOrder.DPSGD)


INVALID_GAPS = [
    (gap_document({"max_ig": 0}), r"sync\.iteration_gap\.max_ig: is 0; without a token no worker"),
    (gap_document({"max_ig": 2**40}), rf"sync\.iteration_gap\.max_ig: is {2**40}; .*(at most|must be <=)"),
    (gap_document({"backup": 1}), r"sync\.iteration_gap\.backup: without token queues a worker that others do without"),
    (gap_document({"backup": 3, "max_ig": 1}), r"sync\.iteration_gap\.backup\[0\]: is 3, but worker 0 has only 2"),
    (gap_document({"backup": [0, 3, 0, 0], "max_ig": 1}),
        r"sync\.iteration_gap\.backup\[1\]: is 3, but worker 1 has only 2"),
    (gap_document({"backup": [1, 0], "max_ig": 1}),
        r"sync\.iteration_gap\.backup: has 2 numbers; give 1 number or 1 for each of 4"),
    *((gap_document({"notify_ack": True} | more), r"sync\.iteration_gap\.notify_ack: needs every update")
        for more in ({"staleness": 1}, {"backup": [0, 0, 1, 0], "max_ig": 1}, {"skip": {"limit": 2}, "max_ig": 4})),
    (gap_document({"skip": {"limit": 3}, "staleness": 1}), r"sync\.iteration_gap\.skip: tokens say where"),
    (gap_document({"skip": {"limit": 3}, "max_ig": 1}), r"sync\.iteration_gap\.skip: never happens"),
    *((gap_document({"skip": skip, "max_ig": 1, "staleness": 1}), words)
        for skip, words in (
            ({"limit": 3, "trigger": 1}, r"sync\.iteration_gap\.skip\.trigger: is 1"),
            ({"limit": 2, "trigger": 3}, r"sync\.iteration_gap\.skip\.limit: is 2"),
            ({"limit": 2, "behind": 1}, r"sync\.iteration_gap\.skip\.behind: is 1"),
            ({}, "limit"),
            ({"limit": 3, "far": 1}, "far"))),
    (gap_document({"reduce": "newest", "staleness": 1}), "reduce"),  # a setting of earlier versions
    (gap_document({"weights": "iteration"}), r"sync\.iteration_gap\.weights: is iteration; without staleness"),
    (gap_document({"weights": "uniform"}, RING[:-1]), r"sync\.iteration_gap\.weights: is uniform, but edge"),
    (gap_document({"inquire": True, "max_ig": 2, "backup": 1}), "inquire"),  # a setting of earlier versions
    (gap_document({}, ONE_WAY), r"rounds\[0\]: no path leads back along edge 1→2"),
    (gap_document({}, steps_per_round=[1, 1, 2, 1]), "steps_per_round: has one number for each worker"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "message"), INVALID_GAPS, ids=range(len(INVALID_GAPS)))
def test_invalid_gap_is_rejected_by_loader_and_checker(raw, message):
    check_error(InputError, message, parse_schedule, json.dumps(raw))
    assert not agree(raw)


def test_gap_needs_one_graph_of_neighbors():
    two = gap_document({})
    two["strategy"]["rounds"] *= 2
    with pytest.raises(InputError, match=r"rounds: has 2; a gap is kept over the edges of 1 fixed graph"):
        parse_schedule(json.dumps(two).encode())
    allreduce = {**gap_document({}), "strategy": {"kind": "allreduce", "sync": {"iteration_gap": {}}}}
    check_error(InputError, "has no gap between neighbors", parse_schedule, json.dumps(allreduce).encode())
    for raw in (two, allreduce):
        check_error(checker.Refusal, "goes with 1 weighted graph", checker.read_schedule, json.loads(json.dumps(raw)))


# `sync.partial` as a value and in documents


CLUSTER = Cluster.regular(2, 2)


def quorum_schedule(**members):
    return Schedule("s", CLUSTER, AllReduce(sync=PartialAllReduce(**members)))


@pytest.mark.parametrize("members", [
    {"quorum": "solo"},
    {"quorum": 3, "count": "call", "staleness": 1, "grace": 2000},
    {"quorum": "majority", "seed": 2**53 - 1},
    {"quorum": "majority", "count": "call", "missed": "latest", "synchronize_every": 10},
], ids=str)  # fmt: skip
def test_quorum_round_trips(members):
    loaded = parse({"kind": "allreduce", "sync": {"partial": members}})
    assert loaded == quorum_schedule(**members)
    assert dump_schedule(loaded)["strategy"]["sync"] == {"partial": members}


@pytest.mark.parametrize(("members", "words"), [
    ({"quorum": 1}, 'partial.quorum: is 1; the first worker starts a round: say "solo"'),
    ({"quorum": -2}, "partial.quorum: is -2"),
    ({"quorum": 4}, "is 4 of 4 workers; a quorum of all is synchronous; leave sync out"),
    ({"quorum": 5}, "is 5 of 4 workers; it is at most that"),
    ({"quorum": "most"}, "quorum: is 'most'; it must be a number of workers or one of solo, majority"),
    ({"quorum": 2, "staleness": 0}, "partial.staleness: is 0; it must be >= 1"),
    ({"quorum": 2, "grace": -1}, "partial.grace: is -1; it must be >= 0"),
    ({"quorum": 2, "seed": 1}, "partial.seed: is 1; only the quorum majority draws a worker; leave it out"),
    ({"quorum": 2, "synchronize_every": 5}, "synchronize_every: is 5; with missed each parameters never part"),
    ({"quorum": 2, "missed": "latest", "staleness": 2}, "staleness: is 2; the newest result replaces older ones"),
], ids=str)  # fmt: skip
def test_invalid_quorum_settings_are_rejected(members, words):
    check_error(ScheduleError, words, quorum_schedule, **members)


@pytest.mark.parametrize(("strategy", "words"), [
    (lambda sync: AllReduce(sync=sync, steps_per_round=2), "sync.partial: goes with steps_per_round 1"),
    (lambda sync: AllReduce(sync=sync, transport=Transport(codec=Codec.FLOAT16)),
        "transport.codec: is float16; a quorum's sums"),
    (lambda sync: AllReduce(sync=sync, transport=Transport(gradient_buckets=GradientBuckets.PER_LAYER)),
        "transport.gradient_buckets: is per_layer; a quorum's sums"),
    (lambda sync: DynamicGroups(group_size=2, sync=sync),
        "sync: strategy 'dynamic_groups' has no quorum; leave it out"),
    (lambda sync: StaticGroups(phases=GroupPhases((Phase.from_groups(4, [range(4)]),)), sync=sync),
        "sync: strategy 'static' has no quorum; leave it out"),
], ids=["steps_per_round", "codec", "layers", "kind", "groups"])  # fmt: skip
def test_settings_incompatible_with_a_quorum_are_rejected(strategy, words):
    check_error(ScheduleError, words, Schedule, "s", CLUSTER, strategy(PartialAllReduce(quorum=QuorumStart.SOLO)))


def test_quorum_properties():
    made = quorum_schedule(quorum=3, staleness=2)
    sync = made.strategy.sync
    assert (sync.lag, sync.bound, sync.keeps_equal, sync.needed(4), sync.needed(2)) == (2, 2, True, 3, 2)
    assert made.strategy.averages_gradients
    assert made.strategy.protocol == "quorum"
    assert AllReduce().protocol == ""
    assert not made.is_mixing
    with pytest.raises(ScheduleError, match=r"sync\.partial: which updates a round averages is decided while the job"):
        _ = made.period
    latest = PartialAllReduce(quorum=QuorumStart.SOLO, missed=MissedResultPolicy.LATEST)
    assert (latest.bound, latest.lag, latest.keeps_equal, latest.needed(9)) == (None, 1, False, 1)
    assert PartialAllReduce(quorum=QuorumStart.SOLO, missed=MissedResultPolicy.LATEST, synchronize_every=7).bound == 7
