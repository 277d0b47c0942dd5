"""Fragments that take turns go on after a loss: a loss or a join is of one turn, and the others stay what they are."""

import re

import pytest

from helpers.elastic_runs import own, replayed_in_turns, run, views_of
from partreduce.runtime.data.sampler import assign_samples
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.phase import Phase
from partreduce.topo.strategies import AllReduce, DelayedMerge, GroupPhases, OuterStep, Payload, StaticGroups
from partreduce.topo.strategies.axes import SYNCHRONOUS

pytestmark = pytest.mark.processes

ALL, THREE = (0, 1, 2, 3), (0, 1, 3)
DILOCO = OuterStep(lr=0.75, momentum=0.5, nesterov=True)
HALVES = (("weight0",), ("weight1",))
IN_TURN = Payload(outer=DILOCO, fragments=HALVES)
STEPS_PER_ROUND = 4


def near(models):
    return {rank: pytest.approx(model, rel=1e-12, abs=1e-12) for rank, model in models.items()}


def replay(said, text, *, steps, survivors=ALL, outer=DILOCO, **options):
    found = re.findall(r"worker (\d) joined in round (\d+) \(fragment (\d)\) with the state of worker (\d), and", text)
    joins = {int(who): (2 * int(round_) + int(fragment), int(donor)) for who, round_, fragment, donor in found}
    turns = {"steps_per_round": STEPS_PER_ROUND, "steps": steps, "fragments": 2}
    return near(replayed_in_turns(views_of(said), survivors, **turns, outer=outer, joins=joins, **options))


def all_in_turns(deaths, *, steps=18, payload=IN_TURN, sync=SYNCHRONOUS, **options):
    return run(
        deaths,
        strategy=AllReduce(steps_per_round=STEPS_PER_ROUND, payload=payload, sync=sync),
        steps=steps,
        parameters=2,
        **options,
    )


@pytest.mark.parametrize("fragment", [0, 1])
@pytest.mark.parametrize("instant", ["before the sum", "in the sum", "prepared", "confirmed"])
def test_a_turn_that_is_broken_is_done_again_and_the_other_fragments_keep_what_they_have(instant, fragment):
    code, said, text = all_in_turns({2: (instant, (2, fragment))})
    assert code == 0, text
    lost = 4 + fragment + (instant == "confirmed")
    assert [tuple(members) for _, members in said[0]["views"]] == [ALL, THREE], text
    assert said[0]["views"][1][0] == lost
    place = f"round {lost // 2} (fragment {lost % 2})"
    assert f"the other 3 continue together from {place}; the mean moved by 1/3 of" in text
    assert own(said) == replay(said, text, steps=18, survivors=THREE), text


@pytest.mark.parametrize("fragment", [0, 1])
def test_who_joins_between_two_turns_has_anchors_and_momenta_of_all_fragments(fragment):
    waits_at = 12 + 2 * fragment
    code, said, text = all_in_turns({2: ("before the sum", (1, 0))}, steps=40, restarts=1, back=(2,), waits_at=waits_at)
    assert code == 0, text
    assert f"worker 2 joined in round 3 (fragment {fragment}) with" in text
    assert sorted(said) == list(ALL), text
    assert own(said) == replay(said, text, steps=40), text


def test_plain_means_of_fragments_go_on_too():
    code, said, text = all_in_turns({2: ("prepared", (2, 0))}, payload=Payload(fragments=HALVES))
    assert code == 0, text
    assert own(said) == replay(said, text, steps=18, survivors=THREE, outer=OuterStep()), text


def test_who_is_left_alone_makes_outer_steps_of_each_fragment_and_who_joins_it_goes_on_from_them():
    code, said, text = all_in_turns(
        {1: ("in the sum", (2, 1))}, steps=40, workers=2, max_failures=1, restarts=1, back=(1,), waits_at=16
    )
    assert code == 0, text
    members = views_of(said)
    assert members(5) == (0,)
    found = re.search(r"worker 1 joined in round (\d+) \(fragment (\d)\) with the state of worker 0", text)
    joins = {1: (2 * int(found[1]) + int(found[2]), 0)}
    expected = replayed_in_turns(
        members, (0, 1), steps_per_round=STEPS_PER_ROUND, steps=40, fragments=2, outer=DILOCO, joins=joins, workers=2
    )  # fmt: skip
    assert own(said) == near(expected), text


