"""Cluster and pilot files: round trips, units, strictness."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.random_switches import switches_over
from helpers.readings import with_change
from helpers.refusals import check_error
from partreduce import Cluster, Hardware, Link, load_cluster
from partreduce.errors import DocumentError, FileError, InputError
from partreduce.files import load_pilot, write_cluster
from partreduce.topo import units
from partreduce.topo.document.cluster import cluster_of
from partreduce.topo.document.pilot import dump_pilot, pilot_of, write_pilot
from partreduce.topo.document.schema import FOLDER
from partreduce.topo.document.yaml_reader import parse_yaml
from partreduce.topo.pilot import Price, Prices, Probe
from partreduce.types import CodecSeconds, Pilot, Switch

EXAMPLE = """\
# two nodes with a thin link between them
format: partreduce.cluster
version: 1
num_nodes: 2
workers_per_node: 4
hardware:
  inside: {bandwidth: 10GB/s, latency: 5us}
  nic: {bandwidth: 40Gbit/s, latency: 20us}
  num_nics: 2
  node_nic:
    1: {bandwidth: 1GB/s}
  switches:
    - {nodes: [1], bandwidth: 2GB/s, latency: 2us}
    - nodes: [0]
  slowdown:
    3: 5x
    4: 1.25
  jitter: 0.1
  model_bytes: 552MB
  compute: 50ms
