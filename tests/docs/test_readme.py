"""Output and numbers in the README and the tutorial match the commands and the results."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from benchmarks.lab.results import draw_front, front_rows
from benchmarks.papers import page, rows
from helpers.command_runs import ran
from helpers.pages import blocks, commands
from helpers.warm import WARM
from partreduce import Cluster, Schedule, write_schedule
from partreduce.__main__ import main
from partreduce.strategies import AllReduce, GroupPhases, PartialAllReduce, Phase, StaticGroups

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks/results"
MEASURED = {
    ("slow network", 3): ("lab-front", "planner's recommendation"),
    ("slow network", 4): ("lab-front", "torch post-local SGD 32"),
    ("slow network", 5): ("lab-front", "hierarchical, overlapped (baseline)"),
    ("the same, int8 between nodes", 3): ("lab-front", "node-then-all 23, hierarchical, int8"),
    ("the same, int8 between nodes", 4): ("lab-front", "torch post-local SGD 32"),
    ("the same, int8 between nodes", 5): ("lab-peers", "hierarchical, int8"),
    ("one worker 5× slower", 3): ("lab-quick-answers", "**recommendation**"),
    ("one worker 5× slower", 4): ("lab-quick-answers", "without it: PyTorch's post-local SGD, every 16"),
    ("one worker 5× slower", 5): ("lab-peers-slow", "hierarchical, overlapped (baseline)"),
    ("regions, int4 DiLoCo", 3): ("long_regions", "regions as replicas, outer steps every 15 in 4 bits, AdamW"),
    ("regions, int4 DiLoCo", 4): ("long_regions", "DiLoCo, every 15, 4 bits, AdamW"),
    ("regions, int4 DiLoCo", 5): ("long_regions", "All-Reduce in each step, AdamW"),
}
"""Row and column of the README's table, and the result file and row that hold the number."""


