"""Parameter averaging with a codec: workers send progress since a common reference, and differing references raise."""

import pytest
import torch

from helpers.thread_ranks import on_ranks
from partreduce import Cluster, DistributedOptimizer, Schedule, ScheduleAverager
from partreduce import strategies as st
from partreduce.errors import InputError, PeerFailedError
from partreduce.runtime.averaging.mean_model import common_start
from partreduce.runtime.transport.communicators import Communicator


def nested_groups(**options):
    """Four workers on two nodes: groups within nodes, then all workers."""
    inside, everyone = ([0, 1], [2, 3]), [range(4)]
    phases = tuple(st.Phase.from_groups(4, groups) for groups in (inside, everyone))
    options = {"transport": st.Transport(codec=st.Codec.INT8), "steps_per_round": 2} | options
    return Schedule("nested", Cluster.regular(2, 2), st.StaticGroups(phases=st.GroupPhases(phases), **options))


class Job:
    """One worker's small training with two dtypes, momentum and rank-specific data."""

    def __init__(self, world, schedule, **options):
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 2))
        self.model[2].double()
        generator = torch.Generator().manual_seed(1)  # threads share torch's own
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
        inner = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.5)
        options = {"timeout": 60} | options
        self.optimizer = DistributedOptimizer(inner, self.model, schedule, world=world, **options)
        self.rank = world.rank

    def train(self, rounds):
        steps_per_round = self.optimizer.run.steps_per_round
        for step in range(self.optimizer.steps, self.optimizer.steps + rounds * steps_per_round):
            generator = torch.Generator().manual_seed(1000 * step + self.rank)
            inputs = torch.randn(8, 5, generator=generator)
            self.optimizer.zero_grad()
            out = self.model[2](self.model[1](self.model[0](inputs)).double())
            (out - inputs.sum(1, keepdim=True).sin()).square().mean().backward()
            self.optimizer.step()
        return self

    def values(self):
        return [tensor.detach().clone() for tensor in [*self.model.parameters(), *self.model.buffers()]]

    def references(self):
        return [array.values.clone() for array in self.optimizer.runner.parts[0].reference.arrays]


def same(first, second):
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


SYNCS = pytest.mark.parametrize("sync", [st.Synchronous(), st.DelayedAveraging()], ids=["synchronous", "late"])


@pytest.mark.filterwarnings("ignore:partreduce. step .. model.state_dict.. holds worker")
def test_loading_a_model_starts_a_new_common_reference(ranks):
    """If workers load different models, worker 0's becomes the reference, and the mean is correct."""

    def work(world):
        job = Job(world, nested_groups()).train(3)
        states = job.model.state_dict(), job.optimizer.state_dict()
        job.train(2)
        states[0]["0.weight"].add_(world.rank)
        job.optimizer.load_state_dict(states[1])
        job.model.load_state_dict(states[0])
        before = job.optimizer.runner.parts[0].reference
        job.train(1)
        return before, job.optimizer.runner.parts[0].reference.version, job.references(), job.values()

    results = ranks.run(4, work)
    assert {(before, version) for before, version, _, _ in results} == {(None, "reference 2/3")}
    for _, _, references, values in results[1:]:
        assert same(references, results[0][2])
        assert same(values[:4], results[0][3][:4])


@pytest.mark.parametrize("apart", [False, True])
def test_start_is_broadcast_only_if_workers_differ(ranks, monkeypatch, apart):
    """The initial broadcast made workers equal; a later change of the model is detected by its digest."""
    broadcasts, starting = [], set()
    original = Communicator.broadcast

    def count_broadcast(self, tensor):
        if self.place in starting:
            broadcasts.append(self.place)
        return original(self, tensor)

    def work(world):
        job = Job(world, nested_groups())
        if apart and world.rank == 2:
            with torch.no_grad():
                next(job.model.parameters()).add_(1.0)
        starting.add(world.rank)
        run = job.optimizer.run
        reference = common_start(run.reducer, run.everyone, 1, 0, 0)
        return [array.values.clone() for array in reference.arrays], [
            bucket.flat.clone() for bucket in run.flat.buckets
        ]

    monkeypatch.setattr(Communicator, "broadcast", count_broadcast)
    results = ranks.run(4, work)
    assert all(same(arrays, results[0][1]) for arrays, _ in results), "worker 0's"
    assert sorted(broadcasts) == ([0, 0, 1, 1, 2, 2, 3, 3] if apart else [])


@pytest.mark.filterwarnings("ignore:partreduce. step .. model.state_dict.. holds worker")
def test_loading_only_the_model_raises(ranks):
    def work(world):
        job = Job(world, nested_groups()).train(1)
        job.model.load_state_dict(job.model.state_dict())
        job.train(1)

    for error in ranks.run(4, work, catch=InputError):
        assert "would send the difference to the others as progress" in str(error)


@SYNCS
@pytest.mark.parametrize("field", ["round", "starts"])
def test_differing_references_raise_an_error_that_names_them(ranks, sync, field):
    def work(world):
        job = Job(world, nested_groups(sync=sync), timeout=60)
        part = job.optimizer.runner.parts[0]
        start = part._start

        def with_another(flight, group):
            reference = part.reference
            if world.rank == 2 and flight.round == 3:
                setattr(reference, field, 7)
                reference.arrays[0].values.add_(1.0)
            return start(flight, group)

        part._start = with_another
        job.train(2 if sync == st.DelayedAveraging() else 3)
        before = job.references()
        try:
            job.train(3)
        except PeerFailedError as error:
            return str(error), same(job.references()[:1], before[:1]) or world.rank == 2
        return "", False

    results = ranks.run(4, work)
    ranks.fresh()
    assert all(text and kept for text, kept in results), results
    assert any("measure their parameters from another reference than this worker's" in text for text, _ in results)


def test_load_state_dict_on_one_worker_fails_all_workers(ranks):
    def work(world):
        job = Job(world, nested_groups(), timeout=60).train(4)
        if world.rank == 1:
            job.optimizer.load_state_dict(job.optimizer.state_dict())
        job.train(4)

    results = ranks.texts(4, work, PeerFailedError)
    message = "worker 1 waits for all in a new start after 4 rounds: call load_state_dict() on all workers"
    assert all(message in text for text in results), results


@on_ranks(4, [[(2, False), (4, True)] * 2] * 4)
def test_across_nodes_codec_averages_plain_parameters_within_a_node(world):
    transport = st.Transport(
        algorithm=st.AllReduceAlgorithm.HIERARCHICAL, codec=st.Codec.INT8, where=st.CodecScope.ACROSS_NODES
    )
    job = Job(world, nested_groups(transport=transport))
    begun, begin = [], job.optimizer.run.reducer.begin

    def note_content(kind, step, round_, group, content):
        begun.append((len(group.members), content.since is not None))
        return begin(kind, step, round_, group, content)

    job.optimizer.run.reducer.begin = note_content
    job.train(4)
    return begun


@on_ranks(4)
def test_parameter_codecs_reject_initial_keep_and_schedule_averager(world):
    plan = nested_groups()
    model = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="models that start from different weights differ by more than that"):
        DistributedOptimizer(inner, model, plan, world=world, initial="keep")
    with pytest.raises(InputError, match=r"int8.* needs DistributedOptimizer"):
        ScheduleAverager(plan, world=world)
