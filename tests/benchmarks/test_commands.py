"""Every command of the benchmarks says what it does, from the words of its module."""

import importlib
import sys

import pytest

MODULES = ("explore.__main__", "forgery.__main__", "papers.__main__", "planner.random_clusters", "scale", "transport")


@pytest.mark.parametrize("name", MODULES)
def test_a_command_says_what_it_does(name, monkeypatch, capsys):
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    assert module.__doc__.splitlines()[0] in capsys.readouterr().out
