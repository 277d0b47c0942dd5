"""Clusters with racks from file to schedule, and clusters of any size within the limits on time and memory."""

import json
import re
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.jobs import jobs, with_links
from partreduce import Cluster, Data, Objective, load_cluster, simulate
from partreduce.planner.candidates import Slowdown
from partreduce.planner.measuring import PER_OPTION, work_of
from partreduce.planner.options import _variants, competitors
from partreduce.planner.plan import plan
from partreduce.planner.recommend import recommend
from partreduce.planner.steps_model import Optimizer
from partreduce.report.kinds import not_weighed
from partreduce.report.table import switch_levels
from partreduce.schedulers import registry
from partreduce.schedulers.rules.algebra import static
from partreduce.schedulers.synthesis.front import choices_of
from partreduce.strategies import AllReduceAlgorithm
from partreduce.topo.document.cluster import cluster_of
from partreduce.topo.document.yaml_reader import parse_yaml
from partreduce.topo.metrics.decomposition import merged_classes
from partreduce.topo.rule import Block, RuleView, check_rule
from partreduce.topo.strategies.static import RulePhases
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.event_graph import _evaluate

PAGE = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clusters")
    for index, text in enumerate(EXAMPLES):
        (folder / f"{index}.yaml").write_text(text, encoding="utf-8")
    return [load_cluster(folder / f"{index}.yaml") for index in range(len(EXAMPLES))]


job = jobs(None, None, effort=0.5, time_limit=3600.0)


def test_page_examples_load_and_describe_their_switches(examples):
    racks, pods = (
        switch_levels(cluster.hardware, cluster.num_nodes) for cluster in examples if cluster.hardware.switches
    )
    assert racks == ", under 2 switches of 4 nodes (2 GB/s up)"
    assert pods == ", under 4 switches of 2 nodes (8 GB/s up), 2 of 4 (2 GB/s up)"
    flat = replace(examples[0].hardware, switches=())
    assert switch_levels(flat, 8) == ""


