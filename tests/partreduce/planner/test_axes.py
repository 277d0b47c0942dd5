"""Algorithm, delay, codec and steps per round: the best setting of each candidate, and settings that do not pay."""

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from helpers.command_runs import ran
from helpers.jobs import HARDWARE, jobs, with_links
from partreduce import Cluster, Data, Hardware, Limits, Link, Objective, load_schedule
from partreduce.__main__ import main
from partreduce.planner.axes import Axes, Setting
from partreduce.planner.measuring import (
    WORTH,
    WORTH_OVERLAPPED,
    cheapest_transports,
    measure,
    transports_of,
    traveling,
    with_timing,
)
from partreduce.planner.option import preference
from partreduce.planner.options import competitors
from partreduce.planner.plan import plan
from partreduce.planner.recommend import baselines, best_plain, decisive_time, recommend
from partreduce.planner.steps_model import FITTED
from partreduce.report.reasons import late_and_small, reasons
from partreduce.schedulers import registry
from partreduce.strategies import AllReduceAlgorithm, Codec, CodecScope, GradientBuckets, Pipeline, Transport
from partreduce.topo.strategies.axes import SYNCHRONOUS, DelayedAveraging
from partreduce.types import CodecSeconds, Delay

SLOW = replace(HARDWARE, slowdown=((1, 1.7), (4, 1.2)), node_nic=((0, Link.of_bandwidth(2e9)),))
job = jobs("4x4", HARDWARE, effort=1.0, time_limit=3600.0)


@pytest.mark.parametrize("hardware", [HARDWARE, SLOW, replace(HARDWARE, num_nics=4, model_bytes=100_000_000)])
@pytest.mark.parametrize("name", ["allreduce", "node-digits", "prague-figure-10"])
def test_best_setting_equals_exhaustive_measurement(name, hardware):
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
        least = min(preference(option.costs, objective) for option in axes.options(name))
        assert least == pytest.approx(min(preference(option.costs, objective) for option in everything))


THIN = Hardware(
    inside=Link.of_bandwidth(1e9), nic=Link.of_bandwidth(5e6, 1e-4), model_bytes=2_192_296, compute=0.16
)  # the test network at 40 Mbit/s
FAST = with_links(50e9, 50e9, model_bytes=100_000_000, compute=0.05)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("requested", [
    job("2x2", replace(SLOW, slowdown=((1, 2.0),)), data=Data.PER_NODE), job("2x2", THIN, codec=None),
], ids=["slow workers", "codecs"])  # fmt: skip
def test_every_option_matches_its_schedule(requested, every):
    options = competitors(requested)
    assert {option.transport.codec for option in options} >= {Codec.NONE} | {Codec.INT8} & set(requested.codecs)
    assert {option.delay for option in options} == set(Delay)
    for option in options[::every]:
        strategy = option.schedule.strategy
        strategy.check(option.schedule.cluster)
        again = measure(option.schedule, requested, algorithm=option.algorithm)
        assert option.algorithm is strategy.transport.algorithm
        assert option.late is strategy.is_delayed
        for one, other in ((option.costs, again.costs), (option, again)):
            for field in ("communication", "step_seconds", "steps_ratio"):
                assert getattr(one, field) == pytest.approx(getattr(other, field), abs=1e-12), option.name
        assert option.costs.drift == pytest.approx(again.costs.drift, abs=1e-9)
        assert option.nic_bytes == pytest.approx(again.nic_bytes)
        assert option.waiting == pytest.approx(again.waiting, abs=1e-9)
        assert (str(option.transport.codec) in option.name) is (option.transport.codec is not Codec.NONE)


def test_restrictions_hold_for_every_candidate_except_baselines():
    rings = competitors(job(algorithm=AllReduceAlgorithm.RING, sync=Delay.SYNCHRONOUS), until=0.0)
    assert {(option.algorithm, option.late) for option in rings} == {(AllReduceAlgorithm.RING, False)}
    request = job(sync=Delay.LATE, hardware=replace(HARDWARE, model_bytes=100_000_000))
    late = plan(replace(request, effort=0.3))
    assert late.recommendation.late
    assert "allreduce" in {option.name for option in late.baselines}, "PyTorch's default, although not delayed"


