"""`partreduce.predict`: seconds, bytes, age and memory of every kind against formulas, simulations and real runs."""

import random
import threading
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers.refusals import check_error
from helpers.thread_ranks import ThreadRanks
from partreduce import Cluster, DistributedOptimizer, Hardware, Link, Schedule, predict, simulate
from partreduce.errors import InputError
from partreduce.schedulers.registry import build
from partreduce.schedulers.simulator.network import Network
from partreduce.schedulers.simulator.staleness import IndirectAge
from partreduce.strategies import DelayedAveraging, DynamicGroups, GroupSplit, Pairwise, Phase, Pipeline, Round, Server
from partreduce.topo.strategies import AllReduce
from partreduce.topo.timing.cost import round_seconds
from partreduce.topo.timing.loads import of_phase
from partreduce.types import ComputeTimes, Switch

CLUSTER = Cluster.regular(4, 4)
MODEL = 2_000_000
WIRE = Hardware(inside=Link(1e-5, 1e-10), nic=Link(1e-4, 1e-8), compute=0.08, model_bytes=MODEL)


def prediction(strategy, hardware=WIRE, cluster=CLUSTER, **options):
    return predict(Schedule("s", cluster, strategy), hardware, **options)


def arrival_times(edges, cluster, hardware, num_bytes):
    """Return the arrival time of each message if all are sent at 0."""
    network, there = Network(cluster, hardware), {}
    for source, to in edges:
        network.send(source, to, num_bytes, (source, to))
    while (end := network.next_end()) < float("inf"):
        there |= {key: moment for moment, key in network.go_to(end)}
    return there


def test_messages_share_common_links():
    cluster, hardware = Cluster.regular(3, 2), Hardware(inside=Link(0.5, 1.0), nic=Link(2.0, 10.0))
    assert arrival_times([(0, 2)], cluster, hardware, 3) == {(0, 2): 32}
    assert arrival_times([(0, 2), (1, 4)], cluster, hardware, 3) == {(0, 2): 62, (1, 4): 62}, "shared outgoing NIC"
    assert arrival_times([(0, 2), (4, 3)], cluster, hardware, 3) == {(0, 2): 62, (4, 3): 62}, "shared incoming NIC"
    assert arrival_times([(0, 2), (2, 0)], cluster, hardware, 3) == {(0, 2): 32, (2, 0): 32}, "full duplex"
    assert arrival_times([(0, 2), (0, 1)], cluster, hardware, 3) == {(0, 2): 32, (0, 1): 3.5}, "no NIC inside"
    assert arrival_times([(0, 0)], cluster, hardware, 3) == {(0, 0): 0}
    rails = Hardware(nic=Link(2.0, 10.0), num_nics=2)
    assert arrival_times([(0, 2), (1, 4)], cluster, rails, 3) == {(0, 2): 32, (1, 4): 32}


def test_later_message_shares_the_remaining_bandwidth():
    network = Network(Cluster.regular(3, 1), Hardware(nic=Link(0.0, 1.0)))
    network.send(0, 1, 10, (1,))
    network.go_to(4.0)
    network.send(0, 2, 2, (2,))
    assert network.next_end() == 8, "2 bytes at half speed"
    assert network.go_to(8.0) == [(8.0, (2,))]
    assert network.next_end() == 12, "6 bytes remain at 4, 4 at 8"
    assert network.go_to(12.0) == [(12.0, (1,))]
    assert network.nic_bytes.tolist() == [12, 0, 0]


