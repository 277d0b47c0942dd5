"""Placements of tables: no combination is faster, and each choice is explained."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from helpers.refusals import check_error
from partreduce import Cluster, Hardware, Link, Schedule
from partreduce.console import seconds as in_seconds
from partreduce.console import size as in_bytes
from partreduce.errors import InputError, ScheduleError
from partreduce.planner import tables
from partreduce.planner.tables import APPLYING, HANDLING, Pricing, Table, choose_routes
from partreduce.strategies import Codec, DynamicGroups, GroupPhases, Phase, Placement, Server, StaticGroups, Transport
from partreduce.topo.strategies import AllReduce, AllReduceAlgorithm
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.tables import exchanges
from partreduce.types import RowAccess

CLUSTERS = (Cluster.regular(4, 4), Cluster.regular(16, 1), Cluster.irregular([[0, 1, 2], [3, 4, 5], [6, 7]]))


def draw_table(rng, index):
    worker = 10 ** rng.uniform(-3, 0)
    node = min(1.0, worker * rng.uniform(1, 4))
    touched = RowAccess(worker, node, min(1.0, node * rng.uniform(1, 4)))
    gradient = rng.choice(["dense", "sparse"])
    rows, columns = int(10 ** rng.uniform(1, 5)), int(rng.integers(1, 200))
    return Table(parameter=f"t{index}", rows=rows, columns=columns, touched=touched, gradient=gradient)


def draw(rng, num_tables):
    """Return a random job: tables, a schedule for the dense part, fast to slow links, none to many dense bytes."""
    cluster = CLUSTERS[rng.integers(len(CLUSTERS))]
    half = np.arange(cluster.num_workers) % 2
    pairs = Phase.from_groups(cluster.num_workers, [np.flatnonzero(half == side).tolist() for side in (0, 1)])
    all_workers = Phase.from_groups(cluster.num_workers, [range(cluster.num_workers)])
    strategies = (
        AllReduce(),
        AllReduce(transport=Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL, codec=Codec.INT8)),
        StaticGroups(phases=GroupPhases((pairs, all_workers))),
    )
    schedule = Schedule("dense part", cluster, strategies[rng.integers(len(strategies))])
    slow = 10 ** rng.uniform(-10, -7)
    hardware = Hardware(inside=Link(1e-6, slow / 5), nic=Link(10 ** rng.uniform(-6, -3), slow))
    dense = int(rng.choice([0, 10 ** rng.uniform(3, 8)]))
    tables = [draw_table(rng, index) for index in range(num_tables)]
    return tables, schedule, hardware, dense, float(rng.choice([0.0, 5e-10]))


def least_seconds(tables, schedule, hardware, dense, applying):
    """Return the least seconds over all placements and both settings of local aggregation."""
    pricing = Pricing(tables, schedule, hardware, dense_bytes=dense, applying=applying)
    allowed = [
        [way for way in Placement if table.gradient != "sparse" or way is not Placement.DENSE] for table in tables
    ]
    return min(pricing.cost(ways, local=local).seconds for ways in product(*allowed) for local in (True, False))


@pytest.mark.parametrize("num_tables", [0, 1, 3, 8])
def test_no_combination_of_placements_is_faster(num_tables):
    """With 8 tables the planner changes one placement at a time, and stays within 5 %."""
    rng = np.random.default_rng(num_tables)
    for _ in range(2 if num_tables == 8 else 25):
        tables, schedule, hardware, dense, applying = draw(rng, num_tables)
        chosen = choose_routes(tables, schedule, hardware, dense_bytes=dense, applying=applying)
        best = least_seconds(tables, schedule, hardware, dense, applying)
        assert chosen.seconds <= best * (1.05 if num_tables == 8 else 1 + 1e-9)
        assert chosen.seconds >= best * (1 - 1e-9)
        assert [route.parameter for route in chosen.routes.tables] == [table.parameter for table in tables]


@pytest.mark.parametrize("seed", [570, 1441])
def test_tables_that_pay_only_together_are_found(seed):
    """Sparse tables share latencies, so moving only one of them to dense may gain nothing."""
    tables, schedule, hardware, dense, applying = draw(np.random.default_rng(seed), 3)
    chosen = choose_routes(tables, schedule, hardware, dense_bytes=dense, applying=applying)
    assert chosen.seconds == pytest.approx(least_seconds(tables, schedule, hardware, dense, applying), rel=1e-9)
    assert sorted(route.way for route in chosen.routes.tables) == [Placement.DENSE, Placement.DENSE, Placement.SHARDED]


def seconds_by_parts(job, routes):
    """Return the seconds of a step from its parts: averages, exchanges and visits."""
    tables, schedule, hardware, size, applying = job
    touched, visits = {table.parameter: table.touched for table in tables}, 0.0
    for table, route in zip(tables, routes.tables, strict=True):
        size += table.rows * table.columns * 4 * (route.way is Placement.DENSE)
        visits += applying * table.visited(route.way, schedule.num_workers)
        visits += HANDLING * table.handled(route.way, schedule.cluster, local_aggregation=routes.local_aggregation)
    averages = communication(schedule, hardware, model_bytes=size).per_step if size else 0.0
    return averages + exchanges(routes, touched, schedule.cluster, hardware).seconds + visits


@pytest.mark.parametrize("codecs", [(Codec.NONE,), (Codec.NONE, Codec.FLOAT16, Codec.INT8)], ids=len)
def test_predicted_seconds_are_the_sum_of_their_parts(codecs):
    """Check the chosen placements with their codecs and, without codecs, each other placement of one table."""
    rng = np.random.default_rng(9)
    for _ in range(8):
        job = draw(rng, 3)
        tables, schedule, hardware, dense, applying = job
        chosen = choose_routes(tables, schedule, hardware, dense_bytes=dense, applying=applying, codecs=codecs)
        assert chosen.seconds == pytest.approx(seconds_by_parts(job, chosen.routes), rel=1e-9)
        place = int(rng.integers(3))
        costs, now = chosen.costs[tables[place].parameter], chosen.routes.tables[place].way
        for way in tables[place].allowed if len(codecs) == 1 else ():
            routes = list(chosen.routes.tables)
            routes[place] = tables[place].route(way)
            more = seconds_by_parts(job, replace(chosen.routes, tables=tuple(routes))) - chosen.seconds
            assert costs[way].seconds - costs[now].seconds == pytest.approx(more, abs=1e-9 * chosen.seconds)


def count_transfers(sets, way, cluster, *, together):
    """Count row transfers per worker; worker r mod n owns row r, and its node's collector is chosen likewise."""
    transfers, node_of = np.zeros(cluster.num_workers), cluster.node_of()
    nodes = [list(cluster.workers_of(node)) for node in range(cluster.num_nodes)]

    def transfer(sender, receiver, times):
        transfers[sender] += times
        transfers[receiver] += times

    rows_of = {worker: set(rows) for worker, rows in enumerate(sets)}
    if together:
        rows_of = {worker: set() for worker in range(cluster.num_workers)}
        for worker, rows in enumerate(sets):
            mates = nodes[node_of[worker]]
            for row in rows:
                collector = mates[row % cluster.num_workers % len(mates)]
                transfer(worker, collector, 2 if way is Placement.SHARDED else 1)  # with a request, or without
                rows_of[collector].add(row)
    for worker, rows in rows_of.items():
        for row in rows:
            if way is Placement.SHARDED:
                transfer(worker, row % cluster.num_workers, 2)
            else:
                transfers += 1  # all workers receive the row
                transfers[worker] += 0 if together else 1
    return transfers


