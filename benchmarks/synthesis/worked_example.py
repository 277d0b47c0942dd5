"""The worked example (4x4, 552 MB, 10 GB/s inside, 5 GB/s NIC, no latency), and random bandwidths.

python -m benchmarks.synthesis.worked_example [--time-limit 30] [--seeds 0 1 2] [--ratios 5]
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.synthesis.baseline import catalogue_points, gain
from partreduce.schedulers.synthesis import Front, Limits, Objective, Problem, synthesise
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link

MODEL = 552_000_000


def cluster(inside: float, nic: float) -> Cluster:
    hardware = Hardware(inside=Link.of_bandwidth(inside), nic=Link.of_bandwidth(nic), model_bytes=MODEL)
    return Cluster.regular(4, 4, hardware=hardware)


def describe(front: Front) -> str:
    best = front.best
    if best is None:
        return f"{front.status}: {front.reason}"
    bound = "none" if best.bound is None else f"{best.bound:.5f}"
    return (
        f"{1e3 * best.communication_seconds_per_step:.3f} ms, consensus distance {best.consensus_distance:.5f}, "
        f"period {best.period}, {best.status}, proved bound {bound}, {front.seconds:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ratios", type=int, default=5)
    options = parser.parse_args()
    example = cluster(10e9, 5e9)
    for seed in options.seeds:
        for budget in (0.1104, 0.1058, 0.05175):
            problem = Problem(cluster=example, limits=Limits(max_communication=budget))
            front = synthesise(problem, time_limit=options.time_limit, seed=seed)
            print(f"seed {seed}, at most {1e3 * budget:g} ms: {describe(front)}", flush=True)
        limits = Limits(max_consensus_distance=8 / 7, max_period=48)
        problem = Problem(cluster=example, objective=Objective.COMMUNICATION, limits=limits)
        front = synthesise(problem, time_limit=options.time_limit, seed=seed)
        print(f"seed {seed}, consensus distance at most 8/7, period up to 48: {describe(front)}", flush=True)
    rng = np.random.default_rng(2026)
    for draw in range(options.ratios):
        nic = 10 ** rng.uniform(9.0, 10.5)
        inside = nic * 10 ** rng.uniform(0.0, 1.3)
        problem = Problem(cluster=cluster(inside, nic))
        points = catalogue_points(problem)
        front = synthesise(problem, time_limit=options.time_limit, seed=draw)
        result = gain(points, front.candidates)
        print(
            f"inside {inside / 1e9:.2f} GB/s, NIC {nic / 1e9:.2f} GB/s, seed {draw}: "
            f"{result.consensus_distance_ratio:.2f}x less consensus distance "
            f"(against {result.against_seconds and result.against_seconds.name}), "
            f"{result.communication_ratio:.2f}x less communication "
            f"(against {result.against_consensus_distance and result.against_consensus_distance.name})",
            flush=True,
        )


if __name__ == "__main__":
    main()
