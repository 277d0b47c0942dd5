"""Clusters with racks from file to schedule: the examples of docs/clusters.md, planned, simulated and compared."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partreduce import Data, Limits, Objective, PlanRequest
from partreduce.planner.options import competitors
from partreduce.planner.plan import plan
from partreduce.planner.recommend import recommend
from partreduce.planner.steps_model import Optimizer
from partreduce.report.table import switch_levels
from partreduce.schedulers import registry
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing.cost import communication

if TYPE_CHECKING:
    from partreduce.topo.cluster import Cluster

PAGE = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[Cluster]:
    folder = tmp_path_factory.mktemp("clusters")
    for index, text in enumerate(EXAMPLES):
        (folder / f"{index}.yaml").write_text(text, encoding="utf-8")
    return [load_cluster(folder / f"{index}.yaml") for index in range(len(EXAMPLES))]


def job(cluster: Cluster, **options: object) -> PlanRequest:
    limits = Limits(**{name: options.pop(name) for name in [*options] if name.startswith("max_")})
    return PlanRequest(cluster=cluster, limits=limits, effort=0.5, time_limit=3600.0, **options)


def test_the_examples_of_the_page_load_and_say_their_switch_levels(examples: list[Cluster]) -> None:
    racks, pods = (
        switch_levels(cluster.hardware, cluster.num_nodes) for cluster in examples if cluster.hardware.switches
    )
    assert racks == ", under 2 switches of 4 nodes (2 GB/s up)"
    assert pods == ", under 4 switches of 2 nodes (8 GB/s up), 2 of 4 (2 GB/s up)"
    flat = replace(examples[0].hardware, switches=())
    assert switch_levels(flat, 8) == ""


def test_the_costs_on_the_page_are_those_of_the_model(examples: list[Cluster]) -> None:
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


def test_thin_uplinks_move_the_recommendation_to_a_schedule_that_knows_the_racks(examples: list[Cluster]) -> None:
    """Among rules alone: what is recommended for racks communicates less there than that for the same nodes without."""
    racked = examples[0]
    flat = replace(racked, hardware=replace(racked.hardware, switches=()))
    wanted = {"objective": Objective.COMMUNICATION, "data": Data.PER_WORKER, "max_consensus_distance": 0.3}
    wanted["optimizer"] = Optimizer.MOMENTUM  # no step more for averaging parameters at all
    aware, blind = (
        recommend(competitors(job(cluster, **wanted), until=0.0), job(cluster, **wanted)) for cluster in (racked, flat)
    )
    assert aware.communication < communication(blind.schedule, racked.hardware).per_step
    assert communication(aware.schedule, flat.hardware).per_step > blind.communication
    assert aware.schedule.rule().radices == (2, 4), "digit 0 is the rack"


@pytest.mark.parametrize("index", [0, 1])
def test_design_on_racks_proves_its_recommendation_and_the_simulator_agrees(
    examples: list[Cluster], index: int
) -> None:
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


def test_irregular_racks_are_planned_with_explicit_groups() -> None:
    text = EXAMPLES[0].replace("[0, 1, 2, 3]", "[0, 2]").replace("[4, 5, 6, 7]", "[1, 3, 4]")
    racked = cluster_of_text(text.replace("num_nodes: 8", "num_nodes: 5").replace("per_node: 4", "per_node: 1"))
    found = plan(job(racked, objective=Objective.CONSENSUS_DISTANCE, max_communication=0.3))
    assert found.proof.verdict == "proved"
    mine = [option for option in found.options if option.status != "catalogue"]
    assert mine
    assert all(option.schedule.rule() is None for option in mine)


def cluster_of_text(text: str) -> Cluster:
    from partreduce.topo.document.cluster import cluster_of
    from partreduce.topo.document.yaml_reader import parse_yaml

    return cluster_of(parse_yaml(text.encode()))
