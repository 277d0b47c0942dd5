"""`optimizer.stats()`: what was counted, and where it is written."""

import csv
import math

import pytest
import torch

from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.recorder import RING_LENGTH, Recorder, write_stats
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import FileError, InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce


def test_all_operations_count_however_few_of_them_the_recorder_keeps():
    recorder = Recorder(0)
    for index in range(RING_LENGTH + 3):
        operation = recorder.begin("average", index, index, (0, 1), 8, lag=index % 2)
        recorder.end(operation, "failed: a peer is gone" if index == 1 else "ok", times=(0.0, 0.5))
    totals = recorder.totals
    assert (totals.operations, totals.num_bytes, totals.failed, totals.lag) == (259, 8 * 259, 1, 0)
    assert totals.seconds == pytest.approx(259 / 2)


def test_workers_count_steps_operations_and_bytes(ranks, tmp_path):
    schedule = Schedule("every 2", Cluster.regular(1, 3), AllReduce(steps_per_round=2))

    def work(world):
        model = torch.nn.Linear(16, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = DistributedOptimizer(optimizer, model, schedule, timeout=60, world=world, trace=tmp_path)
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


def test_writers_get_the_numbers_that_are_known(tmp_path):
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


def test_what_takes_no_numbers_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match="writer is a int; give a SummaryWriter"):
        write_stats({"steps": 0}, 3)
    with pytest.raises(FileError, match="cannot be written"):
        write_stats({"steps": 0}, tmp_path / "nowhere" / "stats.csv")
