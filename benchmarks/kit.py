"""What every experiment needs: its arguments, workers that measure in turns, curves, and tables that are kept."""

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
"""One contestant: prepares a turn and returns what is timed."""
Times = dict[str, list[list[float]]]


def import_all(*packages: ModuleType) -> None:
    """Every module of packages, before forks, but for adapters of libraries that are not installed."""
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as missing:
                if missing.name is None or missing.name.startswith("partreduce"):
                    raise


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file, in which "$none" stands for None."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return None if value == "$none" else value

    tables: dict[str, Any] = plain(tomllib.loads(path.read_text(encoding="utf-8")))
    return tables


def parser(words: str) -> argparse.ArgumentParser:
    """Arguments of a module, whose docstring is the help."""
    return argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)


def command(module: str) -> str:
    return f"python -m benchmarks.{module} " + " ".join(sys.argv[1:])


def commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(asked, capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()


def one_thread() -> None:
    """For networks so small that torch's threads, and the set-up of its fast kernels, cost more than they save."""
    import torch

    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)


def end_after(seconds: float) -> None:
    """Let an alarm end this process if it hangs, whatever it hangs in."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(seconds)))


def run_bounded(
    command: Sequence[str], output: Path, limit: float, environment: dict[str, str] | None = None
) -> int | None:
    """The exit code of a command, None if it was ended at the limit; what it has started ends with it."""
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
    """A port that no one listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def machine() -> str:
    """What stands next to numbers that depend on it."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {load:.1f}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def middle(values: Sequence[float], form: str = ".2f", *, quarters: bool = False) -> str:
    """The median with its ends, or with the quarters."""
    ordered = sorted(values)
    place = len(ordered) // 4 if quarters else 0
    low, high = ordered[place], ordered[-1 - place]
    return f"{statistics.median(ordered):{form}} [{low:{form}}-{high:{form}}]"


def loss_crossing(curve: Iterable[Sequence[float]], target: float) -> tuple[float, ...] | None:
    """Where the losses of a curve, which end its points, first fall to a target, on straight lines between them."""
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
    """What `action()` returns in so many processes of this machine, by rank; they see what torchrun's workers see."""
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
    """The start and the end of every turn of every way, on one worker.

    Ways of a turn stand side by side in an order that changes from turn to turn, so that what else the machine does
    hits all equally. `meet` waits for all workers.
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


def spans(said: Sequence[Times]) -> dict[str, list[float]]:
    """Milliseconds of each turn, from the last worker's start to the last one's end."""
    return {
        name: [
            1e3 * (max(end for _, end in turn) - max(start for start, _ in turn))
            for turn in zip(*(worker[name] for worker in said), strict=True)
        ]
        for name in said[0]
    }


def ratios(found: Mapping[str, Sequence[float]], name: str, base: str) -> list[float]:
    """Turn by turn, over what the base took next to it."""
    return [ours / theirs for ours, theirs in zip(found[name], found[base], strict=True)]


def new_lines(path: Path, place: int = 0) -> tuple[list[Any], int]:
    """The JSON lines of a file from a byte on, and where that ends; none that is still being written, or cut short."""
    if not path.exists():
        return [], place
    with path.open("rb") as file:
        file.seek(place)
        whole = file.read().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.split(b"\n") if line], place + len(whole) + bool(whole)


def compact(content: dict[str, Any], *, digits: int = 6) -> str:
    """JSON with a line for each member of `content`, of an object in it, and of each row of a list; numbers rounded."""
    lines = ",\n".join(f" {json.dumps(key)}: {_member(_round(value, digits))}" for key, value in content.items())
    return f"{{\n{lines}\n}}\n"


def _member(value: Any) -> str:
    if isinstance(value, dict) and value:
        lines = ",\n".join(f"  {json.dumps(key)}: {_rows(inner, 3)}" for key, inner in value.items())
        return f"{{\n{lines}\n }}"
    return _rows(value, 2)


def _rows(value: Any, indent: int) -> str:
    if isinstance(value, list) and any(isinstance(row, dict | list) for row in value):
        lines = ",\n".join(" " * indent + json.dumps(row) for row in value)
        return f"[\n{lines}\n{' ' * (indent - 1)}]"
    return json.dumps(value)


def _round(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _round(inner, digits) for key, inner in value.items()}
    return [_round(inner, digits) for inner in value] if isinstance(value, list | tuple) else value
