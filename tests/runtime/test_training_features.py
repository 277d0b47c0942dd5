"""Features of training scripts: rounds of several steps, autocast, a slow final mean, statistics."""

import csv
import math
import time
from fractions import Fraction

import pytest
import torch

from helpers.training import build_seeded, static_groups, wrap
from partreduce import Cluster, Schedule
from partreduce import strategies as st
from partreduce.errors import FileError
from partreduce.runtime.recorder import RING_LENGTH, Recorder, write_stats
from partreduce.runtime.transport.waiting import LOOK_SECONDS

N = 3


def strategies(**options):
    edges = [(i, (i + d) % N, Fraction(1, 3)) for i in range(N) for d in (1, 2)]
    return {
        "static": static_groups(N, [range(N)], **options),
        "allreduce": st.AllReduce(**options),
        "neighbor": st.NeighborAveraging(rounds=(st.Round.from_edges(N, edges),), **options),
        "synchronous server": st.Server(hosts=(0, 2), **options),
        "asynchronous server": st.Server(hosts=(1,), synchronous=False, **options),
        "pairwise": st.Pairwise(active=(0, 1), **options),
    }


def network():
    return build_seeded(lambda: torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)))


def batches(rank, count, size=8):
    generator = torch.Generator().manual_seed(50 + rank)
    return [torch.randn(size, 4, generator=generator) for _ in range(count)]


def loss_of(model, x):
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


@pytest.mark.parametrize("name", strategies())
@pytest.mark.parametrize("steps_per_round", [3, (1, 2, 3)])
def test_every_strategy_follows_steps_per_round(ranks, name, steps_per_round):
    """With steps_per_round H a worker sends once in H steps, after the last one."""

    def work(world):
        strategy = strategies(steps_per_round=steps_per_round)[name]
        schedule = Schedule("features", Cluster.regular(1, N), strategy)
        model = network()
        optimizer = wrap(world, model, schedule, lr=0.01)
        mine = schedule.steps_per_round_of(world.rank)
        for x in batches(world.rank, 2 * mine):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
        moments = [
            (op.step, op.round)
            for op in optimizer.run.reducer.recorder._ring
            if op.kind in ("average", "push", "pair average")
        ]
        optimizer.finish()
        return moments, [(mine - 1, 0), (2 * mine - 1, 1)]

    for rank, (moments, wanted) in enumerate(ranks.run(N, work)):
        if name == "pairwise" and rank == 2:
            assert moments == [], "a passive worker starts nothing"
        else:
            assert moments == wanted


@pytest.mark.parametrize("name", ["static", "allreduce", "neighbor", "synchronous server"])
def test_autocast_and_tied_weights_stay_equal_on_all_workers(ranks, name):
    def work(world):
        model = network()
        model.append(torch.nn.Linear(4, 6))
        model[3].weight = model[0].weight
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = wrap(world, model, strategies()[name], inner)
        for x in batches(world.rank, 4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (model[:3](x) - model[3](x).mean(1, keepdim=True)).float().square().mean()
            loss.backward()
            optimizer.step()
        assert model[3].weight is model[0].weight
        optimizer.finish()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    weights = ranks.run(N, work)
    assert all(torch.equal(one, weights[0]) for one in weights)


def test_slow_final_mean_is_awaited(ranks):
    """The others have noted by then that they finished, which must not be taken for a failure."""

    def work(world):
        model = network()
        optimizer = wrap(world, model, strategies()["static"], lr=0.05)
        begin = optimizer.run.reducer.begin

        def late(kind, *rest, **options):
            if kind == "mean model" and world.rank == 1:
                time.sleep(1.5 * LOOK_SECONDS)
            return begin(kind, *rest, **options)

        optimizer.run.reducer.begin = late
        for x in batches(world.rank, 2):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
        optimizer.finish()
        return next(model.parameters()).detach()

    first, *others = ranks.run(N, work)
    assert all(torch.equal(first, other) for other in others)


# `optimizer.stats()`: its counts and writers.


def test_stats_count_operations_that_the_recorder_dropped():
    recorder = Recorder(0)
    for index in range(RING_LENGTH + 3):
        operation = recorder.begin("average", index, index, (0, 1), 8, lag=index % 2)
        recorder.end(operation, "failed: a peer is gone" if index == 1 else "ok", times=(0.0, 0.5))
    stats = recorder.stats
    assert (stats["operations"], stats["bytes"], stats["failed"], stats["age"]) == (259, 8 * 259, 1, 0)
    assert stats["operation_seconds"] == pytest.approx(259 / 2)


def test_workers_count_steps_operations_and_bytes(ranks, tmp_path):
    def work(world):
        model = torch.nn.Linear(16, 1, bias=False)
        optimizer = wrap(world, model, st.AllReduce(steps_per_round=2), trace=tmp_path)
        before = optimizer.stats()
        for _ in range(3):
            model(torch.ones(1, 16) * (1 + world.rank)).sum().backward()
            optimizer.step()
        counted = optimizer.stats()
        with optimizer.mean_model():
            pass
        return before, counted, optimizer.stats()

    for before, counted, after in ranks.run(3, work):
        assert (counted["steps"], counted["round"], counted["skipped"]) == (3, 1, 0)
        assert counted["operations"] - before["operations"] == 1
        assert counted["bytes"] - before["bytes"] == 4 * 16
        assert counted["operation_seconds"] > before["operation_seconds"]
        assert math.isnan(counted["distance"])
        assert after["distance"] > 0


def test_stats_writers_receive_the_known_values(tmp_path):
    stats, given, scalars = {"steps": 7, "bytes": 16.0, "distance": math.nan}, [], []

    class SummaryWriter:
        def add_scalar(self, tag, scalar_value, global_step):
            scalars.append((tag, scalar_value, global_step))

    for writer in (given.append, SummaryWriter(), tmp_path / "stats.csv", str(tmp_path / "stats.csv")):
        write_stats(stats, writer)
    assert given == [stats]
    assert scalars == [("partreduce/steps", 7, 7), ("partreduce/bytes", 16.0, 7)]
    with (tmp_path / "stats.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [{"steps": "7", "bytes": "16.0", "distance": "nan"}] * 2


def test_unwritable_stats_file_is_named(tmp_path):
    with pytest.raises(FileError, match="cannot be written"):
        write_stats({"steps": 0}, tmp_path / "nowhere" / "stats.csv")
