"""Every constraint alone, at its exact bound and just beyond it; the solver's four statuses."""

import pytest

from partreduce.schedulers.synthesis.constraints import (
    CompositionVariables,
    CostAtMost,
    DisjointGroups,
    DistinctPhasesAtMost,
    GroupSizeAtMost,
    NicCapacity,
    PeriodIs,
    PhaseVariables,
    PreferMeetings,
    Segment,
    ValueAtMost,
)
from partreduce.schedulers.synthesis.cp_sat import new_model, solve
from partreduce.schedulers.synthesis.problem import Status

SEGMENTS = (Segment((0,), 0.2, 0.0), Segment((1, 0), 0.2, 0.9), Segment((2, 3, 0), 0.3, 0.6))
PAIRS = ((0, 1), (1, 2), (2, 3), (0, 1, 2, 3))


def run(model, variables):
    return solve(model, variables, time_limit=20, seed=3, num_workers=1, max_deterministic_time=5)


def composition(*constraints):
    model = new_model()
    variables = CompositionVariables.of(model, SEGMENTS, 6)
    for constraint in constraints:
        constraint.apply(model, variables)
    outcome = run(model, variables.counts)
    return outcome.status, dict(zip(SEGMENTS, outcome.values, strict=False))


def phase(*constraints):
    model = new_model()
    variables = PhaseVariables.of(model, PAIRS)
    for constraint in constraints:
        constraint.apply(model, variables)
    outcome = run(model, variables.chosen)
    return outcome, {g for g, on in zip(PAIRS, outcome.values, strict=False) if on}


def solved(status):
    return status in {Status.OPTIMAL, Status.FEASIBLE}


def test_period_is_filled_exactly():
    status, counts = composition(PeriodIs(5))
    assert solved(status)
    assert sum(len(s.indices) * c for s, c in counts.items()) == 5


def test_period_that_no_segments_fill_is_infeasible():
    model = new_model()
    variables = CompositionVariables.of(model, SEGMENTS[1:2], 5)
    PeriodIs(5).apply(model, variables)
    assert run(model, variables.counts).status is Status.INFEASIBLE


# The cheapest way to fill six phases is two of the segments of three phases: 0.6 s.
@pytest.mark.parametrize(("seconds", "possible"), [(0.6, True), (0.5999, False)])
def test_cost_at_its_bound(seconds, possible):
    status, counts = composition(PeriodIs(6), CostAtMost(seconds))
    assert status is not Status.UNKNOWN
    assert solved(status) == possible
    if possible:
        assert sum(s.cost * c for s, c in counts.items()) <= seconds + 1e-8


# Without consensus distance only the full average in every phase is left; a budget excludes it.
@pytest.mark.parametrize(("value", "possible"), [(1.2, True), (1.1999, False)])
def test_value_at_its_bound(value, possible):
    status, counts = composition(PeriodIs(6), CostAtMost(0.6), ValueAtMost(value))
    assert solved(status) == possible
    if possible:
        assert sum(s.value * c for s, c in counts.items()) <= value + 1e-8


# Within this value only two segments of three phases are left: phases 0, 2 and 3, of which one may be free.
@pytest.mark.parametrize(
    ("limit", "free", "possible"), [(3, (), True), (2, (), False), (2, (3,), True), (1, (3,), False)]
)
def test_distinct_phases_at_their_bound(limit, free, possible):
    status, _ = composition(
        PeriodIs(6), CostAtMost(0.6), ValueAtMost(1.2), DistinctPhasesAtMost(limit, frozenset(free))
    )
    assert solved(status) == possible


def test_groups_are_disjoint():
    outcome, chosen = phase(DisjointGroups(4), PreferMeetings((3, 5, 3, 5)))
    assert outcome.status is Status.OPTIMAL
    assert chosen == {(0, 1), (2, 3)}
    assert outcome.objective == outcome.bound == 6


@pytest.mark.parametrize(("seconds", "expected"), [(0.4, 2), (0.3999, 1)])
def test_nic_capacity_adds_up_crossing_groups(seconds, expected):
    loads = ({0: 0.2}, {}, {0: 0.2}, {0: 9.0})
    outcome, chosen = phase(NicCapacity(seconds, loads), DisjointGroups(4), PreferMeetings((1, 0, 1, 9)))
    assert outcome.status is Status.OPTIMAL
    assert len(chosen - {(1, 2)}) == expected


@pytest.mark.parametrize(("limit", "objective"), [(4, 9), (3, 2)])
def test_group_size_at_its_bound(limit, objective):
    outcome, chosen = phase(GroupSizeAtMost(limit), DisjointGroups(4), PreferMeetings((1, 1, 1, 9)))
    assert outcome.objective == objective
    assert all(len(group) <= limit for group in chosen)


def test_a_limit_of_no_time_is_never_an_answer():
    model = new_model()
    cells = [[model.new_bool_var(f"{i},{j}") for j in range(40)] for i in range(41)]
    for row in cells:
        model.add_exactly_one(row)
    for j in range(40):
        model.add(sum(row[j] for row in cells) <= 1)
    model.add(sum((i * j % 7) * cells[i][j] for i in range(41) for j in range(40)) == 60)
    outcome = solve(model, cells[0], time_limit=5, max_deterministic_time=1e-9)
    assert outcome.status in {Status.UNKNOWN, Status.INFEASIBLE}
    assert outcome.values == ()


def test_same_seed_same_outcome(capfd):
    model = new_model()
    variables = CompositionVariables.of(model, SEGMENTS, 6)
    PeriodIs(6).apply(model, variables)
    model.minimize(sum(variables.counts))
    assert run(model, variables.counts) == run(model, variables.counts)
    assert capfd.readouterr() == ("", "")
