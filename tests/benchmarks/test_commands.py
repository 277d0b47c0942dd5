"""Every command of the benchmarks describes itself by the docstring of its module."""

import importlib
import sys

import pytest

MODULES = ("explore.__main__", "forgery.__main__", "papers.__main__", "scale", "transport")


@pytest.mark.parametrize("name", MODULES)
def test_help_of_a_command_shows_its_module_docstring(name, monkeypatch, capsys):
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    assert module.__doc__.splitlines()[0] in capsys.readouterr().out
