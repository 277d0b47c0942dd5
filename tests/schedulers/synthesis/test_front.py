"""Results of the search: the worked example, feasible limits, infeasible limits."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.synthesis import EVEN, problem, synthesize
from partreduce.schedulers.synthesis import Objective, Status
from partreduce.schedulers.synthesis import front as front_module
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.arithmetic.pareto import scatter
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.timing.event_graph import cycle_time


@pytest.mark.parametrize(
    ("seed", "effort", "most"), [(0, 0.5, 5 / 16), pytest.param(7, 1, 0.3542, marks=pytest.mark.slow)]
)
def test_search_beats_figure_10_with_any_seed(seed, effort, most):
    front = synthesize(problem("4x4", max_communication=0.1104), effort=effort, seed=seed)
    assert front.best is not None
    assert front.best.consensus_distance <= most * (1 + 1e-6)
    assert seed or front.best.consensus_distance == pytest.approx(most)
    assert front.best.communication_seconds_per_step <= 0.1104 * (1 + 1e-9)


@pytest.mark.parametrize(("shape", "largest", "phases", "distance"), [("1x16", 2, 4, 11 / 16), ("1x27", 3, 3, 10 / 27)])
def test_smallest_effort_finds_the_grid_of_the_largest_group(shape, largest, phases, distance):
    best = synthesize(problem(shape, max_group=largest, max_period=phases), effort=0.02).best
    assert best is not None
    assert best.consensus_distance == pytest.approx(distance)


def test_free_links_select_all_reduce():
    best = synthesize(problem("2x2", Hardware(model_bytes=1)), effort=1).best
    assert best is not None
    assert (best.consensus_distance, best.communication_seconds_per_step) == (0, 0)


def test_infeasible_budget_reports_the_nearest_feasible_one():
    front = synthesize(problem("4x4", max_communication=1e-6), time_limit=5)
    assert front.status is Status.INFEASIBLE
    assert front.best is None
    assert "crossing bound" in front.reason
    assert "\n" not in front.reason
    least = 0.1104 / 24
    assert f"{least:.6g}" in front.reason


def test_jointly_infeasible_limits_keep_the_candidates():
    front = synthesize(problem("4x4", max_communication=0.1104, max_consensus_distance=0.2), effort=2)
    assert (front.status, front.best) == (Status.UNKNOWN, None)
    within = [c for c in front.candidates if c.communication_seconds_per_step <= 0.1104 * (1 + 1e-9)]
    assert min(one.consensus_distance for one in within) <= 0.3203125 * (1 + 1e-6)


def test_composition_of_period_24_reaches_its_communication_limit():
    requested = problem("4x4", objective=Objective.COMMUNICATION, max_consensus_distance=8 / 7)
    front = synthesize(requested, effort=5)
    best = front.best
    assert best is not None
    assert best.communication_seconds_per_step <= 0.052
    assert best.consensus_distance <= 8 / 7


def test_uneven_speeds_use_proportional_steps_per_round():
    hardware = replace(EVEN, slowdown=((3, 2.0), (4, 2.0)), compute=0.05)
    front = synthesize(problem("3,2", hardware), effort=0.5)
    worker_steps = {candidate.schedule.strategy.steps_per_round for candidate in front.candidates}
    assert worker_steps >= {1, (2, 2, 2, 1, 1)}
    assert {one.schedule.strategy.steps_per_round for one in front.candidates[1:3]} == {1, (2, 2, 2, 1, 1)}, "in turns"
    quickest = min(front.candidates, key=lambda c: cycle_time(c.schedule, hardware).per_step)
    # No worker waits for the first step of a slow one.
    assert quickest.schedule.strategy.steps_per_round == (2, 2, 2, 1, 1)


def test_same_seed_and_effort_give_the_same_front(capfd):
    requested = problem("3,4,2", max_group=3, max_period=6)
    fronts = [synthesize(requested, effort=0.3, seed=7) for _ in range(2)]
    one, other = ([(c.schedule, c.communication_seconds_per_step) for c in front.candidates] for front in fronts)
    assert one == other
    assert one
    assert capfd.readouterr() == ("", "")


def test_candidate_names_are_unique():
    names = [one.schedule.name for one in synthesize(problem("4x2"), effort=0.3).candidates]
    assert len(names) == len(set(names)) > 20
    assert "all-every-1" in names


def test_interrupt_returns_the_candidates_found_so_far(monkeypatch):
    """Ctrl-C during the second kind of groups returns the candidates of the first, and ends the clock."""
    requested = problem("2x2")
    explore, reached = front_module.Exploration.explore, []

    def interrupt(exploration, until):
        reached.append("rules" if exploration.choices.radices else "explicit groups")
        if not exploration.choices.radices:
            raise KeyboardInterrupt
        explore(exploration, until)

    monkeypatch.setattr(front_module.Exploration, "explore", interrupt)
    clock = Clock(seconds=600, effort=0.3)
    left = front_module.search(requested, clock, 0.3, seed=0)
    assert left.best is not None
    assert all(one.schedule.rule() is not None for one in left.candidates)
    assert reached == ["rules", "explicit groups"]
    assert clock.capped
    assert clock.passed(1e9)
    assert clock.stopped_by() == "it was interrupted"


@pytest.mark.parametrize("shape", ["20x4", "50,60,30"])
def test_clusters_beyond_the_worker_limit_are_searched(shape):
    hardware = replace(EVEN, node_nic=((1, Link.of_bandwidth(2.5e9)),))
    front = synthesize(problem(shape, hardware), effort=1)
    assert len(front.candidates) > 10
    assert {one.schedule.name for one in front.candidates} >= {"all-every-1"}


@pytest.mark.parametrize("seed", range(5))
def test_first_reported_candidates_are_optimal_for_any_prices(seed):
    rng = np.random.default_rng(seed)
    points = sorted(zip(np.sort(rng.random(40)), np.sort(rng.exponential(size=40))[::-1], strict=True))
    ordered = scatter(points, lambda point: point)
    assert sorted(ordered) == points
    best = {
        min(points, key=lambda point: (computing + point[0]) * (1 + price * point[1]))
        for computing in (0.0, 0.1, 1.0)
        for price in np.geomspace(1e-3, 1e3, 100)
    }
    last = max(map(ordered.index, best))
    assert all(point in ordered[: last + 1] for point in best)
    assert last < 20
