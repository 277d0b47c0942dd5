"""A pipeline of gradients goes on after a loss: sums in flight are begun anew, and no step is lost."""

import io
import json
import os
import random
import sys

import pytest
import torch

from helpers.elastic_runs import INSTANTS, joins_in, own, replayed_late, run
from partreduce.runtime.launcher.launch import launch
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Codec, Pipeline, Transport
from partreduce.topo.strategies.axes import DrainPolicy, GradientReduction

pytestmark = pytest.mark.processes

ALL, THREE = (0, 1, 2, 3), (0, 1, 3)


def pipeline(
    deaths,
    *,
    width=2,
    steps=9,
    warm_up=0,
    total=GradientReduction.MEAN,
    drain=DrainPolicy.APPLY,
    transport=None,
    **options,
):
    sync = Pipeline(width=width, warm_up=warm_up, total=total, drain=drain)
    return run(deaths, strategy=AllReduce(sync=sync, transport=transport or Transport()), steps=steps, **options)


def check(said, text, survivors, **options):
    """All hold, bit for bit, what a replay of their views does; (the views, what they hold at the end)."""
    expected, end = replayed_late(said, joins=joins_in(text), **options)
    assert own(said) == dict.fromkeys(survivors, expected), text
    assert all(one["steps"] == options["steps"] for one in said.values()), text
    assert all(one["end"] == pytest.approx(end, rel=1e-14) for one in said.values()), text
    return [(after, tuple(members)) for after, members in said[survivors[0]]["views"]]


@pytest.mark.parametrize(
    ("instant", "number"),
    [
        ("before the sum", 4),  # when what is due in step 4 is applied
        ("in flight", 5),
        ("in the sum", 4),  # due
        ("prepared", 5),
    ],
)
@pytest.mark.parametrize("width", [2, 3])
def test_whoever_dies_before_all_have_a_mean_that_is_due_is_in_no_mean_from_then_on(instant, number, width):
    at = number - (width - 2) if instant == "in the sum" else number
    code, said, text = pipeline({2: (instant, at)}, width=width)
    assert code == 0, text
    ((resumes, members),) = check(said, text, THREE, lag=width - 1, steps=9)[1:]
    assert members == THREE
    assert resumes in (4, 5), text
    assert f"without worker 2 the other 3 continue together from round {resumes}; their models are equal" in text


@pytest.mark.parametrize("width", [2, 4])
def test_who_dies_after_the_confirm_is_in_that_mean_for_all_or_for_none(width):
    code, said, text = pipeline({2: ("applying", 6 - width)}, width=width)
    assert code == 0, text
    ((resumes, _),) = check(said, text, THREE, lag=width - 1, steps=9)[1:]
    assert resumes in (5, 6), text


@pytest.mark.parametrize("width", [2, 4])
def test_a_mean_that_others_have_applied_a_worker_applies_too_whose_confirm_broke(width):
    """Worker 2 dies when it has applied the mean of turn 5, and worker 1 takes its confirm for broken."""
    code, said, text = pipeline({2: ("before the sum", 5), 1: ("confirm breaks", 5)}, width=width)
    assert code == 0, text
    assert check(said, text, THREE, lag=width - 1, steps=9)[1:] in ([(5, THREE)], [(6, THREE)]), text


@pytest.mark.parametrize("second", ["voting", "rebuilding"])
def test_a_second_death_during_the_recovery_from_the_first(second):
    code, said, text = pipeline({2: ("in flight", 5), 0: (second, 0)}, width=3)
    assert code == 0, text
    check(said, text, (1, 3), lag=2, steps=9)


@pytest.mark.parametrize("instant", ["before the sum", "in flight"])
def test_a_death_before_anything_has_come_back(instant):
    code, said, text = pipeline({2: (instant, 1)}, width=4)
    assert code == 0, text
    assert check(said, text, THREE, lag=3, steps=9)[1][1] == THREE


@pytest.mark.parametrize("turn", [3, 4])
def test_a_death_around_the_end_of_the_warm_up(turn):
    code, said, text = pipeline({2: ("in flight", turn)}, width=3, warm_up=3)
    assert code == 0, text
    assert check(said, text, THREE, lag=2, steps=9, warm_up=3)[1:] == [(turn, THREE)]


@pytest.mark.parametrize("drain", list(DrainPolicy))
@pytest.mark.parametrize("number", [7, 8])
def test_a_death_while_what_is_still_late_is_applied_at_the_end(number, drain):
    code, said, text = pipeline({2: ("at the end", number)}, width=3, drain=drain)
    assert code == 0, text
    expected, _ = replayed_late({0: {"views": said[0]["views"][:1]}}, lag=2, steps=9)
    assert own(said) == dict.fromkeys(THREE, expected), text
    assert len({tuple(one["end"]) for one in said.values()}) == 1, text
    assert all(
        (one["end"] == pytest.approx(expected, rel=1e-14)) == (drain is DrainPolicy.DROP) for one in said.values()
    )
    if number == 7 and drain is DrainPolicy.APPLY:
        assert said[0]["end"] == pytest.approx(replayed_late(said, lag=2, steps=9)[1], rel=1e-14), text


def test_a_sum_in_place_of_a_mean_is_of_those_who_are_left():
    code, said, text = pipeline({2: ("in flight", 5)}, total=GradientReduction.SUM)
    assert code == 0, text
    check(said, text, THREE, lag=1, steps=9, total=True)


