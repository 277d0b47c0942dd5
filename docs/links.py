"""Checks the links between Markdown files, offline; `make check` runs this.

    python -m docs.links

Every link to a place in the repository must lead to a file or folder that exists, and its `#part` to a heading there.
Addresses on the web are not visited. Prints one line per broken link and ends with 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
OURS = ("benchmarks", "docs", "examples", "partreduce", "tests")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2`*~* *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(<?([^()\s<>]+(?:\([^()\s]*\))?)>?(?: +\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]: +<?(\S+?)>?$", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
ELSEWHERE = re.compile(r"^[a-z][a-z+.-]*:", re.IGNORECASE)


def pages() -> list[Path]:
    """The repository's Markdown files; not what a virtual environment or a build left in it."""
    found = [*ROOT.glob("*.md")]
    for name in OURS:
        found += (ROOT / name).rglob("*.md")
    return sorted(path for path in found if "bench" not in path.relative_to(ROOT).parts)


def blank(match: re.Match[str]) -> str:
    """As many lines as before, with nothing in them."""
    return "\n" * match[0].count("\n")


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Line number and target of every link of a page to something in the repository; none from its code."""
    text = CODE.sub(blank, FENCE.sub(blank, page.read_text(encoding="utf-8")))
    for pattern in (LINK, REFERENCE):
        for match in pattern.finditer(text):
            if not ELSEWHERE.match(match[1]):
                yield text.count("\n", 0, match.start()) + 1, match[1]


def slug(heading: str) -> str:
    """The anchor of a heading: lower case, hyphens for spaces, letters and digits of any language kept."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


@cache
def outer_params(page: Path) -> frozenset[str]:
    """The anchors of a page's headings; a second one of the same name ends in -1."""
    seen: dict[str, int] = {}
    made = set()
    for match in HEADING.finditer(FENCE.sub(blank, page.read_text(encoding="utf-8"))):
        name = slug(match[1])
        count = seen.get(name, 0)
        made.add(f"{name}-{count}" if count else name)
        seen[name] = count + 1
    return frozenset(made)


def target_of(page: Path, link: str) -> Path:
    """The file or folder that a link leads to."""
    place = link.partition("#")[0]
    return Path((page.parent / place).absolute()).resolve() if place else page


def fault(page: Path, link: str) -> str | None:
    """What is wrong with a link; None for a good one."""
    target, part = target_of(page, link), link.partition("#")[2]
    if not target.is_relative_to(ROOT):
        return "leads out of the repository"
    if not target.exists():
        return "there is no such file"
    if part and (target.suffix != ".md" or part not in outer_params(target)):
        return f"there is no heading #{part}"
    return None


def main() -> int:
    """Check every page."""
    count = wrong = 0
    for page in pages():
        for line, link in links(page):
            count += 1
            if (messages := fault(page, link)) is not None:
                wrong += 1
                print(f"{page.relative_to(ROOT)}:{line}: ({link}) {messages}", file=sys.stderr)
    print(f"{count} links in {len(pages())} pages, {wrong} broken")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
