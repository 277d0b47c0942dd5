"""A quorum of groups: what files hold, which settings are refused, what is proved of the shadow models."""

import json
from fractions import Fraction

import pytest

from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule, parse_schedule
from partreduce.topo.errors import DocumentError, ScheduleError
from partreduce.topo.phase import Group, Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Codec, GroupPhases, How, Lockstep, Quorum, Static
from partreduce.topo.strategies.base import Averaging
from partreduce.verify.prove import prove

CLUSTER = Cluster.regular(2, 2)
NODES = {
    "kind": "static",
    "node_radices": [2],
    "phases": [[{"local": [0, 1], "across": []}], [{"local": [0, 1], "across": [0]}]],
}
MATRICES = ("conflict-free", "doubly-stochastic", "consensus", "contraction", "exact-consensus")


def document(members, **more):
    cluster = {"num_nodes": 2, "workers_per_node": 2}
    strategy = NODES | {"when": {"quorum": members}} | more
    text = {"format": "partreduce.schedule", "version": 1, "name": "s", "cluster": cluster, "strategy": strategy}
    return json.dumps(text).encode()


def explicit(*phases, **members):
    groups = tuple(Phase.from_groups(4, groups) for groups in phases)
    return Schedule("s", CLUSTER, Static(phases=GroupPhases(groups), **members))


@pytest.mark.parametrize(
    ("members", "more"),
    [
        ({"quorum": "solo"}, {}),
        ({"quorum": 3, "staleness": 1}, {"pace": 4}),
        ({"quorum": "majority", "seed": 7, "grace": 100}, {"pace": [1, 2, 3, 4], "prologue": 2}),
    ],
    ids=str,
)
def test_files_hold_it_as_it_is(members, more):
    loaded = parse_schedule(document(members, **more))
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
        parse_schedule(document(members, **more))


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
    made = parse_schedule(document({"quorum": quorum, "staleness": 3}, pace=2))
    proof = prove(made)
    assert proof.verdict == "proved"
    lockstep = prove(Schedule("s", CLUSTER, parse_schedule(document({"quorum": 2}, when="lockstep")).strategy))
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
