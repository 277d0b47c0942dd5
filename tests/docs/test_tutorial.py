"""What docs/tutorial.md shows is printed, wherever neither this machine's speed nor a search decides it."""

import json
import re
import shlex
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
ROW = re.compile(
    r"^(allreduce\S*(?: \w+)*?)(?: \*)? {2,}\d+ +(\S+ \S+) +(\S+ \S+) +\S+ +\S+ +(\S+) +\S+ \S+ +catalogue$"
)


def shown() -> list[tuple[str, list[str]]]:
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


def test_the_planner_still_predicts_what_the_page_shows(folder, capsys):
    """Of the catalogue's entries, that is; what the search finds depends on the time that it has."""
    assert main(["design", "cluster.yaml", "--optimizer", "any", "--effort", "0.5", "--json"]) == 0
    front = {option["name"]: option for option in json.loads(capsys.readouterr().out)["front"]}
    assert main(["design", "cluster.yaml", "--optimizer", "any", "--effort", "0.5"]) == 0
    (table,) = (lines for command, lines in shown() if command.startswith("partreduce design cluster.yaml"))
    rows = [match.groups() for line in table if (match := ROW.match(line))]
    assert len(rows) == 4
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    told = [line for line in table if line.startswith(("schedule ", "Recommendation "))]
    assert len(told) == 2
    assert {" ".join(line.split()) for line in told} <= printed
    for name, communication, step, steps in rows:
        option = front[name]
        told = (option["communication_seconds_per_step"], option["step_seconds"], option["steps_ratio"])
        assert f"{told[0] * 1e3:.4g} ms" == communication
        assert f"{told[1] * 1e3:.4g} ms" == step
        assert f"{told[2]:.3f}" == steps
