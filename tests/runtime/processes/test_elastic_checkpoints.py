"""Checkpoints of a run that has lost a worker: those that are left save, and all of the next run go on from there."""

import io
import json
import os
import sys
import warnings

import pytest
import torch

from helpers.elastic_runs import (
    INSTANTS,
    RATE,
    START,
    gradient,
    replayed,
    replayed_in_turns,
    replayed_late,
    replayed_overlapped,
)
from partreduce.runtime.checkpoint import load_checkpoint, save_checkpoint
from partreduce.runtime.launcher.launch import launch
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.state.checkpoint_directory import read_manifest
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedAveraging, DelayedMerge, OuterStep, Payload, Pipeline

pytestmark = pytest.mark.processes

ALL, THREE = (0, 1, 2, 3), (0, 1, 3)


def run(folder, *, dies, until, strategy, max_failures=1, saves=False):
    """(what each worker held at the end, by rank; from which step it went on; all that was written)."""

    def work():
        warnings.simplefilter("ignore")
        rank = int(os.environ["RANK"])
        if dies and rank == 2:
            INSTANTS["before the sum"](1)
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
        schedule = Schedule("saved", Cluster.regular(1, 4), strategy)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), RATE), model, schedule, timeout=60.0)
        load_checkpoint(optimizer, folder)
        begun = optimizer.steps
        for step in range(begun, until):
            optimizer.zero_grad()
            (model.weight * torch.tensor(gradient(rank, step), dtype=torch.float64)).sum().backward()
            optimizer.step()
        if dies or saves:
            save_checkpoint(optimizer, folder)
        said = {"rank": rank, "begun": begun, "own": model.weight.tolist()}
        optimizer.finish()
        sys.stdout.write(f"REPORT {json.dumps(said)}\n")

    output = io.StringIO()
    code = launch(work, num_workers=4, threads=1, max_failures=max_failures, output=output)
    text = output.getvalue()
    assert code == 0, text
    said = [json.loads(line.split("REPORT ", 1)[1]) for line in text.splitlines() if "REPORT " in line]
    return {one["rank"]: one["own"] for one in said}, {one["begun"] for one in said}, text


@pytest.mark.parametrize(
    ("steps_per_round", "until"), [(1, 2), (3, 6), (4, 10)], ids=["steps", "rounds", "inside a round"]
)
def test_those_who_are_left_save_and_the_next_run_gives_the_lost_one_the_first_one_s_state(
    tmp_path, steps_per_round, until
):
    saved, _, text = run(tmp_path, dies=True, until=until, strategy=AllReduce(steps_per_round=steps_per_round))
    assert sorted(saved) == list(THREE), text
    (folder,) = tmp_path.glob("round-*")
    assert [entry is not None for entry in read_manifest(folder)["workers"]] == [True, True, False, True]
    loaded, begun, text = run(
        tmp_path, dies=False, until=4 * steps_per_round, strategy=AllReduce(steps_per_round=steps_per_round)
    )
    assert begun == {until}, text
    start = replayed(lambda round_: [THREE if round_ else ALL], THREE, steps_per_round=steps_per_round, steps=until)
    expected = replayed(
        lambda _: [ALL],
        ALL,
        steps_per_round=steps_per_round,
        steps=4 * steps_per_round,
        begun=until,
        models={**start, 2: start[0]},
    )
    assert sorted(loaded) == list(ALL), text
    for rank, own in loaded.items():
        assert own == pytest.approx(expected[rank], rel=1e-12), text


@pytest.mark.parametrize("max_failures", [0, 1])
@pytest.mark.parametrize("width", [2, 3])
def test_means_that_are_still_late_are_saved_and_applied_by_all_of_the_next_run(tmp_path, width, max_failures):
    strategy = AllReduce(sync=Pipeline(width=width))
    views = [(-1, ALL), (2, THREE), (5, ALL)]
    options = {"joins": [(2, 5)], "lag": width - 1}
    late = lambda views, steps: replayed_late({0: {"views": views}}, steps=steps, **options)[0]  # noqa: E731
    saved, _, text = run(tmp_path, dies=True, until=5, strategy=strategy)
    assert saved == dict.fromkeys(THREE, late(views[:2], 5)), text
    loaded, begun, text = run(tmp_path, dies=False, until=9, strategy=strategy, max_failures=max_failures)
    assert begun == {5}, text
    assert loaded == dict.fromkeys(ALL, late(views, 9)), text


@pytest.mark.parametrize("max_failures", [0, 1])
@pytest.mark.parametrize("until", [6, 7], ids=["between rounds", "inside one"])
def test_a_mean_that_is_a_round_late_is_saved_where_it_has_begun(tmp_path, until, max_failures):
    strategy = AllReduce(steps_per_round=3, sync=DelayedAveraging())
    run(tmp_path, dies=False, until=until, strategy=strategy, saves=True)
    loaded, begun, text = run(tmp_path, dies=False, until=12, strategy=strategy, max_failures=max_failures)
    assert begun == {until}, text
    expected = replayed_overlapped(lambda _: [ALL], ALL, steps_per_round=3, steps=12)
    assert loaded == {rank: pytest.approx(own, rel=1e-12) for rank, own in expected.items()}, text


@pytest.mark.parametrize("max_failures", [0, 1])
def test_what_was_sent_to_be_merged_late_is_saved_and_merged_by_the_next_run(tmp_path, max_failures):
    outer = OuterStep(lr=0.75, momentum=0.5, nesterov=True)
    strategy = AllReduce(steps_per_round=4, sync=DelayedMerge(steps=3, alpha=0.5), payload=Payload(outer=outer))
    run(tmp_path, dies=False, until=6, strategy=strategy, saves=True)
    loaded, begun, text = run(tmp_path, dies=False, until=14, strategy=strategy, max_failures=max_failures)
    assert begun == {6}, text
    expected = replayed_in_turns(
        lambda _: ALL, ALL, steps_per_round=4, steps=14, fragments=1, outer=outer, late=3, alpha=0.5
    )  # fmt: skip
    assert loaded == {rank: pytest.approx(own, rel=1e-12) for rank, own in expected.items()}, text


def test_who_is_left_may_not_go_back_to_a_round_before_the_loss(tmp_path):
    """They would pass the rounds up to the loss without averaging."""

    def work():
        rank = int(os.environ["RANK"])
        if rank == 2:
            INSTANTS["before the sum"](3)
        model = torch.nn.Linear(2, 1)
        schedule = Schedule("back", Cluster.regular(1, 4), AllReduce(steps_per_round=2))
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), RATE), model, schedule, timeout=60.0)
        for step in range(10):
            if step == 4:
                save_checkpoint(optimizer, tmp_path)
            optimizer.step()
        with pytest.raises(InputError, match=r"go back to round 2, .* from round 3 on; end the run"):
            load_checkpoint(optimizer, tmp_path)
        with pytest.raises(InputError, match="go back to round 0, "):
            load_checkpoint(optimizer, tmp_path, allow_different_run=True)
        save_checkpoint(optimizer, tmp_path)
        assert load_checkpoint(optimizer, tmp_path).round == 5
        optimizer.step()
        optimizer.finish()
        sys.stdout.write("REPORT\n")

    output = io.StringIO()
    code = launch(work, num_workers=4, threads=1, max_failures=1, output=output)
    text = output.getvalue()
    assert code == 0, text
    assert text.count("REPORT") == 3, text
