"""docs/how-to/two-levels.md as a reader follows it: commands print what is shown, and the script ends and resumes."""

import re
import shlex
from pathlib import Path

import pytest

from helpers.warm import WARM

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/two-levels.md").read_text(encoding="utf-8")
NAMES_OTHER_MACHINES = "--nnodes"


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_every_command_of_the_page_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "two-regions.yaml").write_text((ROOT / "examples/two-regions.yaml").read_text())
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (script,) = (text for language, text in blocks if language == "python")
    (tmp_path / "train.py").write_text(script)
    seen = 0
    for block in (text for language, text in blocks if not language):
        for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = piece.strip().splitlines()
            if NAMES_OTHER_MACHINES in command:
                continue
            done = WARM.run(*shlex.split(command), cwd=tmp_path)
            assert done.returncode == 0, (command, done.stderr)
            printed = [" ".join(line.split()) for line in done.stdout.splitlines()]
            assert [line for line in lines if line not in printed] == [], (command, printed)
            seen += len(lines)
    assert seen == 8
    assert f"takes {re.search(r'All-Reduce over all (8.9) s', PAGE).group(1)} s a step" in (
        ROOT / "docs/how-to/regions.md"
    ).read_text(encoding="utf-8")


def test_the_steps_that_the_page_promises_are_those_of_the_measured_table():
    table = (ROOT / "benchmarks/results/steps_to_loss_outer.md").read_text(encoding="utf-8")
    (header,) = (line.split("|") for line in table.splitlines() if line.startswith("| outer step"))
    adam = [place for place, name in enumerate(header) if name.strip().endswith("/adam")]
    rows = [line.split("|") for line in table.splitlines() if re.match(r"\| nodes, all every (15|30), 0\.5 ", line)]
    found = [float(row[place]) for row in rows for place in adam]
    assert (len(rows), len(found)) == (2, 6)
    assert f"needed {min(found)} to {max(found)} times the steps of All-Reduce under Adam" in PAGE
