"""Laws of what is said about payloads: what is stated and a run of each agree."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import pytest

from benchmarks.forgery import payloads
from benchmarks.forgery.dense import dense
from benchmarks.forgery.schedules import SCHEDULES, explicit, random_allreduce, random_schedule
from helpers.claims import facts_of
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.phase import Group
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedAveraging, Transport
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, CodecScope
from partreduce.verify.checker.codec_error import FollowedSum, rounded_up
from partreduce.verify.runs import claims_of_runs
from partreduce.verify.stated import Stated

NAMES = ("lag", "equal-replicas", "codec-error", "memory")


def claim_of(schedule, name):
    """What is said of a schedule, None where nothing is."""
    return next((claim for claim in claims_of_runs(schedule, Stated(schedule)) if claim.claim == name), None)


def test_what_is_said_of_random_schedules_is_what_runs_show():
    draw, made = random.Random(7), dict.fromkeys(NAMES, 0)
    for number in range(320):
        schedule = random_allreduce(draw) if number % 2 else random_schedule(draw)
        raw = dump_schedule(schedule)
        listed, matrices = dense(raw)
        for name in NAMES:
            claim = claim_of(schedule, name)
            if name != "memory":
                assert (claim is not None) == payloads.is_due(name, raw, listed, matrices), raw
            if claim is None:
                continue
            made[name] += 1
            numbers = json.loads(json.dumps(dict(claim.numbers)))
            if name != "memory":
                assert payloads.JUDGES[name]({"claim": name, **numbers}, raw, listed, matrices), (raw, numbers)
    assert min(made.values()) > 60


def test_what_is_not_due_is_not_stated():
    stated = facts_of(dump_schedule(SCHEDULES["rule"]))
    assert not {"lag", "codec-error", "equal-replicas"} & stated.keys()


def bound(transport, nodes=4, on_each=4):
    entry = claim_of(
        Schedule("a", Cluster.regular(nodes, on_each), AllReduce(transport=transport)), "codec-error"
    ).numbers
    return Fraction(entry["relative"]), Fraction(entry["absolute"]), entry["roundings"]


@pytest.mark.parametrize(
    ("codec", "unit", "tiny"),
    [
        (Codec.FLOAT16, Fraction(1, 2**11), Fraction(1, 2**25)),
        (Codec.BFLOAT16, Fraction(1, 2**8), Fraction(1, 2**134)),
    ],
)
def test_errors_in_16_bits_grow_with_the_additions_of_a_ring_and_with_none_in_stages(codec, unit, tiny):
    staged = Transport(codec=codec, algorithm=AllReduceAlgorithm.HIERARCHICAL)
    for transport, seen in ((Transport(codec=codec), 16), (staged, 3)):
        relative, absolute, roundings = bound(transport)
        assert roundings == seen
        assert seen * unit < relative < seen * unit * (1 + 8 * unit)
        assert absolute == 32 * tiny, "16 members"
    assert bound(staged, nodes=16, on_each=16)[2] == 3
    across = Transport(codec=codec, algorithm=AllReduceAlgorithm.HIERARCHICAL, where=CodecScope.ACROSS_NODES)
    assert bound(across)[2] == 2
    assert bound(across, nodes=1) == (Fraction(6 * 2**8 + 1, 2**32), Fraction(1, 2**146), 0), "nothing is coded"
    assert bound(across, on_each=1)[2] == 4, "one on each node goes as a ring"


def test_errors_of_int8_are_two_or_three_roundings_of_half_a_step():
    ring = Transport(codec=Codec.INT8)
    staged = Transport(codec=Codec.INT8, algorithm=AllReduceAlgorithm.HIERARCHICAL)
    across = Transport(codec=Codec.INT8, algorithm=AllReduceAlgorithm.HIERARCHICAL, where=CodecScope.ACROSS_NODES)
    for transport, roundings in ((ring, 2), (staged, 3), (across, 2)):
        relative, _, seen = bound(transport)
        assert seen == roundings
        exact = (1 + Fraction(1, 254)) ** roundings - 1
        assert exact < relative < exact + Fraction(1, 2**18)


@pytest.mark.parametrize(
    "absolute", [Fraction(1, 2**150), Fraction(3, 2**150), Fraction(1), Fraction(65), Fraction(64)]
)
def test_bounds_are_rounded_up_to_simple_numbers(absolute):
    found = FollowedSum()
    found.relative, found.absolute = Fraction(1, 3), absolute
    relative, power = map(Fraction, rounded_up(found))
    assert 0 <= relative - Fraction(1, 3) < Fraction(1, 2**32)
    assert relative * 2**32 == int(relative * 2**32)
    assert power >= absolute > power / 2
    assert 1 in (power.numerator, power.denominator)
    assert (power.numerator & (power.numerator - 1), power.denominator & (power.denominator - 1)) == (0, 0)


def test_replicas_are_equal_after_plain_rounds_of_all_in_synchronous_and_no_others():
    def rounds(schedule):
        claim = claim_of(schedule, "equal-replicas")
        return None if claim is None else claim.numbers["rounds"]

    everybody = range(4)
    assert rounds(explicit(4, [[0, 1], [2, 3]], [everybody], [everybody])) == [1, 2]
    assert rounds(explicit(4, [[0, 1]], [Group(tuple(everybody), Fraction(3, 2))])) is None
    assert rounds(explicit(4, [everybody], sync=DelayedAveraging())) is None
    assert rounds(explicit(4, [[0, 1, 2]])) is None
    plain = claim_of(explicit(4, [[0, 1], [2, 3]], [everybody]), "equal-replicas")
    assert "1 of 2 rounds" in plain.explanation
    assert "codec" not in plain.explanation
    coded = claim_of(explicit(4, [everybody], transport=Transport(codec=Codec.INT8)), "equal-replicas")
    assert "every round" in coded.explanation
    assert "whoever summed them" in coded.explanation
    steps = claim_of(Schedule("a", Cluster.regular(2, 2), AllReduce()), "equal-replicas")
    assert (steps.numbers["of"], "after every step" in steps.explanation) == ("gradients", True)


def test_memory_names_what_a_pipeline_and_a_codec_keep():
    def told(schedule):
        claim = claim_of(schedule, "memory")
        return claim.numbers["arrays"], claim.explanation

    arrays, words = told(SCHEDULES["pipeline"])
    assert arrays == 5
    assert "3 for the sums in flight" in words
    assert "two for what error feedback keeps" in words
    arrays, words = told(SCHEDULES["coded"])
    assert arrays == 2
    assert "second communicator" in words
    assert "reference from which coded differences are taken" in words
    arrays, words = told(SCHEDULES["allreduce"])
    assert (arrays, "one for the sums)" in words, "second" in words) == (1, True, False)
