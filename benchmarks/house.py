"""The weight of the house in numbers: lines, files, names, and what a step and a plan pass through.

    python -m benchmarks.house                     # of this checkout
    python -m benchmarks.house --beside OTHER      # of another checkout (a `git worktree`), then of this one
    python -m benchmarks.house --beside OTHER --turns 15  # how long steps of both take, by turns in one run
    python -m benchmarks.house --climbs            # imports that climb in the run-time, and circles of imports
    python -m benchmarks.house --unreached         # modules that neither the command line nor a public name needs

A step is one `DistributedOptimizer.step()` of one of two workers, threads of this process, under All-Reduce in each
step; its twelfth one, after everything that happens in the first few. What is counted is Python of ours: calls,
different functions, files, changes from one file to another, and how often a function that is called for the first time
leads back to a file that was left before (`returns`).

By turns four processes of each checkout step with 8 MB of parameters over loopback (the slowest of them counts), and
two more measure the processor's time that is ours: step() of a small model of 4 parameters, and of 128, with three
workers that answer at once, less the wrapped optimizer's own.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

ROOT = Path(__file__).parents[1]
PACKAGES = ("topo", "schedulers", "verify", "runtime", "partreduce")
LINKS = {"inside": {"bandwidth": "10GB/s"}, "nic": {"bandwidth": "5GB/s"}, "model_bytes": "552MB", "compute": "50ms"}
PLANNED = {"num_nodes": 4, "workers_per_node": 4, "hardware": LINKS}
WORKERS = 4
LAYERS = (2, 64)
"""Of the models whose steps are timed alone; each has two parameters."""
STARTED = ("partreduce.__main__", "partreduce.verify.checker.__main__")
"""Programs that are started by name."""


def files(root: Path, folder: str) -> list[Path]:
    """The Python files of a folder, without what is linked into it."""
    return sorted(path for path in (root / folder).rglob("*.py") if path.resolve() == path.absolute())


def lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def modules(root: Path) -> dict[str, Path]:
    """Every module of the five packages by its import name."""
    known: dict[str, Path] = {}
    for package in PACKAGES:
        for path in files(root, package):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts if package == "partreduce" else ("partreduce", *parts)
            known[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return known


def imports(name: str, known: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that one imports when it is imported: not in functions, not for type checkers alone."""
    waiting: list[ast.AST] = list(ast.parse(known[name].read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from _imported(node, known, node.module or "")
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def mentions(package: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """All modules that a file of a package names: registries that import on first use name theirs in text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield from _imported(node, known, ".".join([*above, *([node.module] if node.module else [])]))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for name in re.findall(r"partreduce(?:\.\w+)+", node.value):
                yield from (name, name.rpartition(".")[0])


def _imported(node: ast.ImportFrom, known: Container[str], home: str) -> list[str]:
    """Of `from HOME import NAME`: the submodules among the names, else HOME."""
    if not home.startswith("partreduce"):
        return []
    return [f"{home}.{one.name}" for one in node.names if f"{home}.{one.name}" in known] or [home]


def graph(root: Path) -> nx.DiGraph[str]:
    known = modules(root)
    edges = nx.DiGraph()
    edges.add_nodes_from(known)
    for name in known:
        edges.add_edges_from((name, other) for other in imports(name, known) if other in known and other != name)
    return edges


def unreached(root: Path) -> dict[str, int]:
    """The lines of modules that nothing leads to from the verbs, the public names and the programs that are started."""
    known = modules(root)
    waiting = {*STARTED, *mentions("partreduce", root / "partreduce/__init__.pyi", known)} & set(known)
    waiting |= {name for name in known if name.startswith("partreduce.commands.")}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        above = name.rpartition(".")[0]
        package = name if known[name].stem == "__init__" else above
        waiting |= ({*mentions(package, known[name], known), above} & set(known)) - seen
    return {name: lines([path]) for name, path in known.items() if name not in seen}


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
    passed: list[tuple[str, str]] = []  # file, function
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
                passed.append((file, f"{code.co_firstlineno} {code.co_name}"))

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    first_calls = dict.fromkeys(passed)  # each function once, in the order in which they were first called
    named = [(file, function) for file, function in first_calls if "<" not in function]  # no lambdas, no comprehensions
    return {
        "calls": len(passed), "functions": len(first_calls), "files": len({file for file, _ in passed}),
        "changes of file": _changes(passed), "returns": _changes(named) - len({file for file, _ in named}) + 1,
    }  # fmt: skip


def _changes(passed: Iterable[tuple[str, str]]) -> int:
    """How often the file changes from one call to the next."""
    return sum(before != after for (before, _), (after, _) in pairwise(passed))


def a_step(root: Path) -> dict[str, int]:
    """One step of worker 0 of 2 under All-Reduce."""
    import torch
    import torch.distributed as dist

    store, found = dist.HashStore(), {}

    def work(rank: int) -> None:
        optimizer, model = wrapped(store, rank, 2, 8)
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


def wrapped(store: Any, rank: int, num_workers: int, width: int, layers: int = 2) -> tuple[Any, Any]:  # noqa: ANN401 - of any checkout
    """An optimizer under All-Reduce in each step, and its model: one number out of layers of width² numbers each."""
    import torch

    import partreduce
    from partreduce.runtime.optimizer import DistributedOptimizer
    from partreduce.runtime.transport.gloo import GlooWorld
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.allreduce import AllReduce

    assert Path(partreduce.__file__).parents[1].samefile("."), "a checkout is found, and not an installation"
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers - 1)], torch.nn.Linear(width, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = Schedule("a", Cluster.regular(1, num_workers), AllReduce())
    world = GlooWorld(store, rank, num_workers, timedelta(seconds=60))
    return DistributedOptimizer(inner, model, schedule, world=world), model


class AnswersAtOnce:
    """In place of gloo: the sum of equal arrays of so many workers, there as soon as it is asked for."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers

    def allreduce(self, tensors: list[Any], _options: object) -> AnswersAtOnce:
        tensors[0].mul_(self.num_workers)
        return self

    def is_completed(self) -> bool:
        return True

    def wait(self, *_limit: object) -> None:
        """It is there."""


def alone(layers: int) -> tuple[Any, Any]:
    """Worker 0 of four that have met in this process, and whose sums take no time."""
    import torch.distributed as dist

    store = dist.HashStore()
    found: dict[int, tuple[Any, Any]] = {}

    def work(rank: int) -> None:
        found[rank] = wrapped(store, rank, WORKERS, 8, layers)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    optimizer, model = found[0]
    optimizer.run.reducer.world.everyone()._backend = AnswersAtOnce(WORKERS)  # noqa: SLF001 - of whatever checkout
    return optimizer, model


def take_turns(port: int, side: str, rank: int, turns: int) -> None:
    """A process of one checkout: rank 0 to 3 of its workers, or further ones, which measure what is ours alone."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    is_alone = rank >= WORKERS
    own = dist.PrefixStore(f"workers of {side}", store)  # type: ignore[attr-defined]
    optimizer, model = alone(LAYERS[rank - WORKERS]) if is_alone else wrapped(own, rank, WORKERS, 1414)
    batch, repeated = torch.ones(1, model[0].in_features), 200 if is_alone else 10
    apart = [torch.nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    for parameter in apart:
        parameter.grad = torch.ones_like(parameter)
    plain = torch.optim.SGD(apart, lr=0.01)  # of numbers of its own, since nobody may step the wrapped one by itself

    def seconds(step: Callable[[], object]) -> tuple[float, float]:
        waited = worked = 0.0  # by the wall's clock, and of processors
        for _ in range(repeated):
            optimizer.zero_grad()
            model(batch).sum().backward()
            start, before = time.perf_counter(), time.process_time()
            step()
            waited, worked = waited + time.perf_counter() - start, worked + time.process_time() - before
        return waited / repeated, worked / repeated

    for turn in range(-1, turns):  # the first one is not counted
        store.wait([f"{turn} {side} {rank if is_alone else 'together'}"], timedelta(minutes=9))
        waited, worked = seconds(optimizer.step)
        if is_alone:
            worked -= seconds(plain.step)[1]
        store.set(f"{turn} {side} {rank} took", json.dumps([waited, worked]))
    store.wait(["over"], timedelta(minutes=9))
    os._exit(0)  # nobody finishes a run of which only one worker is real


def times(roots: list[Path], turns: int) -> None:
    """Print how long steps take in each checkout, and the ratio of the last to the first, by turns."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    started = [
        subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), "--turns", str(turns), "--process", *map(str, place)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        )
        for side, root in enumerate(roots)
        for place in ((store.port, side, rank) for rank in range(WORKERS + len(LAYERS)))
    ]
    together = list(range(WORKERS))
    asked = {"together": together} | {str(rank): [rank] for rank in range(WORKERS, WORKERS + len(LAYERS))}
    took: dict[tuple[str, int], list[list[list[float]]]] = {(who, side): [] for who in asked for side in range(2)}
    for turn in range(-1, turns):
        for who, ranks in asked.items():
            for side in range(len(roots)) if turn % 2 else reversed(range(len(roots))):
                store.set(f"{turn} {side} {who}", "1")
                keys = [f"{turn} {side} {rank} took" for rank in ranks]
                store.wait(keys, timedelta(minutes=9))
                if turn >= 0:
                    took[who, side].append([json.loads(store.get(key)) for key in keys])
    store.set("over", "1")
    for process in started:
        process.wait()
    print("| what | before | now | now ÷ before [quarters] |\n|---|--:|--:|--:|")
    rows: list[tuple[str, str, float, Callable[[list[list[float]]], float]]] = [
        ("step(), 4 workers, 8 MB, ms", "together", 1e3, lambda of_turn: max(waited for waited, _ in of_turn)),
        ("the same, ms of all processors", "together", 1e3, lambda of_turn: sum(worked for _, worked in of_turn)),
    ]
    for rank, layers in enumerate(LAYERS, WORKERS):
        what = f"ours of a step of {2 * layers} parameters, µs of the processor"
        rows.append((what, str(rank), 1e6, lambda of_turn: of_turn[0][1]))
    for what, who, unit, number in rows:
        before, now = ([number(of_turn) for of_turn in took[who, side]] for side in range(2))
        low, middle, high = statistics.quantiles((new / old for old, new in zip(before, now, strict=True)), n=4)
        row = f"{unit * statistics.median(before):.3g} | {unit * statistics.median(now):.3g}"
        print(f"| {what} | {row} | {middle:.3f} [{low:.3f}-{high:.3f}] |")


