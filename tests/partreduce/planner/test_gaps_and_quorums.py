"""Iteration gaps and quorums as options: settings for each slowdown, costs, recommendations, and explanations."""

import itertools
import json
import math
from dataclasses import replace

import pytest

from helpers.command_runs import ran
from helpers.jobs import jobs, with_links
from helpers.refusals import check_error
from partreduce import Cluster, Data, Limits, PlanRequest, describe, load_schedule, predict, simulate
from partreduce.__main__ import main
from partreduce.errors import InputError, UndecidedError
from partreduce.planner.candidates import KINDS, Slowdown
from partreduce.planner.measuring import payer
from partreduce.planner.plan import plan
from partreduce.planner.recommend import TIE, allowed_options, front, recommend, simplicity
from partreduce.planner.steps_model import Optimizer
from partreduce.planner.trials import try_all
from partreduce.report.kinds import WORDS, not_weighed
from partreduce.report.reasons import add_reasons
from partreduce.schedulers import registry
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.strategies import AllReduce, IterationGap, PartialAllReduce, Pipeline, SkipPolicy, UpdateOrder
from partreduce.topo.metrics import consensus_distance
from partreduce.types import Delay, RandomSlowdown

HARDWARE = with_links(10e9, 5e9, model_bytes=1_000_000, compute=0.05)
LONG_STEPS = RandomSlowdown(6.0)
GAP_WORDS = WORDS["iteration_gap"]
job = jobs("2x4", HARDWARE, effort=20.0)


def simulate_gaps(request, effort=0.8):
    kind, pay = KINDS["iteration_gap"], payer(Clock(seconds=1e3, effort=effort), effort)
    candidates = kind.candidates(request, pay) if kind.weighs(request) else ()
    return try_all(candidates, request, pay, in_any_case=bool(request.gap))


@pytest.fixture(scope="module")
def long_steps():
    return simulate_gaps(job(disturbance=LONG_STEPS))[0]


@pytest.fixture(scope="module")
def slow_worker():
    return simulate_gaps(job(hardware=replace(HARDWARE, slowdown=((5, 4.0),))))[0]


def test_settings_follow_from_the_slowdown():
    ring = registry.build("ring", Cluster.parse("2x4")).strategy.graphs[0]
    even, serial = Slowdown.of(job()), UpdateOrder.ADAPT_THEN_COMBINE
    assert even.is_even
    assert [*even.gaps(ring, serial).values()] == [IterationGap()]
    spikes = Slowdown.of(job(disturbance=LONG_STEPS))
    assert (spikes.spike, spikes.slow) == (6.0, ())
    assert [*spikes.gaps(ring, serial).values()] == [
        IterationGap(staleness=5),
        IterationGap(max_ig=6, backup=1),
        IterationGap(),
    ]
    slow = Slowdown.of(job(hardware=replace(HARDWARE, slowdown=((5, 4.0),))))
    assert (slow.spike, slow.slow) == (1.0, ((5, 4.0),))
    only_slow = IterationGap(max_ig=5, backup=(0, 0, 0, 0, 1, 0, 1, 0), skip=SkipPolicy(limit=4))
    assert [*slow.gaps(ring, serial).values()] == [only_slow, replace(only_slow, staleness=4), IterationGap()]
    both = Slowdown.of(job(hardware=replace(HARDWARE, slowdown=((5, 4.0),)), disturbance=LONG_STEPS))
    skipping = next(iter(both.gaps(ring, serial).values()))
    assert skipping.skip
    assert skipping.backup == (1,) * 8
    # All in-neighbors of worker 0 are slow, so both are backups.
    ends = Slowdown(((1, 2.0), (7, 2.0)), 1.0)
    assert next(iter(ends.gaps(ring, serial).values())).backups(8)[0] == 2
    assert not Slowdown.of(job(hardware=replace(HARDWARE, jitter=0.02))).has_spikes
    assert Slowdown.of(job("2x1", replace(HARDWARE, slowdown=((0, 3.0),)))).slow == ((0, 3.0),)


