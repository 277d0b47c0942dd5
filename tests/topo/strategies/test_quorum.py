"""A quorum as a value of the when axis: what it says of itself, which settings are refused, what files hold."""

import json
from fractions import Fraction

import pytest

from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule, parse_schedule
from partreduce.topo.errors import DocumentError, ScheduleError
from partreduce.topo.phase import Group, Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    Codec,
    Generated,
    GroupPhases,
    How,
    Lockstep,
    Quorum,
    Sending,
    Static,
)
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.quorum import Counting, MissedResults, QuorumStart
from partreduce.verify.base import Status
from partreduce.verify.certificate import confirm
from partreduce.verify.prove import prove

CLUSTER = Cluster.regular(2, 2)


def schedule(**members):
    return Schedule("s", CLUSTER, AllReduce(when=Quorum(**members)))


NODES = {
    "kind": "static",
    "node_radices": [2],
    "phases": [[{"local": [0, 1], "across": []}], [{"local": [0, 1], "across": [0]}]],
}
MATRICES = ("conflict-free", "doubly-stochastic", "consensus", "contraction", "exact-consensus")


def explicit(*phases, **members):
    groups = tuple(Phase.from_groups(4, groups) for groups in phases)
    return Schedule("s", CLUSTER, Static(phases=GroupPhases(groups), **members))


def document(members, base=None, **more):
    strategy = (base or {"kind": "allreduce"}) | {"when": {"quorum": members}} | more
    cluster = {"num_nodes": 2, "workers_per_node": 2}
    text = {"format": "partreduce.schedule", "version": 1, "name": "s", "cluster": cluster, "strategy": strategy}
    return json.dumps(text).encode()


@pytest.mark.parametrize(
    "members",
    [
        {"quorum": "solo"},
        {"quorum": 3, "count": "call", "staleness": 1, "grace": 2000},
        {"quorum": "majority", "seed": 2**53 - 1},
        {"quorum": "majority", "count": "call", "missed": "latest", "synchronise_every": 10},
    ],
    ids=str,
)
def test_files_hold_it_as_it_is(members):
    loaded = parse_schedule(document(members))
    assert loaded == schedule(**members)
    assert dump_schedule(loaded)["strategy"]["when"] == {"quorum": members}


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"quorum": 1}, 'quorum.quorum: is 1; whoever comes first starts a round: say "solo"'),
        ({"quorum": -2}, "quorum.quorum: is -2"),
        ({"quorum": 4}, "is 4 of 4 workers; a quorum of all is lockstep; leave when out"),
        ({"quorum": 5}, "is 5 of 4 workers; it is at most that"),
        ({"quorum": "most"}, "quorum: is 'most'; it must be a number of workers or one of solo, majority"),
        ({"quorum": 2, "staleness": 0}, "quorum.staleness: is 0; it must be >= 1"),
        ({"quorum": 2, "grace": -1}, "quorum.grace: is -1; it must be >= 0"),
        ({"quorum": 2, "seed": 1}, "quorum.seed: is 1; only the quorum majority draws a worker; leave it out"),
        ({"quorum": 2, "synchronise_every": 5}, "synchronise_every: is 5; with missed each parameters never part"),
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
        ({}, 'quorum: the key "quorum" is missing'),
        ({"quorum": True}, 'quorum.quorum: is true; it must be "solo" or "majority", or a number of workers'),
        ({"quorum": 2.0}, 'quorum.quorum: is 2.0; it must be "solo" or "majority", or a number of workers'),
        ({"quorum": "solo", "grace": 0.5}, "quorum.grace: is 0.5"),
        ({"quorum": "solo", "majority": 1}, 'quorum: has the unknown key "majority"'),
        (3, "quorum: is 3; it must be an object"),
    ],
    ids=str,
)
def test_files_that_do_not_hold_one_are_refused_with_the_place(members, line):
    with pytest.raises(DocumentError) as caught:
        parse_schedule(document(members))
    assert f"strategy.when.{line}" in str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (lambda when: AllReduce(when=when, pace=2), "when.quorum: goes with pace 1"),
        (lambda when: AllReduce(when=when, how=How(codec=Codec.FLOAT16)), "how.codec: is float16; a quorum's sums"),
        (lambda when: AllReduce(when=when, how=How(sending=Sending.LAYERS)), "how.sending: is layers; what a quorum"),
        (lambda when: Generated(group_size=2, when=when), "when: strategy 'generated' has no quorum; leave it out"),
    ],
    ids=["pace", "codec", "layers", "kind"],
)
def test_what_does_not_go_with_a_quorum_is_refused(strategy, words):
    with pytest.raises(ScheduleError, match=words):
        Schedule("s", CLUSTER, strategy(Quorum(quorum=QuorumStart.SOLO)))


