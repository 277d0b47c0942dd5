"""The search's answers: the worked example, limits that it keeps, limits that nothing keeps."""

from dataclasses import replace

import pytest

from helpers.synthesis import synthesize
from partreduce.schedulers.synthesis import Limits, Objective, Problem, Status
from partreduce.schedulers.synthesis.rule_alphabet import rule_alphabet
from partreduce.schedulers.synthesis.segments import Beam, segments_of, sketch_front
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.timing.event_graph import cycle_time

HARDWARE = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000)


def never() -> bool:
    return False


def cluster(shape: str) -> Cluster:
    return replace(Cluster.parse(shape), hardware=HARDWARE)


def test_the_worked_example_is_found():
    front = synthesize(Problem(cluster=cluster("4x4"), limits=Limits(max_communication=0.1104)), effort=2)
    assert front.best is not None
    assert front.best.consensus_distance == pytest.approx(5 / 16)
    assert front.best.communication_seconds_per_step <= 0.1104 * (1 + 1e-9)


def test_sketched_compositions_have_the_values_of_their_segments():
    alphabet = rule_alphabet(Problem(cluster=cluster("2x2")))
    segments = segments_of(alphabet, 6, never, beam=Beam(160, 4))
    found = sketch_front(segments, Limits(max_period=6), bins=120)
    assert found
    full = alphabet.full_average()
    assert all(full in indices and 1 <= len(indices) <= 6 for indices in found)


def test_where_links_are_free_everybody_averages_with_everybody():
    best = synthesize(Problem(cluster=replace(cluster("2x2"), hardware=Hardware(model_bytes=1))), effort=1).best
    assert best is not None
    assert (best.consensus_distance, best.communication_seconds_per_step) == (0, 0)


def test_impossible_budget_is_one_line_with_the_nearest_thing():
    problem = Problem(cluster=cluster("4x4"), limits=Limits(max_communication=1e-6))
    front = synthesize(problem, time_limit=5)
    assert front.status is Status.INFEASIBLE
    assert front.best is None
    assert "crossing bound" in front.reason
    assert "\n" not in front.reason
    least = 0.1104 / 24
    assert f"{least:.6g}" in front.reason


def test_limits_that_no_candidate_keeps_together_name_the_nearest():
    limits = Limits(max_communication=0.1104, max_consensus_distance=0.2)
    front = synthesize(Problem(cluster=cluster("4x4"), limits=limits), effort=2)
    assert front.status is Status.UNKNOWN
    assert front.reason.endswith("was found; the least found within the budget is 0.3125")


def test_beats_figure_10_at_its_own_communication_from_another_seed():
    front = synthesize(Problem(cluster=cluster("4x4"), limits=Limits(max_communication=0.1104)), effort=1, seed=7)
    assert front.best is not None
    assert front.best.consensus_distance <= 0.3542
    assert front.best.communication_seconds_per_step <= 0.1104 * (1 + 1e-9)


def test_composition_of_period_24_reaches_its_communication():
    limits = Limits(max_consensus_distance=8 / 7)
    problem = Problem(cluster=cluster("4x4"), objective=Objective.COMMUNICATION, limits=limits)
    front = synthesize(problem, effort=5)
    best = front.best
    assert best is not None
    assert best.communication_seconds_per_step <= 0.052
    assert best.consensus_distance <= 8 / 7


@pytest.mark.parametrize(
    "limits",
    [Limits(max_distinct_phases=2), Limits(max_gap=1), Limits(max_group=4), Limits(min_period=3, max_period=5)],
)
def test_every_candidate_keeps_the_limits(limits):
    front = synthesize(Problem(cluster=cluster("4x2"), limits=limits), effort=0.75)
    assert front.candidates
    for candidate in front.candidates:
        schedule = candidate.schedule
        assert limits.min_period <= candidate.period <= limits.max_period
        phases = [schedule.phase(t) for t in range(schedule.period)]
        if limits.max_group is not None:
            assert all(size <= limits.max_group for phase in phases for size in phase.sizes.tolist())
        if limits.max_distinct_phases is not None:
            assert schedule.num_distinct_phases() <= limits.max_distinct_phases
        if limits.max_gap is not None:
            crossing = [any(len({w // 2 for w in g.members}) > 1 for g in phase) for phase in phases] * 2
            assert all(crossing[t] or crossing[t + 1] for t in range(len(crossing) - 1))


def test_uneven_speeds_try_proportional_steps_per_round():
    hardware = replace(HARDWARE, slowdown=((3, 2.0), (4, 2.0)), compute=0.05)
    problem = Problem(cluster=replace(Cluster.parse("3,2"), hardware=hardware))
    front = synthesize(problem, effort=2)
    worker_steps = {candidate.schedule.strategy.steps_per_round for candidate in front.candidates}
    assert worker_steps >= {1, (2, 2, 2, 1, 1)}
    assert {one.schedule.strategy.steps_per_round for one in front.candidates[1:3]} == {1, (2, 2, 2, 1, 1)}, "in turns"
    quickest = min(front.candidates, key=lambda c: cycle_time(c.schedule, hardware).per_step)
    assert quickest.schedule.strategy.steps_per_round == (
        2,
        2,
        2,
        1,
        1,
    )  # nobody waits for the slow workers' first step
