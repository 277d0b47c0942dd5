"""Claims of each kind, their output, contents of certificates; and every registry covers every kind."""

import json
import re
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from math import inf, nextafter
from pathlib import Path
from random import Random

import pytest

from benchmarks.forgery.schedules import SCHEDULES, explicit, rule
from helpers.claims import confirm_claims
from helpers.refusals import check_error
from partreduce import Cluster, Schedule
from partreduce.errors import RefutedError
from partreduce.files import parse_schedule, schedule_sha256
from partreduce.planner.predict import ARRAYS
from partreduce.runtime import strategies
from partreduce.schedulers.simulator.simulate import PROTOCOLS
from partreduce.strategies import AllReduce, Block, Codec, DynamicGroups, Group, Pairwise, Server, Transport
from partreduce.topo.document.strategies import KINDS
from partreduce.types import Claim
from partreduce.verify import Status, prove
from partreduce.verify.base import fraction_above, not_proved, proved, refuted, upper
from partreduce.verify.certificate import certificate_bytes, confirm
from partreduce.verify.consensus import every_relaxation_tame
from partreduce.verify.contraction import rule_view
from partreduce.verify.facts import If, ScheduleFacts, Statement, format_sentence
from partreduce.verify.payload import TABLES
from partreduce.verify.prove import OF_PROTOCOL, OWN_OUTER_PARAMS, STATEMENTS

MEANS = {"doubly-stochastic", "consensus", "deadlock-free"}
OF_RUNS = ["staleness", "end", "memory", "sent-bytes"]
OF_GROUPS = ["conflict-free", "doubly-stochastic", "consensus", "deadlock-free", "contraction", "consensus-distance"]


@pytest.mark.parametrize("power", [1, 2])
def test_bounds_are_rounded_up_by_less_than_one_digit(power):
    draw = Random("bounds")
    for _ in range(2000):
        digits = draw.choice((2, 3, 4, 6, 9))
        value = Fraction(draw.randrange(1, 10**9), 10 ** draw.randrange(19)) + Fraction(1, draw.randrange(1, 10**6))
        rounded = Fraction(upper(value, digits, power=power))
        assert rounded**power >= value
        assert (rounded * (1 - Fraction(1, 10 ** (digits - 1)))) ** power < value, "one digit less is below"
    assert [upper(Fraction(one), 4) for one in ("1/3", "1/4", "0", "1", "62500066/1000000000", "2/3")] == [
        "0.3334", "0.25", "0", "1", "0.06251", "0.6667",
    ]  # fmt: skip
    assert upper(Fraction(3, 4), 9, power=2) == "0.866025404"
    assert upper(Fraction(1, 9), 4, power=2) == "0.3334"


def test_bound_below_1_is_not_printed_as_1():
    for exponent in (3, 6, 9, 12, 30):
        value = 1 - Fraction(1, 10**exponent)
        assert value <= Fraction(upper(value)) < 1
        assert value <= Fraction(upper(value, power=2)) ** 2 < 1
    assert upper(1 + Fraction(1, 10**9)) == "1.00001"


ESSENTIAL = {
    "explicit": MEANS | {"conflict-free"},
    "rule-exact": MEANS | {"conflict-free", "membership"},
    "allreduce": MEANS | {"conflict-free", "membership"},
    "graph": MEANS,
    "pipeline": MEANS | {"conflict-free", "membership", "equal-replicas", "codec-error"},
    "coded": MEANS | {"conflict-free", "codec-error"},
    "quorum": {"deadlock-free", "conservation", "equal-replicas"},
}
ON_REQUEST = {
    DynamicGroups(): {"convergence", "deadlock-free"},
    Pairwise(active=(0, 2)): {"consensus", "deadlock-free"},
    Server(): {"consensus", "deadlock-free"},
    Server(transport=Transport(codec=Codec.FLOAT16)): {"consensus", "deadlock-free", "codec-error"},
}


def test_essential_claims_of_every_kind():
    assert {name: prove(SCHEDULES[name]).essential for name in ESSENTIAL} == ESSENTIAL
    of = {strategy: Schedule("s", Cluster.regular(2, 2), strategy) for strategy in ON_REQUEST}
    assert {strategy: prove(schedule).essential for strategy, schedule in of.items()} == ON_REQUEST


def claim_names(schedule):
    return [claim.claim for claim in prove(schedule).claims]


def test_claims_of_every_kind_are_ordered():
    assert claim_names(SCHEDULES["explicit"]) == [*OF_GROUPS, *OF_RUNS]
    assert claim_names(SCHEDULES["rule-exact"]) == [OF_GROUPS[0], "membership", *OF_GROUPS[1:], "exact-consensus",
                                              *OF_RUNS]  # fmt: skip
    assert set(claim_names(SCHEDULES["graph"])) >= {*MEANS, "contraction", *OF_RUNS}


