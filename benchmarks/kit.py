"""Functions for every experiment: arguments, workers that measure in turns, curves, and tables of results."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import pkgutil
import platform
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"

Way = Callable[[int], Callable[[], object]]
"""One contestant: a function that prepares a turn and returns the function to time."""
Times = dict[str, list[list[float]]]


def import_all(*packages: ModuleType) -> None:
    """Import every module of packages, before forks, except adapters of libraries that are not installed."""
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as missing:
                if missing.name is None or missing.name.startswith("partreduce"):
                    raise


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a file, with None for "$none"."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return None if value == "$none" else value

    tables: dict[str, Any] = plain(tomllib.loads(path.read_text(encoding="utf-8")))
    return tables


def parser(words: str) -> argparse.ArgumentParser:
    """Return an argument parser whose help is `words`, usually a module's docstring."""
    return argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)


def command(module: str) -> str:
    return f"python -m benchmarks.{module} " + " ".join(sys.argv[1:])


def commit() -> str:
    arguments = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()


def one_thread() -> None:
    """Use one thread in torch, for networks so small that threads and fast kernels cost more than they save."""
    import torch

    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)


def end_after(seconds: float) -> None:
    """Kill this process by an alarm after some seconds, even if it hangs."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(seconds)))


def run_bounded(
    command: Sequence[str], output: Path, limit: float, environment: dict[str, str] | None = None
) -> int | None:
    """Return the exit code of a command, None if it was killed at the limit; its child processes end with it."""
    with output.open("w") as sink:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def machine() -> str:
    """Return a description of the machine, to print next to numbers that depend on it."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {load:.1f}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def middle(values: Sequence[float], form: str = ".2f", *, quarters: bool = False) -> str:
    """Format the median with minimum and maximum, or with the quartiles."""
    ordered = sorted(values)
    place = len(ordered) // 4 if quarters else 0
    low, high = ordered[place], ordered[-1 - place]
    return f"{statistics.median(ordered):{form}} [{low:{form}}-{high:{form}}]"


def loss_crossing(curve: Iterable[Sequence[float]], target: float) -> tuple[float, ...] | None:
    """Return the interpolated point at which a curve's losses, the last entries of its points, fall to a target."""
    for (*before, high), (*after, low) in pairwise(curve):
        if low <= target:
            part = 1.0 if high <= target or high == low else (high - target) / (high - low)
            return tuple(a + part * (b - a) for a, b in zip(before, after, strict=True))
    return None


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts)]) + "\n"


def write(path: Path | None, title: str, *parts: str) -> None:
    text = page(title, *parts)
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".md").write_text(text)


def on_workers(action: Callable[[], Any], count: int) -> list[Any]:
    """Return by rank what `action()` returns in `count` processes with the environment of torchrun's workers."""
    from partreduce.runtime.launcher.launch import launch

    folder = Path(tempfile.mkdtemp(prefix="partreduce-bench-"))  # a TemporaryDirectory would go with the first worker

    def work() -> None:
        (folder / os.environ["RANK"]).write_text(json.dumps(action()))

    output = io.StringIO()
    try:
        if launch(work, num_workers=count, threads=1, output=output):
            raise SystemExit(output.getvalue())
        return [json.loads((folder / str(rank)).read_text()) for rank in range(count)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take_turns(ways: Mapping[str, Way], meet: Callable[[], object], turns: int, *, warm_up: int = 2) -> Times:
    """Return start and end of every turn of every way, on one worker.

    The ways of a turn run one after another in an order that changes from turn to turn, so that other load on the
    machine affects all equally. `meet` waits for all workers.
    """
    times: Times = {name: [] for name in ways}
    for turn in range(-warm_up, turns):
        for name in random.Random(turn).sample(list(ways), len(ways)):
            act = ways[name](turn)
            meet()
            start = time.monotonic()
            act()
            if turn >= 0:
                times[name].append([start, time.monotonic()])
    return times


def spans(workers: Sequence[Times]) -> dict[str, list[float]]:
    """Return the milliseconds of each turn, from the last worker's start to the last worker's end."""
    return {
        name: [
            1e3 * (max(end for _, end in turn) - max(start for start, _ in turn))
            for turn in zip(*(worker[name] for worker in workers), strict=True)
        ]
        for name in workers[0]
    }


def ratios(found: Mapping[str, Sequence[float]], name: str, base: str) -> list[float]:
    """Return each turn's time divided by the base's in the same turn."""
    return [ours / theirs for ours, theirs in zip(found[name], found[base], strict=True)]


def new_lines(path: Path, place: int = 0) -> tuple[list[Any], int]:
    """Return (JSON lines of a file from a byte on, where they end), without a last line that is incomplete."""
    if not path.exists():
        return [], place
    with path.open("rb") as file:
        file.seek(place)
        whole = file.read().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.split(b"\n") if line], place + len(whole) + bool(whole)


def compact(content: dict[str, Any], *, digits: int = 6) -> str:
    """Return JSON with rounded numbers and a line per member of `content`, of objects in it, and of lists' rows."""
    return _in_lines(_round(content, digits), 1, depth=2) + "\n"


def _in_lines(value: Any, indent: int, *, depth: int) -> str:
    if isinstance(value, dict) and value and depth:
        lines = [f"{json.dumps(key)}: {_in_lines(inner, indent + 1, depth=depth - 1)}" for key, inner in value.items()]
        first, last = "{}"
    elif isinstance(value, list) and any(isinstance(row, dict | list) for row in value):
        lines, (first, last) = [json.dumps(row) for row in value], "[]"
    else:
        return json.dumps(value)
    inside = ",\n".join(" " * indent + line for line in lines)
    return f"{first}\n{inside}\n{' ' * (indent - 1)}{last}"


def _round(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _round(inner, digits) for key, inner in value.items()}
    return [_round(inner, digits) for inner in value] if isinstance(value, list | tuple) else value
