"""A slot for the files of one package that little else imports: its tests are collected once, for all mutants.

    python -m benchmarks.mutants.warm PACKAGE TEST [TEST …]     (in the copy)

It reads and answers as `slot` does, with the file in each task. A mutant is judged in a fork of a process that has
collected all tests. There the package is imported anew, and what other modules hold of it is exchanged for the new.
So a mutant costs the tests up to the first that fails. Tests that name the mutant's file come first.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from benchmarks.mutants.slot import OPTIONS, FirstFailure, judge_in_a_fork

if TYPE_CHECKING:
    from typing import TextIO


OURS = ("partreduce", "helpers", "tests", "benchmarks")


def exchange(package: str) -> None:
    """Import a package anew, all modules of it that are loaded, and let the other modules hold the new one."""
    old = {name: module for name, module in sys.modules.items() if f"{name}.".startswith(f"{package}.")}
    for name in old:
        del sys.modules[name]
    for name in old:
        importlib.import_module(name)
    for module in [m for name, m in sys.modules.items() if name.partition(".")[0] in OURS and name not in old]:
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if isinstance(value, ModuleType):
                if old.get(value.__name__) is value:
                    setattr(module, name, sys.modules[value.__name__])
            elif getattr(value, "__module__", None) in old and hasattr(value, "__qualname__"):
                setattr(module, name, getattr(sys.modules[value.__module__], value.__name__))


class Server:
    """Takes the place of pytest's loop over its tests."""

    def __init__(self, package: str, answers: TextIO) -> None:
        self.package, self.answers = package, answers
        self.failure = FirstFailure()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.dont_write_bytecode = True
        folder = Path(self.package.partition(".")[2].replace(".", "/"))
        cpu = self.judge(session, str(folder / "__init__.py"), 600)
        self.answer({"code": cpu["code"], "by": cpu["by"], "cpu": [cpu["cpu"]], "loaded": False})
        for line in sys.stdin:
            task = json.loads(line)
            path = Path(task["file"])
            original = path.read_bytes()
            for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                cached.unlink()
            path.write_text(task["source"], encoding="utf-8")
            outcome = self.judge(session, task["file"], 3 + 2 * cpu["cpu"])
            path.write_bytes(original)
            verdict = "survived" if outcome["code"] == 0 else "time" if outcome["by"] == "time" else "killed"
            self.answer({"verdict": verdict, "by": outcome["by"], "seconds": outcome["seconds"]})
        return True

    def answer(self, told: dict) -> None:
        self.answers.write(json.dumps(told) + "\n")
        self.answers.flush()

    def judge(self, session: pytest.Session, file: str, seconds: float) -> dict:
        """Run the tests on the file as it now stands, those first whose names hold it."""
        named = "/".join(Path(file).parts[2:])

        def run() -> int:
            exchange(self.package)
            items = sorted(session.items, key=lambda item: f"[{named}:" not in item.nodeid)
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.failure.name:
                    return 1
            return 0

        return judge_in_a_fork(run, self.failure, seconds)


def main() -> None:
    """Judge what comes in."""
    package, *tests = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    server = Server(package, answers)
    pytest.main([*tests, *OPTIONS, "-s"], plugins=[server, server.failure])


if __name__ == "__main__":
    main()
