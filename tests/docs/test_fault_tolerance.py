"""docs/how-to/fault-tolerance.md: its commands print what it shows, its numbers are measured, its codes are ours."""

import re
import shlex
from pathlib import Path

import pytest

from helpers.warm import WARM
from partreduce.topo import errors
from partreduce.topo.failure_plan import table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/fault-tolerance.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks/results"

TRAIN = """
import os, signal, sys, time
from pathlib import Path
import torch, partreduce
if os.environ.get("PARTREDUCE_RESTARTED"):
    time.sleep(1.0)  # it would join by the vote that the others hold
model = torch.nn.Linear(4, 1)
optimizer = partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, sys.argv[1], timeout=60)
partreduce.load_checkpoint(optimizer, "saved")
is_first = not os.environ.get("PARTREDUCE_RESTARTED") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
while not Path(f"stop-{optimizer.steps}").exists():
    if is_first and optimizer.rank == 3 and optimizer.steps == 12:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(optimizer.rank))).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    if optimizer.rank == 3 and not is_first and not list(Path().glob("stop-*")):
        Path(f"stop-{optimizer.steps + 20}").touch()
    if optimizer.steps == 8:
        partreduce.save_checkpoint(optimizer, "saved")
optimizer.finish()
"""


def blocks():
    """The lines of each block of code of the page."""
    return [block.splitlines() for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]


def shown(text):
    """Whether a line is what the page shows, but for its numbers and where it says `…`."""
    pattern = re.escape(text).replace("…", ".*")
    return re.compile(re.sub(r"\d+", r"\\d+", pattern) + r"(; .*)?")


@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("command", "printed"), [(0, 1), (2, 3)], ids=["continues and joins", "all restart"])
def test_a_command_of_the_page_prints_what_it_shows(tmp_path, command, printed):
    listed = blocks()
    ((line,), expected) = listed[command], listed[printed]
    words = shlex.split(line)
    workers = words[words.index("--nproc-per-node") + 1]
    (tmp_path / "train.py").write_text(TRAIN)
    design = ("design", f"1x{workers}", "--build", "allreduce", "-o", "schedule.json")
    assert WARM.run("partreduce", *design, cwd=tmp_path).returncode == 0
    done = WARM.run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("partreduce: ")]
    assert [text for text in expected if not any(shown(text).fullmatch(one) for one in said)] == [], said


def test_the_seconds_of_the_page_are_the_measured_ones():
    cells = [line.split("|") for line in (RESULTS / "recovery.md").read_text(encoding="utf-8").splitlines()]
    for name in ("partreduce", "torchft, tuned"):
        first, second, third = (row[5].strip() for row in cells if len(row) > 5 and row[2].strip() == name)
        assert f"{first}, {second} and {third} s" in PAGE
    curve = re.findall(r"^\| \d+ \| ([\d.]+) \| ([\d.]+) \|$", (RESULTS / "elastic_runs.md").read_text(), re.MULTILINE)
    last = [float(one) for one in curve[-1]]
    assert abs(last[0] - last[1]) <= float(re.search(r"within ([\d.]+) of that without", PAGE)[1])


def test_the_exit_codes_of_the_page_are_those_of_the_errors():
    assert f"* {errors.EvictedError.exit_code}: the same, and a silent worker was evicted" in PAGE
    codes = sorted({errors.InputError.exit_code, errors.FileError.exit_code, errors.MissingDependencyError.exit_code})
    assert f"(exit codes {', '.join(map(str, codes))}) are not retried" in PAGE


def test_the_table_of_the_page_is_the_one_in_the_code():
    rows = {}
    for name, answer, _ in table():
        rows.setdefault(answer, []).append(name)
    heads = {"continues": "survivors continue", "restarts": "all restart", "refused": "refused"}
    lines = [f"| {heads[answer]} | {', '.join(names)} |" for answer, names in rows.items()]
    assert "\n".join(["|---|---|", *lines, "", "<!-- end of kinds -->"]) in PAGE
