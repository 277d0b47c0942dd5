"""Seconds and bytes of rounds: quorums, fragments, and tables."""

import itertools
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from helpers.refusals import check_error
from partreduce import Cluster, Hardware, Link, Schedule, predict, simulate
from partreduce.errors import InputError
from partreduce.schedulers.registry import build
from partreduce.strategies import OuterStep, PartialAllReduce, Payload, Phase, Placement, Synchronous, TablePlacement
from partreduce.topo.strategies import AllReduce, DelayedMerge
from partreduce.topo.strategies.payload import round_ends
from partreduce.topo.timing import loads
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.topo.timing.quorum import ManyRounds, balance, sample_seconds
from partreduce.topo.timing.stages import sample
from partreduce.topo.timing.tables import NUMBER_BYTES, exchange, exchanges
from partreduce.types import CodecSeconds, ComputeTimes, RandomDelay, RandomSlowdown, RotatingDelay, RowAccess, Switch


def synchronous_rate(seconds, setting, *, word=0.0, sum_seconds=0.0):
    """Return the rate if workers start each round together, as far as the round waits for them."""
    needed = 1 if setting.quorum == "majority" else setting.needed(seconds.shape[1])
    starts = seconds.T if setting.quorum == "majority" else [np.sort(seconds, axis=1)[:, needed - 1]]
    period = float(np.mean([come.mean() for come in starts])) + word + sum_seconds
    return ManyRounds(period, float((period / np.maximum(seconds, period).mean(axis=0)).sum()))


def test_balance_matches_hand_computed_rates():
    # Seven workers of 1 s and one of 5 s bring 7.2 gradients per second, for rounds that up to 7 of them start.
    seconds = np.array([[1.0] * 7 + [5.0]])
    for number in ("solo", 2, 4, 7):
        found, needed = balance(seconds, PartialAllReduce(quorum=number)), 1 if number == "solo" else number
        assert found.active == pytest.approx(needed)
        assert found.gradients_per_second == pytest.approx(7.2)
    # An all-reduce of 0.5 s allows two rounds per second.
    assert balance(seconds, PartialAllReduce(quorum=2), sum_seconds=0.5).active == pytest.approx(3.6)
    # If rounds start together, the seven are in every round, and the slow one is in every fifth or sixth.
    found = synchronous_rate(seconds, PartialAllReduce(quorum=7), word=0.05, sum_seconds=0.05)
    assert (found.seconds, found.active) == (pytest.approx(1.1), pytest.approx(7 + 1.1 / 5))
    # Majority of equals: half a step, and a whole one with probability 1/n, so (n+1)/2n of a step; no worker idles.
    even = balance(np.ones((1, 8)), PartialAllReduce(quorum="majority"))
    assert even.seconds == pytest.approx(9 / 16, rel=0.1)
    assert even.gradients_per_second <= 8 + 1e-9
    assert balance(np.zeros((1, 4)), PartialAllReduce(quorum="solo")).gradients_per_second == float("inf")
    assert balance(np.zeros((1, 4)), PartialAllReduce(quorum="majority"), sum_seconds=1.0).seconds == 1.0


CASES = [
    (ComputeTimes(base=1.0, jitter=0.3), 0.1, ("solo", "majority", 4, 7)),
    (ComputeTimes(base=1.0, slowdown=((7, 5.0),), jitter=0.02), 0.1, ("solo", "majority", 7)),
    (ComputeTimes(base=1.0, jitter=0.02, disturbance=RandomSlowdown(6.0)), 0.001, (4, 7)),
    (ComputeTimes(base=0.4, jitter=0.02, disturbance=RandomDelay(1, 0.4)), 0.001, ("majority", 7)),
    (ComputeTimes(base=0.4, jitter=0.02, disturbance=RotatingDelay(0.05, 0.4)), 0.1, (4, 7)),
]


