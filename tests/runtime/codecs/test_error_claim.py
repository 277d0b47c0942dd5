"""The claim `codec-error` compared with the sums of a run: an upper bound that adversarial inputs nearly attain."""

import random
from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers import coded_sums
from helpers.training import group_phases
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st
from partreduce.runtime.codecs import Coding
from partreduce.runtime.transport.multistage_allreduce import levels_of
from partreduce.runtime.transport.worlds import world_for_algorithm
from partreduce.topo.codec_numbers import LEVELS
from partreduce.topo.document.schedule import dump_schedule
from partreduce.verify import Status, checker, prove

BLOCK = 8
LENGTH = 40 * BLOCK  # longer than what goes uncoded
CLUSTER = Cluster.regular(2, 2)
PLACES = [
    (st.AllReduceAlgorithm.RING, st.CodecScope.ALL),
    (st.AllReduceAlgorithm.HIERARCHICAL, st.CodecScope.ALL),
    (st.AllReduceAlgorithm.HIERARCHICAL, st.CodecScope.ACROSS_NODES),
]
IN_16 = [
    st.Transport(algorithm=algorithm, codec=codec, where=where)
    for codec in (st.Codec.FLOAT16, st.Codec.BFLOAT16)
    for algorithm, where in PLACES
]
IN_8 = [
    st.Transport(algorithm=algorithm, codec=codec, where=where, block=BLOCK)
    for codec in (st.Codec.INT8, st.Codec.INT4)
    for algorithm, where in PLACES
]


