"""Quorums as options: which are proposed, what they are predicted to cost, which pays, and what is said and drawn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from partreduce import PlanRequest, load_schedule
from partreduce.__main__ import main
from partreduce.planner.candidates import all_reduce, quorum_settings
from partreduce.planner.job import Delay
from partreduce.planner.plan import plan
from partreduce.planner.predict import predict
from partreduce.planner.recommend import allowed_options
from partreduce.planner.trials import price_of
from partreduce.report.kinds import not_weighed
from partreduce.report.reasons import add_reasons
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.schedulers.synthesis.problem import Limits
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, UndecidedError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.strategies import AllReduce, PartialAllReduce
from partreduce.topo.strategies.axes import Pipeline
from partreduce.topo.timing.quorum import sample_seconds

HARDWARE = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=1_000_000, compute=0.05)
ONE_SLOW = replace(HARDWARE, slowdown=((5, 5.0),), jitter=0.02)


def job(cluster: str = "2x4", hardware: Hardware = HARDWARE, **options: object) -> PlanRequest:
    place = replace(Cluster.parse(cluster), hardware=hardware)
    return PlanRequest(**{"cluster": place, "effort": 20.0, "quorum": True} | options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def planned():
    asked = job(hardware=ONE_SLOW, effort=3.0)
    return add_reasons(plan(asked), asked)


def test_all_but_the_slow_one_is_recommended_and_recommended(planned):
    assert planned.recommendation.quorum.words == "7 of 8"
    assert planned.proof.verdict == "follows from the rules"
    assert planned.recommendation.schedule.strategy.sync == PartialAllReduce(
        quorum=7, staleness=planned.recommendation.quorum.bound
    )
    options = {option.quorum.words: option for option in planned.options if option.quorum}
    assert set(options) == {"solo", "majority", "4 of 8", "7 of 8"}
    synchronous = min(o.time for o in planned.options if o.is_plain and o.steps_per_round == 1 and not o.late)
    assert 3 < synchronous / planned.recommendation.time < 4.5, "gradients a second allow 4.5"
    # Steps are rounds: as many gradients, and the price of their delay.
    for option in options.values():
        facts = option.quorum
        price = job().steps_model.delay * facts.delay if facts.delay <= 1 else None
        if price is not None:
            assert option.steps_ratio == pytest.approx(8 / facts.gradients * (1 + price))
        assert option.time == pytest.approx(8 / facts.gradients_per_second * (option.steps_ratio * facts.gradients / 8))
        assert not option.is_plain
        assert option.delay is None
        assert json.dumps(option.to_json(), allow_nan=False)
        assert option.to_json()["sync"] == "partial"
        assert facts.memory_bytes == predict(option.schedule, ONE_SLOW, num_rounds=8).memory_bytes
    timeline = simulate(
        planned.recommendation.schedule,
        ONE_SLOW,
        compute=job(hardware=ONE_SLOW).compute_times(),
        num_rounds=200,
        seed=3,
    )
    assert planned.recommendation.step_seconds == pytest.approx(timeline.per_step(warm_up=50), rel=0.05)
    line = next(sentence for sentence in planned.reasons if sentence.startswith("recommended"))
    assert "7 of 8 with a queue of" in line
    assert "Worker 5 always takes 5 times as long" in line
    assert any("brings 0.2" in caution for caution in planned.cautions)


def test_equal_workers_need_no_quorum():
    asked = job(effort=2.0)
    found = add_reasons(plan(asked), asked)
    line = next(sentence for sentence in found.reasons if sentence.startswith("recommended"))
    assert line.startswith("recommended: All-Reduce without a quorum. No worker is slow")


def test_queues_suit_the_longest_step_and_the_memory():
    asked = job(hardware=ONE_SLOW)
    seconds = sample_seconds(asked.compute_times(), 8)
    base = all_reduce(asked)
    late = {one.quorum: one.staleness for one in quorum_settings(base, asked, seconds)}
    assert late[7] < late[4] < late["solo"], "so many rounds pass while the slow worker computes"
    tight = replace(asked, max_queues=8e6)
    made = quorum_settings(base, tight, seconds)
    assert {one.staleness for one in made} == {3}, "two arrays for each result, and two besides"
    with pytest.raises(UndecidedError, match="max-queues 1000000 bytes: the least that was found are 4000000"):
        plan(replace(asked, max_queues=1e6, effort=2.0))
    pair = job("2x1")
    two = [one.quorum for one in quorum_settings(all_reduce(pair), pair, seconds[:, :2])]
    assert two == ["majority", "solo"]


def test_the_price_of_delay_is_a_pipelines_in_proportion():
    asked = job()
    delay = asked.steps_model.delay
    assert price_of(0.0, asked) == 0
    assert price_of(0.25, asked) == pytest.approx(delay / 4)
    assert price_of(2.5, asked) == pytest.approx(2.5 * delay)
    sharp = replace(asked, curvature=1.5)
    assert price_of(0.5, sharp) == float("inf"), "a whole step late diverges there"


def test_a_quorum_is_no_pipeline_and_is_asked_for_alone(planned):
    assert Delay.of(AllReduce(sync=PartialAllReduce(quorum="solo"))) is None
    assert Delay.of(AllReduce(sync=Pipeline())) is Delay.PIPELINE
    assert all(option.quorum for option in allowed_options(planned.options, job(hardware=ONE_SLOW)))
    assert not any(option.quorum for option in allowed_options(planned.options, job(hardware=ONE_SLOW, quorum=False)))
    with pytest.raises(InputError, match="a quorum is asked for, and something else"):
        job(gap=True)


@pytest.mark.parametrize(
    ("cluster", "hardware", "options", "said"),
    [
        ("257x1", ONE_SLOW, {}, []),
        (
            "257x1",
            replace(HARDWARE, jitter=0.01),
            {"quorum": None, "gap": None},
            ["weighted graphs are weighed for"],
        ),
        (
            "257x1",
            ONE_SLOW,
            {"quorum": None, "gap": False},
            ["weighted graphs, unequal steps per round and quorums", "two answers are yours"],
        ),
    ],
    ids=str,
)
def test_what_is_not_weighed_is_said(cluster, hardware, options, said):
    others = ("groups on request", "outer steps")
    found = [line for line in not_weighed(job(cluster, hardware, **options)) if not line.startswith(others)]
    assert len(found) == len(said)
    assert all(line.startswith(begin) for line, begin in zip(found, said, strict=True)), found


def test_limits_on_groups_leave_no_quorum():
    with pytest.raises(UndecidedError, match="no quorum is within the limits; raise --max group, or leave out --sync"):
        plan(job(limits=Limits(max_group=2), effort=2.0))


def test_long_steps_by_command_line(tmp_path, capsys):
    path = tmp_path / "quorum.json"
    main(
        ["design", "3x1", "--sync", "partial", "--set", "disturb=hop", "--model-bytes", "1MB", "--effort", "quick",
         "--explain", "-o", str(path)]
    )  # fmt: skip
    shown = " ".join(capsys.readouterr().out.split())
    assert "recommended:" in shown
    assert isinstance(load_schedule(path).strategy.sync, PartialAllReduce)