def test_of_groups_whose_fragments_take_turns_all_who_are_left_meet_in_each_of_them():
    pairs = GroupPhases((Phase.from_groups(4, [(0, 1), (2, 3)]), Phase.from_groups(4, [ALL])))
    strategy = StaticGroups(phases=pairs, steps_per_round=STEPS_PER_ROUND, payload=IN_TURN)
    code, said, text = run({2: ("before the sum", (1, 1))}, strategy=strategy, steps=24, parameters=2)
    assert code == 0, text
    assert [tuple(members) for _, members in said[0]["views"]] == [ALL, THREE], text
    resume = said[0]["views"][1][0]
    assert resume == 3, "the second fragment of the round of all"
    assert len({tuple(one["own"][2:]) for one in said.values()}) == 1, "after the last turn of the second fragment"
    assert all(one["end"] == said[0]["end"] and one["steps"] == 24 for one in said.values())


def test_a_round_sampler_deals_who_joins_between_two_turns_the_steps_that_are_left_of_the_round():
    code, said, text = all_in_turns(
        {2: ("before the sum", (1, 0))}, steps=0, samples=321, restarts=1, back=(2,), waits_at=12
    )
    assert code == 0, text
    views = [(turn, tuple(members)) for turn, members in said[0]["views"]]
    assert [members for _, members in views] == [ALL, THREE, ALL]
    rounds = dict(assign_samples(range(321), views, (STEPS_PER_ROUND,) * 4, 1, 0, turns=2))
    joined = views[-1][0]
    assert len(rounds[joined // 2][2]) == (3, 1)[joined % 2], "of 4 steps; the turns are after 2 and 4"
    for rank, one in said.items():
        mine = [sample for hands in rounds.values() for sample in hands.get(rank, [])]
        seen = [sample for _, sample in one["seen"]]
        assert seen == (mine[-len(seen) :] if rank == 2 else mine), text
        assert one["steps"] == STEPS_PER_ROUND * len(rounds)


# Merged late.


@pytest.mark.parametrize(
    ("late", "plan"), [(1, None), (3, FailurePlan(SurvivorRule.ALL_REDUCE, 1))], ids=["1", "3, planned"]
)
@pytest.mark.parametrize("instant", ["before the sum", "in the sum", "prepared", "confirmed"])
def test_what_was_sent_before_the_failure_is_sent_again_as_it_was_and_merged_at_its_time(instant, late, plan):
    """Merged 3 steps late the first fragment is sent in the round before, so that two are in flight at once."""
    sync = DelayedMerge(steps=late, alpha=0.25)
    code, said, text = all_in_turns({2: (instant, (2, 0))}, sync=sync, steps=26, failure_plan=plan)
    assert code == 0, text
    assert [tuple(members) for _, members in said[0]["views"]] == [ALL, THREE], text
    assert own(said) == replay(said, text, steps=26, survivors=THREE, late=late, alpha=0.25), text


@pytest.mark.parametrize("fragment", [0, 1])
@pytest.mark.parametrize("late", [1, 3])
def test_who_joins_late_merges_adds_what_its_donor_had_sent(late, fragment):
    """Merged 3 steps late the second fragment is merged when the first was sent again after it."""
    deaths, sync = {2: ("before the sum", (1, 0))}, DelayedMerge(steps=late)
    code, said, text = all_in_turns(deaths, sync=sync, steps=40, restarts=1, back=(2,), waits_at=12 + 2 * fragment)
    assert code == 0, text
    assert f"worker 2 joined in round 3 (fragment {fragment}) with" in text
    assert sorted(said) == list(ALL), text
    assert own(said) == replay(said, text, steps=40, late=late), text


def test_a_whole_model_that_is_merged_late_goes_on_and_one_that_is_left_alone_keeps_its_part():
    sync, strategy_options = DelayedMerge(steps=2, alpha=0.5), {"workers": 2, "max_failures": 1}
    strategy = AllReduce(steps_per_round=STEPS_PER_ROUND, payload=Payload(outer=DILOCO), sync=sync)
    code, said, text = run({1: ("in the sum", 2)}, strategy=strategy, steps=26, **strategy_options)
    assert code == 0, text
    members = views_of(said)
    assert members(5) == (0,)
    expected = replayed_in_turns(
        members, (0,), steps_per_round=STEPS_PER_ROUND, steps=26, fragments=1, outer=DILOCO, workers=2, late=2,
        alpha=0.5,
    )  # fmt: skip
    assert own(said) == near(expected), text
