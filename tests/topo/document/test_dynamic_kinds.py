"""Kinds without fixed phases in documents: what is refused, and what the canonical form forgets."""

import json

import pytest

from partreduce import Cluster
from partreduce.errors import DocumentError, ScheduleError
from partreduce.files import dump_schedule, parse_schedule
from partreduce.strategies import DynamicGroups, GroupSplit, SlowWorkerPolicy
from partreduce.topo.document.canonical import canonical_bytes


def document(strategy):
    return json.dumps(
        {
            "format": "partreduce.schedule",
            "version": 1,
            "name": "x",
            "cluster": {"num_nodes": 2, "workers_per_node": 2},
            "strategy": strategy,
        }
    ).encode()


def test_node_then_all_needs_two_workers_on_every_node():
    with pytest.raises(ScheduleError, match=r"division: node-then-all averages inside nodes and node 1 has one worker"):
        DynamicGroups(division=GroupSplit.NODE_THEN_ALL).check(Cluster(2, None, ((0, 1), (2,))))
    DynamicGroups(division=GroupSplit.NODE_THEN_ALL).check(Cluster.regular(2, 2))


def test_defaults_of_dynamic_groups_are_not_written():
    schedule = parse_schedule(document({"kind": "dynamic_groups"}))
    assert dump_schedule(schedule)["strategy"] == {"kind": "dynamic_groups"}
    strategy = schedule.strategy
    assert (strategy.division, strategy.slow_worker_policy) == (GroupSplit.INTER_INTRA, SlowWorkerPolicy.PAIR_LOCALLY)
    spelled = {"kind": "dynamic_groups", "group_size": 3, "division": "inter-intra", "slow_threshold": 4, "seed": 0}
    assert parse_schedule(document(spelled)) == schedule


def test_no_filter_is_null_and_kept():
    schedule = parse_schedule(document({"kind": "dynamic_groups", "slow_threshold": None}))
    assert schedule.strategy.slow_threshold is None
    assert dump_schedule(schedule)["strategy"] == {"kind": "dynamic_groups", "slow_threshold": None}


def test_order_of_active_and_of_edges_means_nothing_and_order_of_hosts_does():
    one = {"kind": "pairwise", "active": [0, 3], "edges": [[0, 1], [3, 2]]}
    other = {"kind": "pairwise", "active": [3, 0], "edges": [[2, 3], [1, 0]]}
    assert canonical_bytes(parse_schedule(document(one))) == canonical_bytes(parse_schedule(document(other)))
    shards = [canonical_bytes(parse_schedule(document({"kind": "server", "hosts": h}))) for h in ([0, 1], [1, 0])]
    assert shards[0] != shards[1]


@pytest.mark.parametrize(
    ("strategy", "place", "problem"),
    [
        ({"kind": "dynamic_groups", "group_size": 1}, "strategy.group_size", "is 1; it must be >= 2"),
        ({"kind": "dynamic_groups", "group_size": 5}, "strategy.group_size", "between 2 and the number of workers, 4"),
        ({"kind": "dynamic_groups", "group_size": True}, "strategy.group_size", "must be an integer"),
        ({"kind": "dynamic_groups", "division": "smart"}, "strategy.division", "must be"),
        ({"kind": "dynamic_groups", "slow_worker_policy": "anybody"}, "strategy.slow_worker_policy", "must be"),
        ({"kind": "dynamic_groups", "slow_threshold": 0}, "strategy.slow_threshold", "is 0; it must be >= 1"),
        ({"kind": "dynamic_groups", "all_every": 0}, "strategy.all_every", "is 0; it must be >= 1"),
        ({"kind": "dynamic_groups", "seed": -1}, "strategy.seed", "is -1; it must be >= 0"),
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
        ({"kind": "server", "synchronous": 1}, "strategy.synchronous", "is 1"),
    ],
)
def test_refusals_name_the_place(strategy, place, problem):
    with pytest.raises(DocumentError) as caught:
        parse_schedule(document(strategy))
    assert caught.value.place == place
    assert problem in caught.value.problem
