"""Coded sums of groups: bitwise equal to a NumPy model on all members, within the error bounds, and under kills.

`PARTREDUCE_CODED_SUMS=1200 pytest tests/runtime/codecs/test_coded_sums.py -k random` draws that many groups; the
default is lower.
"""

import os
import random
import re
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from helpers import coded_sums
from helpers.thread_ranks import on_ranks
from partreduce import Cluster, Schedule
from partreduce import strategies as st
from partreduce.errors import InputError, MissingDependencyError, UnavailableError
from partreduce.runtime.codecs import Coding, Leftovers
from partreduce.runtime.transport import multistage_allreduce
from partreduce.runtime.transport.worlds import world_for_algorithm

CASES = int(os.environ.get("PARTREDUCE_CODED_SUMS", "24"))
CHUNK = 12
"""Random groups of one test."""


@dataclass(frozen=True)
class Case:
    """A group of a cluster, its transport, and the inputs of each sum as [members, values]."""

    cluster: Cluster
    members: tuple[int, ...]
    transport: st.Transport
    given: tuple[np.ndarray, ...]

    @property
    def on_each(self):
        """Members on each of several nodes, where the sum has stages; 1 otherwise."""
        return 1 if self.transport.algorithm is st.AllReduceAlgorithm.RING else self.cluster.workers_per_node

    def plan(self):
        phases = (st.Phase.from_groups(self.cluster.num_workers, [self.members]),)
        phases += (st.Phase.from_groups(self.cluster.num_workers, [range(self.cluster.num_workers)]),)
        return Schedule("case", self.cluster, st.StaticGroups(phases=st.GroupPhases(phases), transport=self.transport))


def numbers(rng, members, length):
    """Inputs of several distributions that a codec must support."""
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
    codec = st.Codec(rng.choice(["int8", "int4", "float16", "bfloat16"]))
    where = st.CodecScope.ACROSS_NODES if staged and rng.random() < 0.5 else st.CodecScope.ALL
    options = {}
    if codec.has_blocks:
        options = {"block": int(rng.choice([1, 3, 16, 64, 256]))}
    transport = st.Transport(
        algorithm=st.AllReduceAlgorithm.HIERARCHICAL if staged else st.AllReduceAlgorithm.RING,
        codec=codec,
        where=where,
        **options,
    )
    everyone = tuple(range(cluster.num_workers))
    count = int(rng.integers(2, len(everyone) + 1))
    members = everyone if staged else tuple(sorted(random.Random(seed).sample(everyone, count)))
    least = 256 if staged else 1
    lengths = [int(rng.integers(least, least + 2 ** rng.integers(1, 12))) for _ in range(3)]
    return Case(cluster, members, transport, tuple(numbers(rng, len(members), length) for length in lengths))


def sum_case(world, case):
    """This worker's results of all sums of a case; None outside the group."""
    ours = world_for_algorithm(world, case.transport.algorithm, case.cluster)
    ours.prepare(case.plan())
    results = None
    if world.rank in case.members:
        group, place = ours.communicator(case.members), case.members.index(world.rank)
        results = [torch.from_numpy(given[place].copy()) for given in case.given]
        works = [group.all_reduce(one, Coding(case.transport)) for one in results]
        for work in works:  # all in flight together, in one order
            work.wait()
    return results


def model_of(case, index):
    """The sum by the NumPy model: one row, or several rows of candidates for each value."""
    transport, given = case.transport, case.given[index]
    across_only = transport.where is st.CodecScope.ACROSS_NODES
    codec, block = transport.codec.value, transport.block if transport.codec.has_blocks else 1
    if case.on_each > 1:
        return coded_sums.hierarchical_sum(given, codec, block, on_each=case.on_each, across_only=across_only)[None]
    has_blocks, top = transport.codec.has_blocks, coded_sums.LEVELS.get(codec)
    return coded_sums.flat_sum(given, block, top)[None] if has_blocks else coded_sums.short_sums(given, codec)


def check(case, answers):
    answers = [answer for answer in answers if answer is not None]
    bound = coded_sums.sum_error(
        case.transport.codec,
        len(case.members),
        on_each_node=case.on_each,
        across_only=case.transport.where is st.CodecScope.ACROSS_NODES,
    )
    for index, given in enumerate(case.given):
        mine = answers[0][index].numpy()
        for other in answers[1:]:
            assert mine.tobytes() == other[index].numpy().tobytes(), "members differ"
        candidates = model_of(case, index)
        assert (mine.view(np.uint32) == candidates.view(np.uint32)).any(axis=0).all(), "differs from the model"
        sizes = np.abs(given.astype(np.float64))
        if case.transport.codec.has_blocks:
            sizes = np.stack([coded_sums.peaks_of(row, case.transport.block) for row in sizes])
        limit = float(bound.relative) * sizes.sum(0) + float(bound.absolute)
        assert (np.abs(mine - given.astype(np.float64).sum(0)) <= limit * (1 + 1e-9)).all(), "beyond the bound"


