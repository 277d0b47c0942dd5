"""Train on a Ray cluster: Ray Core starts `partreduce run` once on each node.

python examples/ray_train.py --nnodes 4 --nproc-per-node 4 schedule.json examples/train_digits.py schedule.json
"""

import argparse
import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
class Node:
    """One node's launcher; a node that fails is a failure of its workers."""

    def endpoint(self) -> str:
        """The address at which all nodes connect, if this is the first."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def run(self, command: list[str]) -> int:
        """The exit code of this node's launcher."""
        return subprocess.run([sys.executable, "-m", "partreduce", "run", *command], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nnodes", type=int, required=True)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--tolerate-failures", type=int, default=1)
    parser.add_argument("--max-restarts", type=int, default=3)
    parser.add_argument("schedule")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="a script and its arguments")
    options = parser.parse_args()
    ray.init()
    group = placement_group([{"CPU": options.nproc_per_node}] * options.nnodes, strategy="SPREAD")
    ray.get(group.ready())
    nodes = [
        Node.options(
            num_cpus=options.nproc_per_node, scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)
        ).remote()
        for index in range(options.nnodes)
    ]
    common = ["--nnodes", str(options.nnodes), "--nproc-per-node", str(options.nproc_per_node)]
    common += ["--rdzv-endpoint", ray.get(nodes[0].endpoint.remote()), "--schedule", options.schedule]
    common += ["--tolerate-failures", str(options.tolerate_failures), "--max-restarts", str(options.max_restarts)]
    waiting = [node.run.remote(["--node-rank", str(rank), *common, *options.script]) for rank, node in enumerate(nodes)]
    codes = []
    for one in waiting:
        try:
            codes.append(ray.get(one))
        except ray.exceptions.RayActorError as gone:  # the others continue without that node
            print(f"a node failed: {gone}", file=sys.stderr)
    return max(codes, default=1)


if __name__ == "__main__":
    sys.exit(main())
