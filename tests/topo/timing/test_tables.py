"""What a table's exchange puts on the links: counted by hand, as an exchange of equal pieces, and as the papers say."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from partreduce import Cluster, Hardware, Link
from partreduce.errors import InputError
from partreduce.strategies import Payload, Phase, Placement, TablePlacement
from partreduce.topo.timing import loads
from partreduce.topo.timing.tables import NUMBER_BYTES, exchange, exchanges
from partreduce.types import CodecSeconds, RowAccess, Switch

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


def counted(route, touched, cluster, *, aggregates):
    """Bytes out of the busiest NIC, message by message between workers, for rows that are spread evenly."""
    n, node_of, hosts = cluster.num_workers, cluster.node_of(), route.hosts or range(cluster.num_workers)
    sizes, row = cluster.node_sizes(), {"none": ROW, "float16": ROW / 2, "int8": ROW / 4 + 4}[route.codec]
    asks = {w: touched.node * ROWS / sizes[node_of[w]] if aggregates else touched.worker * ROWS for w in range(n)}
    out = np.zeros(cluster.num_nodes)
    for asking, host in itertools.product(range(n), hosts):
        if node_of[asking] != node_of[host]:
            rows = asks[asking] / len(hosts)
            out[node_of[asking]] += rows * (2 * NUMBER_BYTES + row)  # numbers, and gradients with theirs later
            out[node_of[host]] += rows * row
    return out.max()


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("hosts", [(), (0,), (1, 4, 6)])
@pytest.mark.parametrize("aggregates", [True, False])
@pytest.mark.parametrize("codec", ["none", "float16", "int8"])
def test_bytes_of_a_sharded_table_are_those_counted_message_by_message(name, hosts, aggregates, codec):
    cluster, touched, route = CLUSTERS[name], RowAccess(0.01, 0.02, 0.05), table(hosts=hosts, codec=codec)
    found = exchange(route, touched, cluster, HARDWARE, local_aggregation=aggregates)
    many = aggregates and name != "16x1"
    assert found.nic_bytes == pytest.approx(counted(route, touched, cluster, aggregates=many))


@pytest.mark.parametrize("way", [Placement.SHARDED, Placement.GATHER])
def test_a_codec_saves_seconds_on_slow_links_and_costs_some_where_only_coding_takes_time(way):
    touched, cluster = RowAccess(0.01, 0.02, 0.05), CLUSTERS["4x4"]
    slow = [exchange(table(way=way, codec=codec), touched, cluster, HARDWARE) for codec in ("none", "float16", "int8")]
    assert slow[0].seconds > slow[1].seconds > slow[2].seconds
    assert len({one.meetings for one in slow}) == 1, "latencies are the same"
    # Per byte of float32: 200 rows a worker; at the owner a sixteenth of the 800 that nodes ask for, or all of them.
    coding = replace(HARDWARE, nic=Link(0.0, 1e-15), inside=Link(), codec=(("float16", CodecSeconds(2e-9, 1e-9)),))
    plain, coded = (exchange(table(way=way, codec=codec), touched, cluster, coding) for codec in ("none", "float16"))
    brought, gathered = ROW * 50, ROW * 800
    expected = 2e-9 * brought + 1e-9 * gathered
    if way is Placement.SHARDED:
        expected = 2e-9 * (gathered / 16 + brought) + 1e-9 * (ROW * 100 + gathered / 16)
    assert coded.seconds - plain.seconds == pytest.approx(expected, rel=1e-3)


def test_the_reference_s_factors_on_16_workers():
    """Outgoing per NIC, in rows that a worker touches: 15 and 6 on 4x4, 6 α_node/4α aggregated, 15 and 1.9 on 16x1."""
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
def test_pieces_of_equal_size_cost_what_an_all_to_all_costs(name, switches):
    cluster = CLUSTERS[name]
    hardware = Hardware(
        inside=Link(1e-5, 1e-10), nic=Link(1e-4, 1e-8), bus=Link(1e-6, 1e-9), num_nics=2, switches=switches
    )
    everyone = Phase.from_groups(cluster.num_workers, [range(cluster.num_workers)])
    sizes = cluster.node_sizes()
    alike = loads.of_exchange(everyone, cluster, hardware, num_bytes=1e6)
    pieces = loads.of_pieces(cluster, hardware, wanted=1e6 * sizes, held=sizes / sizes.sum(), workers=sizes)
    if name != "3,3,2":  # whose nodes use as many NICs as the smallest, or each its own
        assert pieces.seconds() == pytest.approx(alike.seconds())
    assert pieces.busiest_node_bytes() == pytest.approx(alike.busiest_node_bytes())


def test_one_host_is_the_bottleneck_and_a_dense_table_is_the_strategy_s_own():
    touched, cluster = RowAccess(0.01, 0.02, 0.05), CLUSTERS["4x4"]
    spread = exchange(table(), touched, cluster, HARDWARE)
    alone = exchange(table(hosts=(0,)), touched, cluster, HARDWARE)
    assert alone.nic_bytes > 1.9 * spread.nic_bytes
    assert alone.seconds > spread.seconds
    assert exchange(table(way=Placement.DENSE), touched, cluster, HARDWARE).seconds == 0


def test_tables_are_exchanged_one_after_the_other_and_must_be_known():
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


def test_shares_that_cannot_be_are_refused_and_independent_ones_are_between():
    with pytest.raises(InputError, match="a node touches what its workers do"):
        RowAccess(0.1, 0.05, 0.2)
    with pytest.raises(InputError, match=r"it must be (<= 1|>= 0)"):
        RowAccess(0.1, 0.2, 1.2)
    alone = RowAccess.independent(0.1, Cluster.regular(2, 2))
    assert (alone.worker, alone.node, alone.everyone) == pytest.approx((0.1, 0.19, 0.3439))
