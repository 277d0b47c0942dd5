"""Quorums of groups at run time: the mean is kept exactly, and NumPy gets the same models by schedule and log."""

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers.group_quorum_runs import group_quorum_problems, make_group_case, replayed_groups, run_group_case
from partreduce.runtime.checkpoint import load_checkpoint, save_checkpoint
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.strategies.quorum.driver import Begun
from partreduce.runtime.strategies.quorum.rounds import RoundsThread, room_for
from partreduce.runtime.transport.tags import tag_of
from partreduce.runtime.transport.waiting import GoneError
from partreduce.schedulers.protocols.partial_state import Share
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group, Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, Quorum, Static

RUNS = int(os.environ.get("PARTREDUCE_QUORUM_RUNS", "20"))
"""`PARTREDUCE_QUORUM_RUNS=1000 pytest tests/runtime/strategies/test_quorum_groups.py -k mean` runs as many."""


def assert_kept(case, results):
    assert not group_quorum_problems(case, results), case
    assert len({tuple(result["rounds"]) for result in results}) == 1, case
    wanted = replayed_groups(case, results)
    for segment, models in enumerate(wanted):
        for rank, result in enumerate(results):
            np.testing.assert_array_equal(result["own"][segment], models[rank], err_msg=f"{case}")
            if segment < case.meets:
                np.testing.assert_array_equal(result["means"][segment], models.mean(0), err_msg=f"{case}")
    pushed = sum(
        case.push[rank, first : first + count].sum(0)
        for rank, result in enumerate(results) for first, count in result["steps"]
    )  # fmt: skip
    for result in results:
        np.testing.assert_array_equal(result["final"], pushed / 4, err_msg=f"{case}")


