"""What we tell people to install by pip is ours or a dependency of ours: strangers have packages of similar names."""

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from partreduce.topo import extras

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OURS = PROJECT["project"]["name"]
OPTIONAL = PROJECT["project"]["optional-dependencies"]
VALUES = {"-c", "--group", "-r", "--index-url"}
"""Options of pip whose value is the next word."""
PATTERN = re.compile(r"\bpip3?\s+install\s+([^`\n);]+)")


def name_of(requirement):
    """The distribution that a requirement such as `torch>=2.6` or `partreduce[plot]` names."""
    return re.split(r"[\[<>=!~ ]", requirement, maxsplit=1)[0].lower()


KNOWN = {OURS, "."} | {
    name_of(one) for listed in [PROJECT["project"]["dependencies"], *OPTIONAL.values()] for one in listed
}  # fmt: skip


def strings(tree):
    """All literal texts of a module; what an f-string puts in stands there as {}."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            found.append(node.value)
    return found


def documents():
    folders = ("partreduce", "benchmarks", "examples", "docs", ".ci")
    files = {path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()}
    files |= {ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.yml")}
    texts = {path for path in files if path.suffix in {".py", ".pyi", ".md", ".toml", ".yml", ".sh", ""}}
    return sorted(path for path in texts if "__pycache__" not in path.parts)


def commands():
    """Where a `pip install` stands, and the words behind it."""
    found = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        if "install" not in text:
            continue
        parts = strings(ast.parse(text)) if path.suffix == ".py" else [text]
        found += [(str(path.relative_to(ROOT)), words) for part in parts for words in PATTERN.findall(part)]
    return found


def requirements(words):
    """What a command asks pip for, without its options."""
    parts, asked = iter(shlex.split(words)), []
    for part in parts:
        if part in VALUES:
            next(parts, None)
        elif not part.startswith("-") and part != "{}":
            asked.append(part)
    return asked


def refused(words):
    """The requirements that are neither ours nor dependencies of ours, or name an extra that is not there."""
    wrong = []
    for requirement in requirements(words):
        extra = re.search(r"\[([^]]*)\]", requirement)
        named = set(extra[1].split(",")) - {"{}"} if extra else set()
        if name_of(requirement) not in KNOWN | {"pip"} or not named <= set(OPTIONAL):
            wrong.append(requirement)
    return wrong


def test_every_pip_install_that_we_write_names_our_distribution_or_a_dependency_of_it():
    found = commands()
    assert len(found) >= 8, "the pattern still finds the Makefile's, the README's and the library's own"
    assert {"partreduce/topo/extras.py", "README.md", "Makefile"} <= {place for place, _ in found}
    assert [(place, wrong) for place, words in found if (wrong := refused(words))] == []


@pytest.mark.parametrize("module", extras.EXTRAS)
def test_a_missing_library_is_installed_by_an_extra_of_ours_that_brings_it(module):
    (words,) = PATTERN.findall(str(extras.missing([module], "this")))
    assert refused(words) == []
    (requirement,) = requirements(words)
    assert name_of(requirement) == OURS
    library, extra = extras.EXTRAS[module]
    assert requirement == f"{OURS}[{extra}]"
    brought = {name_of(one).replace("-", "") for one in OPTIONAL[extra]}
    assert library.replace("-", "").lower() in brought


@pytest.mark.parametrize(
    "words", ["'preduce[torch]'", "preduce", "-c constraints.txt partreduse", "'partreduce[tourch]'"]
)
def test_another_package_an_older_name_and_an_unknown_extra_are_noticed(words):
    assert refused(words) != []
