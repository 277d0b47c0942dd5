"""Change the code in small ways and say which changes no test notices.

    python -m benchmarks.mutants [--file FILE] [--sample N] [--seed S] [--jobs 2] [--again] [--quick] [--fresh]
    python -m benchmarks.mutants --planted

A line per file at the end: mutants judged, killed, survivors that `accepted.toml` gives a reason for, and survivors
that nobody has named; the score is killed / (judged − equivalent), with Wilson's 95 % interval when it is of a sample.
Exit code 1 if a survivor has no name, or a name no line. Sessions stand in build/mutants/, a line per mutant, and go
on where they stopped as long as the file and its tests are the same; `--again` keeps whom the last run killed,
whatever has changed since, and judges all others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue

from scipy.stats import binomtest

from benchmarks.mutants.mutations import Mutant, mutants_of
from benchmarks.mutants.targets import ROOT, TARGETS
from benchmarks.mutants.warm import NOTES, body_around

BUILD = ROOT / "build" / "mutants"
ACCEPTED = Path(__file__).with_name("accepted.toml")
PLANTED = Path(__file__).with_name("planted.toml")


def copied(number: int) -> Path:
    """A fresh copy of the repository, links as links, for one slot: nothing is ever changed in the checkout itself."""
    copy = BUILD / f"copy-{number}"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for old in [path for path in copy.rglob("*") if path.is_symlink() or (path.is_file() and path.suffix != ".pyc")]:
        if str(old.relative_to(copy)) not in listed:
            old.unlink()
    for name in listed:
        source, target = ROOT / name, copy / name
        if not source.is_symlink() and not source.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink():
            target.unlink()
        shutil.copy2(source, target, follow_symlinks=False)
    return copy


class Session:
    """What is known of one file's mutants, in build/mutants/; a line per mutant as it is judged."""

    def __init__(self, file: str, *, stages: int, again: bool, fresh: bool, name: str = "") -> None:
        tests = [path for stage in TARGETS[file][:stages] for name in stage for path in [ROOT / name.split("::")[0]]]
        text = b"".join(path.read_bytes() for path in (ROOT / file, *tests))
        self.digest = hashlib.sha256(text + bytes([stages])).hexdigest()
        self.path = BUILD / ((name or file).replace("/", ".") + ".jsonl")
        self.rows: dict[str, dict] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        known = json.loads(lines[0])["digest"] == self.digest if lines else False
        rows = [json.loads(line) for line in lines[1:]]
        last = {_key(row): row for row in rows}
        if (known or again) and not fresh:
            self.rows = {key: row for key, row in last.items() if not again or row["verdict"] != "survived"}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        header = json.dumps({"digest": self.digest})
        kept = "".join(json.dumps(row) + "\n" for row in self.rows.values())
        self.path.write_text(header + "\n" + kept, encoding="utf-8")

    def add(self, row: dict) -> None:
        """One more verdict."""
        self.rows[_key(row)] = row
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")


def _key(row: dict) -> str:
    return f"{row['line']}|{row['operator']}|{row['was']}|{row['now']}"


def slot_command(file: str, stages: tuple[tuple[str, ...], ...]) -> list[str]:
    """What starts a slot: for files of the checker, which little imports, one that collects its tests only once."""
    if file.startswith("partreduce/verify/checker/"):
        package = "partreduce.verify.checker"
        return [sys.executable, "-m", "benchmarks.mutants.warm", package, *(test for stage in stages for test in stage)]
    return [sys.executable, "-m", "benchmarks.mutants.slot", file, *map(",".join, stages)]