def test_delayed_allreduce_hides_the_communication_of_the_default_job():
    request = job(hardware=replace(HARDWARE, model_bytes=100_000_000), effort=0.3)
    found = plan(request)
    late = next(o for o in found.options if o.is_plain and o.late and o.steps_per_round == 1)
    assert late.step_seconds == pytest.approx(0.05)
    usual = next(o for o in found.options if o.is_plain and not o.late and o.steps_per_round == 1)
    assert late.time < usual.time, "at the predicted price"
    assert decisive_time(found.recommendation, request) <= min(usual.time, decisive_time(late, request))


def test_communication_limit_sets_the_steps_per_round():
    request = job(objective=Objective.CONSENSUS_DISTANCE, limits=Limits(max_communication=0.03))
    best = [o for o in competitors(request, names=("allreduce",)) if o.is_plain and o.costs.keep(request.limits)]
    assert min(o.steps_per_round for o in best) == 6, "165.6 ms in 6 steps are 27.6 ms"


def test_design_accepts_algorithm_and_sync(capsys):
    arguments = ["design", "2x2", "--effort", "0.3", "--json"]
    answer = json.loads(ran(capsys, [*arguments, "--algorithm", "ring", "--sync", "synchronous"]).out)
    assert {(row["algorithm"], row["sync"]) for row in answer["front"]} == {("ring", "synchronous")}
    assert set(answer["gain"]) == {"alternative", "gain", "low", "high", "distinguishable"}
    assert answer["gain"]["alternative"] in {row["name"] for row in answer["baselines"]}
    assert json.loads(ran(capsys, [*arguments, "--sync", "delay"]).out)["recommendation"]["sync"] == "delay"
    assert "'any', 'synchronous', 'delay'" in ran(capsys, [*arguments, "--sync", "early"], 2).err


@pytest.mark.parametrize("hardware", [HARDWARE, SLOW, replace(SLOW, node_nic=())])
@pytest.mark.parametrize("name", ["allreduce", "node-then-all", "pairs-pairs-all", "node-digits"])
def test_batched_timings_equal_single_timings(hardware, name):
    request = job("4x4", hardware)
    axes = Axes(registry.build(name, request.cluster), request)
    for timing in axes.timings:
        for delay in (Delay.SYNCHRONOUS, Delay.LATE):
            cycles = [timing.period.cycle(steps_per_round=steps, sync=delay.sync) for steps in range(1, 49)]
            assert timing.steps(delay) == pytest.approx([cycle.per_step for cycle in cycles], rel=1e-9)


# Delayed gradients and codecs: what is chosen, and how settings that do not pay are explained


FEW = ("allreduce", "node-digits", "prague-figure-10", "ring")
"""All-Reduce, rules, and a graph, whose averages cannot be coded."""


def thin_job(hardware=THIN, **options):
    return job("4x4", hardware, **options)


def few(hardware=THIN, **options):
    return competitors(thin_job(hardware, **options), names=FEW)


@pytest.fixture(scope="module")
def plain():
    return few()


@pytest.fixture(scope="module")
def with_codecs():
    return few(codec=None)


@pytest.fixture(scope="module")
def on_fast_links():
    return few(FAST)


def test_codecs_are_used_only_if_the_job_and_the_strategy_allow_them(plain, with_codecs):
    assert {option.transport.codec for option in plain} == {Codec.NONE}
    refusing = [o for o in with_codecs if o.schedule.strategy.codec_unsupported_reason(o.schedule.cluster)]
    assert refusing
    assert {option.transport.codec for option in refusing} == {Codec.NONE}


@pytest.mark.parametrize("seed", range(6))
def test_finest_codec_within_the_worthwhile_margin_is_chosen(seed):
    rng = np.random.default_rng(seed)
    hardware = replace(
        THIN,
        nic=Link.of_bandwidth(10 ** rng.uniform(6, 10), 10 ** rng.uniform(-6, -3)),
        codec=(("int8", CodecSeconds(10 ** rng.uniform(-10, -7), 10 ** rng.uniform(-10, -8))),),
    )
    schedule = registry.build("allreduce", Cluster.parse("4x4"))
    for objective in (Objective.BALANCED, Objective.COMMUNICATION):
        request = thin_job(hardware, codec=None, objective=objective)
        axes = Axes(schedule, request)
        for late, steps_per_round in product(Delay, (1, 3)):
            if not late.suits(replace(schedule.strategy, steps_per_round=steps_per_round)):
                continue
            known = {}
            timed = with_timing(schedule, late.sync, steps_per_round)
            for algorithm, codec in product((AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL), request.codecs):
                has_stages = algorithm is AllReduceAlgorithm.HIERARCHICAL and codec is not Codec.NONE
                for where in CodecScope if has_stages else [CodecScope.ALL]:
                    transport = Transport(algorithm=algorithm, codec=codec, where=where)
                    option = measure(traveling(timed, transport), request, algorithm=algorithm)
                    merit = option.time if objective is Objective.BALANCED else option.communication
                    known[codec] = min(known.get(codec, math.inf), merit)
            setting = Setting(late, steps_per_round)
            chosen = axes.option(setting, "x", axes.timing(setting, axes.timings))
            reached = chosen.time if objective is Objective.BALANCED else chosen.communication
            assert reached == pytest.approx(known[chosen.transport.codec])
            best, finer = min(known.values()), request.codecs[: request.codecs.index(chosen.transport.codec)]
            part = 1 - (WORTH if late is Delay.SYNCHRONOUS else WORTH_OVERLAPPED)
            assert reached * part <= best
            assert all(known[codec] * part > best for codec in finer)