def test_overlapping_groups_leave_averaging_claims_unproved():
    proof = prove(explicit(3, [[0, 1], [1, 2]]))
    assert [(claim.claim, claim.status) for claim in proof.claims] == [
        ("conflict-free", Status.REFUTED),
        *((name, Status.NOT_PROVED) for name in ("doubly-stochastic", "consensus", "deadlock-free", "contraction")),
    ]
    assert all("it needs conflict-free, which is refuted" in claim.explanation for claim in proof.claims[1:])
    assert proof.certificate["claims"] == []


def test_pipelines_and_codecs_add_claims():
    pipe, coded = prove(SCHEDULES["pipeline"]), prove(SCHEDULES["coded"])
    assert claim_names(SCHEDULES["pipeline"])[-6:] == [*OF_RUNS[:2], "equal-replicas", "codec-error", *OF_RUNS[2:]]
    assert claim_names(SCHEDULES["allreduce"])[-5:] == [*OF_RUNS[:2], "equal-replicas", *OF_RUNS[2:]]
    assert pipe.verdict is coded.verdict is Status.PROVED
    server = prove(Schedule("s", Cluster.regular(2, 2), Server(transport=Transport(codec=Codec.FLOAT16))))
    assert server.verdict is Status.FOLLOWS
    clash = explicit(3, [[0, 1], [1, 2]], [range(3)], transport=Transport(codec=Codec.INT8))
    assert prove(clash)["codec-error"].status is Status.NOT_PROVED


def test_sentences_keep_the_clauses_whose_conditions_hold():
    sentence = (
        "{schedule.name} has {count}",
        If(lambda _, n: n["count"] > 1, (" {what}s", If(lambda s, _: s.num_workers > 3, " each")), " {what}"),
        ".",
    )
    wide, narrow = (Schedule("x", Cluster.regular(1, n), AllReduce()) for n in (4, 2))
    messages = [
        format_sentence(sentence, schedule, {"count": count}, lambda _, n: {"what": f"item{n['count']}"})
        for schedule in (wide, narrow)
        for count in (1, 2)
    ]
    assert messages == ["x has 1 item1.", "x has 2 item2s each.", "x has 1 item1.", "x has 2 item2s."]


def test_caveats_follow_only_proved_claims():
    facts = ScheduleFacts(SCHEDULES["explicit"])
    for claim, words in ((proved("a", "so."), "so. But."), (not_proved("a", "open."), "open."), (None, None)):
        found = Statement("a", lambda _, claim=claim: claim, " But.").claim(facts)
        assert (found and found.explanation) == words


def test_statement_names_are_unique_per_table():
    for rows in (*STATEMENTS.values(), *OF_PROTOCOL.values(), OWN_OUTER_PARAMS, TABLES):
        listed = [row.name for row in rows]
        assert len(listed) == len({*listed}) > 1


EXACT = ["doubly-stochastic", "consensus", "contraction", "consensus-distance"]


def test_matrix_claims_mention_codec_rounding():
    coded, plain = prove(SCHEDULES["coded"]), prove(SCHEDULES["explicit"])
    for name in EXACT:
        assert "exact averages; rounding adds" in coded[name].explanation
        assert "exact averages" not in plain[name].explanation
    assert "exact averages" not in coded["memory"].explanation


def test_deadlock_freedom_explains_concurrent_operations():
    explanation = prove(SCHEDULES["pipeline"])["deadlock-free"].explanation
    assert "Up to 2 of them are in flight at once" in explanation
    assert "cut into pieces that all workers start in the same order" in explanation
    assert "One thread carries out its stages in this order" in explanation
    explanation = prove(SCHEDULES["allreduce"])["deadlock-free"].explanation
    assert not any(word in explanation for word in ("in flight", "pieces", "thread"))


@pytest.mark.parametrize("strategy", ON_REQUEST)
def test_runtime_grouping_strategies_have_no_certificate(strategy):
    proof = prove(Schedule("s", Cluster.regular(2, 2), strategy))
    assert (proof.certificate, proof.name) == ({}, "s")