def test_what_it_says_of_itself():
    made = schedule(quorum=3, staleness=2)
    when = made.strategy.when
    assert (when.lag, when.bound, when.keeps_equal, when.needed(4), when.needed(2)) == (2, 2, True, 3, 2)
    assert when.in_words == "quorum 3 up to 2 late"
    assert made.strategy.averages_gradients
    assert made.strategy.protocol == "quorum"
    assert AllReduce().protocol == ""
    assert not made.is_mixing
    with pytest.raises(ScheduleError, match=r"when\.quorum: which updates a round averages is decided while the job"):
        _ = made.period
    latest = Quorum(quorum=QuorumStart.SOLO, missed=MissedResults.LATEST)
    assert latest.in_words == "solo latest"
    assert (latest.bound, latest.lag, latest.keeps_equal, latest.needed(9)) == (None, 1, False, 1)
    assert Quorum(quorum=QuorumStart.SOLO, missed=MissedResults.LATEST, synchronise_every=7).bound == 7


FOLLOWS = Status.FOLLOWS


@pytest.mark.parametrize(
    ("members", "verdict", "staleness", "equal"),
    [
        ({"quorum": "solo"}, "proved", FOLLOWS, FOLLOWS),
        ({"quorum": 2, "count": Counting.CALL, "staleness": 1}, "proved", FOLLOWS, FOLLOWS),
        ({"quorum": "solo", "missed": "latest"}, "not proved", "not proved", "not proved"),
        ({"quorum": "solo", "missed": "latest", "synchronise_every": 9}, "proved", FOLLOWS, FOLLOWS),
    ],
    ids=str,
)
def test_what_is_proved(members, verdict, staleness, equal):
    proof = prove(schedule(**members))
    assert (proof.verdict, proof["staleness"].status, proof["equal-replicas"].status) == (verdict, staleness, equal)
    assert proof.certificate["claims"] == [], "what follows from the rules has no witness"
    assert confirm(schedule(**members).with_certificate(proof.certificate)) == []
    if staleness == FOLLOWS:
        assert proof["staleness"].numbers == {"rounds": schedule(**members).strategy.when.bound}


@pytest.mark.parametrize(
    ("members", "more"),
    [
        ({"quorum": "solo"}, {}),
        ({"quorum": 3, "staleness": 1}, {"pace": 4}),
        ({"quorum": "majority", "seed": 7, "grace": 100}, {"pace": [1, 2, 3, 4], "prologue": 2}),
    ],
    ids=str,
)
def test_files_hold_that_of_groups_as_it_is(members, more):
    loaded = parse_schedule(document(members, NODES, **more))
    assert dump_schedule(loaded)["strategy"]["when"] == {"quorum": members}
    assert parse_schedule(json.dumps(dump_schedule(loaded)).encode()) == loaded
    strategy = loaded.strategy
    assert (strategy.protocol, strategy.averages_gradients, loaded.is_mixing) == ("quorum", False, False)
    with pytest.raises(ScheduleError, match=r"when\.quorum: .* whose progress is in it is decided while the job runs"):
        _ = loaded.period
    assert loaded.group_of(0, 2).members in {(0, 1), (0, 1, 2, 3)}


