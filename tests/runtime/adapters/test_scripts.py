"""Example scripts of each framework train equally well with the diffs of docs/how-to/frameworks.md."""

import re
from pathlib import Path

import pytest

from helpers.children import ROOT
from helpers.warm import WARM
from partreduce.__main__ import main

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
PAGE = ROOT / "docs/how-to/frameworks.md"
SCRIPTS = Path(__file__).parent / "scripts"
HEADS = {
    "ddp": ("DistributedDataParallel", "torch", 1.0),
    "trainer": ("Transformers Trainer", "transformers", 0.6931),
    "lit": ("Lightning", "lightning", 0.5),
    "accel": ("Accelerate", "accelerate", 1.0),
}
"""For each script the heading on the page, the library, and the approximate loss of an untrained model."""


def apply_diff(script, heading):
    """The script after the diff of a section, and the number of added and removed lines."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    diff = re.search(r"```diff\n(.*?)```", section, re.DOTALL)[1].rstrip("\n")
    for hunk in diff.split("\n\n"):
        before, after = ("\n".join(one[1:] for one in hunk.split("\n") if one[0] != sign) for sign in "+-")
        if before:
            assert script.count(before) == 1, before
            script = script.replace(before, after)
        else:  # an import
            script = re.sub(r"(?m)^(?=import |from )", f"{after}\n", script, count=1)
    return script, sum(line[:1] in ("+", "-") for line in diff.split("\n"))


@pytest.mark.parametrize("name", HEADS)
def test_framework_script_changed_by_five_lines_reaches_the_same_loss(tmp_path, name):
    heading, library, untrained = HEADS[name]
    pytest.importorskip(library, reason=f"{library} is not installed")
    script = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    text, count = apply_diff(script, heading)
    assert count <= 5
    (tmp_path / "before.py").write_text(script)
    (tmp_path / "after.py").write_text(text)
    assert main(["design", "1x2", "--build", "local-sgd(every=4)", "-o", str(tmp_path / "schedule.json")]) == 0
    losses = {}
    for which in ("before", "after"):
        done = WARM.run("partreduce", "run", "-n", "2", f"{which}.py", cwd=tmp_path, timeout=280)
        assert done.returncode == 0, done.stderr[-3000:]
        losses[which] = [float(loss) for loss in re.findall(r"LOSS (\S+)", done.stdout)]
        assert len(losses[which]) == 2
    assert losses["after"][0] == losses["after"][1], "both workers have the mean"
    assert max(losses["before"]) < untrained / 3, "the model has learned"
    assert losses["after"][0] < 1.5 * max(losses["before"]) + untrained / 50
