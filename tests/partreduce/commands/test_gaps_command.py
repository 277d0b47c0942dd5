"""`partreduce verify --gaps`: inputs, JSON, exit codes and pictures."""

from __future__ import annotations

import json
from fractions import Fraction

import networkx as nx
import pytest

from helpers.command_runs import runner
from partreduce.commands.verify import command
from partreduce.graph_input import load_gap_graph
from partreduce.schedulers.imports import import_schedule
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.errors import DocumentError, InputError, UnknownError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Neighbor, Round
from partreduce.topo.strategies.gap import Gap, Order

KEYS = ["paper_bound", "exact_bound", "attained", "update_queue_capacity", "token_queue_capacity", "live"]


run = runner(command)


def test_json_has_exactly_the_promised_keys():
    result = run("directed-ring:3", "--set", "max-ig=1", "--json")
    document = json.loads(result.stdout)
    assert list(document) == KEYS
    assert document["exact_bound"] == document["attained"] == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert document["update_queue_capacity"] == [[None, None, 2], [2, None, None], [None, 2, None]]
    assert document["token_queue_capacity"] == [[None, None, 2], [2, None, None], [None, 2, None]]
    assert document["live"] is True


def test_unbounded_pairs_are_null_and_nothing_is_explored_on_request():
    document = json.loads(run("ring:4", "--set", "backup=1", "--json").stdout)
    assert document["exact_bound"][0] == document["attained"][0] == [0, None, None, None]
    assert json.loads(run("ring:4", "--json", "--max-states", "0").stdout)["attained"] is None


def test_a_dead_setting_ends_with_1_and_names_the_circle():
    result = run("directed-ring:3", "--set", "max-ig=0")
    assert result.return_value == 1
    assert "enter 0" in result.stdout


def test_people_see_paper_exact_and_attained_side_by_side():
    shown = run("ring:6", "--set", "notify-ack=yes").stdout
    assert "paper" in shown
    assert "exact" in shown
    assert "attained" in shown
    assert "all 2785 states explored" in shown


def test_a_condition_to_jump_lets_no_gap_grow_and_is_said():
    settings = [word for key in ("max-ig=2", "staleness=1", "skip=2") for word in ("--set", key)]
    shown, conditioned = (run("ring:3", *settings, *more).stdout for more in ([], ["--set", "behind=4"]))
    assert "skips up to 2 from 4 behind" in conditioned
    assert "attained" in shown
    assert conditioned.replace(" from 4 behind", "").splitlines()[:9] == shown.splitlines()[:9], "the same bounds"


def test_edge_lists_node_links_and_names_give_the_same_graph(tmp_path):
    made = nx.DiGraph([(0, 1), (1, 2), (2, 0)])
    edges, named, links = tmp_path / "edges.txt", tmp_path / "named.txt", tmp_path / "links.json"
    edges.write_text("# three workers\n0 1\n1 2 {'weight': 3}\n2 0\n")
    named.write_text("a,b\nb,c\nc,a\n")
    links.write_text(json.dumps(nx.node_link_data(made, edges="edges")))
    ring = load_gap_graph("directed-ring:3")[0]
    assert load_gap_graph(str(edges), directed=True)[0] == load_gap_graph(str(named), directed=True)[0] == ring
    assert load_gap_graph(str(links))[0] == ring
    assert (
        load_gap_graph(str(edges))[0] == Digraph.undirected(3, [(0, 1), (1, 2), (2, 0)]) == load_gap_graph("ring:3")[0]
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0\n", "line 1"),
        ("", "is empty"),
        ("7 7\n", "fewer than 2"),
        ('{"nodes": [{"id": 0}], "edges": [{"source": 0, "target": 7}]}', r"edges\[0\]"),
        ('{"nodes": [{"id": 0}, {"id": 0}], "edges": []}', "share an id"),
        ('{"nodes": [{}], "edges": []}', r"nodes\[0\]"),
        ('{"nodes": 3, "edges": []}', "node-link"),
        ('{"nodes": [{"id": 0}, {"id": 0}', "graph"),
    ],
)
def test_broken_graph_files_are_one_line(tmp_path, content, words):
    path = tmp_path / "graph"
    path.write_text(content)
    with pytest.raises(DocumentError, match=words) as caught:
        load_gap_graph(str(path))[0]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "format_"),
    [
        ("0\n", "edge-list"),
        ("0 1\n0 1 2 3\n", "edge-list"),
        ("# nothing\n", "edge-list"),
        ("", "edge-list"),
        ('{"nodes": [{"id": 0}], "edges": [{"source": 0, "target": 7}]}', "node-link"),
        ('{"nodes": [{"id": 0}, {"id": 0}], "links": []}', "node-link"),
        ('{"nodes": [{"id": true}], "links": []}', "node-link"),
        ('{"nodes": [{"id": 0}, {"id": 1}], "directed": "false", "links": []}', "node-link"),
        (
            '{"nodes": [0, 1], "links": [{"source": 0, "target": 1}, {"source": 1, "target": 0}]}',
            "node-link",
        ),
        ('{"nodes": [0, 1]}', "node-link"),
    ],
)
def test_gaps_and_import_refuse_a_broken_graph_in_the_same_words(tmp_path, content, format_):
    path = tmp_path / "graph"
    path.write_text(content)
    with pytest.raises(DocumentError) as imported:
        import_schedule(path, format=format_)
    with pytest.raises(DocumentError) as read:
        load_gap_graph(str(path))[0]
    assert (read.value.place, read.value.problem) == (imported.value.place, imported.value.problem)


