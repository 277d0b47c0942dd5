"""What a step with a table sends to other nodes: as counted at the collectives, as the planner prices, as is proved."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import partreduce
from partreduce import Cluster, Hardware
from partreduce.runtime.sharding.table_collectives import LENGTH
from partreduce.strategies import Gradient, Payload, Placement, TablePlacement
from partreduce.topo.timing.tables import ROOM, RowAccess, exchange, in_pairs

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

ROWS, COLUMNS = 48, 4
INTERLEAVED = Cluster.irregular([[0, 2], [3, 1]])
"""Every worker's successor in a ring is on the other node."""
CALL = 8 * (LENGTH + 1)
"""Bytes in which a worker tells another one what it does with one table."""


def bytes_sent(ranks, schedule, rows_of):
    """Bytes of one step that each node sends to others, without what workers tell each other before."""

    def step(world):
        model = nn.Sequential(nn.Embedding(ROWS, COLUMNS, sparse=True), nn.Linear(COLUMNS, 1))
        inner = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer = partreduce.DistributedOptimizer(inner, model, schedule, world=world)
        tables = optimizer.run.tables
        before = tables.bytes_across
        model(rows_of(world.rank)).sum().backward()
        optimizer.step()
        after = tables.bytes_across
        optimizer.finish()
        return after - before

    each = ranks.run(schedule.num_workers, step)
    cluster, (route,) = schedule.cluster, schedule.routes.tables
    told = 3 if route.way is Placement.SHARDED else 2  # at the lookup, for the gradients, at the end of the step
    fits = 4 * int(
        route.way is Placement.SHARDED and route.codec.rounds
    )  # of each owner: whether its rows fit their codec
    call, elsewhere = CALL, [cluster.num_workers - len(cluster.workers_of(int(node))) for node in cluster.node_of()]
    if schedule.routes.local_aggregation and in_pairs(cluster, gathers=route.way is Placement.GATHER):
        # To one worker of each other node, for all of this node.
        mates = cluster.num_workers // cluster.num_nodes
        call, elsewhere = 8 * (mates * LENGTH + 1), [cluster.num_nodes - 1] * cluster.num_workers
    rows = [count - (told * call + fits) * others for count, others in zip(each, elsewhere, strict=True)]
    return [sum(rows[rank] for rank in cluster.workers_of(node)) for node in range(cluster.num_nodes)]


def looked_up(ranks, schedule, asked):
    """Of each lookup, a step each: the bytes that every worker sends to other nodes; all get the rows of the table."""
    (route,) = schedule.routes.tables
    values = torch.arange(route.rows * COLUMNS, dtype=torch.float32).view(-1, COLUMNS)

    def run(world):
        model = nn.Sequential(nn.Embedding(route.rows, COLUMNS, sparse=True, _weight=values.clone()), nn.Linear(4, 1))
        optimizer = partreduce.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0), model, schedule, world=world
        )
        tables, found = optimizer.run.tables, []
        for rows_of in asked:
            before, rows = tables.bytes_across, rows_of(world.rank)
            looked = model[0](rows)
            assert torch.equal(looked, values[rows])
            model[1](looked).sum().backward()
            optimizer.step()
            found.append(tables.bytes_across - before)
        optimizer.finish()
        return found

    return ranks.run(4, run)


def test_later_steps_send_the_numbers_in_the_room_of_the_calls_and_nothing_else_besides(ranks):
    """Each asks each of 4 owners for 12, 12, 16, then 24 rows; there is room for 16 behind the first step."""
    # To each of 3 others: calls; numbers, and rows back and forth with numbers.
    calls, rows, room = 3 * CALL, 4 + 2 * 4 * COLUMNS + 4, 16 * 4
    apart, filled, too_many = (3 * (calls + count * rows) for count in (12, 16, 24))
    in_room = 3 * 3 * room
    schedule = schedule_of("4x1", Placement.SHARDED, rows=2 * ROWS)
    found = looked_up(ranks, schedule, [lambda _, count=count: torch.arange(4 * count) for count in (12, 12, 16, 24)])
    steps = [apart, apart - 3 * 12 * 4 + in_room, filled - 3 * 16 * 4 + in_room, too_many + in_room]
    assert found == [steps] * 4


