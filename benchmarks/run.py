"""Runs the benchmarks that need no root in a bounded size, one after another; `make bench` runs this.

    python -m benchmarks.run                 all of them, about 10 minutes on two quiet cores
    python -m benchmarks.run --list          what there is, with the claim that each one measures
    python -m benchmarks.run --only scale    some of them, by name

Each runs as a process of its own with a time limit. What it prints goes to benchmarks/results/bench/NAME.txt, its files
next to that, the summary to benchmarks/results/bench/summary.md. Exit code 1 if any failed or ran out of time.
"""

from __future__ import annotations

import os
import sys
import time
from typing import NamedTuple

from benchmarks.kit import RESULTS, ROOT, machine, parser, run_bounded, table

OUTPUT = RESULTS / "bench"


class Benchmark(NamedTuple):
    """A module to run; `{out}` in its arguments becomes the path of its files, `limit` is in seconds."""

    claim: str
    module: str
    arguments: str
    limit: int


BENCHMARKS = {
    "scale": Benchmark("rules, certificates and failure plans in seconds", "scale", "--sizes 1e3 --repeats 1 -o {out}",
        300),
    "forgery": Benchmark("of forged certificates no false claim is confirmed, of honest ones every claim is", "forgery",
        "--attempts 20000 --seed 0", 120),
    "overhead": Benchmark("P-Reduce costs little more than a bare all_reduce (loopback)", "transport",
        "p_reduce --megabytes 8 40 --workers 2 --turns 7 -o {out}", 240),
    "codecs": Benchmark("what coded sums cost on loopback, next to the fp32 ring", "transport",
        "sums --turns 5 -o {out}", 180),
}  # fmt: skip


def run(name: str) -> list[object]:
    """Run one benchmark to its end or limit; return name, verdict, seconds, load before, and command."""
    benchmark, out = BENCHMARKS[name], OUTPUT / name
    command = ["-m", f"benchmarks.{benchmark.module}", *benchmark.arguments.format(out=out).split()]
    shown = " ".join(["python", *command]).replace(f"{ROOT}/", "")
    print(f"{name}: {shown} (at most {benchmark.limit} s)", flush=True)
    load, started, log = os.getloadavg()[0], time.monotonic(), out.with_suffix(".txt")
    code = run_bounded([sys.executable, *command], log, benchmark.limit)
    verdict = {0: "done", None: f"stopped after {benchmark.limit} s"}.get(code, f"failed, exit code {code}")
    seconds = time.monotonic() - started
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    print(f"  {verdict}, {seconds:.1f} s; {lines[-1][:200] if lines else 'nothing printed'}", flush=True)
    return [name, verdict, round(seconds, 1), round(load, 1), shown]


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--list", action="store_true", help="say what there is and end")
    arguments.add_argument("--only", nargs="+", metavar="NAME", choices=BENCHMARKS, default=list(BENCHMARKS))
    options = arguments.parse_args()
    if options.list:
        print(*(f"{name:10}{benchmark.claim}" for name, benchmark in BENCHMARKS.items()), sep="\n")
        return 0
    OUTPUT.mkdir(parents=True, exist_ok=True)
    rows = [run(name) for name in options.only]
    content = table(["benchmark", "verdict", "seconds", "load before", "command"], rows)
    (OUTPUT / "summary.md").write_text(f"# Last run of `make bench`\n\n{machine()}.\n\n{content}")
    print(f"\n{content}\nsummary written to {OUTPUT / 'summary.md'}")
    return int(any(verdict != "done" for _, verdict, *_ in rows))


if __name__ == "__main__":
    sys.exit(main())
