"""Bytes that a step with a table sends to other nodes: counted at the collectives, priced by the planner, proved."""

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
"""Bytes of the message by which a worker announces its next call on one table to another worker."""


def bytes_sent(ranks, schedule, rows_of):
    """Return the bytes of rows that each node sends to other nodes in one step, without the announcements."""

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
    announced = 3 if route.way is Placement.SHARDED else 2  # lookup, gradients, end of the step
    fits = 4 * int(
        route.way is Placement.SHARDED and route.codec.rounds
    )  # whether the rows of each owner fit their codec
    call, elsewhere = CALL, [cluster.num_workers - len(cluster.workers_of(int(node))) for node in cluster.node_of()]
    if schedule.routes.local_aggregation and in_pairs(cluster, gathers=route.way is Placement.GATHER):
        # One worker of each other node receives the announcements of this whole node.
        mates = cluster.num_workers // cluster.num_nodes
        call, elsewhere = 8 * (mates * LENGTH + 1), [cluster.num_nodes - 1] * cluster.num_workers
    rows = [count - (announced * call + fits) * others for count, others in zip(each, elsewhere, strict=True)]
    return [sum(rows[rank] for rank in cluster.workers_of(node)) for node in range(cluster.num_nodes)]


def lookup_bytes(ranks, schedule, lookups):
    """Return the bytes that every worker sends to other nodes, one step for each lookup; check the rows they get."""
    (route,) = schedule.routes.tables
    values = torch.arange(route.rows * COLUMNS, dtype=torch.float32).view(-1, COLUMNS)

    def run(world):
        model = nn.Sequential(nn.Embedding(route.rows, COLUMNS, sparse=True, _weight=values.clone()), nn.Linear(4, 1))
        optimizer = partreduce.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0), model, schedule, world=world
        )
        tables, found = optimizer.run.tables, []
        for rows_of in lookups:
            before, rows = tables.bytes_across, rows_of(world.rank)
            looked = model[0](rows)
            assert torch.equal(looked, values[rows])
            model[1](looked).sum().backward()
            optimizer.step()
            found.append(tables.bytes_across - before)
        optimizer.finish()
        return found

    return ranks.run(4, run)


def test_later_steps_send_indices_in_space_reserved_by_the_calls(ranks):
    """Each worker looks up 12, 12, 16, then 24 rows of each of 4 owners; after the first step 16 indices have space."""
    # To each of 3 others: calls; for a row its index, its values and gradients, and the index of these.
    calls, rows, room = 3 * CALL, 4 + 2 * 4 * COLUMNS + 4, 16 * 4
    separate, filled, too_many = (3 * (calls + count * rows) for count in (12, 16, 24))
    in_space = 3 * 3 * room
    schedule = schedule_of("4x1", Placement.SHARDED, rows=2 * ROWS)
    found = lookup_bytes(ranks, schedule, [lambda _, n=n: torch.arange(4 * n) for n in (12, 12, 16, 24)])
    steps = [separate, separate - 3 * 12 * 4 + in_space, filled - 3 * 16 * 4 + in_space, too_many + in_space]
    assert found == [steps] * 4


@pytest.mark.parametrize(("cluster", "others", "call"), [("4x1", 3, CALL), ("2x2", 1, 8 * (2 * LENGTH + 1))])
def test_reserved_space_follows_the_number_of_rows(ranks, cluster, others, call):
    """From the third step on, the space is for as many indices, less than four times as many, or none above a limit."""
    counts = [300, 12, 100, 3, 17, 257, 256]
    lookups = [lambda _, count=count: torch.arange(4 * count) for count in counts for _ in range(3)]
    found = lookup_bytes(ranks, schedule_of(cluster, Placement.SHARDED, rows=1200), lookups)
    assert found == [found[0]] * 4
    for count, sent in zip(counts, found[0][2::3], strict=True):
        more = sent / others - 3 * call - count * (2 * 4 * COLUMNS + 4)  # to each of the others, besides rows
        most = min(max(4 * count, 16), ROOM)
        assert (more == 4 * count) if count > ROOM else 3 * 4 * count <= more <= 3 * 4 * most, count


@pytest.mark.parametrize("cluster", ["4x1", "2x2", INTERLEAVED], ids=str)
def test_lookups_of_any_size_return_their_rows(ranks, cluster):
    """Indices with and without reserved space, in any order, within nodes and between them."""
    rng = np.random.default_rng(8)
    rows = [
        [torch.tensor(rng.permutation(160)[: rng.choice([0, 1, 16, 70, 160])]) for _ in range(4)] for _ in range(12)
    ]
    lookup_bytes(
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
        ("3,1", Placement.GATHER, {}),  # one worker holds as much as three share; all messages have that length
        (INTERLEAVED, Placement.GATHER, {}),
        (INTERLEAVED, Placement.GATHER, {"local": False}),
        (INTERLEAVED, Placement.SHARDED, {"codec": "float16"}),
    ],
    ids=str,
)
def test_bytes_of_touching_all_rows_match_price_and_proof(ranks, cluster, way, members):
    schedule = schedule_of(cluster, way, **members)
    busiest = max(bytes_sent(ranks, schedule, lambda _: torch.arange(ROWS)))
    assert busiest == pytest.approx(price_of(schedule, RowAccess(1.0, 1.0, 1.0)))
    ((_, lookup, gradients),) = partreduce.verify(schedule)["nic-bytes"].numbers["tables"]
    if "hosts" not in members:  # with hosts one node sends most at the lookup, and another with the gradients
        assert busiest == lookup + gradients
    assert busiest <= lookup + gradients


@pytest.mark.parametrize("way", [Placement.SHARDED, Placement.GATHER])
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("codec", ["none", "float16"])
def test_price_of_overlapping_rows_is_the_mean_over_nodes(ranks, way, local, codec):
    """Workers of a node share half of their rows, and the rows of each worker are spread over all owners."""
    schedule = schedule_of("2x2", way, local=local, codec=codec)
    rows = {0: range(16), 1: range(8, 24), 2: range(24, 40), 3: range(32, 48)}
    found = bytes_sent(ranks, schedule, lambda rank: torch.tensor(rows[rank]))
    assert sum(found) / 2 == pytest.approx(price_of(schedule, RowAccess(16 / 48, 24 / 48, 1.0)))
