"""Contraction at 10³ … 10⁶ workers (T = 8): ours, scipy.sparse.linalg.eigsh used plainly, networkx's own route.

Run: python -m benchmarks.scale.contraction [--sizes 1e3,1e4,1e5,1e6] [--json out.json] [--repeats 3]

Every measurement runs in a process of its own, so that its peak memory is its own. Seconds are the best and the worst
of the repeats, CPU seconds the best (they tell more on a machine that is shared); both leave out imports and the making
of the schedule. All three answer the same question on the same schedule of random groups of four:

* ours: Lanczos on the group means (topo.figures);
* eigsh: the largest eigenvalue of (P − J)ᵀ(P − J), a LinearOperator over n-vectors with one sparse matrix per phase,
  default tolerance 1e-4 as in common use;
* networkx: a graph has one matrix, so the period product is multiplied out as a sparse matrix, made a weighted graph
  and given to networkx's eigenvalue function (dense). It is stopped beyond 2,000 workers: 10⁴ workers would need 800 MB
  per dense matrix and hours.

Rules are measured besides: Prague's Figure 10 with the same number of workers, all figures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import time
from pathlib import Path

import numpy as np

from partreduce.topo.cluster import Cluster
from partreduce.topo.figures import FigureLimits, contraction, figures
from partreduce.topo.figures.decomposition import DEFAULT
from partreduce.topo.mixing import mixing_sparse
from partreduce.topo.phase import Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, RulePhases, Static

PERIOD = 8
GROUP = 4
NETWORKX_LIMIT = 2_000
EXPLICIT = FigureLimits(dense_workers=1)


def random_groups(n: int) -> Schedule:
    rng = np.random.default_rng(1)
    phases = tuple(Phase.from_labels(rng.permutation(n) // GROUP) for _ in range(PERIOD))
    return Schedule("random groups", Cluster.regular(n // 4, 4), Static(phases=GroupPhases(phases)))


def figure_10(n: int) -> Schedule:
    nodes = n // 4 // 2 * 2
    whole = (Block((0, 1, 2, 3)),)
    phases = ((Block((0,), (0, 1)), Block((2, 3))), whole, (Block((0, 3)), Block((1,), (0,))), whole)
    return Schedule("figure 10", Cluster.regular(nodes, 4), Static(phases=RulePhases((2, nodes // 2), phases)))


def ours(schedule: Schedule) -> dict[str, object]:
    found = contraction(schedule, limit=EXPLICIT)
    return {"value": found.value, "upper": found.upper, "how": found.how}


def all_figures(schedule: Schedule) -> dict[str, object]:
    found = figures(schedule, limit=EXPLICIT)
    return {"value": found.contraction.value, "figures": found.to_json()}


def rule(schedule: Schedule) -> dict[str, object]:
    found = figures(schedule, limit=DEFAULT)
    return {"value": found.contraction.value, "consensus_distance": found.consensus_distance.value}


def plain_eigsh(schedule: Schedule) -> dict[str, object]:
    from scipy.sparse.linalg import LinearOperator, eigsh

    matrices = [mixing_sparse(step) for step in schedule.steps()]
    n = schedule.num_workers

    def square(x: np.ndarray) -> np.ndarray:
        y = x.reshape(n)
        y = y - y.mean()
        for matrix in matrices:
            y = matrix @ y
        for matrix in reversed(matrices):
            y = matrix.T @ y
        return y - y.mean()

    start = np.random.default_rng(0).standard_normal(n)
    operator = LinearOperator((n, n), matvec=square, dtype=np.float64)
    value = eigsh(operator, k=1, which="LA", tol=1e-4, v0=start, return_eigenvectors=False)[0]
    return {"value": float(np.sqrt(value))}


def networkx_route(schedule: Schedule) -> dict[str, object]:
    import networkx as nx
    from scipy.sparse import identity

    product = identity(schedule.num_workers, format="csr")
    for step in schedule.steps():
        product = mixing_sparse(step) @ product
    graph = nx.from_scipy_sparse_array(product.T @ product)
    values = np.sort(np.abs(nx.adjacency_spectrum(graph)))
    return {"value": float(np.sqrt(values[-2]))}


ROUTES = {
    "contraction, ours": (random_groups, ours),
    "contraction, eigsh": (random_groups, plain_eigsh),
    "contraction, networkx": (random_groups, networkx_route),
    "all figures, ours": (random_groups, all_figures),
    "all figures, rule": (figure_10, rule),
}


def measure(name: str, n: int, channel: multiprocessing.connection.Connection) -> None:
    make, run = ROUTES[name]
    schedule = make(n)
    # Imports are paid before the clock starts, on a schedule too small to matter.
    run(make(16))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock, work = time.perf_counter(), time.process_time()
    result = run(schedule)
    seconds, cpu = time.perf_counter() - clock, time.process_time() - work
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    channel.send({**result, "seconds": seconds, "cpu_seconds": cpu, "peak_mb": peak / 1024, "before_mb": before / 1024})


def in_process(name: str, n: int) -> dict[str, object]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(name, n, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return {"value": None, "seconds": None, "peak_mb": None, "how": f"died with exit code {process.exitcode}"}
    finally:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1e3,1e4,1e5,1e6")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'route':24}{'workers':>9}{'seconds':>20}{'CPU s':>9}{'peak MB':>9}  contraction")
    for n in (int(float(size)) for size in options.sizes.split(",")):
        for name in ROUTES:
            if name.endswith("networkx") and n > NETWORKX_LIMIT:
                print(f"{name:24}{n:>9}{'not run':>20}")
                continue
            slow = n > 10**5 and name.endswith("eigsh")
            runs = [in_process(name, n) for _ in range(1 if slow else options.repeats)]
            times = sorted(run["seconds"] for run in runs)
            rows.append({"route": name, "workers": n, "runs": runs})
            span, cpu = f"{times[0]:.3f} … {times[-1]:.3f}", min(run["cpu_seconds"] for run in runs)
            head = f"{name:24}{n:>9}{span:>20}{cpu:>9.3f}{runs[0]['peak_mb']:>9.0f}"
            print(f"{head}  {runs[0]['value']:.6f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"load": os.getloadavg()[0], "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
