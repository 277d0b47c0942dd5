"""The lint of words, Python names on pages, and former names."""

import re
import subprocess
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from docs import words

CLEAN = '''"""Average the parameters of a group."""


class Received:
    """A message."""


def check_group(group):
    """Return the group; it continues with its own data."""
    return group  # a step is done
'''


PLANTED = tomllib.loads(Path(__file__).with_name("planted_words.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", PLANTED["planted"], ids=lambda row: row["found"])
def test_planted_words_are_reported_with_their_line(row, tmp_path, capsys):
    (tmp_path / "planted.py").write_text(CLEAN + row["code"] + "\n", encoding="utf-8")
    assert words.main([str(tmp_path)]) == 1
    line = CLEAN.count("\n") + row.get("line", 1)
    assert capsys.readouterr().err.startswith(f"planted.py:{line}: {row['found']}")


def test_module_names_and_pages_are_checked(tmp_path, capsys):
    (tmp_path / "over_ssh.py").write_text(CLEAN, encoding="utf-8")
    (tmp_path / "page.md").write_text(PLANTED["page"]["text"], encoding="utf-8")
    assert words.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "over_ssh.py:1: over_ssh.py: name a module by a noun",
        PLANTED["page"]["found"],
    ]


def test_clean_files_pass(tmp_path, capsys):
    (tmp_path / "clean.py").write_text(CLEAN, encoding="utf-8")
    (tmp_path / "clean.md").write_text(PLANTED["page"]["clean"], encoding="utf-8")
    assert words.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 names and words to change\n"


# Python names on the pages exist and are written as imported


ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FORMATS = {"partreduce.schedule", "partreduce.cluster", "partreduce.pilot"}
"""Values of `format` in our files."""


def resolves(name):
    """Return whether a dotted name is a module, an attribute of a module, or an attribute of a class."""
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_dotted_names_of_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    names = set(re.findall(r"`(partreduce\.[A-Za-z_][A-Za-z_.0-9]*[A-Za-z_0-9])", text))
    names |= set(re.findall(r"^from (partreduce[\w.]*) import", text, re.MULTILINE))
    assert [name for name in sorted(names - FORMATS) if not resolves(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_full_package_names(page):
    """`partreduce.topo.metrics`, not `topo.metrics`."""
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"`(?:topo|schedulers|verify|runtime)\.[a-z_]+(?:\.[a-z_]+)*[`(]", text) == []


# No file of the repository uses a former key, option, name or word of the format and the API


OLD = {
    "keys of the file": r"""["'](?:when|pace|relax|sending|contingencies|initiator|synchronise_every)["']\s*:"""
    r"""|["'](?:what|how)["']\s*:\s*\{\s*["'](?:tables|outer|fragments|codec|form)"""
    r"""|["']anchor["']\s*:\s*["'](?:own|common)|["']kind["']\s*:\s*["']generated["']|["']laggard-""",
    "places in messages": r"strategy\.(?:when|what|how|pace)\b"
    r"|(?<![\w.])(?:what\.outer|what\.tables|how\.form|when\.(?:late|gap|quorum|merge|pipeline))\b",
    "options": r"(?<![\w-])--(?:when|form|using|take|survive|replan)(?![\w-])",
    "public names": r"\b(?:FileProblem|UnknownError|FencedError|MissingFeatureError|PeerLostError|ManagedSchedule)\b"
    r"|\b(?:FigureLimits|InitiatorRule|TableWay|GradientTotal|MissedResults|ShiftingDelay)\b"
    r"|\bpartreduce\.(?:plan|prove|shard|figures|Job)\(",
    "words": r"\b(?:lockstep|contingenc(?:y|ies)|laggards?|paces?)\b",
    "spelling": r"\b(?:neighbour\w*|colour\w*|behaviour\w*|centre[sd]?|normalis\w+|synchronis\w+|initialis\w+)\b"
    r"|\b(?:minimis\w+|optimis(?:e|ed|es|er|ing|ation)|synthesis(?:e|ed|es|er|ing))\b",
}
"""Patterns by kind; only public names are case-sensitive."""

ELSEWHERE = (
    "CHANGELOG.md",  # explains the new names
    "benchmarks/results/",  # measured under the former names
    "partreduce/topo/renamed.py",  # answers an old key with the new one
    "tests/topo/document/test_schema.py",
    "tests/docs/test_words.py",
    "constraints.txt",
    "docs/pictures/",
)


def files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\n"):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink() and not name.startswith(ELSEWHERE):
            yield name, path


@pytest.mark.parametrize("kind", OLD)
def test_no_file_uses_a_former_name(kind):
    pattern = re.compile(OLD[kind], 0 if kind == "public names" else re.IGNORECASE)
    found = []
    for name, path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name}:{text.count(chr(10), 0, m.start()) + 1}: {m[0]}" for m in pattern.finditer(text)]
    assert found == []