@pytest.mark.parametrize("seed", range(8))
def test_no_message_arrives_before_the_link_bound(seed):
    """`round_seconds` counts each link separately, a lower bound, which is exact if one host's links decide."""
    rng = random.Random(seed)
    cluster = Cluster.regular(4, 2)
    switches = (Switch((0, 1), Link(0.3, 2.0)),) if seed % 2 else ()
    hardware = Hardware(inside=Link(0.1, 0.5), nic=Link(0.2, 3.0), num_nics=1 + seed % 3, switches=switches)
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    edges = rng.sample(pairs, 12)

    def bound(edges):
        graph = Round.from_edges(8, [(a, b, Fraction(1, 20)) for a, b in edges])
        return round_seconds(graph, cluster, hardware, model_bytes=5)

    there = arrival_times(edges, cluster, hardware, 5)
    for worker, least in enumerate(bound(edges)):
        arrived = [moment for (_, to), moment in there.items() if to == worker]
        assert max(arrived, default=0.0) >= least - 1e-9
    star = [(worker, 0) for worker in range(2, 8)]
    if hardware.num_nics == 1 and not switches:
        assert max(arrival_times(star, cluster, hardware, 5).values()) == pytest.approx(bound(star)[0])


def group_ends(groups, cluster, hardware, *, begin=None):
    """Return the end of each group's operation, which shares the links with all others."""
    network, there = Network(cluster, hardware), {}
    begin = dict.fromkeys(groups, 0.0) if begin is None else begin
    for group in sorted(groups, key=begin.__getitem__):
        while network.next_end() <= begin[group]:
            there |= {key: moment for moment, key in network.go_to(network.next_end())}
        network.go_to(begin[group])
        phase = Phase.from_groups(cluster.num_workers, [group])
        network.sum(of_phase(phase, cluster, hardware, model_bytes=60, algorithm="ring"), group)
    while (end := network.next_end()) < float("inf"):
        there |= {key: moment for moment, key in network.go_to(end)}
    return [there[group] for group in groups]


@pytest.mark.parametrize("seed", range(6))
def test_single_group_takes_the_time_of_its_phase(seed):
    rng = random.Random(seed)
    cluster, link = Cluster.regular(4, 3), lambda: Link(rng.choice([0.0, 0.5]), rng.choice([0.5, 2.0, 3.0]))
    switches = (Switch((0, 1), link()),) if seed % 2 else ()
    hardware = Hardware(inside=link(), nic=link(), bus=link() if seed % 3 else Link(), num_nics=1 + seed % 2,
                        switches=switches)  # fmt: skip
    for _ in range(10):
        group = tuple(sorted(rng.sample(range(12), rng.randint(2, 12))))
        phase = Phase.from_groups(12, [group])
        alone = of_phase(phase, cluster, hardware, model_bytes=60, algorithm="ring").seconds()[0]
        assert group_ends([group], cluster, hardware) == [pytest.approx(alone)]


def test_groups_share_nics_as_in_one_phase():
    cluster, hardware = Cluster.regular(2, 4), Hardware(inside=Link(0.25, 0.5), nic=Link(0.5, 2.0))
    groups = [(0, 4), (1, 5), (2, 6), (3, 7)]
    together = of_phase(Phase.from_groups(8, groups), cluster, hardware, model_bytes=60, algorithm="ring").seconds()
    assert group_ends(groups, cluster, hardware) == pytest.approx(together.tolist())
    alone = group_ends(groups[:1], cluster, hardware)[0]
    assert together[0] > 3.5 * alone
    assert group_ends([(0, 4), (1, 2)], cluster, hardware)[0] == alone, "a group inside a node uses no NIC"
    # The second starts when half of the first's 120 s are over: it has half of the NIC for 120 s and all for 60 s.
    assert group_ends(groups[:2], cluster, hardware, begin={(0, 4): 0.0, (1, 5): 60.0}) == pytest.approx([181.0, 241.0])
    rails = replace(hardware, num_nics=2)
    assert group_ends(groups[:2], cluster, rails) == [alone, alone]


