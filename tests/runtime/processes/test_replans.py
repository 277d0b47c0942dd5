"""A run that is planned anew while it trains: all switch at one round, or nobody, and average as the plan says."""

import json
import re
import sys

import pytest

from helpers.goes_on_runs import own, replayed, run
from partreduce.runtime.launcher.replan import Replan
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.errors import MissingFeatureError
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, Static
from partreduce.verify.prove import prove

pytestmark = pytest.mark.processes

ALL, THREE = (0, 1, 2, 3), (0, 1, 3)
TOGETHER = Static(phases=GroupPhases((Phase.from_groups(4, [ALL]),)))
PAIRS_THEN_ALL = ([(0, 1), (2, 3)], [(0, 2), (1, 3)], [ALL])
TWO_THEN_ALL = ([(0, 1)], [(0, 1, 2)])
"""Of three workers that are left, in their new numbers."""


def planned(phases, workers=4, *, is_proved=True):
    """A schedule of these phases, with its certificate."""
    strategy = Static(phases=GroupPhases(tuple(Phase.from_groups(workers, groups) for groups in phases)))
    schedule = Schedule("planned", Cluster.regular(1, workers), strategy)
    other = schedule if is_proved else Schedule("another", schedule.cluster, TOGETHER)
    return schedule.with_certificate(prove(other).certificate)


def answering(folder, schedule, *, quiet=600.0):
    """A planner that has this one answer."""
    told = {"period": 1, "step_seconds": 0.02}
    found = {"schedule": dump_schedule(schedule), "before": told, "after": told, "gain": 1.5}
    path = folder / f"{schedule_sha256(schedule)[:8]}.json"
    path.write_text(json.dumps(found))
    return Replan(("cat", str(path)), settling=0.3, quiet=quiet)


def near(models):
    return {rank: pytest.approx(model, rel=1e-11, abs=1e-11) for rank, model in models.items()}


def switched(text):
    """The rounds from which workers follow a plan."""
    return [int(round_) for round_ in re.findall(r"from round (\d+) the \d workers follow a schedule that", text)]


def pause(_rank, _step):
    return 0.004


def test_all_switch_to_a_proved_plan_at_one_round_and_average_as_it_says(tmp_path):
    replan = answering(tmp_path, planned(PAIRS_THEN_ALL))
    code, said, text = run({}, strategy=TOGETHER, steps=300, replan=replan, pause=pause)
    assert code == 0, text
    (round_,) = switched(text)
    assert 8 <= round_ < 300
    groups = lambda r: [ALL] if r < round_ else PAIRS_THEN_ALL[r % 3]  # noqa: E731
    assert own(said) == near(replayed(groups, ALL, gradients=False, steps=300)), text
    assert {tuple(map(str, one["views"])) for one in said.values()} == {tuple(map(str, said[0]["views"]))}


def test_after_a_loss_that_nobody_planned_all_go_on_together_and_then_as_it_was_planned_anew(tmp_path):
    replan = answering(tmp_path, planned(TWO_THEN_ALL, 3))
    strategy = Static(phases=GroupPhases(tuple(Phase.from_groups(4, groups) for groups in PAIRS_THEN_ALL)))
    code, said, text = run({2: ("before the sum", 5)}, strategy=strategy, steps=300, replan=replan, pause=pause)
    assert code == 0, text
    (round_,) = switched(text)
    lost = next(after for after, members in said[0]["views"] if len(members) == 3)

    def groups(r):
        if r < lost:
            return PAIRS_THEN_ALL[r % 3]
        return [THREE] if r < round_ else [tuple(THREE[place] for place in one) for one in TWO_THEN_ALL[r % 2]]

    assert lost == 5
    assert own(said) == near(replayed(groups, THREE, gradients=False, steps=300)), text


@pytest.mark.parametrize("instant", ["voting", "rebuilding"])
def test_where_one_dies_during_the_switch_nobody_switches_and_the_rest_goes_on_together(tmp_path, instant):
    replan = answering(tmp_path, planned(PAIRS_THEN_ALL))
    code, said, text = run({2: (instant, 0)}, strategy=TOGETHER, steps=300, replan=replan, pause=pause)
    assert code == 0, text
    lost = next(after for after, members in said[0]["views"] if len(members) == 3)
    groups = lambda r: [ALL] if r < lost else [THREE]  # noqa: E731
    assert own(said) == near(replayed(groups, THREE, gradients=False, steps=300)), text
    assert "without worker 2 the other 3 go on together" in text


def test_what_is_not_proved_or_what_a_planner_fails_over_is_never_proposed(tmp_path):
    false = answering(tmp_path, planned(PAIRS_THEN_ALL, is_proved=False))
    failing = Replan((sys.executable, "-c", "raise SystemExit(3)"), settling=0.3)
    for replan, why in ((false, "certificate"), (failing, "the planner ended with exit code 3")):
        code, said, text = run({}, strategy=TOGETHER, steps=200, replan=replan, pause=pause)
        assert code == 0, text
        assert own(said) == near(replayed(lambda _: [ALL], ALL, gradients=False, steps=200)), text
        assert "planning anew failed, and all go on as they do" in text
        assert why in text
        assert not switched(text)


def test_schedules_for_which_nothing_is_planned_anew_are_refused_in_a_line():
    code, said, text = run({}, strategy=AllReduce(), replan=Replan(("cat",)))
    assert (code, said) == (MissingFeatureError.exit_code, {}), text
    assert "it averages gradients in each step, and no such run is planned anew yet; leave out --replan" in text