@pytest.mark.parametrize("way", [Placement.SHARDED, Placement.GATHER])
@pytest.mark.parametrize("cluster", [Cluster.regular(4, 4), Cluster.regular(16, 1), Cluster.regular(1, 4)], ids=str)
@pytest.mark.parametrize("local", [True, False])
def test_handled_rows_match_a_count_by_hand(way, cluster, local):
    rng, rows = np.random.default_rng(4), 400
    sets = [set(rng.choice(rows, 40, replace=False).tolist()) for _ in range(cluster.num_workers)]
    unions = [set().union(*(sets[worker] for worker in cluster.workers_of(node))) for node in range(cluster.num_nodes)]
    touched = RowAccess(40 / rows, np.mean([len(one) for one in unions]) / rows, len(set().union(*sets)) / rows)
    table = Table(parameter="t", rows=rows, columns=3, touched=touched)
    together = local and cluster.num_nodes > 1 and cluster.num_workers > cluster.num_nodes
    counted = count_transfers(sets, way, cluster, together=together)
    assert table.handled(way, cluster, local_aggregation=local) == pytest.approx(counted.mean())
    assert table.handled(Placement.DENSE, cluster, local_aggregation=local) == 0


@pytest.mark.parametrize("gradient", ["dense", "sparse"])
def test_visited_rows_depend_on_gradient_and_placement(gradient):
    table = Table(parameter="t", rows=80, columns=3, touched=RowAccess(0.1, 0.2, 0.3), gradient=gradient)
    everywhere = 80 * 3 * 4 * (0.3 if gradient == "sparse" else 1)
    assert table.visited(Placement.GATHER, 8) == pytest.approx(everywhere)
    assert table.visited(Placement.SHARDED, 8) == pytest.approx(everywhere / 8)
    halves = Table(parameter="t", rows=80, columns=3, touched=None, gradient=gradient, element_bytes=2)
    assert halves.visited(Placement.GATHER, 8) == 80 * 3 * 2, "unknown access may touch all rows"


