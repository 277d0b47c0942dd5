"""Training with codecs: replicas stay equal, losses stay close, and values beyond a codec's range raise."""

import math

import pytest
import torch

from helpers.thread_ranks import on_ranks
from helpers.training import build_seeded
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st
from partreduce.errors import HandshakeError, InputError, MissingDependencyError, ScheduleError
from partreduce.runtime.worker.config_handshake import with_codec

MEMBERS = 4
CLUSTER = Cluster.regular(2, 2)
TRANSPORTS = {
    "float16": st.Transport(codec=st.Codec.FLOAT16),
    "bfloat16 across": st.Transport(
        algorithm=st.AllReduceAlgorithm.HIERARCHICAL, codec=st.Codec.BFLOAT16, where=st.CodecScope.ACROSS_NODES
    ),
    "int8": st.Transport(codec=st.Codec.INT8, block=32),
    "int8 feedback": st.Transport(codec=st.Codec.INT8, block=32, error_feedback=True),
    "int8 across": st.Transport(
        algorithm=st.AllReduceAlgorithm.HIERARCHICAL, codec=st.Codec.INT8, where=st.CodecScope.ACROSS_NODES, block=32
    ),
    "int8 hierarchical feedback": st.Transport(
        algorithm=st.AllReduceAlgorithm.HIERARCHICAL, codec=st.Codec.INT8, block=32, error_feedback=True
    ),
}


def plan_of(transport, strategy=st.AllReduce, **fields):
    return Schedule("coded", CLUSTER, strategy(transport=transport, **fields))


def network():
    return build_seeded(lambda: torch.nn.Sequential(torch.nn.Linear(5, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1)), 3)


class Training:
    """One worker's training on rank-specific data, which can stop and continue."""

    def __init__(self, world, plan, **options):
        self.model = network()
        inner = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.optimizer = DistributedOptimizer(inner, self.model, plan, timeout=60, world=world, **options)
        self.rank = world.rank

    def steps(self, first, last):
        losses = []
        for step in range(first, last):
            x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1000 * self.rank + step))
            loss = (self.model(x) - x.sum(1, keepdim=True).sin()).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def backward(self, parameter, index, value):
        """Compute the gradients of a step, and replace one element."""

        def change(gradient):
            gradient = gradient.clone()
            gradient[index] = value
            return gradient

        hook = parameter.register_hook(change)
        self.model(torch.ones(1, 5)).sum().backward()
        hook.remove()

    def weights(self):
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()]).clone()

    def end(self):
        weights = self.weights()
        self.optimizer.finish()
        assert torch.equal(weights, self.weights()) or torch.allclose(weights, self.weights(), rtol=1e-6)
        return weights


def train(world, plan, steps=8, **options):
    training = Training(world, plan, **options)
    losses = training.steps(0, steps)
    return losses, training.end()


@pytest.fixture(scope="module")
def plain_losses(ranks):
    """Return each worker's losses without a codec."""
    plain = Schedule("plain", CLUSTER, st.AllReduce())
    return [losses for losses, _ in ranks.run(MEMBERS, lambda world: train(world, plain))]


WITHOUT_REFERENCE = ("float16", "bfloat16 across", "int8 across", "int8 hierarchical feedback")
"""The other transports, with ring All-Reduce and a one-host server, are in the conformance table."""


@pytest.mark.parametrize(
    ("name", "hosts"),
    [*((name, None) for name in WITHOUT_REFERENCE), *((name, (1, 3)) for name in ("float16", "int8 feedback"))],
)
def test_codecs_keep_replicas_equal_and_losses_close(ranks, plain_losses, name, hosts):
    transport = TRANSPORTS[name]
    plan = plan_of(transport) if hosts is None else plan_of(transport, st.Server, hosts=hosts)
    results = ranks.run(MEMBERS, lambda world: train(world, plan))
    for (losses, weights), wanted in zip(results, plain_losses, strict=True):
        assert torch.equal(weights, results[0][1])
        assert losses != wanted, "a codec rounds"
        assert losses == pytest.approx(wanted, rel=0.05, abs=0.02)