"""

VALUE = Cluster.regular(
    2,
    4,
    hardware=Hardware(inside=Link.of_bandwidth(10e9, 5e-6), nic=Link.of_bandwidth(5e9, 20e-6), num_nics=2,
        node_nic=((1, Link.of_bandwidth(1e9)),), switches=(Switch((1,), Link.of_bandwidth(2e9, 2e-6)), Switch((0,))),
        slowdown=((3, 5.0), (4, 1.25)), jitter=0.1, model_bytes=552_000_000, compute=0.05),
)  # fmt: skip


def equal(one, other):
    """Compare clusters including their hardware."""
    return one == other and one.hardware == other.hardware


def test_example_loads_from_yaml_and_json(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(EXAMPLE)
    assert equal(load_cluster(path), VALUE)
    assert equal(load_cluster(str(path)), VALUE)
    as_json = tmp_path / "cluster.json"
    as_json.write_text(json.dumps(parse_yaml(EXAMPLE.encode())))
    assert equal(load_cluster(as_json), VALUE)


def test_load_cluster_accepts_shorthand_or_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_cluster("4x4") == Cluster.regular(4, 4)
    assert load_cluster("3,3,2") == Cluster.parse("3,3,2")
    (tmp_path / "machines").write_text(EXAMPLE)
    assert equal(load_cluster("machines"), VALUE)
    check_error(InputError, "not understood", load_cluster, "no-such-thing")
    for absent in ("absent.yaml", "absent.json", "folder/absent"):
        check_error(FileError, "cannot be opened", load_cluster, absent)


seconds = st.one_of(st.sampled_from([0.0, 5e-6, 0.05, 1.0, 90.0]), st.floats(0, 1e3))
links = st.builds(
    Link, latency=seconds, seconds_per_byte=st.one_of(st.sampled_from([0.0, 1e-10, 1 / 3e9]), st.floats(0, 1))
)


@st.composite
def equipped_clusters(draw):
    if draw(st.booleans()):
        cluster = Cluster.regular(draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    else:
        cluster = Cluster.irregular([[2, 0], [1], [3]])
    nodes = st.integers(0, cluster.num_nodes - 1)
    per_node = st.dictionaries(nodes, links, max_size=3).map(lambda d: tuple(sorted(d.items(), key=lambda i: i[0])))
    factors = st.dictionaries(st.integers(0, cluster.num_workers - 1), st.floats(0.01, 100), max_size=3)
    hardware = st.builds(
        Hardware,
        inside=links,
        nic=links,
        node_inside=per_node,
        node_nic=per_node,
        num_nics=st.integers(1, 8),
        switches=switches_over(cluster.num_nodes, links),
        slowdown=factors.map(lambda d: tuple(sorted(d.items()))),
        jitter=st.floats(0, 2),
        codec=st.dictionaries(
            st.sampled_from(["bfloat16", "float16", "int4", "int8"]),
            st.builds(CodecSeconds, st.floats(0, 1e-6), st.floats(0, 1e-6)),
        ).map(lambda d: tuple(sorted(d.items(), key=lambda item: item[0]))),
        layers=st.none() | st.integers(1, 99) | st.lists(st.integers(0, 2**40), max_size=5).filter(any).map(tuple),
        backward=st.sampled_from([2 / 3, 0.0, 1.0]) | st.floats(0, 1),
        model_bytes=st.one_of(st.none(), st.integers(0, 2**53 - 1)),
        compute=st.one_of(st.none(), seconds),
    )
    return Cluster(cluster.num_nodes, cluster.workers_per_node, cluster.nodes, draw(st.one_of(st.none(), hardware)))


@settings(max_examples=40)
@given(cluster=equipped_clusters(), ending=st.sampled_from([".yaml", ".yml", ".json"]))
def test_load_inverts_write(tmp_path_factory, cluster, ending):
    path = tmp_path_factory.mktemp("clusters") / f"cluster{ending}"
    write_cluster(path, cluster)
    assert equal(load_cluster(path), cluster)


def test_written_files_use_units(tmp_path):
    write_cluster(tmp_path / "c.yaml", VALUE)
    text = (tmp_path / "c.yaml").read_text()
    for words in ("bandwidth: 10GB/s", "latency: 5us", "model_bytes: 552MB", "compute: 50ms", "5x"):
        assert words in text
    check_error(FileError, r"ends in \.yaml", write_cluster, tmp_path / "c.txt", VALUE)


BASE = "num_nodes: 2\nworkers_per_node: 2\n"
BROKEN = [
    ("num_nodes: 2", "document", 'the key "workers_per_node" is missing'),
    ("num_nodes: two\nworkers_per_node: 2", "num_nodes", 'is "two"; it must be an integer'),
    ("num_nodes: 0\nworkers_per_node: 2", "num_nodes", "must be >= 1"),
    ("num_nodes: 12345678901234567890\nworkers_per_node: 2", "num_nodes", "an integer beyond"),
    ("num_nodes: .inf", "num_nodes", "numbers are finite"),
    ("num_nodes: 1e400", "num_nodes", "overflows"),
    ("num_nodes: 010\nworkers_per_node: 2", "num_nodes", 'is "010"; it must be an integer'),
    ("nodes: [[0, 1], [1]]", "nodes[1]", "worker 1 is listed twice"),
    ("nodes: [[0, 1], []]", "nodes[1]", "too short"),
    ("nodes: [[0, yes]]", "nodes[0][1]", 'is "yes"'),
    ("workers_per_node: [1, 2, 3]", "document", "for unequal nodes write nodes alone, the ranks of each"),
    (BASE + "nodes: [[0, 1], [2, 3]]", "document", 'has both "nodes" and "num_nodes"; keep nodes, or'),
    (BASE + "hardware:\n\tnic: {bandwidth: 1GB/s}", "4:1", "YAML indents by spaces, and this line holds a tab"),
    (BASE + "num_nodes: 3", "document", 'has the key "num_nodes" twice'),
    (BASE + "hardware: {nic: {latency: 1us, latency: 2us}}", "hardware.nic", 'has the key "latency" twice'),
    (BASE + "version: 2", "version", "is 2; this partreduce reads version 1"),
    (BASE + "format: partreduce.schedule", "format", 'must be "partreduce.cluster"'),
    (BASE + "hardwear: {}", "document", 'did you mean "hardware"?'),
    (BASE + "hardware: {nic: 1GB/s}", "hardware.nic", 'is "1GB/s"; a link is an object, such as {'),
    (BASE + "hardware: {nic: {bandwith: 1GB/s}}", "hardware.nic", 'did you mean "bandwidth"?'),
    (BASE + "hardware: {nic: {bandwidth: 10Gb/s}}", "hardware.nic.bandwidth", "could mean bits or bytes"),
    (BASE + "hardware: {nic: {bandwidth: fast}}", "hardware.nic.bandwidth", "is not a bandwidth"),
    (BASE + "hardware: {nic: {bandwidth: '10'}}", "hardware.nic.bandwidth", "has no unit"),
    (BASE + "hardware: {nic: {bandwidth: 0GB/s}}", "hardware.nic.bandwidth", "is no bandwidth; it must be > 0"),
    (BASE + "hardware: {nic: {bandwidth: true}}", "hardware.nic.bandwidth", "must be a text with its unit"),
    (BASE + "hardware: {slowdown: {1: true}}", 'hardware.slowdown["1"]', "must be a number or a text with its unit"),
    (BASE + "hardware: {nic: {bandwidth: 1GB/s, seconds_per_byte: 1}}", "hardware.nic", "has both"),
    (BASE + "hardware: {node_nic: {2: {latency: 1us}}}", "hardware.node_nic", "node 2 is out of range; nodes are 0..1"),
    (BASE + "hardware: {node_nic: {x: {latency: 1us}}}", "hardware.node_nic", "pattern"),
    (BASE + "hardware: {slowdown: {4: 5x}}", "hardware.slowdown", "worker 4 is out of range"),
    (BASE + "hardware: {slowdown: {1: 0x}}", "hardware.slowdown", "must be > 0"),
    (BASE + "hardware: {switches: [{bandwidth: 1GB/s}]}", "hardware.switches[0]", 'the key "nodes" is missing'),
    (BASE + "hardware: {switches: [{nodes: [2]}]}", "hardware.switches[0].nodes", "node 2 is out of range"),
    (BASE + "hardware: {switches: [{nodes: [1, 1]}]}", "hardware.switches[0].nodes", "node 1 is listed twice"),
    (BASE + "hardware: {switches: [{nodes: [1], bandwidth: 0B/s}]}", "hardware.switches[0].bandwidth", "must be > 0"),
    (BASE + "hardware: {switches: [{nodes: [1]}, {nodes: [1]}]}", "hardware.switches[1]", "above the same nodes"),
    ("num_nodes: 3\nworkers_per_node: 1\nhardware: {switches: [{nodes: [0, 1]}, {nodes: [1, 2]}]}",
        "hardware.switches[1]", "shares node 1 with switches[0]"),
    (BASE + "hardware: {codec: {int3: {}}}", "hardware.codec.int3",
        "it must be 'float16', 'bfloat16', 'int8' or 'int4'"),
    (BASE + "hardware: {codec: {int8: {encode: -1}}}", "hardware.codec.int8.encode", "must be >= 0"),
    (BASE + "hardware: {layers: 0}", "hardware.layers", "must be >= 1"),
    (BASE + "hardware: {layers: [0B, 0kB]}", "hardware.layers", "sends nothing"),
    (BASE + "hardware: {backward: 1.1}", "hardware.backward", "must be <= 1"),
    (BASE + "hardware: {jitter: 1.0e+200}", "hardware.jitter", "must be <= 1000"),
    (BASE + "hardware: {compute: 1e80s}", "hardware.compute", "it must be at most 1e+09 in seconds"),
    (BASE + "hardware: {nic: {seconds_per_byte: 1.0e+300}}", "hardware.nic.seconds_per_byte", "must be <= 1000000000"),
    (BASE + "hardware: {nic: {bandwidth: 1e-300B/s}}", "hardware.nic.bandwidth", "must be at least 1e-09"),
    (BASE + "hardware: {model_bytes: 1.5B}", "hardware.model_bytes", "whole number of bytes"),
    (BASE + "hardware: {model_bytes: 0.5}", "hardware.model_bytes", "has no unit"),
    ("a: &x [1]\nb: *x", "1:4", "anchor or an alias"),
    ("b: *x", "1:4", "anchor or an alias"),
    ("a: !!python/object/apply:os.system [ls]", "1:4", "uses the tag"),
    ("a: 1\n---\nb: 2", "2:1", "second document"),
    ("? [a]\n: b", "1:3", "as a key"),
    ("a: [1, 2", "2:1", "is not YAML"),
    ("\tnum_nodes: 2", "1:1", "is not YAML"),
    ("a: \x07", "document", "is not YAML"),
    ("", "1:1", "is empty"),
    ("\ufeffa: 1", "1:1", "byte-order mark"),
    ("just text", "document", 'is "just text"; it must be an object'),
    ("[" * 10**5, "1:33", "nested deeper than 32"),
    ("- " * 10**4, "1:65", "nested deeper than 32"),
    ("".join(" " * i + f"k{i}:\n" for i in range(200)), "33:33", "nested deeper than 32"),
    ("a: {" + "x: {" * 10**4, "1:128", "nested deeper than 32"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "words"), BROKEN, ids=range(len(BROKEN)))
def test_broken_yaml_is_rejected_with_its_place(tmp_path, text, place, words):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(DocumentError) as caught:
        load_cluster(path)
    error = caught.value
    assert str(error) == f"{path}: {error.place}: {error.problem}"
    assert str(error).isprintable()
    assert error.place.startswith(place) if words in ("pattern", "must be > 0") else error.place == place
    assert words in error.problem


UNITS = {
    "nic.bandwidth": ("{nic: {bandwidth: 10}}", units.parse_bandwidth),
    "inside.latency": ("{inside: {latency: 10}}", units.parse_time),
    "bus.latency": ("{bus: {latency: 10}}", units.parse_time),
    'node_nic["1"].bandwidth': ("{node_nic: {1: {bandwidth: 10}}}", units.parse_bandwidth),
    "switches[0].bandwidth": ("{switches: [{nodes: [0], bandwidth: 10}]}", units.parse_bandwidth),
    "compute": ("{compute: 10}", units.parse_time),
    "model_bytes": ("{model_bytes: 10}", units.parse_size),
    "layers[0]": ("{layers: [10, 5kB]}", units.parse_size),
}


@pytest.mark.parametrize("place", UNITS)
@pytest.mark.parametrize("ending", [".yaml", ".json"])
def test_number_without_unit_raises_the_command_line_error(tmp_path, place, ending):
    hardware, parse = UNITS[place]
    path = tmp_path / f"cluster{ending}"
    text = BASE + "hardware: " + hardware
    path.write_text(text if ending == ".yaml" else json.dumps(parse_yaml(text.encode())))
    with pytest.raises(InputError) as on_the_command_line:
        parse("10")
    assert "'10' has no unit" in str(on_the_command_line.value)
    with pytest.raises(DocumentError) as caught:
        load_cluster(path)
    assert str(caught.value) == f"{path}: hardware.{place}: {on_the_command_line.value}"


def test_factors_and_keys_that_name_their_unit_need_none():
    raw = parse_yaml((BASE + "hardware: {slowdown: {1: 2}, nic: {seconds_per_byte: 1.0e-9}, jitter: 0.1}").encode())
    hardware = cluster_of(raw).hardware
    assert (hardware.slowdown, hardware.nic.seconds_per_byte) == (((1, 2.0),), 1e-9)


def test_limits_of_yaml_files(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"#" * (2**20 + 1))
    check_error(DocumentError, "the limit is 1048576 bytes", load_cluster, path)
    path.write_bytes(b"a: \xff")
    check_error(DocumentError, "1:4: is not UTF-8", load_cluster, path)
    os.mkfifo(tmp_path / "fifo.yaml")
    check_error(DocumentError, "is a FIFO", load_cluster, tmp_path / "fifo.yaml")


def test_truncated_example_loads_or_is_rejected_in_one_line(tmp_path):
    """YAML has no closing bracket, so some prefixes are valid; no other exception is allowed."""
    data = EXAMPLE.encode()
    outcomes = [outcome_of(data[:length]) for length in range(len(data))]
    refusals = [outcome for outcome in outcomes if isinstance(outcome, DocumentError)]
    assert len(data) / 2 < len(refusals) < len(data)
    assert all(str(error).isprintable() and error.place for error in refusals)


def outcome_of(data):
    try:
        return cluster_of(parse_yaml(data))
    except DocumentError as error:
        return error


texts = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), max_size=8)


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e300, 1e300) | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=15,
    )
)
def test_yaml_reader_reads_json(value):
    assert parse_yaml(json.dumps(value, ensure_ascii=False).encode()) == value


# Pilot files: round trips and strictness


def pilot(*, sorted_data=False):
    return Pilot(
        num_workers=4,
        data="per-worker" if sorted_data else "shuffled",
        steps=60,
        seeds=(0, 1, 5),
        prices=Prices(consensus_distance=Price(0.02, 0.0, 0.05), late=Price(0.0, 0.0, 0.1), drift=Price(0.5, 0.25, 1.0)
            if sorted_data else None, error=0.125, averaging=Price(0.3, 0.2, 0.4)),
        probes=(Probe(schedule="every 4", consensus_distance=1.5, drift=3.0, late=0.0, steps_ratios=(1.0, 1.25, 1.5)),
            Probe(schedule="late", consensus_distance=0.75, drift=0.0, late=0.9, steps_ratios=(1.0, 0.9, 1.1)),
            Probe(schedule="ran", consensus_distance=0.0, drift=0.0, late=0.0, steps_ratios=(1.0, 1.0, 2.0),
            sha256="a5" * 32)),
    )  # fmt: skip


def test_pilot_example_on_the_page_round_trips():
    page = (FOLDER.parent / "docs" / "pilot.md").read_text()
    block = page.split("```json\n")[1].split("```")[0]
    assert dump_pilot(pilot_of(json.loads(block))) == json.loads(block)


@pytest.mark.parametrize("sorted_data", [False, True])
def test_pilot_round_trips(tmp_path, sorted_data):
    written, path = pilot(sorted_data=sorted_data), tmp_path / "pilot.json"
    write_pilot(path, written)
    assert load_pilot(path) == written
    document = json.loads(path.read_text())
    assert document == dump_pilot(written)
    assert max(map(len, path.read_text().splitlines())) < 250


def edit(*path, value):
    return with_change(dump_pilot(pilot()), path, value)


@pytest.mark.parametrize(("document", "message"), [
    ([], "must be an object"),
    (edit("format", value="partreduce.cluster"), 'must be "partreduce.pilot"'),
    (edit("version", value=2), "install a newer partreduce"),
    (edit("workers", value=4), 'unknown key "workers"; did you mean "num_workers"'),
    (edit("data", value="sorted"), "data: is"),
    (edit("seeds", value=[0]), "seeds: is"),
    (edit("prices", "late", value={"value": 1, "low": 0}), 'the key "high" is missing'),
    (edit("prices", "late", value={"value": 3, "low": 0, "high": 1}), "prices.late: is 3"),
    (edit("prices", "late", "low", value=-0.1), "prices.late.low: is -0.1; it must be >= 0"),
    (edit("prices", "drift", value={"value": 1, "low": 0, "high": 2}), "the data are shuffled"),
    (edit("data", value="per-node"), "prices.drift: is for data that differ"),
    (edit("probes", 0, "steps_ratios", value=[1.0, 2.0]), r"probes\[0\].steps_ratios: has 2 numbers for 3 seeds"),
    (edit("probes", 0, "steps_ratios", value=[1.0, 0.0, 2.0]), "must be > 0"),
    (edit("probes", 2, "sha256", value="A5" * 32), r"probes\[2\].sha256"),
    (edit("probes", 0, "consensus_distance", value=float("inf")), "must be a finite number"),
])  # fmt: skip
def test_invalid_pilot_is_rejected_with_its_place(document, message):
    check_error(DocumentError, message, pilot_of, document)


def test_invalid_pilot_file_is_named(tmp_path):
    path = tmp_path / "pilot.json"
    check_error(FileError, r"pilot\.json", load_pilot, path)
    path.write_text('{"format": "partreduce.pilot", "format": "partreduce.pilot"}')
    check_error(DocumentError, r"pilot\.json", load_pilot, path)
