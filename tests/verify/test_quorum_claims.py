"""Claims about rounds that a quorum starts: prover, checker and the played rules agree; nothing else is accepted."""

import itertools
import json

import pytest

from benchmarks.forgery import quorums
from benchmarks.forgery.campaign import certified, objection
from benchmarks.forgery.schedules import SCHEDULES, by_quorum
from helpers.claims import facts_of
from helpers.readings import agree
from partreduce import PartreduceError, Schedule
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.strategies import AllReduce, PartialAllReduce
from partreduce.verify import checker, prove

OF_ALL = [
    {"quorum": start, "staleness": late, "missed": missed, "count": count, "synchronize_every": every}
    for start, late, missed, count, every in itertools.product(
        ("solo", "majority", 2, 3), (1, 4, 9), ("each", "sum", "latest"), ("open-round", "call"), (0, 3)
    )
]


def written(members):
    """The document of a setting, with every member spelled out."""
    raw = dump_schedule(by_quorum(4, PartialAllReduce(quorum="solo")))
    raw["strategy"]["sync"] = {"partial": dict(members)}
    return json.loads(json.dumps(raw))


def fits(members):
    """Whether a setting is one, as the strategies say."""
    try:
        schedule = by_quorum(4, PartialAllReduce(**members))
        schedule.strategy.check(schedule.cluster)
    except PartreduceError:
        return False
    return True


def test_the_checker_reads_exactly_the_settings_that_there_are():
    assert [agree(written(members)) for members in OF_ALL] == list(map(fits, OF_ALL))
    assert sum(map(fits, OF_ALL)) > 30
    assert not any(agree(written({"quorum": strange})) for strange in (1, 4, -2, "all", True, 2.0, None))
    groups = written({"quorum": "solo"})
    groups["strategy"] |= {"kind": "static", "phases": [[{"group": [0, 1]}], [{"group": [0, 1, 2, 3]}]]}
    with pytest.raises(checker.Refusal, match="a pipeline and a quorum go with allreduce at steps_per_round 1"):
        checker.read_schedule(groups)


def test_what_is_stated_of_all_is_true_and_the_same_by_prover_and_checker():
    for members in filter(fits, OF_ALL):
        schedule = by_quorum(4, PartialAllReduce(**members))
        raw, certificate = certified(schedule)
        spelled = parse_schedule(json.dumps(written(members)).encode())
        assert spelled.strategy == schedule.strategy
        assert checker.read_schedule(dump_schedule(spelled)).sha256 == schedule_sha256(schedule), "one canonical form"
        assert certificate["claims"] == []
        played, facts = quorums.quorum_of(raw), facts_of(raw)
        assert facts == {claim.claim: claim.numbers for claim in prove(schedule).claims if claim.holds}
        for name, numbers in facts.items():
            assert quorums.is_true({"claim": name, **numbers}, played, 4), (members, name, numbers)
        assert ("staleness" in facts) == quorums.is_true({"claim": "staleness", "rounds": 999}, played, 4)
        equal = any(
            quorums.is_true({"claim": "equal-replicas", "of": of, "every": every}, played, 4)
            for of in ("gradients", "models")
            for every in (1, 3)
        )
        assert ("equal-replicas" in facts) == equal


def test_a_smaller_bound_is_false_and_a_certificate_of_other_rounds_is_refused():
    assert not quorums.is_true({"claim": "staleness", "rounds": 3}, quorums.USUAL | {"quorum": "solo"}, 4)
    assert not quorums.is_true({"claim": "deadlock-free", "needed": 2}, quorums.USUAL | {"quorum": "majority"}, 4)
    raw, certificate = certified(SCHEDULES["quorum"])
    of_synchronous = certified(Schedule("a", SCHEDULES["quorum"].cluster, AllReduce()))[1]
    read = checker.read_schedule(json.loads(json.dumps(raw)))
    assert of_synchronous["claims"]
    for entry in of_synchronous["claims"]:
        assert "rounds by quorum" in objection(read, {**certificate, "claims": [entry]}), entry
