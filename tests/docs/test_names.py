"""The names of Python that the pages mention exist, and are written as they are imported."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FORMATS = {"partreduce.schedule", "partreduce.cluster", "partreduce.pilot"}
"""What `format` is in our files."""


def resolves(name):
    """Whether a dotted name is a module, or a name of one, or a name of a class of one."""
    module, rest = name, []
    while module:
        try:
            if find_spec(module) is not None:
                break
        except ModuleNotFoundError:  # a parent is no package
            pass
        module, _, last = module.rpartition(".")
        rest.insert(0, last)
    else:
        return False
    value = import_module(module)
    for part in rest:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_dotted_names_of_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    names = set(re.findall(r"`(partreduce\.[A-Za-z_][A-Za-z_.0-9]*[A-Za-z_0-9])", text))
    names |= set(re.findall(r"^from (partreduce[\w.]*) import", text, re.MULTILINE))
    assert [name for name in sorted(names - FORMATS) if not resolves(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_a_package_as_nobody_can_import_it(page):
    """`partreduce.topo.metrics`, not `topo.metrics`: the bare names of the floors are refused."""
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"`(?:topo|schedulers|verify|runtime)\.[a-z_]+(?:\.[a-z_]+)*[`(]", text) == []
