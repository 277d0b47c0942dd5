"""Algorithm, delay and steps of a round with every candidate: the best of them, and what stays true of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from partreduce import Data, Limits, Objective, PlanRequest
from partreduce.__main__ import main
from partreduce.planner.axes import Axes, Setting
from partreduce.planner.job import Delay
from partreduce.planner.measuring import Label, measure, with_timing
from partreduce.planner.option import preference
from partreduce.planner.options import competitors
from partreduce.planner.plan import plan
from partreduce.planner.recommend import decisive_time
from partreduce.schedulers import registry
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.strategies.axes import AllReduceAlgorithm

if TYPE_CHECKING:
    pass

LINKS = {"inside": Link.of_bandwidth(10e9), "nic": Link.of_bandwidth(5e9)}
HARDWARE = Hardware(**LINKS, model_bytes=552_000_000, compute=0.05)
SLOW = replace(HARDWARE, slowdown=((1, 1.7), (4, 1.2)), node_nic=((0, Link.of_bandwidth(2e9)),))


def job(cluster: str = "4x4", hardware: Hardware = HARDWARE, **options: object) -> PlanRequest:
    return PlanRequest(
        cluster=replace(Cluster.parse(cluster), hardware=hardware), effort=1.0, time_limit=3600.0, **options
    )


@pytest.mark.parametrize("hardware", [HARDWARE, SLOW, replace(HARDWARE, num_nics=4, model_bytes=100_000_000)])
@pytest.mark.parametrize("name", ["allreduce", "node-digits", "prague-figure-10"])
def test_the_best_setting_is_the_best_of_all_of_them_measured_one_by_one(name: str, hardware: Hardware) -> None:
    schedule = registry.build(name, Cluster.parse("4x4"))
    everything = [
        measure(with_timing(schedule, late.sync, steps_per_round), job(hardware=hardware), algorithm=algorithm)
        for late in Delay
        for steps_per_round in range(1, 25)
        for algorithm in (AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL)
        if late.suits(replace(schedule.strategy, steps_per_round=steps_per_round))
    ]
    for objective in (Objective.BALANCED, Objective.COMMUNICATION, Objective.WAITING):
        axes = Axes(schedule, job(hardware=hardware, objective=objective))
        assert axes.most() == 24
        least = min(preference(option.costs, objective) for option in axes.options(Label(name=name)))
        assert least == pytest.approx(min(preference(option.costs, objective) for option in everything))


def test_every_option_is_what_its_file_says() -> None:
    asked = job("2x2", replace(SLOW, slowdown=((1, 2.0),)), data=Data.PER_NODE)
    for option in competitors(asked):
        again = measure(option.schedule, asked, algorithm=option.schedule.strategy.transport.algorithm)
        assert option.algorithm is option.schedule.strategy.transport.algorithm
        assert option.late is option.schedule.strategy.is_delayed
        for one, other in ((option.costs, again.costs), (option, again)):
            for field in ("communication", "step_seconds", "steps_ratio"):
                assert getattr(one, field) == pytest.approx(getattr(other, field), abs=1e-12), option.name
        assert option.costs.drift == pytest.approx(again.costs.drift, abs=1e-9)
        assert option.nic_bytes == pytest.approx(again.nic_bytes)
        assert option.waiting == pytest.approx(again.waiting, abs=1e-9)


def test_restrictions_hold_for_every_candidate_and_baselines_stay() -> None:
    rings = competitors(job(algorithm=AllReduceAlgorithm.RING, sync=Delay.SYNCHRONOUS), until=0.0)
    assert {(option.algorithm, option.late) for option in rings} == {(AllReduceAlgorithm.RING, False)}
    asked = job(sync=Delay.LATE, hardware=replace(HARDWARE, model_bytes=100_000_000))
    late = plan(replace(asked, effort=0.3))
    assert late.recommendation.late
    assert "allreduce" in {option.name for option in late.baselines}, "what torch does, though it is not late"


def test_late_all_reduce_hides_the_default_jobs_communication() -> None:
    asked = job(hardware=replace(HARDWARE, model_bytes=100_000_000))
    found = plan(asked)
    late = next(o for o in found.options if o.is_plain and o.late and o.steps_per_round == 1)
    assert late.step_seconds == pytest.approx(0.05)
    usual = next(o for o in found.options if o.is_plain and not o.late and o.steps_per_round == 1)
    assert late.time < usual.time, "at the predicted price"
    assert decisive_time(found.recommendation, asked) <= min(usual.time, decisive_time(late, asked))


def test_a_limit_on_communication_decides_the_steps_of_a_round() -> None:
    asked = job(objective=Objective.CONSENSUS_DISTANCE, limits=Limits(max_communication=0.03))
    best = [o for o in competitors(asked, until=0.0) if o.is_plain and o.costs.keep(asked.limits)]
    assert min(o.steps_per_round for o in best) == 6, "165.6 ms in 6 steps are 27.6 ms"


def test_command_line_says_which_algorithm_and_sync_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["design", "2x2", "--effort", "0.3", "--json"]
    assert main([*asked, "--algorithm", "ring", "--sync", "synchronous"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {(row["algorithm"], row["sync"]) for row in answer["front"]} == {("ring", "synchronous")}
    assert set(answer["gain"]) == {"alternative", "gain", "low", "high", "distinguishable"}
    assert answer["gain"]["alternative"] in {row["name"] for row in answer["baselines"]}
    assert main([*asked, "--sync", "delay"]) == 0
    assert json.loads(capsys.readouterr().out)["recommendation"]["sync"] == "delay"
    assert main([*asked, "--sync", "early"]) == 2
    assert "'any', 'synchronous', 'delay'" in capsys.readouterr().err


@pytest.mark.parametrize("hardware", [HARDWARE, SLOW, replace(SLOW, node_nic=())])
@pytest.mark.parametrize("name", ["allreduce", "node-then-all", "pairs-pairs-all", "node-digits"])
def test_no_setting_takes_less_than_the_bound_by_which_settings_are_ordered(hardware, name):
    asked = job("4x4", hardware)
    axes = Axes(registry.build(name, asked.cluster), asked)
    for timing in axes.timings:
        for delay in (Delay.SYNCHRONOUS, Delay.LATE):
            for steps in (1, 2, 5, 17):
                setting = Setting(delay, steps)
                least, seconds = timing.least_step(setting), timing.seconds(setting).step
                assert 0.9 * seconds < least <= seconds * (1 + 1e-9), "and it is close, so that few are timed"
