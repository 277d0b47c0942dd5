"""Workers that are started again after a loss: they join the others at an average, with the state of one of them."""

import random
import re
from pathlib import Path

import pytest

from helpers.elastic_runs import own, replayed, run
from helpers.warm import WARM
from partreduce.runtime.data.sampler import assign_samples
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, StaticGroups

pytestmark = pytest.mark.processes

ALL, THREE = (0, 1, 2, 3), (0, 1, 3)
STEPS = 20


def joined_in(text, worker=2):
    """The round from which all went on together, and the donor; of the last join."""
    found = re.findall(rf"worker {worker} joined in round (\d+) with the state of worker (\d), and all", text)
    assert found, text
    return int(found[-1][0]), int(found[-1][1])


def without(lost, again, *, whole=ALL, rest=THREE):
    """The groups of each round: all, but for those from `lost` up to, and not in, `again`."""
    return lambda round_: [whole if round_ < lost or round_ >= again else rest]


def test_a_worker_that_was_killed_joins_again_and_takes_part_in_every_average_from_then_on():
    code, said, text = run({2: ("before the sum", 4)}, steps=STEPS, restarts=1, back=(2,))
    assert code == 0, text
    again, _ = joined_in(text)
    assert again >= 8, text
    assert own(said) == replayed(without(4, again), ALL, steps=STEPS), text
    assert [one["steps"] for one in said.values()] == [STEPS] * 4
    assert "without worker 2 the other 3 continue together from round 4" in text


def test_where_parameters_are_averaged_it_begins_with_the_donor_s_model_and_the_line_says_how_far_the_mean_moved():
    code, said, text = run(
        {2: ("before the sum", 1)}, steps_per_round=3, steps=STEPS, restarts=1, back=(2,), waits_at=9
    )
    assert code == 0, text
    again, donor = joined_in(text)
    expected = replayed(without(1, again), ALL, steps_per_round=3, steps=STEPS, joins={2: (again, donor)})
    for rank, one in said.items():
        assert one["own"] == pytest.approx(expected[rank], rel=1e-12), text
        assert one["end"] == said[0]["end"]
    assert "; the mean moved by 1/4 of how far that state's model was from it" in text


@pytest.mark.parametrize("instant", ["asking", "rebuilding", "taking a state"])
def test_a_joiner_that_dies_on_its_way_takes_nothing_along_and_the_next_one_joins(instant):
    code, said, text = run({2: ("before the sum", 4)}, steps=STEPS, restarts=2, again={1: [(instant, 0)]}, back=(2,))
    assert code == 0, text
    again, _ = joined_in(text)
    assert own(said) == replayed(without(4, again), ALL, steps=STEPS), text
    assert text.count("was killed by signal 9") == 2


def test_a_donor_that_dies_as_it_gives_its_state_is_lost_and_the_joiner_gets_another_s():
    deaths = {2: ("before the sum", 4), 0: ("giving its state", 0), 1: ("giving its state", 0)}
    code, said, text = run(deaths, steps=STEPS, restarts=1, back=(2,), max_failures=3)
    assert code == 0, text
    assert {2, 3} <= set(said), text
    assert len({tuple(one["own"]) for one in said.values()}) == 1
    assert [one["steps"] for one in said.values()] == [STEPS] * len(said)


def test_one_joins_a_worker_that_was_left_alone():
    code, said, text = run({1: ("in the sum", 3)}, workers=2, max_failures=1, steps=STEPS, restarts=1, back=(1,))
    assert code == 0, text
    again, donor = joined_in(text, worker=1)
    assert donor == 0
    expected = replayed(without(3, again, whole=(0, 1), rest=(0,)), (0, 1), workers=2, steps=STEPS)
    assert own(said) == expected, text


def test_who_has_joined_comes_to_mean_model_with_the_others_and_not_to_those_that_lie_behind():
    code, said, text = run({2: ("before the sum", 4)}, steps_per_round=3, steps=45, restarts=1, back=(2,), waits_at=15,
                           evaluate=(2, 7, 44))  # fmt: skip
    assert code == 0, text
    assert joined_in(text)[0] < 14, text
    assert [len(one["means"]) for _, one in sorted(said.items())] == [3, 3, 1, 3], text
    assert len({tuple(one["means"][-1]) for one in said.values()}) == 1


