"""Memory of a worker whose table is sharded, beside the table's rows and Adagrad's sums divided by the workers.

Each worker makes the embedding without numbers (device `meta`), trains some steps and calls `state_dict()`, of which
worker 0 gets the whole table, in memory that a file backs. Memory is resident anonymous memory beyond what the process
had before the model was wrapped. With `--limit` no worker may have as much memory as the table and its sums need
(RLIMIT_DATA): the same script on one device fails there, and is shown to.

    python -m benchmarks.tables_memory [--rows 200000] [--columns 256] [--workers 2 4 8] [--steps 10] [--limit]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

MARK = "memory-of-tables "


def anonymous() -> int:
    """Resident bytes of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def data_bytes() -> int:
    """What the kernel counts against RLIMIT_DATA."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


def worker(rows: int, columns: int, num_workers: int, steps: int, *, limited: bool) -> None:
    """One worker: says what it needed after wrapping, after the steps and after `state_dict()`."""
    import torch

    import partreduce
    from partreduce.topo.strategies.payload import Gradient, Payload, TablePlacement

    schedule = partreduce.design(f"{num_workers}x1", build="allreduce")
    route = TablePlacement(parameter="0.weight", rows=rows, columns=columns, gradient=Gradient.SPARSE)
    schedule = replace(schedule, strategy=replace(schedule.strategy, payload=Payload(tables=(route,))))
    with torch.device("meta"):
        words = torch.nn.Embedding(rows, columns, sparse=True)
    model = torch.nn.Sequential(words, torch.nn.Linear(columns, 1))
    warm_up(schedule)
    before, needed = anonymous(), 2 * rows * columns * 4
    if limited:
        most = data_bytes() + needed * 9 // 10
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    optimizer = partreduce.DistributedOptimizer(torch.optim.Adagrad(model.parameters(), lr=0.1), model, schedule)
    found = {"rank": optimizer.rank, "wrapped": anonymous() - before}
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(0, rows, (256,))).pow(2).mean().backward()
        optimizer.step()
    found["trained"] = anonymous() - before
    state = model.state_dict(), optimizer.state_dict()
    found["saved"] = anonymous() - before
    del state
    optimizer.finish()
    if limited:
        try:
            alone = [torch.zeros(rows, columns) for _ in range(2)]
            found["one device"] = len(alone)
        except RuntimeError as error:
            found["one device"] = str(error).splitlines()[0][:120]
    sys.stdout.write(f"{MARK}{json.dumps(found)}\n")


def warm_up(schedule: object) -> None:
    """Have everything imported and connected that is not the table's."""
    import torch

    import partreduce

    small = torch.nn.Linear(8, 1)
    plain = replace(schedule, strategy=replace(schedule.strategy, payload=type(schedule.strategy.payload)()))  # type: ignore[attr-defined, type-var]
    optimizer = partreduce.DistributedOptimizer(torch.optim.Adagrad(small.parameters()), small, plain)
    small(torch.ones(8)).backward()
    optimizer.step()


def measured(arguments: argparse.Namespace, num_workers: int) -> list[dict[str, float]]:
    """What all workers of one run said."""
    own = [str(Path(__file__).resolve()), "--worker", str(num_workers)]
    own += ["--rows", str(arguments.rows), "--columns", str(arguments.columns), "--steps", str(arguments.steps)]
    command = [sys.executable, "-m", "partreduce", "run", "--workers", str(num_workers), *own]
    done = subprocess.run(command + ["--limit"] * arguments.limit, capture_output=True, text=True, check=False)
    lines = [line.partition(MARK)[2] for line in done.stdout.splitlines() if MARK in line]
    if len(lines) != num_workers:
        raise SystemExit(done.stdout + done.stderr)
    return sorted((json.loads(line) for line in lines), key=lambda found: found["rank"])


def main() -> None:
    """Measure runs of several sizes, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--limit", action="store_true")
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.rows, arguments.columns, arguments.worker, arguments.steps, limited=arguments.limit)
        return
    whole = 2 * arguments.rows * arguments.columns * 4 / 1e6
    print(f"table of {arguments.rows}x{arguments.columns} with Adagrad's sums: {whole:.1f} MB")
    print("| workers | rows and sums ÷ workers, MB | wrapped | trained | state_dict |\n|---|---|---|---|---|")
    for num_workers in arguments.workers:
        found = measured(arguments, num_workers)
        spans = [
            f"{min(one[stage] for one in found) / 1e6:.1f} to {max(one[stage] for one in found) / 1e6:.1f}"
            for stage in ("wrapped", "trained", "saved")
        ]
        print(f"| {num_workers} | {whole / num_workers:.1f} | {' | '.join(spans)} |", flush=True)
        if arguments.limit:
            print(f"one device under the same limit: {found[0]['one device']}")


if __name__ == "__main__":
    main()
