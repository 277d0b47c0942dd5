"""What grows with the workers: designing, proving and checking at 10³ … 10⁶ of them.

    python -m benchmarks.scale [planner] [rules] [commands] [certificates] [failure-plans] [--sizes 1e3 1e6] [-o F]

* planner: the command `partreduce design NODESx8` with its default effort, from one node on.
* rules: three rules from their design to a checked certificate, in one process; commands: the three of them, typed.
* failure-plans: what survivors run after the failure of up to 1 or 2 workers, or of one node: planned for two rules
  and, up to some workers, for random groups, proved and checked; `said` has the rule and bytes of the file.
* certificates: random groups of four, period 8, proved and checked.

Every row is measured in its own process, which has gone the same way with 32 workers before, so that imports do
not count and peak memory is the row's. Seconds of processors, children included, tell more than wall-clock seconds on a
machine that is shared.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.kit import ROOT, command, machine, parser, table, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partreduce.topo.schedule import Schedule

    Stages = Iterator[tuple[str, Callable[[], object]]]
    """Names and actions, in order; what an action returns is printed."""

SMALL, GROUP, PERIOD, RACK = 32, 4, 8, 8
SURVIVED = ("prague-figure-10", "node-then-all", "random groups")
MOST = {"default effort": 8_000, "random groups, 1": 256, "random groups, 2": 16}
"""Most workers: for the planner by effort, for random groups by failures, where each failure is its own class."""


def rule(name: str, workers: int, folder: Path) -> Stages:
    import partreduce
    from partreduce.topo.document.schedule import load_schedule
    from partreduce.topo.document.writer import write_schedule
    from partreduce.topo.metrics import metrics
    from partreduce.verify import prove

    schedule = folder / "s.json"

    def verify() -> str:
        loaded = load_schedule(schedule)
        (folder / "c.json").write_bytes(_certificate_of(prove(loaded)))
        found = metrics(loaded)
        return f"contraction {float(found.contraction):.6f}, consensus distance {float(found.consensus_distance):.4f}"

    yield "design", lambda: write_schedule(schedule, partreduce.design(f"{workers // GROUP}x{GROUP}", build=name))
    yield "prove, with metrics", verify
    yield "check", lambda: _check(folder)


def commands(_: str, workers: int, folder: Path) -> Stages:
    """The commands that a user types, from start to exit."""
    cluster, schedule, certificate = f"{workers // GROUP}x{GROUP}", str(folder / "s.json"), str(folder / "c.json")
    ours = [sys.executable, "-m", "partreduce"]
    yield "design", lambda: _run([*ours, "design", cluster, "--build", "prague-figure-10", "-o", schedule])
    yield "verify", lambda: _run([*ours, "verify", schedule, "--certificate", certificate])
    yield "check", lambda: _check(folder)


def planner(_: str, workers: int, __: Path) -> Stages:
    """The search as a user starts it, with default links and model."""
    nodes = max(1, workers // RACK)
    words = [sys.executable, "-m", "partreduce", "design", f"{nodes}x{RACK}", "--model-bytes", "100MB"]

    def make_plan() -> str:
        chosen = json.loads(_run([*words, "--json"]))["recommendation"]
        return f"{nodes}x{RACK}: {chosen['name']}, {chosen['sync']}"

    yield "design", make_plan


def failure_plans(name: str, workers: int, folder: Path) -> Stages:
    import partreduce
    from partreduce.planner.failure_plans import survival
    from partreduce.planner.job import PlanRequest
    from partreduce.topo.document.schedule import load_schedule
    from partreduce.topo.document.writer import write_schedule
    from partreduce.topo.hardware import Hardware, Link

    of, _, lost = name.rpartition(", ")
    hardware = Hardware(nic=Link(2e-5, 2e-10), inside=Link(5e-6, 1e-10), model_bytes=100_000_000, compute=0.05)
    cluster = partreduce.Cluster.regular(workers // GROUP, GROUP, hardware=hardware)
    schedule = random_groups(workers) if of == "random groups" else partreduce.design(cluster, build=of)
    file = folder / "s.json"

    def make_plan() -> str:
        found = survival(schedule, PlanRequest(cluster=cluster, tolerate_failures=int(lost))).schedule
        write_schedule(file, found)
        assert found.failure_plan is not None, "planned"
        return f"{found.failure_plan.rule}, file of {file.stat().st_size:,} bytes"

    yield "plan", make_plan
    yield from _prove_and_check(lambda: load_schedule(file), folder)


def random_groups(workers: int) -> Schedule:
    import numpy as np

    from partreduce.topo.cluster import Cluster
    from partreduce.topo.phase import Phase
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies import GroupPhases, StaticGroups

    rng = np.random.default_rng(1)
    phases = tuple(Phase.from_labels(rng.permutation(workers) // GROUP) for _ in range(PERIOD))
    return Schedule("random-groups", Cluster.regular(workers // GROUP, GROUP), StaticGroups(phases=GroupPhases(phases)))


def certificate(_: str, workers: int, folder: Path) -> Stages:
    from partreduce.topo.document.writer import write_schedule

    schedule = random_groups(workers)
    write_schedule(folder / "s.json", schedule)
    yield from _prove_and_check(lambda: schedule, folder)


def _prove_and_check(schedule: Callable[[], Schedule], folder: Path) -> Stages:
    from partreduce.verify import prove

    yield "prove", lambda: (folder / "c.json").write_bytes(_certificate_of(prove(schedule())))
    yield "check", lambda: _check(folder)


def _certificate_of(proof: Any) -> bytes:
    from partreduce.verify.certificate import certificate_bytes

    assert proof.verdict.value == "proved", proof
    return certificate_bytes(proof.certificate)


def _check(folder: Path) -> str:
    files = [str(folder / name) for name in ("c.json", "s.json")]
    _run([sys.executable, "-I", "-S", str(ROOT / "verify/checker"), "--max-bytes", str(10**9), *files])
    return f"certificate of {(folder / 'c.json').stat().st_size:,} bytes"


def _run(words: list[str]) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


WAYS: dict[str, tuple[Callable[[str, int, Path], Stages], tuple[str, ...]]] = {
    "planner": (planner, ("default effort",)),
    "rules": (rule, ("prague-figure-10", "node-then-all", "hyper-cuboid")),
    "commands": (commands, ("prague-figure-10",)),
    "certificates": (certificate, ("random groups",)),
    "failure-plans": (failure_plans, tuple(f"{of}, {k}" for of in SURVIVED for k in (1, 2))),
}


def measure(what: str, name: str, workers: int) -> None:
    """Measure in its own process; print [stage, seconds, processor seconds, result] and the peak memory as JSON."""
    make, rows = WAYS[what][0], []
    with tempfile.TemporaryDirectory() as folder:
        for _, action in make(name, SMALL, Path(folder)) if what not in {"commands", "planner"} else ():
            action()
        for stage, action in make(name, workers, Path(folder)):
            clock, work = time.perf_counter(), _processor_seconds()
            message = str(action() or "").partition("\n")[0]  # a row of a table has one line
            rows.append([stage, time.perf_counter() - clock, _processor_seconds() - work, message])
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"rows": rows, "peaks": peaks}))


def _processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def rows_of(what: str, name: str, workers: int, repeats: int) -> list[list[object]]:
    """Return a row per stage with the medians of the repetitions."""
    words = [sys.executable, "-m", "benchmarks.scale", "--one", what, name, str(workers)]
    runs = [
        json.loads(subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for _ in range(repeats)
    ]
    rows: list[list[object]] = []
    for stages in zip(*(run["rows"] for run in runs), strict=True):
        seconds, cpu = (median(stage[place] for stage in stages) for place in (1, 2))
        peak = ", ".join(f"{max(run['peaks'][place] for run in runs):.0f}" for place in (0, 1))
        rows.append([what, name, f"{workers:,}", stages[0][0], f"{seconds:.3f}", f"{cpu:.3f}", peak, stages[0][3]])
    return rows


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("what", nargs="*", help=f"of {', '.join(WAYS)}; default all")
    arguments.add_argument("--sizes", type=float, nargs="+", default=[1e3, 1e4, 1e5, 1e6])
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("-o", "--output", type=Path)
    arguments.add_argument("--one", nargs=3, help="what, name and workers: one process's part")
    chosen = arguments.parse_args()
    if chosen.one:
        measure(*chosen.one[:2], int(chosen.one[2]))
        return
    if unknown := set(chosen.what) - set(WAYS):
        arguments.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}")
    head = ["what", "of", "workers", "stage", "seconds", "CPU s", "peak MB: own, children", "message"]
    rows = []
    for workers in (int(size) // GROUP * GROUP for size in chosen.sizes):
        for what in chosen.what or WAYS:
            for name in WAYS[what][1]:
                if workers <= MOST.get(name, workers):
                    rows += rows_of(what, name, workers, chosen.repeats)
                    print(rows[-1], file=sys.stderr, flush=True)
    about = f"`{command('scale')}`; {machine()} at the end. Medians of {chosen.repeats}."
    write(chosen.output, "What grows with the workers", about, table(head, rows))


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
