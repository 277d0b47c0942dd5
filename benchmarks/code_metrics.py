"""Files and lines of each package, circles of imports, and imports that climb.

    python -m benchmarks.code_metrics            # of this checkout
    python -m benchmarks.code_metrics OTHER      # of another one (a `git worktree`, also of an older tree), then of it

A *circle* is a set of modules that import one another, or of packages of partreduce that stand side by side and do. An
import *climbs* if its package stands below the imported one in the layers of this checkout's pyproject.toml, which
`make check` enforces; packages that these layers do not name are left out. All imports count, also those inside
functions and those for type checkers alone.
"""

from __future__ import annotations

import argparse
import ast
import os
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import networkx as nx

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
SPLIT = ("partreduce", "partreduce.runtime")
"""Packages whose own packages are listed one by one."""


class Metrics(NamedTuple):
    files: Counter[str]
    lines: Counter[str]
    module_circles: list[str]
    package_circles: list[str]
    climbs: list[str]


def modules(root: Path, package: str) -> dict[str, Path]:
    """The modules of a package by import name, whether its packages are folders or links to folders."""
    found = {}
    for folder, _, names in os.walk(root / package, followlinks=True):
        for name in names:
            path = Path(folder, name)
            if path.suffix == ".py" and not path.is_symlink():
                parts = path.relative_to(root).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, known: dict[str, Path]) -> Iterator[str]:
    """The known modules that one imports, anywhere in its file."""
    home = name if known[name].stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(known[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = home.split(".")[: len(home.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            submodules = [f"{base}.{alias.name}" for alias in node.names]
            targets = [one if one in known else base for one in submodules]
        else:
            continue
        yield from (target for target in targets if target in known and target != name)


def siblings(edges: nx.DiGraph[str]) -> nx.DiGraph[str]:
    """The imports between packages and modules of partreduce that stand side by side in one package."""
    found = nx.DiGraph()
    for name, other in edges.edges:
        if not name.startswith("partreduce"):
            continue
        mine, theirs = name.split("."), other.split(".")
        depth = next((at for at, (one, two) in enumerate(zip(mine, theirs, strict=False)) if one != two), None)
        if depth is not None:
            found.add_edge(".".join(mine[: depth + 1]), ".".join(theirs[: depth + 1]))
    return found


def circles(edges: nx.DiGraph[str]) -> list[str]:
    return sorted(" <-> ".join(sorted(one)) for one in nx.strongly_connected_components(edges) if len(one) > 1)


def heights() -> dict[str, int]:
    """How high each package stands among those of its own package, by the layers of pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {}
    for contract in settings["tool"]["importlinter"]["contracts"]:
        for container in contract.get("containers", ()):
            for height, layer in enumerate(reversed(contract["layers"])):
                names = layer.replace("|", ":").split(":")
                found.update({f"{container}.{name.strip()}": height for name in names})
    return found


def place(name: str) -> str:
    """The row of the table in which a module counts."""
    package = max((one for one in SPLIT if name == one or name.startswith(f"{one}.")), key=len)
    inner = name[len(package) + 1 :].partition(".")
    return f"{package}.{inner[0]}" if inner[1] else package


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def measured(root: Path) -> Metrics:
    files, lines, edges = Counter[str](), Counter[str](), nx.DiGraph()
    for package in ("partreduce", "benchmarks", "tests"):
        known = modules(root, package)
        for name, path in known.items():
            row = package
            if package == "partreduce":
                row = place(f"{name}.__init__" if path.stem == "__init__" else name)
            files[row] += 1
            lines[row] += num_lines(path)
            if package != "tests":
                edges.add_edges_from((name, other) for other in imports(name, known))
    known_heights, between = heights(), siblings(edges)
    climbs = [
        f"{name} -> {other}"
        for name, other in sorted(between.edges)
        if name in known_heights and other in known_heights and known_heights[name] < known_heights[other]
    ]
    return Metrics(files, lines, circles(edges), circles(between), climbs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="another checkout, whose numbers come first")
    given = parser.parse_args()
    found = [measured(root.resolve()) for root in (given.other, ROOT) if root is not None]
    rows = sorted({row for one in found for row in one.files if row.startswith("partreduce")})
    print("| package |" + " files | lines |" * len(found) + "\n|---|" + "--:|--:|" * len(found))
    for row in [*rows, "benchmarks", "tests"]:
        print(f"| {row} | " + " | ".join(f"{one.files[row]:,} | {one.lines[row]:,}" for one in found) + " |")
    sums = ((sum(one.files[row] for row in rows), sum(one.lines[row] for row in rows)) for one in found)
    print("| all of partreduce | " + " | ".join(f"{files:,} | {lines:,}" for files, lines in sums) + " |")
    for what in ("module_circles", "package_circles", "climbs"):
        listed = [getattr(one, what) for one in found]
        print(f"\n{what.replace('_', ' ')}: " + " -> ".join(str(len(one)) for one in listed))
        print("\n".join(f"  {line}" for line in listed[-1]))


if __name__ == "__main__":
    main()
