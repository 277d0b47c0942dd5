"""Workers restarted after a failure join the others at an average, with the state of one of them."""

import pytest

from helpers.children import ROOT
from helpers.elastic_runs import ALL, EVEN_ODD, FOUR, LEFT, replay_means, run, run_to_the_end
from helpers.training import group_phases
from helpers.warm import WARM
from partreduce import Cluster, Schedule, write_schedule
from partreduce.errors import InputError
from partreduce.runtime.data.sampler import assign_samples
from partreduce.strategies import AllReduce, StaticGroups

pytestmark = pytest.mark.processes

STEPS = 12


def rejoin(deaths, *, lost=4, **options):
    """A run that worker 1 rejoins, and the groups of each round for its replay."""
    ended = run_to_the_end(deaths, **{"steps": STEPS, "restarts": 1, "back": (1,)} | options)
    again, _ = ended.joins[1]
    return ended, lambda round_: [ALL if round_ < lost or round_ >= again else LEFT]


@pytest.mark.parametrize("instant", ["asking", "rebuilding", "taking a state"])
def test_worker_killed_while_it_rejoins_can_rejoin_again(instant):
    ended, groups = rejoin({1: ("before the sum", 4)}, restarts=2, again={1: [(instant, 0)]})
    assert ended.own == replay_means(groups, ALL, steps=STEPS), ended.text
    assert ended.text.count("was killed by signal 9") == 2


def test_a_donor_killed_while_it_sends_its_state_is_replaced_by_another():
    deaths = {1: ("before the sum", 4), 0: ("giving its state", 0)}
    ended = run_to_the_end(deaths, steps=STEPS, restarts=1, back=(1,))
    assert {1, 2} <= set(ended.reports), ended.text
    assert len({tuple(model) for model in ended.own.values()}) == 1
    assert ended.all_ended_equal(STEPS)


def test_a_worker_that_rejoins_takes_part_in_later_mean_models_only():
    ended, _ = rejoin({1: ("before the sum", 4)}, steps_per_round=3, steps=24, waits_at=15, evaluate=(2, 7, 23))
    assert ended.joins[1][0] < 7, ended.text
    assert [len(one["means"]) for _, one in sorted(ended.reports.items())] == [3, 1, 3], ended.text
    assert len({tuple(one["means"][-1]) for one in ended.reports.values()}) == 1


def test_static_groups_follow_the_schedule_again_after_all_rejoined():
    phases = group_phases(4, *EVEN_ODD)
    ended, _ = rejoin({1: ("prepared", 4)}, workers=4, strategy=StaticGroups(phases=phases))
    assert ended.joins[1][0] >= 6, ended.text
    assert sorted(ended.reports) == list(FOUR), ended.text
    assert ended.all_ended_equal(STEPS)
    assert ended.own[0] == ended.own[3], "the last round averages 0 with 3 and 1 with 2"
    assert ended.own[1] == ended.own[2], ended.text


def test_a_registered_learning_rate_scheduler_continues_equally_on_all_workers():
    ended, groups = rejoin({1: ("before the sum", 4)}, decays="handed over")
    assert ended.own == replay_means(groups, ALL, steps=STEPS, decays=True), ended.text


def test_an_unregistered_learning_rate_scheduler_is_refused_in_the_first_step():
    ended = run({}, restarts=1, decays="forgotten")
    assert (ended.code, ended.reports) == (InputError.exit_code, {}), ended.text
    assert "scheduler: workers may be started again here (--max-restarts)" in ended.text
    assert "optimizer.register_stateful(scheduler)" in ended.text


def test_round_sampler_gives_each_sample_once_over_a_failure_and_a_rejoin():
    ended, _ = rejoin({1: ("before the sum", 4)}, steps=0, samples=37)
    assert [members for _, members in ended.views] == [ALL, LEFT, ALL]
    rounds = dict(assign_samples(range(37), ended.views, (1, 1, 1), 1, 0))
    assert sum(len(own) for hands in rounds.values() for own in hands.values()) >= 37 - 2
    for rank, one in ended.reports.items():
        mine = [(step, hands[rank][0]) for step, hands in rounds.items() if rank in hands]
        since = ended.joins[1][0] if rank == 1 else 0
        assert [tuple(pair) for pair in one["seen"]] == [pair for pair in mine if pair[0] >= since], ended.text
        assert one["steps"] == len(rounds)


def test_run_succeeds_if_a_worker_rejoins_after_the_others_finished():
    ended = run_to_the_end({1: ("before the sum", 7)}, restarts=1, again={1: [("asking late", 0)]})
    assert ended.own == replay_means(lambda round_: [ALL if round_ < 7 else LEFT], LEFT), ended.text


def test_example_runs_with_failures_and_restarts_allowed(tmp_path):
    """The example registers its scheduler; an unregistered one would raise in the first step."""
    script, schedule = tmp_path / "train.py", tmp_path / "schedule.json"
    script.write_text((ROOT / "examples/train_digits.py").read_text().replace("150)", "20)"))
    write_schedule(schedule, Schedule("all", Cluster.regular(1, 2), AllReduce(steps_per_round=4)))
    options = ["--workers", "2", "--tolerate-failures", "1", "--max-restarts", "1"]
    done = WARM.run("partreduce", "run", *options, script, schedule)
    assert done.returncode == 0, done.stderr
    assert "test accuracy of the mean model" in done.stdout


def test_max_restarts_needs_a_run_that_tolerates_failures():
    with pytest.raises(
        InputError, match="--max-restarts 1: a worker that failed joins others that continue without it"
    ):
        run({}, restarts=1, max_failures=0)
