"""A run that goes on after losses: real workers are killed at chosen instants, and the rest do what a replay does."""

import pytest

from helpers.elastic_runs import EVEN_ODD, own, pairs_until, replayed, run
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import EvictedError, InputError
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedAveraging, GroupPhases, Pipeline, StaticGroups
from partreduce.topo.strategies.axes import GradientBuckets, Transport
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.survivors import after_failure

pytestmark = pytest.mark.processes

ALL, THREE = (0, 1, 2, 3), (0, 1, 3)


def until(round_, before, after):
    """Members of each round: `before` up to, and not in, a round."""
    return lambda this: [before if this < round_ else after]


@pytest.mark.parametrize("instant", ["before the sum", "in the sum", "prepared"])
def test_who_dies_before_all_have_the_sum_is_in_no_sum_of_that_round_and_the_others_go_on(instant):
    code, said, text = run({2: (instant, 4)})
    assert code == 0, text
    assert own(said) == replayed(until(4, ALL, THREE), THREE), text
    assert all(one["steps"] == 9 and one["end"] == said[0]["end"] for one in said.values())
    assert "without worker 2 the other 3 continue together from round 4; their models are equal" in text


def test_who_dies_after_the_confirm_is_in_that_sum_for_all_or_for_none():
    code, said, text = run({2: ("confirmed", 4)})
    assert code == 0, text
    assert own(said) in [replayed(until(round_, ALL, THREE), THREE) for round_ in (4, 5)], text


def test_what_others_have_committed_a_worker_commits_too_whose_confirm_broke():
    """Worker 2 dies when all have confirmed round 4, and worker 1 takes its confirm for broken."""
    code, said, text = run({2: ("before the sum", 5), 1: ("confirm breaks", 4)})
    assert code == 0, text
    assert own(said) == replayed(until(5, ALL, THREE), THREE), text


@pytest.mark.parametrize("second", ["voting", "rebuilding"])
def test_a_second_death_during_the_recovery_from_the_first(second):
    code, said, text = run({2: ("before the sum", 4), 0: (second, 0)})
    assert code == 0, text
    assert own(said) == replayed(until(4, ALL, (1, 3)), (1, 3)), text


def test_two_die_in_one_round_and_later_a_third_and_one_goes_on_alone():
    code, said, text = run({2: ("before the sum", 3), 0: ("prepared", 3), 1: ("in the sum", 6)})
    assert code == 0, text

    def members(round_):
        return [ALL if round_ < 3 else (1, 3) if round_ < 6 else (3,)]

    assert own(said) == replayed(members, (3,)), text
    assert "worker 3 continues alone from round 6" in text


@pytest.mark.parametrize("instant", ["before the sum", "prepared"])
def test_where_parameters_are_averaged_every_third_step_the_mean_is_that_of_the_survivors(instant):
    code, said, text = run({2: (instant, 1)}, steps_per_round=3)
    assert code == 0, text
    expected = replayed(until(1, ALL, THREE), THREE, steps_per_round=3)
    for rank, one in said.items():
        assert one["own"] == pytest.approx(expected[rank], rel=1e-14), text
        assert one["end"] == said[0]["end"]
    assert "from round 1; the mean moved by 1/3 of how far that model was from it" in text


def test_a_death_in_mean_model_takes_the_mean_of_those_who_are_left_and_nothing_else_changes():
    code, said, text = run({2: ("in mean_model()", 0)}, steps_per_round=3, evaluate=(4,))
    assert code == 0, text
    assert sorted(said) == list(THREE)
    assert len({tuple(one["means"][0]) for one in said.values()}) == 1
    inside = replayed(lambda _: [ALL], THREE, steps_per_round=3, steps=5)
    mean = [sum(values) / 3 for values in zip(*inside.values(), strict=True)]
    assert said[0]["means"][0] == pytest.approx(mean, rel=1e-14)
    expected = replayed(until(1, ALL, THREE), THREE, steps_per_round=3)
    assert said[0]["own"] == pytest.approx(expected[0], rel=1e-14)


