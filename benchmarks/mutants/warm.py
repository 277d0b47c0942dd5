"""A slot for the files of one package that little else imports: its tests are collected once, for all mutants.

    python -m benchmarks.mutants.warm PACKAGE TEST [TEST …]     (in the copy)

It reads and answers as `slot` does, with the file and the line in each task. A mutant is judged in a fork of a process
that has collected all tests. There the package is imported again, and what other modules hold of it is exchanged for
the new. First all tests run once on the unchanged files, and each line of the package is noted with the tests that come
to it. So a mutant costs the tests of its line up to one that fails; those of its function where none was seen on the
line, and all tests at module level and in what only processes of their own execute. Those come first that cost least
for each mutant that they killed.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from hashlib import sha256
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING

import pytest

from benchmarks.mutants.slot import OPTIONS, FirstFailure, judge_in_a_fork

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    Lines = set[tuple[str, int]]
    Trace = Callable[[FrameType, str, object], "Trace | None"]


OURS = ("partreduce", "helpers", "tests", "benchmarks")


def exchange(package: str) -> None:
    """Import a package again, all modules of it that are loaded, and let the other modules hold the new one."""
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


NOTES = "MUTANTS_NOTES"
"""The variable that names a folder where processes leave for one another which tests come to which lines."""
CALLS, STEPS = 50, 5000
"""Lines are noted in so many calls of a function by one test, and in one call; the rest is the same."""


def tracer(folder: str, seen: Lines) -> Trace:
    """What `sys.settrace` calls to note the lines of a folder's files."""
    calls: Counter[CodeType] = Counter()

    def each_call(frame: FrameType, event: str, value: object) -> Trace | None:
        code = frame.f_code
        if not code.co_filename.startswith(folder) or calls[code] >= CALLS:
            return None
        calls[code] += 1
        left = STEPS

        def each_line(frame: FrameType, _event: str, _value: object) -> Trace:
            nonlocal left
            seen.add((code.co_filename, frame.f_lineno))
            left -= 1
            frame.f_trace_lines = left > 0
            return each_line

        return each_line(frame, event, value)

    return each_call


def body_around(source: str, line: int) -> range:
    """The lines of the innermost function's body in which a line stands, none outside of functions."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    bodies = [range(node.body[0].lineno, node.end_lineno + 1) for node in functions]
    return min((body for body in bodies if line in body), key=len, default=range(0))


class Server:
    """Takes the place of pytest's loop over its tests."""

    def __init__(self, package: str, answers: TextIO) -> None:
        self.package, self.answers = package, answers
        self.failure = FirstFailure()
        self.seconds: list[float] = []
        self.kills: Counter[tuple[str, ...]] = Counter()
        self.tests_of: defaultdict[tuple[str, int], list[int]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.dont_write_bytecode = True
        base = self.judge_unchanged(session)
        self.answer({"code": base["code"], "by": base["by"], "cpu": [base["cpu"]], "loaded": False})
        gc.freeze()  # so that no fork copies what it never changes
        for line in sys.stdin:
            task = json.loads(line)
            path = Path(task["file"])
            original = path.read_bytes()
            for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                cached.unlink()
            path.write_text(task["source"], encoding="utf-8")
            numbers = self.tests_on(task["file"], original.decode(), task["line"]) or range(len(session.items))
            here = f"{path}:{task['line']}"
            numbers = sorted(numbers, key=lambda number: self.price(number, session.items[number].nodeid, here))
            items = [session.items[number] for number in numbers]
            limit = 3 + 3 * sum(self.seconds[number] for number in numbers)
            outcome = judge_in_a_fork(lambda items=items: self.run(items), self.failure, limit)
            path.write_bytes(original)
            self.kills.update([(outcome["by"],), (outcome["by"], here)])
            verdict = "survived" if outcome["code"] == 0 else "time" if outcome["by"] == "time" else "killed"
            self.answer({"verdict": verdict, "by": outcome["by"], "seconds": outcome["seconds"]})
        return True

    def price(self, number: int, name: str, place: str) -> float:
        """Seconds of a test for each mutant that it killed; those of the same line count a hundred times."""
        return self.seconds[number] / (1 + self.kills[name,] + 100 * self.kills[name, place])

    def tests_on(self, file: str, source: str, line: int) -> set[int]:
        """The numbers of those tests that came to a line, or if none did, to its function."""
        path = str(Path("partreduce", file).absolute())
        lines = body_around(source, line)
        return set(self.tests_of[path, line]) or {number for other in lines for number in self.tests_of[path, other]}

    def answer(self, told: dict) -> None:
        self.answers.write(json.dumps(told) + "\n")
        self.answers.flush()

    def run(self, items: list[pytest.Item]) -> int:
        """Run tests, on the files as they now stand, up to the first that fails."""
        exchange(self.package)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failure.name:
                return 1
        return 0

    def judge_unchanged(self, session: pytest.Session) -> dict:
        """Run every test once, and learn the lines and the processor time of each; one process for all that follow."""
        folder = Path(self.package.replace(".", "/")).absolute()
        names = [item.nodeid for item in session.items]
        files = sorted({*folder.rglob("*.py"), *Path("tests").rglob("*.py")})
        digest = sha256(repr(names).encode() + b"".join(path.read_bytes() for path in files)).hexdigest()
        noted = Path(os.environ.get(NOTES, tempfile.mkdtemp())) / f"{self.package}.{digest}.jsonl"

        def traced() -> int:
            exchange(self.package)
            lines = []
            for item in session.items:
                seen: Lines = set()
                began = time.process_time()
                sys.settrace(tracer(str(folder), seen))
                item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
                sys.settrace(None)
                places = sorted((os.path.relpath(file, folder), line) for file, line in seen)
                lines.append(json.dumps([time.process_time() - began, places]) + "\n")
            if self.failure.name:
                return 1
            noted.write_text("".join(lines), encoding="utf-8")
            return 0

        known = {"code": 0, "by": "", "cpu": 0.0}
        outcome = known if noted.exists() else judge_in_a_fork(traced, self.failure, 1200)
        for number, line in enumerate(noted.read_text(encoding="utf-8").splitlines() if noted.exists() else ()):
            seconds, lines = json.loads(line)
            self.seconds.append(seconds)
            for file, place in lines:
                self.tests_of[str(folder / file), place].append(number)
        return outcome


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
