"""A process that judges mutants of one file, one after another, in a copy of the repository that is its own.

    python -m benchmarks.mutants.slot FILE STAGE [STAGE …]     (in the copy; a stage is pytest's arguments, by commas)

It reads `{"id": …, "source": …}` a line and answers `{"id": …, "verdict": …, "by": …, "seconds": …}`. Everything that
does not depend on the file is imported once; each mutant is then written into the copy and its tests run in a fork, so
that it costs the tests and little else. A mutant is `killed` by a failing test, out of `time` after several times the
processor time of the unchanged file, or `survived`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

FLOORS = ("topo", "schedulers", "verify", "runtime")
MEMORY = 3 << 30
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-W", "ignore:Module already imported", "--assert=plain", "--tb=no")
"""Why a test failed is not asked, so nothing is worded."""


class FirstFailure:
    """Remembers which test failed first."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name = f"collecting {report.nodeid}"


def judge(tests: list[str], seconds: float) -> dict:
    """Run tests in a fork; also tells which modules they imported."""
    failure = FirstFailure()
    return judge_in_a_fork(lambda: pytest.main([*tests, *OPTIONS], plugins=[failure]), failure, seconds)


def judge_in_a_fork(run: Callable[[], int], failure: FirstFailure, seconds: float) -> dict:
    """Let a fork run tests; what it says of them, the time it took, and which modules it imported."""
    reader, writer = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run(run, failure, seconds, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        told = stream.read()
    _, status, usage = os.wait4(child, 0)
    outcome = json.loads(told) if told else {"code": -1, "by": _death(status), "modules": []}
    return outcome | {"seconds": round(time.monotonic() - began, 2), "cpu": usage.ru_utime + usage.ru_stime}


def _death(status: int) -> str:
    name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
    return "time" if name in ("SIGXCPU", "SIGALRM", "SIGKILL") else name


def _run(run: Callable[[], int], failure: FirstFailure, seconds: float, writer: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.alarm(int(seconds * 20) + 60)  # a mutant that sleeps for ever; other work on the machine is no reason
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    code = 3
    try:
        code = run()
    except BaseException as error:  # noqa: BLE001 - whatever a mutant does to pytest, it was noticed
        failure.name = f"{type(error).__name__}: {error}"
    told = {"code": int(code), "by": failure.name, "modules": sorted(sys.modules)}
    os.write(writer, json.dumps(told).encode())
    os._exit(0)


def independent(modules: list[str], file: str) -> list[str]:
    """Those modules that cannot import the file: other packages', and the floors below its own."""
    package = file.split("/")[1]
    below = FLOORS[: FLOORS.index(package)] if package in FLOORS else FLOORS
    kept = []
    for name in modules:
        first, _, rest = name.partition(".")
        ours = first in ("partreduce", "benchmarks", "helpers", "tests", "conftest") or first.startswith("test_")
        if not ours or (first == "partreduce" and rest.split(".")[0] in below):
            kept.append(name)
    return kept


def main() -> None:
    """Judge what comes in."""
    file, *stages = sys.argv[1:]
    path, tests = Path(file), [stage.split(",") for stage in stages]
    original = path.read_bytes()
    quick = judge(tests[0], 600)
    for name in independent(quick["modules"], file):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    module = file.removesuffix(".py").replace("/", ".")
    loaded = module in sys.modules
    for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        cached.unlink()
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    base = [judge(stage, 600) for stage in tests]
    print(json.dumps({"code": max(o["code"] for o in base), "cpu": [o["cpu"] for o in base], "loaded": loaded,
                      "by": " ".join(o["by"] for o in base)}), flush=True)  # fmt: skip
    for line in sys.stdin:
        task = json.loads(line)
        path.write_text(task["source"], encoding="utf-8")
        seconds = 0.0
        for stage, unchanged in zip(tests, base, strict=True):
            outcome = judge(stage, 3 + 4 * unchanged["cpu"])
            seconds += outcome["seconds"]
            if outcome["code"]:
                break
        path.write_bytes(original)
        verdict = "survived" if outcome["code"] == 0 else "time" if outcome["by"] == "time" else "killed"
        print(json.dumps({"id": task["id"], "verdict": verdict, "by": outcome["by"], "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
