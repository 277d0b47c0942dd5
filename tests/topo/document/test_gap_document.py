"""`sync.iteration_gap` in documents: every member round trips with one hash, and is refused in one line."""

import json
from dataclasses import fields
from fractions import Fraction

import pytest

from helpers.readings import agree
from partreduce import Cluster, Schedule
from partreduce.errors import InputError
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.strategies import EdgeWeighting, IterationGap, NeighborAveraging, Round, SkipPolicy, UpdateOrder
from partreduce.topo.document.schema import schedule_schema
from partreduce.verify import checker

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


def document(gap, edges=RING, n=4, **members):
    ascending = sorted(edges, key=lambda edge: (edge[1], edge[0]))
    rounds = [{"edges": [[s, t] for s, t, _ in ascending], "weights": str(ascending[0][2])}]
    strategy = {"kind": "neighbor", "rounds": rounds, "sync": {"iteration_gap": gap}, **members}
    cluster = {"num_nodes": n, "workers_per_node": 1}
    return {"format": "partreduce.schedule", "version": 1, "name": "g", "cluster": cluster, "strategy": strategy}


@pytest.mark.parametrize("name", GAPS)
def test_a_gap_round_trips_with_one_hash_for_loader_and_checker(name):
    gap, raw = GAPS[name]
    schedule = Schedule("g", Cluster.regular(4, 1), NeighborAveraging(rounds=(Round.from_edges(4, RING),), sync=gap))
    dumped = dump_schedule(schedule)
    assert dumped["strategy"]["sync"] == {"iteration_gap": raw}
    assert parse_schedule(json.dumps(dumped).encode()).strategy == schedule.strategy
    every = {"max_ig": None, "staleness": 0, "backup": 0, "notify_ack": False, "skip": None}
    spelled = every | {"weights": "graph", "update_order": "adapt_then_combine"} | raw
    if "skip" in raw:
        spelled["skip"] = {"trigger": 2, "behind": 2, **raw["skip"]}
    for written in (raw, spelled):
        loaded = parse_schedule(json.dumps(document(written)).encode())
        assert loaded.strategy == schedule.strategy
        assert agree(document(written))
        read = checker.read_schedule(dump_schedule(loaded))
        assert read.sha256 == schedule_sha256(loaded) == schedule_sha256(schedule)
        assert (read.gap.takes_all, read.is_late) == (gap.takes_all, gap.update_order is UpdateOrder.DPSGD)


