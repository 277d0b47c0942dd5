"""A run that continues after failures: real workers are killed at chosen instants, the rest do what a replay does."""

import pytest

from helpers.elastic_runs import ALL, EVEN_ODD, THREE, pairs_until, replayed, run, survived
from helpers.training import static_groups
from partreduce import Cluster, Schedule
from partreduce import strategies as st
from partreduce.errors import EvictedError, InputError
from partreduce.topo.survivors import after_failure

pytestmark = pytest.mark.processes


def until(round_, before=ALL, after=THREE):
    """Members of each round: `before` up to, and not in, a round."""
    return lambda this: [before if this < round_ else after]


@pytest.mark.parametrize("instant", ["before the sum", "in the sum", "prepared"])
def test_who_dies_before_all_have_the_sum_is_in_no_sum_of_that_round_and_the_others_go_on(instant):
    ended = survived({2: (instant, 4)})
    assert ended.own == replayed(until(4), THREE), ended.text
    assert ended.all_ended_equal(9)
    line = "without worker 2 the other 3 continue together from round 4; their models are equal"
    assert line in ended.text


DIES, LATER = ("before the sum", 4), ("before the sum", 5)


@pytest.mark.parametrize(
    ("deaths", "survivors", "possible"),
    [
        ({2: ("confirmed", 4)}, THREE, [until(4), until(5)]),
        # Worker 2 dies when all have confirmed round 4, and worker 1 takes its confirm for broken.
        ({2: LATER, 1: ("confirm breaks", 4)}, THREE, [until(5)]),
        ({2: DIES, 0: ("voting", 0)}, (1, 3), [until(4, after=(1, 3))]),
        ({2: DIES, 0: ("rebuilding", 0)}, (1, 3), [until(4, after=(1, 3))]),
    ],
    ids=["for all or for none", "a confirm that broke", "voting", "rebuilding"],
)
def test_who_dies_after_the_confirm_or_in_a_recovery_is_in_a_sum_for_all_or_for_none(deaths, survivors, possible):
    ended = survived(deaths)
    assert ended.own in [replayed(members, survivors) for members in possible], ended.text


def test_two_die_in_one_round_and_later_a_third_and_one_goes_on_alone():
    ended = survived({2: ("before the sum", 3), 0: ("prepared", 3), 1: ("in the sum", 6)})
    members = lambda round_: [ALL if round_ < 3 else (1, 3) if round_ < 6 else (3,)]  # noqa: E731
    assert ended.own == replayed(members, (3,)), ended.text
    assert "worker 3 continues alone from round 6" in ended.text


@pytest.mark.parametrize("instant", ["before the sum", "prepared"])
def test_where_parameters_are_averaged_every_third_step_the_mean_is_that_of_the_survivors(instant):
    ended = survived({2: (instant, 1)}, steps_per_round=3)
    expected = replayed(until(1), THREE, steps_per_round=3)
    assert ended.own == {rank: pytest.approx(model, rel=1e-14) for rank, model in expected.items()}, ended.text
    assert ended.all_ended_equal(9)
    assert "from round 1; the mean moved by 1/3 of how far that model was from it" in ended.text


def test_a_death_in_mean_model_takes_the_mean_of_those_who_are_left_and_nothing_else_changes():
    ended = survived({2: ("in mean_model()", 0)}, steps_per_round=3, evaluate=(4,))
    assert sorted(ended.said) == list(THREE)
    inside = replayed(lambda _: [ALL], THREE, steps_per_round=3, steps=5)
    mean = [sum(values) / 3 for values in zip(*inside.values(), strict=True)]
    assert len({tuple(one["means"][0]) for one in ended.said.values()}) == 1
    assert ended.said[0]["means"][0] == pytest.approx(mean, rel=1e-14)
    assert ended.own[0] == pytest.approx(replayed(until(1), THREE, steps_per_round=3)[0], rel=1e-14)


PAIRS = static_groups(4, *EVEN_ODD)


