"""Outer steps as options: considered on slow links, at measured prices only."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from helpers.jobs import jobs
from partreduce import Data, Hardware, Link
from partreduce.planner.candidates import KINDS
from partreduce.planner.plan import plan
from partreduce.planner.recommend import contenders, decisive_time, recommend, regrets, simplest, times_by_case
from partreduce.planner.steps_model import OUTER_FRAGMENTS, OUTER_SETTINGS, TASKS, Optimizer
from partreduce.report.kinds import WORDS, not_weighed
from partreduce.report.reasons import add_reasons, cautions, reasons
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.types import ComputeTimes

ROOT = Path(__file__).parents[3]
THIN = Hardware(nic=Link.of_bandwidth(5e6, 1e-3), inside=Link.of_bandwidth(1e9), model_bytes=10**7, compute=0.1)
job = jobs("4x2", THIN, optimizer=Optimizer.ADAM, effort=2.0, time_limit=3600.0, max_period=30)


@pytest.fixture(scope="module")
def outer_plan():
    """A plan that selects an outer step by name, which changes no option."""
    (taken, *_) = KINDS["outer"].candidates(job(), lambda _: True)
    request = job(take=taken.name)
    return add_reasons(plan(request), request)


@pytest.fixture
def outer(outer_plan):
    return [option for option in outer_plan.options if option.facts and option.facts.kind == "outer"]


def test_outer_steps_match_the_event_graph_and_measured_prices(outer):
    prices = {one.ratio: one for one in OUTER_SETTINGS[Optimizer.ADAM]}
    assert {option.steps_ratio for option in outer} == set(prices), "--max period=30 also allows those of 30 phases"
    assert {option.schedule.strategy.kind for option in outer} == {"allreduce", "static"}
    for option in outer:
        exact = cycle_time(option.schedule, THIN, ComputeTimes.of(THIN), algorithm=option.algorithm)
        assert option.step_seconds == pytest.approx(exact.per_step)
        assert option.facts.peak == communication(option.schedule, THIN, algorithm=option.algorithm).peak_nic_bytes
        assert option.facts.memory_bytes == 3 * THIN.model_bytes, "buffer, outer parameters and momentum"
        assert option.facts.by_task == prices[option.steps_ratio].by_task(Optimizer.ADAM)
        assert not option.is_plain, "the plain alternative is periodic All-Reduce"
        document = json.loads(json.dumps(option.to_json(), allow_nan=False))
        assert document["outer"]["peak_nic_bytes"] == option.facts.peak


def test_prices_match_the_measured_results():
    rows = json.loads((ROOT / "benchmarks" / "results" / "steps_to_loss_outer.json").read_text())["rows"]
    found = {(row["schedule"], row["task"], row.get("share", 1)): row["ratio"] or 3.0 for row in rows}
    for optimizer, listed in OUTER_SETTINGS.items():
        for one in listed:
            words = "nodes, all " * one.in_nodes + f"every {one.every}, {float(one.outer.momentum):g}"
            words += f", 2 fragments, alpha {one.alpha}" if one.late else ""
            for kind, ratio in one.ratios.items():
                assert found[words, f"{kind}/{optimizer}", one.share] == pytest.approx(ratio, abs=1e-3)


def test_unmeasured_task_counts_as_the_most_expensive_one():
    for optimizer, listed in OUTER_SETTINGS.items():
        for one in listed:
            counted = dict(zip(TASKS[optimizer], one.by_task(optimizer), strict=True))
            assert len(one.ratios) >= 2, "a price needs two kinds of networks"
            assert all(counted[kind] == one.ratios.get(kind, max(one.ratios.values())) for kind in counted)
            assert min(one.ratios.values()) <= one.ratio <= max(one.ratios.values())


def synchronous_options(outer_plan, outer):
    """Return the synchronous options without a protocol, and the fastest simple one of them."""
    options = [one for one in outer_plan.options if one not in outer and not (one.late or one.facts)]
    return options, simplest(contenders(options, job()), job())


def with_ratios(option, ratios):
    """Return this outer step with given steps ratios on the tasks."""
    return replace(
        option, steps_ratio=fmean(ratios), facts=replace(option.facts, by_task=tuple(ratios)), extrapolated=False
    )


@pytest.mark.parametrize(("beyond", "is_taken"), [(1.01, True), (0.99, False)])
def test_outer_step_must_win_by_more_than_its_error(outer_plan, outer, beyond, is_taken):
    others, best = synchronous_options(outer_plan, outer)
    error = 1 + outer[0].steps_ratio_error(Data.SHUFFLED)
    just = with_ratios(outer[0], [best.time / outer[0].step_seconds / (beyond * error)] * len(TASKS[Optimizer.ADAM]))
    chosen = recommend([*others, just], job())
    assert chosen is (just if is_taken else recommend(others, job()))
    if is_taken:
        assert chosen.time * error < best.time, "the interval is above 1"
    else:
        text = " ".join(reasons(best, [*others, just], job()))
        wins = best.time / just.time - 1
        assert f"by more than the {error - 1:.0%} that its prediction errs by, and wins by {wins:.0%}" in text


@pytest.mark.parametrize(("costliest", "is_taken"), [(1.01, True), (0.99, False)])
def test_outer_step_must_win_on_every_task(outer_plan, outer, costliest, is_taken):
    others, best = synchronous_options(outer_plan, outer)
    (there,) = times_by_case([best], job())
    for task in range(len(there)):
        taken = [time / (costliest if task == one else 8.0) for one, time in enumerate(there)]
        once = with_ratios(outer[0], [time / outer[0].step_seconds for time in taken])
        assert best.time / once.time > 1 + once.steps_ratio_error(Data.SHUFFLED), "its error would allow this"
        assert recommend([*others, once], job()) is (once if is_taken else recommend(others, job()))
        if not is_taken:
            text = " ".join(reasons(best, [*others, once], job()))
            assert f"on the task that suits it least it would take {1 / costliest:.2f} times as long" in text


def test_extrapolated_outer_step_is_only_a_last_resort(outer_plan, outer):
    others, _ = synchronous_options(outer_plan, outer)
    cheap = with_ratios(outer[0], [0.01] * len(TASKS[Optimizer.ADAM]))
    assert recommend([*others, cheap], job()) is cheap
    beyond = replace(cheap, extrapolated=True)
    assert recommend([*others, beyond], job()) is recommend(others, job())
    assert recommend([beyond], job()) is beyond


def test_outer_steps_are_compared_by_predicted_time(outer):
    best = min(outer, key=lambda option: option.time)
    assert decisive_time(best, job()) == best.time < best.time_at_worst
    assert regrets([best], job()) == [1.0]


def test_streamed_fragments_hide_behind_compute_and_lower_the_peak(outer):
    late = [option for option in outer if option.schedule.strategy.sync.late_steps]
    whole = [
        o for o in outer if o.schedule.strategy.steps_per_round == 30 and o.schedule.strategy.payload.num_fragments == 1
    ]
    assert sorted(option.schedule.strategy.payload.num_fragments for option in late) == [2, 4, 8]
    for option in late:
        assert option.step_seconds < min(one.step_seconds for one in whole)
        peak = min(one.facts.peak for one in whole) / option.schedule.strategy.payload.num_fragments
        assert option.facts.peak == pytest.approx(peak)


def test_more_fragments_than_measured_are_extrapolated(outer):
    for option in outer:
        count = option.schedule.strategy.payload.num_fragments
        assert option.extrapolated == (count > OUTER_FRAGMENTS)
        guessed = [sentence for sentence in cautions(option, job()) if "a guess" in sentence]
        start = f"its model is cut into {count} fragments and at most {OUTER_FRAGMENTS} were measured"
        assert [sentence.startswith(start) for sentence in guessed] == [True] * option.extrapolated
    assert any(option.extrapolated for option in outer)


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.MOMENTUM])
def test_outer_steps_state_their_learning_rate_for_each_optimizer(optimizer):
    request = job(optimizer=optimizer, effort=0.3)
    options = [one for one in plan(request).options if one.facts and one.facts.kind == "outer"]
    assert options
    for option in options:
        _, text = WORDS["outer"].reasons(option, [option], request)
        words = f"with {option.facts.rate:g} times the learning rate that was best for All-Reduce"
        assert (words in text) == (option.facts.rate != 1)
        assert option.to_json()["outer"]["learning_rate"] == option.facts.rate


def test_recommended_outer_step_is_proved_and_explained(outer_plan, outer):
    assert outer_plan.recommendation in outer
    assert outer_plan.proof.verdict == "proved"
    assert any("the step that sends most sends" in sentence for sentence in outer_plan.reasons)
    assert any("tune the outer learning rate" in sentence for sentence in outer_plan.cautions)


@pytest.mark.parametrize(("changes", "why"), [
    ({"optimizer": None}, "they were measured under sgd, momentum, adam"),
    ({"data": Data.PER_WORKER}, "on shuffled data"),
])  # fmt: skip
def test_outer_steps_without_a_price_are_skipped_and_listed(changes, why):
    request = job(**changes)
    assert not KINDS["outer"].weighs(request)
    (text,) = (line for line in not_weighed(request) if line.startswith("outer steps"))
    assert why in text


def test_outer_steps_are_not_mentioned_on_fast_links():
    fast = job(hardware=replace(THIN, nic=Link.of_bandwidth(1e9)))
    assert not KINDS["outer"].weighs(fast)
    assert not any("outer steps" in line for line in not_weighed(replace(fast, optimizer=None)))