@pytest.mark.parametrize("codec", [Codec.BFLOAT16, Codec.INT8])
def test_a_coded_sum_is_rounded_again_where_it_is_begun_anew(codec):
    """In bfloat16 all that is sent here is exact, in int8 nearly."""
    transport = Transport(codec=codec, **({"block": 8} if codec is Codec.INT8 else {}))
    code, said, text = pipeline({2: ("in flight", 5)}, width=3, transport=transport, size=512, dtype=torch.float32)
    assert code == 0, text
    expected, _ = replayed_late(said, lag=2, steps=9, size=512)
    close = expected if codec is Codec.BFLOAT16 else pytest.approx(expected, abs=0.2)
    assert own(said) == dict.fromkeys(THREE, close), text
    assert len({tuple(model) for model in own(said).values()}) == 1


def test_a_death_in_mean_model_takes_the_mean_of_those_who_are_left_and_what_is_in_flight_stays():
    code, said, text = pipeline({2: ("in mean_model()", 0)}, width=3, evaluate=(4,))
    assert code == 0, text
    check(said, text, THREE, lag=2, steps=9)
    assert len({tuple(one["means"][0]) for one in said.values()}) == 1


def test_one_goes_on_alone_with_the_gradients_that_it_kept_and_who_joins_it_gives_its_own_from_then_on():
    code, said, text = pipeline(
        {1: ("in flight", 3)}, width=3, workers=2, max_failures=1, steps=20, restarts=1, back=(1,), waits_at=9
    )
    assert code == 0, text
    check(said, text, (0, 1), lag=2, steps=20)
    assert [members for _, members in said[0]["views"]] == [[0, 1], [0], [0, 1]], text


@pytest.mark.parametrize("width", [2, 3])
def test_who_joins_takes_part_in_means_of_steps_that_it_did_not_take_and_adds_nothing_to_them(width):
    code, said, text = pipeline({2: ("before the sum", 4)}, width=width, steps=20, restarts=1, back=(2,))
    assert code == 0, text
    views = check(said, text, ALL, lag=width - 1, steps=20)
    assert [members for _, members in views] == [ALL, THREE, ALL], text
    assert joins_in(text) == [(2, views[-1][0])], text
    assert views[-1][0] >= 8, text


def test_without_a_loss_such_a_run_does_what_any_pipeline_does():
    code, said, text = pipeline({}, width=3, evaluate=(3,))
    assert code == 0, text
    check(said, text, ALL, lag=2, steps=9)


ON_THE_WAY = {"before the sum": 0, "in flight": 1, "in the sum": 0, "prepared": 1}


@pytest.mark.parametrize("seed", range(6))
def test_after_deaths_at_drawn_instants_also_in_recoveries_all_hold_what_a_replay_of_their_views_does(seed):
    draws = random.Random(seed)
    first, second = draws.sample(ALL, 2)
    instant = draws.choice(list(ON_THE_WAY))
    deaths = {first: (instant, draws.randrange(1, 6))}
    if draws.random() < 0.6:
        instant = draws.choice([*ON_THE_WAY, "voting", "rebuilding", "giving its state"])
        deaths[second] = instant, draws.randrange(2, 9)
    joiner = draws.choice([*ON_THE_WAY, "voting", "rebuilding", "asking", "taking a state"]), draws.randrange(9, 20)
    again = {1: [joiner]} if draws.random() < 0.5 else {}
    width, warm_up = draws.choice([2, 3, 4]), draws.choice([0, 3])
    code, said, text = pipeline(deaths, width=width, warm_up=warm_up, steps=30, restarts=2, again=again)
    assert code == 0, text
    check(said, text, sorted(said), lag=width - 1, warm_up=warm_up, steps=30)


def with_a_buffer(dies_in):
    """What the parameter and the buffer of each worker are when all but worker 2 have taken 8 steps, by rank.

    In each step a script that steps at half its learning rate from step 4 on clips its means and adds to its buffer.
    """

    def work():
        rank = int(os.environ["RANK"])
        if rank == 2:
            INSTANTS["in flight"](dies_in)
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        model.register_buffer("seen", torch.zeros(2, dtype=torch.float64))
        schedule = Schedule("late", Cluster.regular(1, 4), AllReduce(sync=Pipeline()))
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), model, schedule, timeout=60.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        for _ in range(8):
            model.seen += rank + 1
            optimizer.zero_grad()
            (model.weight * (rank + 1)).sum().backward()
            optimizer.average_gradients()
            model.weight.grad.clamp_(max=2.0)
            optimizer.step()
            scheduler.step()
        said = {"rank": rank, "weight": model.weight.tolist(), "seen": model.seen.tolist()}
        optimizer.finish()
        sys.stdout.write(f"REPORT {json.dumps(said)}\n")

    output = io.StringIO()
    code = launch(work, num_workers=4, threads=1, max_failures=1, output=output)
    text = output.getvalue()
    assert code == 0, text
    said = [json.loads(line.split("REPORT ", 1)[1]) for line in text.splitlines() if "REPORT " in line]
    return {one["rank"]: (one["weight"], one["seen"]) for one in said}


@pytest.mark.parametrize("dies_in", [1, 5])
def test_buffers_that_ride_along_are_averaged_as_they_are_where_a_sum_is_begun_anew(dies_in):
    found = with_a_buffer(dies_in)
    weight, seen, left = 0.0, dict.fromkeys(ALL, 0.0), {}
    for turn in range(8):
        members = ALL if turn < dies_in else THREE
        seen = {rank: value + rank + 1 for rank, value in seen.items()}
        if turn:
            weight -= min(2.0, sum(rank + 1 for rank in members) / len(members)) * 0.5 ** (turn // 4)
            sent = seen if turn == dies_in else left
            mean = sum(sent[rank] for rank in members) / len(members)
            seen = {rank: mean + seen[rank] - sent[rank] for rank in members}
        left = seen
    assert found == {rank: ([pytest.approx(weight)] * 2, [pytest.approx(seen[rank])] * 2) for rank in THREE}
