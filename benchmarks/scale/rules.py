"""Rules at 10³ … 10⁶ workers: design, prove and check, in process and as whole commands.

    python -m benchmarks.scale.rules [--sizes 1e3,1e4,1e5,1e6] [--repeats 3] [-o benchmarks/results/rules]

Every measurement runs in a process of its own, which reports its own peak memory; this script imports nothing heavy, so
that none of its memory is counted. "In process" leaves out the interpreter's start and imports (a rule for 32 workers
goes the whole way first); "commands" are `partreduce design CLUSTER --using RULE -o FILE`, `partreduce verify FILE
--certificate CERTIFICATE` and `python -I verify/checker CERTIFICATE FILE` from start to exit. CPU seconds tell more
than wall-clock seconds on a machine that is shared; tables hold medians of the repeats. Writes FILE.json and FILE.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULES = ("prague-figure-10", "node-then-all", "hyper-cuboid")
PER_NODE = 4
STAGES = ("design", "verify", "check")

Row = dict[str, object]


def in_process(rule: str, workers: int) -> None:
    """Run in a fresh process; prints one line of JSON."""
    import resource

    import partreduce
    from partreduce.topo.document.schedule import load_schedule
    from partreduce.topo.document.writer import write_schedule
    from partreduce.topo.figures import figures
    from partreduce.verify import prove

    def way(cluster: str, path: Path) -> dict[str, float]:
        clock, work = time.perf_counter(), time.process_time()
        seconds: dict[str, float] = {}

        def lap(name: str) -> None:
            nonlocal clock, work
            seconds[name], seconds[f"{name} cpu"] = time.perf_counter() - clock, time.process_time() - work
            clock, work = time.perf_counter(), time.process_time()

        write_schedule(path, partreduce.design(cluster, using=rule))
        lap("design")
        schedule = load_schedule(path)
        proof, found = prove(schedule), figures(schedule)
        lap("verify")
        assert proof.verdict.value == "proved", proof
        return seconds | {
            "contraction": float(found.contraction),
            "consensus_distance": float(found.consensus_distance),
        }

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.json"
        way(f"8x{PER_NODE}", path)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        result = way(f"{workers // PER_NODE}x{PER_NODE}", path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result | {"before_mb": before, "peak_mb": peak}))


def command(words: list[str], *, output: Path | None = None) -> dict[str, float]:
    """Wall-clock and CPU seconds and peak memory of one command, which must exit 0."""
    with (output or Path(os.devnull)).open("w") as sink:
        clock = time.perf_counter()
        pid = os.posix_spawn(words[0], words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, sink.fileno(), 1)])
        _, status, usage = os.wait4(pid, 0)
        seconds = time.perf_counter() - clock
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(f"exit code {code}: {' '.join(words)}")
    return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1024}


def measure(rule: str, workers: int, folder: Path) -> Row:
    """One repeat: the way in one process, then the three commands."""
    schedule, certificate, report = folder / "schedule.json", folder / "certificate.json", folder / "report.json"
    command([sys.executable, __file__, "--worker", rule, "--sizes", str(workers)], output=report)
    partreduce, cluster = [sys.executable, "-m", "partreduce"], f"{workers // PER_NODE}x{PER_NODE}"
    return {
        "in process": json.loads(report.read_text()),
        "design": command([*partreduce, "design", cluster, "--using", rule, "-o", str(schedule)]),
        "verify": command([*partreduce, "verify", str(schedule), "--certificate", str(certificate)]),
        "check": command([sys.executable, "-I", str(ROOT / "verify" / "checker"), str(certificate), str(schedule)]),
        "schedule_bytes": schedule.stat().st_size,
        "certificate_bytes": certificate.stat().st_size,
        "load": os.getloadavg()[0],
    }  # fmt: skip


def medians(runs: list[Row]) -> Row:
    """The medians over the repeats, entry by entry."""
    first = runs[0]
    return {
        key: medians([run[key] for run in runs])  # type: ignore[misc]
        if isinstance(value, dict)
        else statistics.median(float(str(run[key])) for run in runs)
        for key, value in first.items()
    }


def table(rows: list[Row]) -> str:
    """One Markdown row per rule and size."""
    head = ["rule", "workers", "in process: design, verify (CPU)", "its peak MB"]
    head += [f"command {stage}: s (CPU)" for stage in STAGES]
    head += ["peak MB of commands", "certificate bytes", "contraction", "consensus_distance"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        m: dict = row["median"]  # type: ignore[assignment]
        inside = m["in process"]
        cells = [str(row["rule"]), f"{row['workers']:,}"]
        cells.append(" + ".join(f"{inside[s] * 1e3:.1f} ({inside[f'{s} cpu'] * 1e3:.1f}) ms" for s in STAGES[:2]))
        cells.append(f"{inside['peak_mb']:.0f} (before: {inside['before_mb']:.0f})")
        cells += [f"{m[s]['seconds']:.2f} ({m[s]['cpu']:.2f})" for s in STAGES]
        cells.append(", ".join(f"{m[s]['peak_mb']:.0f}" for s in STAGES))
        cells += [
            f"{m['certificate_bytes']:.0f}",
            f"{inside['contraction']:.6f}",
            f"{inside['consensus_distance']:.4f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1e3,1e4,1e5,1e6")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "benchmarks" / "results" / "rules")
    parser.add_argument("--worker", metavar="RULE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [int(float(size)) // PER_NODE * PER_NODE for size in options.sizes.split(",")]
    if options.worker:
        in_process(options.worker, sizes[0])
        return
    rows: list[Row] = []
    for workers in sizes:
        for rule in options.rules:
            with tempfile.TemporaryDirectory() as folder:
                runs = [measure(rule, workers, Path(folder)) for _ in range(options.repeats)]
            rows.append({"rule": rule, "workers": workers, "median": medians(runs), "runs": runs})
            print(table(rows[-1:]).splitlines()[-1], flush=True)
            write(options, rows)
    print(f"wrote {options.output}.json and .md")


def write(options: argparse.Namespace, rows: list[Row]) -> None:
    """Both files, after every row, so that a run that is stopped loses nothing."""
    loads = [float(str(run["load"])) for row in rows for run in row["runs"]]  # type: ignore[attr-defined]
    about = {
        "command": f"python -m benchmarks.scale.rules --sizes {options.sizes} --repeats {options.repeats}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load_average": [min(loads), max(loads)],
    }
    words = (
        f"# Rules at scale\n\n`{about['command']}`; {about['machine']}, shared, load average {min(loads):.1f} to "
        f"{max(loads):.1f} while it ran. Medians of {options.repeats}; wall-clock seconds suffer from the load, CPU "
        "seconds hardly. Every schedule was proved, and its certificate accepted by the stand-alone checker.\n\n"
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.with_suffix(".json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(words + table(rows))


if __name__ == "__main__":
    main()