PAIRS = StaticGroups(phases=GroupPhases(tuple(Phase.from_groups(4, two) for two in EVEN_ODD)))


@pytest.mark.parametrize("instant", ["before the sum", "prepared"])
@pytest.mark.parametrize("plan", [None, FailurePlan(SurvivorRule.KEEP_GROUPS, 1)], ids=["nothing planned", "planned"])
def test_of_fixed_groups_all_resume_where_the_furthest_is_and_with_what_is_planned(instant, plan):
    """Worker 2 dies in round 4, of pairs 0,1 and 2,3: the rest goes on in round 4, or in 5 if 0 and 1 were faster."""
    code, said, text = run({2: (instant, 4)}, strategy=PAIRS, failure_plan=plan)
    assert code == 0, text
    schedule = Schedule("replayed", Cluster.regular(1, 4), PAIRS, failure_plan=plan)
    planned = after_failure(schedule, {2})

    possible = [
        replayed(pairs_until(resume, pairs, planned), THREE, gradients=False)
        for resume, pairs in ((4, []), (5, [(0, 1)]), (5, []))
    ]
    assert _flat(own(said)) in [pytest.approx(_flat(one), rel=1e-14) for one in possible], text


def _flat(models):
    return [x for rank in sorted(models) for x in models[rank]]


def test_more_losses_than_may_be_end_the_run_with_the_signal_and_names():
    code, said, text = run({2: ("before the sum", 3), 0: ("before the sum", 5)}, max_failures=1)
    assert code == 128 + 9, text
    assert not said
    assert "without worker 2 the other 3 continue" in text
    assert "worker 0 was killed by signal 9" in text


def test_a_silent_worker_is_given_up_and_ended_and_the_run_says_so():
    code, said, text = run({2: ("stopped", 4)}, timeout=10.0)
    assert code == EvictedError.exit_code, text
    assert own(said) == replayed(until(4, ALL, THREE), THREE), text
    assert "worker 2 said nothing for 10 s and was given up" in text
    assert "SIGKILL" not in text, "the launcher sent it"


def test_an_error_of_a_worker_itself_ends_the_run():
    code, said, text = run({2: ("an error", 0)})
    assert (code, said) == (1, {}), text
    assert "ZeroDivisionError" in text
    assert "continue" not in text


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (Pairwise(active=(0, 2)), "strategy.kind: is pairwise"),
        (
            AllReduce(transport=Transport(gradient_buckets=GradientBuckets.PER_LAYER), sync=Pipeline()),
            "strategy.transport.gradient_buckets: is per_layer; no worker keeps late gradients",
        ),
        (
            StaticGroups(
                phases=PAIRS.phases,
                steps_per_round=(1, 1, 1, 2),
                averaging=Averaging.STEP_NORMALIZED,
                sync=DelayedAveraging(),
            ),
            "strategy.averaging: is by steps",
        ),
    ],
)
def test_what_cannot_go_on_yet_is_refused_in_a_line(strategy, words):
    code, said, text = run({}, strategy=strategy, max_failures=1)
    assert (code, said) == (InputError.exit_code, {}), text
    assert words in text
    assert "run it with --tolerate-failures 0" in text
    assert text.count("InputError: ") == text.count("[0-3] InputError: schedule ") == 1, text


def test_a_schedule_that_plans_for_losses_says_where_nobody_goes_on():
    code, said, text = run({}, failure_plan=FailurePlan(SurvivorRule.ALL_REDUCE, 1), max_failures=0)
    assert (code, sorted(said)) == (0, list(ALL)), text
    assert text.count("`run --schedule FILE` with this file, or begins again under torchrun with --max-restarts") == 1


def test_as_many_workers_may_be_lost_as_leave_one():
    with pytest.raises(InputError, match="--tolerate-failures: expected 0 to 3 for 4 workers, got 4"):
        run({}, max_failures=4)


def test_without_a_loss_such_a_run_does_what_any_does():
    code, said, text = run({}, evaluate=(3,))
    assert (code, sorted(said)) == (0, list(ALL)), text
    assert own(said) == replayed(lambda _: [ALL], ALL)
