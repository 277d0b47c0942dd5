"""Quorums of groups at run time: the mean is kept exactly, and NumPy gets the same models by schedule and log."""

import os

import numpy as np
import pytest

from helpers.group_quorum_runs import group_quorum_problems, make_group_case, replayed_groups, run_group_case

RUNS = int(os.environ.get("PREDUCE_QUORUM_RUNS", "24"))
"""`PREDUCE_QUORUM_RUNS=1000 pytest tests/runtime/test_strategy_quorum_groups.py -k mean` runs as many."""


def assert_kept(case, results):
    assert not group_quorum_problems(case, results), case
    assert len({tuple(result["rounds"]) for result in results}) == 1, case
    wanted = replayed_groups(case, results)
    for segment, models in enumerate(wanted):
        for rank, result in enumerate(results):
            np.testing.assert_array_equal(result["own"][segment], models[rank], err_msg=f"{case}")
            if segment < case.meets:
                np.testing.assert_array_equal(result["means"][segment], models.mean(0), err_msg=f"{case}")
    pushed = sum(
        case.push[rank, first : first + count].sum(0)
        for rank, result in enumerate(results) for first, count in result["steps"]
    )  # fmt: skip
    for result in results:
        np.testing.assert_array_equal(result["final"], pushed / 4, err_msg=f"{case}")


@pytest.mark.parametrize("block", range(2))
def test_the_mean_of_models_is_kept_and_rounds_mix_by_the_schedule(ranks, block):
    """Random schedules, paces, settings, delays, pauses, slow workers, and a worker whose data ends."""
    for seed in range(block * RUNS // 2, (block + 1) * RUNS // 2):
        case = make_group_case(seed)
        assert_kept(case, ranks.run(4, lambda world, case=case: run_group_case(case, world)))
