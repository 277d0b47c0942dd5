"""After k steps every worker holds what a dense NumPy reference of the same schedule says.

Ranks are threads of this process, over the same raw gloo groups as real processes, on which a smaller number of cases
runs in processes/test_training.py.
"""

import os

import pytest
import torch

from helpers.random_schedules import MAX_WORKERS, make_case, reference, run_case
from partreduce.runtime.averaging import reducer as reduction
from partreduce.runtime.strategies import parameter_average

CASES = int(os.environ.get("PARTREDUCE_TEST_CASES", "100"))
"""A seeded fault shows within 60; set the variable to 2000 after changes to the runtime."""
BASE = int(os.environ.get("PARTREDUCE_TEST_SEED", "0"))
"""Set the variable for other cases. A failure names its seed."""


pytestmark = pytest.mark.usefixtures("one_thread")


def complaints(ranks, seed):
    case = make_case(seed)
    found = ranks.run(case.schedule.num_workers, lambda world: run_case(case, world))
    return [complaint for complaint in found if complaint is not None]


@pytest.mark.parametrize("part", range(4))
def test_parameters_equal_the_numpy_reference_on_random_schedules(ranks, part):
    for seed in range(BASE + part * CASES // 4, BASE + (part + 1) * CASES // 4):
        assert complaints(ranks, seed) == [], f"seed {seed}"


def test_parameters_equal_the_reference_when_arrays_go_in_two_pieces(ranks, monkeypatch):
    monkeypatch.setattr(reduction, "SPLIT_BYTES", 0)
    for seed in range(BASE, BASE + 20):
        assert complaints(ranks, seed) == [], f"seed {seed}"


def test_random_schedules_cover_what_they_claim():
    cases = [make_case(seed) for seed in range(400)]
    strategies = [case.schedule.strategy for case in cases]
    assert {case.schedule.num_workers for case in cases} == set(range(2, MAX_WORKERS + 1))
    assert {case.exact for case in cases} == {True, False}
    assert any(s.is_delayed for s in strategies)
    assert any(isinstance(s.steps_per_round, tuple) and len(set(s.steps_per_round)) > 1 for s in strategies)
    assert any(getattr(s, "prologue", 0) for s in strategies)
    assert any(s.averaging == "step-normalized" for s in strategies)
    assert any(getattr(s, "averages_gradients", False) for s in strategies)
    groups = [g for s in strategies if s.kind == "static" for phase in s.phases.phases for g in phase]
    assert any(g.relaxation != 1 for g in groups)
    assert {len(g.members) for g in groups} >= {2, 3, 4, 5}
    assert any(
        sum(len(g.members) for g in phase) < phase.num_workers
        for s in strategies
        if s.kind == "static"
        for phase in s.phases.phases
    )


def test_exact_cases_make_no_rounding_error():
    """The dyadic cases fit into 53 bits: the float64 reference equals the same computation in long double."""
    for seed in range(0, 200, 2):
        case = make_case(seed)
        wanted, largest = reference(case)
        assert largest < 2**20
        scaled = wanted * 2.0**30
        assert (scaled == scaled.round()).all(), f"seed {seed} leaves less than 3 bits of room"


@pytest.mark.parametrize("fault", ["relaxation ignored", "delay applied late", "wrong divisor"])
def test_a_seeded_fault_is_found(ranks, monkeypatch, fault):
    """The comparison above can fail: each fault in the commit is noticed within a few schedules."""
    mean = parameter_average.commit_mean
    if fault == "relaxation ignored":
        monkeypatch.setattr(
            parameter_average, "commit_mean", lambda b, sums, _relaxation, ok, **_: mean(b, sums, 1.0, ok)
        )
    elif fault == "delay applied late":
        monkeypatch.setattr(
            parameter_average, "commit_delayed", lambda b, sums, _, relaxation, ok: mean(b, sums, relaxation, ok)
        )
    else:
        monkeypatch.setattr(reduction.Reduction, "num_members", property(lambda self: len(self.group.members) + 1))
        monkeypatch.setattr(reduction, "sums_agree", lambda sums, _tag, _k: torch.tensor(True))
    assert any(complaints(ranks, seed) for seed in range(60))
