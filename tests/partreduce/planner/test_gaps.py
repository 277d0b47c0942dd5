"""Neighbors that keep a gap, as options: which settings answer which slowdown, what they cost, and what is said."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from partreduce import Data, PlanRequest, describe, load_schedule
from partreduce.__main__ import main
from partreduce.planner.candidates import KINDS, Slowdown
from partreduce.planner.measuring import payer
from partreduce.planner.plan import plan
from partreduce.planner.recommend import TIE, front, recommend, simplicity
from partreduce.planner.trials import try_all
from partreduce.report.kinds import WORDS
from partreduce.report.reasons import add_reasons
from partreduce.schedulers import registry
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, UndecidedError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.metrics import consensus_distance
from partreduce.topo.strategies import IterationGap, SkipPolicy
from partreduce.topo.strategies.iteration_gap import UpdateOrder
from partreduce.topo.timing.compute import RandomSlowdown

if TYPE_CHECKING:
    from partreduce.planner.option import CandidateSchedule

HARDWARE = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=1_000_000, compute=0.05)
LONG_STEPS = RandomSlowdown(6.0)
SAID = WORDS["iteration_gap"]


def job(cluster: str = "2x4", hardware: Hardware = HARDWARE, **options: object) -> PlanRequest:
    return PlanRequest(cluster=replace(Cluster.parse(cluster), hardware=hardware), effort=20.0, **options)  # type: ignore[arg-type]


def measured(asked: PlanRequest, effort: float = 1.5) -> tuple[list[CandidateSchedule], list[str]]:
    kind, pay = KINDS["iteration_gap"], payer(Clock(seconds=1e3, effort=effort), effort)
    candidates = kind.candidates(asked, pay) if kind.weighs(asked) else ()
    return try_all(candidates, asked, pay, in_any_case=bool(asked.gap))


@pytest.fixture(scope="module")
def long_steps() -> list[CandidateSchedule]:
    return measured(job(disturbance=LONG_STEPS))[0]


@pytest.fixture(scope="module")
def slow_worker() -> list[CandidateSchedule]:
    return measured(job(hardware=replace(HARDWARE, slowdown=((5, 4.0),))))[0]


def test_settings_follow_from_the_slowdown() -> None:
    ring = registry.build("ring", Cluster.parse("2x4")).strategy.graphs[0]
    even, serial = Slowdown.of(job()), UpdateOrder.ADAPT_THEN_COMBINE
    assert even.is_even
    assert [setting.gap for setting in even.settings(ring, serial)] == [IterationGap()]
    spikes = Slowdown.of(job(disturbance=LONG_STEPS))
    assert (spikes.spike, spikes.slow) == (6.0, ())
    assert [s.gap for s in spikes.settings(ring, serial)] == [
        IterationGap(staleness=5),
        IterationGap(max_ig=6, backup=1),
        IterationGap(),
    ]
    slow = Slowdown.of(job(hardware=replace(HARDWARE, slowdown=((5, 4.0),))))
    assert (slow.spike, slow.slow) == (1.0, ((5, 4.0),))
    only_slow = IterationGap(max_ig=5, backup=(0, 0, 0, 0, 1, 0, 1, 0), skip=SkipPolicy(limit=4))
    assert [s.gap for s in slow.settings(ring, serial)] == [only_slow, replace(only_slow, staleness=4), IterationGap()]
    both = Slowdown.of(job(hardware=replace(HARDWARE, slowdown=((5, 4.0),)), disturbance=LONG_STEPS))
    skipping = both.settings(ring, serial)[0].gap
    assert skipping.skip
    assert skipping.backup == (1,) * 8
    # All in-neighbors of worker 0 are slow: it does without all of them.
    ends = Slowdown(((1, 2.0), (7, 2.0)), 1.0)
    assert ends.settings(ring, serial)[0].gap.backups(8)[0] == 2
    assert not Slowdown.of(job(hardware=replace(HARDWARE, jitter=0.02))).has_spikes
    assert Slowdown.of(job("2x1", replace(HARDWARE, slowdown=((0, 3.0),)))).slow == ((0, 3.0),)


def test_options_are_what_their_files_say(
    long_steps: list[CandidateSchedule], slow_worker: list[CandidateSchedule]
) -> None:
    for options, asked in (
        (long_steps, job(disturbance=LONG_STEPS)),
        (slow_worker, job(hardware=replace(HARDWARE, slowdown=((5, 4.0),)))),
    ):
        assert options
        for option in options:
            assert option.gap is not None
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
            best.schedule, asked.hardware, compute=asked.compute_times(), num_rounds=150, seed=asked.seed
        )
        assert best.step_seconds == pytest.approx(timeline.per_step(warm_up=30), rel=0.15)
        names = [option.name for option in options]
        assert len(set(names)) == len(names)


def test_each_slowdown_is_answered(long_steps: list[CandidateSchedule], slow_worker: list[CandidateSchedule]) -> None:
    for options, ways, floor in ((long_steps, ("staleness", "backup"), 1.5), (slow_worker, ("skip",), 3.0)):
        plain = min(option.step_seconds for option in options if "standard" in option.name)
        for way in ways:
            assert plain > floor * min(o.step_seconds for o in options if way in o.name) * (1.0 if floor > 2 else 0.8)
    skipping = next(option for option in slow_worker if "skip" in option.name)
    assert skipping.gap is not None
    assert 0.85 < skipping.gap.computed < 1 - 0.05


def test_the_front_and_the_recommendation_keep_their_laws(long_steps: list[CandidateSchedule]) -> None:
    kept = front(long_steps)
    for a, b in itertools.permutations(kept, 2):
        assert any(x > y for x, y in zip(a.costs.all(), b.costs.all(), strict=True)), (a.name, b.name)
    asked = job(disturbance=LONG_STEPS, gap=True)
    chosen = recommend(long_steps, asked)
    assert any(option is chosen for option in kept)
    fastest = min(option.time for option in kept if option.gap)
    assert chosen.time <= fastest * (1 + TIE)
    smaller = [option for option in kept if option.gap and simplicity(option) < simplicity(chosen)]
    assert all(option.time > fastest * (1 + TIE) for option in smaller), "of equals the smallest"
    least = min(option.gap.memory_bytes for option in long_steps if option.gap)
    tight = replace(asked, max_queues=least)
    small = recommend(long_steps, tight)
    assert small.gap is not None
    assert small.gap.memory_bytes == least
    with pytest.raises(UndecidedError, match=f"the least that was found are {least:.0f}"):
        recommend(long_steps, replace(asked, max_queues=least / 2))


def test_queues_that_are_too_large_leave_the_smallest_to_be_named() -> None:
    options, _ = measured(job(disturbance=LONG_STEPS, gap=True, max_queues=1.0))
    assert len(options) == 1
    assert not measured(job(disturbance=LONG_STEPS, max_queues=1.0))[0]


def test_the_answer_says_what_a_gap_answers_and_costs(
    long_steps: list[CandidateSchedule], slow_worker: list[CandidateSchedule]
) -> None:
    asked = job(disturbance=LONG_STEPS, gap=True)
    stale = next(option for option in long_steps if "staleness 5" in option.name)
    said = " ".join(SAID.reasons(stale, long_steps, asked))
    assert "answers steps that take up to 6 times as long now and then: updates up to 5 steps old serve" in said
    assert "without that a step would take" in said
    assert "of a worker's memory" in said
    assert "not proved" in " ".join(SAID.cautions(stale, asked))
    slowed = job(hardware=replace(HARDWARE, slowdown=((5, 4.0),)), data=Data.PER_WORKER)
    skipping = next(option for option in slow_worker if "skip" in option.name)
    said = " ".join(
        [
            *SAID.reasons(skipping, slow_worker, slowed),
            *SAID.cautions(skipping, slowed),
        ]
    )
    assert "worker 5, always 4 times as long: a worker that is left behind skips up to 4 steps at once" in said
    assert "of all steps are skipped" in said
    assert "optimizer.batches(loader)" in said
    assert "of an even share, and that is the only one who sees some of the data" in said


def test_nothing_is_run_where_nothing_is_slow_and_nobody_asks() -> None:
    assert measured(job()) == ([], [])
    assert measured(job(disturbance=LONG_STEPS, gap=False)) == ([], [])
    options, _ = measured(job(gap=True))
    assert {option.gap.words for option in options if option.gap} == {"standard"}
    assert "there is nothing that a gap could answer" in SAID.reasons(options[0], options, job(gap=True))[0]


def test_the_effort_bounds_what_is_run_and_the_rest_is_named() -> None:
    asked = job(disturbance=LONG_STEPS)
    some, rest = measured(asked, 0.3)
    assert some
    assert rest
    assert [option.to_json() for option in some] == [option.to_json() for option in measured(asked, 0.3)[0]]


def test_a_plan_weighs_gaps_and_writes_one_that_is_proved(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gap.json"
    asked = [
        "design",
        "2x3",
        "--model-bytes",
        "1MB",
        "--set",
        "disturb=hop",
        "--sync",
        "iteration_gap",
        "--effort",
        "2",
    ]
    assert main([*asked, "--json", "-o", str(path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["recommendation"]["sync"] == "iteration_gap"
    assert answer["recommendation"]["verdict"] == "proved"
    assert answer["gain"]["alternative"].startswith("allreduce")
    gap = load_schedule(path).strategy.sync
    assert isinstance(gap, IterationGap)
    assert main(["simulate", str(path), str(path), "--model-bytes", "1MB", "--json"]) == 0
    row, _ = json.loads(capsys.readouterr().out)["schedules"]
    assert (row["sync"], row["runs"]) == ("iteration_gap", describe(load_schedule(path)))
    assert row["memory_bytes"] == answer["recommendation"]["iteration_gap"]["memory_bytes"]
    assert main([*asked, "--effort", "0.5", "--max", "queues=1kB"]) == 3
    assert "max-queues" in capsys.readouterr().err


def test_a_job_without_the_wish_still_hears_of_gaps() -> None:
    asked = replace(job("2x3", disturbance=LONG_STEPS), effort=3.0)
    planned = add_reasons(plan(asked), asked)
    assert any(option.gap for option in planned.options)
    assert any("gap" in sentence for sentence in planned.reasons)
    assert all(math.isfinite(option.time) for option in planned.front)


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(InputError, match=r"max_queues: is -1\.0 bytes"):
        job(max_queues=-1.0)
    with pytest.raises(UndecidedError, match="at most 256 workers, not 400"):
        recommend([], job("100x4", gap=True))