def adversaries(transport, num_members):
    """Inputs as [cases, members, values]: random ones, and ones that maximize each rounding error."""
    rng = np.random.default_rng(1)
    unit = {st.Codec.FLOAT16: 2.0**-11, st.Codec.BFLOAT16: 2.0**-8, st.Codec.INT8: 2.0**-8, st.Codec.INT4: 2.0**-4}[
        transport.codec
    ]
    cases = [rng.normal(size=(num_members, LENGTH)), rng.random((num_members, LENGTH)) * 1e-6]
    for large in range(num_members):  # the other values are rounded away when added to it one by one
        case = np.full((num_members, LENGTH), unit * (1 - 2.0**-6))
        case[large] = 1.0
        cases.append(case)
    one_up = np.full((num_members, LENGTH), 1 + unit * (1 - 2.0**-6))  # rounded down by half a unit each
    cases.append(one_up)
    top = LEVELS.get(transport.codec, 127)
    halves = np.tile(np.arange(BLOCK) % top + 0.5, LENGTH // BLOCK)
    halves[::BLOCK] = top  # the others lie between two codes
    cases += [np.tile(halves, (num_members, 1)), np.tile(halves * (1 - 2.0**-7), (num_members, 1))]
    for _ in range(8):
        grid = np.rint(rng.random((num_members, LENGTH)) * 0.8 * top) + 0.49
        grid[:, ::BLOCK] = top
        cases.append(grid)
    return np.array(cases, dtype=np.float32).astype(np.float64)


def decoded_means(ranks, transport, given):
    """The decoded mean of each case on every worker, [workers, cases, values]."""
    schedule = Schedule("coded", CLUSTER, st.AllReduce(transport=transport))

    def work(world):
        ours = world_for_algorithm(world, transport.algorithm, CLUSTER)
        ours.prepare(schedule)
        group = ours.communicator(range(world.size))
        rows = []
        for case in given:
            share = torch.from_numpy(case[world.rank]).to(torch.float32) / world.size
            group.all_reduce(share, Coding(transport)).wait()
            rows.append(share.numpy().astype(np.float64))
        return rows

    return np.array(ranks.run(CLUSTER.num_workers, work))


@pytest.mark.parametrize("transport", IN_16 + IN_8, ids=str)
def test_decoded_means_are_bitwise_equal_and_within_the_claimed_error(ranks, transport):
    schedule = Schedule("coded", CLUSTER, st.AllReduce(transport=transport))
    entry = prove(schedule)["codec-error"].numbers
    relative, absolute = float(Fraction(entry["relative"])), float(Fraction(entry["absolute"]))
    given = adversaries(transport, CLUSTER.num_workers)
    means = decoded_means(ranks, transport, given)
    assert (means == means[0]).all(), "claim equal-replicas: the same bits"
    sizes = np.abs(given)
    if transport.codec.has_blocks:
        blocks = sizes.reshape(*sizes.shape[:2], -1, BLOCK)
        sizes = np.broadcast_to(blocks.max(axis=-1, keepdims=True), blocks.shape).reshape(sizes.shape)
    part = (np.abs(means[0] - given.mean(axis=1)) - absolute) / (relative * sizes.mean(axis=1))
    assert part.max() <= 1
    assert part.max() >= 0.5, "attained up to a small factor"


@pytest.mark.parametrize(
    "transport",
    [transport for transport in IN_16 if transport.algorithm is st.AllReduceAlgorithm.HIERARCHICAL],
    ids=str,
)
def test_16_bit_error_does_not_grow_with_workers_per_node(ranks, transport):
    """Added to 1 one by one, the small values would be rounded away; the node adds them before rounding."""
    unit = float(coded_sums.UNIT_ROUNDOFF[transport.codec.value])
    cluster = Cluster.regular(2, 4)
    small = np.float32(unit * (1 - 2.0**-6))
    given = np.repeat(np.array([1.0, small, small, small, *[small / 4] * 4], np.float32)[:, None], LENGTH, axis=1)

    def work(world):
        ours = world_for_algorithm(world, transport.algorithm, cluster)
        ours.prepare(Schedule("coded", cluster, st.AllReduce(transport=transport)))
        total = torch.from_numpy(given[world.rank].copy())
        ours.everyone().all_reduce(total, Coding(transport)).wait()
        return total.numpy().astype(np.float64)

    errors = np.abs(np.array(ranks.run(8, work)) - given.astype(np.float64).sum(0)) / np.abs(given).sum(0)
    assert errors.max() <= 2 * unit * (1 + 2.0**-6), "a rounding of the node's sum and one of the whole"
    proofs = [
        prove(Schedule("coded", Cluster.regular(*shape), st.AllReduce(transport=transport)))
        for shape in ((2, 2), (16, 16))
    ]
    claims = [Fraction(proof["codec-error"].numbers["relative"]) for proof in proofs]
    assert claims[1] - claims[0] <= 40 * coded_sums.UNIT_ROUNDOFF["float32"], "only the float32 rounding grows"


def rounds_of(world, schedule, pushes):
    """The parameters of one worker after every round of one push each."""
    weight = torch.nn.Parameter(torch.full((LENGTH,), 3.0))
    model = torch.nn.Module()
    model.register_parameter("weight", weight)
    optimizer = DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), model, schedule, world=world)
    seen = []
    for push in pushes:
        for part in (0.25, 0.75):  # two steps a round
            optimizer.zero_grad()
            (model.weight * torch.from_numpy(-push[world.rank] * part).to(torch.float32)).sum().backward()
            optimizer.step()
        seen.append(model.weight.detach().numpy().astype(np.float64))
    optimizer.finish()
    return seen


