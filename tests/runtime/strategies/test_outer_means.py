"""Outer steps, as in DiLoCo and NoLoCo: equations, limits and saved state."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers.training import Training, group_phases, static_groups
from partreduce import Cluster, DistributedOptimizer, Schedule, ScheduleAverager
from partreduce import strategies as st
from partreduce.errors import InputError, ScheduleError
from partreduce.schedulers import registry

DILOCO = st.Payload(outer=st.OuterStep(lr=0.7, momentum=0.9, nesterov=True))
OWN = st.Payload(outer=st.OuterStep(lr=0.7, momentum=0.9, nesterov=True, outer_params="per_worker"))


def test_rate_one_without_momentum_is_plain_averaging():
    stated = st.AllReduce(steps_per_round=3, payload=st.Payload(outer=st.OuterStep(lr=1, momentum=0)))
    assert stated == st.AllReduce(steps_per_round=3)


def test_state_without_outer_params_starts_them_at_the_loaded_model(ranks):
    """A checkpoint of plain averaging has neither momentum nor outer parameters."""

    def work(world):
        training = Training(world, st.AllReduce(steps_per_round=5, payload=st.Payload(outer=st.OuterStep(lr=0.5))))
        training.steps(5)
        state = training.optimizer.state_dict()
        del state["partreduce"]["strategy"]
        state["partreduce"]["steps"] = 3
        training.optimizer.load_state_dict(state)
        start = training.values()
        before = training.steps(1)
        training.optimizer.load_state_dict(training.optimizer.state_dict())
        return start, before, training.steps(1), training.optimizer.runner.state()

    results = ranks.run(3, work)
    outer_params = {tuple(state["reference/0"].tolist()) for *_, state in results}
    assert len(outer_params) == 1
    assert all(torch.equal(result[2], results[0][2]) for result in results), "all workers are equal"


def test_diverging_outer_params_per_worker_raise_with_the_radius(ranks):
    wild = st.Payload(outer=st.OuterStep(lr=1.9, momentum=0.9, nesterov=True, outer_params="per_worker"))
    pair_then_all = static_groups(3, [[0, 1]], [range(3)], payload=wild)

    def work(world):
        texts = []
        for strategy in (pair_then_all, static_groups(3, [[0, 1]], payload=OWN)):
            with pytest.raises(InputError) as caught:
                Training(world, strategy)
            texts.append(str(caught.value))
        return texts

    for diverging, apart in ranks.run(3, work):
        assert "do not come to agree: the spectral radius of a period is 4" in diverging
        assert "the spectral radius of a period is 1, and only below 1" in apart


def test_unsupported_outer_steps_raise_in_one_line(ranks):
    edges = st.Round.from_edges(3, [(0, 1, "1/2"), (1, 0, "1/2")])
    pairs = group_phases(3, [[0, 1]])
    refused = {
        "sync.delay brings it later": st.AllReduce(steps_per_round=2, sync=st.DelayedAveraging(), payload=DILOCO),
        "sync.partial brings it later": st.AllReduce(sync=st.PartialAllReduce(quorum=2), payload=DILOCO),
        "strategy 'static' has no such round here": st.StaticGroups(phases=pairs, payload=DILOCO),
        "strategy 'neighbor' has no such round": st.NeighborAveraging(rounds=(edges,), payload=DILOCO),
        "strategy 'pairwise' has no such round": st.Pairwise(active=(1,), payload=DILOCO),
        "payload.outer.outer_params: is per_worker; workers of strategy 'allreduce'": st.AllReduce(
            steps_per_round=2, payload=OWN
        ),
        "payload.outer.outer_params: is per_worker; codec int8": st.StaticGroups(
            phases=pairs, payload=OWN, transport=st.Transport(codec=st.Codec.INT8)
        ),
        "payload.outer.outer_params: is per_worker; a group has a relax": static_groups(
            3, [st.Group((0, 1), Fraction(1, 2))], payload=OWN
        ),
        "payload.outer.outer_params: is per_worker; plain averaging": st.StaticGroups(
            phases=pairs, payload=st.Payload(outer=st.OuterStep(outer_params="per_worker"))
        ),
        "payload.outer.lr: is 0; a learning rate is above 0": st.AllReduce(
            payload=st.Payload(outer=st.OuterStep(lr=0))
        ),
        "payload.outer.momentum: is 1; a momentum is": st.AllReduce(payload=st.Payload(outer=st.OuterStep(momentum=1))),
        "no momentum that it could look ahead with": st.AllReduce(
            payload=st.Payload(outer=st.OuterStep(lr=0.7, nesterov=True))
        ),
    }
    for message, strategy in refused.items():
        with pytest.raises(ScheduleError, match=r"payload\.outer") as caught:
            Schedule("refused", Cluster.regular(1, 3), strategy)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ScheduleError, match=r"payload\.outer\.lr: is 'fast'; it is a number such as 0\.7"):
        st.OuterStep(lr="fast")

    schedule = Schedule("outer", Cluster.regular(1, 3), st.AllReduce(steps_per_round=2, payload=DILOCO))

    def work(world):
        with pytest.raises(InputError, match="measures what workers moved since they were equal"):
            Training(world, st.AllReduce(steps_per_round=2, payload=DILOCO), initial="keep")
        for where, payload, message in (
            ("disk", DILOCO, "is not one of"),
            ("host", st.Payload(), "has no outer steps"),
        ):
            with pytest.raises(InputError, match=f"outer_state: .*{message}"):
                Training(world, st.AllReduce(steps_per_round=2, payload=payload), outer_state=where)
        with pytest.raises(InputError, match=r"Nesterov 0\.9.* needs DistributedOptimizer"):
            ScheduleAverager(schedule, world=world)

    ranks.run(3, work)


@pytest.mark.parametrize(("workers", "momentum"), [(4, 0.5), (5, 0.5), (6, 0.0)])
def test_random_pairs_match_the_noloco_equations(ranks, workers, momentum):
    """In the notation of NoLoCo: slow weights phi, outer gradients delta, momentum alpha, beta = gamma = 0.7."""
    every, rounds = 3, 9
    options = {"every": every, "momentum": momentum, "phases": 4, "seed": 2}
    schedule = registry.build("noloco", Cluster.regular(1, workers), **options)
    pushes = np.random.default_rng(1).normal(size=(rounds * every, workers, 16))

    def work(world):
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.full((16,), 3.0, dtype=torch.float64))
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, schedule, world=world)
        for push in pushes:
            model.weight.grad = -torch.from_numpy(push[world.rank].copy())
            optimizer.step()
        last = model.weight.detach().numpy().copy()
        optimizer.finish()
        return last

    phi, velocity, theta = (np.full((workers, 16), value) for value in (3.0, 0.0, 3.0))
    for round_ in range(rounds):
        theta += pushes[round_ * every : (round_ + 1) * every].sum(axis=0)
        delta, before, following = theta - phi, phi.copy(), phi.copy()
        for pair in (group.members for group in schedule.phase(round_)):
            for worker in pair:
                drawn = 0.7 * delta[list(pair)].mean(axis=0) - 0.7 * (before[worker] - before[list(pair)].mean(axis=0))
                velocity[worker] = momentum * velocity[worker] + drawn
                following[worker] = before[worker] + velocity[worker]
            theta[list(pair)] = following[list(pair)]
        phi = following
    np.testing.assert_allclose(ranks.run(workers, work), theta, rtol=0, atol=1e-12)


@pytest.mark.parametrize("own", [True, False])
def test_loading_drops_outer_params_of_the_other_kind(ranks, own):
    def work(world):
        each = static_groups(3, [range(3)], steps_per_round=2, payload=OWN)
        shared = replace(each, payload=st.Payload(outer=replace(OWN.outer, outer_params="shared")))
        saved, other = (Training(world, one) for one in ((each, shared) if own else (shared, each)))
        saved.steps(2)
        other.optimizer.load_state_dict(saved.optimizer.state_dict())
        return other.optimizer.runner.state()

    with pytest.warns(UserWarning, match="^load_state_dict: .*is dropped: the file holds"):
        assert ranks.run(3, work) == [{}] * 3