def test_synchronous_server_takes_the_time_of_its_host_nics():
    there = 12 * MODEL * 1e-8 + 1e-4  # twelve workers of other nodes share the NIC of the host's node
    one = prediction(Server(), num_rounds=40)
    assert one.step_seconds == pytest.approx(0.08 + 2 * there)
    inside = MODEL * 1e-10 + 1e-5  # the host has its own result immediately, and its node-mates soon
    assert one.communication_seconds == pytest.approx(2 * there - (4 * there - 3 * inside) / 16 / 40)
    assert one.nic_bytes == 12 * MODEL
    spread = prediction(Server(hosts=(0, 4, 8, 12)), num_rounds=40)
    assert spread.nic_bytes == 4 * MODEL * 3 / 4 * 2, "parts of every worker, and the host's results"
    assert spread.communication_seconds == pytest.approx(2 * (3 * MODEL * 1e-8 + 1e-4))
    assert one.arrays > spread.arrays
    late = prediction(Server(steps_per_round=2, sync=DelayedAveraging()), num_rounds=40)
    assert late.step_seconds == pytest.approx(2 * there / 2), "compute is hidden"
    assert late.nic_bytes == 6 * MODEL
    assert (one.largest_age, late.largest_age) == (0, 2)


def test_only_the_synchronous_server_waits_for_its_slowest_worker():
    times = ComputeTimes(trace=np.array([[0.08] * 15 + [0.8]]))
    synchronous = prediction(Server(hosts=(0, 4, 8, 12)), compute=times, num_rounds=20)
    free = prediction(Server(hosts=(0, 4, 8, 12), synchronous=False), compute=times, num_rounds=40)
    bounded = prediction(Server(hosts=(0, 4, 8, 12), synchronous=False, staleness=2), compute=times, num_rounds=20)
    assert synchronous.step_seconds > 0.8
    assert free.step_seconds < 0.3
    assert bounded.step_seconds > 0.75
    assert free.largest_age > bounded.largest_age >= 3


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("sync", [None, DelayedAveraging()])
def test_staleness_bounds_the_measured_ages(staleness, sync):
    """Push c is answered when every worker has reached c − s, and no worker is beyond c + s + 1 at push c + 1."""
    rng = np.random.default_rng(staleness)
    for _ in range(2):
        times = ComputeTimes(trace=rng.uniform(0.01, 0.2, (1, 8)))
        strategy = Server(
            hosts=(1, 5), synchronous=False, staleness=staleness, **({} if sync is None else {"sync": sync})
        )
        found = prediction(strategy, cluster=Cluster.regular(2, 4), compute=times, num_rounds=40)
        assert 0 < found.largest_age <= 2 * staleness + 1 + 2 * (sync is not None)
        assert 0 < found.mean_age <= found.largest_age


def test_server_without_links_takes_the_compute_time():
    timeline = simulate(Schedule("s", CLUSTER, Server(synchronous=False)), num_rounds=5)
    assert timeline.makespan == 0.0
    free = Hardware(compute=0.5, model_bytes=8)
    for strategy in (
        Server(),
        Server(synchronous=False),
        Server(synchronous=False, sync=DelayedAveraging()),
        Server(sync=DelayedAveraging()),
    ):
        assert prediction(strategy, free, num_rounds=30).step_seconds == pytest.approx(0.5)


def test_asynchronous_server_of_two_hosts_exchanges_halves():
    cluster = Cluster.regular(2, 1)
    alone = prediction(Server(hosts=(0, 1), synchronous=False), cluster=cluster)
    assert alone.nic_bytes == MODEL
    assert alone.step_seconds == pytest.approx(0.08 + 2 * (MODEL / 2 * 1e-8 + 1e-4))


@pytest.mark.parametrize(("strategy", "age", "arrays"), [
    (AllReduce(), 0, 1),
    (AllReduce(steps_per_round=4), 0, 1),
    (AllReduce(steps_per_round=4, sync=DelayedAveraging()), 4, 2),
    (AllReduce(sync=Pipeline(width=3)), 2, None),
])  # fmt: skip
def test_allreduce_ages_equal_the_configured_delay(strategy, age, arrays):
    found = prediction(strategy)
    assert (found.largest_age, found.mean_age, found.how) == (age, age, "exact")
    assert arrays is None or (found.arrays, found.memory_bytes) == (arrays, arrays * MODEL)


