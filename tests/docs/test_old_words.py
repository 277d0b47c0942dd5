"""No file of the repository uses a key, an option, a name or a word that the format and the API once had."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

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
    "tests/topo/document/test_renamed.py",
    "tests/docs/test_old_words.py",
    "constraints.txt",
    "docs/pictures/",
)


def files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    for name in listed:
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
