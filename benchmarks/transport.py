"""What the run-time's ways of moving numbers cost next to bare ones of the same bytes, on this machine's loopback.

    python -m benchmarks.transport p_reduce -o benchmarks/results/overhead.md [--workers 2 4] [--megabytes 8 40 160]
    python -m benchmarks.transport sums -o benchmarks/results/codecs.md [--workers 16] [--megabytes 2.19]

* p_reduce: a P-Reduce of all workers next to a bare `all_reduce` on the same group.
* sums: every algorithm and codec of a sum next to the fp32 ring.

All contestants are set up in the same processes and take turns; ratios are taken turn by turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kit import Way, command, machine, middle, on_workers, parser, ratios, spans, table, take_turns, write
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, CodecScope, Transport

if TYPE_CHECKING:
    from partreduce.runtime.transport.gloo import GlooWorld

Meet = Callable[[], object]

PLAIN = "flat ring, fp32"
ACROSS = CodecScope.ACROSS_NODES
hierarchical = partial(Transport, algorithm=AllReduceAlgorithm.HIERARCHICAL)
SUMS = {
    PLAIN: Transport(),
    "flat ring, float16": Transport(codec=Codec.FLOAT16),
    "flat ring, bfloat16": Transport(codec=Codec.BFLOAT16),
    "flat, 8 bit": Transport(codec=Codec.INT8),
    "hierarchical, fp32": hierarchical(),
    "hierarchical, float16": hierarchical(codec=Codec.FLOAT16),
    "hierarchical, 8 bit": hierarchical(codec=Codec.INT8),
    "hierarchical, bfloat16 across nodes": hierarchical(codec=Codec.BFLOAT16, where=ACROSS),
    "hierarchical, 8 bit across nodes": hierarchical(codec=Codec.INT8, where=ACROSS),
}
TIMEOUT = timedelta(seconds=60)
NODES = 4
"""The nodes that the workers of `sums` stand for."""


def join_world() -> tuple[GlooWorld, Meet]:
    import torch

    from partreduce.runtime.transport.gloo import GlooWorld
    from partreduce.runtime.transport.rendezvous import connect_store

    world = GlooWorld(connect_store(TIMEOUT), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), TIMEOUT)
    everyone = world.create(tuple(range(world.size)), name="meet")

    return world, lambda: everyone.all_reduce(torch.zeros(1)).wait()


def p_reduce(world: GlooWorld, megabytes: float) -> dict[str, Way]:
    """Return a P-Reduce and a bare all_reduce, which both write their array before the clock starts."""
    import torch

    from partreduce.runtime.averaging.bucket import Bucket, commit_mean
    from partreduce.runtime.averaging.reducer import Reducer
    from partreduce.runtime.liveness.heartbeat import Heartbeat
    from partreduce.runtime.recorder import Recorder
    from partreduce.topo.phase import Group

    everyone = Group(tuple(range(world.size)))
    group = world.create(everyone.members)
    count = int(megabytes * 10**6) // 64 * 16
    bucket = Bucket(torch.device("cpu"), torch.float32, count, torch.rand(count), length=count)
    plain = torch.rand(count)
    heartbeat = Heartbeat(world.store, world.rank, "b", beats=False)
    reducer = Reducer(world, [bucket], Recorder(world.rank), heartbeat, key="b", timeout=120)

    def reduce(step: int) -> None:
        reduction = reducer.begin("average", step, step, everyone)
        reducer.wait(reduction)
        reducer.commit(reduction, lambda _, one, sums, ok: commit_mean(one, sums, 1.0, ok, swap=True))

    def ours(turn: int) -> Callable[[], object]:
        bucket.flat.fill_(1.0)
        return lambda: reduce(turn + 2)

    def bare(_: int) -> Callable[[], object]:
        plain.fill_(1.0)
        return lambda: group.all_reduce(plain).wait()

    return {"bare": bare, "P-Reduce": ours}


def sums(world: GlooWorld, megabytes: float, num_nodes: int, errors: dict[str, float]) -> dict[str, Way]:
    """Return sums by the communicators alone; the relative error of each is stored in `errors`."""
    import torch

    from partreduce.runtime.codecs import Coding
    from partreduce.runtime.transport.worlds import world_for_algorithm
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.allreduce import AllReduce

    cluster = Cluster.regular(num_nodes, world.size // num_nodes)
    given = torch.randn(int(megabytes * 10**6) // 4, generator=torch.Generator().manual_seed(world.rank))
    groups = {}
    for name, how in SUMS.items():
        of_algorithm = world_for_algorithm(world, how.algorithm, cluster)
        of_algorithm.prepare(Schedule("sums", cluster, AllReduce(transport=how)))
        groups[name] = of_algorithm.everyone()
    exact = given.double()
    groups[PLAIN].all_reduce(exact).wait()

    def way(name: str, how: Transport) -> Way:
        def prepare(turn: int) -> Callable[[], object]:
            array = given.clone()

            def add_up() -> None:
                groups[name].all_reduce(array, None if how.codec is Codec.NONE else Coding(how)).wait()
                if turn < 0:
                    errors[name] = float((array - exact).norm() / exact.norm())

            return add_up

        return prepare

    return {name: way(name, how) for name, how in SUMS.items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison; `base` names the contestant that ratios are relative to."""

    title: str
    workers: tuple[int, ...]
    megabytes: tuple[float, ...]
    base: str


COMPARISONS = {
    "p_reduce": Comparison("P-Reduce next to a bare all_reduce", (2, 4), (8, 40, 160), "bare"),
    "sums": Comparison("Coded sums on loopback", (16,), (2.192296,), PLAIN),
}


def measure(what: str, megabytes: float, turns: int) -> dict[str, Any]:
    world, meet = join_world()
    errors: dict[str, float] = {}
    ways = {
        "p_reduce": lambda: p_reduce(world, megabytes),
        "sums": lambda: sums(world, megabytes, NODES, errors),
    }
    return {"times": take_turns(ways[what](), meet, turns), "errors": errors}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("what", choices=list(COMPARISONS))
    arguments.add_argument("--workers", type=int, nargs="+")
    arguments.add_argument("--megabytes", type=float, nargs="+")
    arguments.add_argument("--turns", type=int, default=15)
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    requested = COMPARISONS[chosen.what]
    rows = []
    for workers in chosen.workers or requested.workers:
        for megabytes in chosen.megabytes or requested.megabytes:
            measured = on_workers(lambda megabytes=megabytes: measure(chosen.what, megabytes, chosen.turns), workers)
            found = spans([worker["times"] for worker in measured])
            for name, ms in found.items():
                relative = middle(ratios(found, name, requested.base), quarters=True)
                errors = [f"{max(worker['errors'][name] for worker in measured):.1e}"] if measured[0]["errors"] else []
                rows.append([workers, f"{megabytes:g}", name, middle(ms, ".1f"), relative, *errors])
    head = ["workers", "MB", "what", "ms [least-most]", f"÷ {requested.base} [quarters]"]
    head += ["relative error"] if chosen.what == "sums" else []
    about = f"`{command('transport')}`; {machine()}. Medians; ratios are those of one turn, and above 1 slower."
    write(chosen.output, requested.title, about, table(head, rows))


if __name__ == "__main__":
    main()