def test_fixed_groups_are_those_of_the_schedule_again_when_all_are_back():
    phases = tuple(Phase.from_groups(4, groups) for groups in ([(0, 1), (2, 3)], [(0, 3), (1, 2)]))
    code, said, text = run(
        {2: ("prepared", 4)}, strategy=StaticGroups(phases=GroupPhases(phases)), steps=STEPS, restarts=1, back=(2,)
    )
    assert code == 0, text
    assert joined_in(text)[0] >= 8, text
    assert sorted(said) == list(ALL), text
    assert all(one["end"] == said[0]["end"] and one["steps"] == STEPS for one in said.values())
    assert said[0]["own"] == said[3]["own"], "the last round is of 0 with 3 and of 1 with 2"
    assert said[1]["own"] == said[2]["own"], text


def test_a_learning_rate_that_is_handed_over_goes_on_on_all_workers_alike():
    code, said, text = run({2: ("before the sum", 4)}, steps=30, restarts=1, back=(2,), decays="handed over")
    assert code == 0, text
    again, _ = joined_in(text)
    assert own(said) == replayed(without(4, again), ALL, steps=30, decays=True), text


def test_a_learning_rate_that_nobody_hands_over_is_refused_in_the_first_step():
    code, said, text = run({}, restarts=1, decays="forgotten")
    assert (code, said) == (InputError.exit_code, {}), text
    assert "scheduler: workers may be started again here (--max-restarts)" in text
    assert "optimizer.register_stateful(scheduler)" in text


def test_over_a_loss_and_a_join_the_round_sampler_deals_every_sample_once():
    code, said, text = run({2: ("before the sum", 4)}, steps=0, samples=81, restarts=1, back=(2,))
    assert code == 0, text
    views = said[0]["views"]
    assert [tuple(members) for _, members in views] == [ALL, THREE, ALL]
    rounds = dict(assign_samples(range(81), [(r, tuple(m)) for r, m in views], (1, 1, 1, 1), 1, 0))
    assert sum(len(own) for hands in rounds.values() for own in hands.values()) >= 81 - 3
    for rank, one in said.items():
        mine = [(step, hands[rank][0]) for step, hands in rounds.items() if rank in hands]
        since = joined_in(text)[0] if rank == 2 else 0
        assert [tuple(pair) for pair in one["seen"]] == [pair for pair in mine if pair[0] >= since], text
        assert one["steps"] == len(rounds)


def test_a_joiner_that_comes_when_the_others_have_finished_is_ended_and_the_run_ends_well():
    code, said, text = run({2: ("before the sum", 7)}, restarts=1, again={1: [("asking late", 0)]})
    assert code == 0, text
    assert own(said) == replayed(without(7, 9), THREE), text


def test_the_example_may_lose_workers_and_get_them_back(tmp_path):
    """Its scheduler is handed over; else its first step would refuse that."""
    root, schedule = Path(__file__).parents[3], tmp_path / "schedule.json"
    write_schedule(schedule, Schedule("all", Cluster.regular(1, 2), AllReduce(steps_per_round=4)))
    options = ["--workers", "2", "--tolerate-failures", "1", "--max-restarts", "1"]
    done = WARM.run("partreduce", "run", *options, root / "examples/train_digits.py", schedule)
    assert done.returncode == 0, done.stderr
    assert "test accuracy of the mean model" in done.stdout


def test_restarts_need_a_run_that_goes_on():
    with pytest.raises(
        InputError, match="--max-restarts 1: a worker that failed joins others that continue without it"
    ):
        run({}, restarts=1, max_failures=0)


ON_THE_WAY = ["before the sum", "in the sum", "prepared", "confirmed"]
IN_RECOVERY = ["voting", "rebuilding"]


@pytest.mark.parametrize("seed", range(8))
def test_after_deaths_at_drawn_instants_also_in_recoveries_all_hold_what_a_replay_of_their_views_does(seed):
    draws = random.Random(seed)
    first, second = draws.sample(ALL, 2)
    deaths = {first: (draws.choice(ON_THE_WAY), draws.randrange(2, 6))}
    if draws.random() < 0.5:
        instant = draws.choice([*ON_THE_WAY, *IN_RECOVERY, "giving its state"])
        deaths[second] = instant, draws.randrange(2, 9)
    joiner = draws.choice([*ON_THE_WAY, *IN_RECOVERY, "asking", "taking a state"]), draws.randrange(9, 20)
    again = {1: [joiner]} if draws.random() < 0.5 else {}
    code, said, text = run(deaths, steps=30, restarts=2, again=again)
    assert code == 0, text
    views = [(after, tuple(members)) for after, members in next(iter(said.values()))["views"]]
    groups = lambda round_: [next(members for after, members in reversed(views) if after <= round_)]  # noqa: E731
    assert own(said) == replayed(groups, sorted(said), steps=30), text
    assert [one["steps"] for one in said.values()] == [30] * len(said)