def words(worker, node, everyone, **members):
    touched = RowAccess(worker, node, everyone)
    return Table(parameter="words.weight", rows=50_000, columns=128, touched=touched, **members)


SLOW = Hardware(inside=Link(1e-5, 1e-10), nic=Link(1e-4, 4e-8))


def test_rarely_touched_rows_are_sharded_and_full_tables_stay_dense():
    schedule = Schedule("s", CLUSTERS[0], AllReduce(transport=Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL)))
    few = choose_routes([words(0.008, 0.02, 0.05)], schedule, SLOW, dense_bytes=10**6)
    assert few.routes.tables[0].way is Placement.SHARDED
    assert few.routes.local_aggregation
    every = choose_routes([words(1.0, 1.0, 1.0)], schedule, SLOW, dense_bytes=10**6, applying=0.0)
    assert every.routes.tables[0].way is Placement.DENSE
    assert every.dense_bytes == 10**6 + 50_000 * 128 * 4


def test_handling_cost_makes_dense_faster_on_fast_links(monkeypatch):
    schedule = Schedule("s", CLUSTERS[0], AllReduce())
    fast, table = Hardware(inside=Link(1e-6, 1e-11), nic=Link(1e-5, 1e-10)), words(0.3, 0.5, 0.7)

    def choose(applying=APPLYING[None]):
        return choose_routes([table], schedule, fast, dense_bytes=10**6, applying=applying)

    assert choose().routes.tables[0].way is Placement.DENSE
    monkeypatch.setattr(tables, "HANDLING", 0.0)
    assert choose().routes.tables[0].way is Placement.SHARDED
    check_error(InputError, "s per byte; both are numbers >= 0", choose, float("inf"))


