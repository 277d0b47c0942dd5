"""SLURM's topology.conf as switches, its host lists, and the presets of machines beside them."""

import pytest

from partreduce import Cluster
from partreduce.commands.cluster_options import NETWORKS, NODES, cluster_settings, hardware_of
from partreduce.errors import FileError, InputError
from partreduce.topo.slurm import expand_hosts, read_switches
from partreduce.types import Switch

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


def test_the_switches_of_a_tree_are_its_racks_and_the_top_over_all_is_left_out(conf):
    assert read_switches(conf, 4) == (Switch((0, 1)), Switch((2, 3)))


def test_a_part_of_the_nodes_is_numbered_in_the_order_of_the_job(conf):
    assert read_switches(conf, 3, "n[02-03],n00") == (Switch((0, 1)), Switch((2,)))


def test_host_lists_keep_their_zeros():
    assert list(expand_hosts("n[08-10,12],gpu1,r[1-2]n[0-1]")) == [
        "n08", "n09", "n10", "n12", "gpu1", "r1n0", "r1n1", "r2n0", "r2n1",
    ]  # fmt: skip
    assert list(expand_hosts("")) == []


@pytest.mark.parametrize(
    ("text", "nodes", "words"),
    [
        (TWO_RACKS, "", "has 4 nodes and the cluster 3"),
        (TWO_RACKS, "n07", "has no node n07"),
        ("SwitchName=s0", "", "line 1: names neither Nodes nor Switches below s0"),
        ("SwitchName=a Switches=b Nodes=n[0-2]\nSwitchName=b Switches=a", "", "hangs below itself"),
        ("SwitchName=a Nodes=n[0-x]", "", "is no list of numbers"),
        ("", "", "has 0 nodes"),
    ],
)
def test_what_makes_no_tree_over_the_nodes_is_refused(tmp_path, text, nodes, words):
    (tmp_path / "t.conf").write_text(text)
    with pytest.raises(InputError, match=words.replace("[", r"\[")):
        read_switches(tmp_path / "t.conf", 3, nodes)


def test_a_missing_file_is_a_file_problem(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        read_switches(tmp_path / "no.conf", 3)


def hardware(*entries):
    place = Cluster.regular(4, 2)
    return hardware_of(place, cluster_settings(list(entries)), model_bytes="1MB")


def test_settings_put_switches_and_the_bandwidth_of_their_uplinks_on_the_cluster(conf):
    switches = hardware(f"switches={conf}", "uplink=2GB/s").switches
    assert [one.nodes for one in switches] == [(0, 1), (2, 3)]
    assert all(one.uplink.seconds_per_byte == pytest.approx(0.5e-9) for one in switches)
    assert all(one.uplink.seconds_per_byte == 0 for one in hardware(f"switches={conf}").switches)
    with pytest.raises(InputError, match="there are no switches"):
        hardware("uplink=2GB/s")


def test_presets_are_the_line_rates_of_their_names_and_give_way_to_what_is_stated():
    for name in NETWORKS:
        made = hardware(f"network={name}")
        assert 1 / made.nic.seconds_per_byte == pytest.approx(float(name[:-1]) * 1e9 / 8)
        assert made.nic.latency > 0 == made.inside.latency
    for name in NODES:
        assert hardware(f"node={name}").inside.seconds_per_byte < 1 / 15e9
    made = hardware("network=100g", "nic=1GB/s", "latency=1us", "node=pcie4")
    assert 1 / made.nic.seconds_per_byte == pytest.approx(1e9)
    assert made.nic.latency == made.inside.latency == pytest.approx(1e-6)
    with pytest.raises(InputError, match="did you mean nvlink4"):
        hardware("node=nvlnk4")
