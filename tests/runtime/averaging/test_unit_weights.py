"""Rounded weights still sum to 1, so that averaging, for however long, does not make parameters grow."""

import random
from fractions import Fraction

import pytest
import torch

from partreduce.runtime.transport.updates import Layout, add_updates
from partreduce.runtime.transport.weights import unit_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_weights_sum_to_one_and_are_those_that_were_asked_for(dtype):
    numbers = random.Random(1)
    precision = torch.float64 if dtype == torch.float64 else torch.float32
    for _ in range(300):
        parts = [numbers.randint(1, 50) for _ in range(numbers.randint(2, 9))]
        wanted = [Fraction(part, sum(parts)) for part in parts]
        own, others = unit_weights(wanted[1:], dtype)
        used = torch.tensor([own, *others], dtype=precision).double().tolist()  # as torch multiplies
        assert sum(map(Fraction, used)) == 1
        error = 8 * 2.0 ** (-54 if precision == torch.float64 else -25)  # one's own takes that of the eight others
        assert used == pytest.approx([float(weight) for weight in wanted], rel=0, abs=error)


def test_ones_stay_ones_over_many_averages():
    """With each weight rounded by itself they are 1.0006 after 20,000 averages of three."""
    others = [torch.ones(1), torch.ones(1)]
    own = torch.ones(1)
    layout = Layout([own])
    for _ in range(20_000):
        before = own.clone()
        add_updates([own], [[other] for other in others], [Fraction(1, 3)] * 2, layout)
        others = [before, own.clone()]
    assert own.item() == pytest.approx(1.0, abs=1e-6)


def test_what_is_added_can_be_formed_beside_the_parameters():
    """So that an interruption of an average finds them as they were, or averaged, and nothing between."""
    own, others = torch.tensor([4.0, 8.0]), [torch.tensor([8.0, 0.0]), torch.tensor([0.0, 4.0])]
    change, layout = torch.full((2,), float("nan")), Layout([own])
    add_updates([own], [[other] for other in others], [0.5, 0.25], layout, into=[change])
    assert own.tolist() == [4.0, 8.0]
    assert (own + change).tolist() == [5.0, 3.0]
    add_updates([own], [[other] for other in others], [0.5, 0.25], layout, into=[own])
    assert own.tolist() == change.tolist()
