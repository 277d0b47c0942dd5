"""Checkpoints of a run after a failure: the survivors save, and all workers of the next run continue from there."""

import os
import time
import warnings

import numpy as np
import pytest
import torch

from helpers.elastic_runs import (
    ALL,
    AWAITED,
    INSTANTS,
    LEFT,
    RATE,
    START,
    ask_when_awaited,
    gradient,
    launch_workers,
    replay_means,
    replayed_gradients,
    report,
    run_to_the_end,
)
from partreduce import Cluster, DistributedOptimizer, Schedule, load_checkpoint, save_checkpoint
from partreduce.errors import InputError
from partreduce.runtime.elastic.member import Member
from partreduce.runtime.environment import RESTARTED
from partreduce.runtime.state.checkpoint_directory import read_manifest
from partreduce.strategies import (
    AllReduce,
    DelayedAveraging,
    DelayedMerge,
    FailurePlan,
    OuterStep,
    Payload,
    Pipeline,
    SurvivorRule,
)

pytestmark = pytest.mark.processes
FAILURE = {1: ("before the sum", 1)}


@pytest.mark.parametrize(
    ("steps_per_round", "until"), [(1, 2), (3, 6), (4, 10)], ids=["steps", "rounds", "inside a round"]
)
def test_next_run_gives_the_failed_worker_the_state_of_worker_0(tmp_path, steps_per_round, until):
    job, steps = {"strategy": AllReduce(steps_per_round=steps_per_round), "folder": tmp_path}, 4 * steps_per_round
    saved = run_to_the_end(FAILURE, steps=until, saves=True, **job)
    assert sorted(saved.own) == list(LEFT), saved.text
    (folder,) = tmp_path.glob("round-*")
    assert [entry is not None for entry in read_manifest(folder)["workers"]] == [True, False, True]
    loaded = run_to_the_end({}, steps=steps, **job)
    assert loaded.begun == {until}, loaded.text
    options = {"steps_per_round": steps_per_round, "gradients": False}
    start = replay_means(lambda round_: [LEFT if round_ else ALL], LEFT, steps=until, **options)
    expected = replay_means(lambda _: [ALL], ALL, steps=steps, begun=until, models={**start, 1: start[0]}, **options)
    assert loaded.own == {rank: pytest.approx(own, rel=1e-12) for rank, own in expected.items()}, loaded.text


@pytest.mark.parametrize("max_failures", [0, 1])
@pytest.mark.parametrize("width", [2, 3])
def test_late_gradients_are_saved_and_applied_by_all_workers_of_the_next_run(tmp_path, width, max_failures):
    job = {"strategy": AllReduce(sync=Pipeline(width=width)), "folder": tmp_path}
    late = {"lag": width - 1, "joined": [(1, 5)]}
    members = lambda turn: LEFT if 2 <= turn < 5 else ALL  # noqa: E731
    saved = run_to_the_end(FAILURE, steps=5, saves=True, **job)
    assert saved.own == dict.fromkeys(LEFT, replayed_gradients(members, steps=5, **late)[0]), saved.text
    loaded = run_to_the_end({}, steps=9, max_failures=max_failures, **job)
    assert loaded.begun == {5}, loaded.text
    assert loaded.own == dict.fromkeys(ALL, replayed_gradients(members, steps=9, **late)[0]), loaded.text


def test_vote_called_while_workers_enter_a_checkpoint_delays_no_worker(tmp_path):
    """Worker 0 finds all there before the vote, worker 2 after it; had only one of them voted, both would wait 60 s."""

    def work():
        rank, has_restarted = int(os.environ["RANK"]), RESTARTED in os.environ
        if has_restarted:
            ask_when_awaited()
        elif rank == 1:
            INSTANTS["before the sum"](2)
        gathered = Member.gathered

        def gathered_in_order(member, place):
            while rank == 2 and not member.is_open:
                time.sleep(0.01)
            members = gathered(member, place)
            if rank == 0:
                member.notes.write(AWAITED, "1")  # the replacement of worker 1 asks to join, and a vote opens
            return members

        Member.gathered = gathered_in_order
        model = torch.nn.Linear(2, 1)
        schedule = Schedule("saved", Cluster.regular(1, 3), AllReduce())
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), RATE), model, schedule, timeout=60.0)
        for step in optimizer.batches(range(6)):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            if step == 4:
                start = time.monotonic()
                save_checkpoint(optimizer, tmp_path)
                report(seconds=time.monotonic() - start)
        optimizer.finish()

    code, reports, text = launch_workers(work, max_failures=1, max_restarts=1)
    assert code == 0, text
    assert reports.keys() >= {*LEFT}, text
    assert max(one["seconds"] for one in reports.values()) < 50, text


MERGED = DelayedMerge(steps=3, alpha=0.5)
OUTER = OuterStep(lr=0.75, momentum=0.5, nesterov=True)
DELAYED = {
    "between rounds": (AllReduce(steps_per_round=3, sync=DelayedAveraging()), 6, 12, {"overlaps": True}),
    "inside one": (AllReduce(steps_per_round=3, sync=DelayedAveraging()), 7, 12, {"overlaps": True}),
    "to be merged": (
        AllReduce(steps_per_round=4, sync=MERGED, payload=Payload(outer=OUTER)),
        6,
        14,
        {"outer": OUTER, "late": 3, "alpha": 0.5},
    ),
}


