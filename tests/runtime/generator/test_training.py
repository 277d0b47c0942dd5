"""Generated schedules on gloo groups: means are conserved, and workers follow the generator's order."""

import contextlib
import threading
import time
from dataclasses import replace

import pytest
import torch

from helpers.generator_rig import check_orders, serving
from helpers.training import wrap
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce.errors import InputError
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.strategies import DynamicGroups, GroupSplit, SlowWorkerPolicy

pytest.importorskip("zmq")


@pytest.fixture
def serve(monkeypatch):
    with contextlib.ExitStack() as stack:

        def start(schedule):
            notes = []
            setting = replace(GeneratorSetting.of(schedule.strategy, schedule.cluster), max_known=8)
            _, variables = stack.enter_context(serving(setting, on_note=notes.append))
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            return notes

        yield start


def model_of(rank):
    model = torch.nn.Linear(5, 2, dtype=torch.float64)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.fill_(2.0 ** (rank + 3 * number))
    return model


@pytest.mark.parametrize("division", GroupSplit)
@pytest.mark.parametrize("rule", SlowWorkerPolicy)
def test_group_means_conserve_the_mean_and_follow_the_generators_order(ranks, serve, division, rule):
    schedule = Schedule(
        "g", Cluster.regular(2, 2), DynamicGroups(group_size=2, division=division, slow_worker_policy=rule, seed=3)
    )
    notes = serve(schedule)

    def train(world):
        model = model_of(world.rank)
        optimizer = wrap(world, model, schedule, lr=0.0, initial="keep")
        means = []
        for step in range(12):
            model(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
            if world.rank == 1:
                time.sleep(0.01)
            optimizer.step()
            if step == 5:
                with optimizer.mean_model():
                    means.append(model.weight[0, 0].item())
        optimizer.finish()
        return means[0], model.weight[0, 0].item(), model.bias[0].item(), optimizer.runner.client.executed

    results = ranks.run(4, train, limit=200)
    mean = sum(2.0**rank for rank in range(4)) / 4
    for middle, weight, bias, _ in results:
        assert middle == pytest.approx(mean, rel=1e-12)
        assert weight == pytest.approx(mean, rel=1e-12)
        assert bias == pytest.approx(8 * mean, rel=1e-12)
    started = [(seq, members) for kind, seq, members in notes if kind == "started"]
    assert len(started) > 10
    check_orders(started, {rank: result[3] for rank, result in enumerate(results)})


def test_missing_generator_raises_with_advice(ranks, monkeypatch):
    monkeypatch.delenv("PARTREDUCE_GENERATOR", raising=False)
    schedule = Schedule("g", Cluster.regular(1, 2), DynamicGroups(group_size=2))

    def train(world):
        model = model_of(world.rank)
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model, schedule, world=world)

    for error in ranks.run(2, train, catch=InputError):
        assert "partreduce run --schedule" in str(error)


@pytest.mark.parametrize("when", ["before the sum", "after the sum"])
def test_failed_average_leaves_the_failed_member_unchanged(ranks, serve, when):
    """Worker 1's connection is cut before the sum (both lose the average) or after it (only worker 1 does)."""
    schedule = Schedule("g", Cluster.regular(1, 2), DynamicGroups(group_size=2, slow_threshold=None))
    notes = serve(schedule)
    ranks.fresh()
    begun, both_continued = threading.Event(), threading.Barrier(2)

    def train(world):
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = wrap(world, model, schedule, lr=0.0, initial="keep")
        strategy, broken, after = optimizer.runner, [], []
        attempt, complete = optimizer.run.reducer.attempt, optimizer.run.reducer._complete

        def attempt_and_break(kind, step, seq, group, **options):
            if not broken:
                broken.append(seq)
                if world.rank == 0:
                    begun.set()
                assert begun.wait(40)  # if cut earlier, worker 0 would learn of the failure and never begin
                if world.rank == 1 and when == "before the sum":
                    world.communicator(group.members).close()
                if world.rank == 1 and when == "after the sum":
                    optimizer.run.reducer._complete = cut_off
            return attempt(kind, step, seq, group, **options)

        def cut_off(reduction, abort_reason=None):
            optimizer.run.reducer._complete = complete
            complete(reduction, abort_reason)
            reduction.communicator.close()
            reduction.communicator.all_reduce(torch.zeros(1))

        optimizer.run.reducer.attempt = attempt_and_break
        for _ in range(25):
            with torch.no_grad():
                model.weight.fill_(10.0 * world.rank)
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            after += [model.weight.item()] if broken else []
            if len(after) == 1:
                both_continued.wait(40)
            time.sleep(0.01)
        optimizer.finish()
        return broken[0], after, [seq for seq, _ in strategy.client.executed]

    (first, values, executed), (same, own, executed_there) = ranks.run(2, train, limit=200)
    assert first == same
    assert own[0] == 10.0, "worker 1 keeps its own parameters"
    assert first not in executed_there, "worker 1 does not count the group as executed"
    assert values[0] == (5.0 if when == "after the sum" else 0.0)
    assert (first in executed) == (when == "after the sum")
    assert ("void", first, (0, 1)) in [tuple(note) for note in notes], "the failure is reported to the generator"
    assert 5.0 in values[1:], "later averages succeed"
    assert [seq for seq in executed if seq > first] == [seq for seq in executed_there if seq > first] != []