def test_codec_is_recommended_on_slow_links(plain, with_codecs):
    request, options = thin_job(codec=None), with_codecs
    chosen = recommend(options, request)
    assert chosen.transport.codec is not Codec.NONE
    assert chosen.time < recommend(plain, thin_job()).time
    against = best_plain(options, request)
    assert against.transport.codec is not Codec.NONE
    usual = [option for option in baselines(options) if option.is_usual]
    assert [(option.name, option.transport) for option in usual] == [("allreduce", Transport())]
    text = " ".join(late_and_small(chosen, options, request))
    assert f"its sums travel in {chosen.transport.codec}" in text
    assert "for coding per step" in text


def test_codec_that_does_not_pay_on_fast_links_is_explained():
    request = thin_job(FAST, codec=Codec.INT8, sync=Delay.SYNCHRONOUS)
    options = competitors(request, names=FEW)
    assert {option.transport.codec for option in options} == {Codec.NONE}
    plain = next(option for option in options if option.name.startswith("allreduce "))
    (text,) = late_and_small(plain, options, request)
    costed = next(
        costed for costed in cheapest_transports(plain.schedule, request) if costed.transport.codec is Codec.INT8
    )
    free = thin_job(replace(FAST, codec=(("int8", CodecSeconds()),)))
    wire = measure(
        traveling(plain.schedule, costed.transport), free, algorithm=costed.transport.algorithm
    ).communication
    coding, saved = costed.cost.per_step - wire, plain.communication - wire
    assert coding > saved
    assert f"would cost {coding * 1e3:.4g} ms for coding and save {saved * 1e3:.4g} ms of wire per step" in text


def test_gain_of_a_codec_that_is_not_allowed_is_reported(on_fast_links):
    thinner = replace(THIN, nic=Link.of_bandwidth(1e6, 1e-4))
    request, allreduce = thin_job(thinner), ("allreduce",)
    options = competitors(request, names=allreduce)
    chosen = recommend(options, request)
    hints = [sentence for sentence in late_and_small(chosen, options, request) if "--codec any" in sentence]
    assert len(hints) == 1
    factor = float(hints[0].split("at least ")[1].split(" times")[0])
    best = min(option.time for option in competitors(thin_job(thinner, codec=None), names=allreduce))
    assert 1.05 < factor <= chosen.time / best + 0.005, "the reported gain is real"
    quick = thin_job(FAST)
    chosen = recommend(on_fast_links, quick)
    assert not any("--codec" in sentence for sentence in late_and_small(chosen, on_fast_links, quick))


def test_pipeline_hides_communication_at_a_price():
    request = thin_job(replace(THIN, nic=Link.of_bandwidth(25e6, 1e-4), compute=0.13))
    options = competitors(request, names=("allreduce",))
    found = {
        (o.delay, o.steps_per_round): o
        for o in options
        if o.is_plain and o.algorithm is AllReduceAlgorithm.HIERARCHICAL
    }
    pipeline, synchronous = found[Delay.PIPELINE, 1], found[Delay.SYNCHRONOUS, 1]
    assert pipeline.step_seconds == pytest.approx(max(0.13, pipeline.communication))
    assert synchronous.step_seconds == pytest.approx(0.13 + synchronous.communication)
    assert pipeline.consensus_distance.value == 0
    assert pipeline.steps_ratio == pytest.approx(1 + FITTED.delay)
    assert pipeline.time_at_worst == pytest.approx(pipeline.step_seconds * (1 + FITTED.delay + FITTED.delay_more))


