"""Runs the benchmarks that need no root, one after another; `make bench` runs this.

    python -m benchmarks.run                      every benchmark in a bounded size, about 10 minutes on two quiet cores
    python -m benchmarks.run --list               what there is, with the claim that each one measures
    python -m benchmarks.run --only rules         some of them, by name
    python -m benchmarks.run --full --only rules  in the published size, with its results where the README finds them

Each runs as a process of its own with a time limit. What it prints goes to benchmarks/results/bench/NAME.txt, its files
beside that, the summary to benchmarks/results/bench/summary.{json,md}. Exit code 1 if any failed or ran out of time.
"""

from __future__ import annotations

import difflib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from benchmarks.kit import RESULTS, ROOT, machine, parser, table

OUTPUT = RESULTS / "bench"
FULL_TIMES = 20
"""A full run may take this many times the bounded run's limit."""


@dataclass(frozen=True)
class Benchmark:
    """One module. `{out}` in the bounded arguments becomes the place of its files; `limit` is in seconds."""

    name: str
    claim: str
    module: str
    bounded: str
    full: str
    limit: int


BENCHMARKS = (
    Benchmark(
        "scale", "rules, certificates and failure plans in seconds at 10^6 workers", "scale",
        "--sizes 1e3 --repeats 1 -o {out}", "--sizes 1e3 1e5 1e6 -o benchmarks/results/scale", 300,
    ),
    Benchmark(
        "forgery", "of forged certificates no false claim is confirmed, of honest ones every claim is", "forgery",
        "--attempts 20000 --seed 0", "--attempts 100000 --seed 1", 120,
    ),
    Benchmark(
        "overhead", "P-Reduce costs little more than a bare all_reduce (loopback)", "transport",
        "p_reduce --megabytes 8 40 --workers 2 --turns 7 -o {out}", "p_reduce -o benchmarks/results/overhead.md", 240,
    ),
    Benchmark(
        "codecs", "what coded sums cost on loopback, beside the fp32 ring", "transport",
        "sums --turns 5 -o {out}", "sums -o benchmarks/results/codecs.md", 180,
    ),
)  # fmt: skip


def run(benchmark: Benchmark, *, full: bool) -> dict[str, object]:
    """One benchmark to its end or its limit."""
    out, limit = OUTPUT / benchmark.name, benchmark.limit * (FULL_TIMES if full else 1)
    words = (benchmark.full if full else benchmark.bounded).format(out=out).split()
    command = ["-m", f"benchmarks.{benchmark.module}", *words]
    shown = " ".join(["python", *command]).replace(f"{ROOT}/", "")
    print(f"{benchmark.name}: {shown} (at most {limit} s)", flush=True)
    load, started = os.getloadavg()[0], time.monotonic()
    log = out.with_suffix(".txt")
    with log.open("w") as sink:
        # A session of its own: what a script started ends with it.
        child = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = child.wait(timeout=limit)
            verdict = "done" if code == 0 else f"failed, exit code {code}"
        except subprocess.TimeoutExpired:
            verdict = f"stopped after {limit} s"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    seconds = time.monotonic() - started
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    print(f"  {verdict}, {seconds:.1f} s; {lines[-1][:200] if lines else 'nothing printed'}", flush=True)
    return {
        "name": benchmark.name,
        "claim": benchmark.claim,
        "command": shown,
        "verdict": verdict,
        "seconds": round(seconds, 1),
        "load_average_before": round(load, 1),
        "last_line": lines[-1] if lines else "",
    }


def chosen(names: list[str] | None) -> list[Benchmark]:
    """The named benchmarks in their usual order, or all."""
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    for name in names or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            print(f"--only {name}: no such benchmark; {hint}", file=sys.stderr)
            sys.exit(2)
    return [benchmark for benchmark in BENCHMARKS if not names or benchmark.name in names]


def write(rows: list[dict[str, object]]) -> str:
    """Both summaries; the Markdown table is returned."""
    content = table(
        ["benchmark", "verdict", "seconds", "load before", "command"],
        [[row[key] for key in ("name", "verdict", "seconds", "load_average_before", "command")] for row in rows],
    )
    (OUTPUT / "summary.json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    (OUTPUT / "summary.md").write_text(f"# Last run of `make bench`\n\n{machine()}.\n\n{content}")
    return content


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--list", action="store_true", help="say what there is and end")
    arguments.add_argument("--only", nargs="+", metavar="NAME")
    arguments.add_argument("--full", action="store_true", help="the published sizes; hours for all of them")
    options = arguments.parse_args()
    picked = chosen(options.only)
    if options.list:
        for benchmark in picked:
            print(f"{benchmark.name:18}{benchmark.claim}")
        print("with targets of their own: `make lab` (needs root), `make explore` (minutes, gigabytes)")
        return 0
    OUTPUT.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    try:
        for benchmark in picked:
            rows.append(run(benchmark, full=options.full))  # noqa: PERF401 - what ran is kept on an interrupt
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if rows:
            print("\n" + write(rows))
            print(f"summary written to {OUTPUT / 'summary.md'}")
    return int(any(row["verdict"] != "done" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