@pytest.mark.parametrize("instant", ["before the sum", "prepared"])
@pytest.mark.parametrize(
    "plan", [None, st.FailurePlan(st.SurvivorRule.KEEP_GROUPS, 1)], ids=["nothing planned", "planned"]
)
def test_of_fixed_groups_all_resume_where_the_furthest_is_and_with_what_is_planned(instant, plan):
    """Worker 2 dies in round 4, of pairs 0,1 and 2,3: the rest goes on in round 4, or in 5 if 0 and 1 were faster."""
    ended = survived({2: (instant, 4)}, strategy=PAIRS, failure_plan=plan)
    planned = after_failure(Schedule("replayed", Cluster.regular(1, 4), PAIRS, failure_plan=plan), {2})
    possible = [
        replayed(pairs_until(resume, pairs, planned), THREE, gradients=False)
        for resume, pairs in ((4, []), (5, [(0, 1)]), (5, []))
    ]
    near = [{rank: pytest.approx(model, rel=1e-14) for rank, model in one.items()} for one in possible]
    assert ended.own in near, ended.text


def test_more_losses_than_may_be_end_the_run_with_the_signal_and_names():
    ended = run({2: ("before the sum", 3), 0: ("before the sum", 5)}, max_failures=1)
    assert (ended.code, ended.said) == (128 + 9, {}), ended.text
    assert "without worker 2 the other 3 continue" in ended.text
    assert "worker 0 was killed by signal 9" in ended.text


def test_a_silent_worker_is_given_up_and_ended_and_the_run_says_so():
    ended = run({2: ("stopped", 4)}, timeout=10.0)
    assert ended.code == EvictedError.exit_code, ended.text
    assert ended.own == replayed(until(4), THREE), ended.text
    assert "worker 2 said nothing for 10 s and was given up" in ended.text
    assert "SIGKILL" not in ended.text, "the launcher sent it"


def test_an_error_of_a_worker_itself_ends_the_run():
    ended = run({2: ("an error", 0)})
    assert (ended.code, ended.said) == (1, {}), ended.text
    assert "ZeroDivisionError" in ended.text
    assert "continue" not in ended.text


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (st.Pairwise(active=(0, 2)), "strategy.kind: is pairwise"),
        (
            st.AllReduce(transport=st.Transport(gradient_buckets=st.GradientBuckets.PER_LAYER), sync=st.Pipeline()),
            "strategy.transport.gradient_buckets: is per_layer; no worker keeps late gradients",
        ),
        (
            st.StaticGroups(
                phases=PAIRS.phases,
                steps_per_round=(1, 1, 1, 2),
                averaging=st.Averaging.STEP_NORMALIZED,
                sync=st.DelayedAveraging(),
            ),
            "strategy.averaging: is by steps",
        ),
    ],
)
def test_what_cannot_go_on_yet_is_refused_in_a_line(strategy, words):
    ended = run({}, strategy=strategy, max_failures=1)
    assert (ended.code, ended.said) == (InputError.exit_code, {}), ended.text
    assert words in ended.text
    assert "run it with --tolerate-failures 0" in ended.text
    assert ended.text.count("InputError: ") == ended.text.count("[0-3] InputError: schedule ") == 1, ended.text


def test_a_schedule_that_plans_for_losses_says_where_nobody_goes_on():
    ended = run({}, failure_plan=st.FailurePlan(st.SurvivorRule.ALL_REDUCE, 1), max_failures=0)
    assert (ended.code, sorted(ended.said)) == (0, list(ALL)), ended.text
    assert (
        ended.text.count("`run --schedule FILE` with this file, or begins again under torchrun with --max-restarts")
        == 1
    )


def test_as_many_workers_may_be_lost_as_leave_one():
    with pytest.raises(InputError, match="--tolerate-failures: expected 0 to 3 for 4 workers, got 4"):
        run({}, max_failures=4)


def test_without_a_loss_such_a_run_does_what_any_does():
    ended = run({}, evaluate=(3,))
    assert (ended.code, sorted(ended.said)) == (0, list(ALL)), ended.text
    assert ended.own == replayed(lambda _: [ALL], ALL)