def test_costs_on_the_page_match_the_model(examples):
    rows = {
        "all-reduce each step, hierarchical": ("allreduce", {}, AllReduceAlgorithm.HIERARCHICAL),
        "node-then-all, 1 node round": ("node-then-all", {"node_rounds": 1}, AllReduceAlgorithm.RING),
        "hierarchy (node, rack, all), 1 round": ("hierarchy", {"rounds": 1}, AllReduceAlgorithm.RING),
        "Prague's Figure 10": ("prague-figure-10", {}, AllReduceAlgorithm.RING),
        "all-reduce every 4 steps": ("allreduce", {"every": 4}, AllReduceAlgorithm.RING),
    }
    for label, (name, parameters, algorithm) in rows.items():
        (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {label} |"))
        printed = [float(cell.strip(" *")) for cell in line.strip("| ").split("|")[3:]]
        for bandwidth, milliseconds in zip((20e9, 5e9, 2e9, 1e9), printed, strict=True):
            hardware = examples[0].hardware
            switches = tuple(
                replace(switch, uplink=replace(switch.uplink, latency=0.0, seconds_per_byte=1 / bandwidth))
                for switch in hardware.switches
            )
            cluster = replace(examples[0], hardware=replace(hardware, switches=switches))
            cost = communication(registry.build(name, cluster, **parameters), cluster.hardware, algorithm=algorithm)
            assert cost.per_step * 1e3 == pytest.approx(milliseconds, abs=0.051), (label, bandwidth)


def test_slow_uplinks_yield_a_rack_aware_recommendation(examples):
    """Among rules, the recommendation for racks communicates less on them than the recommendation for flat nodes."""
    racked = examples[0]
    flat = replace(racked, hardware=replace(racked.hardware, switches=()))
    wanted = {"objective": Objective.COMMUNICATION, "data": Data.PER_WORKER, "max_consensus_distance": 0.3}
    wanted["optimizer"] = Optimizer.MOMENTUM  # under which averaging parameters costs no extra steps
    names = ("allreduce", "node-then-all", "node-digits", "hierarchy")
    request = [job(cluster, **wanted) for cluster in (racked, flat)]
    aware, blind = (recommend(competitors(one, names=names), one) for one in request)
    assert aware.communication < communication(blind.schedule, racked.hardware).per_step
    assert communication(aware.schedule, flat.hardware).per_step > blind.communication
    assert aware.schedule.rule().radices == (2, 4), "digit 0 is the rack"


@pytest.mark.parametrize("index", [0, 1])
def test_design_on_racks_is_proved_and_matches_the_simulator(examples, index):
    cluster = examples[index]
    found = plan(job(cluster, objective=Objective.CONSENSUS_DISTANCE, max_communication=0.3))
    assert found.proof.verdict == "proved"
    assert found.recommendation.communication <= 0.3
    best = min(o.consensus_distance.value for o in found.options if o.status == "catalogue" and o.communication <= 0.3)
    assert found.recommendation.consensus_distance.value <= best
    timeline = simulate(found.recommendation.schedule, cluster.hardware, num_rounds=8 * found.recommendation.period)
    assert timeline.per_step(warm_up=4 * found.recommendation.period) == pytest.approx(
        found.recommendation.step_seconds
    )
    assert found.recommendation.step_seconds <= 0.05 + found.recommendation.communication * (1 + 1e-9)


def test_irregular_racks_use_explicit_groups():
    text = EXAMPLES[0].replace("[0, 1, 2, 3]", "[0, 2]").replace("[4, 5, 6, 7]", "[1, 3, 4]")
    text = text.replace("num_nodes: 8", "num_nodes: 5").replace("per_node: 4", "per_node: 1")
    racked = cluster_of(parse_yaml(text.encode()))
    found = plan(job(racked, objective=Objective.CONSENSUS_DISTANCE, max_communication=0.3))
    assert found.proof.verdict == "proved"
    mine = [option for option in found.options if option.status != "catalogue"]
    assert mine
    assert all(option.schedule.rule() is None for option in mine)


# `design` keeps its time limit and needs little memory at any number of workers


HARDWARE = with_links(1e10, 5e9, model_bytes=100_000_000, compute=0.05)
LIMIT, WHOLE = 0.5, 20
"""Seconds: the time limit, and a generous bound with importing, proving and printing."""
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
large_job = jobs(None, HARDWARE)


@pytest.mark.parametrize("cluster", ["1000x1000", "100000x8", "1x100000", "1000000x1000"])
def test_time_limit_and_memory_hold_at_any_size(cluster):
    text = RUN.format(memory=MEMORY, seconds=WHOLE, cluster=cluster, limit=LIMIT)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["recommendation"]["verdict"] == "proved"
    (caution,) = (one for one in answer["cautions"] if one.startswith("planning ended"))
    assert f"time limit of {LIMIT} s was over" in caution
    assert float(done.stderr.splitlines()[-1]) < WHOLE


def test_work_estimate_counts_the_local_ranks_of_a_rule():
    built = {size: registry.build("node-then-all", Cluster.parse(f"8x{size}")) for size in (8, 1000)}
    assert work_of(built[8], large_job("8x8")) < 2 * PER_OPTION
    assert work_of(built[1000], large_job("8x1000")) < 1, "equal ranks of a node make one class"
    apart = [registry.build("rotating-heads", Cluster.parse(f"8x{size}")) for size in (8, 64, 128)]
    works = [work_of(one, large_job(str(one.cluster))) for one in apart]
    assert works == sorted(works)
    assert works[0] < 2 * PER_OPTION
    assert works[-1] > 1, "metrics of 128 different ranks take seconds"


def test_rules_of_too_many_local_ranks_are_skipped_and_listed():
    large, usual = large_job("1000x1000"), large_job("64x8")
    assert choices_of(large.problem()) == []
    assert choices_of(usual.problem())
    assert any("no rules are searched for 1000 workers on a node" in text for text in not_weighed(large))
    assert not any("no rules" in text for text in not_weighed(usual))


def test_billion_workers_need_no_array_over_all_workers():
    large = large_job("1000000x1000")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert Slowdown.of(large).is_even
    schedule = registry.build("allreduce", large.cluster)
    assert schedule.worker_steps().shape == (1_000_000_000,)
    assert (schedule.largest_steps_per_round, schedule.has_one_steps_per_round) == (1, True)
    not_weighed(large)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "KiB"


def test_policy_of_short_paths_is_evaluated_exactly():
    rng = np.random.default_rng(0)
    for _ in range(50):
        count = int(rng.integers(2, 9))
        centers = rng.choice(count, size=int(rng.integers(1, count)), replace=False)
        origin = rng.choice(centers, size=count)
        origin[centers] = centers
        weight = rng.random(count)
        means, values = _evaluate(origin, weight)
        # An unreachable ring of two makes `_evaluate` take its general path, which walks every path.
        longer = np.r_[origin, count + 1, count]
        walked, valued = _evaluate(longer, np.r_[weight, 1.0, 1.0])
        assert (means == walked[:count]).all()
        assert (values == valued[:count]).all()


class CountedPhase(tuple):
    """A phase that counts iterations over its blocks."""

    __slots__ = ()
    looks = 0

    def __iter__(self):
        CountedPhase.looks += 1
        return super().__iter__()


@pytest.mark.parametrize(
    "look",
    [
        lambda phases, cluster: check_rule(phases, cluster, ()),
        lambda phases, cluster: RuleView((), phases, cluster.num_workers).shared_rank(),
        lambda phases, cluster: merged_classes(RuleView((), phases, cluster.num_workers)),
        lambda phases, cluster: static(cluster, RulePhases((), phases)),
    ],
    ids=["check", "shared rank", "classes", "strategy"],
)
def test_repeated_phase_is_visited_once(look):
    """A period with rare averages repeats a phase that may have as many blocks as a node has workers."""
    phase = CountedPhase(Block((rank, rank + 1)) for rank in range(0, 8, 2))
    looks = []
    for period in (1, 20):
        CountedPhase.looks = 0
        look((phase,) * period, Cluster.parse("1x8"))
        looks.append(CountedPhase.looks)
    assert looks[0] == looks[1] > 0


def test_catalogue_is_built_once_for_all_optimizers():
    request = large_job("1x12")
    competitors(replace(request, optimizer=Optimizer.ADAM))
    built = _variants.cache_info().misses
    competitors(replace(request, optimizer=Optimizer.SGD))
    assert _variants.cache_info().misses == built