def test_pipeline_that_does_not_pay_is_explained(on_fast_links):
    request, options = thin_job(FAST), on_fast_links
    (text,) = (one for one in late_and_small(recommend(options, request), options, request) if "pipeline" in one)
    assert text.endswith("it does not pay")
    assert "would hide 3 ms of All-Reduce's 53 ms per step (6%)" in text


def test_price_of_delayed_gradients_grows_with_the_delay():
    request = thin_job()
    assert request.delayed(SYNCHRONOUS) == request.delayed(DelayedAveraging()) == 0
    assert 0 < request.delayed(Pipeline()) == FITTED.delay == request.delayed(Pipeline(width=3)) / 2
    assert FITTED.steps_ratio(0.0, 0.0, delayed=FITTED.delay, gradients=True) == 1 + FITTED.delay


def test_sync_pipeline_yields_only_pipelines():
    found = plan(replace(thin_job(sync=Delay.PIPELINE), effort=0.3))
    assert found.recommendation.schedule.strategy.sync == Pipeline()
    assert {option.delay for option in found.front if not option.is_usual} == {Delay.PIPELINE}
    assert "allreduce" in {option.name for option in found.baselines}


def test_gradients_are_bucketed_per_layer_if_the_layers_are_known(plain):
    layered = thin_job(replace(THIN, layers=4, nic=Link.of_bandwidth(25e6)), sync=Delay.SYNCHRONOUS)
    found = {
        o.transport.gradient_buckets: o
        for o in competitors(layered, names=("allreduce",))
        if o.is_plain and o.steps_per_round == 1 and o.transport != Transport()
    }
    by_layers = found[GradientBuckets.PER_LAYER]
    assert by_layers.step_seconds < found[GradientBuckets.SINGLE].step_seconds
    assert by_layers.name.endswith("by layers")
    assert {o.transport.gradient_buckets for o in plain} == {GradientBuckets.SINGLE}


def test_transports_are_sorted_from_finest_to_cheapest():
    schedule = with_timing(registry.build("node-then-all", Cluster.parse("4x4")), SYNCHRONOUS, 1)
    transports = transports_of(schedule, thin_job(codec=None))
    assert [costed.transport.codec for costed in transports] == [Codec.NONE, Codec.FLOAT16, Codec.INT8]
    costs = [costed.cost.per_round for costed in transports]
    assert costs == sorted(costs, reverse=True)
    slow = replace(THIN, codec=(("int8", CodecSeconds(1.0, 1.0)), ("float16", CodecSeconds(1.0, 1.0))))
    assert [costed.transport.codec for costed in transports_of(schedule, thin_job(slow, codec=None))] == [Codec.NONE]


def test_design_writes_sync_and_transport_into_the_file(tmp_path, capsys):
    path = tmp_path / "pick.json"
    arguments = ["design", "2x2", "--set", "nic=5MB/s", "--model-bytes", "2MB", "--effort", "0.3", "--json"]
    assert main([*arguments, "--sync", "pipeline", "--codec", "int8", "-o", str(path)]) == 0
    answer = json.loads(capsys.readouterr().out)["recommendation"]
    assert (answer["sync"], answer["codec"], answer["gradient_buckets"]) == ("pipeline", "int8", "single")
    strategy = load_schedule(path).strategy
    assert strategy.sync == Pipeline()
    assert (strategy.transport.codec, strategy.transport.where) == (Codec.INT8, CodecScope(answer["where"]))
    assert main([*arguments, "--codec", "int3"]) == 2
    assert "is not one of 'any', 'none', 'float16', 'bfloat16', 'int8'" in capsys.readouterr().err
    assert main([*arguments, "--codec", "int4"]) == 2  # its price in steps was never measured
    assert "'int4' is not one of" in capsys.readouterr().err


def test_reasons_of_a_pipeline_name_its_delay():
    request = thin_job(replace(THIN, nic=Link.of_bandwidth(25e6)), sync=Delay.PIPELINE, codec=None)
    options = competitors(request, names=FEW)
    chosen = recommend(options, request)
    text = " ".join([*reasons(chosen, options, request), *late_and_small(chosen, options, request)])
    assert "its gradients come one step late" in text
    assert "averaging runs during computing" not in text
    assert "what other schedules' steps are counted against" not in text