@pytest.mark.parametrize("name", ["prague-figure-10", "ring", "node-then-all"])
def test_age_of_fixed_rounds_matches_message_tracking(name):
    """Track each worker's view through many synchronous rounds."""
    schedule = build(name, CLUSTER)
    views, count = IndirectAge(schedule.worker_steps()), schedule.num_workers
    late = 0
    for round_ in range(8 * schedule.period + 40):
        done = np.full(count, round_ + 1)
        views.known[np.arange(count), np.arange(count)] = round_ + 1
        if graphs := schedule.strategy.graphs:
            graph, before = graphs[round_ % len(graphs)], views.known.copy()
            for source, target in zip(graph.sources, graph.targets, strict=True):
                views.known[target] = np.maximum(views.known[target], before[source])
        else:
            for group in schedule.phase(round_ % schedule.period):
                views.meet(group.members, done)
        if round_ >= 4 * schedule.period + 20:
            late = max(late, int((round_ + 1 - views.known).max()))
    assert predict(schedule, WIRE).largest_age == late


def test_pairs_and_dynamic_groups_count_sent_bytes():
    pairs = prediction(Pairwise(active=(0, 1, 2, 3)))
    assert pairs.nic_bytes == pytest.approx(4 * MODEL, rel=0.01), "four models leave node 0 per round"
    assert pairs.largest_age >= pairs.mean_age > 0
    groups = prediction(DynamicGroups(group_size=2), cluster=Cluster.regular(2, 2))
    assert groups.nic_bytes > 0
    assert groups.mean_age > 0
    assert groups.arrays == 1


def test_bytes_of_a_group_are_counted_once():
    setting = {"division": GroupSplit.GLOBAL, "slow_threshold": None}
    found = prediction(DynamicGroups(group_size=2, **setting), cluster=Cluster.regular(2, 1))
    assert found.nic_bytes == pytest.approx(MODEL), "a ring of two sends one model out of each node per round"


def test_missing_model_bytes_are_rejected():
    check_error(InputError, "model_bytes", prediction, Server(), Hardware(nic=Link(1e-4, 1e-8)))


KINDS = [
    Server(), Server(hosts=(1, 2)), Server(synchronous=False),
    Server(hosts=(0, 3), synchronous=False, sync=DelayedAveraging()), Pairwise(active=(0, 1)),
]  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    return ThreadRanks(4)


@pytest.mark.parametrize("strategy", KINDS, ids=range(len(KINDS)))
def test_predicted_bytes_match_a_real_run(ranks, strategy):
    """Four workers on two nodes; tags and a few numbers add to the model, and late results may be in flight."""
    cluster, rounds, together = Cluster.regular(2, 2), 10, threading.Barrier(4)

    def work(world):
        model = torch.nn.Linear(4096, 4, bias=False)
        inner = torch.optim.SGD(model.parameters(), lr=1e-6)
        optimizer = DistributedOptimizer(inner, model, Schedule("s", cluster, strategy), timeout=60, world=world)
        for _ in range(rounds):
            optimizer.zero_grad()
            model(torch.ones(2, 4096)).sum().backward()
            optimizer.step()
        together.wait(60)
        traffic = optimizer.runner.mailboxes[0].traffic()
        together.wait(60)
        optimizer.finish()
        return {peer: entry.sent.num_bytes for peer, entry in traffic.items()}

    sent = ranks.run(4, work)
    crossing = [
        sum(sent[worker].get(peer, 0) for worker in node for peer in range(4) if peer not in node)
        for node in ((0, 1), (2, 3))
    ]
    found = prediction(strategy, Hardware(model_bytes=4 * 4096 * 4), cluster, num_rounds=rounds)
    assert max(crossing) / rounds == pytest.approx(found.nic_bytes, rel=0.01 if not strategy.is_delayed else 0.1)