REFUSED = [
    ({"max_ig": 0}, {}, r"sync\.iteration_gap\.max_ig: is 0; without a token no worker"),
    ({"max_ig": -1}, {}, "max_ig"),
    ({"max_ig": 1.0}, {}, "max_ig"),
    ({"max_ig": True}, {}, "max_ig"),
    ({"staleness": -1}, {}, "staleness"),
    ({"staleness": "1"}, {}, "staleness"),
    ({"backup": 1}, {}, r"sync\.iteration_gap\.backup: without token queues a worker that others do without"),
    ({"backup": 3, "max_ig": 1}, {}, r"sync\.iteration_gap\.backup\[0\]: is 3, but worker 0 has only 2"),
    ({"backup": [0, 3, 0, 0], "max_ig": 1}, {}, r"sync\.iteration_gap\.backup\[1\]: is 3, but worker 1 has only 2"),
    (
        {"backup": [1, 0], "max_ig": 1},
        {},
        r"sync\.iteration_gap\.backup: has 2 numbers; give 1 number or 1 for each of 4",
    ),
    ({"backup": [0, 0, -1, 0], "max_ig": 1}, {}, "backup"),
    ({"notify_ack": True, "staleness": 1}, {}, r"sync\.iteration_gap\.notify_ack: needs every update"),
    (
        {"notify_ack": True, "backup": [0, 0, 1, 0], "max_ig": 1},
        {},
        r"sync\.iteration_gap\.notify_ack: needs every update",
    ),
    (
        {"notify_ack": True, "skip": {"limit": 2}, "max_ig": 4},
        {},
        r"sync\.iteration_gap\.notify_ack: needs every update",
    ),
    ({"notify_ack": 1}, {}, "notify_ack"),
    ({"skip": {"limit": 3}, "staleness": 1}, {}, r"sync\.iteration_gap\.skip: tokens say where"),
    ({"skip": {"limit": 3}, "max_ig": 1}, {}, r"sync\.iteration_gap\.skip: never happens"),
    (
        {"skip": {"limit": 3, "trigger": 1}, "max_ig": 1, "staleness": 1},
        {},
        r"sync\.iteration_gap\.skip\.trigger: is 1",
    ),
    ({"skip": {"limit": 2, "trigger": 3}, "max_ig": 1, "staleness": 1}, {}, r"sync\.iteration_gap\.skip\.limit: is 2"),
    ({"skip": {"limit": 2, "behind": 1}, "max_ig": 1, "staleness": 1}, {}, r"sync\.iteration_gap\.skip\.behind: is 1"),
    ({"skip": {}, "max_ig": 1, "staleness": 1}, {}, "limit"),
    ({"skip": {"limit": 3, "far": 1}, "max_ig": 1, "staleness": 1}, {}, "far"),
    ({"reduce": "newest", "staleness": 1}, {}, "reduce"),  # a setting of earlier versions
    ({"weights": "iteration"}, {}, r"sync\.iteration_gap\.weights: is iteration; without staleness"),
    ({"weights": "uniform"}, {"edges": RING[:-1]}, r"sync\.iteration_gap\.weights: is uniform, but edge"),
    ({"inquire": True, "max_ig": 2, "backup": 1}, {}, "inquire"),  # a setting of earlier versions
    ({"update_order": "other"}, {}, "update_order"),
    ({"gaps": 1}, {}, "gaps"),
    ([], {}, r"sync\.iteration_gap"),
    ({}, {"edges": ONE_WAY}, r"rounds\[0\]: no path leads back along edge 1→2"),
    ({}, {"steps_per_round": [1, 1, 2, 1]}, "steps_per_round: has one number for each worker"),
]


@pytest.mark.parametrize(("gap", "members", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_makes_no_sense_is_refused_by_loader_and_checker(gap, members, message):
    edges = members.pop("edges", RING) if "edges" in members else RING
    raw = document(gap, edges, **members)
    with pytest.raises(InputError, match=message) as caught:
        parse_schedule(json.dumps(raw).encode())
    assert "\n" not in str(caught.value)
    assert not agree(raw)


def test_a_gap_goes_with_one_graph_of_neighbors():
    two = document({})
    two["strategy"]["rounds"] *= 2
    with pytest.raises(InputError, match=r"rounds: has 2; a gap is kept over the edges of 1 fixed graph"):
        parse_schedule(json.dumps(two).encode())
    everybody = {**document({}), "strategy": {"kind": "allreduce", "sync": {"iteration_gap": {}}}}
    with pytest.raises(InputError, match="has no gap between neighbors"):
        parse_schedule(json.dumps(everybody).encode())
    for raw in (two, everybody):
        with pytest.raises(checker.Refusal, match="goes with 1 weighted graph"):
            checker.read_schedule(json.loads(json.dumps(raw)))


def test_the_schema_has_every_member_of_a_gap():
    text = json.dumps(schedule_schema())
    for value in (IterationGap, SkipPolicy):
        for field in fields(value):
            assert f'"{field.name}"' in text


@pytest.mark.parametrize("name", ["max_ig", "staleness"])
def test_numbers_that_certificates_or_a_state_cannot_count_to_are_refused(name):
    with pytest.raises(InputError, match=rf"sync\.iteration_gap\.{name}: is {2**40}; .*(at most|must be <=)"):
        parse_schedule(json.dumps(document({name: 2**40})).encode())
