"""What a newcomer meets first: grouped help, a word while planning, and a way out of the usual mix-ups."""

import pytest

from partreduce.__main__ import main
from partreduce.planner.left_out import not_reached

CLUSTER = "num_nodes: 2\nworkers_per_node: 2\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_the_help_of_design_is_grouped(capsys):
    assert main(["design", "--help"]) == 0
    panels = [line.strip("╭─╮ \n") for line in capsys.readouterr().out.splitlines() if line.startswith("╭")]
    assert set(panels[2:]) == {
        "The catalogue", "The model", "The cluster", "How workers may average", "Objective and limits", "Output",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "way_out"),
    [
        ("cluster.yaml", CLUSTER, "it looks like a cluster file; partreduce design cluster.yaml -o schedule.json"),
        ("train.py", "import torch\n", "it looks like a script; partreduce verify train.py:NAME --cluster"),
        ("schedule.json", "{", "ends too early; the file may be cut off"),
    ],
)
def test_a_file_that_is_no_schedule_is_named_for_what_it_looks_like(folder, capsys, name, text, way_out):
    (folder / name).write_text(text)
    assert main(["verify", name]) == 65
    (line,) = capsys.readouterr().err.splitlines()
    assert way_out in line


def test_schedules_of_two_shapes_are_not_compared_and_the_line_says_what_can_be(capsys):
    for shape in ("2x2", "4x4"):
        assert main(["design", shape, "--using", "allreduce", "-o", f"{shape}.json"]) == 0
    capsys.readouterr()
    assert main(["simulate", "2x2.json", "4x4.json"]) == 65
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("4x4.json: is for 4x4, the others are compared on 2x2; compare schedules of one shape, or "
                         "simulate each alone")  # fmt: skip


def test_a_narrow_pipe_gets_one_line_before_the_answer_and_keeps_the_columns_that_decide(capsys):
    assert main(["design", "4", "--effort", "0.2"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    first, second, *rest = said.out.splitlines()
    assert first == "4 is one node of 4 workers; 4x1 would be 4 nodes of one."
    assert second == "Planning; this takes 60 s at most; --time-limit and --effort change it."
    assert not any("Planning" in line for line in rest)
    (header,) = (line.split() for line in rest if line.startswith("schedule "))
    assert {"comm.", "steps", "time"} <= set(header)
    assert any(line.startswith("Too narrow for: ") for line in rest), "at 80 columns others have to leave"


def test_what_time_did_not_reach_is_counted_with_the_way_out():
    assert not_reached({"the catalogue": [], "quorums": []}, 0) == []
    assert not_reached({"the catalogue": ["ring"]}, 0) == [
        "time ran out with 1 schedule unscored; raise --time-limit or --effort: 1 of the catalogue"
    ]
    assert not_reached({"the catalogue": ["ring", "star"], "pairs": ["AD-PSGD"]}, 4) == [
        (
            "time ran out with 7 schedules unscored; raise --time-limit or --effort: 2 of the catalogue, 1 of pairs, "
            "4 that the search found"
        )
    ]