class Slots:
    """Processes that judge, each in a copy of its own; one whose command fits the next file as well continues."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[list[str], subprocess.Popen[str]]] = {}
        self._starting = threading.Lock()  # the second learns from the first which tests come to which lines

    def of(self, number: int, command: list[str]) -> tuple[subprocess.Popen[str], dict | None]:
        """The process in that place, and what it said of the unchanged files if it is new."""
        if number in self._running:
            if self._running[number][0] == command:
                return self._running[number][1], None
            self.end(number)
        with self._starting:
            return self._started(number, command)

    def _started(self, number: int, command: list[str]) -> tuple[subprocess.Popen[str], dict]:
        copy = copied(number)
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1",
                                    "OMP_NUM_THREADS": "1", NOTES: str(BUILD)}  # fmt: skip
        process = subprocess.Popen(
            command, cwd=copy, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._running[number] = (command, process)
        return process, json.loads(process.stdout.readline())

    def end(self, number: int) -> None:
        """Let one end."""
        process = self._running.pop(number)[1]
        process.stdin.close()
        process.wait()

    def close(self) -> None:
        """Let all end."""
        for number in list(self._running):
            self.end(number)


def judge(slots: Slots, file: str, mutants: list[Mutant], session: Session, *, jobs: int, stages: int) -> None:
    """Let slots judge the mutants, side by side."""
    queue: SimpleQueue[Mutant] = SimpleQueue()
    for mutant in mutants:
        queue.put(mutant)
    lock, began, done, failures = threading.Lock(), time.monotonic(), [0], list[str]()
    print(f"{file}: {len(mutants)} mutants", flush=True)

    def slot(number: int) -> None:
        process, base = slots.of(number, slot_command(file, TARGETS[file][:stages]))
        if base is not None and (base["code"] or base["loaded"]):
            failures.append(f"{file}: its tests fail without any change: {base['by'] or base}")
            return
        if base is not None and number == 0:
            print(f"  unchanged, its tests take {base['cpu']} CPU s", flush=True)
        while True:
            try:
                mutant = queue.get_nowait()
            except Empty:
                return
            task = {"id": 0, "file": file, "line": mutant.line, "source": mutant.source}
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            row = asdict(mutant) | {key: answer[key] for key in ("verdict", "by", "seconds")}
            del row["source"]
            with lock:
                session.add(row)
                done[0] += 1
                if row["verdict"] == "survived" or done[0] % 50 == 0:
                    speed = (time.monotonic() - began) / done[0]
                    print(f"  {done[0]}/{len(mutants)}, {speed:.2f} s each", flush=True)
                if row["verdict"] == "survived":
                    print(_shown(file, row), flush=True)

    threads = [threading.Thread(target=slot, args=(number,)) for number in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(failures[0])


def _shown(file: str, row: dict) -> str:
    return f"  survived: {file}:{row['line']} ({row['operator']})\n    - {row['was']}\n    + {row['now']}"


def _accepted(file: str, row: dict) -> str:
    """What `accepted.toml` says of a survivor: "equivalent", "taste", or nothing.

    Without `now` any change of the lines is meant; without `was` any change to those lines.
    """
    for entry in _entries().get(file, []):
        if all(row[text] == entry.get(text, row[text]) for text in ("was", "now")):
            return entry["verdict"]
    return ""


@cache
def _entries() -> dict[str, list[dict]]:
    return tomllib.loads(ACCEPTED.read_text("utf-8"))


def report(file: str, rows: list[dict], *, is_sample: bool) -> bool:
    """Print one file's score; whether every survivor has a name, and every name its line."""
    survivors = [row for row in rows if row["verdict"] == "survived"]
    verdicts = [_accepted(file, row) for row in survivors]
    equivalent, named = verdicts.count("equivalent"), len(verdicts) - verdicts.count("")
    killed, judged = len(rows) - len(survivors), len(rows) - equivalent
    score = f"{killed}/{judged} = {killed / max(judged, 1):.1%}"
    if is_sample and judged:
        low, high = binomtest(killed, judged).proportion_ci(method="wilson")
        score += f" (95 % interval {low:.1%} to {high:.1%}; a sample of {len(rows)})"
    unnamed = [row for row, verdict in zip(survivors, verdicts, strict=True) if not verdict]
    print(f"{file}: {score}; {equivalent} equivalent, {named - equivalent} of taste, {len(unnamed)} unnamed")
    for row in unnamed:
        print(_shown(file, row))
    text = "\n".join(line.strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines())
    gone = [entry["was"] for entry in _entries().get(file, []) if entry["was"] not in text]
    for was in gone:
        print(f"  {ACCEPTED.name} names what is gone: {was}")
    return not unnamed and not gone


def planted() -> bool:
    """Judge the bugs of `planted.toml`, and print which test kills each; whether all are dead."""
    dead, slots = True, Slots()
    for file, bugs in tomllib.loads(PLANTED.read_text("utf-8")).items():
        source = (ROOT / file).read_text(encoding="utf-8")
        for bug in bugs:
            if source.count(bug["was"]) != 1:
                sys.exit(f"{file}: {bug['was']!r} stands there {source.count(bug['was'])} times, not once")
        mutants = [Mutant(0, bug["bug"], "", "", source.replace(bug["was"], bug["now"])) for bug in bugs]
        session = Session(file, stages=1, again=False, fresh=True, name=f"planted.{file}")
        judge(slots, file, mutants, session, jobs=1, stages=1)
        for row in session.rows.values():
            print(f"{row['operator']}: {row['verdict']} by {row['by'] or 'nothing'}")
            dead &= row["verdict"] != "survived"
    slots.close()
    return dead


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--file", action="append", choices=TARGETS, help="only this file; may be repeated")
    parser.add_argument("--sample", type=int, help="so many mutants of each file, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="keep whom the last run killed, and judge the others")
    parser.add_argument("--quick", action="store_true", help="the quick tests only")
    parser.add_argument("--fresh", action="store_true", help="forget the last session")
    parser.add_argument("--planted", action="store_true", help="only the bugs of planted.toml, with what kills each")
    chosen = parser.parse_args()
    if chosen.planted:
        sys.exit(0 if planted() else 1)
    good, slots = True, Slots()
    for file in chosen.file or TARGETS:
        stages = 1 if chosen.quick else len(TARGETS[file])
        source = (ROOT / file).read_text(encoding="utf-8")
        seed = None if chosen.sample is None else chosen.seed
        picked = list(islice(mutants_of(source, seed=seed), chosen.sample))  # a larger sample holds the smaller one
        session = Session(file, stages=stages, again=chosen.again, fresh=chosen.fresh)
        keys = {_key(asdict(mutant)): mutant for mutant in picked}
        todo = [m for k, m in keys.items() if k not in session.rows]
        todo.sort(key=lambda mutant: not body_around(source, mutant.line))  # all tests judge what is in no function
        if todo:
            judge(slots, file, todo, session, jobs=min(chosen.jobs, len(todo)), stages=stages)
        good &= report(
            file, [session.rows[k] for k in keys if k in session.rows], is_sample=len(picked) == chosen.sample
        )
    slots.close()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
