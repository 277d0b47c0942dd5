"""Outer steps of workers in one process match models computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.lab.contestants import contestants
from benchmarks.lab.setting import settings
from benchmarks.planner.training import CodedMean, by_schedule, by_turns
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.strategies.axes import Transport

CLUSTER = Cluster.parse("2x2")


class Moving:
    """Models of four one-element layers; each step adds the rank of the worker."""

    named = tuple((f"{layer}.weight", 1) for layer in "abcd")
    count = 4

    def __init__(self) -> None:
        self.models = torch.zeros(4, 4, dtype=torch.float64).float()

    def take(self, counts: list[int]) -> None:
        assert counts == [1] * 4
        self.models += torch.arange(4.0)[:, None]


def moves_of(schedule, steps):
    models = Moving()
    advance = by_turns(models, schedule)
    for step in range(steps):
        advance(step)
    return models.models


def test_plain_outer_steps_are_local_sgd():
    models = Moving()
    advance = by_schedule(models, build("local-sgd", CLUSTER, every=3))
    for step in range(7):
        advance(step)
    assert torch.allclose(moves_of(build("diloco", CLUSTER, every=3, lr=1, momentum=0), 7), models.models)


def test_two_outer_steps_add_momentum():
    """Workers move by 1.5 per step on average, 3 per round; with Nesterov 1·(3 + ½·3), then 3 + ½·(3 + ½·3)."""
    found = moves_of(build("diloco", CLUSTER, every=2, lr=1, momentum=0.5), 4)
    assert torch.allclose(found, torch.full((4, 4), 4.5 + 5.25))


def test_late_fragment_lacks_the_steps_after_it_was_sent():
    """Sent after steps 1 (fragment 0) and 3 of four, merged a step later: 1.5 and 4.5 of the mean's movement."""
    schedule = build("diloco", CLUSTER, every=4, fragments=2, late=1, lr=1, momentum=0)
    found = moves_of(schedule, 4)
    assert torch.allclose(found.mean(0)[[0, 3]], torch.tensor([1.5 + 2 * 1.5, 4.5]))


def test_fragment_sent_in_one_round_is_merged_in_the_next():
    """Late by three of four steps: fragment 0 is sent after step 3 with 3·1.5 and merged after 6, 1 after 1 and 4."""
    schedule = build("diloco", CLUSTER, every=4, fragments=2, late=3, lr=1, momentum=0)
    assert torch.allclose(moves_of(schedule, 5).mean(0)[[0, 3]], torch.tensor([5 * 1.5, 1.5 + 1.5]))
    assert torch.allclose(moves_of(schedule, 6).mean(0)[0], torch.tensor(3 * 1.5))


def test_every_outer_step_contestant_trains():
    setting = settings(4)["40mbit homogeneous"]
    outer = [one for one in contestants() if one.family == "outer"]
    assert len(outer) >= 6
    for contestant in outer:
        schedule = contestant.make(CLUSTER, setting)
        if schedule.strategy.takes_turns or not schedule.strategy.payload.outer.is_plain:
            by_turns(Moving(), schedule)(0)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_error_feedback_corrects_codec_errors_in_later_sums(algorithm):
    """int4 movements: each mean is within a quantization step of the block, and many means average to the exact one."""
    transport = Transport(algorithm=algorithm, codec="int4", error_feedback=True)
    coded = CodedMean(transport, CLUSTER)
    given = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 600))).float()
    means = torch.stack([coded.mean(given) for _ in range(40)])
    step = given.abs().max() / 7
    assert (means[0] - given.mean(0)).abs().max() > step / 20
    assert (means[0] - given.mean(0)).abs().max() < 2 * step
    assert (means.mean(0) - given.mean(0)).abs().max() < 2 * step / 20
