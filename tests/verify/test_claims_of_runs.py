"""Limits, ages, queues, ends, memory and losses: each claim against a run, an eigenvalue or a count of its own."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.forgery import payloads, runs
from benchmarks.forgery.attempt import certified, refusal
from benchmarks.forgery.dense import dense
from benchmarks.forgery.schedules import explicit, graph, random_schedule, rule, shift
from partreduce.runtime.data.sampler import RoundSampler
from partreduce.runtime.transport.needed_groups import member_sets
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce
from partreduce.verify import Status, prove
from partreduce.verify.base import Claim, Proof


def test_every_claim_of_random_schedules_is_what_a_run_shows_and_no_looser():
    draw = random.Random(3)
    proved: dict[str, int] = {}
    for _ in range(200):
        schedule = random_schedule(draw)
        proof = prove(schedule)
        raw, certificate = certified(schedule)
        listed, matrices = dense(raw)
        n, late, delay = schedule.num_workers, runs.mixes_late(raw), runs.delay_of(raw)
        assert refusal(json.loads(json.dumps(raw)), certificate) is None
        for claim in proof.claims:
            proved[claim.claim] = proved.get(claim.claim, 0) + claim.holds
        waits = runs.partners(raw, listed, n)
        gap = runs.largest_gap(waits)
        assert proof["end"].numbers["behind"] == (-1 if gap is None else runs.largest_gap(waits, delay))
        assert proof["end"].numbers["steps"] == int(schedule.paces().sum())
        assert proof["memory"].numbers == runs.busiest(raw, listed, n)
        if proof["staleness"].status is Status.FOLLOWS:
            entry = proof["staleness"].numbers
            assert entry["age"] == runs.oldest_age(matrices, late=late, delay=delay)
            assert entry["reach"] == gap
        else:
            assert gap is None
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
        if "outer-consensus" in proof:
            continue
        consensus, loss = proof["consensus"].status, proof["consensus-after-a-loss"]
        if consensus is Status.PROVED and loss.status is not Status.NOT_PROVED:
            agree = [runs.survivors_agree(raw, listed, n, lost) for lost in range(n)]
            assert (loss.status is Status.PROVED) == all(agree), (raw, loss)
            if loss.status is Status.REFUTED:
                lost = loss.witness["worker"] if "worker" in loss.witness else loss.witness["local_rank"]
                assert not agree[lost]
    # Own anchors are rare here; `test_outer_consensus` draws them alone.
    often = set(payloads.JUDGES) - {"outer-consensus"}
    names = ("limit", "staleness", "queues", "end", "memory", "consensus-after-a-loss", *often)
    assert proved["outer-consensus"] > 0
    assert min(proved[name] for name in names) > 20, "every claim was seen to hold often"


def test_limits_enclose_what_powers_of_the_period_come_to():
    draw, rng = random.Random(5), np.random.default_rng(5)
    for _ in range(60):
        n = draw.randrange(2, 12)
        pairs = {(i, (i + 1) % n) for i in range(n)} | {(draw.randrange(n), draw.randrange(n)) for _ in range(n)}
        edges = [(i, j, Fraction(draw.randrange(1, 50), 50 * n)) for i, j in sorted(pairs) if i != j]
        schedule = graph(n, edges, edges[: draw.randrange(1, len(edges) + 1)])
        entry = prove(schedule)["limit"].entry
        product = dense(dump_schedule(schedule))[1]
        product = product[1] @ product[0]
        far = np.linalg.matrix_power(product, 5000) @ (start := rng.normal(size=n))
        weights = np.array([float(Fraction(w)) for w in entry["weights"]])
        assert np.allclose(far, weights @ start, atol=1e-6)
        assert float(Fraction(entry["error"])) < 1e-6
        modulus = np.sort(np.abs(np.linalg.eigvals(product)))[-2]
        rate = float(Fraction(entry["rate"]))
        assert modulus - 1e-9 <= rate <= modulus + 1e-3


def test_the_weights_of_a_graph_with_uniform_weights_are_exact():
    """A random walk's limit is in the proportion of degrees plus one: a path of three."""
    edges = [(0, 1, Fraction(1, 3)), (2, 1, Fraction(1, 3)), (1, 0, Fraction(1, 2)), (1, 2, Fraction(1, 2))]
    entry = prove(graph(3, edges))["limit"].entry
    assert (entry["weights"], entry["error"]) == (["2/7", "3/7", "2/7"], "0")


