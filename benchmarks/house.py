"""The weight of the house in numbers: lines, files, names, and what a step and a plan pass through.

    python -m benchmarks.house                     # of this checkout
    python -m benchmarks.house --beside OTHER      # of another checkout (a `git worktree`), then of this one

A step is one `DistributedOptimizer.step()` of one of two workers, threads of this process, under All-Reduce in each
step; its twelfth one, after everything that happens in the first few. What is counted is Python of ours: calls,
different functions, files, and changes from one file to another.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

ROOT = Path(__file__).parents[1]
PACKAGES = ("topo", "schedulers", "verify", "runtime", "partreduce")
LINKS = {"inside": {"bandwidth": "10GB/s"}, "nic": {"bandwidth": "1GB/s"}, "model_bytes": "100MB", "compute": "50ms"}
SMALL = {"num_nodes": 2, "workers_per_node": 2, "hardware": LINKS}


def files(root: Path, folder: str) -> list[Path]:
    """The Python files of a folder, without what is linked into it."""
    return sorted(path for path in (root / folder).rglob("*.py") if path.resolve() == path.absolute())


def lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def imports(path: Path, known: Container[str]) -> Iterator[str]:
    """The modules of ours that a file imports when it is imported: not in functions, not for type checkers alone."""
    waiting: list[ast.AST] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("partreduce.") and not node.level:
            modules = [f"{node.module}.{one.name}" for one in node.names if f"{node.module}.{one.name}" in known]
            yield from modules or [node.module or ""]
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def graph(root: Path) -> nx.DiGraph[str]:
    """Which module imports which."""
    known: dict[str, Path] = {}
    for package in PACKAGES:
        for path in files(root, package):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts if package == "partreduce" else ("partreduce", *parts)
            known[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    edges = nx.DiGraph()
    edges.add_nodes_from(known)
    for name, path in known.items():
        edges.add_edges_from((name, other) for other in imports(path, known) if other in known and other != name)
    return edges


def rooms(root: Path) -> dict[str, int]:
    """The rooms of the run-time and their floors, as docs/runtime.md lists them; the highest is 0."""
    page = (root / "docs/runtime.md").read_text(encoding="utf-8")
    table = page[page.index("| room | what it is for |") :].splitlines()[2:]
    found: dict[str, int] = {}
    for floor, row in enumerate(table):
        for room in row.split("|")[1].split(",") if row.startswith("|") else []:
            found[room.strip().strip("`").rstrip("/")] = floor
    return found


def climbs(edges: nx.DiGraph[str], floors: dict[str, int]) -> list[str]:
    """Imports of one room of the run-time by another that stands below it."""
    found = []
    for name, other in edges.edges:
        places = [
            floors.get(part.split(".")[2]) if part.startswith("partreduce.runtime.") else None for part in (name, other)
        ]
        if None not in places and places[0] > places[1]:  # type: ignore[operator]
            found.append(f"{name} -> {other}")
    return sorted(found)


def traced(action: Callable[[], object], root: Path) -> dict[str, int]:
    """What `action` passes through in this thread."""
    passed: list[tuple[str, str]] = []
    prefixes = [str(root / package) + os.sep for package in PACKAGES]
    known: dict[str, str] = {}

    def note(frame: object, event: str, _argument: object) -> None:
        if event == "call":
            code = frame.f_code  # type: ignore[attr-defined]
            file = known.get(code.co_filename)
            if file is None:
                real = os.path.realpath(code.co_filename)
                file = known[code.co_filename] = real if any(real.startswith(one) for one in prefixes) else ""
            if file:
                passed.append((file, f"{file}:{code.co_firstlineno}"))

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    rooms_passed = {file for file, _ in passed}
    changes = sum(before != after for (before, _), (after, _) in pairwise(passed))
    return {
        "calls": len(passed), "functions": len({name for _, name in passed}), "files": len(rooms_passed),
        "changes of file": changes, "returns": changes - len(rooms_passed) + 1,
    }  # fmt: skip


def a_step(root: Path) -> dict[str, int]:
    """One step of worker 0 of 2 under All-Reduce."""
    import threading
    import time
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from partreduce.runtime.optimizer import DistributedOptimizer
    from partreduce.runtime.transport.gloo import GlooWorld
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.allreduce import AllReduce

    store, found = dist.HashStore(), {}

    def work(rank: int) -> None:
        world = GlooWorld(store, rank, 2, timedelta(seconds=30))
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
        inner = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = DistributedOptimizer(inner, model, Schedule("a", Cluster.regular(1, 2), AllReduce()), world=world)
        for number in range(13):
            optimizer.zero_grad()
            model(torch.ones(1, 8)).sum().backward()
            if rank == 0 and number == 11:
                time.sleep(0.2)  # the other has come by then, and nothing is looked at again and again
                found.update(traced(optimizer.step, root))
            else:
                optimizer.step()
        optimizer.finish()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def a_plan(root: Path) -> dict[str, int]:
    """`plan` for a small job, at little effort; once before, so that nothing is imported in it."""
    import partreduce

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "cluster.json"
        place.write_text(json.dumps(SMALL))
        job = partreduce.Job(cluster=partreduce.load_cluster(place), effort=0.01)
    partreduce.plan(job)
    return traced(lambda: partreduce.plan(job), root)


def loaded_by(name: str, root: Path) -> list[str]:
    """The modules of ours that are loaded with a public name."""
    asked = f"import json, sys, partreduce; partreduce.{name}; print(json.dumps(list(sys.modules)))"
    command, environment = [sys.executable, "-c", asked], {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return [module for module in json.loads(done.stdout) if module.partition(".")[0] == "partreduce"]


def options(root: Path) -> int:
    """Options and arguments of all verbs."""
    return sum(
        isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Option", "typer.Argument")
        for path in files(root, "partreduce/commands")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def table(root: Path) -> dict[str, int]:
    """Every number by its name."""
    sys.path.insert(0, str(root))
    numbers: dict[str, int] = {}
    for folder in (*PACKAGES, "tests", "benchmarks"):
        found = files(root, folder)
        numbers[f"{folder}, files"], numbers[f"{folder}, lines"] = len(found), lines(found)
    numbers["the five packages, files"] = sum(numbers[f"{folder}, files"] for folder in PACKAGES)
    numbers["the five packages, lines"] = sum(numbers[f"{folder}, lines"] for folder in PACKAGES)
    numbers["tests and benchmarks, lines"] = numbers["tests, lines"] + numbers["benchmarks, lines"]
    edges = graph(root)
    numbers["circles of imports"] = sum(len(one) > 1 for one in nx.strongly_connected_components(edges))
    numbers["imports that climb in the run-time"] = len(climbs(edges, rooms(root)))
    stub = (root / "partreduce/__init__.pyi").read_text(encoding="utf-8")
    numbers["public names"] = sum(line.startswith("from ") for line in stub.splitlines())
    from partreduce.commands import VERBS
    from partreduce.verify.checker.certificate import CLAIMS

    numbers["verbs"], numbers["options of verbs"], numbers["claims of certificates"] = (
        len(VERBS),
        options(root),
        len(CLAIMS),
    )
    with_optimizer = loaded_by("DistributedOptimizer", root)
    numbers["modules with DistributedOptimizer"] = len(with_optimizer)
    numbers["of these in verify"] = sum(name.startswith("partreduce.verify") for name in with_optimizer)
    numbers |= {f"a step: {what}": count for what, count in a_step(root).items()}
    numbers |= {f"plan(job): {what}": count for what, count in a_plan(root).items()}
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout, whose numbers come first")
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--climbs", action="store_true", help="name the imports that climb, and the circles")
    given = parser.parse_args()
    if given.json is not None:
        print(json.dumps(table(given.json.resolve())))
        return
    if given.climbs:
        edges = graph(ROOT)
        circles = [" ".join(sorted(one)) for one in nx.strongly_connected_components(edges) if len(one) > 1]
        print("\n".join([*climbs(edges, rooms(ROOT)), *circles]))
        return
    columns = []
    for root in [*([given.beside.resolve()] if given.beside else []), ROOT]:
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--json", str(root)]
        done = subprocess.run(
            command,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        columns.append(json.loads(done.stdout.splitlines()[-1]))
    print("| what |" + (" before |" if given.beside else "") + " now |\n|---|" + "--:|" * len(columns))
    for name in columns[-1]:
        print(f"| {name} | " + " | ".join(f"{column[name]:,}" if name in column else "–" for column in columns) + " |")


if __name__ == "__main__":
    main()
