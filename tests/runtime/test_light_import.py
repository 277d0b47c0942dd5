"""Importing the optimizer loads no prover, planner or search."""

import ast
import json
from pathlib import Path

import partreduce
from helpers.warm import WARM
from partreduce.runtime import environment

LIST_MODULES = """
import json, sys
for name in [name for name in sys.modules if name.partition(".")[0] == "partreduce"]:
    del sys.modules[name]  # keep torch loaded, which takes seconds to import
import partreduce
partreduce.DistributedOptimizer
print(json.dumps([name for name in sys.modules if name.startswith("partreduce.")]))
"""


def test_optimizer_import_loads_no_prover_planner_or_search():
    loaded = json.loads(WARM.run("-c", LIST_MODULES, check=True).stdout)
    assert "partreduce.runtime.optimizer" in loaded
    others = ("partreduce.verify", "partreduce.planner", "partreduce.schedulers.synthesis", "partreduce.commands")
    assert [name for name in loaded if name.startswith(others)] == []


# The names of environment variables are defined in one module.


PACKAGE = Path(partreduce.__file__).parent
VALUES = [value for name, value in vars(environment).items() if name.isupper()]
NAMES = {name for value in VALUES for name in ([value] if isinstance(value, str) else value)}
LOADS_NOTHING = PACKAGE / "__init__.py"
"""Importing partreduce loads nothing of the runtime, so this file alone repeats a name."""


def test_environment_variables_are_named_in_one_module():
    sources = {
        path.relative_to(PACKAGE): path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if path not in {Path(environment.__file__), LOADS_NOTHING} and not path.is_symlink()
    }
    found = [
        f"{path}: {node.value}"
        for path, source in sources.items()
        if "PARTREDUCE_" in source or any(name in source for name in NAMES)  # other sources need not be parsed
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and (node.value in NAMES or str(node.value).startswith("PARTREDUCE_"))
    ]
    assert not found