@pytest.mark.parametrize(
    ("members", "more", "words"),
    [
        ({"quorum": 4}, {}, "quorum.quorum: is 4, and no group has more than 4 workers; .* ask for fewer"),
        ({"quorum": 1}, {}, 'quorum.quorum: is 1; .* say "solo"'),
        ({"quorum": 2, "count": "call"}, {}, "count: is call; in groups a worker counts for the next round"),
        ({"quorum": 2, "missed": "latest"}, {}, "missed: is latest; in groups corrections are added"),
        ({"quorum": 2, "synchronise_every": 9}, {}, "synchronise_every: is 9; with missed each"),
        ({"quorum": 2}, {"averaging": "step-normalised"}, "averaging: is step-normalised; by a quorum a round takes"),
        ({"quorum": 2}, {"how": {"codec": "float16"}}, "how.codec: is float16; by a quorum workers are never equal"),
    ],
    ids=str,
)
def test_settings_that_mean_nothing_in_groups_are_refused(members, more, words):
    with pytest.raises(DocumentError, match=words):
        parse_schedule(document(members, NODES, **more))


def test_the_largest_group_counts_whether_rules_or_lists():
    quorum = Quorum(quorum=2)
    assert explicit([[0, 1]], [[1, 2, 3]], when=quorum).num_workers == 4
    with pytest.raises(ScheduleError, match="is 2, and no group has more than 2 workers"):
        explicit([[0, 1], [2, 3]], [], when=quorum)
    with pytest.raises(ScheduleError, match="no group has more than 1 workers"):
        explicit([], when=quorum)
    for name in ("allreduce", "node-then-all", "prague-figure-10"):
        made = build(name, Cluster.regular(4, 4)).strategy
        if isinstance(made, Static):
            sizes = {int(phase.sizes.max(initial=1)) for phase in made.steps(Cluster.regular(4, 4))}
            assert made.phases.largest_group() == max(sizes)


def test_what_does_not_go_with_it_elsewhere_is_as_before():
    for averaging in Averaging:
        assert explicit([[0, 1, 2]], when=Lockstep(), averaging=averaging, pace=(1, 2, 1, 1)).is_mixing
    assert explicit([[0, 1, 2, 3]], how=How(codec=Codec.FLOAT16)).is_mixing


@pytest.mark.parametrize("quorum", ["solo", "majority", 2], ids=str)
def test_what_is_proved_of_the_shadows(quorum):
    made = parse_schedule(document({"quorum": quorum, "staleness": 3}, NODES, pace=2))
    proof = prove(made)
    assert proof.verdict == "proved"
    lockstep = prove(Schedule("s", CLUSTER, parse_schedule(document({"quorum": 2}, NODES, when="lockstep")).strategy))
    for name in MATRICES:
        assert proof[name].status == lockstep[name].status
        assert (proof[name].entry, proof[name].numbers) == (lockstep[name].entry, lockstep[name].numbers)
    assert proof["mean-preserved"].status == proof["conservation"].status == "follows from the rules"
    assert proof["staleness"].numbers == {"rounds": 3}
    assert proof["quorum"].numbers == {"at_least": 2 if quorum == 2 else 1}
    assert proof["deadlock-free"].numbers["needed"] == [[2, min(2, proof["quorum"].numbers["at_least"])],
                                                      [4, proof["quorum"].numbers["at_least"]]]  # fmt: skip


def test_what_is_not_proved_where_the_matrices_do_not_bear_it():
    apart = prove(explicit([[0, 1, 2]], [[0, 1]], when=Quorum(quorum=2)))
    assert (apart["consensus"].status, apart.verdict) == ("refuted", "refuted")
    overlapping = prove(explicit([[0, 1, 2], [2, 3]], when=Quorum(quorum="solo")))
    assert overlapping["conflict-free"].status == "refuted"
    assert {overlapping[name].status for name in ("deadlock-free", "mean-preserved", "conservation")} == {"not proved"}
    relaxed = Phase.from_groups(4, [Group((0, 1, 2, 3), Fraction(3, 2))])
    made = Schedule("s", CLUSTER, Static(phases=GroupPhases((relaxed,)), when=Quorum(quorum="solo")))
    assert prove(made)["mean-preserved"].status == "follows from the rules", "a negative weight keeps the mean, too"