@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_random_groups_match_the_numpy_model_and_the_error_bound(ranks, first):
    by_size = {}
    for seed in range(first, min(first + CHUNK, CASES)):
        case = draw(seed)
        by_size.setdefault(case.cluster.num_workers, []).append((seed, case))
    ranks.fresh()
    for size, cases in by_size.items():
        answers = ranks.run(size, lambda world, cases=cases: [sum_case(world, case) for _, case in cases], limit=120)
        ranks.run(size, lambda world: world.abandon())  # there would be too many groups
        for place, (seed, case) in enumerate(cases):
            try:
                check(case, [answer[place] for answer in answers])
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}: {case.transport}, members {case.members}") from None


SCENARIOS = "helpers.coded_scenarios"


STAGES = [("ring", stage) for stage in range(4)] + [("hierarchical", stage) for stage in range(7)]


@pytest.mark.processes
@pytest.mark.parametrize(("algorithm", "stage"), STAGES if CASES > 1000 else [STAGES[1], STAGES[3], STAGES[8]])
def test_worker_killed_in_any_stage_is_named_and_partial_sums_are_dropped(driver, algorithm, stage):
    answer = driver.run(f"killed in {algorithm} {stage}")
    assert answer["code"] == 128 + signal.SIGKILL, "the fault fired"
    assert set(answer["errors"]) == {0, 1, 2}
    for report in answer["errors"].values():
        assert report["error"] == "PeerFailedError"
        assert "worker 3 was killed by signal 9 (SIGKILL)" in report["text"]
        # A late worker learns of the death in the previous step; a worker that had all its inputs, in the next one.
        assert re.match(r"step ([123]), round \1: group \{0,1,2,3\}", report["text"])
        assert report["seconds"] < 30  # the timeout is 60 s
    stepped = [report for report in answer["reports"] if "values" in report]
    assert len(stepped) == 3
    assert all(report["values"] == [-float(report["steps"])] for report in stepped), "whole steps only"
    late = [report["rank"] for report in stepped if report["steps"] == 3]
    assert not late or ((algorithm, stage) == ("hierarchical", 6) and 2 not in late), "its node needed it at the end"


def flat_groups(world, transport, cluster):
    """The world and the group of all workers with the given transport."""
    ours = world_for_algorithm(world, transport.algorithm, cluster)
    ours.prepare(Schedule("all", cluster, st.AllReduce(transport=transport)))
    return ours, ours.everyone()


def test_destroying_a_group_fails_coded_sums_on_all_members(ranks):
    transport = st.Transport(codec=st.Codec.INT8)

    def work(world):
        ours, group = flat_groups(world, transport, Cluster.regular(1, 3))
        assert ours.has(group.members, name="blocks"), "a second communicator of the same members"
        work = group.all_reduce(torch.ones(5000), Coding(transport))
        work.wait()
        if world.rank == 2:
            ours.destroy([group.members])
            assert not ours.has(group.members, name="blocks"), "both went together"
            return
        with pytest.raises(RuntimeError):
            group.all_reduce(torch.ones(5000), Coding(transport)).wait()
        with pytest.raises(RuntimeError):
            group.all_reduce(torch.ones(5000), Coding(transport)).wait()
        world.abandon()
        with pytest.raises(UnavailableError, match="was destroyed"):
            group.all_reduce(torch.ones(5000), Coding(transport))

    ranks.run(3, work)