@pytest.mark.parametrize("strategy", [st.AllReduce, st.Server])
def test_finite_gradient_beyond_float16_raises_on_all_workers(ranks, strategy):
    """Rank 2's gradient of the last bias exceeds the range; all workers raise, and rank 2's message has the value."""

    def work(world):
        training = Training(world, plan_of(TRANSPORTS["float16"], strategy))
        training.steps(0, 2)
        training.optimizer.zero_grad()
        training.backward(training.model[2].bias, 0, 4e6 if world.rank == 2 else 1.0)
        try:
            training.optimizer.step()
        finally:
            assert float(training.model[2].bias.grad) == (4e6 if world.rank == 2 else 1.0)

    errors = ranks.run(MEMBERS, work, catch=InputError)
    for rank, error in enumerate(errors):
        assert "step 2, round 2: '2.bias'" in str(error)
        assert "beyond float16's largest number 65504" in str(error)
        assert ("this worker's, 1e+06" if rank == 2 else "another worker's") in str(error)
        assert "use the codec bfloat16 or int8" in str(error)
        assert "\n" not in str(error)


def test_partial_sum_beyond_float16_raises(ranks):
    """Every share is within the range, and their sum is not."""

    def work(world):
        training = Training(world, plan_of(TRANSPORTS["float16"]))
        training.backward(training.model[2].bias, 0, 100000.0)
        training.optimizer.step()

    for error in ranks.run(MEMBERS, work, catch=InputError):
        assert "'2.bias'" in str(error)
        assert "beyond float16's largest" in str(error)


@pytest.mark.parametrize("name", ["float16", "int8", "int8 feedback", "int8 across"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_infinite_scaled_gradients_skip_the_step_on_all_workers(ranks, name, bad):
    def work(world):
        training = Training(world, plan_of(TRANSPORTS[name]))
        training.steps(0, 2)
        before = training.weights()
        training.optimizer.zero_grad()
        training.backward(training.model[0].weight, (3, 2), bad if world.rank == 1 else 1.0)
        training.optimizer.found_inf = torch.tensor(float(world.rank == 1))
        training.optimizer.grad_scale = torch.tensor(1.0)
        training.optimizer.step()
        del training.optimizer.found_inf, training.optimizer.grad_scale
        assert torch.equal(before, training.weights())
        assert not torch.isfinite(training.model[0].weight.grad[3, 2])
        losses = training.steps(3, 6)
        assert all(map(math.isfinite, losses)), "no infinite value remains"
        return training.end()

    answers = ranks.run(MEMBERS, work)
    assert all(torch.equal(answers[0], other) for other in answers)
    assert bool(torch.isfinite(answers[0]).all())


def test_differing_codecs_fail_the_handshake_with_the_rank(ranks):
    def work(world):
        return train(world, plan_of(st.Transport()), codec="int8" if world.rank == 1 else "bfloat16")

    for error in ranks.run(MEMBERS, work, catch=HandshakeError):
        assert "codec differs: rank 1 has int8 all, block 256, no error feedback" in str(error)
        assert "the others have bfloat16 all" in str(error)


@on_ranks(MEMBERS)
def test_codec_argument_overrides_the_schedule(world):
    requested = train(world, plan_of(st.Transport()), 3, codec="float16")
    planned = train(world, plan_of(TRANSPORTS["float16"]), 3)
    plain = train(world, plan_of(TRANSPORTS["float16"]), 3, codec="none")
    without = train(world, plan_of(st.Transport()), 3)
    assert requested[0] == planned[0]
    assert plain[0] == without[0]


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ON_REQUEST = st.DynamicGroups(group_size=4, division=st.GroupSplit.GLOBAL)


@pytest.mark.parametrize(
    ("plan", "requested", "kind", "text"),
    [
        (
            plan_of(st.Transport()),
            ("int3", CPU),
            InputError,
            "'int3' is not one of none, float16, bfloat16, int8, int4",
        ),
        (
            plan_of(st.Transport()),
            ("int8", CUDA),
            MissingDependencyError,
            "no CUDA stream waits for that; .* or use bfloat16",
        ),
        (
            plan_of(st.Transport(), st.Server, steps_per_round=2),
            ("float16", CPU),
            ScheduleError,
            "'server' sends parameters",
        ),
        (Schedule("g", CLUSTER, ON_REQUEST), ("int8", CPU), ScheduleError, "'dynamic_groups' sends parameters"),
        (plan_of(TRANSPORTS["int8 across"]), (None, CPU), InputError, "leave algorithm out"),
    ],
)
def test_unsupported_codecs_raise_in_one_line(monkeypatch, plan, requested, kind, text):
    monkeypatch.setenv("PARTREDUCE_CUDA_OVER_GLOO", "1")
    with pytest.raises(kind, match=text) as refusal:
        with_codec(plan, st.AllReduceAlgorithm.RING, *requested)
    assert "\n" not in str(refusal.value)
