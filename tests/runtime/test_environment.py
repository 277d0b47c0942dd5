"""The names of environment variables stand in one module."""

import ast
from pathlib import Path

import partreduce
from partreduce.runtime import environment

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
