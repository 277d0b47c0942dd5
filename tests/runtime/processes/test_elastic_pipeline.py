"""A pipeline of gradients goes on after a loss: sums in flight are begun anew, and no step is lost."""

import os
import random

import pytest
import torch

from helpers.elastic_runs import ALL, INSTANTS, THREE, launched, replayed_gradients, report, survived
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce.strategies import AllReduce, Codec, DrainPolicy, GradientReduction, Pipeline, Transport

pytestmark = pytest.mark.processes


def holds(deaths, survivors, *, width=2, warm_up=0, transport=None, steps=9, sync=None, **options):
    """A run of a pipeline whose survivors hold, bit for bit, what a replay of its views does."""
    strategy = AllReduce(sync=Pipeline(width=width, warm_up=warm_up, **sync or {}), transport=transport or Transport())
    ended = survived(deaths, strategy=strategy, steps=steps, **options)
    late = {"lag": width - 1, "warm_up": warm_up, "steps": steps, "joined": ended.joined}
    expected, end = replayed_gradients(ended.members, total=bool(sync), **late)
    assert ended.own == dict.fromkeys(survivors or ended.own, expected), ended.text
    assert all(one["end"] == pytest.approx(end, rel=1e-14) for one in ended.said.values()), ended.text
    assert ended.all_ended_equal(steps)
    return ended


@pytest.mark.parametrize(
    ("instant", "number"), [("before the sum", 4), ("in flight", 5), ("in the sum", 4), ("prepared", 5)]
)
@pytest.mark.parametrize("width", [2, 3])
def test_whoever_dies_before_all_have_a_mean_that_is_due_is_in_no_mean_from_then_on(instant, number, width):
    """What is due in step 4 is applied where its sum is waited for."""
    at = number - (width - 2) if instant == "in the sum" else number
    ended = holds({2: (instant, at)}, THREE, width=width)
    ((resumes, members),) = ended.views[1:]
    assert members == THREE
    assert resumes in (4, 5), ended.text
    line = f"without worker 2 the other 3 continue together from round {resumes}; their models are equal"
    assert line in ended.text


@pytest.mark.parametrize(
    ("deaths", "width"),
    [(lambda width: {2: ("applying", 6 - width)}, width) for width in (2, 4)]
    # Worker 2 dies when it has applied the mean of turn 5, and worker 1 takes its confirm for broken.
    + [(lambda _: {2: ("before the sum", 5), 1: ("confirm breaks", 5)}, width) for width in (2, 4)],
    ids=["who applies it, 2", "who applies it, 4", "a confirm that broke, 2", "a confirm that broke, 4"],
)
def test_who_dies_after_the_confirm_is_in_that_mean_for_all_or_for_none(deaths, width):
    ended = holds(deaths(width), THREE, width=width)
    assert ended.views[1:] in ([(5, THREE)], [(6, THREE)]), ended.text


@pytest.mark.parametrize("second", ["voting", "rebuilding"])
def test_a_second_death_during_the_recovery_from_the_first(second):
    holds({2: ("in flight", 5), 0: (second, 0)}, (1, 3), width=3)


@pytest.mark.parametrize("instant", ["before the sum", "in flight"])
def test_a_death_before_anything_has_come_back(instant):
    assert holds({2: (instant, 1)}, THREE, width=4).views[1][1] == THREE


@pytest.mark.parametrize("turn", [3, 4])
def test_a_death_around_the_end_of_the_warm_up(turn):
    assert holds({2: ("in flight", turn)}, THREE, width=3, warm_up=3).views[1:] == [(turn, THREE)]


@pytest.mark.parametrize("drain", list(DrainPolicy))
@pytest.mark.parametrize("number", [7, 8])
def test_a_death_while_what_is_still_late_is_applied_at_the_end(number, drain):
    ended = survived({2: ("at the end", number)}, strategy=AllReduce(sync=Pipeline(width=3, drain=drain)))
    expected, _ = replayed_gradients(lambda _: ALL, lag=2, steps=9)
    assert ended.own == dict.fromkeys(THREE, expected), ended.text
    assert ended.all_ended_equal(9), ended.text
    end = ended.said[0]["end"]
    assert (end == pytest.approx(expected, rel=1e-14)) == (drain is DrainPolicy.DROP)
    if number == 7 and drain is DrainPolicy.APPLY:
        late = replayed_gradients(ended.members, lag=2, steps=9)[1]
        assert end == pytest.approx(late, rel=1e-14), ended.text


def test_a_sum_in_place_of_a_mean_is_of_those_who_are_left():
    holds({2: ("in flight", 5)}, THREE, sync={"total": GradientReduction.SUM})


@pytest.mark.parametrize("codec", [Codec.BFLOAT16, Codec.INT8])
def test_a_coded_sum_is_rounded_again_where_it_is_begun_anew(codec):
    """In bfloat16 all that is sent here is exact, in int8 nearly."""
    transport = Transport(codec=codec, **({"block": 8} if codec is Codec.INT8 else {}))
    strategy = AllReduce(sync=Pipeline(width=3), transport=transport)
    ended = survived({2: ("in flight", 5)}, strategy=strategy, size=512, dtype=torch.float32)
    expected, _ = replayed_gradients(ended.members, lag=2, steps=9, size=512)
    close = expected if codec is Codec.BFLOAT16 else pytest.approx(expected, abs=0.2)
    assert ended.own == dict.fromkeys(THREE, close), ended.text
    assert len({tuple(model) for model in ended.own.values()}) == 1


def test_a_death_in_mean_model_takes_the_mean_of_those_who_are_left_and_what_is_in_flight_stays():
    ended = holds({2: ("in mean_model()", 0)}, THREE, width=3, evaluate=(4,))
    assert len({tuple(one["means"][0]) for one in ended.said.values()}) == 1


def test_one_goes_on_alone_with_the_gradients_that_it_kept_and_who_joins_it_gives_its_own_from_then_on():
    options = {"workers": 2, "max_failures": 1, "steps": 20, "restarts": 1, "back": (1,), "waits_at": 9}
    ended = holds({1: ("in flight", 3)}, (0, 1), width=3, **options)
    assert [members for _, members in ended.views] == [(0, 1), (0,), (0, 1)], ended.text


@pytest.mark.parametrize("width", [2, 3])
def test_who_joins_takes_part_in_means_of_steps_that_it_did_not_take_and_adds_nothing_to_them(width):
    ended = holds({2: ("before the sum", 4)}, ALL, width=width, steps=20, restarts=1, back=(2,))
    assert [members for _, members in ended.views] == [ALL, THREE, ALL], ended.text
    resumes = ended.views[-1][0]
    assert [one[:2] for one in ended.joined] == [(2, resumes)], ended.text
    assert resumes >= 8, ended.text


def test_without_a_loss_such_a_run_does_what_any_pipeline_does():
    holds({}, ALL, width=3, evaluate=(3,))


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
    holds(deaths, None, width=width, warm_up=warm_up, steps=30, restarts=2, again=again)


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
        left = {"weight": model.weight.tolist(), "seen": model.seen.tolist()}
        optimizer.finish()
        report(**left)

    code, said, text = launched(work, max_failures=1)
    assert code == 0, text
    return {rank: (one["weight"], one["seen"]) for rank, one in said.items()}


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
