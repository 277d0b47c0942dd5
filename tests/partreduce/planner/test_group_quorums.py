"""Quorums of groups as options: what their runs cost, which are proposed, against brute force, and what is said."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from partreduce import Job, load_schedule, plan
from partreduce.planner.left_out import not_weighed
from partreduce.planner.measuring import measure
from partreduce.planner.trials import quorum_runs
from partreduce.planner.trials.kit import Trials, calm
from partreduce.planner.trials.quorum_runs import Costs, by, costs_of, figures_of, of_calls, period_of, run, sizes_of
from partreduce.planner.trials.quorums import Quorums, Search, based, starts_of
from partreduce.runtime.virtual_time.simulate import simulate
from partreduce.schedulers.registry import build
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.problem import Limits
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import UnknownError
from partreduce.topo.figures import consensus_distance, drift
from partreduce.topo.figures.late_distance import late_distance_like
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.phase import Group, Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, Lockstep, Quorum, Static
from partreduce.topo.timing.compute import RandomSlowdown
from partreduce.topo.timing.cost import communication
from partreduce.verify import prove
from partreduce.verify.certificate import confirm

THIN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(1e9), model_bytes=30_000_000, compute=0.05)
ONE_SLOW = replace(THIN, slowdown=((5, 5.0),), jitter=0.02)
STEADY = replace(THIN, slowdown=((3, 5.0),))


def job(cluster="2x3", hardware=ONE_SLOW, **options):
    place = replace(Cluster.parse(cluster), hardware=hardware)
    return Job(**{"cluster": place, "effort": 2.0, "quorum": True} | options)


@pytest.fixture(scope="module")
def planned():
    return plan(job())


def of_groups(found):
    return [option for option in found.options if option.quorum and option.quorum.of]


@pytest.mark.parametrize(
    ("cluster", "hardware", "options", "said"),
    [
        ("2x128", ONE_SLOW, {}, []),
        ("257x1", ONE_SLOW, {}, ["quorums of groups are weighed for at most 256 workers, not 257"]),
        ("257x1", replace(THIN, jitter=0.01), {"quorum": None, "gap": None}, ["weighted graphs are weighed for"]),
        (
            "257x1",
            ONE_SLOW,
            {"quorum": None, "gap": False},
            ["weighted graphs, unequal paces and quorums", "two answers are yours"],
        ),
        ("2x3", ONE_SLOW, {"max_queues": 1.1e8}, ["quorums of groups are not weighed: a worker keeps 120 MB"]),
        ("2x3", ONE_SLOW, {"max_queues": 1.2e8}, []),
    ],
    ids=str,
)
def test_what_is_not_weighed_is_said(cluster, hardware, options, said):
    others = ("groups on request", "outer steps")
    found = [line for line in not_weighed(job(cluster, hardware, **options)) if not line.startswith(others)]
    assert len(found) == len(said)
    assert all(line.startswith(begin) for line, begin in zip(found, said, strict=True)), found


def test_groups_are_recommended_where_all_reduce_is_dear(planned):
    recommendation = planned.recommendation
    assert recommendation.quorum.of
    assert planned.proof.verdict == "proved"
    best_of_all = min(o.time for o in planned.options if o.quorum and not o.quorum.of)
    assert recommendation.time < best_of_all
    lockstep = min(o.time for o in planned.options if o.is_plain and o.pace == 1 and not o.late)
    line = next(sentence for sentence in planned.reasons if sentence.startswith("recommended"))
    quorum = recommendation.quorum
    assert f"{quorum.words} with a queue of {quorum.bound}. Worker 5 always takes 5 times as long" in line
    assert f"{lockstep / recommendation.time:.2f} times" in line
    assert any("as fast as a quorum of all workers at its best" in sentence for sentence in planned.reasons)
    assert any("where all come one round late, not for quorums" in caution for caution in planned.cautions)
    settings = [
        (option.quorum.of, option.schedule.strategy.when.quorum, option.quorum.bound) for option in of_groups(planned)
    ]
    for of, start, bound in settings:
        longer = [o for o in of_groups(planned) if (o.quorum.of, o.schedule.strategy.when.quorum) == (of, start)]
        assert all(
            o.time < min(p.time for p in longer if p.quorum.bound <= bound) for o in longer if o.quorum.bound > bound
        )
    assert any("brings 0.2" in caution for caution in planned.cautions)
    assert json.dumps(planned.to_json(), allow_nan=False)
    assert planned.to_json()["recommendation"]["quorum"]["of"] == recommendation.quorum.of


def test_everything_proposed_is_proved_confirmed_and_runs(planned, tmp_path):
    found = of_groups(planned)
    assert len({option.quorum.of for option in found}) >= 2
    assert len({option.schedule.strategy.when.quorum for option in found}) >= 2
    path = tmp_path / "s.json"
    for option in found:
        proof = prove(option.schedule)
        assert proof.verdict == "proved", option.name
        write_schedule(path, option.schedule.with_certificate(proof.certificate))
        loaded = load_schedule(path)
        assert loaded.strategy == option.schedule.strategy
        assert "consensus" in confirm(loaded)
        assert proof["mean-preserved"].status == "follows from the rules"
        facts, pace = option.quorum, option.pace
        assert facts.bound == loaded.strategy.when.staleness
        assert facts.memory_bytes == 4 * THIN.model_bytes
        assert option.step_seconds * pace == pytest.approx(facts.gradients / facts.gradients_per_second)
        sums = replace(option.schedule, strategy=replace(option.schedule.strategy, when=Lockstep()))
        assert option.nic_bytes == pytest.approx(communication(sums, ONE_SLOW).nic_bytes_per_step, rel=0.1)
        spread = float(option.consensus_distance)
        late = facts.delay * late_distance_like(spread, pace, 5 / 6)
        steps_ratio = job().steps_model.steps_ratio(spread, 0.0, late=late)
        assert option.steps_ratio == pytest.approx(6 * pace / facts.gradients * steps_ratio)
        assert facts.age <= facts.bound
    recommendation = planned.recommendation
    timeline = simulate(
        recommendation.schedule,
        ONE_SLOW,
        compute=job().compute_times(),
        num_rounds=1000,
        seed=3,
        form=recommendation.form,
    )
    assert recommendation.step_seconds == pytest.approx(timeline.per_step(warm_up=250), rel=0.05)


@pytest.mark.parametrize("pace", [1, 3])
def test_a_round_costs_what_its_sums_do_however_many_steps_it_has(pace):
    asked = job("2x2", STEADY)
    phases = tuple(Phase.from_groups(4, groups) for groups in ([[0, 1], [2, 3]], [range(4)]))
    schedule = Schedule("s", asked.cluster, Static(phases=GroupPhases(phases), pace=pace))
    (base,) = based([measure(schedule, calm(asked))], asked)
    costs = costs_of(base, asked)
    assert costs.sum_seconds == pytest.approx(communication(schedule, STEADY, form=base.form).per_round)
    assert costs.word == max(STEADY.inside.latency, STEADY.nic.latency)


def trials(asked, effort=100.0):
    made = Trials(asked, Clock(seconds=1000.0, effort=effort), effort)
    return Search(made), made.left_out


def bases(asked, names=("node-then-all", "pairs-pairs-all")):
    even = calm(asked)
    return based([measure(build(name, asked.cluster), even) for name in names], asked)


@pytest.mark.parametrize("disturbance", [None, RandomSlowdown(6.0)], ids=["one always slow", "each now and then"])
def test_the_choice_is_as_good_as_the_best_of_all_schedules_quorums_and_queues(disturbance, monkeypatch):
    monkeypatch.setattr(quorum_runs, "LEAST_ROUNDS", 60)
    slow = ((3, 5.0),) if disturbance is None else ()
    asked = job("2x2", replace(THIN, slowdown=slow, jitter=0.02), disturbance=disturbance)
    listed = bases(asked)
    found, left_out = trials(asked)
    found.search(listed)
    assert not left_out
    chosen = min(found.worth(), key=lambda option: option.time)
    assert chosen.time <= found.options[found.best()].time * 1.002
    every, _ = trials(asked, 1000.0)
    every.options |= found.options  # run by run the same, as the last lines see
    for base, start, queue in itertools.product(listed, ["solo", 2, 3], [1, 3, 6, 16]):
        if start == "solo" or start < sizes_of(base.schedule)[-1]:
            every.tried(base, Quorum(quorum=start, staleness=queue))
    best = every.options[every.best()]
    assert len(every.options) >= 24 > len(found.options)
    assert chosen.time < 1.03 * best.time, (chosen.name, best.name)
    again, _ = trials(asked)
    base = next(one for one in listed if one.name == chosen.quorum.of)
    again.tried(base, chosen.schedule.strategy.when)
    assert [option.to_json() for option in again.options.values()] == [chosen.to_json()]


def test_without_time_or_room_nothing_is_run_and_that_is_said():
    asked = job("2x2", STEADY)
    found, left_out = trials(asked, 1e-6)
    found.search(bases(asked))
    assert not found.options
    assert any(words.startswith("solo in each group of") for words in left_out)
    clock = Clock(seconds=1000.0, effort=1.0)
    tight = replace(asked, max_queues=3.9 * THIN.model_bytes)
    assert not [one for one in Quorums().options(Trials(tight, clock, 1.0)) if one.quorum.of]
    assert clock.position() < 0.5, "figures cost time as well"


def test_limits_hold_for_quorums_too():
    asked = job("2x2", STEADY, effort=0.6)
    found = plan(replace(asked, limits=Limits(max_group=2)))
    assert all(option.quorum.of for option in found.options if option.quorum)
    line = next(sentence for sentence in found.reasons if sentence.startswith("recommended"))
    assert "as fast as All-Reduce in every step" in line, "which the limits leave out"
    way_out = "raise --max group or --max period, or leave out --when quorum"
    with pytest.raises(UnknownError, match=f"no quorum was found within the limits; {way_out}"):
        plan(replace(asked, limits=Limits(max_group=2), max_queues=1.0))


def test_figures_are_those_of_the_matrices_with_what_came():
    phases = (
        Phase.from_groups(6, [Group((0, 1, 2), 1), Group((3, 4), 1)]),
        Phase.from_groups(6, [Group((1, 3), 1), Group((0, 2, 4, 5), 1)]),
    )
    cluster = Cluster.regular(3, 2)
    schedule = Schedule("s", cluster, Static(phases=GroupPhases(phases), when=Quorum(quorum=2), pace=3))
    lockstep = Schedule("s", cluster, Static(phases=GroupPhases(phases), pace=3))
    even = figures_of(schedule, np.ones((400, 6), dtype=np.int64), cluster.node_of())
    assert even.consensus_distance == pytest.approx(consensus_distance(lockstep).value)
    slower = Schedule("s", cluster, Static(phases=GroupPhases(phases)))
    one = replace(schedule, strategy=replace(schedule.strategy, pace=1))
    plain = figures_of(one, np.ones((400, 6), dtype=np.int64), cluster.node_of())
    assert plain.consensus_distance == pytest.approx(consensus_distance(slower).value)
    assert plain.drift_worker == pytest.approx(drift(slower, "worker").value)
    assert plain.drift_node == pytest.approx(drift(slower, "node").value)
    # Unequal calls: the covariance by dense matrices.
    calls = np.random.default_rng(0).integers(0, 3, (60, 6))
    matrices = [phase.apply(np.eye(6)) for phase in phases]
    off, noise, traces = np.eye(6) - 1 / 6, np.zeros((6, 6)), []
    for index, came in enumerate(calls):
        w = matrices[index % 2]
        noise = w @ (noise + np.diag(3.0 * came)) @ w.T
        traces.append(np.trace(off @ noise @ off) / 6)
    assert figures_of(schedule, calls, cluster.node_of()).consensus_distance == pytest.approx(
        np.mean(traces[16:]) + 5 / 6  # the last whole periods
    )


def test_quorums_and_queues_suit_the_groups():
    nodes = build("node-then-all", Cluster.regular(2, 4))
    assert sizes_of(nodes) == (4, 8)
    assert starts_of(nodes, []) == [3, 2, "solo"]
    assert starts_of(nodes, [5]) == [3, 2, "solo"]
    assert starts_of(nodes, [4, 5, 6]) == [2, "solo"], "one is left in a node"
    assert starts_of(build("hyper-cuboid", Cluster.regular(2, 2)), []) == ["solo"]
    steps = np.arange(12.0).reshape(6, 2)
    assert of_calls(steps, 3).tolist() == [[6.0, 9.0], [24.0, 27.0]]
    assert of_calls(steps[:1], 3).tolist() == [[0.0, 3.0]]
    # A group of four at 1 s each starts by two of them about every half second, by three every 0.75 s.
    seconds = np.ones((1, 8))
    node = Schedule("s", nodes.cluster, Static(phases=GroupPhases((Phase.from_groups(8, [range(4), range(4, 8)]),))))
    for quorum in (2, 3):
        found = period_of(seconds, node, Quorum(quorum=quorum), Costs(0.0, 0.0))
        assert found == pytest.approx(1.0, abs=0.01) or found == pytest.approx(quorum / 4, rel=0.01)


def test_a_run_has_the_calls_of_its_rounds():
    asked = job("2x2", STEADY)
    base = bases(asked)[0]
    found = run(by(base, Quorum(quorum="solo", staleness=8)), asked, asked.compute_times(), 60)
    assert found.calls.shape == (60, 4)
    assert found.calls[15:].sum() == pytest.approx(found.gradients * 45)
    assert 0 <= found.age <= found.oldest <= 8
