"""Files of other tools: formats, weights, notes, and refusals of invalid files."""

import contextlib
import json
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from helpers.exact_matrices import exact_matrix
from helpers.graphs import theirs
from helpers.refusals import check_error
from partreduce import Cluster, import_schedule
from partreduce.errors import FileError, InputError, ScheduleError
from partreduce.schedulers import registry
from partreduce.schedulers.imports import formats, from_networkx
from partreduce.schedulers.imports.exact import balance_weights, exact
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.graphs.named import exponential, ring
from partreduce.topo.graphs.weights import weigh


def dense(round_):
    return exact_matrix(round_.num_workers, edges=round_.edges()).astype(float)


RING = weigh(ring(6))


def ring_files(tmp_path):
    """Write the ring of 6 in every graph format."""
    graph = theirs(ring(6))
    directory = tmp_path
    (directory / "a.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    (directory / "b.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    nx.write_graphml_xml(graph, directory / "c.graphml")
    nx.write_edgelist(graph, directory / "d.txt", data=False)
    np.save(directory / "e.npy", ring(6).adjacency())
    np.save(directory / "j.npy", dense(RING))
    weighted = nx.from_numpy_array(dense(RING), create_using=nx.DiGraph)
    (directory / "l.json").write_text(json.dumps(nx.node_link_data(weighted, edges="links")))
    (directory / "m.txt").write_text("# a ring\n" + "\n".join(f"{a} {b} 0.333333333" for a, b in graph.edges))
    return sorted(directory.iterdir())


def test_every_graph_format_reads_the_same_ring(tmp_path):
    for path in ring_files(tmp_path):
        schedule = import_schedule(path)
        assert schedule.strategy.rounds == (RING,), path.name
        assert schedule.cluster == Cluster.regular(6, 1)
        assert schedule.name == path.stem


def test_formats_can_be_named(tmp_path):
    names = ["node-link", "node-link", "graphml", "edge-list", "npy"]
    for path, name in zip(ring_files(tmp_path), names, strict=False):
        anonymous = tmp_path / "data"
        anonymous.write_bytes(path.read_bytes())
        assert import_schedule(anonymous, format=name).strategy.rounds == (RING,)
    assert set(names) <= set(formats())


def test_cluster_and_weights_are_options(tmp_path):
    path = tmp_path / "path.txt"
    path.write_text("0 1\n1 2\n2 3\n")
    schedule = import_schedule(path, cluster=Cluster.parse("2x2"), weights="best-constant")
    assert schedule.cluster == Cluster.parse("2x2")
    assert schedule.strategy.rounds[0].weights == (Fraction(1, 2),)
    with pytest.raises(ScheduleError, match="cluster 3x2: has 6 workers, 'path' is for 4; name a cluster of 4"):
        import_schedule(path, cluster=Cluster.parse("3x2"))


def test_directed_edge_list(tmp_path):
    path = tmp_path / "cycle.txt"
    path.write_text("0 1\n1 2\n2 0\n")
    round_ = import_schedule(path, directed=True).strategy.rounds[0]
    assert list(round_.edges()) == [(2, 0, Fraction(1, 2)), (0, 1, Fraction(1, 2)), (1, 2, Fraction(1, 2))]


def test_networkx_graphs_with_any_node_names():
    schedule = from_networkx(nx.petersen_graph(), name="petersen")
    assert schedule.strategy.rounds[0].weights == (Fraction(1, 4),)
    assert from_networkx(nx.relabel_nodes(nx.path_graph(3), {0: "a", 1: "b", 2: "c"})).num_workers == 3
    check_error(ScheduleError, "multigraph", from_networkx, nx.MultiGraph([(0, 1), (0, 1)]))
    graph = nx.Graph([(0, 1), (1, 2)])
    graph[0][1]["weight"] = 0.5
    check_error(ScheduleError, "edge 1→2: has no weight", from_networkx, graph)


def bluefog_exponential(n):
    """Return BlueFog's ExponentialTwoGraph as a weighted DiGraph: equal weights on hops 0, 1, 2, 4, …"""
    hops = [0] + [2**k for k in range((n - 1).bit_length())]
    graph = nx.DiGraph()
    graph.add_weighted_edges_from((i, (i + hop) % n, 1 / len(hops)) for i in range(n) for hop in hops)
    return graph


@pytest.mark.parametrize("n", [6, 8, 13, 16])
def test_bluefog_weighted_digraph_is_the_static_exponential_graph(n):
    assert from_networkx(bluefog_exponential(n)).strategy.rounds == (weigh(exponential(n)),)


def test_partreduce_schedules_import_unchanged(tmp_path):
    schedule = registry.build("prague-figure-10", Cluster.parse("4x4"))
    write_schedule(tmp_path / "s.json", schedule)
    assert import_schedule(tmp_path / "s.json") == schedule


BAD = [
    ("two.txt", "0 1\n2 3\n", "workers 0 and 2 do not reach each other"),
    ("neg.txt", "0 1 -0.5\n", "line 1: weight -0.5 is negative"),
    ("nan.txt", "0 1 nan\n", "is not finite"),
    ("word.txt", "0 1 x\n", "is not a number"),
    ("mixed.txt", "0 1\n1 2 0.5\n", "line 2: give all edges a weight"),
    ("rank.txt", "0 b\n", "line 1: 'b' is not a rank"),
    ("four.txt", "0 1 2 3\n", "format is not recognized"),
    ("from1.txt", "1 2\n2 1\n", "no edge of rank 0, the lowest is 1; ranks count from 0: subtract 1"),
    ("empty.txt", "", "empty.txt: is empty; the file may be cut off"),
    ("a.npy", "hello", "is not a NumPy array file"),
    ("a.graphml", "<graphml", "is not GraphML"),
    ("b.graphml", '<!DOCTYPE x [<!ENTITY a "b">]><graphml/>', "declares a document type"),
    ("c.graphml", "<graphml/>", "is not GraphML"),
    ("a.json", "{}", "JSON without `nodes`"),
    ("b.json", '{"nodes": [{"id": 0}]}', "no list `links`"),
    ("c.json", '{"nodes": [{"id": 0}, {"id": 1}], "links": [{"source": 0, "target": 7}]}', r"links\[0\]: needs"),
    ("d.json", '{"nodes": [{"id": 0}, {"id": 1}], "links": [{"source": 0, "target": 1, "weight": -1}]}', "negative"),
    ("e.json", '{"nodes": [{}], "links": []}', r"nodes\[0\]: has no `id`"),
    ("j.json", '{"nodes": [0, 1, 0], "links": [{"source": 0, "target": 1}]}', r"nodes\[2\]: two nodes share an id, 0"),
    ("k.json", '{"nodes": [0, 1], "directed": "false", "links": []}', 'directed: is "false"'),
    ("i.json", '{"nodes": [', "is not JSON|ends too early"),
]


MATRICES = [
    ([[0.5, 0.4], [0.5, 0.5]], "row 0: sums to 0.9"),
    ([[0, -1], [-1, 0]], r"entry \[0, 1\]: is -1"),
    ([[0, 1, 1]], "is 1x3; a matrix over workers is square"),
]


@pytest.mark.parametrize(("rows", "problem"), MATRICES)
def test_invalid_matrices_are_refused_in_one_line(tmp_path, rows, problem):
    np.save(tmp_path / "a.npy", np.array(rows, dtype=float))
    check_error(InputError, problem, import_schedule, tmp_path / "a.npy")


@pytest.mark.parametrize(("name", "text", "problem"), BAD, ids=[case[0] for case in BAD])
def test_invalid_files_are_refused_in_one_line(tmp_path, name, text, problem):
    path = tmp_path / name
    path.write_text(text)
    assert check_error(InputError, problem, import_schedule, path).exit_code == 65


@pytest.mark.parametrize("suffix", ["json", "graphml", "npy", "txt"])
def test_truncated_files_raise_only_input_errors(tmp_path, suffix):
    source = next(path for path in ring_files(tmp_path) if path.suffix == "." + suffix)
    data = source.read_bytes()
    for end in range(0, len(data), max(1, len(data) // 60)):
        path = tmp_path / f"cut.{suffix}"
        path.write_bytes(data[:end])
        with pytest.raises(InputError) if end == 0 else contextlib.suppress(InputError):
            import_schedule(path)


def test_missing_files_and_unknown_formats_are_refused(tmp_path):
    with pytest.raises(FileError):
        import_schedule(tmp_path / "absent.json")
    path = tmp_path / "a.txt"
    path.write_text("0 1\n")
    with pytest.raises(ScheduleError, match=r"format 'graphmll': is not one of .*did you mean graphml"):
        import_schedule(path, format="graphmll")
    path.write_text("0 1 0.5\n1 0 0.5\n")  # the file has weights
    check_error(ScheduleError, "weights: 'nope' is not one of", import_schedule, path, weights="nope")
    check_error(ScheduleError, "it takes directed", import_schedule, path, k=3)


def test_edge_lists_written_by_networkx_are_read(tmp_path):
    graph = nx.cycle_graph(6)
    nx.write_edgelist(graph, tmp_path / "plain.edgelist")
    assert len(import_schedule(tmp_path / "plain.edgelist").strategy.rounds[0]) == 12
    nx.set_edge_attributes(graph, 0.25, "weight")
    nx.write_edgelist(graph, tmp_path / "weighted.edgelist")
    assert import_schedule(tmp_path / "weighted.edgelist").strategy.rounds[0].weights == (Fraction(1, 4),)


# Imports keep the weights of the file and note every change. References are computed by NumPy


def base_2_of_6(dtype=np.float32):
    """Return the matrices of the Base-(k+1) paper's figure for 6 workers and one partner."""
    rounds = [
        [(0, 1, 1 / 2), (2, 3, 1 / 2), (4, 5, 1 / 2)],
        [(0, 2, 1 / 2), (1, 3, 1 / 2)],
        [(0, 4, 2 / 3), (2, 5, 2 / 3)],
        [(0, 1, 1 / 2), (2, 3, 1 / 2)],
        [(0, 2, 1 / 2), (1, 3, 1 / 2)],
    ]
    stack = np.zeros((len(rounds), 6, 6), dtype=dtype)
    for matrix, pairs in zip(stack, rounds, strict=True):
        np.fill_diagonal(matrix, 1)
        for a, b, share in pairs:
            matrix[a, b] = matrix[b, a] = share
            matrix[a, a] = matrix[b, b] = 1 - share
    return stack


def product(matrices):
    result = np.eye(len(matrices[0]))
    for matrix in matrices:
        result = matrix @ result
    return result


@pytest.mark.parametrize("form", ["npy", "json", "npy by name"])
def test_matrix_stack_becomes_one_round_per_matrix(tmp_path, form):
    stack = base_2_of_6()
    path = tmp_path / ("w.json" if form == "json" else "w.npy")
    if form == "json":
        path.write_text(json.dumps({"n_nodes": 6, "w_list": stack.tolist()}))
    else:
        np.save(path, stack)
    schedule = import_schedule(path, format="npy" if form == "npy by name" else None)
    rounds = [dense(round_) for round_ in schedule.strategy.rounds]
    assert schedule.name == "w"
    assert len(rounds) == len(stack)
    assert max(np.abs(ours - theirs).max() for ours, theirs in zip(rounds, stack, strict=True)) < 1e-7
    # The product of the 32-bit matrices is the mean only up to rounding; the recognized fractions give it exactly.
    assert np.abs(product(stack.astype(np.float64)) - 1 / 6).max() > 1e-9
    assert np.abs(product(rounds) - 1 / 6).max() < 1e-15
    assert {w for round_ in schedule.strategy.rounds for w in round_.weights} == {Fraction(1, 2), Fraction(2, 3)}


@pytest.mark.parametrize("seed", range(5))
def test_random_doubly_stochastic_stacks_are_imported(tmp_path, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 9))
    stack = np.stack(
        [sum(c * np.eye(n)[rng.permutation(n)] for c in rng.dirichlet(np.ones(4))) for _ in range(4)]
    ).astype(rng.choice([np.float32, np.float64]))
    np.save(tmp_path / "w.npy", stack)
    notes = []
    rounds = [
        exact_matrix(n, edges=r.edges()) for r in import_schedule(tmp_path / "w.npy", notes=notes).strategy.rounds
    ]
    assert max(np.abs(a.astype(float) - b).max() for a, b in zip(rounds, stack, strict=True)) < 3e-7
    assert all((matrix.sum(axis=0) == 1).all() for matrix in rounds)
    assert any("sends as much as it receives" in note for note in notes)


def test_balanced_weights_are_unchanged():
    unequal = [Fraction(1, 2), Fraction(1, 3)]
    assert balance_weights(2, [0, 1], [1, 0], unequal) == unequal


def test_invalid_stacks_are_refused_with_the_round(tmp_path):
    path = tmp_path / "w.npy"
    stack = base_2_of_6(np.float64)
    stack[3, 2] *= 2
    np.save(path, stack)
    check_error(ScheduleError, "round 3: row 2: sums to 2", import_schedule, path)
    np.save(path, np.ones((2, 3, 4)))
    check_error(InputError, "is 3x4; a matrix over workers is square", import_schedule, path)
    np.save(path, np.ones((2, 3, 3)))
    check_error(ScheduleError, "a stack holds mixing weights", import_schedule, path)
    other = tmp_path / "w.json"
    other.write_text('{"w_list": [[[1, 0], [0]]]}')
    check_error(InputError, "w_list: is not a list of matrices of one size", import_schedule, other)
    other.write_text('{"w_list": [[1, 0], [0, 1]]}')
    check_error(InputError, "is 2x2; a stack is", import_schedule, other)


@pytest.mark.parametrize("denominator", [3, 5, 6, 7, 12, 48, 100, 997, 1000])
def test_simple_fractions_survive_float32_and_decimals(denominator):
    for numerator in range(1, denominator):
        fraction = Fraction(numerator, denominator)
        single = np.float32(float(fraction))
        assert exact(float(single), "here") == fraction
        assert exact(str(single), "here") == fraction
        assert exact(float(fraction), "here") == fraction


def test_other_numbers_are_not_rounded_to_simple_fractions():
    """64-bit numbers change by less than 1e-8; few random 32-bit ones are near a simple fraction."""
    rng = np.random.default_rng(0)
    numbers = rng.random(2000)
    assert max(abs(exact(x, "here") - Fraction(x)) for x in numbers) < Fraction(1, 10**8)
    moved = [x for x in numbers.astype(np.float32).astype(float) if abs(exact(x, "here") - Fraction(x)) > 1e-8]
    assert len(moved) < 60


def test_recognized_fractions_and_repairs_are_noted(tmp_path):
    notes, path = [], tmp_path / "w.npy"
    np.save(path, base_2_of_6())
    import_schedule(path, notes=notes)
    assert any(note.startswith("8 weights were read as the nearest simple fraction, such as") for note in notes)
    assert any("such as 1/3 for 0.3333333432674408 (entry [0, 0])" in note for note in notes)
    notes.clear()
    np.save(path, base_2_of_6(np.float64))
    import_schedule(path, notes=notes)
    assert notes == []
    (tmp_path / "w.txt").write_text("0 1 0.333333333\n1 0 0.333333333\n")
    import_schedule(tmp_path / "w.txt", notes=notes)
    assert notes.pop() == "2 weights were read as the nearest simple fraction, such as 1/3 for 0.333333333 (line 1)"
    ring = np.roll(np.eye(5), 1, axis=1) / 2 + np.eye(5) / 2
    ring[0] = [0.5 + 4e-8, 0.5 - 4e-8, 0, 0, 0]
    np.save(path, ring)
    round_ = import_schedule(path, notes=notes).strategy.rounds[0]
    changes = np.abs(dense(round_) - ring)
    assert [note.split(",")[0] for note in notes] == [f"the weights of 1 edge changed by up to {changes.max():.2g}"]
