"""What a step with a table sends to other nodes: as counted at the collectives, as the planner prices, as is proved."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import preduce
from preduce.runtime.sharding.calls import LENGTH
from preduce.topo.cluster import Cluster
from preduce.topo.hardware import Hardware
from preduce.topo.strategies.routes import Gradient, Route, Routes, Way
from preduce.topo.timing.tables import Touched, exchange, in_pairs

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

ROWS, COLUMNS = 48, 4
INTERLEAVED = Cluster.irregular([[0, 2], [3, 1]])
"""Every worker's successor in a ring is on the other node."""
CALL = 8 * (LENGTH + 1)
"""Bytes in which a worker tells another one what it does with one table."""


def sent(ranks, schedule, rows_of):
    """Bytes of one step that each node sends to others, without what workers tell each other before."""

    def step(world):
        model = nn.Sequential(nn.Embedding(ROWS, COLUMNS, sparse=True), nn.Linear(COLUMNS, 1))
        inner = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer = preduce.DistributedOptimizer(inner, model, schedule, world=world)
        tables = optimizer.run.tables
        before = tables.bytes_across
        model(rows_of(world.rank)).sum().backward()
        optimizer.step()
        after = tables.bytes_across
        optimizer.finish()
        return after - before

    each = ranks.run(schedule.num_workers, step)
    cluster, (route,) = schedule.cluster, schedule.routes.tables
    told = 3 if route.way is Way.SHARDED else 2  # at the lookup, for the gradients, at the end of the step
    fits = 4 * int(route.way is Way.SHARDED and route.codec.rounds)  # of each owner: whether its rows fit their codec
    call, elsewhere = CALL, [cluster.num_workers - len(cluster.workers_of(int(node))) for node in cluster.node_of()]
    if schedule.routes.local_aggregation and in_pairs(cluster, gathers=route.way is Way.GATHER):
        # To one worker of each other node, for all of this node.
        mates = cluster.num_workers // cluster.num_nodes
        call, elsewhere = 8 * (mates * LENGTH + 1), [cluster.num_nodes - 1] * cluster.num_workers
    rows = [count - (told * call + fits) * others for count, others in zip(each, elsewhere, strict=True)]
    return [sum(rows[rank] for rank in cluster.workers_of(node)) for node in range(cluster.num_nodes)]


def test_later_steps_send_the_numbers_in_the_room_of_the_calls_and_nothing_else_besides(ranks):
    """Worker r asks each of 4 owners for 12, then 12, then 24 of its rows; there is room for 16, a multiple of that."""
    schedule = schedule_of("4x1", Way.SHARDED)

    def run(world):
        model = nn.Sequential(nn.Embedding(ROWS * 2, COLUMNS, sparse=True), nn.Linear(COLUMNS, 1))
        (route,) = schedule.routes.tables
        what = Routes(tables=(replace(route, rows=ROWS * 2),))
        wider = replace(schedule, strategy=replace(schedule.strategy, what=what))
        inner = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer = preduce.DistributedOptimizer(inner, model, wider, world=world)
        tables, found = optimizer.run.tables, []
        for count in (ROWS, ROWS, 2 * ROWS):
            before = tables.bytes_across
            model(torch.arange(count)).sum().backward()
            optimizer.step()
            found.append(tables.bytes_across - before)
        optimizer.finish()
        return found

    # To each of 3 others: calls; numbers, and rows back and forth with numbers.
    calls, rows, room = 3 * CALL, 4 + 2 * 4 * COLUMNS + 4, 16 * 4
    numbers_apart, in_the_room = 3 * (calls + 12 * rows), 3 * (calls + 12 * (rows - 4) + 3 * room)
    too_many = 3 * (calls + 24 * rows + 3 * room)
    assert ranks.run(4, run) == [[numbers_apart, in_the_room, too_many]] * 4


def schedule_of(cluster, way, *, local=True, **members):
    route = Route(parameter="0.weight", rows=ROWS, columns=COLUMNS, way=way, gradient=Gradient.SPARSE, **members)
    plain = preduce.design(cluster, using="allreduce")
    what = Routes(tables=(route,), local_aggregation=local)
    return replace(plain, strategy=replace(plain.strategy, what=what))


def priced(schedule, touched):
    (route,) = schedule.routes.tables
    local = schedule.routes.local_aggregation
    return exchange(route, touched, schedule.cluster, Hardware(), local_aggregation=local).nic_bytes


@pytest.mark.parametrize(
    ("cluster", "way", "members"),
    [
        ("2x2", Way.SHARDED, {}),
        ("2x2", Way.SHARDED, {"local": False}),
        ("2x2", Way.SHARDED, {"hosts": (0,)}),
        ("4x1", Way.SHARDED, {}),
        ("3,1", Way.SHARDED, {"hosts": (3, 1)}),
        ("2x2", Way.GATHER, {}),
        ("2x2", Way.GATHER, {"local": False}),
        ("4x1", Way.GATHER, {}),
        ("2x2", Way.SHARDED, {"codec": "float16"}),
        ("2x2", Way.SHARDED, {"codec": "int8", "local": False}),
        ("3,1", Way.SHARDED, {"codec": "int8", "hosts": (3, 1)}),
        ("2x2", Way.GATHER, {"codec": "bfloat16"}),
        ("4x1", Way.GATHER, {"codec": "int8"}),
        ("3,1", Way.GATHER, {}),  # one worker has what another node's three share, and all messages are as long
        (INTERLEAVED, Way.GATHER, {}),
        (INTERLEAVED, Way.GATHER, {"local": False}),
        (INTERLEAVED, Way.SHARDED, {"codec": "float16"}),
    ],
    ids=str,
)
def test_if_all_rows_are_touched_as_many_bytes_leave_a_node_as_are_priced_and_proved(ranks, cluster, way, members):
    schedule = schedule_of(cluster, way, **members)
    busiest = max(sent(ranks, schedule, lambda _: torch.arange(ROWS)))
    assert busiest == pytest.approx(priced(schedule, Touched(1.0, 1.0, 1.0)))
    ((_, lookup, gradients),) = preduce.prove(schedule)["nic-bytes"].entry["tables"]
    if "hosts" not in members:  # with them one node is the busiest at the lookup, and another behind it
        assert busiest == lookup + gradients
    assert busiest <= lookup + gradients


@pytest.mark.parametrize("way", [Way.SHARDED, Way.GATHER])
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("codec", ["none", "float16"])
def test_of_shares_with_overlap_the_price_is_the_mean_over_nodes(ranks, way, local, codec):
    """Workers of a node share half of their rows; every worker's are spread over all owners."""
    schedule = schedule_of("2x2", way, local=local, codec=codec)
    rows = {0: range(16), 1: range(8, 24), 2: range(24, 40), 3: range(32, 48)}
    found = sent(ranks, schedule, lambda rank: torch.tensor(rows[rank]))
    assert sum(found) / 2 == pytest.approx(priced(schedule, Touched(16 / 48, 24 / 48, 1.0)))
