"""Claims about staleness, ends, memory, codec errors and bytes against a run, an eigenvalue or a count."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.forgery import payloads, runs
from benchmarks.forgery.campaign import certify, refusal
from benchmarks.forgery.dense import dense
from benchmarks.forgery.schedules import SCHEDULES, explicit, graph, random_allreduce, random_schedule, shift
from helpers.claims import claims_of_runs
from helpers.small_draws import random_graph, random_groups, random_rule
from partreduce import Cluster, Hardware, RoundSampler, Schedule
from partreduce.files import dump_schedule
from partreduce.runtime.transport.worlds import member_sets
from partreduce.schedulers.registry import build
from partreduce.strategies import Group
from partreduce.topo.strategies import AllReduce, Codec, DelayedAveraging, Transport
from partreduce.topo.timing.cost import communication
from partreduce.verify import Status, prove
from partreduce.verify import facts as facts_module
from partreduce.verify.checker.codec_error import FollowedSum, rounded_up
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.payload import in_bytes


def keeps_updates(raw, matrices):
    """Whether no outer step reverts a received update; with momentum this is undecided for groups and a merge."""
    strategy = raw["strategy"]
    outer, sync = strategy.get("payload", {}).get("outer", {}), strategy.get("sync", {})
    is_own = outer.get("outer_params") == "per_worker"
    if outer.get("momentum"):
        return not is_own and not (isinstance(sync, dict) and sync.get("merge", {}).get("alpha"))
    rate = float(Fraction(outer.get("lr", 1))) if is_own else 1
    return all(1 - rate + rate * matrix.diagonal().min() > 1e-9 for matrix in matrices)


def is_due(name, raw, listed, matrices):
    """Whether the claim applies to a schedule."""
    if name == "sent-bytes":
        return True
    if name == "codec-error":
        return raw["strategy"].get("transport", {}).get("codec", "none") != "none"
    is_own = bool(runs.outer_of(raw).get("own"))
    if is_own or name == "outer-consensus":  # no claim is made of the matrices of own outer parameters
        return is_own and name == "outer-consensus"
    mean = np.full_like(matrices[0], 1 / len(matrices[0]))
    return (
        listed is not None
        and runs.turns_of(raw)[0] == 1
        and not runs.mixes_late(raw)
        and any(np.allclose(w, mean) for w in matrices)
    )


@pytest.mark.parametrize("schedules", [60, pytest.param(360, marks=pytest.mark.slow)])
def test_claims_of_random_schedules_match_simulated_runs_exactly(schedules):
    draw = random.Random(3)
    proved: dict[str, int] = {}
    for number in range(schedules):
        schedule = random_allreduce(draw) if number % 2 else random_schedule(draw)
        proof = prove(schedule)
        raw, certificate = certify(schedule)
        listed, matrices = dense(raw)
        n, late, delay = schedule.num_workers, runs.missing_rounds(raw), runs.delay_of(raw)
        assert refusal(json.loads(json.dumps(raw)), certificate) is None
        for claim in proof.claims:
            proved[claim.claim] = proved.get(claim.claim, 0) + claim.holds
        waits = runs.partners(raw, listed, n)
        gap = runs.largest_gap(waits)
        assert proof["end"].numbers["behind"] == (-1 if gap is None else runs.largest_gap(waits, delay))
        assert proof["end"].numbers["steps"] == int(schedule.worker_steps().sum())
        assert proof["memory"].numbers == runs.busiest(raw, listed, n)
        assert (proof["staleness"].status is Status.FOLLOWS) == (gap is not None and keeps_updates(raw, matrices))
        if proof["staleness"].status is Status.FOLLOWS:
            entry = proof["staleness"].numbers
            assert entry["age"] == runs.oldest_age(matrices, late=late, delay=delay)
            assert entry["reach"] == gap
        for name in payloads.JUDGES:
            assert (name in proof) == is_due(name, raw, listed, matrices), (name, raw)
            if name in proof and proof[name].holds:
                entry = {"claim": name, **(proof[name].numbers or proof[name].entry)}
                assert payloads.JUDGES[name](entry, raw, listed, matrices), (entry, raw)
            elif name in proof and proof[name].status is Status.REFUTED:
                contracts = {"claim": name, "squared": str(1 - Fraction(1, 10**6))}
                assert not payloads.JUDGES[name](contracts, raw, listed, matrices), raw
    # Per-worker outer parameters are rare here; test_outer_quorum_table_claims.py draws only them.
    often = set(payloads.JUDGES) - {"outer-consensus"}
    names = ("staleness", "end", "memory", *often)
    assert proved["outer-consensus"] > 0 or schedules < 360
    assert min(proved[name] for name in names) > schedules / 18, "every claim holds often"
    assert min(proved[name] for name in ("equal-replicas", "codec-error", "memory")) > schedules / 6


def test_graph_sent_bytes_count_each_neighbor_but_in_flight_once():
    """The center of a star sends the model to 3 neighbors in one exchange."""
    star = [(0, leaf, Fraction(1, 4)) for leaf in (1, 2, 3)] + [(leaf, 0, Fraction(1, 4)) for leaf in (1, 2, 3)]
    claim = prove(graph(4, star))["sent-bytes"]
    assert (claim.numbers["of_worker"], claim.numbers["in_flight"]) == ("3", "1")
    assert "Operations on at most 1 bytes are in flight at a time; each counts once" in claim.explanation
    assert "on their way" not in claim.explanation


def test_sent_bytes_match_the_priced_bytes():
    """As stated in `docs/metrics.md`."""
    draw, seen = random.Random("sent bytes"), 0
    while seen < 25:
        schedule = random_schedule(draw)
        if schedule.is_mixing and schedule.cluster.workers_per_node and not schedule.prologue:
            priced = communication(schedule, Hardware(model_bytes=2**24)).peak_nic_bytes
            assert in_bytes(ScheduleFacts(schedule).numbers("sent-bytes"), 2**24)["of_node"] == pytest.approx(
                priced, abs=1
            )
            seen += 1


@pytest.mark.parametrize("name", ["prague-figure-10", "hyper-cuboid", "node-then-all", "one-peer-exponential"])
def test_memory_counts_the_groups_of_the_runtime(name):
    schedule = build(name, Cluster.parse("4x4"))
    entry = prove(schedule)["memory"].numbers
    made = [member_sets(schedule, rank) for rank in range(16)]
    assert entry["groups"] == max(map(len, made))
    assert entry["connections"] >= max(sum(len(group) - 1 for group in groups) for groups in made)
    if schedule.is_phased:
        phases = (schedule.phase(index) for index in range(schedule.period))
        assert entry["splits"] == len({frozenset(group.members for group in phase) for phase in phases if len(phase)})


@pytest.mark.parametrize("steps_per_round", [1, (2, 1, 3, 1)])
def test_sampler_ends_in_the_claimed_round(steps_per_round):
    schedule = Schedule("a", Cluster.regular(2, 2), AllReduce(steps_per_round=steps_per_round))
    steps = prove(schedule)["end"].numbers["steps"]
    for size in (steps, 5 * steps + 1, 10 * steps - 1):
        samplers = [RoundSampler(size, schedule, 1, rank=rank) for rank in range(4)]
        assert {sampler.num_rounds for sampler in samplers} == {size // steps}
        assert {len(list(sampler)) // int(p) for sampler, p in zip(samplers, schedule.worker_steps(), strict=True)} == {
            size // steps
        }


def test_run_claims_of_too_many_workers_are_not_proved():
    n = 100_000
    proof = prove(explicit(n, [range(0, n, 2), range(1, n, 2)], [range(i, i + 2) for i in range(0, n, 2)]))
    assert proof["staleness"].status is Status.NOT_PROVED
    assert proof["end"].status is Status.NOT_PROVED
    wide = prove(graph(100, shift(100, Fraction(1, 3))))
    assert wide["end"].numbers["behind"] == 99


def has_explanation(claim):
    return claim.explanation.count(" ") > 5 and "None" not in claim.explanation


@pytest.mark.parametrize("make", [random_groups, random_rule, random_graph])
def test_claims_of_small_schedules_match_simulated_runs(make):
    seen = set()
    for seed in filter(lambda seed: seed % 7, range(105)):
        late = {"sync": DelayedAveraging()} if make is random_groups and seed % 4 == 0 else {}
        schedule = make(seed, steps_per_round=1 + seed % 2, **late)
        raw, n = dump_schedule(schedule), schedule.num_workers
        listed, matrices = dense(raw)
        waits = runs.partners(raw, listed, n)
        gap = runs.largest_gap(waits)
        claims = claims_of_runs(schedule)
        assert all(map(has_explanation, claims.values()))
        assert claims["memory"].numbers == runs.busiest(raw, listed, n)
        keeps = all((w >= 0).all() and (w.diagonal() > 1e-12).all() for w in matrices)
        age = claims["staleness"]
        assert (age.status is Status.FOLLOWS) == (keeps and gap is not None)
        if age.status is Status.FOLLOWS:
            late, steps_per_round = int(schedule.strategy.is_delayed), int(schedule.worker_steps().max())
            oldest = runs.oldest_age(matrices, late=late)
            assert age.numbers == {"late": late, "steps": late * steps_per_round, "reach": gap, "age": oldest,
                                   "age_steps": oldest * steps_per_round}  # fmt: skip
            assert ("late average" in age.explanation) == bool(late)
        elif gap is None:
            assert "never receives from" in age.explanation
        end = claims["end"]
        assert end.numbers == {"steps": int(schedule.worker_steps().sum()), "behind": -1 if gap is None else gap}
        assert ("leaves early" in end.explanation) == (gap is not None)
        seen.add((age.status, keeps))
    assert {(Status.FOLLOWS, True), (Status.NOT_PROVED, True), (Status.NOT_PROVED, False)} <= seen


@pytest.mark.parametrize(("inside", "across"), [(3, 1), (1, 4), (2, 2), (1000, 1)])
def test_repeated_phases_reach_all_workers_one_round_after_the_longest_run(inside, across):
    nodes, rails = [range(4 * k, 4 * k + 4) for k in range(4)], [range(k, 16, 4) for k in range(4)]
    schedule = explicit(16, *[nodes] * inside, *[rails] * across)
    assert claims_of_runs(schedule)["end"].numbers["behind"] == max(inside, across) + 1


@pytest.mark.parametrize("name", ["staleness", "end"])
def test_too_expensive_run_claims_are_not_proved(monkeypatch, name):
    schedule = graph(6, shift(6, Fraction(1, 3)))
    monkeypatch.setattr(facts_module, "MAX_WORK", 5)
    claim = claims_of_runs(schedule)[name]
    assert claim.status is Status.NOT_PROVED
    assert "over a second" in claim.explanation
    assert has_explanation(claim)


def claim_of(schedule, name):
    """Return a claim of a schedule by name, or None."""
    return claims_of_runs(schedule).get(name)


@pytest.mark.parametrize(
    "absolute", [Fraction(1, 2**150), Fraction(3, 2**150), Fraction(1), Fraction(65), Fraction(64)]
)
def test_codec_bounds_are_rounded_up(absolute):
    found = FollowedSum()
    found.relative, found.absolute = Fraction(1, 3), absolute
    relative, power = map(Fraction, rounded_up(found))
    assert 0 <= relative - Fraction(1, 3) < Fraction(1, 2**32)
    assert relative * 2**32 == int(relative * 2**32)
    assert power >= absolute > power / 2
    assert 1 in (power.numerator, power.denominator)
    assert (power.numerator & (power.numerator - 1), power.denominator & (power.denominator - 1)) == (0, 0)


def test_equal_replicas_needs_plain_synchronous_global_rounds():
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
    assert "also those that computed a sum" in coded.explanation
    steps = claim_of(Schedule("a", Cluster.regular(2, 2), AllReduce()), "equal-replicas")
    assert (steps.numbers["of"], "after every step" in steps.explanation) == ("gradients", True)


def test_memory_lists_pipeline_and_codec_buffers():
    def arrays_and_words(schedule):
        claim = claim_of(schedule, "memory")
        return claim.numbers["arrays"], claim.explanation

    arrays, words = arrays_and_words(SCHEDULES["pipeline"])
    assert arrays == 5
    assert "3 for the sums in flight" in words
    assert "two for what error feedback keeps" in words
    arrays, words = arrays_and_words(SCHEDULES["coded"])
    assert arrays == 2
    assert "second communicator" in words
    assert "reference from which coded differences are taken" in words
    arrays, words = arrays_and_words(SCHEDULES["allreduce"])
    assert (arrays, "one for the sums)" in words, "second" in words) == (1, True, False)
