"""Coded sums of groups: equal to a model in NumPy bit for bit, on all members alike, within their bounds; and kills.

`PREDUCE_CODED_SUMS=1200 python -m pytest tests/runtime/test_coded_sums.py -k random` draws that many groups; the suite
draws fewer.
"""

import os
import random
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from helpers import coded_sums
from preduce.runtime.codecs.coding import Coding
from preduce.runtime.codecs.eight_bits import noise as drawn
from preduce.runtime.transport import hierarchical
from preduce.runtime.transport.communicators import Communicator
from preduce.runtime.transport.hierarchical import HierarchicalCommunicator, formed
from preduce.topo.cluster import Cluster
from preduce.topo.codec_numbers import LARGEST, sum_error
from preduce.topo.errors import InputError, MissingFeatureError, UnavailableError
from preduce.topo.phase import Phase
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import AllReduce, Codec, Form, GroupPhases, How, Rounding, Static, Where

CASES = int(os.environ.get("PREDUCE_CODED_SUMS", "48"))
CHUNK = 24
"""Random groups of one test."""


@dataclass(frozen=True)
class Case:
    """A group of a cluster, how its sums travel, and what its members give: float32, [members, numbers] for each sum."""

    cluster: Cluster
    members: tuple[int, ...]
    how: How
    given: tuple[np.ndarray, ...]

    @property
    def on_each(self):
        """Members on each of several nodes, where the sum has stages; 1 otherwise."""
        return 1 if self.how.form is Form.RING else self.cluster.workers_per_node

    def plan(self):
        phases = (Phase.from_groups(self.cluster.num_workers, [self.members]),)
        phases += (Phase.from_groups(self.cluster.num_workers, [range(self.cluster.num_workers)]),)
        return Schedule("case", self.cluster, Static(phases=GroupPhases(phases), how=self.how))


def numbers(rng, members, length):
    """Shapes of numbers that a codec must bear."""
    kind = rng.choice(["normal", "dyadic", "wide", "outliers", "zeros", "tiny"])
    shape = (members, length)
    values = rng.standard_normal(shape)
    if kind == "dyadic":
        values = rng.integers(-8, 9, shape) / 4
    elif kind == "wide":
        values = values * 2.0 ** rng.integers(-30, 10, shape)
    elif kind == "outliers":
        values[:, :: max(1, int(rng.integers(1, 300)))] *= 1000
    elif kind == "zeros":
        values[:, : length // 2] = 0
        values[0] = 0
    elif kind == "tiny":
        values = values * 2.0 ** float(rng.integers(-149, -100))
    return values.astype(np.float32)


def draw(seed):
    rng = np.random.default_rng(seed)
    nodes, on_each = rng.choice([(1, 2), (1, 3), (1, 5), (2, 2), (3, 2), (2, 3), (4, 2), (2, 4)])
    cluster = Cluster.regular(int(nodes), int(on_each))
    staged = nodes > 1 and rng.random() < 0.5
    codec = Codec(rng.choice(["int8", "int8", "float16", "bfloat16"]))
    where = Where.ACROSS_NODES if staged and rng.random() < 0.5 else Where.ALL
    options = {}
    if codec is Codec.INT8:
        options = {"block": int(rng.choice([1, 3, 16, 64, 256])), "rounding": Rounding(rng.choice(["nearest", "stochastic"]))}
    how = How(form=Form.HIERARCHICAL if staged else Form.RING, codec=codec, where=where, **options)
    everyone = tuple(range(cluster.num_workers))
    count = int(rng.integers(2, len(everyone) + 1))
    members = everyone if staged else tuple(sorted(random.Random(seed).sample(everyone, count)))
    least = 256 if staged else 1
    lengths = [int(rng.integers(least, least + 2 ** rng.integers(1, 12))) for _ in range(3)]
    return Case(cluster, members, how, tuple(numbers(rng, len(members), length) for length in lengths))


def summed(world, case):
    """What this worker has of each sum of a case; None outside its group."""
    ours = formed(world, case.how.form, case.cluster)
    ours.prepare(case.plan())
    results = None
    if world.rank in case.members:
        group, place = ours.communicator(case.members), case.members.index(world.rank)
        results = [torch.from_numpy(given[place].copy()) for given in case.given]
        works = [group.all_reduce(one, Coding(case.how, (7, index))) for index, one in enumerate(results)]
        for work in works:  # all under way together, in one order
            work.wait()
    return results


def expected(case, index):
    """What the model says of a sum: one row, or the rows among which each number is."""
    how, given = case.how, case.given[index]
    across_only = how.where is Where.ACROSS_NODES
    if how.codec is not Codec.INT8:
        return coded_sums.short_sums(given, how.codec.value, on_each=case.on_each, across_only=across_only)

    def noise(count, place, member):
        if how.rounding is Rounding.NEAREST:
            return None
        return drawn(count, "codec", 7, index, place, case.members[member]).numpy()

    if case.on_each == 1:
        return coded_sums.flat_sum(given, how.block, noise)[None]
    return coded_sums.hierarchical_sum(given, how.block, noise, on_each=case.on_each, across_only=across_only)[None]


def check(case, answers):
    answers = [answer for answer in answers if answer is not None]
    bound = sum_error(
        case.how.codec,
        len(case.members),
        on_each_node=case.on_each,
        across_only=case.how.where is Where.ACROSS_NODES,
        stochastic=case.how.rounding is Rounding.STOCHASTIC,
    )
    for index, given in enumerate(case.given):
        mine = answers[0][index].numpy()
        for other in answers[1:]:
            assert mine.tobytes() == other[index].numpy().tobytes(), "members differ"
        candidates = expected(case, index)
        assert (mine.view(np.uint32) == candidates.view(np.uint32)).any(axis=0).all(), "not what the model says"
        sizes = np.abs(given.astype(np.float64))
        if case.how.codec is Codec.INT8:
            sizes = np.stack([coded_sums.peaks_of(row, case.how.block) for row in sizes])
        limit = float(bound.relative) * sizes.sum(0) + float(bound.absolute)
        assert (np.abs(mine - given.astype(np.float64).sum(0)) <= limit * (1 + 1e-9)).all(), "beyond the bound"


@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_random_groups_have_the_models_bits_on_all_members_and_keep_the_bound(ranks, first):
    by_size = {}
    for seed in range(first, min(first + CHUNK, CASES)):
        case = draw(seed)
        by_size.setdefault(case.cluster.num_workers, []).append((seed, case))
    ranks.fresh()
    for size, cases in by_size.items():
        answers = ranks.run(size, lambda world, cases=cases: [summed(world, case) for _, case in cases], limit=120)
        ranks.run(size, lambda world: world.abandon())  # there would be too many groups
        for place, (seed, case) in enumerate(cases):
            try:
                check(case, [answer[place] for answer in answers])
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}: {case.how}, members {case.members}") from None