def a_plan(root: Path) -> dict[str, int]:
    """`plan` for 4x4 at an effort of 2, with what searches imported before."""
    import partreduce
    from partreduce.planner.plan import load_searchers

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "cluster.json"
        place.write_text(json.dumps(PLANNED))
        job = partreduce.Job(cluster=partreduce.load_cluster(place), effort=2.0)
    load_searchers()
    return traced(lambda: partreduce.plan(job), root)


def loaded_by(name: str, root: Path) -> list[str]:
    """The modules of ours that are loaded with a public name."""
    asked = f"import json, sys, partreduce; partreduce.{name}; print(json.dumps(list(sys.modules)))"
    command, environment = [sys.executable, "-c", asked], {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return [module for module in json.loads(done.stdout) if module.partition(".")[0] == "partreduce"]


def options(root: Path) -> int:
    return sum(
        isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Option", "typer.Argument")
        for path in files(root, "partreduce/commands")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def table(root: Path) -> dict[str, int]:
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
    parser.add_argument("--unreached", action="store_true", help="name modules that only tests and benchmarks need")
    parser.add_argument("--turns", type=int, help="time steps of both checkouts, so many times by turns")
    parser.add_argument("--process", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process is not None:
        port, side, rank = given.process
        take_turns(int(port), side, int(rank), given.turns)
        return
    if given.turns is not None:
        if given.beside is None:
            parser.error("--turns: times two checkouts; name the other one with --beside")
        times([given.beside.resolve(), ROOT], given.turns)
        return
    if given.json is not None:
        print(json.dumps(table(given.json.resolve())))
        return
    if given.climbs:
        edges = graph(ROOT)
        circles = [" ".join(sorted(one)) for one in nx.strongly_connected_components(edges) if len(one) > 1]
        print("\n".join([*climbs(edges, rooms(ROOT)), *circles]))
        return
    if given.unreached:
        found = unreached(ROOT)
        print("\n".join(f"{count:6} {name}" for name, count in found.items()))
        print(f"{sum(found.values()):6} lines in modules that neither the command line nor a public name needs")
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