@pytest.mark.parametrize("transport", [IN_16[0], IN_16[5], IN_8[0], IN_8[2], IN_8[3]], ids=str)
def test_parameter_mean_error_is_relative_to_progress_since_the_reference(ranks, transport):
    schedule = Schedule("coded", CLUSTER, st.AllReduce(steps_per_round=2, transport=transport))
    entry = prove(schedule)["codec-error"].numbers
    relative, absolute = float(Fraction(entry["relative"])), float(Fraction(entry["absolute"]))
    pushes = adversaries(transport, CLUSTER.num_workers)[:12] * 0.01
    runs = np.array(ranks.run(CLUSTER.num_workers, lambda world: rounds_of(world, schedule, pushes)))
    assert (runs == runs[0]).all(), "claim equal-replicas: after every round"
    reference = np.full(LENGTH, 3.0)
    attained = 0.0
    for push, mean in zip(pushes, runs[0], strict=True):
        sizes = np.abs(push)
        if transport.codec.has_blocks:
            sizes = np.repeat(sizes.reshape(len(push), -1, BLOCK).max(axis=-1), BLOCK, axis=1)
        own = 8 * 2.0**-24 * (np.abs(reference) + np.abs(push).max(axis=0))  # of parameters, in float32
        error = np.abs(mean - (reference + push.mean(axis=0)))
        limit = relative * (sizes.mean(axis=0) + own) + absolute + own
        assert (error <= limit).all()
        attained = max(attained, float((error / limit).max()))
        reference = mean
    assert attained > 0.3


@pytest.mark.parametrize("transport", IN_16 + IN_8, ids=str)
def test_claim_is_no_looser_than_the_codec_error_bound(transport):
    """`topo.codec_numbers` uses another summation lemma, with a slightly larger bound."""
    for num_nodes, on_each in ((2, 2), (4, 4), (3, 1), (9, 8)):
        schedule = Schedule("coded", Cluster.regular(num_nodes, on_each), st.AllReduce(transport=transport))
        entry = prove(schedule)["codec-error"].numbers
        staged = transport.algorithm is st.AllReduceAlgorithm.HIERARCHICAL and on_each > 1
        bound = coded_sums.sum_error(
            transport.codec.value, num_nodes * on_each, on_each_node=on_each if staged else 1,
            across_only=transport.where is st.CodecScope.ACROSS_NODES and staged,
        )  # fmt: skip
        first = Fraction(3, 2**24)  # the float32 rounding of members, which the codec bound excludes
        assert Fraction(entry["relative"]) <= bound.relative + first * (1 + 2 * bound.relative) + Fraction(1, 2**32)
        if num_nodes * on_each < 20:
            assert Fraction(entry["relative"]) >= bound.relative * Fraction(9, 10)


@pytest.mark.parametrize("codec", [st.Codec.FLOAT16, st.Codec.BFLOAT16, st.Codec.INT8])
def test_server_claims_two_roundings_and_their_error(codec):
    schedule = Schedule("s", CLUSTER, st.Server(transport=st.Transport(codec=codec)))
    proof = prove(schedule)
    witness = proof["codec-error"].witness
    bound = coded_sums.sum_error(codec.value, 4, through_servers=True)
    assert witness["roundings"] == 2
    assert 0 <= Fraction(witness["relative"]) - bound.relative <= Fraction(4, 2**24)
    assert Fraction(witness["absolute"]) >= bound.absolute
    assert proof["equal-replicas"].status is Status.FOLLOWS
    assert "uses the rounded answer too" in proof["equal-replicas"].explanation
    assert "codec-error" not in prove(Schedule("s", CLUSTER, st.Server()))
    assert "equal-replicas" not in prove(Schedule("s", CLUSTER, st.Server(synchronous=False)))


def test_checker_and_runtime_agree_on_the_stages_of_a_group():
    chance = random.Random(4)
    seen = set()
    for _ in range(100):
        sizes = [chance.randrange(1, 4) for _ in range(chance.randrange(2, 4))]
        nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
        listed = [[rank for rank, other in enumerate(nodes) if other == node] for node in range(len(sizes))]
        members = sorted(chance.sample(range(len(nodes)), chance.randrange(2, len(nodes) + 1)))
        groups = group_phases(len(nodes), [members])
        schedule = checker.read_schedule(
            dump_schedule(Schedule("s", Cluster.irregular(listed), st.StaticGroups(phases=groups)))
        )
        inside, over = schedule.on_nodes(schedule.phases[0][0])
        staged = levels_of(members, nodes, members[0]) is not None
        assert (inside > 1 and over > 1) == staged
        assert inside * max(1, over) == len(members)
        seen.add((staged, over == 1))
    assert len(seen) == 3
