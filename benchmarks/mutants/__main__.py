"""Change the code in small ways, by mutmut, and say which changes no test notices.

    python -m benchmarks.mutants [--file FILE] [--sample N] [--seed S]
    python -m benchmarks.mutants --planted

mutmut changes one place of a function at a time, in a copy of the repository, and judges each mutant in a fork by those
tests of `targets.toml` that come to its function. A line per file at the end: mutants judged, killed, survivors that
`accepted.toml` gives a reason for, and survivors without a name; the score is killed / (judged − equivalent),
with Wilson's 95 % interval when it is of a sample. Exit code 1 if a survivor has no name. What mutmut has judged stands
in build/mutants/ until the file or its tests change.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.kit import ROOT, parser, read_toml

BUILD = ROOT / "build" / "mutants"
ACCEPTED = read_toml(Path(__file__).with_name("accepted.toml"))
PLANTED = read_toml(Path(__file__).with_name("planted.toml"))
AT_ONCE = ("--max-children", "2")
ISOLATED = "not program"
"""The tests to run: a checker started as a program, without site-packages, cannot import mutmut."""
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-W", "ignore:Module already imported", "--tb=no")


def targets() -> dict[str, list[str]]:
    """Return the tests that judge each file."""
    found = {}
    for row in read_toml(Path(__file__).with_name("targets.toml"))["targets"]:
        for pattern in row["files"]:
            paths = [path for path in sorted(ROOT.glob(pattern)) if path.stem not in ("__main__", "program")]
            if not paths:
                sys.exit(f"targets.toml: there is no {pattern}")
            found |= {str(path.relative_to(ROOT)): [f"tests/{test}" for test in row["tests"]] for path in paths}
    return found


TARGETS = targets()


def git_files(*options: str) -> list[str]:
    command = ["git", "ls-files", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def copy_repository(name: str, settings: str = "") -> Path:
    """Copy the repository, links as links, so that the checkout itself is never changed."""
    copy = BUILD / name
    for source, target in ((ROOT / one, copy / one) for one in git_files("-co", "--exclude-standard")):
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    with (copy / "pyproject.toml").open("a") as file:
        file.write(settings)
    return copy


def mutmut(copy: Path, *words: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "mutmut", *words]
    done = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if "failed to collect stats" in done.stdout:
        sys.exit(f"{copy.name}: its tests fail without any change:\n{done.stdout[-3000:]}")
    return done.stdout


def judge(file: str, *, sample: int | None, seed: int) -> tuple[dict[str, str], Path]:
    """Return the verdict of every judged mutant, and the path of the copy."""
    tops = sorted({path.split("/")[0] for path in git_files() if path != "pyproject.toml"})
    settings = {"source_paths": [file], "pytest_add_cli_args_test_selection": TARGETS[file], "also_copy": tops}
    settings["pytest_add_cli_args"] = ["-k", ISOLATED]
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    copy = copy_repository(file.replace("/", "."), f"\n[tool.mutmut]\n{text}")
    if sample is None:
        mutmut(copy, "run", *AT_ONCE)
    else:
        mutmut(copy, "run", "of no mutant")  # which makes all of them, and judges none
        known = sorted(json.loads((copy / "mutants" / f"{file}.meta").read_text())["exit_code_by_key"])
        random.Random(seed).shuffle(known)  # a larger sample holds the smaller one
        mutmut(copy, "run", *AT_ONCE, *known[:sample])
    results = (line.strip().partition(": ") for line in mutmut(copy, "results", "--all", "true").splitlines())
    verdicts = {name: verdict for name, _, verdict in results if "__mutmut_" in name}
    return {name: verdict for name, verdict in verdicts.items() if verdict != "not checked"}, copy


def reason(file: str, difference: str) -> str:
    """Return what `accepted.toml` says about a survivor: "equivalent", "taste", or "".

    Without `now` an entry stands for any change of the lines `was`; without `was` for any change to the lines `now`.
    """
    lines = [line for line in difference.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    signs = {"was": "-", "now": "+"}
    row = {what: "\n".join(one[1:].strip() for one in lines if one[0] == sign) for what, sign in signs.items()}
    for entry in ACCEPTED.get(file, []):
        if all(row[text] == entry.get(text, row[text]) for text in ("was", "now")):
            return entry["verdict"]
    return ""


def report(file: str, verdicts: dict[str, str], copy: Path, *, is_sample: bool) -> bool:
    """Print one file's score; return whether every survivor is accepted."""
    from scipy.stats import binomtest

    alive = [name for name, verdict in verdicts.items() if verdict in ("survived", "no tests")]
    shown = {name: mutmut(copy, "show", name) for name in alive}
    reasons = [reason(file, shown[name]) for name in alive]
    equivalent, unnamed = reasons.count("equivalent"), [n for n, r in zip(alive, reasons, strict=True) if not r]
    killed, judged = len(verdicts) - len(alive), len(verdicts) - equivalent
    score = f"{killed}/{judged} = {killed / max(judged, 1):.1%}"
    if is_sample and judged:
        low, high = binomtest(killed, judged).proportion_ci(method="wilson")
        score += f" (95 % interval {low:.1%} to {high:.1%}; a sample of {len(verdicts)})"
    print(f"{file}: {score}; {equivalent} equivalent, {reasons.count('taste')} of taste, {len(unnamed)} unnamed")
    for name in unnamed:
        print(f"{verdicts[name]}\n{shown[name]}", flush=True)
    return bool(verdicts) and not unnamed


def judge_planted() -> bool:
    """Judge the planted bugs and print which test kills each; return whether all are killed."""
    dead, copy = True, copy_repository("planted")
    environment = os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{copy / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    for file, bugs in PLANTED.items():
        source = (ROOT / file).read_text(encoding="utf-8")
        for bug in bugs:
            if source.count(bug["was"]) != 1:
                sys.exit(f"{file}: {bug['was']!r} stands there {source.count(bug['was'])} times, not once")
            (copy / file).write_text(source.replace(bug["was"], bug["now"]), encoding="utf-8")
            command = [sys.executable, "-m", "pytest", *OPTIONS, "-rfE", *TARGETS[file]]
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
            output = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            dead &= done.returncode == 1
            print(
                f"{bug['bug']}: {output[0] if output else f'nothing failed, exit code {done.returncode}'}", flush=True
            )
        (copy / file).write_text(source, encoding="utf-8")
    return dead


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--file", action="append", choices=TARGETS, help="only this file; may be repeated")
    arguments.add_argument("--sample", type=int, help="so many mutants of each file, drawn at random")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--planted", action="store_true", help="only the bugs of planted.toml, with what kills each")
    chosen = arguments.parse_args()
    if chosen.planted:
        sys.exit(0 if judge_planted() else 1)
    good = True
    for file in chosen.file or TARGETS:
        verdicts, copy = judge(file, sample=chosen.sample, seed=chosen.seed)
        good &= report(file, verdicts, copy, is_sample=chosen.sample is not None)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