@pytest.mark.parametrize("max_failures", [0, 1])
@pytest.mark.parametrize("kind", DELAYED)
def test_a_delayed_mean_is_saved_in_flight_and_applied_by_the_next_run(tmp_path, kind, max_failures):
    strategy, until, steps, replay = DELAYED[kind]
    run_to_the_end({}, steps=until, strategy=strategy, folder=tmp_path, saves=True)
    loaded = run_to_the_end({}, steps=steps, strategy=strategy, folder=tmp_path, max_failures=max_failures)
    assert loaded.begun == {until}, loaded.text
    options = {"steps_per_round": strategy.steps_per_round, "steps": steps} | replay
    expected = replay_means(lambda _: [ALL], ALL, **options)
    assert loaded.own == {rank: pytest.approx(own, rel=1e-12) for rank, own in expected.items()}, loaded.text


def test_survivors_cannot_load_a_checkpoint_from_before_the_failure(tmp_path):
    """They would repeat the rounds up to the failure without averaging."""

    def work():
        rank = int(os.environ["RANK"])
        if rank == 1:
            INSTANTS["before the sum"](3)
        model = torch.nn.Linear(2, 1)
        schedule = Schedule("back", Cluster.regular(1, 3), AllReduce(steps_per_round=2))
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
        report()

    code, reports, text = launch_workers(work, max_failures=1)
    assert (code, len(reports)) == (0, 2), text


# A run that restarts without a node by its failure plan, and later with it, from the checkpoint.


STEPS_PER_ROUND, STEPS, MOMENTUM = 2, 4, 0.5
SCHEDULE = Schedule(
    "all",
    Cluster.regular(3, 1),
    AllReduce(steps_per_round=STEPS_PER_ROUND),
    failure_plan=FailurePlan(SurvivorRule.ALL_REDUCE, 1),
)


def run_nodes(folder, size, *, restarts="3"):
    """Return (exit code, the report of each of `size` workers, the output) of a run with one worker per node."""

    def work():
        os.environ["TORCHELASTIC_MAX_RESTARTS"] = restarts  # as torchrun's agent sets it
        rank = int(os.environ["RANK"])
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
        plain = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
        with warnings.catch_warnings(record=True, action="always") as warned:
            optimizer = DistributedOptimizer(plain, model, SCHEDULE, timeout=60.0)
        resumed = load_checkpoint(optimizer, folder)
        begun = optimizer.steps
        for step in range(begun, begun + STEPS):
            optimizer.zero_grad()
            (model.weight * torch.tensor(gradient(rank, step), dtype=torch.float64)).sum().backward()
            optimizer.step()
        save_checkpoint(optimizer, folder)
        own, messages = model.weight.tolist(), " ".join(str(one.message) for one in warned)
        optimizer.finish()
        report(begun=begun, of=resumed and resumed.num_workers, own=own, warned=messages)

    code, reports, text = launch_workers(work, num_workers=size, num_nodes=size)
    return code, [one for _, one in sorted(reports.items())], text


def replayed_restarts(sizes):
    """The model of all workers after consecutive runs of these sizes."""
    models, momenta = [np.array(START)] * sizes[0], [np.zeros(3)] * sizes[0]
    for begun, size in zip(range(0, len(sizes) * STEPS, STEPS), sizes, strict=True):
        back = size - len(models)  # a returning worker takes the state of worker 0
        models, momenta = ([*state[:size], *[state[0]] * back] for state in (models, momenta))
        for step in range(begun, begun + STEPS):
            momenta = [MOMENTUM * own + gradient(rank, step) for rank, own in enumerate(momenta)]
            models = [model - RATE * own for model, own in zip(models, momenta, strict=True)]
            if (step + 1) % STEPS_PER_ROUND == 0:
                models = [np.mean(models, axis=0)] * size
    return models[0]


def test_two_nodes_resume_the_checkpoint_of_three_and_the_third_rejoins(tmp_path):
    for runs, size in enumerate(sizes := (3, 2, 3)):
        code, reports, text = run_nodes(tmp_path, size)
        assert code == 0, text
        assert ["torchrun has started 2 of its 3 nodes" in one["warned"] for one in reports] == [
            size == 2,
            *[False] * (size - 1),
        ]
        assert [one["begun"] for one in reports] == [runs * STEPS] * size
        assert [one["of"] for one in reports] == [sizes[runs - 1] if runs else None] * size
        for one in reports:
            assert one["own"] == pytest.approx(replayed_restarts(sizes[: runs + 1]).tolist(), rel=1e-9, abs=1e-9)


def test_missing_node_without_restarts_is_an_error(tmp_path):
    code, reports, text = run_nodes(tmp_path, 2, restarts="0")
    assert code != 0
    assert reports == []
    assert "is for 3 workers and this run has 2" in text
