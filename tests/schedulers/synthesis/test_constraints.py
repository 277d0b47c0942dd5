"""Every constraint alone, at its exact bound and just beyond it; the solver's four statuses."""

import pytest

from partreduce.schedulers.synthesis.constraints import Composition, Segment, cost_of, value_of
from partreduce.schedulers.synthesis.cp_sat import new_model, solve
from partreduce.schedulers.synthesis.problem import Status

SEGMENTS = (Segment((0,), 0.2, 0.0), Segment((1, 0), 0.2, 0.9), Segment((2, 3, 0), 0.3, 0.6))


def run(model, variables):
    return solve(model, variables, time_limit=20, seed=3, num_workers=1, max_deterministic_time=5)


def composition(period, *, cost=None, value=None, distinct=None):
    model = new_model()
    made = Composition.of(model, SEGMENTS, period)
    for measure, limit in ((cost_of, cost), (value_of, value)):
        if limit is not None:
            made.at_most(measure, limit)
    if distinct is not None:
        made.distinct_phases_at_most(*distinct)
    outcome = run(model, made.counts)
    return outcome.status, dict(zip(SEGMENTS, outcome.values, strict=False))


def solved(status):
    return status in {Status.OPTIMAL, Status.FEASIBLE}


def test_period_is_filled_exactly():
    status, counts = composition(5)
    assert solved(status)
    assert sum(len(s.indices) * c for s, c in counts.items()) == 5


def test_period_that_no_segments_fill_is_infeasible():
    model = new_model()
    assert run(model, Composition.of(model, SEGMENTS[1:2], 5).counts).status is Status.INFEASIBLE


# The cheapest way to fill six phases is two of the segments of three phases: 0.6 s.
@pytest.mark.parametrize(("seconds", "possible"), [(0.6, True), (0.5999, False)])
def test_cost_at_its_bound(seconds, possible):
    status, counts = composition(6, cost=seconds)
    assert status is not Status.UNKNOWN
    assert solved(status) == possible
    if possible:
        assert sum(s.cost * c for s, c in counts.items()) <= seconds + 1e-8


# Without consensus distance only the full average in every phase is left; a budget excludes it.
@pytest.mark.parametrize(("value", "possible"), [(1.2, True), (1.1999, False)])
def test_value_at_its_bound(value, possible):
    status, counts = composition(6, cost=0.6, value=value)
    assert solved(status) == possible
    if possible:
        assert sum(s.value * c for s, c in counts.items()) <= value + 1e-8


# Within this value only two segments of three phases are left: phases 0, 2 and 3, of which one may be free.
@pytest.mark.parametrize(
    ("limit", "free", "possible"), [(3, (), True), (2, (), False), (2, (3,), True), (1, (3,), False)]
)
def test_distinct_phases_at_their_bound(limit, free, possible):
    status, _ = composition(6, cost=0.6, value=1.2, distinct=(limit, frozenset(free)))
    assert solved(status) == possible


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
    counts = Composition.of(model, SEGMENTS, 6).counts
    model.minimize(sum(counts))
    assert run(model, counts) == run(model, counts)
    assert capfd.readouterr() == ("", "")
