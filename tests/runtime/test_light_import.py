"""What a training script loads with its optimizer: nothing that proves, plans or searches."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import partreduce
from helpers import children
from partreduce.runtime import environment


def test_the_optimizer_loads_no_prover_no_planner_and_no_search():
    asked = "import json, sys, partreduce; partreduce.DistributedOptimizer; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env=children.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = [name for name in json.loads(done.stdout) if name.startswith("partreduce.")]
    assert "partreduce.runtime.optimizer" in loaded
    others = ("partreduce.verify", "partreduce.planner", "partreduce.schedulers.synthesis", "partreduce.commands")
    assert [name for name in loaded if name.startswith(others)] == []


# The names of environment variables stand in one module.


PACKAGE = Path(partreduce.__file__).parent
VALUES = [value for name, value in vars(environment).items() if name.isupper()]
NAMES = {name for value in VALUES for name in ([value] if isinstance(value, str) else value)}
LOADS_NOTHING = PACKAGE / "__init__.py"
"""Importing partreduce loads nothing of the runtime, so this file alone repeats a name."""


def test_no_other_module_writes_the_name_of_a_variable():
    found = [
        f"{path.relative_to(PACKAGE)}: {node.value}"
        for path in PACKAGE.rglob("*.py")
        if path not in {Path(environment.__file__), LOADS_NOTHING} and not path.is_symlink()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and (node.value in NAMES or str(node.value).startswith("PARTREDUCE_"))
    ]
    assert not found