def test_gap_options_match_their_schedules(long_steps, slow_worker):
    for options, request in (
        (long_steps, job(disturbance=LONG_STEPS)),
        (slow_worker, job(hardware=replace(HARDWARE, slowdown=((5, 4.0),)))),
    ):
        assert options
        for option in options:
            option.schedule.strategy.check(option.schedule.cluster)
            assert json.dumps(option.to_json(), allow_nan=False)
            assert option.to_json()["sync"] == "iteration_gap"
            assert option.gap.memory_bytes >= 2 * HARDWARE.model_bytes
            assert (option.late, option.name.endswith("parallel")) in ((True, True), (False, False))
            if option.schedule.is_mixing:
                assert float(option.consensus_distance) == pytest.approx(float(consensus_distance(option.schedule)))
                assert option.gap.progress == pytest.approx(1)
        best = min(options, key=lambda option: option.time)
        timeline = simulate(
            best.schedule, request.hardware, compute=request.compute_times, num_rounds=150, seed=request.seed
        )
        assert best.step_seconds == pytest.approx(timeline.per_step(warm_up=30), rel=0.15)
        names = [option.name for option in options]
        assert len(set(names)) == len(names)


def test_gap_settings_speed_up_each_slowdown(long_steps, slow_worker):
    for options, ways, floor in ((long_steps, ("staleness", "backup"), 1.5), (slow_worker, ("skip",), 3.0)):
        plain = min(option.step_seconds for option in options if "standard" in option.name)
        for way in ways:
            assert plain > floor * min(o.step_seconds for o in options if way in o.name) * (1.0 if floor > 2 else 0.8)
    skipping = next(option for option in slow_worker if "skip" in option.name)
    assert 0.85 < skipping.gap.computed < 1 - 0.05


def test_front_and_recommendation_of_gaps_are_consistent(long_steps):
    kept = front(long_steps)
    for a, b in itertools.permutations(kept, 2):
        assert any(x > y for x, y in zip(a.costs.all(), b.costs.all(), strict=True)), (a.name, b.name)
    request = job(disturbance=LONG_STEPS, gap=True)
    chosen = recommend(long_steps, request)
    assert any(option is chosen for option in kept)
    fastest = min(option.time for option in kept if option.gap)
    assert chosen.time <= fastest * (1 + TIE)
    smaller = [option for option in kept if option.gap and simplicity(option) < simplicity(chosen)]
    assert all(option.time > fastest * (1 + TIE) for option in smaller), "the simplest of equals"
    least = min(option.gap.memory_bytes for option in long_steps if option.gap)
    tight = replace(request, max_queues=least)
    small = recommend(long_steps, tight)
    assert small.gap.memory_bytes == least
    with pytest.raises(UndecidedError, match=f"the least that was found are {least:.0f}"):
        recommend(long_steps, replace(request, max_queues=least / 2))


def test_queue_limit_keeps_the_smallest_for_the_error():
    options, _ = simulate_gaps(job(disturbance=LONG_STEPS, gap=True, max_queues=1.0))
    assert len(options) == 1
    assert not simulate_gaps(job(disturbance=LONG_STEPS, max_queues=1.0))[0]


def test_reasons_state_what_a_gap_gains_and_costs(long_steps, slow_worker):
    request = job(disturbance=LONG_STEPS, gap=True)
    stale = next(option for option in long_steps if "staleness 5" in option.name)
    text = " ".join(GAP_WORDS.reasons(stale, long_steps, request))
    assert "answers steps that take up to 6 times as long now and then: updates up to 5 steps old serve" in text
    assert "without that a step would take" in text
    assert "of a worker's memory" in text
    assert "not proved" in " ".join(GAP_WORDS.cautions(stale, request))
    slowed = job(hardware=replace(HARDWARE, slowdown=((5, 4.0),)), data=Data.PER_WORKER)
    skipping = next(option for option in slow_worker if "skip" in option.name)
    text = " ".join([*GAP_WORDS.reasons(skipping, slow_worker, slowed), *GAP_WORDS.cautions(skipping, slowed)])
    assert "worker 5, always 4 times as long: a worker that is left behind skips up to 4 steps at once" in text
    assert "of all steps are skipped" in text
    assert "optimizer.batches(loader)" in text
    assert "of an even share, and that is the only one who sees some of the data" in text


def test_gaps_are_simulated_only_for_slow_workers_or_on_request():
    assert simulate_gaps(job()) == ([], [])
    assert simulate_gaps(job(disturbance=LONG_STEPS, gap=False)) == ([], [])
    options, _ = simulate_gaps(job(gap=True))
    assert {option.gap.words for option in options if option.gap} == {"standard"}
    assert "there is nothing that a gap could answer" in GAP_WORDS.reasons(options[0], options, job(gap=True))[0]


