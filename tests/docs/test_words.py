"""Words and names: the list of words, names of modules, and words from before."""

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
def test_what_is_planted_is_found_with_its_line(row, tmp_path, capsys):
    (tmp_path / "planted.py").write_text(CLEAN + row["code"] + "\n", encoding="utf-8")
    assert words.main([str(tmp_path)]) == 1
    line = CLEAN.count("\n") + row.get("line", 1)
    assert capsys.readouterr().err.startswith(f"planted.py:{line}: {row['found']}")


def test_a_preposition_as_a_module_and_a_word_on_a_page_are_found(tmp_path, capsys):
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


# The names of Python that the pages mention exist, and are written as they are imported


ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FORMATS = {"partreduce.schedule", "partreduce.cluster", "partreduce.pilot"}
"""What `format` is in our files."""


def resolves(name):
    """Whether a dotted name is a module, or a name of one, or a name of a class of one."""
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
def test_no_page_names_a_package_by_a_name_that_cannot_be_imported(page):
    """`partreduce.topo.metrics`, not `topo.metrics`: the bare names of the floors are refused."""
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"`(?:topo|schedulers|verify|runtime)\.[a-z_]+(?:\.[a-z_]+)*[`(]", text) == []


# No file of the repository uses a key, an option, a name or a word that the format and the API once had


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
"""What is searched for, by its kind; all without regard to case, but for names."""

ELSEWHERE = (
    "CHANGELOG.md",  # says what became of them
    "benchmarks/results/",  # what was measured under them
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
def test_no_file_uses_what_was_renamed(kind):
    pattern = re.compile(OLD[kind], 0 if kind == "public names" else re.IGNORECASE)
    found = []
    for name, path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name}:{text.count(chr(10), 0, m.start()) + 1}: {m[0]}" for m in pattern.finditer(text)]
    assert found == []
