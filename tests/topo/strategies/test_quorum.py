"""A quorum as a value of the when axis: what it says of itself, which settings are refused, what files hold."""

import json

import pytest

from partreduce import Cluster, Schedule
from partreduce.errors import DocumentError, ScheduleError
from partreduce.files import dump_schedule, parse_schedule
from partreduce.strategies import Phase
from partreduce.topo.strategies import (
    AllReduce,
    Codec,
    DynamicGroups,
    GradientBuckets,
    GroupPhases,
    LateGradientPolicy,
    MissedResultPolicy,
    PartialAllReduce,
    QuorumStart,
    StaticGroups,
    Transport,
)
from partreduce.verify.base import Status
from partreduce.verify.certificate import confirm
from partreduce.verify.prove import prove

CLUSTER = Cluster.regular(2, 2)


def schedule(**members):
    return Schedule("s", CLUSTER, AllReduce(sync=PartialAllReduce(**members)))


def document(members):
    strategy = {"kind": "allreduce", "sync": {"partial": members}}
    cluster = {"num_nodes": 2, "workers_per_node": 2}
    text = {"format": "partreduce.schedule", "version": 1, "name": "s", "cluster": cluster, "strategy": strategy}
    return json.dumps(text).encode()


@pytest.mark.parametrize(
    "members",
    [
        {"quorum": "solo"},
        {"quorum": 3, "count": "call", "staleness": 1, "grace": 2000},
        {"quorum": "majority", "seed": 2**53 - 1},
        {"quorum": "majority", "count": "call", "missed": "latest", "synchronize_every": 10},
    ],
    ids=str,
)
def test_files_hold_it_as_it_is(members):
    loaded = parse_schedule(document(members))
    assert loaded == schedule(**members)
    assert dump_schedule(loaded)["strategy"]["sync"] == {"partial": members}


@pytest.mark.parametrize(
    ("members", "words"),
    [
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
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(members, words):
    with pytest.raises(ScheduleError, match=words):
        schedule(**members)


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({}, 'partial: the key "quorum" is missing'),
        ({"quorum": True}, 'partial.quorum: is true; it must be "solo" or "majority", or a number of workers'),
        ({"quorum": 2.0}, 'partial.quorum: is 2.0; it must be "solo" or "majority", or a number of workers'),
        ({"quorum": "solo", "grace": 0.5}, "partial.grace: is 0.5"),
        ({"quorum": "solo", "majority": 1}, 'partial: has the unknown key "majority"'),
        (3, "partial: is 3; it must be an object"),
    ],
    ids=str,
)
def test_files_that_do_not_hold_one_are_refused_with_the_place(members, line):
    with pytest.raises(DocumentError) as caught:
        parse_schedule(document(members))
    assert f"strategy.sync.{line}" in str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (lambda sync: AllReduce(sync=sync, steps_per_round=2), "sync.partial: goes with steps_per_round 1"),
        (
            lambda sync: AllReduce(sync=sync, transport=Transport(codec=Codec.FLOAT16)),
            "transport.codec: is float16; a quorum's sums",
        ),
        (
            lambda sync: AllReduce(sync=sync, transport=Transport(gradient_buckets=GradientBuckets.PER_LAYER)),
            "transport.gradient_buckets: is per_layer; a quorum's sums",
        ),
        (
            lambda sync: DynamicGroups(group_size=2, sync=sync),
            "sync: strategy 'dynamic_groups' has no quorum; leave it out",
        ),
        (
            lambda sync: StaticGroups(phases=GroupPhases((Phase.from_groups(4, [range(4)]),)), sync=sync),
            "sync: strategy 'static' has no quorum; leave it out",
        ),
    ],
    ids=["steps_per_round", "codec", "layers", "kind", "groups"],
)
def test_what_does_not_go_with_a_quorum_is_refused(strategy, words):
    with pytest.raises(ScheduleError, match=words):
        Schedule("s", CLUSTER, strategy(PartialAllReduce(quorum=QuorumStart.SOLO)))


def test_what_it_says_of_itself():
    made = schedule(quorum=3, staleness=2)
    sync = made.strategy.sync
    assert (sync.lag, sync.bound, sync.keeps_equal, sync.needed(4), sync.needed(2)) == (2, 2, True, 3, 2)
    assert sync.in_words == "quorum 3 up to 2 late"
    assert made.strategy.averages_gradients
    assert made.strategy.protocol == "quorum"
    assert AllReduce().protocol == ""
    assert not made.is_mixing
    with pytest.raises(ScheduleError, match=r"sync\.partial: which updates a round averages is decided while the job"):
        _ = made.period
    latest = PartialAllReduce(quorum=QuorumStart.SOLO, missed=MissedResultPolicy.LATEST)
    assert latest.in_words == "solo latest"
    assert (latest.bound, latest.lag, latest.keeps_equal, latest.needed(9)) == (None, 1, False, 1)
    assert PartialAllReduce(quorum=QuorumStart.SOLO, missed=MissedResultPolicy.LATEST, synchronize_every=7).bound == 7


FOLLOWS = Status.FOLLOWS


@pytest.mark.parametrize(
    ("members", "verdict", "staleness", "equal"),
    [
        ({"quorum": "solo"}, FOLLOWS, FOLLOWS, FOLLOWS),
        ({"quorum": 2, "count": LateGradientPolicy.CALL, "staleness": 1}, FOLLOWS, FOLLOWS, FOLLOWS),
        ({"quorum": "solo", "missed": "latest"}, "not proved", "not proved", "not proved"),
        ({"quorum": "solo", "missed": "latest", "synchronize_every": 9}, FOLLOWS, FOLLOWS, FOLLOWS),
    ],
    ids=str,
)
def test_what_is_proved(members, verdict, staleness, equal):
    proof = prove(schedule(**members))
    assert (proof.verdict, proof["staleness"].status, proof["equal-replicas"].status) == (verdict, staleness, equal)
    assert proof.certificate["claims"] == [], "what follows from the rules has no witness"
    assert confirm(schedule(**members).with_certificate(proof.certificate)) == []
    if staleness == FOLLOWS:
        assert proof["staleness"].numbers == {"rounds": schedule(**members).strategy.sync.bound}