@pytest.mark.parametrize(("compute", "sum_seconds", "numbers"), CASES)
def test_simulated_quorum_lies_between_independent_and_synchronous_workers(compute, sum_seconds, numbers):
    """Rates of 8 workers lie within an eighth; quorums of up to half, and majority, match independent workers."""
    hardware = Hardware(inside=Link(1e-5), nic=Link(1e-4, sum_seconds / 1.75e6), model_bytes=1_000_000)
    seconds = sample_seconds(compute, 8)
    for number in numbers:
        schedule = Schedule("s", Cluster.regular(8, 1), AllReduce(sync=PartialAllReduce(quorum=number, staleness=64)))
        record = simulate(
            schedule, hardware, compute=compute, num_rounds=300 if number == 7 else 120, seed=1
        ).observed.quorum
        costs = {"word": 1e-4, "sum_seconds": float((record.summed[1] - record.summed[0]).mean())}
        rate = record.rates(warm_up=30)[1]
        free, step = (many(seconds, schedule.strategy.sync, **costs) for many in (balance, synchronous_rate))
        least, most = sorted((free.gradients_per_second, step.gradients_per_second))
        assert least * 0.875 < rate < most * 1.125, number
        if number != 7:
            assert rate == pytest.approx(free.gradients_per_second, rel=0.15), number


# Fragments merged with a delay: by hand, simulated and by the event graph


LATENCY, INVERSE, SIZE = 0.01, 1e-9, 4 * 10**8


def hardware():
    return Hardware(nic=Link(LATENCY, INVERSE), model_bytes=SIZE, compute=0.1)


def schedule(steps_per_round, fragments=1, steps=0, alpha=0, n=4):
    sync = DelayedMerge(steps=steps, alpha=alpha) if steps or alpha else Synchronous()
    payload = Payload(outer=OuterStep(lr=0.7), fragments=fragments)
    return Schedule("s", Cluster.regular(n, 1), AllReduce(steps_per_round=steps_per_round, sync=sync, payload=payload))


def ring_seconds(share, n=4):
    """Return the seconds of a ring of n nodes of one worker."""
    return 2 * (n - 1) * LATENCY + 2 * (n - 1) / n * SIZE * share * INVERSE