def test_effort_bounds_the_simulated_gaps():
    request = job(disturbance=LONG_STEPS)
    some, rest = simulate_gaps(request, 0.3)
    assert some
    assert rest
    assert [option.to_json() for option in some] == [option.to_json() for option in simulate_gaps(request, 0.3)[0]]


def test_design_writes_a_proved_gap(tmp_path, capsys):
    path = tmp_path / "gap.json"
    arguments = [
        "design", "2x3", "--model-bytes", "1MB", "--set", "disturb=hop", "--sync", "iteration_gap", "--effort", "0.2",
    ]  # fmt: skip
    answer = json.loads(ran(capsys, [*arguments, "--json", "-o", str(path)]).out)
    assert answer["recommendation"]["sync"] == "iteration_gap"
    assert answer["recommendation"]["verdict"] == "proved"
    assert answer["gain"]["alternative"].startswith("allreduce")
    gap = load_schedule(path).strategy.sync
    assert isinstance(gap, IterationGap)
    assert main(["simulate", str(path), str(path), "--model-bytes", "1MB", "--json"]) == 0
    row, _ = json.loads(capsys.readouterr().out)["schedules"]
    assert (row["sync"], row["runs"]) == ("iteration_gap", describe(load_schedule(path)))
    assert row["memory_bytes"] == answer["recommendation"]["iteration_gap"]["memory_bytes"]
    assert "max-queues" in ran(capsys, [*arguments, "--max", "queues=1kB"], 3).err


def test_gaps_are_considered_by_default():
    request = replace(job("2x3", disturbance=LONG_STEPS), effort=1.0)
    found = add_reasons(plan(request), request)
    assert any(option.gap for option in found.options)
    assert any("gap" in sentence for sentence in found.reasons)
    assert all(math.isfinite(option.time) for option in found.front)


def test_invalid_gap_jobs_are_rejected():
    check_error(InputError, r"max_queues: is -1\.0 bytes", job, max_queues=-1.0)
    check_error(UndecidedError, "at most 256 workers, not 400", recommend, [], job("100x4", gap=True))


@pytest.mark.parametrize(("optimizer", "slow", "nic", "size", "gap"), [
    (Optimizer.SGD, 5.0, 5e9, 41_000, True),  # on a fast link Hop averages in every step
    (Optimizer.MOMENTUM, 5.0, 5e9, 41_000, False),  # under which Hop needed up to 2.2 times as many steps
    (Optimizer.ADAM, 1.5, 1e9, 400_000_000, False),  # Hop is predicted to win by 1.18, which is less than its error
])  # fmt: skip
def test_hop_is_recommended_if_it_wins_by_more_than_its_error(optimizer, slow, nic, size, gap):
    hardware = replace(with_links(10e9, nic, model_bytes=size, compute=0.1), slowdown=((3, slow),))
    request = PlanRequest(cluster=replace(Cluster.parse("1x4"), hardware=hardware), optimizer=optimizer)
    chosen = plan(request).recommendation
    assert bool(chosen.gap) == gap
    assert gap or not isinstance(chosen.steps_per_round, int)


# Quorums


ONE_SLOW = replace(HARDWARE, slowdown=((5, 5.0),), jitter=0.02)
quorum_job = jobs("2x4", HARDWARE, effort=20.0, quorum=True)


@pytest.fixture(scope="module")
def quorum_plan():
    request = quorum_job(hardware=ONE_SLOW, effort=1.5)
    return add_reasons(plan(request), request)


def test_quorum_of_all_but_the_slow_worker_is_recommended(quorum_plan):
    assert quorum_plan.recommendation.quorum.words == "7 of 8"
    assert quorum_plan.proof.verdict == "follows from the rules"
    assert quorum_plan.recommendation.schedule.strategy.sync == PartialAllReduce(
        quorum=7, staleness=quorum_plan.recommendation.quorum.bound
    )
    options = {option.quorum.words: option for option in quorum_plan.options if option.quorum}
    assert set(options) == {"solo", "majority", "4 of 8", "7 of 8"}
    synchronous = min(o.time for o in quorum_plan.options if o.is_plain and o.steps_per_round == 1 and not o.late)
    assert 3 < synchronous / quorum_plan.recommendation.time < 4.5, "gradients per second allow 4.5"
    # A step is a round: the number of gradients and the price of their delay give the ratio.
    for option in options.values():
        facts = option.quorum
        if facts.delay <= 1:
            price = quorum_job().steps_model.delay * facts.delay
            assert option.steps_ratio == pytest.approx(8 / facts.gradients * (1 + price))
        assert option.time == pytest.approx(8 / facts.gradients_per_second * (option.steps_ratio * facts.gradients / 8))
        assert not option.is_plain
        assert option.delay is None
        assert json.dumps(option.to_json(), allow_nan=False)
        assert option.to_json()["sync"] == "partial"
        assert facts.memory_bytes == predict(option.schedule, ONE_SLOW, num_rounds=8).memory_bytes
    compute = quorum_job(hardware=ONE_SLOW).compute_times
    timeline = simulate(quorum_plan.recommendation.schedule, ONE_SLOW, compute=compute, num_rounds=200, seed=3)
    assert quorum_plan.recommendation.step_seconds == pytest.approx(timeline.per_step(warm_up=50), rel=0.05)
    line = next(sentence for sentence in quorum_plan.reasons if sentence.startswith("recommended"))
    assert "7 of 8 with a queue of" in line
    assert "Worker 5 always takes 5 times as long" in line
    assert any("brings 0.2" in caution for caution in quorum_plan.cautions)