def test_a_graph_whose_columns_do_not_sum_to_1_says_where_the_mean_moves():
    proof = prove(graph(3, [(0, 1, Fraction(1, 2)), (1, 2, Fraction(1, 2)), (2, 0, Fraction(1, 3))]))
    assert proof.verdict is Status.REFUTED, "the mean moves"
    assert proof["limit"].entry["weights"] == ["3/7", "2/7", "2/7"]


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


def test_a_hub_is_refuted_as_a_property_and_leaves_the_verdict_alone():
    edges = [(0, i, Fraction(1, 6)) for i in range(1, 5)] + [(i, 0, Fraction(1, 6)) for i in range(1, 5)]
    proof = prove(graph(5, edges))
    claim = proof["consensus-after-a-loss"]
    assert (claim.status, claim.witness["worker"]) == (Status.REFUTED, 0)
    assert proof.verdict is Status.PROVED
    assert proof.require() is proof
    assert claim.to_json()["property"] is True
    assert "property" not in proof["consensus"].to_json()


def test_any_other_refuted_claim_refutes_the_schedule():
    claims = (Claim("a", Status.PROVED, ""), Claim("b", Status.REFUTED, ""))
    assert Proof("x", claims, frozenset({"a"}), {}).verdict is Status.REFUTED
    claims = (Claim("a", Status.REFUTED, "", is_property=True),)
    assert Proof("x", claims, frozenset({"a"}), {}).verdict is Status.NOT_PROVED, "essential and not proved"


def test_a_loss_of_a_head_cuts_its_node_off_on_every_number_of_nodes():
    for radices in ((2,), (3, 5), (10, 10, 10)):
        every = tuple(range(len(radices)))
        two_heads = (Block((0,), every), Block((1,), every)), (Block((0, 1, 2)),)
        assert prove(rule(radices, 3, *two_heads))["consensus-after-a-loss"].status is Status.PROVED
        one_head = (Block((0,), every),), (Block((0, 1, 2)),)
        claim = prove(rule(radices, 3, *one_head))["consensus-after-a-loss"]
        assert claim.witness == {"local_rank": 0, "local_ranks": [1, 2]}


@pytest.mark.parametrize("pace", [1, (2, 1, 3, 1)])
def test_data_dealt_by_pace_end_where_the_claim_says(pace):
    schedule = Schedule("a", Cluster.regular(2, 2), AllReduce(pace=pace))
    steps = prove(schedule)["end"].numbers["steps"]
    for size in (steps, 5 * steps + 1, 10 * steps - 1):
        samplers = [RoundSampler(size, schedule, 1, rank=rank) for rank in range(4)]
        assert {sampler.num_rounds for sampler in samplers} == {size // steps}
        assert {len(list(sampler)) // int(p) for sampler, p in zip(samplers, schedule.paces(), strict=True)} == {
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


def _parts(schedule: Schedule):
    raw = dump_schedule(schedule)
    return raw, dense(raw)[0], schedule.num_workers


def test_too_many_workers_are_not_proved_and_quick():
    n = 20_000
    proof = prove(explicit(n, [range(0, n, 2), range(1, n, 2)], [range(i, i + 2) for i in range(0, n, 2)]))
    assert proof["staleness"].status is Status.NOT_PROVED
    assert proof["end"].numbers["behind"] == -1
    assert proof["consensus-after-a-loss"].status is Status.PROVED
    wide = prove(graph(100, shift(100, Fraction(1, 3))))
    assert wide["limit"].status is Status.NOT_PROVED
    assert wide["queues"].numbers["capacities"] == [100] * 100
