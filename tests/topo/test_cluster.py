"""Cluster values: shapes, the shorthand, what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partreduce import Cluster, Hardware, Link
from partreduce.errors import InputError
from partreduce.topo.cluster import MAX_WORKERS


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4x4", [4] * 4),
        (" 2X3 ", [3, 3]),
        ("2×3", [3, 3]),
        ("3,3,2", [3, 3, 2]),
        ("5", [5]),
        ("2,2", [2, 2]),
        ("1x1", [1]),
    ],
)
def test_parse(text, sizes):
    cluster = Cluster.parse(text)
    assert cluster.node_sizes().tolist() == sizes
    assert cluster.num_workers == sum(sizes)
    assert cluster.is_regular == (len(set(sizes)) == 1)


@pytest.mark.parametrize(
    "text",
    ["", "4x", "x4", "4x4x4", "0x4", "4x0", "3,0", "3,,2", "3, 2", "-1x4", "4.0x4", "٤x٤", "1e3x2", "99999999999x1",
     "2147483648x1", "65536x65536", "2147483647,1", "100000000,1", "4x4\n5", "clusters.yaml"],
)  # fmt: skip
def test_parse_refuses_in_one_line(text):
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
def test_node_and_local_rank_say_the_same_as_the_listing(data):
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


def test_regular_cluster_of_a_billion_workers_costs_nothing():
    cluster = Cluster.parse("500000000x4")
    assert cluster.num_workers == 2_000_000_000 <= MAX_WORKERS
    assert cluster.workers_of(499_999_999) == tuple(range(1_999_999_996, 2_000_000_000))


@pytest.mark.parametrize(
    ("nodes", "words"),
    [([[0, 1], [1]], "worker 1 is listed twice"), ([[0], [2]], "worker 2 is out of range"), ([[0], []], "is empty"),
     ([], "at least 1 node"), ([[0, -1]], "worker -1 is out of range")],
)  # fmt: skip
def test_irregular_refuses(nodes, words):
    with pytest.raises(InputError, match=words):
        Cluster.irregular(nodes)


def test_one_form_only():
    with pytest.raises(InputError, match="not both"):
        Cluster(1, 1, ((0,),))
    with pytest.raises(InputError, match="not neither"):
        Cluster(1, None)


def test_shape_ignores_hardware():
    bare = Cluster.regular(2, 2)
    equipped = Cluster.regular(2, 2, hardware=Hardware(nic=Link.of_bandwidth(5e9)))
    assert equipped.same_shape(bare)
    assert equipped.shape() == bare
    assert bare.shape() is bare
    assert np.array_equal(equipped.node_of(), [0, 0, 1, 1])