def test_rows_are_coded_only_if_allowed_and_profitable():
    schedule, table = Schedule("s", CLUSTERS[0], AllReduce()), words(0.008, 0.02, 0.05)

    def choose(hardware, *codecs):
        return choose_routes([table], schedule, hardware, dense_bytes=10**6, codecs=codecs)

    exact, coded = choose(SLOW, Codec.NONE), choose(SLOW, Codec.NONE, Codec.FLOAT16)
    assert exact.routes == choose_routes([table], schedule, SLOW, dense_bytes=10**6).routes
    assert coded.routes.tables[0].codec is Codec.FLOAT16
    assert coded.routes.tables[0].way is Placement.SHARDED
    assert coded.seconds < exact.seconds
    assert coded.reasons[0].split(": ")[1].startswith("sharded in float16, ")
    saved = f"{in_seconds(exact.seconds - coded.seconds)} and "
    fewer = (
        exact.costs["words.weight"][Placement.SHARDED].nic_bytes
        - coded.costs["words.weight"][Placement.SHARDED].nic_bytes
    )
    assert f" a step, {saved}{in_bytes(fewer)} out of a node less than as it is; " in coded.reasons[0]
    printed = coded.to_json()
    assert printed["codecs"] == {"words.weight": "float16"}
    assert printed["ways"] == {"words.weight": "sharded"}
    assert printed["costs"]["words.weight"].keys() == {"dense", "gather", "sharded"}
    cost = coded.costs["words.weight"][Placement.SHARDED]
    assert printed["costs"]["words.weight"]["sharded"] == {"seconds": cost.seconds, "nic_bytes": cost.nic_bytes}
    assert (printed["seconds"], printed["dense_bytes"]) == (coded.seconds, 10**6)
    assert printed["local_aggregation"] is coded.routes.local_aggregation
    assert printed["reasons"] == list(coded.reasons)
    of_rows = [codec for codec in Codec if codec is not Codec.INT4]
    assert choose(SLOW, *of_rows).routes.tables[0].codec is Codec.INT8
    fast = Hardware(inside=Link(1e-5, 1e-13), nic=Link(1e-4, 1e-13))
    assert choose(fast, *of_rows).routes.tables[0].codec is Codec.NONE
    dense = choose_routes([words(1.0, 1.0, 1.0)], schedule, SLOW, dense_bytes=0, applying=0.0, codecs=tuple(of_rows))
    assert {route.codec for route in dense.routes.tables if route.way is Placement.DENSE} <= {Codec.NONE}
    check_error(InputError, "no codec is allowed", choose, SLOW)


def test_reasons_name_touched_rows_and_the_other_placements():
    schedule = Schedule("s", CLUSTERS[0], AllReduce())
    reasons = choose_routes([words(0.008, 0.02, 0.05, gradient="sparse")], schedule, SLOW, dense_bytes=10**6).reasons
    assert reasons[0].startswith(
        "words.weight (50,000 x 128, 25.6 MB; a worker touches 0.80% of its rows in a step, a node 2.00%, all 5.00%): "
        "sharded, "
    )
    assert "; gather " in reasons[0]
    assert "(not dense: its optimizer sees touched rows only)" in reasons[0]
    assert reasons[1].startswith("workers of a node agree on a row before it crosses: ")
    tied = choose_routes(
        [words(0.008, 0.02, 0.05, ways=("dense",), because="its weight is a decoder's, too")],
        schedule, SLOW, dense_bytes=10**6,
    )  # fmt: skip
    assert "(not gather or sharded: its weight is a decoder's, too)" in tied.reasons[0]


def test_invalid_placements_are_rejected():
    schedule = Schedule("s", CLUSTERS[0], AllReduce())
    with pytest.raises(InputError, match="has a sparse gradient and may go by no way but dense"):
        words(0.1, 0.1, 0.1, gradient="sparse", ways=("dense",))
    with pytest.raises(InputError, match=r"\['words.weight'\] stand there twice"):
        choose_routes([words(0.1, 0.1, 0.1)] * 2, schedule, SLOW, dense_bytes=0)
    on_request = Schedule("s", CLUSTERS[0], DynamicGroups(group_size=2))
    with pytest.raises(ScheduleError, match="of strategy 'dynamic_groups' have no common steps; take allreduce"):
        choose_routes([words(0.1, 0.1, 0.1)], on_request, SLOW, dense_bytes=10)
    with pytest.raises(ScheduleError, match=r"follows no formula, .*; name each table's way in the schedule file"):
        choose_routes([words(0.1, 0.1, 0.1)], Schedule("s", CLUSTERS[0], Server()), SLOW, dense_bytes=10)