def by_hand(streaming, times, num_rounds):
    """Return when every worker ends these rounds and when the last all-reduce ends: step by step, in sequence."""
    strategy = streaming.strategy
    steps_per_round, count, late = strategy.steps_per_round, strategy.payload.num_fragments, strategy.sync.late_steps
    now, free, over = np.zeros(len(times)), 0.0, {}
    for step in range(1, num_rounds * steps_per_round + 1):
        now = now + times
        ends = [(number, (number + 1) * steps_per_round // count) for number in range(count)]
        merged = [number for number, end in ends if (step - end) % steps_per_round == 0 and step > late]
        if late:
            now = np.maximum(now, max((over[number] for number in merged), default=0))
        for number, end in ends:
            if (step + late - end) % steps_per_round == 0:
                free = over[number] = max(now.max(), free) + ring_seconds(1 / count)
        now = np.maximum(now, max((over[number] for number in merged), default=0))
    return now, free


@pytest.mark.parametrize("seed", range(25))
def test_fragments_of_equal_workers_match_the_formula(seed):
    draw = random.Random(seed)
    steps_per_round = draw.randint(1, 20)
    fragments = draw.randint(1, min(steps_per_round, 5))
    late = draw.randrange(steps_per_round // fragments)
    streaming = schedule(steps_per_round, fragments, late)
    each, expected, before = ring_seconds(1 / fragments), 0.0, 0
    for end in round_ends(fragments, steps_per_round):
        expected += max((end - before) * 0.1, (end - before - late) * 0.1 + each)
        before = end
    assert cycle_time(streaming, hardware()).per_round == pytest.approx(expected)
    assert simulate(streaming, hardware(), num_rounds=5).per_step() == pytest.approx(expected / steps_per_round)
    sampled = sample(streaming, hardware(), ComputeTimes.of(hardware()), num_rounds=4, num_samples=2)
    assert sampled.per_round == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(50))
def test_fragments_of_unequal_workers_match_the_simulator(seed):
    """Several fragments may be in flight, some across rounds."""
    draw = random.Random(seed)
    steps_per_round = draw.randint(1, 12)
    fragments = draw.randint(1, min(steps_per_round, 4))
    streaming = schedule(steps_per_round, fragments, draw.randrange(steps_per_round), "1/2")
    slow = ComputeTimes(base=0.1, slowdown=tuple((worker, draw.choice([1.0, 1.5, 4.0])) for worker in range(4)))
    exact = cycle_time(streaming, hardware(), slow)
    run = simulate(streaming, hardware(), compute=slow, num_rounds=80)
    assert run.per_step(warm_up=20) == pytest.approx(exact.per_step)
    now, free = by_hand(streaming, slow.fixed(4), 80)
    np.testing.assert_allclose(run.finish[-1], now)
    assert run.makespan == pytest.approx(max(now.max(), free))


@pytest.mark.parametrize("seed", range(20))
def test_fragments_wait_for_the_slowest_share_of_unequal_steps(seed):
    draw = random.Random(seed)
    fragments = draw.randint(2, 4)
    worker_steps = tuple(draw.randint(fragments, 12) for _ in range(4))
    streaming = schedule(worker_steps, fragments)
    slow = ComputeTimes(base=0.1, slowdown=tuple((worker, draw.choice([1.0, 1.5, 4.0])) for worker in range(4)))
    ends = np.array([[0, *round_ends(fragments, steps_per_round)] for steps_per_round in worker_steps]).T
    each = [(slow.fixed(4) * (after - before)).max() for before, after in pairwise(ends)]
    expected = sum(each) + fragments * ring_seconds(1 / fragments)
    assert cycle_time(streaming, hardware(), slow).per_round == pytest.approx(expected)
    run = simulate(streaming, hardware(), compute=slow, num_rounds=6)
    assert run.makespan == pytest.approx(6 * expected)


@pytest.mark.parametrize("name", ["node-then-all", "prague-figure-10", "one-peer-hypercube"])
def test_fragments_over_groups_match_the_simulator(name):
    base = build(name, Cluster.parse("4x4"))
    turns = Schedule("s", base.cluster, replace(base.strategy, steps_per_round=7, payload=Payload(fragments=3)))
    run = simulate(turns, hardware(), num_rounds=48)
    assert run.per_step(warm_up=24) == pytest.approx(cycle_time(turns, hardware()).per_step)
    whole = Schedule("s", base.cluster, replace(base.strategy, steps_per_round=7))
    costs = communication(whole, hardware()), communication(turns, hardware())
    assert costs[1].nic_bytes_per_step == pytest.approx(costs[0].nic_bytes_per_step)
    assert costs[1].peak_nic_bytes == pytest.approx(costs[0].peak_nic_bytes / 3)


def test_streaming_sends_equal_bytes_with_a_lower_peak():
    whole, parts = schedule(12), schedule(12, 4, 2)
    costs = communication(whole, hardware()), communication(parts, hardware())
    assert costs[0].nic_bytes_per_step == pytest.approx(costs[1].nic_bytes_per_step)
    assert costs[0].peak_nic_bytes == pytest.approx(1.5 * SIZE)
    assert costs[1].peak_nic_bytes == pytest.approx(1.5 * SIZE / 4)
    assert costs[1].per_round - costs[0].per_round == pytest.approx(3 * 6 * LATENCY)
    answer = predict(parts, hardware())
    assert (answer.largest_age, answer.peak_nic_bytes) == (2, costs[1].peak_nic_bytes)


def test_fragment_hidden_by_the_merge_delay_costs_nothing():
    """0.66 s for the model, 0.21 s for a quarter: hidden behind three steps of 0.1 s, not behind two."""
    assert cycle_time(schedule(12, 4, 2), hardware()).per_step == pytest.approx(0.1 + 4 * 0.01 / 12)
    assert cycle_time(schedule(16, 4, 3), hardware()).per_step == pytest.approx(0.1)
    assert cycle_time(schedule(16), hardware()).per_step == pytest.approx(0.1 + 0.66 / 16)


# Bytes of table exchanges: counted by hand, as an all-to-all of equal pieces, and as published


ROWS, COLUMNS = 10_000, 64
ROW = 4 * COLUMNS
HARDWARE = Hardware(inside=Link(1e-5, 1e-10), nic=Link(1e-4, 1e-8))
CLUSTERS = {
    "4x4": Cluster.regular(4, 4),
    "16x1": Cluster.regular(16, 1),
    "3,3,2": Cluster.irregular([[0, 1, 2], [3, 4, 5], [6, 7]]),
}


def table(**members):
    return TablePlacement(parameter="words.weight", rows=ROWS, columns=COLUMNS, **members)


def nic_bytes_by_hand(route, touched, cluster, *, aggregates):
    """Return the bytes out of the busiest NIC, counted by message, for evenly spread rows."""
    n, node_of, hosts = cluster.num_workers, cluster.node_of(), route.hosts or range(cluster.num_workers)
    sizes, row = cluster.node_sizes(), {"none": ROW, "float16": ROW / 2, "int8": ROW / 4 + 4}[route.codec]
    asks = {w: touched.node * ROWS / sizes[node_of[w]] if aggregates else touched.worker * ROWS for w in range(n)}
    out = np.zeros(cluster.num_nodes)
    for asking, host in itertools.product(range(n), hosts):
        if node_of[asking] != node_of[host]:
            rows = asks[asking] / len(hosts)
            out[node_of[asking]] += rows * (
                2 * NUMBER_BYTES + row
            )  # row numbers, and later gradients with their row numbers
            out[node_of[host]] += rows * row
    return out.max()


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("hosts", [(), (0,), (1, 4, 6)])
@pytest.mark.parametrize("aggregates", [True, False])
@pytest.mark.parametrize("codec", ["none", "float16", "int8"])
def test_sharded_table_bytes_match_counted_messages(name, hosts, aggregates, codec):
    cluster, touched, route = CLUSTERS[name], RowAccess(0.01, 0.02, 0.05), table(hosts=hosts, codec=codec)
    found = exchange(route, touched, cluster, HARDWARE, local_aggregation=aggregates)
    many = aggregates and name != "16x1"
    assert found.nic_bytes == pytest.approx(nic_bytes_by_hand(route, touched, cluster, aggregates=many))


@pytest.mark.parametrize("way", [Placement.SHARDED, Placement.GATHER])
def test_row_codec_saves_link_time_and_costs_coding_time(way):
    touched, cluster = RowAccess(0.01, 0.02, 0.05), CLUSTERS["4x4"]
    slow = [exchange(table(way=way, codec=codec), touched, cluster, HARDWARE) for codec in ("none", "float16", "int8")]
    assert slow[0].seconds > slow[1].seconds > slow[2].seconds
    assert len({one.meetings for one in slow}) == 1, "latencies are the same"
    # Per byte of float32: 200 rows per worker; an owner handles a sixteenth of the 800 requested by nodes, or all.
    coding = replace(HARDWARE, nic=Link(0.0, 1e-15), inside=Link(), codec=(("float16", CodecSeconds(2e-9, 1e-9)),))
    plain, coded = (exchange(table(way=way, codec=codec), touched, cluster, coding) for codec in ("none", "float16"))
    passed, gathered = ROW * 50, ROW * 800
    expected = 2e-9 * passed + 1e-9 * gathered
    if way is Placement.SHARDED:
        expected = 2e-9 * (gathered / 16 + passed) + 1e-9 * (ROW * 100 + gathered / 16)
    assert coded.seconds - plain.seconds == pytest.approx(expected, rel=1e-3)


def test_exchange_bytes_match_the_reference_on_16_workers():
    """Bytes out of a NIC per row that a worker touches: 15 and 6 on 4x4, 6 α_node/4α aggregated, 15 and 1.9 on 16x1."""
    touched = RowAccess(0.01, 0.02, 0.05)
    unit = 0.01 * ROWS * ROW
    numbers = 1 + NUMBER_BYTES / ROW
    four, sixteen = CLUSTERS["4x4"], CLUSTERS["16x1"]

    def out(cluster, way, *, aggregates=False):
        found = exchange(table(way=way), touched, cluster, HARDWARE, local_aggregation=aggregates)
        return found.nic_bytes / unit

    assert out(four, Placement.GATHER) == pytest.approx(15 * numbers)
    assert out(four, Placement.GATHER, aggregates=True) == pytest.approx(15 * numbers * 2 / 4)
    assert out(four, Placement.SHARDED) == pytest.approx(6 * numbers)
    assert out(four, Placement.SHARDED, aggregates=True) == pytest.approx(6 * numbers * 2 / 4)
    assert out(sixteen, Placement.GATHER) == pytest.approx(15 * numbers)
    assert out(sixteen, Placement.SHARDED) == pytest.approx(15 / 8 * numbers)


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("switches", [(), (Switch(nodes=(0, 1), uplink=Link(2e-4, 3e-8)),)])
def test_equal_pieces_cost_an_all_to_all(name, switches):
    cluster = CLUSTERS[name]
    hardware = Hardware(
        inside=Link(1e-5, 1e-10), nic=Link(1e-4, 1e-8), bus=Link(1e-6, 1e-9), num_nics=2, switches=switches
    )
    all_workers = Phase.from_groups(cluster.num_workers, [range(cluster.num_workers)])
    sizes = cluster.node_sizes()
    exchanged = loads.of_exchange(all_workers, cluster, hardware, num_bytes=1e6)
    pieces = loads.of_pieces(cluster, hardware, wanted=1e6 * sizes, held=sizes / sizes.sum(), workers=sizes)
    if name != "3,3,2":  # whose nodes use as many NICs as the smallest, or each its own
        assert pieces.seconds() == pytest.approx(exchanged.seconds())
    assert pieces.busiest_node_bytes() == pytest.approx(exchanged.busiest_node_bytes())


def test_single_host_is_a_bottleneck_and_dense_tables_cost_nothing():
    touched, cluster = RowAccess(0.01, 0.02, 0.05), CLUSTERS["4x4"]
    spread = exchange(table(), touched, cluster, HARDWARE)
    alone = exchange(table(hosts=(0,)), touched, cluster, HARDWARE)
    assert alone.nic_bytes > 1.9 * spread.nic_bytes
    assert alone.seconds > spread.seconds
    assert exchange(table(way=Placement.DENSE), touched, cluster, HARDWARE).seconds == 0


def test_tables_are_exchanged_in_sequence_and_must_be_known():
    other = TablePlacement(parameter="tags.weight", rows=100, columns=8, way=Placement.GATHER)
    payload, touched = Payload(tables=(table(), other)), RowAccess(0.01, 0.02, 0.05)
    both = {"words.weight": touched, "tags.weight": touched}
    whole = exchanges(payload, both, CLUSTERS["4x4"], HARDWARE)
    parts = [exchange(route, touched, CLUSTERS["4x4"], HARDWARE, beside_gathered=True) for route in payload.tables]
    shared = [dict(part.meetings) for part in parts]
    both_share = sum(shared[0][name] for name in shared[0].keys() & shared[1].keys())
    assert both_share > 0
    assert whole.seconds == pytest.approx(sum(part.seconds for part in parts) - both_share)
    assert whole.nic_bytes == pytest.approx(sum(part.nic_bytes for part in parts))
    with pytest.raises(InputError, match=r"does not say how much of 'tags\.weight' a step touches"):
        exchanges(payload, {"words.weight": touched}, CLUSTERS["4x4"], HARDWARE)


def test_invalid_row_access_is_rejected_and_independent_shares_are_unions():
    check_error(InputError, "a node touches what its workers do", RowAccess, 0.1, 0.05, 0.2)
    check_error(InputError, r"it must be (<= 1|>= 0)", RowAccess, 0.1, 0.2, 1.2)
    alone = RowAccess.independent(0.1, Cluster.regular(2, 2))
    assert (alone.worker, alone.node, alone.everyone) == pytest.approx((0.1, 0.19, 0.3439))
