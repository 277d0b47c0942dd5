"""Clusters and quantities: shapes, the shorthand, units, SLURM's switches, presets, and errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.refusals import check_error
from partreduce import Cluster, Hardware, Link
from partreduce.commands.cluster_options import NETWORKS, NODES, cluster_settings, hardware_of
from partreduce.errors import FileError, InputError
from partreduce.topo import units
from partreduce.topo.cluster import MAX_WORKERS
from partreduce.topo.slurm import expand_hosts, read_switches
from partreduce.types import Switch


@pytest.mark.parametrize(("text", "sizes"), [
    ("4x4", [4] * 4), (" 2X3 ", [3, 3]), ("2×3", [3, 3]), ("3,3,2", [3, 3, 2]), ("5", [5]), ("2,2", [2, 2]),
    ("1x1", [1]),
])  # fmt: skip
def test_shorthand_is_parsed(text, sizes):
    cluster = Cluster.parse(text)
    assert cluster.node_sizes().tolist() == sizes
    assert cluster.num_workers == sum(sizes)
    assert cluster.is_regular == (len(set(sizes)) == 1)


@pytest.mark.parametrize(
    "text",
    ["", "4x", "x4", "4x4x4", "0x4", "4x0", "3,0", "3,,2", "3, 2", "-1x4", "4.0x4", "٤x٤", "1e3x2", "99999999999x1",
     "2147483648x1", "65536x65536", "2147483647,1", "100000000,1", "4x4\n5", "clusters.yaml"],
)  # fmt: skip
def test_invalid_shorthand_is_rejected_in_one_line(text):
    with pytest.raises(InputError) as caught:
        Cluster.parse(text)
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == 65


@settings(max_examples=40)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_shorthand_round_trips(sizes):
    cluster = Cluster.parse(",".join(map(str, sizes)))
    assert Cluster.parse(str(cluster)) == cluster


@settings(max_examples=40)
@given(st.data())
def test_node_and_local_rank_match_the_node_lists(data):
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    ranks = list(data.draw(st.permutations(range(sum(sizes)))))
    nodes = [[ranks.pop() for _ in range(size)] for size in sizes]
    cluster = Cluster.irregular(nodes)
    for node, listed in enumerate(nodes):
        assert list(cluster.workers_of(node)) == listed
        for local, worker in enumerate(listed):
            assert cluster.node_of()[worker] == node
            assert cluster.local_rank_of()[worker] == local
    assert cluster.node_sizes().sum() == cluster.num_workers == sum(sizes)
    contiguous = [worker for listed in nodes for worker in listed] == list(range(sum(sizes)))
    assert cluster.is_regular == (contiguous and len(set(sizes)) == 1)


def test_cluster_of_two_billion_workers_needs_no_memory():
    cluster = Cluster.parse("500000000x4")
    assert cluster.num_workers == 2_000_000_000 <= MAX_WORKERS
    assert cluster.workers_of(499_999_999) == tuple(range(1_999_999_996, 2_000_000_000))


@pytest.mark.parametrize(
    ("nodes", "words"),
    [([[0, 1], [1]], "worker 1 is listed twice"), ([[0], [2]], "worker 2 is out of range"), ([[0], []], "is empty"),
     ([], "at least 1 node"), ([[0, -1]], "worker -1 is out of range")],
)  # fmt: skip
def test_invalid_node_lists_are_rejected(nodes, words):
    check_error(InputError, words, Cluster.irregular, nodes)


def test_cluster_takes_exactly_one_form():
    check_error(InputError, "not both", Cluster, 1, 1, ((0,),))
    check_error(InputError, "not neither", Cluster, 1, None)


def test_shape_ignores_hardware():
    bare = Cluster.regular(2, 2)
    equipped = Cluster.regular(2, 2, hardware=Hardware(nic=Link.of_bandwidth(5e9)))
    assert equipped.same_shape(bare)
    assert equipped.shape() == bare
    assert bare.shape() is bare
    assert np.array_equal(equipped.node_of(), [0, 0, 1, 1])


# Quantities with units are exact and case-sensitive


@pytest.mark.parametrize(("parse", "text", "value"), [
    (units.parse_bandwidth, "10GB/s", 10e9),
    (units.parse_bandwidth, "25Gbit/s", 3.125e9),
    (units.parse_bandwidth, "800 Mbps", 1e8),
    (units.parse_bandwidth, "1.5GiB/s", 1.5 * 2**30),
    (units.parse_bandwidth, "8bit/s", 1.0),
    (units.parse_time, "5us", 5e-6),
    (units.parse_time, "5µs", 5e-6),
    (units.parse_time, "2min", 120.0),
    (units.parse_time, "1e-3s", 1e-3),
    (units.parse_size, "552MB", 552_000_000),
    (units.parse_size, "1.5GiB", 3 * 2**29),
    (units.parse_factor, "5x", 5.0),
])  # fmt: skip
def test_quantity_is_parsed_exactly(parse, text, value):
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize(("parse", "text", "words"), [
    (units.parse_bandwidth, "10", "has no unit"),
    (units.parse_bandwidth, "0GB/s", "must be > 0"),
    (units.parse_bandwidth, "infGB/s", "is not a bandwidth"),
    (units.parse_bandwidth, "1e400GB/s", "is too large or too small for a bandwidth"),
    (units.parse_bandwidth, "", "is not a bandwidth"),
    (units.parse_bandwidth, "9" * 10**6, "is not a bandwidth"),
    (units.parse_time, "５ms", "is not a time"),
    (units.parse_size, "0.5B", "not a whole number of bytes"),
    (units.parse_size, "9007199254740993B", "more than 9 PB"),
    (units.parse_size, "552Mb", "could mean bits or bytes, and a size is in bytes; write 552MB for bytes$"),
    (units.parse_size, "552mb", "did you mean 552MB"),
    (units.parse_size, "2 Gib", "could mean bits or bytes, and a size is in bytes; write 2GiB for bytes$"),
    (units.parse_bandwidth, "10Gb/s", "bits or bytes.* write 10GB/s for bytes or 10Gbit/s for bits$"),
    (units.parse_bandwidth, "25MBps", "did you mean 25MB/s"),
    (units.parse_bandwidth, "10GB", "unknown unit.*did you mean 10GB/s"),
    (units.parse_bandwidth, "10gbit/s", "did you mean 10Gbit/s"),
    (units.parse_time, "5MS", "unknown unit.*did you mean 5ms"),
    (units.parse_factor, "5X", "did you mean 5x"),
    (units.parse_factor, "0x", "must be > 0"),
    (units.parse_factor, "5x\n6x", "factor"),
])  # fmt: skip
def test_invalid_quantity_is_rejected(parse, text, words):
    with pytest.raises(InputError, match=words) as caught:
        parse(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.sampled_from(sorted(units.TIMES)))
def test_formatted_times_parse_back_exactly(number, unit):
    value = units.parse_time(f"{number}{unit}")
    text = units.format_quantity(value, units.TIMES)
    assert text is None or units.parse_time(text) == value


def test_format_prefers_the_shortest():
    assert units.format_quantity(10e9, units.BANDWIDTHS) == "10GB/s"
    assert units.format_quantity(0.05, units.TIMES) == "50ms"
    assert units.format_quantity(552_000_000, units.SIZES) == "552MB"
    assert units.format_quantity(1 / 3, units.TIMES) is None


@pytest.mark.parametrize("parse", [units.parse_bandwidth, units.parse_time, units.parse_size, units.parse_factor])
@pytest.mark.parametrize("unit", ["Mb", "mb", "gb/s", "KBPS", "Gib", "MS", "X", "g", "TBIT/S", "Gb", "m", "MiB/S", "b"])
def test_suggested_units_parse(parse, unit):
    try:
        parse(f"8{unit}")
    except InputError as error:
        advice = str(error).partition("; write ")[2] or str(error).partition("did you mean ")[2]
        for words in advice.strip("?").split(" or "):
            word = words.split(" ")[0]
            assert not word.startswith("8") or parse(word)


# SLURM's topology.conf and host lists, and hardware presets


TWO_RACKS = """
# two racks under one switch
SwitchName=s0 Nodes=n[00-01] LinkSpeed=900
SwitchName=s1 Nodes=n02,n03
switchname=top Switches=s[0-1]
"""


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "topology.conf"
    path.write_text(TWO_RACKS)
    return path


def test_switches_of_a_tree_are_its_racks_without_the_root(conf):
    assert read_switches(conf, 4) == (Switch((0, 1)), Switch((2, 3)))


def test_subset_of_nodes_is_numbered_in_job_order(conf):
    assert read_switches(conf, 3, "n[02-03],n00") == (Switch((0, 1)), Switch((2,)))


def test_host_lists_keep_leading_zeros():
    assert list(expand_hosts("n[08-10,12],gpu1,r[1-2]n[0-1]")) == [
        "n08", "n09", "n10", "n12", "gpu1", "r1n0", "r1n1", "r2n0", "r2n1",
    ]  # fmt: skip
    assert list(expand_hosts("")) == []


@pytest.mark.parametrize(("text", "nodes", "words"), [
    (TWO_RACKS, "", "has 4 nodes and the cluster 3"),
    (TWO_RACKS, "n07", "has no node n07"),
    ("SwitchName=s0", "", "line 1: names neither Nodes nor Switches below s0"),
    ("SwitchName=a Switches=b Nodes=n[0-2]\nSwitchName=b Switches=a", "", "hangs below itself"),
    ("SwitchName=a Nodes=n[0-x]", "", "is no list of numbers"),
    ("", "", "has 0 nodes"),
])  # fmt: skip
def test_invalid_topology_is_rejected(tmp_path, text, nodes, words):
    (tmp_path / "t.conf").write_text(text)
    check_error(InputError, words.replace("[", r"\["), read_switches, tmp_path / "t.conf", 3, nodes)


def test_missing_topology_raises_file_error(tmp_path):
    check_error(FileError, "cannot be read", read_switches, tmp_path / "no.conf", 3)


def hardware(*entries):
    place = Cluster.regular(4, 2)
    return hardware_of(place, cluster_settings(list(entries)), model_bytes="1MB")


def test_settings_add_switches_and_uplink_bandwidth(conf):
    switches = hardware(f"switches={conf}", "uplink=2GB/s").switches
    assert [one.nodes for one in switches] == [(0, 1), (2, 3)]
    assert all(one.uplink.seconds_per_byte == pytest.approx(0.5e-9) for one in switches)
    assert all(one.uplink.seconds_per_byte == 0 for one in hardware(f"switches={conf}").switches)
    check_error(InputError, "there are no switches", hardware, "uplink=2GB/s")


def test_presets_have_their_line_rates_and_yield_to_stated_values():
    for name in NETWORKS:
        made = hardware(f"network={name}")
        assert 1 / made.nic.seconds_per_byte == pytest.approx(float(name[:-1]) * 1e9 / 8)
        assert made.nic.latency > 0 == made.inside.latency
    for name in NODES:
        assert hardware(f"node={name}").inside.seconds_per_byte < 1 / 15e9
    made = hardware("network=100g", "nic=1GB/s", "latency=1us", "node=pcie4")
    assert 1 / made.nic.seconds_per_byte == pytest.approx(1e9)
    assert made.nic.latency == made.inside.latency == pytest.approx(1e-6)
    check_error(InputError, "did you mean nvlink4", hardware, "node=nvlnk4")
