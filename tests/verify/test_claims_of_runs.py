"""Ages, queues, ends and memory: each claim against a run, an eigenvalue or a count of its own."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import pytest

from benchmarks.forgery import payloads, runs
from benchmarks.forgery.campaign import certified, refusal
from benchmarks.forgery.dense import dense
from benchmarks.forgery.schedules import explicit, graph, random_schedule, shift
from partreduce.runtime.data.sampler import RoundSampler
from partreduce.runtime.transport.worlds import member_sets
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce
from partreduce.topo.timing.cost import communication
from partreduce.verify import Status, prove
from partreduce.verify.base import Claim, Proof
from partreduce.verify.runs import in_bytes
from partreduce.verify.stated import Stated


def gives_nothing_back(raw, matrices):
    """Whether no outer step takes back what has arrived; with momentum nothing is said of groups, or of a merge."""
    strategy = raw["strategy"]
    outer, sync = strategy.get("payload", {}).get("outer", {}), strategy.get("sync", {})
    is_own = outer.get("outer_params") == "per_worker"
    if outer.get("momentum"):
        return not is_own and not (isinstance(sync, dict) and sync.get("merge", {}).get("alpha"))
    rate = float(Fraction(outer.get("lr", 1))) if is_own else 1
    return all(1 - rate + rate * matrix.diagonal().min() > 1e-9 for matrix in matrices)


def test_every_claim_of_random_schedules_is_what_a_run_shows_and_no_looser():
    draw = random.Random(3)
    proved: dict[str, int] = {}
    for _ in range(260):
        schedule = random_schedule(draw)
        proof = prove(schedule)
        raw, certificate = certified(schedule)
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
    assert proved["outer-consensus"] > 0
    assert min(proved[name] for name in names) > 20, "every claim was seen to hold often"


def test_of_a_weighted_graph_operations_in_flight_are_counted_once_and_the_bytes_that_leave_for_each_neighbor():
    """A star: its center sends the model to 3 neighbors in one exchange."""
    star = [(0, leaf, Fraction(1, 4)) for leaf in (1, 2, 3)] + [(leaf, 0, Fraction(1, 4)) for leaf in (1, 2, 3)]
    claim = prove(graph(4, star))["sent-bytes"]
    assert (claim.numbers["of_worker"], claim.numbers["in_flight"]) == ("3", "1")
    assert "Operations on at most 1 bytes are in flight at a time; each counts once" in claim.explanation
    assert "on their way" not in claim.explanation


def test_what_a_node_sends_is_what_is_priced_where_ranks_go_from_node_to_node():
    """`docs/timing.md` says that the bytes of real runs are the priced ones."""
    draw, seen = random.Random("sent bytes"), 0
    while seen < 60:
        schedule = random_schedule(draw)
        if schedule.is_mixing and schedule.cluster.workers_per_node and not schedule.prologue:
            priced = communication(schedule, Hardware(model_bytes=2**24)).peak_nic_bytes
            assert in_bytes(Stated(schedule).numbers("sent-bytes"), 2**24)["of_node"] == pytest.approx(priced, abs=1)
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


def _parts(schedule: Schedule):
    raw = dump_schedule(schedule)
    return raw, dense(raw)[0], schedule.num_workers


def test_too_many_workers_are_not_proved_and_quick():
    n = 100_000
    proof = prove(explicit(n, [range(0, n, 2), range(1, n, 2)], [range(i, i + 2) for i in range(0, n, 2)]))
    assert proof["staleness"].status is Status.NOT_PROVED
    assert proof["end"].status is Status.NOT_PROVED
    wide = prove(graph(100, shift(100, Fraction(1, 3))))
    assert wide["queues"].numbers["capacities"] == [100] * 100
