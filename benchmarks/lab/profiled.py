"""Measures the lab's own links with `runtime.profile`, from inside: what a user of `partreduce measure` would get."""

from __future__ import annotations

import json
import os

from benchmarks import kit
from benchmarks.lab.baselines import use_environment
from benchmarks.lab.job import Job


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
