"""Parameters with a codec: what travels is what was added since all were equal; equal references, or a named error."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch

from helpers.progress_schedules import dyadic_case, plain, train
from helpers.random_schedules import reference
from preduce.runtime.strategies.progress_means import ProgressMeans

BASE = int(os.environ.get("PREDUCE_TEST_SEED", random.SystemRandom().randrange(10**6) * 1000))


def test_differences_that_are_not_rounded_change_nothing(ranks):
    """On dyadic numbers, in float64: equal to dense matrices, which know no reference."""
    for seed in range(BASE, BASE + 60):
        case = dyadic_case(seed)

        def work(world, case=case):
            model, optimizer = train(case, world)
            assert type(optimizer.runner) is ProgressMeans
            optimizer.runner.drain()
            return model.values().numpy()

        got = np.stack(ranks.run(case.schedule.num_workers, work))
        np.testing.assert_array_equal(got, reference(plain(case))[0], err_msg=f"seed {seed}")
