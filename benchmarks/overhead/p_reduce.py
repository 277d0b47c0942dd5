"""What P-Reduce costs on top of a bare all_reduce of the same bytes on the same group.

Both run interleaved in the same processes, in changing order, after warm-up; the ratio is taken pair by pair. Settings:
loopback (bound by the CPU) and, as root, a wire between two network namespaces shaped by `tc tbf` (bound by the wire).

    python -m benchmarks.overhead.p_reduce [--repetitions 15] [--megabytes 8 40 160] [--rate 1gbit] [-o result.json]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]

NAMES = [f"partreduce-o{os.getpid() % 10000}-{side}" for side in "ab"]


def measure(megabytes: list[int], repetitions: int) -> None:
    """Run by every worker; rank 0 prints one line of JSON per size."""
    import torch

    from partreduce.runtime.averaging.bucket import Bucket
    from partreduce.runtime.averaging.commit import commit_mean
    from partreduce.runtime.averaging.reducer import Reducer
    from partreduce.runtime.liveness.heartbeat import Heartbeat
    from partreduce.runtime.recorder import Recorder
    from partreduce.runtime.transport.gloo import GlooWorld
    from partreduce.runtime.transport.rendezvous import connect_store
    from partreduce.topo.phase import Group

    timeout = timedelta(seconds=120)
    store = connect_store(timeout)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    world = GlooWorld(store, rank, size, timeout)
    everyone = Group(tuple(range(size)))
    communicator = world.create(everyone.members)
    for amount in megabytes:
        count = amount * 10**6 // 4 // 16 * 16
        bucket = Bucket(torch.device("cpu"), torch.float32, count, torch.rand(count), length=count)
        bare_buffer = torch.rand(count)
        reducer = Reducer(
            world, [bucket], Recorder(rank), Heartbeat(store, rank, "b", beats=False), key="b", timeout=120
        )

        def p_reduce(step: int, reducer: Reducer = reducer) -> None:
            reduction = reducer.begin("average", step, step, everyone)
            reducer.wait(reduction)
            reducer.commit(reduction, lambda _, one, sums, ok: commit_mean(one, sums, 1.0, ok, swap=True))

        def bare(_step: int, buffer: torch.Tensor = bare_buffer) -> None:
            communicator.all_reduce(buffer).wait()

        def timed(
            action: Callable[[int], None], step: int, live: Bucket = bucket, other: torch.Tensor = bare_buffer
        ) -> float:
            # What an optimizer's step does just before: the live array is written (and sums never reach infinity).
            (other if action.__name__ == "bare" else live.flat).fill_(1.0)
            communicator.all_reduce(torch.ones(1)).wait()
            start = time.perf_counter()
            action(step)
            return time.perf_counter() - start

        rows = []
        for step in range(-2, repetitions):
            order = [("bare", bare), ("p_reduce", p_reduce)]
            times = {name: timed(action, step + 2) for name, action in (order if step % 2 else order[::-1])}
            if step >= 0:
                rows.append(times)
        if rank == 0:
            print(json.dumps({"megabytes": amount, "workers": size, "rows": rows}), flush=True)


def summary(line: dict[str, Any], setting: str) -> dict[str, Any]:
    rows = line["rows"]
    ratios = sorted(row["p_reduce"] / row["bare"] for row in rows)
    result = {"setting": setting, "workers": line["workers"], "megabytes": line["megabytes"], "repetitions": len(rows)}
    for name in ("bare", "p_reduce"):
        times = sorted(row[name] * 1e3 for row in rows)
        result[f"{name}_ms"] = [round(x, 2) for x in (statistics.median(times), times[0], times[-1])]
    result["ratio_of_medians"] = round(result["p_reduce_ms"][0] / result["bare_ms"][0], 3)
    quarter = len(ratios) // 4
    result["ratio_by_pairs"] = [round(x, 3) for x in (statistics.median(ratios), ratios[quarter], ratios[-1 - quarter])]
    return result


def loopback(workers: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from partreduce.runtime.launcher.launch import launch

    output = io.StringIO()
    code = launch(lambda: measure(arguments.megabytes, arguments.repetitions), num_workers=workers, output=output)
    if code:
        raise SystemExit(output.getvalue())
    return [json.loads(line.split("] ", 1)[1]) for line in output.getvalue().splitlines() if '"rows"' in line]


def run_tool(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def wire(rate: str) -> Iterator[dict[str, tuple[str, str]]]:
    """Two namespaces joined by a veth pair whose both ends send at most `rate`."""
    first, second = NAMES
    try:
        for name in NAMES:
            run_tool("ip", "netns", "add", name)
        run_tool("ip", "link", "add", "pov0", "netns", first, "type", "veth", "peer", "name", "pov1", "netns", second)
        for name, device, address in ((first, "pov0", "10.78.0.1/24"), (second, "pov1", "10.78.0.2/24")):
            inside = ("ip", "-n", name)
            run_tool(*inside, "addr", "add", address, "dev", device)
            run_tool(*inside, "link", "set", device, "up")
            run_tool(*inside, "link", "set", "lo", "up")
            run_tool(
                "tc",
                "-n",
                name,
                "qdisc",
                "add",
                "dev",
                device,
                "root",
                "tbf",
                "rate",
                rate,
                "burst",
                "256kb",
                "latency",
                "200ms",
            )
        yield {first: ("pov0", "10.78.0.1"), second: ("pov1", "10.78.0.2")}
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def wired(workers: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Half of the workers on each side of the wire; neighbours in the ring are on one side where possible."""
    lines = []
    with wire(arguments.rate) as sides:
        address = next(iter(sides.values()))[1]
        processes = []
        for rank in range(workers):
            name = NAMES[rank * 2 // workers]
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(workers),
                "MASTER_ADDR": address,
                "MASTER_PORT": "29517",
                "GLOO_SOCKET_IFNAME": sides[name][0],
                "OMP_NUM_THREADS": "1",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
            }
            words = [sys.executable, __file__, "--worker", "--repetitions", str(arguments.repetitions), "--megabytes"]
            command = ["ip", "netns", "exec", name, *words, *map(str, arguments.megabytes)]
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        try:
            output, _ = processes[0].communicate(timeout=900)
            lines = [json.loads(line) for line in output.splitlines() if '"rows"' in line]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return lines


