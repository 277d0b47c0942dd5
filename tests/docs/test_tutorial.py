"""What docs/tutorial.md shows is printed, wherever neither this machine's speed nor a search decides it."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from partreduce.__main__ import main

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
SHOWN = (
    "partreduce show",
    "partreduce verify schedule",
    "partreduce simulate",
    "partreduce simulate",
    "partreduce design 2x2 --build",
)
ROW = re.compile(r" {2,}\d+ +(\S+ \S+) +(\S+ \S+) +\S+ +\S+ +(\S+) +\S+ \S+ +catalogue$")


def shown():
    """Every command of the page with the lines that it is shown to print."""
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    pieces = [piece.split("\n") for block in blocks for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command.partition("  #")[0].strip(), lines) for command, *lines in pieces]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the page's cluster file, in which its commands run at 120 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("cluster.yaml").write_text(
        "\n".join(next(lines for command, lines in shown() if command == "cat cluster.yaml"))
    )
    return tmp_path


def test_commands_that_neither_measure_nor_search_print_what_the_page_shows(folder, capsys):
    seen = 0
    for command, lines in shown():
        if command.startswith(SHOWN):
            assert main(shlex.split(command)[1:]) == 0
            printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
            for line in filter(None, (" ".join(line.split()) for line in lines)):
                if "…" not in line:
                    assert line in printed, command
                    seen += 1
    assert seen > 25


def test_the_planner_still_answers_what_the_page_shows(folder, capsys):
    """A quick answer's effort is counted, so that it is the same each time."""
    asked = ["design", "cluster.yaml"]
    assert main([*asked, "-o", "best.json", "--all"]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    blocks = [lines for command, lines in shown() if command.startswith("partreduce design cluster.yaml")]
    answer, table = ([line for line in lines if line not in {"", "…"}] for lines in blocks)
    assert [line for line in answer if line not in printed] == [
        "--all lists the alternatives, --explain gives all reasons."
    ]
    assert answer[0].startswith("Recommendation for 2x2: ")
    assert len(answer) > 25
    assert set(table) <= set(printed)
    assert main([*asked, "--json"]) == 0
    front = {option["name"]: option for option in json.loads(capsys.readouterr().out)["front"]}
    seen = 0
    for line, below in pairwise(table):
        if match := ROW.search(line):
            name = below if below.startswith("  ") else table[table.index(below) + 1]
            option = front[name.strip()]
            told = (option["communication_seconds_per_step"], option["step_seconds"], option["steps_ratio"])
            assert match.groups() == (f"{told[0] * 1e3:.4g} ms", f"{told[1] * 1e3:.4g} ms", f"{told[2]:.3f}")
            seen += 1
    assert seen == 4


def test_the_schedule_that_the_page_breaks_is_refuted_as_it_shows(folder, capsys):
    (design,) = (command for command, _ in shown() if command.startswith('partreduce design 2x2 --build "node'))
    assert main(shlex.split(design)[1:]) == 0
    raw = json.loads(Path("schedule.json").read_text())
    assert [block["across"] for block in raw["strategy"]["phases"][-1]] == [[0]]
    raw["strategy"]["phases"][-1][0]["across"] = []
    Path("mine.json").write_text(json.dumps({**raw, "name": "mine"}))
    capsys.readouterr()
    ((command, lines),) = (pair for pair in shown() if pair[0].startswith("partreduce verify mine.json"))
    assert main(shlex.split(command)[1:]) == 1
    assert [line for line in lines if line and line != "…"] == capsys.readouterr().out.splitlines()[:2]
