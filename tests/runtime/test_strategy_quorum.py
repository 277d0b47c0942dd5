"""A quorum at run time: nothing is lost or counted twice, replicas stay equal, and NumPy says the same by the log."""

import os

import numpy as np
import pytest

from helpers.quorum_runs import make_quorum_case, quorum_problems, replayed, run_quorum_case
from preduce.topo.strategies.quorum import Divide, Missed

RUNS = int(os.environ.get("PREDUCE_QUORUM_RUNS", "30"))
"""`PREDUCE_QUORUM_RUNS=1000 pytest tests/runtime/test_strategy_quorum.py -k conserved` runs as many."""


def assert_conserved(case, results):
    """The sum of all that was delivered is that of all that was computed, and replicas are equal after each round."""
    assert not quorum_problems(case, results), case
    assert len({tuple(result["rounds"]) for result in results}) == 1, case
    exact = case.when.divide is Divide.WORKERS and not case.when.synchronise_every
    for result, wanted in zip(results, replayed(case, results), strict=True):
        np.testing.assert_allclose(
            result["history"], np.reshape(wanted, (-1, 5)), rtol=0, atol=0 if exact else 1e-4, err_msg=f"{case}"
        )
    if case.when.missed is Missed.LATEST:
        return
    first = results[0]
    for result in results:
        np.testing.assert_array_equal(result["final"], first["final"])
        np.testing.assert_array_equal(result["means"], first["means"])
        assert result["last"] is None or np.array_equal(result["final"], first["final"])
        if case.when.missed is Missed.EACH:
            np.testing.assert_array_equal(result["history"], first["history"])
    if case.when.divide is Divide.WORKERS:
        np.testing.assert_array_equal(first["final"], -sum(case.made(), np.zeros(5)) / case.num_workers)


@pytest.mark.parametrize("block", range(2))
def test_gradients_are_conserved(ranks, block):
    """Random settings, delays, pauses and slow workers."""
    for seed in range(block * RUNS // 2, (block + 1) * RUNS // 2):
        case = make_quorum_case(seed)
        results = ranks.run(case.num_workers, lambda world, case=case: run_quorum_case(case, world))
        assert_conserved(case, results)