def table(results: list[dict[str, object]]) -> str:
    """One row per setting; medians with [smallest-largest]."""
    head = ["setting", "workers", "MB", "repetitions", "bare, ms", "P-Reduce, ms", "ratio by pairs"]
    lines = ["# P-Reduce beside a bare all_reduce", "", "Written by `python -m benchmarks.overhead.p_reduce`.", ""]
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for found in results:
        cells = [found[key] for key in ("setting", "workers", "megabytes", "repetitions")]
        spreads = [found[key] for key in ("bare_ms", "p_reduce_ms", "ratio_by_pairs")]
        cells += [f"{middle:g} [{least:g}-{most:g}]" for middle, least, most in spreads]  # type: ignore[misc]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def why_no_wire() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"needs {' and '.join(missing)}" if missing else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[8, 40, 160])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--settings", nargs="+", default=["loopback", "wire"], choices=["loopback", "wire"])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.worker:
        measure(arguments.megabytes, arguments.repetitions)
        return
    results = []
    for setting in arguments.settings:
        if setting == "wire" and (reason := why_no_wire()) is not None:
            print(f"wire: skipped, {reason}")
            continue
        for workers in arguments.workers:
            lines = loopback(workers, arguments) if setting == "loopback" else wired(workers, arguments)
            for line in lines:
                results.append(summary(line, setting if setting == "loopback" else f"wire {arguments.rate}"))
                print(json.dumps(results[-1]), flush=True)
    if arguments.output is not None:
        arguments.output.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
