"""Groups on request, pairs and servers as options: weighed where steps differ, priced by their runs, never a loss."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from partreduce import PlanRequest
from partreduce.planner.candidates import KINDS
from partreduce.planner.measuring import payer
from partreduce.planner.plan import plan
from partreduce.planner.recommend import WORTH, allowed_options, decisive_time, recommend
from partreduce.planner.steps_model import Optimizer
from partreduce.planner.trials import PAIRS_AT_WORST, try_all
from partreduce.report.kinds import not_weighed
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.strategies import Server
from partreduce.topo.strategies.dynamic_groups import GroupSplit
from partreduce.verify import prove

JITTERED = Hardware(
    inside=Link.of_bandwidth(1e9, 1e-4),
    nic=Link.of_bandwidth(25e6, 1e-4),
    model_bytes=2_192_296,
    compute=0.06,
    slowdown=((1, 4.0),),
    jitter=0.8,
)


def job(cluster="2x3", hardware=JITTERED, **options):
    return PlanRequest(
        **{"cluster": replace(Cluster.parse(cluster), hardware=hardware), "effort": 3.0, "time_limit": 3600.0} | options
    )


@pytest.fixture(scope="module")
def planned():
    return plan(job())


def kind_of(option):
    return option.facts.kind if option.facts else option.schedule.strategy.kind


def test_every_kind_is_run_with_its_seconds_its_steps_and_its_claims(planned):
    pay = payer(Clock(seconds=3600.0, effort=50.0), 50.0)
    tried = [KINDS[word].candidates(job(), pay) for word in ("dynamic_groups", "pairwise", "server")]
    found = [option for each in tried for option in try_all(each, job(), pay, in_any_case=False).options]
    assert {kind_of(option) for option in found} == {"dynamic_groups", "pairwise", "server"}
    for option in found:
        timeline = simulate(
            option.schedule, JITTERED, compute=job().compute_times(), num_rounds=80, seed=0, algorithm=option.algorithm
        )
        assert option.step_seconds == timeline.per_step(warm_up=20), "the objects that run, on links that all share"
        assert prove(option.schedule).verdict != "refuted"
        assert json.dumps(option.to_json(), allow_nan=False)
        assert decisive_time(option, job()) >= option.time
        if isinstance(option.schedule.strategy, Server) and option.schedule.strategy.synchronous:
            assert option.steps_ratio == 1.0
        else:
            assert option.steps_ratio > 1.0, "what does not average over all in every step pays for it"
    shown = {kind_of(option) for option in planned.options}
    (left_out,) = (said for said in planned.cautions if said.startswith("left out, because a longer run"))
    for word, kind in KINDS.items():
        assert not kind.weighs(job()) or word in shown or f"{word}: " in left_out


def test_what_is_not_calibrated_decides_by_a_pessimistic_price(planned):
    pairs = [option for option in planned.options if kind_of(option) == "pairwise"]
    for option in pairs:
        assert decisive_time(option, job()) >= (1 + PAIRS_AT_WORST) * option.step_seconds * (1 - 1e-12) or (
            option.steps_ratio > 1 + PAIRS_AT_WORST
        )


def test_with_one_more_kind_allowed_the_recommendations_time_rises_by_no_more_than_less_regret_is_worth(planned):
    kinds = sorted({kind_of(option) for option in planned.options})
    for size in range(1, len(kinds)):
        for few in itertools.combinations(kinds, size):
            fewer = [option for option in planned.options if kind_of(option) in few]
            if not allowed_options(fewer, job()):
                continue
            before = decisive_time(recommend(fewer, job()), job())
            for more in set(kinds) - set(few):
                wider = [option for option in planned.options if kind_of(option) in (*few, more)]
                assert decisive_time(recommend(wider, job()), job()) <= before * (1 + WORTH), (few, more)


def test_what_is_not_weighed_is_named_with_the_reason():
    def said(asked):
        return [line for line in not_weighed(asked) if line.startswith("groups on request")]

    (line,) = said(job("65x1"))
    assert line == "groups on request, pairs and servers are weighed for at most 64 workers, not 65"
    (line,) = said(job(hardware=replace(JITTERED, slowdown=(), jitter=0.0)))
    assert line.startswith("groups on request, pairs and servers are not weighed: no worker is slow")
    assert not said(job()), "they are"
    assert not said(job(quorum=True)), "nothing but quorums was asked for"


def test_nodes_of_one_worker_and_a_slow_one_are_planned_for() -> None:
    """Rounds inside nodes need two workers on each, which ended the plan with the division's refusal."""
    alone = Hardware(inside=Link.of_bandwidth(1e9), nic=Link.of_bandwidth(1e8), model_bytes=1_000_000, compute=0.05)
    cluster = replace(Cluster.parse("4x1"), hardware=replace(alone, slowdown=((1, 2.0),)))
    planned = plan(PlanRequest(cluster=cluster, effort=1.0))
    assert any(option.name.startswith("generated: ") for option in planned.options)
    assert not any(GroupSplit.NODE_THEN_ALL in option.name for option in planned.options if option.facts)


def test_unequal_steps_that_suit_the_workers_are_measured_before_rarer_averaging() -> None:
    """At a small effort All-Reduce's sampled rounds took all of it, and a worker twice as slow held up all."""
    thin = Hardware(inside=Link.of_bandwidth(1e9), nic=Link.of_bandwidth(4e8), model_bytes=2_000_000, compute=0.05)
    cluster = replace(Cluster.parse("2x4"), hardware=replace(thin, slowdown=((4, 2.0),), jitter=0.1))
    planned = plan(PlanRequest(cluster=cluster, effort=1.0, gap=False, quorum=False))
    assert planned.recommendation.name.startswith("paced"), planned.recommendation.name


def test_at_a_small_effort_unequal_steps_of_groups_are_measured_too_where_step_times_are_sampled() -> None:
    """Sampled settings were charged ten times what they take, and pairs were recommended at 2.5 times the time."""
    thin = Hardware(
        inside=Link.of_bandwidth(6e8, 1e-5), nic=Link.of_bandwidth(2.3e6, 1e-4), model_bytes=2_000_000, compute=0.05
    )
    cluster = replace(Cluster.parse("3x3"), hardware=replace(thin, slowdown=((6, 4.0),), jitter=0.3))
    asked = {"optimizer": Optimizer.SGD, "gap": False, "quorum": False, "effort": 3.0, "time_limit": 3600.0}
    planned = plan(PlanRequest(cluster=cluster, **asked))
    assert planned.recommendation.name.startswith("paced node-then-all"), planned.recommendation.name