def test_long_tensors_keep_an_error_feedback_residual_for_each_part(ranks, monkeypatch):
    """A hierarchical sum in five parts: with error feedback the mean of many sums approaches the exact sum."""
    monkeypatch.setattr(multistage_allreduce, "LARGEST_PART", 4096)
    transport = st.Transport(
        algorithm=st.AllReduceAlgorithm.HIERARCHICAL, codec=st.Codec.INT8, block=64, error_feedback=True
    )
    plain = st.Transport(algorithm=st.AllReduceAlgorithm.HIERARCHICAL, codec=st.Codec.INT8, block=64)
    given = np.random.default_rng(1).standard_normal((4, 4999)).astype(np.float32)
    exact = given.astype(np.float64).sum(0)

    def sum_case(group, rank, coding, times):
        tensors = [torch.from_numpy(given[rank].copy()) for _ in range(times)]
        for tensor in tensors:
            group.all_reduce(tensor, coding).wait()
        return [tensor.numpy().astype(np.float64) for tensor in tensors]

    def work(world):
        _, group = flat_groups(world, plain, Cluster.regular(2, 2))
        leftovers = Leftovers()
        once, *_ = sum_case(group, world.rank, Coding(plain), 1)
        fed_back = sum_case(group, world.rank, Coding(transport, leftovers=leftovers), 16)
        assert {place.split()[0] for place in leftovers.state()} == {"inside", "across"}
        assert len(leftovers.state()) == 5 * 3
        return once, np.mean(fed_back, axis=0)

    answers = ranks.run(4, work)
    model = coded_sums.hierarchical_sum(given, "int8", 64, on_each=2, across_only=False, parts=-(-4999 * 4 // 4096))
    for once, mean in answers:
        np.testing.assert_array_equal(once, model)
        assert np.abs(mean - exact).max() < np.abs(once - exact).max() / 10


@pytest.mark.parametrize("codec", [st.Codec.INT8, st.Codec.FLOAT16])
@pytest.mark.parametrize("algorithm", [st.AllReduceAlgorithm.RING, st.AllReduceAlgorithm.HIERARCHICAL])
def test_tensor_sent_in_parts_has_the_sums_of_its_parts(ranks, monkeypatch, algorithm, codec):
    """A tensor in nine parts, of which several are in flight at the same time."""
    monkeypatch.setattr(multistage_allreduce, "LARGEST_PART", 4096)
    block = 64 if codec is st.Codec.INT8 else 1
    transport = st.Transport(algorithm=algorithm, codec=codec, **({"block": block} if codec is st.Codec.INT8 else {}))
    given = np.random.default_rng(3).standard_normal((4, 9000)).astype(np.float32)

    def work(world):
        _, group = flat_groups(world, transport, Cluster.regular(2, 2))
        tensors = [torch.from_numpy(given[world.rank].copy()) for _ in range(2)]
        for running in [group.all_reduce(tensor, Coding(transport)) for tensor in tensors]:
            running.wait()
        return [tensor.numpy() for tensor in tensors]

    ranks.fresh()
    if algorithm is st.AllReduceAlgorithm.HIERARCHICAL:
        model = coded_sums.hierarchical_sum(given, codec.value, block, on_each=2, across_only=False, parts=9)[None]
    elif codec is st.Codec.INT8:
        parts = coded_sums.cut(9000, 9, block)
        model = np.concatenate([coded_sums.flat_sum(given[:, start:end], block) for start, end in parts])[None]
    else:
        model = coded_sums.short_sums(given, codec.value)
    for tensors in ranks.run(4, work):
        for tensor in tensors:
            assert (tensor == model).any(axis=0).all()


def test_parts_are_pipelined_through_the_stages():
    """At most as many parts are in flight as there are stages, in the same order on all members."""
    stages_run = []

    def stages(part, index):
        for stage in range(3):
            stages_run.append((index, stage))
            yield
        stages_run.append((index, 3))

    multistage_allreduce.in_parts(torch.arange(10), 5, 2, stages)
    steps = [[(newest - stage, stage) for stage in range(4) if 0 <= newest - stage < 5] for newest in range(8)]
    assert stages_run == [one for step in steps for one in step]


def test_across_nodes_scope_leaves_sums_within_a_node_exact(ranks):
    transport = st.Transport(
        algorithm=st.AllReduceAlgorithm.HIERARCHICAL, codec=st.Codec.INT8, where=st.CodecScope.ACROSS_NODES
    )
    cluster = Cluster.regular(2, 2)
    phases = tuple(st.Phase.from_groups(4, groups) for groups in ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [range(4)]))
    plan = Schedule("levels", cluster, st.StaticGroups(phases=st.GroupPhases(phases), transport=transport))

    def work(world):
        ours = world_for_algorithm(world, transport.algorithm, cluster)
        ours.prepare(plan)
        differences = {}
        for phase in phases:
            group = ours.communicator(next(g.members for g in phase if world.rank in g.members))
            tensor = torch.randn(3000, generator=torch.Generator().manual_seed(world.rank))
            exact = tensor.clone()
            group.all_reduce(exact).wait()
            group.all_reduce(tensor, Coding(transport)).wait()
            differences[len(group.members), group.members[1] - group.members[0]] = float((tensor - exact).abs().max())
        return differences

    for differences in ranks.run(4, work):
        assert differences[2, 1] == 0, "nothing crosses"
        assert differences[2, 2] > 0
        assert differences[4, 1] > 0


@on_ranks(2, [[{2.0}, {4.0}]] * 2, fresh=True)
def test_second_communicators_count_toward_the_group_limit(world):
    world.max_groups = 1
    world.prepare(Schedule("plain", Cluster.regular(1, 2), st.AllReduce()))
    with pytest.raises(InputError, match="puts this worker into 2 distinct groups"):
        world.prepare(
            Schedule("coded", Cluster.regular(1, 2), st.AllReduce(transport=st.Transport(codec=st.Codec.INT8)))
        )
    world.max_groups = 2
    with pytest.raises(MissingDependencyError, match="was not made for sums in int8"):
        world.everyone().all_reduce(torch.ones(8), Coding(st.Transport(codec=st.Codec.INT8)))
    world.prepare(Schedule("coded", Cluster.regular(1, 2), st.AllReduce(transport=st.Transport(codec=st.Codec.INT8))))
    second = world.create((0, 1), name="of a side thread")
    assert second is not world.everyone()
    assert world.communicator((0, 1), name="of a side thread") is second
    with pytest.raises(UnavailableError, match="other: was not made at start"):
        world.communicator((0, 1), name="other")
    sums = [torch.ones(100), torch.full((100,), 2.0)]
    works = [group.all_reduce(one) for group, one in zip((world.everyone(), second), sums, strict=True)]
    for running in works:
        running.wait()
    return [set(one.tolist()) for one in sums]
