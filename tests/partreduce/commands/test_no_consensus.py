"""What `verify`, `design` and `partreduce.verify` say where consensus is not guaranteed, and how the commands end."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from partreduce.__main__ import main
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import RefutedError
from partreduce.topo.graphs.named import ring_based
from partreduce.topo.graphs.weights import METHODS
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import NeighborAveraging, Round
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap
from partreduce.topo.strategies.static import GroupPhases, StaticGroups
from partreduce.verify.prove import prove

PARTED = " never average with "


def kept(gap: IterationGap) -> Schedule:
    return Schedule(
        "kept", Cluster.regular(16, 1), NeighborAveraging(rounds=(METHODS["metropolis"](ring_based(16)),), sync=gap)
    )


def backup() -> Schedule:
    return kept(IterationGap(max_ig=4, backup=1))


def groups() -> Schedule:
    phases = GroupPhases((Phase.from_groups(5, [(0, 1), (2, 3, 4)]),))
    return Schedule("apart", Cluster.regular(5, 1), StaticGroups(phases=phases))


def graph() -> Schedule:
    half = Fraction(1, 2)
    edges = [(0, 1, half), (1, 0, half), (2, 3, half), (3, 2, half)]
    return Schedule("two rings", Cluster.regular(4, 1), NeighborAveraging(rounds=(Round.from_edges(4, edges),)))


@pytest.mark.parametrize(
    ("made", "first"),
    [
        (backup, "workers {0,1,7,8,9,15} may never average with {2,3,4,5,6,10,11,12,13,14}"),
        (groups, "workers {0,1} never average with {2,3,4}"),
        (graph, "workers {0,1} never average with {2,3}"),
    ],
)
def test_the_first_line_names_the_sets_that_can_part_and_the_exit_code_is_the_users(made, first, tmp_path, capsys):
    path, proof = tmp_path / "s.json", prove(made())
    write_schedule(path, made())
    assert main(["verify", str(path)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"REFUTED: {first}."
    assert proof.parting_words == f"consensus is not guaranteed: {first}"
    for members in proof.can_part:
        assert "{" + ",".join(map(str, members)) + "}" in said[0]
    assert main(["verify", str(path), "--allow-no-consensus"]) == 0
    assert capsys.readouterr().out.splitlines() == said, "it is said all the same"


@pytest.mark.parametrize(
    ("made", "sets"),
    [(groups, [[0, 1]]), (graph, [[0, 1], [2, 3]])],
)
def test_json_and_python_name_the_same_sets(made, sets, tmp_path, capsys):
    path, proof = tmp_path / "s.json", prove(made())
    write_schedule(path, made())
    assert main(["verify", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    expected = {"verdict": "refuted", "consensus": "not guaranteed", "can_part": sets}
    assert {key: document[key] for key in expected} == expected
    assert {key: proof.to_json()[key] for key in expected} == expected
    assert proof.explain().startswith("consensus is not guaranteed: workers {0,1} never average with ")
    assert PARTED in proof.explain().splitlines()[0]
    with pytest.raises(RefutedError, match="consensus is refuted"):
        proof.require()
    assert proof.without_consensus().require().verdict == "proved"


def test_each_set_of_a_gap_can_do_without_the_other():
    schedule = backup()
    one, other = prove(schedule).can_part
    assert not set(one) & set(other)
    for members in (one, other):
        for worker in members:
            outside = [s for s, t, _ in schedule.strategy.graphs[0].edges() if t == worker and s not in members]
            assert len(outside) <= 1, "its one backup worker"


def test_what_is_refuted_and_not_needed_is_not_called_nothing(tmp_path, capsys):
    """Under staleness the mean is not preserved, and all agree."""
    path = tmp_path / "s.json"
    write_schedule(path, kept(IterationGap(max_ig=4, staleness=5, weights=EdgeWeighting.ITERATION)))
    assert main(["verify", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("PROVED: the models are drawn together. If the program follows its protocol: no deadlock. ")
    assert "Refuted mean-preserved (a property, not needed): " in said
    assert "never average" not in said
    assert main(["verify", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["consensus"] == "guaranteed"


def test_consensus_alone_is_allowed_to_be_missing(tmp_path, capsys):
    """A mean that moves is refuted whatever is allowed."""
    path = tmp_path / "s.json"
    half = Fraction(3, 4)
    edges = [(0, 1, half), (1, 0, Fraction(1, 4)), (2, 3, half), (3, 2, half)]
    write_schedule(
        path, Schedule("lost", Cluster.regular(4, 1), NeighborAveraging(rounds=(Round.from_edges(4, edges),)))
    )
    assert main(["verify", str(path), "--allow-no-consensus"]) == 1
    assert "doubly-stochastic" in capsys.readouterr().out


def test_design_says_first_that_consensus_is_not_guaranteed(tmp_path, capsys):
    path = tmp_path / "s.json"
    links = ["--set", "nic=40MB/s", "--set", "inside=1GB/s", "--set", "compute=50ms", "--set", "jitter=0.3"]
    asked = ["design", "4x2", *links, "--model-bytes", "1MB", "--sync", "iteration_gap"]
    asked += ["--effort", "3", "--time-limit", "1h", "--select", "clustered gap: backup 1, parallel"]
    assert main([*asked, "-o", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Planning")
    assert said[1].startswith("consensus: not guaranteed, steady in simulation (")
    assert f"Next: partreduce verify --allow-no-consensus {path}" in " ".join(said)
    assert any(line.startswith("guarantee") and "REFUTED: workers {" in line for line in said)
    assert main(["verify", str(path)]) == 1
    assert main(["verify", str(path), "--allow-no-consensus"]) == 0
    capsys.readouterr()
    assert main([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["recommendation"]
    assert answer["consensus"] == "not guaranteed, steady in simulation"
    assert answer["verdict"] == "refuted"