def cell_of(name, row, column):
    """Return a cell of a table in a result file."""
    lines = (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    (found,) = (cells for cells in table if cells[1] == row)
    return found[table[0].index(column)]


@pytest.mark.parametrize(("job", "column"), MEASURED)
def test_readme_table_matches_the_linked_results(job, column):
    name, row = MEASURED[job, column]
    titles = {"long_regions": "final loss", "lab-quick-answers": "40 Mbit/s, one 5 times slower"}
    (line,) = (line for line in README.splitlines() if re.match(rf"\| \[?{re.escape(job)}[\]\s]", line))
    found = re.fullmatch(r"\[([\d.]+)\]\(benchmarks/results/([\w-]+)\.md\).*", line.split("|")[column + 1].strip())
    number = median(
        map(float, cell_of(name, row, titles.get(name, "seconds to target")).partition(" [")[0].split(", "))
    )
    assert found.groups() == (f"{number:.{len(found[1].partition('.')[2])}f}", name)


def test_bytes_and_embedding_gain_of_the_readme_match_the_results():
    (ours, workers), whole = (
        [float(cell_of("long_regions", row, "MB out of a region and step")) for row in rows]
        for rows in (
            [MEASURED["regions, int4 DiLoCo", column][1] for column in (3, 4)],
            [MEASURED["regions, int4 DiLoCo", 5][1]],
        )
    )
    assert ours == workers
    assert README.count(f"[1/{whole[0] / ours:.0f}](benchmarks/results/long_regions.md)") == 2
    key = ("Hybrid over the better of TF-PS and Horovod", "language, 4x4: hybrid")
    (row,) = (row for row in rows.read("parallax").rows if row.key == key)
    assert f"[{page.measured_words(row).split('×')[0]}](benchmarks/results/papers/parallax.md)" in README


def test_caption_of_the_readme_matches_the_runs_of_the_picture():
    steps = {round(row.steps) for row in front_rows()}
    assert f"{min(steps)} to {max(steps)} steps to the target" in README
    assert [len(row.cells) for row in front_rows()] == [2, 2, 3, 3, 8]
    assert "Medians of three to eight runs of 3 seeds (DDP: two)" in README
    theirs, own = (row.reached(1) for row in front_rows()[-2:])
    assert f"{min(theirs):.1f} to {max(theirs):.1f} s against our {min(own):.1f} to {max(own):.1f} s" in README
    assert 0.9 < median(theirs) / median(own) < 1.1, "as fast"


def test_quickstart_commands_print_the_shown_output(tmp_path):
    seen = 0
    for command, lines in commands(README):
        done = WARM.run(*shlex.split(command), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        printed = iter(line.rstrip() for line in done.stdout.splitlines())
        shown_lines = [line for line in lines if line != "…"]
        assert [line for line in shown_lines if line not in printed] == [], done.stdout  # in this order
        seen += len(shown_lines)
    assert seen == 9


def test_readme_stays_within_its_word_limit():
    assert sum(bool(re.search(r"\w", word)) for word in README.split()) <= 1100


def test_readme_picture_shows_the_medians_of_the_results(tmp_path):
    draw_front(tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").stat().st_size < 200_000
    (alternative,) = re.findall(r"^!\[(.*)\]\(docs/pictures/loss-over-seconds.svg\)$", README, re.MULTILINE)
    assert re.findall(r"[\d.]+ s\b", alternative) == [f"{row.seconds:.1f} s" for row in reversed(front_rows())]


SETTING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(90, 4), torch.randn(90, 1))
model = torch.nn.Linear(4, 1)
def compute_loss(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
"""


def script_of_the_readme():
    (diff,) = blocks(README, "diff")
    lines = [line[1:] for line in diff.splitlines() if not line.startswith("-")]
    return "\n".join([SETTING, *lines, "print(optimizer.round, optimizer.steps, 'done')"])


@pytest.mark.parametrize(("strategy", "ends"), [
    (StaticGroups(phases=GroupPhases((Phase.from_groups(3, [range(3)]),)), steps_per_round=(3, 1, 2)),
        {"10 30", "10 10", "10 20"}),
    (AllReduce(sync=PartialAllReduce(quorum=2)), None),
])  # fmt: skip
def test_readme_script_runs_with_steps_per_round_and_quorum(tmp_path, strategy, ends):
    """In real processes all workers end together, with a quorum when the last worker ends."""
    write_schedule(tmp_path / "schedule.json", Schedule("readme", Cluster.regular(1, 3), strategy))
    (tmp_path / "train.py").write_text(script_of_the_readme())
    done = WARM.run("partreduce", "run", "--workers", "3", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = set(re.findall(r"(\d+ \d+) done", done.stdout))
    assert found == ends if ends else len(found) == 1


def test_all_reduce_is_recommended_for_a_homogeneous_cluster(capsys):
    arguments = ["design", "1x8", "--set", "inside=300GB/s", "--model-bytes", "100MB", "--effort", "quick", "--json"]
    assert json.loads(ran(capsys, arguments).out)["recommendation"]["name"] == "allreduce"


def test_errors_of_the_sharded_models_guide_exist_in_the_runtime():
    guide = (ROOT / "docs/how-to/sharded-models.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "partreduce" / "runtime").rglob("*.py")]
    quoted = re.findall(r"^\|[^|]*\| `([^|`]*)` \|$", guide.partition("## Errors")[2], re.MULTILINE)
    assert len(quoted) == 15
    assert [words for words in quoted if not any(words in source for source in sources)] == []


# docs/tutorial.md: output that depends neither on the speed of the machine nor on a search


PAGE = commands((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
SHOWN = (
    "partreduce show", "partreduce verify schedule", "partreduce simulate", "partreduce simulate",
    "partreduce design 2x2 --build",
)  # fmt: skip
ROW = re.compile(r" {2,}\d+ +(\S+ \S+) +(\S+ \S+) +\S+ +\S+ +(\S+) +\S+ \S+ +catalogue$")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the cluster file of the page, in which its commands run at 120 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("cluster.yaml").write_text("\n".join(next(lines for command, lines in PAGE if command == "cat cluster.yaml")))
    return tmp_path


def test_tutorial_commands_print_the_shown_output(folder, capsys):
    seen = 0
    for command, lines in PAGE:
        if command.startswith(SHOWN):
            printed = {" ".join(line.split()) for line in ran(capsys, shlex.split(command)[1:]).out.splitlines()}
            for line in filter(None, (" ".join(line.split()) for line in lines)):
                if "…" not in line:
                    assert line in printed, command
                    seen += 1
    assert seen > 45


def test_planner_output_matches_the_tutorial(folder, capsys):
    """A quick answer counts its effort, and is therefore deterministic."""
    arguments = ["design", "cluster.yaml"]
    printed = [line.rstrip() for line in ran(capsys, [*arguments, "-o", "best.json", "--all"]).out.splitlines()]
    blocks = [lines for command, lines in PAGE if command.startswith("partreduce design cluster.yaml")]
    answer, table = ([line for line in lines if line not in {"", "…"}] for lines in blocks)
    assert [line for line in answer if line not in printed] == [
        "--all lists the alternatives, --explain gives all reasons."
    ]
    assert answer[0].startswith("Recommendation for 2x2: ")
    assert len(answer) > 25
    assert set(table) <= set(printed)
    front = {option["name"]: option for option in json.loads(ran(capsys, [*arguments, "--json"]).out)["front"]}
    seen = 0
    for line, below in pairwise(table):
        if match := ROW.search(line):
            name = below if below.startswith("  ") else table[table.index(below) + 1]
            option = front[name.strip()]
            costs = (option["communication_seconds_per_step"], option["step_seconds"], option["steps_ratio"])
            assert match.groups() == (
                f"{costs[0] * 1e3:.4g} ms",
                f"{costs[1] * 1e3:.4g} ms",
                f"{costs[2]:.3f}",
            )
            seen += 1
    assert seen == 4


def test_broken_schedule_of_the_tutorial_is_refuted(folder, capsys):
    (design,) = (command for command, _ in PAGE if command.startswith('partreduce design 2x2 --build "node'))
    assert main(shlex.split(design)[1:]) == 0
    raw = json.loads(Path("schedule.json").read_text())
    assert [block["across"] for block in raw["strategy"]["phases"][-1]] == [[0]]
    raw["strategy"]["phases"][-1][0]["across"] = []
    Path("mine.json").write_text(json.dumps({**raw, "name": "mine"}))
    capsys.readouterr()
    ((command, lines),) = (pair for pair in PAGE if pair[0].startswith("partreduce verify mine.json"))
    assert main(shlex.split(command)[1:]) == 1
    assert [line for line in lines if line and line != "…"] == capsys.readouterr().out.splitlines()[:2]
