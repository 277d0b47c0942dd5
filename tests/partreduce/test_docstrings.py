"""Docstrings of the public API have every parameter under `Args:`, and what comes back under `Returns:`."""

import ast
import dataclasses
import enum
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import partreduce

MODULES = ("errors", "files", "strategies", "types")


def public_functions():
    """(name, function, its documentation) of functions, of classes that are no values, and of optimizer methods."""
    modules = [partreduce, *(importlib.import_module(f"partreduce.{name}") for name in MODULES)]
    for module in modules:
        for name in getattr(module, "__all__", None) or vars(module):
            found = getattr(module, name)
            if inspect.ismodule(found) and callable(found):
                found = type(found).__call__  # partreduce.verify
            if name.startswith("_") or not callable(found):
                continue
            is_value = isinstance(found, type) and (
                dataclasses.is_dataclass(found)
                or issubclass(found, (enum.Enum, BaseException, tuple))
                or getattr(found, "_is_protocol", False)
                or inspect.isabstract(found)
            )
            if not is_value:
                yield f"{module.__name__}.{name}", found
    for name, method in inspect.getmembers(partreduce.DistributedOptimizer, inspect.isfunction):
        if not name.startswith("_") and method.__module__.startswith("partreduce"):
            yield f"DistributedOptimizer.{name}", method


def section(text, title):
    """The lines below `title:` of a docstring, indented ones only."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    return found[1] if found else ""


CASES = [pytest.param(function, id=name) for name, function in public_functions()]


@pytest.mark.parametrize("function", CASES)
def test_every_parameter_is_explained(function):
    text = inspect.cleandoc(function.__doc__ or "")
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    explained = re.findall(r"^    \**(\w+)(?: \(.*?\))?:", section(text, "Args"), re.MULTILINE)
    assert [name for name in names if name not in explained] == []


@pytest.mark.parametrize("function", CASES)
def test_what_comes_back_is_explained(function):
    answer = inspect.signature(function).return_annotation
    if isinstance(function, type) or answer in ("None", None, "NoReturn", inspect.Signature.empty):
        return
    text = inspect.cleandoc(function.__doc__ or "")
    assert section(text, "Returns") or section(text, "Yields"), f"{answer}: no section Returns"


@pytest.mark.parametrize("file", ["lightning_strategy", "trainer_callback"])
def test_adapters_whose_library_need_not_be_there_explain_theirs(file):
    path = Path(partreduce.__file__).parent / "runtime" / "adapters" / f"{file}.py"
    made = next(node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    init = next(node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    arguments = [*init.args.args[1:], *init.args.kwonlyargs, *filter(None, [init.args.vararg, init.args.kwarg])]
    explained = re.findall(r"^    \**(\w+):", section(ast.get_docstring(made) or "", "Args"), re.MULTILINE)
    assert [argument.arg for argument in arguments if argument.arg not in explained] == []


def test_what_is_missing_is_found():
    source = ast.get_docstring(
        ast.parse(
            textwrap.dedent('''
        def f(a, b):
            """Do it.

            Args:
                a: one.

            Returns:
                A number.
            """
    ''')
        ).body[0]
    )
    assert re.findall(r"^    \**(\w+):", section(source, "Args"), re.MULTILINE) == ["a"]
    assert section(source, "Returns") == "    A number.\n"
    assert section(source, "Raises") == ""
