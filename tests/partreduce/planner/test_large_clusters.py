"""`design` keeps its time limit and little memory at any number of workers, and names what it leaves out.

Seconds on the wall depend on what else the machine does, so the processor's are counted; a process that takes too many
of them, or too much memory, is ended by the system.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from partreduce import PlanRequest
from partreduce.planner.candidates import Slowdown
from partreduce.planner.measuring import PER_OPTION, work_of
from partreduce.report.kinds import not_weighed
from partreduce.schedulers import registry
from partreduce.schedulers.synthesis.choices import choices_of
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.timing.event_graph import _evaluate

HARDWARE = Hardware(inside=Link.of_bandwidth(1e10), nic=Link.of_bandwidth(5e9), model_bytes=100_000_000, compute=0.05)
LIMIT, STARTING = 3, 20
"""Seconds: the time limit of a run, and what importing, proving and printing may take besides, with much to spare."""
MEMORY = 3 << 30

RUN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
from partreduce.__main__ import main
code = main(["design", "{cluster}", "--time-limit", "{limit}s", "--json"])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(code)
"""


def job(cluster: str, **options: object) -> PlanRequest:
    return PlanRequest(cluster=replace(Cluster.parse(cluster), hardware=HARDWARE), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("cluster", ["1000x1000", "100000x8", "1x100000", "1000000x1000"])
def test_a_time_limit_and_memory_are_kept_at_any_size(cluster):
    text = RUN.format(memory=MEMORY, seconds=LIMIT + STARTING, cluster=cluster, limit=LIMIT)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["recommendation"]["verdict"] == "proved"
    (said,) = (one for one in answer["cautions"] if one.startswith("planning ended"))
    assert "time limit of 3 s was over" in said
    assert float(done.stderr.splitlines()[-1]) < LIMIT + STARTING


def test_work_counts_the_local_ranks_of_a_rule_that_its_metrics_multiply():
    built = {size: registry.build("node-then-all", Cluster.parse(f"8x{size}")) for size in (8, 1000)}
    assert work_of(built[8], job("8x8")) < 2 * PER_OPTION
    assert work_of(built[1000], job("8x1000")) < 1, "all ranks of a node are equal, which makes one class"
    apart = [registry.build("rotating-heads", Cluster.parse(f"8x{size}")) for size in (8, 64, 128)]
    works = [work_of(one, job(str(one.cluster))) for one in apart]
    assert works == sorted(works)
    assert works[0] < 2 * PER_OPTION
    assert works[-1] > 1, "metrics of 128 ranks that all differ take some seconds"


def test_rules_of_very_many_local_ranks_are_not_searched_and_that_is_named():
    large, usual = job("1000x1000"), job("64x8")
    assert choices_of(large.problem()) == []
    assert choices_of(usual.problem())
    assert any("no rules are searched for 1000 workers on a node" in said for said in not_weighed(large))
    assert not any("no rules" in said for said in not_weighed(usual))


def test_a_thousand_million_workers_take_no_table_of_all():
    large = job("1000000x1000")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert Slowdown.of(large).is_even
    schedule = registry.build("allreduce", large.cluster)
    assert schedule.worker_steps().shape == (1_000_000_000,)
    assert (schedule.largest_steps_per_round, schedule.has_one_steps_per_round) == (1, True)
    not_weighed(large)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "KiB"


def test_a_policy_whose_ways_are_short_is_evaluated_as_any_other():
    rng = np.random.default_rng(0)
    for _ in range(50):
        count = int(rng.integers(2, 9))
        centers = rng.choice(count, size=int(rng.integers(1, count)), replace=False)
        origin = rng.choice(centers, size=count)
        origin[centers] = centers
        weight = rng.random(count)
        means, values = _evaluate(origin, weight)
        # One more node on a ring of two, which nobody else traces back to, takes the way that walks every path.
        longer = np.r_[origin, count + 1, count]
        walked, valued = _evaluate(longer, np.r_[weight, 1.0, 1.0])
        assert (means == walked[:count]).all()
        assert (values == valued[:count]).all()
