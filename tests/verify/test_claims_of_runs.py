"""Ages, queues, ends, memory, errors of codecs and bytes: each claim against a run, an eigenvalue or a count."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from random import Random

import pytest

from benchmarks.forgery import payloads, runs
from benchmarks.forgery.campaign import certify, refusal
from benchmarks.forgery.dense import dense
from benchmarks.forgery.schedules import SCHEDULES, explicit, graph, random_allreduce, random_schedule, rule, shift
from helpers.claims import claims_of_runs, facts_of
from partreduce import Cluster, Hardware, RoundSampler, Schedule
from partreduce.files import dump_schedule
from partreduce.runtime.transport.worlds import member_sets
from partreduce.schedulers.registry import build
from partreduce.strategies import Block, Group
from partreduce.topo.strategies import AllReduce, AllReduceAlgorithm, Codec, CodecScope, DelayedAveraging, Transport
from partreduce.topo.timing.cost import communication
from partreduce.types import Claim, Proof
from partreduce.verify import Status, prove
from partreduce.verify import facts as facts_module
from partreduce.verify.checker.codec_error import FollowedSum, rounded_up
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.payload import in_bytes


def gives_nothing_back(raw, matrices):
    """Whether no outer step takes back what has arrived; with momentum nothing is said of groups, or of a merge."""
    strategy = raw["strategy"]
    outer, sync = strategy.get("payload", {}).get("outer", {}), strategy.get("sync", {})
    is_own = outer.get("outer_params") == "per_worker"
    if outer.get("momentum"):
        return not is_own and not (isinstance(sync, dict) and sync.get("merge", {}).get("alpha"))
    rate = float(Fraction(outer.get("lr", 1))) if is_own else 1
    return all(1 - rate + rate * matrix.diagonal().min() > 1e-9 for matrix in matrices)


@pytest.mark.parametrize("schedules", [120, pytest.param(360, marks=pytest.mark.slow)])
def test_every_claim_of_random_schedules_is_what_a_run_shows_and_no_looser(schedules):
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
        assert (proof["staleness"].status is Status.FOLLOWS) == (gap is not None and gives_nothing_back(raw, matrices))
        if proof["staleness"].status is Status.FOLLOWS:
            entry = proof["staleness"].numbers
            assert entry["age"] == runs.oldest_age(matrices, late=late, delay=delay)
            assert entry["reach"] == gap
        if listed is None:
            assert proof["queues"].numbers["capacities"] == runs.waiting_messages(raw, waits)
            assert proof["queues"].numbers["gap"] == (-1 if gap is None else gap)
        for name in payloads.JUDGES:
            assert (name in proof) == payloads.is_due(name, raw, listed, matrices), (name, raw)
            if name in proof and proof[name].holds:
                entry = {"claim": name, **(proof[name].numbers or proof[name].entry)}
                assert payloads.JUDGES[name](entry, raw, listed, matrices), (entry, raw)
            elif name in proof and proof[name].status is Status.REFUTED:
                contracts = {"claim": name, "squared": str(1 - Fraction(1, 10**6))}
                assert not payloads.JUDGES[name](contracts, raw, listed, matrices), raw
    # Own outer parameters are rare here; `test_outer_consensus` draws them alone.
    often = set(payloads.JUDGES) - {"outer-consensus"}
    names = ("staleness", "queues", "end", "memory", *often)
    assert proved["outer-consensus"] > 0 or schedules < 360
    assert min(proved[name] for name in names) > schedules / 18, "every claim was seen to hold often"
    assert min(proved[name] for name in ("equal-replicas", "codec-error", "memory")) > schedules / 6


def test_of_a_weighted_graph_operations_in_flight_are_counted_once_and_the_bytes_that_leave_for_each_neighbor():
    """A star: its center sends the model to 3 neighbors in one exchange."""
    star = [(0, leaf, Fraction(1, 4)) for leaf in (1, 2, 3)] + [(leaf, 0, Fraction(1, 4)) for leaf in (1, 2, 3)]
    claim = prove(graph(4, star))["sent-bytes"]
    assert (claim.numbers["of_worker"], claim.numbers["in_flight"]) == ("3", "1")
    assert "Operations on at most 1 bytes are in flight at a time; each counts once" in claim.explanation
    assert "on their way" not in claim.explanation


def test_what_a_node_sends_is_what_is_priced_where_ranks_go_from_node_to_node():
    """`docs/metrics.md` says that the bytes of real runs are the priced ones."""
    draw, seen = random.Random("sent bytes"), 0
    while seen < 60:
        schedule = random_schedule(draw)
        if schedule.is_mixing and schedule.cluster.workers_per_node and not schedule.prologue:
            priced = communication(schedule, Hardware(model_bytes=2**24)).peak_nic_bytes
            assert in_bytes(ScheduleFacts(schedule).numbers("sent-bytes"), 2**24)["of_node"] == pytest.approx(
                priced, abs=1
            )
            seen += 1


@pytest.mark.parametrize("name", ["prague-figure-10", "hyper-cuboid", "node-then-all", "one-peer-exponential"])
def test_memory_counts_what_the_runtime_makes(name):
    schedule = build(name, Cluster.parse("4x4"))
    entry = prove(schedule)["memory"].numbers
    made = [member_sets(schedule, rank) for rank in range(16)]
    assert entry["groups"] == max(map(len, made))
    assert entry["connections"] >= max(sum(len(group) - 1 for group in groups) for groups in made)
    if schedule.is_phased:
        phases = (schedule.phase(index) for index in range(schedule.period))
        assert entry["splits"] == len({frozenset(group.members for group in phase) for phase in phases if len(phase)})


def test_any_other_refuted_claim_refutes_the_schedule():
    claims = (Claim("a", Status.PROVED, ""), Claim("b", Status.REFUTED, ""))
    assert Proof("x", claims, frozenset({"a"}), {}).verdict is Status.REFUTED
    claims = (Claim("a", Status.REFUTED, "", is_property=True),)
    assert Proof("x", claims, frozenset({"a"}), {}).verdict is Status.NOT_PROVED, "essential and not proved"


@pytest.mark.parametrize("steps_per_round", [1, (2, 1, 3, 1)])
def test_data_dealt_by_steps_per_round_end_where_the_claim_says(steps_per_round):
    schedule = Schedule("a", Cluster.regular(2, 2), AllReduce(steps_per_round=steps_per_round))
    steps = prove(schedule)["end"].numbers["steps"]
    for size in (steps, 5 * steps + 1, 10 * steps - 1):
        samplers = [RoundSampler(size, schedule, 1, rank=rank) for rank in range(4)]
        assert {sampler.num_rounds for sampler in samplers} == {size // steps}
        assert {len(list(sampler)) // int(p) for sampler, p in zip(samplers, schedule.worker_steps(), strict=True)} == {
            size // steps
        }


def test_in_join_mode_every_worker_takes_part_in_the_same_rounds():
    """The protocol of theorem 3 in every order that random speeds give, with rounds that wait for their members."""
    draw = random.Random(11)
    for _ in range(300):
        schedule = random_schedule(draw)
        n = schedule.num_workers
        waits = runs.partners(*_parts(schedule))
        data = [draw.randrange(6) for _ in range(n)]
        declared: set[int] = set()
        ended: set[int] = set()
        entered, left = [-1] * n, [0] * n  # the last round whose operation a worker entered; rounds that it completed
        gone: set[int] = set()
        for _ in range(20 * n * (max(data) + 2)):
            worker = draw.randrange(n)
            k = left[worker]
            if worker in gone:
                continue
            if entered[worker] < k:
                if k < data[worker]:
                    declared.add(k)
                    entered[worker] = k
                else:
                    ended.add(worker)
                    all_ended = len(ended) == n
                    if k in declared:
                        entered[worker] = k
                    elif all_ended:
                        gone.add(worker)
            elif all(entered[other] >= k for other in waits[k % len(waits)][worker]):
                left[worker] += 1
        assert (left, len(gone)) == ([max(data)] * n, n)


def _parts(schedule):
    raw = dump_schedule(schedule)
    return raw, dense(raw)[0], schedule.num_workers


def test_too_many_workers_are_not_proved_and_quick():
    n = 100_000
    proof = prove(explicit(n, [range(0, n, 2), range(1, n, 2)], [range(i, i + 2) for i in range(0, n, 2)]))
    assert proof["staleness"].status is Status.NOT_PROVED
    assert proof["end"].status is Status.NOT_PROVED
    wide = prove(graph(100, shift(100, Fraction(1, 3))))
    assert wide["queues"].numbers["capacities"] == [100] * 100


FACTORS = [1, 1, 1, Fraction(1, 2), Fraction(4, 3), 0, Fraction(3, 2), Fraction(-1, 2)]


def of_groups(chance):
    n, phases = chance.randint(2, 6), []
    for _ in range(chance.randint(1, 3)):
        order, groups = chance.sample(range(n), n), []
        while len(order) > 1:
            size = min(chance.randint(1, 3), len(order))
            members, order = order[:size], order[size:]
            if size > 1:
                groups.append(Group(tuple(sorted(members)), Fraction(chance.choice(FACTORS))))
        phases.append(groups)
    options = {"prologue": chance.randint(0, 1), "steps_per_round": chance.choice([1, 2, tuple(range(1, n + 1))])}
    return explicit(n, *phases, **options, **({"sync": DelayedAveraging()} if chance.random() < 0.3 else {}))


def of_rules(chance):
    radices, size, phases = chance.choice([(2,), (3,), (2, 2)]), chance.randint(1, 3), []
    for _ in range(chance.randint(1, 3)):
        ranks, blocks = chance.sample(range(size), size), []
        while ranks:
            count = chance.randint(1, len(ranks))
            across = tuple(d for d in range(len(radices)) if chance.random() < 0.6)
            blocks.append(Block(tuple(sorted(ranks[:count])), across, Fraction(chance.choice(FACTORS))))
            ranks = ranks[count:]
        phases.append(tuple(blocks))
    return rule(radices, size, *phases)


def of_graphs(chance):
    n, rounds = chance.randint(2, 6), []
    for _ in range(chance.randint(1, 2)):
        pairs = {(u, v) for u in range(n) for v in range(n) if u != v and chance.random() < 0.4} or {(0, 1)}
        share = chance.choice([Fraction(1, n), Fraction(1, 2), Fraction(-1, 5)])
        rounds.append([(u, v, share if chance.random() < 0.9 else Fraction(1, 3 * n)) for u, v in sorted(pairs)])
    return graph(n, *rounds)


def speaks(claim):
    return claim.explanation.count(" ") > 5 and "None" not in claim.explanation


@pytest.mark.parametrize("make", [of_groups, of_rules, of_graphs])
def test_what_is_said_is_what_a_run_of_a_small_schedule_shows(make):
    chance, seen = Random(make.__name__), set()
    for _ in range(90):
        schedule = make(chance)
        raw, n = dump_schedule(schedule), schedule.num_workers
        listed, matrices = dense(raw)
        waits = runs.partners(raw, listed, n)
        gap = runs.largest_gap(waits)
        claims = claims_of_runs(schedule)
        assert all(map(speaks, claims.values()))
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
        assert ("queues" in claims) == (make is of_graphs)
        if make is of_graphs:
            capacities = runs.waiting_messages(raw, waits)
            queues = claims["queues"]
            assert queues.numbers == {"gap": -1 if gap is None else gap, "capacities": capacities}
            assert ("rounds ahead" in queues.explanation) == (gap is not None)
            assert ("that has a bound" in queues.explanation) == (-1 in capacities)
            free = f"{capacities.count(-1)} of {len(capacities)} edges have no bound"
            assert (free in queues.explanation) == (-1 in capacities)
        seen.add((age.status, keeps))
    assert {(Status.FOLLOWS, True), (Status.NOT_PROVED, True), (Status.NOT_PROVED, False)} <= seen


@pytest.mark.parametrize("name", ["staleness", "queues", "end"])
def test_what_would_take_too_long_is_not_proved_and_said(monkeypatch, name):
    schedule = graph(6, shift(6, Fraction(1, 3)))
    monkeypatch.setattr(facts_module, "MAX_WORK", 5)
    claim = claims_of_runs(schedule)[name]
    assert claim.status is Status.NOT_PROVED
    assert "over a second" in claim.explanation
    assert speaks(claim)


def claim_of(schedule, name):
    """What is said of a schedule, None where nothing is."""
    return claims_of_runs(schedule).get(name)


def test_what_is_not_due_is_not_stated():
    stated = facts_of(dump_schedule(SCHEDULES["rule"]))
    assert not {"codec-error", "equal-replicas"} & stated.keys()


def bound(transport, nodes=4, on_each=4):
    entry = claim_of(
        Schedule("a", Cluster.regular(nodes, on_each), AllReduce(transport=transport)), "codec-error"
    ).numbers
    return Fraction(entry["relative"]), Fraction(entry["absolute"]), entry["roundings"]


@pytest.mark.parametrize(("codec", "unit", "tiny"), [
    (Codec.FLOAT16, Fraction(1, 2**11), Fraction(1, 2**25)),
    (Codec.BFLOAT16, Fraction(1, 2**8), Fraction(1, 2**134)),
])  # fmt: skip
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
    assert "also those that computed a sum" in coded.explanation
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
