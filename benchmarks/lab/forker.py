"""The lab's process on one node: imports torch once, then forks the node's workers for every cell it is sent.

Started inside the node's namespace; reads one job per line, answers with one line `done CODE`. It never opens gloo
itself, so forking from it stays safe. `store` instead of a node number hosts the runs' stores, one fresh one a cell.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial

from benchmarks import kit
from benchmarks.kit import import_all
from benchmarks.lab.setting import Job
from benchmarks.lab.worker import use_environment


def serve_workers(node: int) -> None:
    """Fork workers until standard input ends."""
    _import_runtime()

    from benchmarks.lab.tasks import read_data
    from benchmarks.lab.worker import work
    from benchmarks.papers import pipe_sgd, tables_worker
    from partreduce.runtime.launcher.launch import launch

    measurements = {"profile": profile, "sums": pipe_sgd.measure, "tables": tables_worker.measure}
    samples: dict[str, object] = {}
    _say("ready")
    for line in sys.stdin:
        job = Job.of_line(line)
        if job.how in measurements:  # which need no data: links are profiled before any are written
            target = partial(measurements[job.how], job, node)
        else:
            if job.data_file not in samples:
                samples[job.data_file] = read_data(job.data_file)
            target = partial(work, job, node, samples[job.data_file])
        with (job.path / f"node-{node}.log").open("w") as log:
            code = launch(target, num_workers=job.workers_of_nodes[node], threads=1, output=log)
        _say(f"done {code}")


def _import_runtime() -> None:
    """Import all of the runtime once, so that every worker of a campaign runs the same code and starts at once."""
    import torch._dynamo
    import torch.distributed.algorithms.model_averaging.averagers  # noqa: F401 - as said

    import partreduce.runtime

    import_all(partreduce.runtime)


def serve_store(address: str) -> None:
    """Open a fresh store for every line and say its port; the one before it is closed."""
    from partreduce.runtime.transport.torch_api import TCPStore

    _say("ready")
    store = None
    for _ in sys.stdin:
        store = None
        store = TCPStore(address, 0, None, True, wait_for_workers=False)
        _say(f"port {store.port}")
    del store


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def profile(job: Job, node: int) -> None:
    """Profile the run's links with all its workers; rank 0 leaves a cluster file and the errors of its check."""
    from partreduce.runtime.profile import profile as measure
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.document.cluster import write_cluster

    kit.end_after(job.limit + 60)
    rank = use_environment(job, node)
    os.environ["OMP_NUM_THREADS"] = "1"
    cluster = Cluster.regular(job.num_nodes, job.workers_per_node)
    found = measure(cluster, model_bytes=int(job.options["model_bytes"]), repetitions=3, num_checks=6, timeout=60.0)
    if rank == 0:
        write_cluster(job.path / "cluster.json", found.cluster)
        errors = {"checks": list(found.check_errors), "fitted": list(found.fit_errors)}
        (job.path / "errors.json").write_text(json.dumps(errors))


if __name__ == "__main__":
    if sys.argv[1] == "store":
        serve_store(sys.argv[2])
    else:
        serve_workers(int(sys.argv[1]))
