"""What coded sums cost where the wire costs nothing: every codec and form beside the fp32 ring, in the same processes.

    python -m benchmarks.codecs.loopback [--workers 16] [--turns 15] [-o benchmarks/results/codecs.md]

All ways are set up in the same worker processes and take turns; a turn begins when all workers have come to it and is
timed from the last worker's start to the last one's end, and ratios are taken turn by turn. The kernels by themselves
are timed before, by one process. With shaped links (root): `python -m benchmarks.papers.sums`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partreduce.topo.strategies.axes import Codec, Form, How, Rounding, Where

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = 548_074
"""float32 numbers of the lab's network: 2.19 MB."""
PLAIN = "ring, fp32"
HIERARCHICAL = Form.HIERARCHICAL
WAYS = {
    PLAIN: How(),
    "ring, float16": How(codec=Codec.FLOAT16),
    "ring, bfloat16": How(codec=Codec.BFLOAT16),
    "ring, int8": How(codec=Codec.INT8),
    "ring, int8, stochastic": How(codec=Codec.INT8, rounding=Rounding.STOCHASTIC),
    "hierarchical, fp32": How(form=HIERARCHICAL),
    "hierarchical, float16": How(form=HIERARCHICAL, codec=Codec.FLOAT16),
    "hierarchical, int8": How(form=HIERARCHICAL, codec=Codec.INT8),
    "hierarchical, bfloat16 across nodes": How(form=HIERARCHICAL, codec=Codec.BFLOAT16, where=Where.ACROSS_NODES),
    "hierarchical, int8 across nodes": How(form=HIERARCHICAL, codec=Codec.INT8, where=Where.ACROSS_NODES),
}


def measure(nodes: int, turns: int) -> None:
    """Run by every worker, which prints one line of JSON: of each way the start and end of its turns, and its error."""
    import torch

    from partreduce.runtime.codecs.coding import Coding
    from partreduce.runtime.transport.gloo import GlooWorld
    from partreduce.runtime.transport.hierarchical import formed
    from partreduce.runtime.transport.rendezvous import connect_store
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.allreduce import AllReduce

    timeout = timedelta(seconds=300)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    base = GlooWorld(connect_store(timeout), rank, size, timeout)
    cluster = Cluster.regular(nodes, size // nodes)
    groups = {}
    for name, how in WAYS.items():
        world = formed(base, how.form, cluster)
        world.prepare(Schedule("sums", cluster, AllReduce(how=how)))
        groups[name] = world.everyone()
    little, given = torch.ones(1), torch.randn(NUMBERS, generator=torch.Generator().manual_seed(rank))
    exact = given.double()
    groups[PLAIN].all_reduce(exact).wait()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    errors = {}
    for turn in range(-2, turns):
        for name, how in WAYS.items():
            tensor = given.clone()
            groups[PLAIN].all_reduce(little).wait()
            start = time.monotonic()
            groups[name].all_reduce(tensor, None if how.codec is Codec.NONE else Coding(how, (turn, 0))).wait()
            if turn >= 0:
                times[name].append((start, time.monotonic()))
            errors[name] = float((tensor - exact).norm() / exact.norm())
    print(json.dumps({"times": times, "errors": errors}), flush=True)
    groups[PLAIN].all_reduce(little).wait()


def kernels(repetitions: int = 40) -> dict[str, float]:
    """Milliseconds of encoding and decoding 2.19 MB on one thread, the least of some runs."""
    import torch

    from partreduce.runtime.codecs.eight_bits import EightBits, noise
    from partreduce.topo.codec_numbers import int8_bytes

    torch.set_num_threads(1)
    values = torch.randn(NUMBERS)
    codec, code = EightBits(256), torch.empty(int8_bytes(NUMBERS, 256), dtype=torch.uint8)
    short = torch.empty(NUMBERS, dtype=torch.float16)
    draws = noise(NUMBERS, "benchmark")
    actions: dict[str, Callable[[], object]] = {
        "float16, encode": lambda: short.copy_(values),
        "float16, decode": lambda: values.copy_(short),
        "int8, encode": lambda: codec.encode(values, code),
        "int8, encode with given noise": lambda: codec.encode(values, code, draws),
        "int8, draw the noise": lambda: noise(NUMBERS, "benchmark"),
        "int8, decode": lambda: codec.decode(code, values),
    }
    return {name: min(_timed(action) for _ in range(repetitions)) for name, action in actions.items()}


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - start)


def collected(workers: int, nodes: int, turns: int) -> list[dict[str, Any]]:
    """What every worker said."""
    from partreduce.runtime.launcher.launch import launch

    output = io.StringIO()
    code = launch(
        lambda: measure(nodes, turns), num_workers=workers, output=output, environment={"OMP_NUM_THREADS": "1"}
    )
    if code:
        raise SystemExit(output.getvalue())
    return [json.loads(line.split("] ", 1)[1]) for line in output.getvalue().splitlines() if '"times"' in line]


def table(said: list[dict[str, Any]], alone: dict[str, float], arguments: argparse.Namespace) -> str:
    """The page: medians with [smallest-largest], ratios turn by turn with their quarters."""
    spans = {
        name: [
            1e3 * (max(end for _, end in turn) - max(start for start, _ in turn))
            for turn in zip(*(worker["times"][name] for worker in said), strict=True)
        ]
        for name in WAYS
    }
    said_first = (
        f"Written by `python -m benchmarks.codecs.loopback --workers {arguments.workers} --turns {arguments.turns}`: "
        f"{arguments.workers} processes as {arguments.nodes} nodes on {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.0f}, {4 * NUMBERS / 1e6:.2f} MB of float32. Medians [least-most]; ratios turn by turn "
        "[quarters], below 1 slower than the fp32 ring."
    )
    lines = [
        "# Coded sums on loopback",
        "",
        said_first,
        "",
        "| sum | ms | fp32 ring ÷ this | relative error |",
        "|---|---|---|---|",
    ]
    for name, found in spans.items():
        ratios = sorted(plain / own for plain, own in zip(spans[PLAIN], found, strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        middle = f"{statistics.median(found):.0f} [{min(found):.0f}-{max(found):.0f}]"
        error = max(worker["errors"][name] for worker in said)
        lines.append(f"| {name} | {middle} | {statistics.median(ratios):.2f} [{low:.2f}-{high:.2f}] | {error:.1e} |")
    lines += ["", "One thread, nothing sent, the least of 40 runs:", "", "| kernel | ms |", "|---|---|"]
    lines += [f"| {name} | {ms:.2f} |" for name, ms in alone.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    alone = kernels()
    page = table(collected(arguments.workers, arguments.nodes, arguments.turns), alone, arguments)
    print(page)
    if arguments.output is not None:
        arguments.output.write_text(page)


if __name__ == "__main__":
    main()
