"""The public API: complete, lazy, typed, and never answered by somebody else's packages."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import preduce

ROOT = Path(preduce.__file__).parent.parent
FLOORS = ("topo", "schedulers", "verify", "runtime")


def test_every_public_name_can_be_imported_and_is_documented():
    for name in preduce.__all__:
        value = getattr(preduce, name)
        assert value.__doc__, name


def test_the_list_of_names_is_complete_and_sorted():
    assert preduce.__all__ == sorted(preduce.__all__)
    assert sorted(preduce._HOME_OF) == preduce.__all__
    tree = ast.parse(Path(preduce.__file__).read_text())
    typed = {
        (node.module, alias.asname)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == {(home, name) for name, home in preduce._HOME_OF.items()}, "type checkers see the same names"
    assert set(preduce.__all__) <= set(dir(preduce))


def test_every_error_is_public():
    errors = importlib.import_module("preduce.topo.errors")
    tree = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.PreduceError)}
    assert tree <= set(preduce.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'desing'"):
        _ = preduce.desing


def test_importing_preduce_imports_nothing_heavy():
    code = "import sys, preduce; print(sorted({'torch','numpy','pydantic','networkx'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", FLOORS)
@pytest.mark.parametrize("kind", ["package", "module"])
def test_a_users_module_of_a_floors_name_changes_nothing(tmp_path, name, kind):
    if kind == "module":
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the user's own module was imported')")
    else:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the user's own package was imported')")
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        "import preduce\n"
        "schedule = preduce.design('2x4', using='prague-figure-10')\n"
        "print(preduce.prove(schedule).verdict)"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "proved\n"


@pytest.mark.parametrize("name", FLOORS)
def test_a_floor_cannot_be_imported_twice(name):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"this folder is the package preduce.{name}; import it by that name" in done.stderr


def test_design_builds_from_a_shorthand():
    schedule = preduce.design("2x4", using="node-then-all", node_rounds=3)
    assert schedule.period == 4
    assert "node-then-all" in preduce.catalogue()
    with pytest.raises(preduce.InputError, match="did you mean"):
        preduce.design("2x4", using="node-then-al")
