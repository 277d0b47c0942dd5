"""Builds the documentation as a site; `make docs` runs this.

    python -m docs.build_site        # build/site/index.html

mkdocs builds from one folder, but our pages link to each other, to results and to the code across the whole repository.
So everything that a page links to is copied to build/pages under its own path, where all links hold as they are; of a
folder that is linked to, a page is written that lists what lies in it. The API reference is one page made from the
docstrings of the public names. Strict: a broken link, or a page that the navigation misses, fails the build.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import partreduce
from docs.links import ROOT, links, pages, target_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES = ROOT / "build" / "pages"
REFERENCE = "docs/reference.md"
STYLE = "docs/site.css"
HEAD = """# API reference

Every public name, from its docstring. All are imported on first use: `import partreduce` costs nothing. What is not
here is internal and may change; see [the architecture](internals/architecture.md).
"""


def reference() -> str:
    """The page that mkdocstrings fills: the package's own names, then each public module with its own."""
    rooms = [name for name in partreduce.__all__ if type(getattr(partreduce, name)) is ModuleType]
    own = [name for name in partreduce.__all__ if name not in rooms]
    called = {"verify": "verify.prove"}  # a package that can be called: what the call does
    parts = [_names("partreduce", [called.get(name, name) for name in own])]
    for room in rooms:
        module = getattr(partreduce, room)
        names = [name for name in vars(module) if not name.startswith("_")]
        parts.append(f"\n## partreduce.{room}\n\n{module.__doc__}" + _names(f"partreduce.{room}", names))
    return HEAD + "".join(parts)


def _names(home: str, names: list[str]) -> str:
    return "".join(f"\n::: {home}.{name}\n" for name in sorted(names, key=str.lower))


def first_sentence(path: Path) -> str:
    """Of a module's or package's docstring; nothing for other files."""
    source = path / "__init__.py" if path.is_dir() else path
    if source.suffix != ".py" or not source.exists():
        return ""
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").split("\n")[0]


def listing(folder: Path) -> str:
    """A page about a folder: its own words and its files with theirs."""
    lines = [f"# {folder.relative_to(ROOT)}/", "", first_sentence(folder), ""]
    for path in sorted(folder.iterdir()):
        if path.name.startswith(("_", ".")) or path.is_symlink():
            continue
        words = first_sentence(path)
        lines.append(f"* `{path.name}{'/' if path.is_dir() else ''}`{words and ': '}{words}")
    return "\n".join(lines) + "\n"


def targets() -> Iterator[Path]:
    """Everything in the repository that some page links to."""
    for page in pages():
        for _, link in links(page):
            yield target_of(page, link)


def stage() -> None:
    """Write build/pages afresh."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in {*pages(), *targets()}:
        place = PAGES / path.relative_to(ROOT)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
            if not (path / "README.md").exists():
                (place / "index.md").write_text(listing(path), encoding="utf-8")
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    shutil.copyfile(ROOT / STYLE, PAGES / STYLE)
    (PAGES / REFERENCE).write_text(reference(), encoding="utf-8")


def main() -> int:
    """Stage and build."""
    stage()
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=ROOT, env=quiet, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
