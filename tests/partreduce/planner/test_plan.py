"""The planner: measured options, the Pareto front, answers within limits, and errors."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from helpers.jobs import HARDWARE, find_option, jobs
from helpers.refusals import check_error
from partreduce import Data, Hardware, Link, Objective
from partreduce.errors import InputError, UndecidedError
from partreduce.planner.measuring import measure
from partreduce.planner.options import competitors
from partreduce.planner.plan import plan
from partreduce.planner.recommend import LEAST_ERROR, TIE, front, recommend
from partreduce.planner.steps_model import BORNE, FITTED, LOST, Optimizer, price_of_moments
from partreduce.report.reasons import cautions, reasons
from partreduce.schedulers import registry
from partreduce.strategies import AllReduceAlgorithm
from partreduce.types import Delay

job = jobs("4x4", HARDWARE, effort=1.0, time_limit=3600.0)


@pytest.fixture(scope="module")
def catalogue():
    return competitors(job())


@pytest.fixture(scope="module")
def within_budget():
    return plan(job(objective=Objective.CONSENSUS_DISTANCE, max_communication=0.1104))


def test_catalogue_costs_match_the_reference_metrics(catalogue):
    figure_10 = find_option(catalogue, "prague-figure-10")
    assert math.isclose(figure_10.communication, 0.1104)
    assert math.isclose(float(figure_10.consensus_distance), 8 / 7)
    assert math.isclose(find_option(catalogue, "allreduce hierarchical").communication, 0.1656)
    assert math.isclose(find_option(catalogue, "allreduce").communication, 0.207)
    rings = competitors(job(algorithm=AllReduceAlgorithm.RING), until=0.0)
    assert math.isclose(find_option(rings, "allreduce(every=4)").communication, 0.05175)


def test_reasons_compare_with_the_default_allreduce(catalogue):
    chosen, usual = find_option(catalogue, "allreduce hierarchical"), find_option(catalogue, "allreduce")
    (text,) = (one for one in reasons(chosen, catalogue, job()) if one.startswith("All-Reduce in every step"))
    assert text.startswith(f"All-Reduce in every step as it is usually run would take {usual.time / chosen.time:.2f} ")
    assert not any("in every step" in one for one in reasons(usual, [usual], job()) if "would take" in one)


def test_rare_averaging_warns_about_the_learning_rate(catalogue):
    momentum, rare = job(optimizer=Optimizer.MOMENTUM), find_option(catalogue, "allreduce(every=12) hierarchical")
    (text,) = (text for text in cautions(rare, momentum) if "it assumes that your learning rate" in text)
    assert float(rare.consensus_distance) > LOST[Optimizer.MOMENTUM][True].consensus_distance > BORNE
    assert "under momentum one of five test networks did not reach its loss" in text
    assert f"--max consensus-distance={BORNE} leaves them out" in text
    often = [one for one in catalogue if not one.late and float(one.consensus_distance) <= BORNE]
    assert often
    assert not any("it assumes that your learning rate" in text for one in often for text in cautions(one, momentum))
    adam = job(optimizer=Optimizer.ADAM)
    unlike = replace(rare, model=adam.steps_model)
    assert not any("it assumes that your learning rate" in text for text in cautions(unlike, adam)), "no failures"
    assert any("under sgd and momentum one" in text for text in cautions(rare, job()))
    late = max(catalogue, key=lambda option: option.late_distance)
    assert any("--sync synchronous leaves them out" in text for text in cautions(late, job(optimizer=Optimizer.SGD)))


def test_front_is_exactly_the_non_dominated_options(catalogue):
    kept = front(catalogue)

    def costs(option):
        metrics = (float(option.consensus_distance), float(option.drift))
        # A pipeline has the metrics of synchronous rounds but takes more steps.
        return (option.communication, *metrics, option.step_seconds, option.steps_ratio)

    for a, b in itertools.permutations(kept, 2):
        assert any(x > y + 1e-9 for x, y in zip(costs(a), costs(b), strict=True)), (a.name, b.name)
    for option in catalogue:
        if math.isfinite(option.steps_ratio):
            assert any(
                all(x <= y + 1e-9 for x, y in zip(costs(other), costs(option), strict=True)) for other in kept
            ), option.name


def test_recommendation_beats_figure_10_within_its_communication(within_budget):
    chosen = within_budget.recommendation
    assert chosen.communication <= 0.1104 * (1 + 1e-9)
    assert float(chosen.consensus_distance) <= 0.3542
    assert within_budget.proof.verdict == "proved"


def test_recommendation_is_on_the_front_and_its_json_is_finite(within_budget):
    document = within_budget.to_json()
    assert document["recommendation"]["name"] in {row["name"] for row in document["front"]}
    assert {"name", "communication_seconds_per_step", "consensus_distance", "step_seconds", "period", "status"} <= set(
        document["recommendation"]
    )


def test_sorted_data_lowers_the_drift_of_the_recommendation(catalogue):
    shuffled = recommend(catalogue, job())
    sorted_job = job(data=Data.PER_WORKER)
    sorted_ = recommend(competitors(sorted_job, until=0.0), sorted_job)
    assert float(sorted_.drift) < float(shuffled.drift)


LAB = Hardware(nic=Link.of_bandwidth(25e6), inside=Link.of_bandwidth(1e10), model_bytes=2_200_000, compute=0.06)


def test_less_slow_worker_costs_at_most_the_error_margin():
    """Unequal steps per round win by less than their error at 1.1 times the compute time, by more at 1.5 times."""
    request = [
        job("2x4", hardware=replace(LAB, slowdown=((0, slow),)), optimizer=Optimizer.ADAM) for slow in (1.1, 1.5)
    ]
    names = ("allreduce", "node-then-all")
    less, more = (recommend(competitors(one, names=names), one).time for one in request)
    assert less <= more * (1 + LEAST_ERROR)


def test_extrapolation_under_momentum_is_superlinear_and_flagged():
    """Every 25 steps (distance 10.5) the text model needed 2.67 times the steps; a linear price predicts 1.58."""
    model = job(optimizer=Optimizer.MOMENTUM).steps_model
    assert model.steps_ratio(10.5, 0.0) == pytest.approx(2.67, rel=0.25)
    assert model.steps_ratio(4.0, 0.0) < 1.2, "measured distances keep their price"
    thin = job("2x4", hardware=replace(LAB, nic=Link.of_bandwidth(2e6)), optimizer=Optimizer.MOMENTUM)
    options = competitors(thin, until=0.0)
    far = [one for one in options if float(one.consensus_distance) > model.max_consensus_distance]
    assert far
    assert all(one.extrapolated for one in far)
    assert not recommend(options, thin).extrapolated


def test_slow_worker_appears_as_waiting(catalogue):
    options = competitors(job(hardware=replace(HARDWARE, slowdown=((6, 5.0),))), names=("allreduce", "node-then-all"))
    allreduce = find_option(options, "allreduce")
    assert math.isclose(allreduce.step_seconds, 0.25 + 0.207, rel_tol=1e-6)
    assert math.isclose(allreduce.waiting, 0.2, rel_tol=1e-6)
    paced = next(one for one in options if one.name.startswith("paced node-then-all(node_rounds=7)"))
    assert paced.schedule.worker_steps().tolist() == [1 if rank == 6 else 5 for rank in range(16)]
    assert paced.step_seconds < 0.5 * allreduce.step_seconds
    assert not any(option.name.startswith("paced") for option in catalogue)


def test_hierarchical_algorithm_is_named():
    words, request = "as its file says: algorithm hierarchical", job(algorithm=AllReduceAlgorithm.HIERARCHICAL)
    chosen = recommend(competitors(request, names=("allreduce",)), request)
    assert any(words in sentence for sentence in [*reasons(chosen, [chosen], request), *cautions(chosen, request)])
    assert chosen.schedule.strategy.transport.algorithm is AllReduceAlgorithm.HIERARCHICAL, "the schedule states it"


def test_million_workers_are_planned_from_rules():
    options = competitors(job("250000x4"))
    assert {"prague-figure-10", "node-then-all"} <= {option.schedule.name.split("(")[0] for option in options}


def test_impossible_budget_names_the_least_possible(catalogue):
    with pytest.raises(UndecidedError, match=r"expected at least .* ms per step, got 0\.001 ms; raise it"):
        recommend(catalogue, job(max_communication=1e-6))


@pytest.mark.parametrize(("options", "message"), [
    ({"cluster": "1x1"}, "has 1 worker"),
    ({"hardware": None}, "its links are unknown"),
    ({"max_group": 17}, "max-group: is 17; it lies between 2 and the number of workers, 16"),
    ({"max_group": 1}, "max-group: is 1; it lies between 2 and the number of workers, 16"),
    ({"max_communication": math.inf}, "max-communication: is inf"),
    ({"max_consensus_distance": -1.0}, "max-consensus-distance: is -1.0; it is a finite number >= 0"),
    ({"max_period": 0}, "max-period: is 0; the least possible value is 1"),
])  # fmt: skip
def test_invalid_jobs_are_rejected(options, message):
    check_error(InputError, message, job, **options)


def test_steps_ratio_is_1_for_allreduce_and_grows_with_both_metrics():
    assert FITTED.steps_ratio(0.0, 0.0, gradients=True) == 1.0
    assert (
        FITTED.steps_ratio(1.0, 0.0)
        < FITTED.steps_ratio(2.0, 0.0)
        < FITTED.steps_ratio(2.0, 1.0)
        < FITTED.steps_ratio(2.0, 5.0)
    )
    assert math.isinf(FITTED.steps_ratio(math.inf, 0.0))


def test_graphs_are_listed_as_skipped_at_the_time_limit():
    left_out: list[str] = []
    options = competitors(job(), until=0.0, left_out=left_out.append)
    assert {option.schedule.strategy.kind for option in options} == {"static", "allreduce"}
    assert {"ring", "hypercube"} <= set(left_out)
    assert "prague-figure-10" not in left_out


def test_catalogue_candidates_keep_the_limits_of_the_search():
    limited = competitors(job("4x4", max_period=3, max_group=4))
    assert limited
    assert all(option.period <= 3 for option in limited)
    options = competitors(job(max_gap=3, algorithm=AllReduceAlgorithm.RING), until=0.0)
    assert {"prague-figure-10", "node-then-all"} <= {option.name for option in options}
    assert "node-then-all(node_rounds=5)" not in {option.name for option in options}
    without_gap = competitors(job(max_gap=0, sync=Delay.SYNCHRONOUS), until=0.0)
    names = {"allreduce", "allreduce hierarchical", "node-digits hierarchical"}
    assert {option.name for option in without_gap} == names


def test_search_minimizes_consensus_distance_by_default():
    assert job(data=Data.PER_NODE).problem().objective is Objective.CONSENSUS_DISTANCE
    assert job(objective=Objective.COMMUNICATION).problem().objective is Objective.COMMUNICATION
    assert job(objective=Objective.WAITING).problem().objective is Objective.CONSENSUS_DISTANCE


@pytest.mark.parametrize("cluster", ["1x9", "1x16", "5,3,1", "3,3,2", "2x1"])
def test_any_cluster_shape_is_planned(cluster):
    answer = plan(job(cluster, effort=0.3))
    assert all(
        option.consensus_distance.value >= 0 for option in answer.options if option.consensus_distance.value is not None
    )
    assert any(option.schedule.strategy.averages_everyone for option in answer.front), "the least distance"
    assert answer.proof.verdict == "proved"


def test_late_distance_adds_to_the_steps_ratio():
    assert FITTED.steps_ratio(0.9375, 0.0) == pytest.approx(
        1 + price_of_moments(FITTED.noise, FITTED.num_workers) + FITTED.a * 0.9375
    )
    assert replace(FITTED, late=0.1).steps_ratio(0.5, 2.0, late=3.0) == pytest.approx(
        FITTED.steps_ratio(0.5, 2.0) + 0.3
    )
    assert FITTED.steps_ratio(0.5, 2.0, late=math.inf) == math.inf
    assert FITTED.error("shuffled", late=True) > FITTED.error("shuffled")


def test_parameter_averaging_under_adam_costs_steps_even_at_distance_0():
    """One node: node-then-all averages parameters in every step, but each worker keeps its Adam moments."""
    request = job("1x8", optimizer=Optimizer.ADAM)
    parameters, every_step = (
        measure(registry.entry(name).build(request.cluster), request) for name in ("node-then-all", "allreduce")
    )
    assert parameters.consensus_distance.value == 0
    assert parameters.steps_ratio == pytest.approx(1 + price_of_moments(request.steps_model.noise, 8))
    assert parameters.steps_ratio > 1.3
    assert every_step.steps_ratio == 1
    assert measure(parameters.schedule, replace(request, optimizer=Optimizer.SGD)).steps_ratio == 1


def test_delay_is_nearly_free_under_momentum_but_not_sgd():
    late = {}
    for optimizer in Optimizer:
        options = competitors(job(optimizer=optimizer), until=0.0, names=("allreduce",))
        late[optimizer] = find_option(options, "allreduce late hierarchical")
    momentum, sgd = late[Optimizer.MOMENTUM], late[Optimizer.SGD]
    assert momentum.time_at_worst < 1.06 * momentum.step_seconds
    assert sgd.time_at_worst > 1.4 * sgd.step_seconds


def test_recommendation_minimizes_the_worst_case_regret():
    request = job("2x4", optimizer=Optimizer.SGD, sync=Delay.SYNCHRONOUS)
    options = [option for option in competitors(request, until=0.0) if math.isfinite(option.time)]
    chosen, usual = recommend(options, request), request.steps_model

    def worst(option):
        cases = [[one.time_in(case, usual, delay=True) for one in (option, *options)] for case in usual.cases]
        return max(times[0] / min(times) for times in cases)

    assert worst(chosen) <= min(map(worst, options)) * (1 + TIE)


def test_infinite_prices_stay_separate_and_zero_prices_extrapolate():
    request = job("2x4")
    rare = find_option(competitors(request, until=0.0), "allreduce(every=24) hierarchical")
    endless = replace(request.steps_model, a=1e17)
    spread = float(rare.consensus_distance)
    priced = replace(rare, model=endless, steps_ratio=endless.steps_ratio(spread, 0.0))
    usual = request.steps_model
    assert priced.time_in(usual, endless, delay=True) == pytest.approx(rare.time)
    apart = replace(rare, consensus_distance=replace(rare.consensus_distance, value=1e17))
    apart = replace(apart, steps_ratio=usual.steps_ratio(1e17, 0.0))
    for case in usual.cases:
        assert apart.time_in(case, usual, delay=True) > 0.01 * apart.time, "even if the task has no price of distance"
