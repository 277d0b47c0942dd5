"""Which modules neither the command line nor a public name needs: what only tests and benchmarks import.

    python -m benchmarks.unreached

Followed are all imports, those inside functions and for type checkers alike, from the verbs, the public names and the
programs that are started by name. A module that is left over belongs beside the test or benchmark that needs it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("partreduce", "topo", "schedulers", "verify", "runtime")
STARTED = (
    "partreduce.__main__",
    "partreduce.verify.checker.__main__",
)


def modules() -> dict[str, Path]:
    """Every module of the five packages by its import name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            if package == "partreduce" and len(parts) > 1 and parts[1] in PACKAGES:
                continue  # the links to the other four folders
            if package != "partreduce":
                parts.insert(0, "partreduce")
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that one names, packages above them included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Programs that are started, and registries that import lazily, name modules in text.
            found.update(re.findall(r"partreduce(?:\.\w+)+", node.value))
    found |= {one.rpartition(".")[0] for one in found}
    return {above for one in found & set(known) for above in _with_packages(one)}


def _with_packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def reached(known: dict[str, Path]) -> set[str]:
    """What the command line and the public names need."""
    stub = ROOT / "partreduce" / "__init__.pyi"
    waiting = {*STARTED, *imports("partreduce", stub, known)}
    waiting |= {name for name in known if name.startswith("partreduce.commands.")}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        waiting |= imports(name, known[name], known) - seen
    return seen


def main() -> None:
    known = modules()
    total = 0
    for name in sorted(set(known) - reached(known)):
        lines = len(known[name].read_text(encoding="utf-8").splitlines())
        total += lines
        print(f"{lines:6} {name}")
    print(f"{total:6} lines in modules that neither the command line nor a public name needs")


if __name__ == "__main__":
    main()