@pytest.mark.parametrize(("cluster", "others", "call"), [("4x1", 3, CALL), ("2x2", 1, 8 * (2 * LENGTH + 1))])
def test_the_room_follows_what_is_asked_for_and_is_never_large(ranks, cluster, others, call):
    """In its third step each number of rows travels in room for as many, for less than four times, or by itself."""
    counts = [300, 12, 100, 3, 17, 257, 256]
    asked = [lambda _, count=count: torch.arange(4 * count) for count in counts for _ in range(3)]
    found = looked_up(ranks, schedule_of(cluster, Placement.SHARDED, rows=1200), asked)
    assert found == [found[0]] * 4
    for count, sent in zip(counts, found[0][2::3], strict=True):
        more = sent / others - 3 * call - count * (2 * 4 * COLUMNS + 4)  # to each of the others, besides rows
        most = min(max(4 * count, 16), ROOM)
        assert (more == 4 * count) if count > ROOM else 3 * 4 * count <= more <= 3 * 4 * most, count


@pytest.mark.parametrize("cluster", ["4x1", "2x2", INTERLEAVED], ids=str)
def test_whoever_asks_for_however_many_rows_gets_them(ranks, cluster):
    """Numbers that have room in the calls and those that have none, in any order, in nodes and between them."""
    rng = np.random.default_rng(8)
    rows = [
        [torch.tensor(rng.permutation(160)[: rng.choice([0, 1, 16, 70, 160])]) for _ in range(4)] for _ in range(12)
    ]
    looked_up(
        ranks, schedule_of(cluster, Placement.SHARDED, rows=160), [lambda rank, all_=all_: all_[rank] for all_ in rows]
    )


def schedule_of(cluster, way, *, local=True, rows=ROWS, **members):
    route = TablePlacement(
        parameter="0.weight", rows=rows, columns=COLUMNS, way=way, gradient=Gradient.SPARSE, **members
    )
    plain = partreduce.design(cluster, build="allreduce")
    payload = Payload(tables=(route,), local_aggregation=local)
    return replace(plain, strategy=replace(plain.strategy, payload=payload))


def price_of(schedule, touched):
    (route,) = schedule.routes.tables
    local = schedule.routes.local_aggregation
    return exchange(route, touched, schedule.cluster, Hardware(), local_aggregation=local).nic_bytes


@pytest.mark.parametrize(
    ("cluster", "way", "members"),
    [
        ("2x2", Placement.SHARDED, {}),
        ("2x2", Placement.SHARDED, {"local": False}),
        ("2x2", Placement.SHARDED, {"hosts": (0,)}),
        ("4x1", Placement.SHARDED, {}),
        ("3,1", Placement.SHARDED, {"hosts": (3, 1)}),
        ("2x2", Placement.GATHER, {}),
        ("2x2", Placement.GATHER, {"local": False}),
        ("4x1", Placement.GATHER, {}),
        ("2x2", Placement.SHARDED, {"codec": "float16"}),
        ("2x2", Placement.SHARDED, {"codec": "int8", "local": False}),
        ("3,1", Placement.SHARDED, {"codec": "int8", "hosts": (3, 1)}),
        ("2x2", Placement.GATHER, {"codec": "bfloat16"}),
        ("4x1", Placement.GATHER, {"codec": "int8"}),
        ("3,1", Placement.GATHER, {}),  # one worker has what another node's three share, and all messages are as long
        (INTERLEAVED, Placement.GATHER, {}),
        (INTERLEAVED, Placement.GATHER, {"local": False}),
        (INTERLEAVED, Placement.SHARDED, {"codec": "float16"}),
    ],
    ids=str,
)
def test_if_all_rows_are_touched_as_many_bytes_leave_a_node_as_are_priced_and_proved(ranks, cluster, way, members):
    schedule = schedule_of(cluster, way, **members)
    busiest = max(bytes_sent(ranks, schedule, lambda _: torch.arange(ROWS)))
    assert busiest == pytest.approx(price_of(schedule, RowAccess(1.0, 1.0, 1.0)))
    ((_, lookup, gradients),) = partreduce.verify(schedule)["nic-bytes"].numbers["tables"]
    if "hosts" not in members:  # with them one node is the busiest at the lookup, and another behind it
        assert busiest == lookup + gradients
    assert busiest <= lookup + gradients


@pytest.mark.parametrize("way", [Placement.SHARDED, Placement.GATHER])
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("codec", ["none", "float16"])
def test_of_shares_with_overlap_the_price_is_the_mean_over_nodes(ranks, way, local, codec):
    """Workers of a node share half of their rows; every worker's are spread over all owners."""
    schedule = schedule_of("2x2", way, local=local, codec=codec)
    rows = {0: range(16), 1: range(8, 24), 2: range(24, 40), 3: range(32, 48)}
    found = bytes_sent(ranks, schedule, lambda rank: torch.tensor(rows[rank]))
    assert sum(found) / 2 == pytest.approx(price_of(schedule, RowAccess(16 / 48, 24 / 48, 1.0)))
