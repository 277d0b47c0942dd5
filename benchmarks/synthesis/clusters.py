"""How much the synthesiser beats the catalogue on regular, irregular and uneven clusters.

python -m benchmarks.synthesis.clusters [--time-limit 30] [--seed 0] [--only 3,3,2]
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks.synthesis.baseline import catalogue_points, gain
from partreduce.schedulers.synthesis import Problem, synthesise
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link

EVEN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)
UNEVEN = replace(
    EVEN,
    node_nic=((3, Link.of_bandwidth(2.5e9)),),
    slowdown=tuple((worker, 2.0) for worker in range(4)),
)
SLOW_NIC = replace(EVEN, node_nic=((3, Link.of_bandwidth(2.5e9)),))
SLOW_NODE = replace(EVEN, slowdown=tuple((worker, 2.0) for worker in range(4)))
CLUSTERS = {
    "4x4": ("4x4", EVEN),
    "8x8": ("8x8", EVEN),
    "16x8": ("16x8", EVEN),
    "3,3,2": ("3,3,2", EVEN),
    "5,3": ("5,3", EVEN),
    "4x4 one slow node, another NIC halved": ("4x4", UNEVEN),
    "4x4 one NIC halved": ("4x4", SLOW_NIC),
    "4x4 one slow node": ("4x4", SLOW_NODE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=None)
    parser.add_argument("--front", action="store_true", help="print the whole front")
    options = parser.parse_args()
    for name, (shape, hardware) in CLUSTERS.items():
        if options.only is not None and options.only != name:
            continue
        problem = Problem(cluster=replace(Cluster.parse(shape), hardware=hardware))
        points = catalogue_points(problem)
        front = synthesise(problem, time_limit=options.time_limit, seed=options.seed)
        result = gain(points, front.candidates)
        print(f"{name}: {len(points)} catalogue points, {len(front.candidates)} on the front, {front.seconds:.1f} s")
        for word, ratio, mine, rival in (
            ("consensus_distance", result.consensus_distance_ratio, result.at_seconds, result.against_seconds),
            (
                "communication",
                result.communication_ratio,
                result.at_consensus_distance,
                result.against_consensus_distance,
            ),
        ):
            if mine is None or rival is None:
                print(f"  {word}: no comparison")
                continue
            print(
                f"  {ratio:.2f}x less {word}: {1e3 * mine.communication_seconds_per_step:.2f} ms, "
                f"{mine.consensus_distance:.4f} (period {mine.period}) against {rival.name}: "
                f"{1e3 * rival.seconds:.2f} ms, {rival.consensus_distance:.4f}"
            )
        if options.front:
            for c in front.candidates:
                print(
                    f"    {1e3 * c.communication_seconds_per_step:9.3f} ms {c.consensus_distance:9.4f} {c.drift:9.3f} "
                    f"step {1e3 * c.step_seconds:8.2f} ms period {c.period:3d} {c.status} {c.bound}"
                )


if __name__ == "__main__":
    main()