@pytest.mark.parametrize("block", range(2))
def test_the_mean_of_models_is_kept_and_rounds_mix_by_the_schedule(ranks, block):
    """Random schedules, paces, settings, delays, pauses, slow workers, and a worker whose data ends."""
    for seed in range(block * RUNS // 2, (block + 1) * RUNS // 2):
        case = make_group_case(seed)
        assert_kept(case, ranks.run(4, lambda world, case=case: run_group_case(case, world)))


@pytest.mark.parametrize("seed", range(4))
def test_groups_that_go_a_part_of_the_way_keep_the_mean_as_well(ranks, seed):
    parts = ((Fraction(1, 4), ((0, 1), (2, 3))), (1, ((0, 2), (1, 3))), (Fraction(1, 2), (tuple(range(4)),)))
    phases = [Phase.from_groups(4, [Group(members, part) for members in groups]) for part, groups in parts]
    case = make_group_case(seed)
    strategy = replace(case.schedule.strategy, phases=GroupPhases(tuple(phases)))
    case = replace(case, schedule=replace(case.schedule, strategy=strategy))
    assert_kept(case, ranks.run(4, lambda world: run_group_case(case, world)))


PHASES = GroupPhases(tuple(Phase.from_groups(4, groups) for groups in ([[0, 1], [2, 3]], [range(4)])))


def wrapped(world, *, dtype=torch.float64, factory=torch.optim.SGD, pace=1, **options):
    model = torch.nn.Linear(2, 1, bias=False, dtype=dtype)
    torch.nn.init.zeros_(model.weight)
    made = {name: options.pop(name) for name in ("optimizer_state",) if name in options}
    when = Quorum(**({"quorum": "solo"} | options))
    schedule = Schedule("groups", Cluster.regular(2, 2), Static(phases=PHASES, when=when, pace=pace))
    optimizer = DistributedOptimizer(
        factory(model.parameters(), lr=1.0), model, schedule, world=world, timeout=60, **made
    )
    return model, optimizer


def push(model, optimizer, value):
    model.weight.grad = torch.full_like(model.weight, -value)
    optimizer.step()


def test_a_training_that_stops_lets_the_others_as_far_as_its_queue_and_no_further(ranks):
    """So a worker that is silent costs nobody anything before it is as late as anybody may be."""
    stopped, released, far = threading.Event(), threading.Event(), [0] * 4

    def work(world):
        model, optimizer = wrapped(world, staleness=3)
        for number in range(12):
            if world.rank == 1 and number == 2:
                stopped.set()
                assert released.wait(60)
            push(model, optimizer, 1.0)
            far[world.rank] = optimizer.round
            if world.rank == 0 and number == 1:
                assert stopped.wait(60)
        optimizer.finish()
        return model.weight.detach().flatten().tolist()

    def watch():
        assert stopped.wait(60)
        seen = None
        while seen != (seen := list(far)) or max(seen) < seen[1] + 3:
            time.sleep(0.3)
        released.set()
        return seen

    with ThreadPoolExecutor(1) as pool:
        watched = pool.submit(watch)
        results = ranks.run(4, work)
    assert max(watched.result()) - watched.result()[1] == 3
    assert results == [[12.0, 12.0]] * 4


@pytest.mark.parametrize("grace", [20_000_000, 20_000], ids=["long", "short"])
def test_a_round_that_may_begin_waits_for_a_members_own_progress_as_long_as_its_grace(ranks, grace):
    """Worker 0 begins a second round; the others come a little later, or not before it has gone on."""
    gone_on = threading.Event()

    def work(world):
        model, optimizer = wrapped(world, grace=grace, staleness=4)
        optimizer.runner.log.is_on = True
        push(model, optimizer, 4.0)
        if world.rank:
            assert gone_on.wait(0.3 if grace > 1e6 else 60) == (grace < 1e6)
        push(model, optimizer, 4.0)
        if not world.rank:
            gone_on.set()
        optimizer.finish()
        return [event.numbers for event in optimizer.runner.log.events if event.kind == "finished"]

    found = ranks.run(4, work)
    assert grace < 1e6 or found == [[(1, 1), (1, 1, 1, 1)]] * 4


def test_a_checkpoint_loses_no_progress(ranks, tmp_path):
    def work(world, *, resumes):
        model, optimizer = wrapped(world, staleness=2, pace=2)
        if resumes:
            assert load_checkpoint(optimizer, tmp_path).round == optimizer.round > 0
        for _ in range(6):
            time.sleep(0.004 * world.rank)
            push(model, optimizer, float(4**world.rank))
        if not resumes:
            save_checkpoint(optimizer, tmp_path)
        optimizer.finish()
        return model.weight.detach().flatten().tolist()

    one = 6 * (1 + 4 + 16 + 64) / 4
    assert ranks.run(4, lambda world: work(world, resumes=False)) == [[one, one]] * 4
    assert ranks.run(4, lambda world: work(world, resumes=True)) == [[2 * one, 2 * one]] * 4


@pytest.mark.parametrize("by", ["checkpoint", "state dicts"])
def test_what_was_done_since_a_state_was_kept_is_gone_when_it_is_loaded_again(ranks, tmp_path, by):
    """Progress that rounds have not seen, corrections that the training has not, and results on their way."""

    def work(world):
        model, optimizer = wrapped(world, staleness=2, pace=2)

        def push_all(factor, count):
            for _ in range(count):
                time.sleep(0.003 * world.rank)
                push(model, optimizer, factor * 4**world.rank)

        push_all(1.0, 4)
        if by == "checkpoint":
            save_checkpoint(optimizer, tmp_path)
            kept = model.weight.detach().clone()
        else:
            with optimizer.mean_model():
                kept, own = model.weight.detach().clone(), optimizer.state_dict()
        push_all(1024.0, 3)  # one step of a round that does not end
        if by == "checkpoint":
            load_checkpoint(optimizer, tmp_path)
        else:
            model.load_state_dict({"weight": kept})
            optimizer.load_state_dict(own)
        assert torch.equal(model.weight, kept)
        push_all(1.0, 4)
        assert not torch.equal(model.weight, kept + 4 * 4**world.rank), "rounds average as before"
        optimizer.finish()
        return model.weight.detach().flatten().tolist()

    one = 8 * (1 + 4 + 16 + 64) / 4
    assert ranks.run(4, work) == [[one, one]] * 4


def test_sixteen_bits_have_an_array_of_their_own_for_what_members_tell(ranks):
    def work(world):
        model, optimizer = wrapped(world, dtype=torch.bfloat16)
        for _ in range(3):
            push(model, optimizer, 4.0)
        optimizer.finish()
        shadows = optimizer.runner.shadows
        assert shadows.room(shadows.depart()).dtype is torch.float32, "in which counts and tags are exact"
        return model.weight.detach().flatten().tolist()

    assert ranks.run(4, work) == [[12.0, 12.0]] * 4


@pytest.mark.parametrize("seed", range(20))
def test_members_read_what_each_of_them_has_told_and_notice_who_is_elsewhere(seed):
    """Any counts, in the places of any group; what is read is the sum of what was written."""
    draw = random.Random(seed)
    size = draw.randrange(2, 7)
    shares = [Share(40, tuple(range(draw.choice([0, 1, 2, 500])))) for _ in range(size)]
    specials = [draw.random() < 0.2 for _ in range(size)]
    length = room_for(draw.randrange(size, 9))  # that of the largest group
    rooms = [torch.full((length,), 7.0) for _ in range(size)]
    bringing = SimpleNamespace(room=lambda place: rooms[place], is_special=lambda place: specials[place])
    thread = RoundsThread(SimpleNamespace(close=None), bringing, None, None, None)
    here, there = tag_of("run", 3, 40), tag_of("run", 3, 41)

    def told(tags):
        for place, (share, tag) in enumerate(zip(shares, tags, strict=True)):
            thread._write(Begun(3, 40, share, place), tag, SimpleNamespace(size=size, place=place))
        total = torch.stack(rooms).sum(0)
        for room in rooms:
            room.copy_(total)

    told([here] * size)
    for place in range(size):
        assert thread._read(Begun(3, 40, shares[place], place), here, size) == (shares, any(specials))
    told([*[here] * (size - 1), there])
    with pytest.raises(GoneError, match="different rounds"):
        thread._read(Begun(3, 40, shares[0], 0), here, size)


def test_what_does_not_go_with_it_is_refused_in_one_line(ranks):
    errors = ranks.run(4, lambda world: wrapped(world, optimizer_state="average"), catch=InputError)
    line = "optimizer_state='average': a quorum averages models alone; use 'local'"
    assert all(str(error).startswith(line) for error in errors), errors