LISTED = {"neighbor": lambda _: 1, "allreduce": lambda _: 0, "static": lambda schedule: len(schedule.strategy.phases)}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_certificate_holds_proved_claims_and_the_schedule_hash(schedule):
    proof = prove(schedule)
    document = json.loads(certificate_bytes(proof.certificate))
    assert document == {
        "format": "partreduce.certificate", "version": 1, "schedule_sha256": schedule_sha256(schedule),
        "num_workers": schedule.num_workers,
        "period": schedule.period if schedule.is_mixing else LISTED[schedule.strategy.kind](schedule),
        "claims": [claim.entry for claim in proof.claims if claim.status is Status.PROVED],
    }  # fmt: skip
    text = certificate_bytes(proof.certificate)
    assert text == json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert confirm(replace(schedule, certificate=proof.certificate)) == [c["claim"] for c in document["claims"]]
    check_error(RefutedError, "carries no certificate", confirm, schedule)
    forged = {**document, "num_workers": schedule.num_workers + 1}
    with pytest.raises(RefutedError, match=f"schedule '{schedule.name}': certificate: .*num_workers"):
        confirm(replace(schedule, certificate=forged))


def test_claim_json_contains_only_set_members():
    plain = {"claim": "a", "status": "proved"}
    assert proved("a", "so").to_json() == plain
    assert proved("a", "so", {"x": 1}).to_json() == {**plain, "witness": {"x": 1}}
    assert replace(proved("a", "so"), is_property=True).to_json() == {**plain, "property": True}
    assert not_proved("a", "why").to_json() == {"claim": "a", "status": "not proved"}
    assert proved("a", "so", None, n=3) == Claim("a", Status.PROVED, "so", None, {"claim": "a", "n": 3})
    assert refuted("a", "so", {"x": 1}) == Claim("a", Status.REFUTED, "so", {"x": 1})
    against = {(status, is_property): Claim("a", status, "", is_property=is_property).is_refuted_requirement
               for status in Status for is_property in (False, True)}  # fmt: skip
    assert [key for key, speaks in against.items() if speaks] == [(Status.REFUTED, False)]
    with pytest.raises(FrozenInstanceError):
        proved("a", "so").claim = "b"


def test_fraction_above_is_the_smallest_with_its_bits():
    chance = Random(0)
    values = [chance.uniform(0.1, 9) * 2.0 ** chance.randint(-80, 80) for _ in range(300)] + [1.0, 2.0, 0.5, 3.0]
    values += [nextafter(1.0, inf), nextafter(1.0, 0)]
    for value in values:
        for bits in (1, 5, 32):
            above, exact = fraction_above(value, bits), Fraction(value)
            assert above >= exact
            whole = above.numerator
            while whole % 2 == 0:
                whole //= 2
            assert whole < 2**bits, "so many significant bits"
            unit = Fraction(2) ** (-bits)
            while unit * 2**bits <= exact:
                unit *= 2
            while unit * 2 ** (bits - 1) > exact:
                unit /= 2
            assert above - exact < unit, "none smaller of so many bits is above"
        assert fraction_above(value) == fraction_above(value, 32)


def test_tame_relaxations_do_not_increase_differences():
    for x in (Fraction(n, 4) for n in range(-3, 12)):
        is_tame = abs(1 - x) < 1 or x == 0  # a pair's difference is times 1 − x
        assert every_relaxation_tame(explicit(4, [[0, 1]], [Group((0, 1), x), Group((2, 3), Fraction(1))])) == is_tame
        assert every_relaxation_tame(rule((2,), 2, (Block((0, 1), (), Fraction(x)),), (Block((0, 1)),))) == is_tame
        assert every_relaxation_tame(rule((2,), 2, (Block((1,), (), Fraction(x)),))), "the block makes no group"
    assert every_relaxation_tame(explicit(4, [[0, 1]]))


def test_rule_view_sorts_blocks():
    blocks = (Block((2, 1), (1, 0)), Block((0,), (0,)))
    seen = rule_view(rule((2, 2), 3, blocks))
    assert seen.phases == ((Block((0,), (0,)), Block((1, 2), (0, 1))),)
    assert rule_view(explicit(3, [[0, 1]], [[1, 2]])) is None
    assert rule_view(SCHEDULES["graph"]) is None


# Every registry covers every kind of strategy


PAGE = (Path(__file__).parents[2] / "docs" / "file-format.md").read_text(encoding="utf-8")
IN_JSON = re.compile(r'^```json title="schedule"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
EXAMPLES = [text.encode() for text in IN_JSON.findall(PAGE)]


def test_documents_provers_and_runners_share_the_same_kinds():
    assert set(STATEMENTS) == set(KINDS)
    assert {kind.kind for kind in strategies._RUNNERS} == set(KINDS)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_documented_schedules_have_certificates_or_protocols(text):
    schedule = parse_schedule(text)
    if not schedule.is_mixing:
        assert schedule.strategy.protocol in PROTOCOLS, "virtual time runs its protocol"
        assert schedule.strategy.protocol in ARRAYS, "its memory is predicted"
        return
    assert confirm_claims(schedule) == [entry["claim"] for entry in prove(schedule).certificate["claims"]] != []