def test_equal_workers_need_no_quorum():
    request = quorum_job(effort=0.5)
    found = add_reasons(plan(request), request)
    line = next(sentence for sentence in found.reasons if sentence.startswith("recommended"))
    assert line.startswith("recommended: All-Reduce without a quorum. No worker is slow")


def test_queue_depth_fits_the_longest_step_and_the_memory():
    def settings(request):
        return [one.schedule.strategy.sync for one in KINDS["partial"].candidates(request, lambda _: True)]

    request = quorum_job(hardware=ONE_SLOW)
    late = {one.quorum: one.staleness for one in settings(request)}
    assert late[7] < late[4] < late["solo"], "that many rounds pass during a slow step"
    tight = replace(request, max_queues=8e6)
    assert {one.staleness for one in settings(tight)} == {3}, "two arrays per result, and two more"
    with pytest.raises(UndecidedError, match="max-queues 1000000 bytes: the least that was found are 4000000"):
        plan(replace(request, max_queues=1e6, effort=0.3))
    assert [one.quorum for one in settings(quorum_job("2x1"))] == ["majority", "solo"]


def test_quorum_is_no_pipeline_and_excludes_other_syncs(quorum_plan):
    assert Delay.of(AllReduce(sync=PartialAllReduce(quorum="solo"))) is None
    assert Delay.of(AllReduce(sync=Pipeline())) is Delay.PIPELINE
    assert all(option.quorum for option in allowed_options(quorum_plan.options, quorum_job(hardware=ONE_SLOW)))
    without = quorum_job(hardware=ONE_SLOW, quorum=False)
    assert not any(option.quorum for option in allowed_options(quorum_plan.options, without))
    check_error(InputError, "a quorum is asked for, and something else", quorum_job, gap=True)


@pytest.mark.parametrize(("cluster", "hardware", "options", "starts"), [
    ("257x1", ONE_SLOW, {}, []),
    ("257x1", replace(HARDWARE, jitter=0.01), {"quorum": None, "gap": None}, ["weighted graphs are weighed for"]),
    ("257x1", ONE_SLOW, {"quorum": None, "gap": False},
        ["weighted graphs, unequal steps per round and quorums", "two answers are yours"]),
], ids=str)  # fmt: skip
def test_skipped_kinds_are_listed(cluster, hardware, options, starts):
    others = ("groups on request", "outer steps")
    found = [line for line in not_weighed(quorum_job(cluster, hardware, **options)) if not line.startswith(others)]
    assert len(found) == len(starts)
    assert all(line.startswith(begin) for line, begin in zip(found, starts, strict=True)), found


def test_group_limits_exclude_quorums():
    with pytest.raises(UndecidedError, match="no quorum is within the limits; raise --max group, or leave out --sync"):
        plan(quorum_job(limits=Limits(max_group=2), effort=2.0))


@pytest.mark.usefixtures("brief")
def test_design_recommends_a_quorum_for_random_slowdowns(tmp_path, capsys):
    path = tmp_path / "quorum.json"
    main(
        ["design", "3x1", "--sync", "partial", "--set", "disturb=hop", "--model-bytes", "1MB", "--effort", "quick",
         "--explain", "-o", str(path)]
    )  # fmt: skip
    shown = " ".join(capsys.readouterr().out.split())
    assert "recommended:" in shown
    assert isinstance(load_schedule(path).strategy.sync, PartialAllReduce)
