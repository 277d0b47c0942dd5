"""Tables of their own route: training over 4 workers equals one device that has the whole batch."""

from dataclasses import fields

import pytest
import torch

from helpers.hybrid_runs import Case, Model, on_one_device, over_workers
from preduce.topo.strategies.routes import Way

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

EXACT = [
    Case("sgd", "2x2", dtype=torch.float64),
    Case("sgd", "4x1", sparse=True, mode="mean", padding=3, dtype=torch.float64),
    Case("momentum", "2x2", sparse=True, coalesces=False, twice=True, backwards=2, dtype=torch.float64),
    Case("momentum", "4x1", mode="max", partitions=7, moving=True, dtype=torch.float64),
    Case("sgd", "3,1", hosts=(2, 0), weighted=True, moving=True, dtype=torch.float64),
    Case("momentum", "2x2", way=Way.GATHER, sparse=True, padding=0, backwards=2, dtype=torch.float64),
    Case("sgd", "4x1", way=Way.GATHER, mode="max", twice=True, dtype=torch.float64),
    Case("sgd", "2x2", average=False, sparse=True, dtype=torch.float64),
]
CLOSE = [
    Case("adagrad", "2x2", sparse=True, clip=0.25),
    Case("adagrad", "4x1", moving=True, max_norm=1.0),
    Case("adam", "2x2", clip=0.25, moving=True, padding=5),
    Case("adam", "2x2", way=Way.GATHER, clip=0.25),
    Case("adamw", "4x1", clip=0.25, mode="mean"),
    Case("adamw", "3,1", hosts=(3, 1), partitions=5, coalesces=True),
    Case("sparseadam", "2x2", sparse=True, padding=2, moving=True),
    Case("sparseadam", "4x1", sparse=True, way=Way.GATHER),
    Case("sgd", "2x2", sparse=True, clip=0.25, max_norm=1.0, coalesces=False),
]


def words_of(case):
    """What of a case is not the default, as a test's name."""
    plain = Case()
    return "-".join(str(v) for f in fields(case) if (v := getattr(case, f.name)) != getattr(plain, f.name)) or "plain"


def differences(case, ranks):
    """By name, the largest difference of parameters and moving averages from one device's; and who has whole tables."""
    (model, moving, outputs), states = on_one_device(case), over_workers(case, ranks)
    wanted = model.state_dict()
    found = {name: float((value - wanted[name]).abs().max().detach()) for name, value in states[0][0].items()}
    if moving is not None:
        averages = moving.module.state_dict()
        found |= {f"moving {n}": float((v - averages[n]).abs().max()) for n, v in states[0][1].items()}
    return found | {"outputs": float((torch.cat([state[2] for state in states]) - outputs).abs().max())}


@pytest.mark.parametrize("case", EXACT, ids=words_of)
def test_dyadic_numbers_give_the_very_bits_of_one_device(ranks, case):
    assert set(differences(case, ranks).values()) == {0.0}


@pytest.mark.parametrize("case", CLOSE, ids=words_of)
def test_every_optimizer_and_clipping_are_as_on_one_device(ranks, case):
    found = differences(case, ranks)
    assert max(found.values()) < 2e-6, found


def test_training_moves_the_tables():
    before, after = Model(Case()), on_one_device(Case())[0]
    assert all(not torch.equal(p, q) for p, q in zip(before.parameters(), after.parameters(), strict=True))