@pytest.mark.parametrize("directed", [False, True])
def test_gaps_and_import_read_the_same_edges_in_the_same_direction(tmp_path, directed):
    """An edge 0→1 means that 0 sends to 1; without a direction both send. Weights do not matter to gaps."""
    edges = [(0, 1), (1, 2), (2, 0), (0, 3), (3, 2), (1, 3)] if directed else [(0, 1), (1, 2), (2, 3)]
    graph = (nx.DiGraph if directed else nx.Graph)(edges)
    lines, links, distances = tmp_path / "lines.txt", tmp_path / "links.json", tmp_path / "distances.json"
    lines.write_text("\n".join(f"{a} {b}" for a, b in edges))
    links.write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    nx.set_edge_attributes(graph, 7.5, "weight")
    distances.write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    arcs = tuple(sorted(set(edges) | (set() if directed else {(b, a) for a, b in edges})))
    assert load_gap_graph(str(lines), directed=directed)[0].edges == arcs
    assert load_gap_graph(str(links))[0].edges == load_gap_graph(str(distances))[0].edges == arcs
    for path, options in ((lines, {"directed": directed}), (links, {})):
        round_ = import_schedule(path, weights="uniform", **options).strategy.rounds[0]
        assert tuple(sorted((a, b) for a, b, _ in round_.edges())) == arcs


@pytest.mark.parametrize("text", ["nosuch:4", "nosuch", "ring-based:7", "ring:1", "double-ring:6"])
def test_unknown_graphs_say_what_there_is(text):
    with pytest.raises(InputError) as caught:
        load_gap_graph(text)[0]
    assert "\n" not in str(caught.value)


def test_a_schedule_that_keeps_a_gap_is_bounded_as_it_runs_unless_options_ask_otherwise(tmp_path):
    """Where a file says how it keeps a gap, the bounds of the standard setting would be those of no run of it."""
    half = Fraction(1, 2)
    rounds = (Round.from_edges(3, [(0, 1, half), (1, 2, half), (2, 0, half)]),)
    when = Gap(max_ig=5, staleness=4, order=Order.PARALLEL)
    schedule = Schedule("kept", Cluster.regular(3, 1), Neighbor(rounds=rounds, when=when))
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(dump_schedule(schedule)))
    for graph, asked, same in (
        (str(path), [], ["--set", "max-ig=5", "--set", "staleness=4"]),
        (str(path), ["--set", "max-ig=1"], ["--set", "max-ig=1"]),
    ):
        found = run(graph, "--gaps", *asked, "--json", "--max-states", "0")
        assert found.stdout == run("directed-ring:3", *same, "--json", "--max-states", "0").stdout


def test_bad_options_are_input_errors():
    with pytest.raises(InputError, match="--set backup"):
        run("ring:4", "--set", "backup=x")
    with pytest.raises(UnknownError, match="1024"):
        run("ring:2000")
