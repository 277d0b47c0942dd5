"""The public API: complete, lazy, typed, and never answered by somebody else's packages."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import preduce
from preduce.house import ShadowedError, check_house

ROOT = Path(preduce.__file__).parent.parent


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
    errors = importlib.import_module("topo.errors")
    tree = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.PreduceError)}
    assert tree <= set(preduce.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'desing'"):
        _ = preduce.desing


def test_importing_preduce_imports_nothing_heavy():
    code = "import sys, preduce; print(sorted({'torch','numpy','pydantic','networkx'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_packages_lie_beside_the_front_door():
    check_house()


@pytest.mark.parametrize("kind", ["package", "module", "namespace"])
def test_a_shadowing_folder_is_named_with_both_paths(tmp_path, kind):
    if kind == "module":
        (tmp_path / "runtime.py").write_text("")
    else:
        (tmp_path / "runtime").mkdir()
        if kind == "package":
            (tmp_path / "runtime" / "__init__.py").write_text("")
    code = f"import sys; sys.path.append({str(ROOT)!r}); import preduce.__main__ as m; sys.exit(m.main(['schema']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    if kind == "namespace":
        # A folder without __init__.py never wins over a package that stands later on the path.
        assert done.returncode == 0
        return
    assert done.returncode == 69
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "runtime") in done.stderr
    assert str(ROOT / "runtime") in done.stderr


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("preduce.house.find_spec", lambda name: None)
    with pytest.raises(ShadowedError, match=r"needs the package .*topo, which is missing"):
        check_house()


def test_design_builds_from_a_shorthand():
    schedule = preduce.design("2x4", using="node-then-all", node_rounds=3)
    assert schedule.period == 4
    assert "node-then-all" in preduce.catalogue()
    with pytest.raises(preduce.InputError, match="did you mean"):
        preduce.design("2x4", using="node-then-al")
