"""Planning anew by what workers measured: the cluster as they found it, and only what is clearly better, proved."""

import io
import json
import sys

import pytest

from partreduce.planner import replan
from partreduce.planner.replan import answer, refreshed, replanned
from partreduce.topo.cluster import Cluster
from partreduce.topo.contingency import after_loss, check_switch
from partreduce.topo.document.schedule import dump_schedule, schedule_of
from partreduce.topo.errors import ScheduleError
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, Static
from partreduce.topo.timing.cost import communication
from partreduce.verify.certificate import confirm

EIGHT = Schedule("given", Cluster.regular(2, 4), AllReduce(pace=2))
NODES, ALL = [(0, 1, 2, 3), (4, 5, 6, 7)], [tuple(range(8))]


def static(*phases, workers=8):
    return GroupPhases(tuple(Phase.from_groups(workers, groups) for groups in phases))


def said(members, groups, *, compute=0.01, seconds=0.05, slow=(), rounds=10):
    """What workers say who have all had these groups; who is first to an average waits for the last."""
    listed = {member: [] for member in members}
    for round_ in range(rounds):
        for group in groups:
            for place, member in enumerate(group):
                listed[member].append([round_, list(group), 4_000_000, seconds + 0.001 * place])
    each = {member: compute * (5 if member in slow else 1) for member in members}
    return {member: {"steps": 40, "compute": 40 * each[member], "averages": listed[member]} for member in members}


@pytest.fixture
def offered(monkeypatch):
    """The planner finds these groups."""
    groups = [static(NODES, NODES, NODES, ALL)]
    monkeypatch.setattr(replan, "groups_for", lambda job, pace: groups)
    return groups


def test_the_cluster_is_as_the_last_comers_to_averages_found_it():
    cluster = refreshed(EIGHT, range(8), said(range(8), ALL, seconds=0.2, slow=(3,)))
    hardware = cluster.hardware
    assert hardware.compute == pytest.approx(0.01)
    assert hardware.slowdown == ((3, pytest.approx(5.0)),)
    assert communication(EIGHT, hardware).per_round == pytest.approx(0.2)
    assert hardware.nic.seconds_per_byte == pytest.approx(2 * hardware.inside.seconds_per_byte)


def test_links_inside_nodes_and_between_them_are_told_apart_where_groups_are():
    schedule = Schedule("both", EIGHT.cluster, Static(phases=static(NODES, ALL)))
    inside, across = said(range(8), NODES, seconds=0.01), said(range(8), ALL, seconds=0.5)
    for worker, one in inside.items():
        one["averages"] = [[2 * r, *rest] for r, *rest in one["averages"]]
        one["averages"] += [[2 * r + 1, *rest] for r, *rest in across[worker]["averages"]]
    found = communication(schedule, refreshed(schedule, range(8), inside).hardware)
    assert found.phases == (pytest.approx(0.01), pytest.approx(0.5))


def test_too_little_that_was_measured_tells_nothing():
    few = said(range(8), ALL)
    assert refreshed(EIGHT, range(8), {**few, 2: {**few[2], "steps": 7}}) is None
    assert refreshed(EIGHT, range(8), {worker: few[worker] for worker in range(7)}) is None
    assert refreshed(EIGHT, range(8), said(range(8), ALL, rounds=7)) is None


def test_groups_that_are_clearly_better_on_slow_links_are_proved_and_only_groups_change(offered):
    found = replanned(EIGHT, EIGHT, range(8), said(range(8), ALL, seconds=1.0))
    assert found.schedule.strategy.phases == offered[0]
    assert found.after.time * 1.1 <= found.before.time
    assert confirm(found.schedule)
    check_switch(EIGHT, found.schedule)


def test_where_nothing_is_clearly_better_nothing_changes(offered):
    assert replanned(EIGHT, EIGHT, range(8), said(range(8), ALL, seconds=0.0005)) is None
    better = Schedule("better", EIGHT.cluster, Static(phases=static(NODES, NODES, NODES, ALL), pace=2))
    slow = said(range(8), ALL, seconds=1.0)
    for worker, one in said(range(8), NODES, seconds=0.01).items():
        slow[worker]["averages"] = [[3 + 4 * r, *rest] for r, *rest in slow[worker]["averages"]]
        slow[worker]["averages"] += [[4 * r, *rest] for r, *rest in one["averages"]]
    assert replanned(better, better, range(8), slow) is None
    gradients = Schedule("gradients", EIGHT.cluster, AllReduce())
    assert replanned(gradients, gradients, range(8), said(range(8), ALL, seconds=1.0)) is None


def test_survivors_of_a_loss_get_a_plan_in_numbers_of_their_own(monkeypatch):
    members = (0, 1, 2, 4, 5, 6, 7)
    groups = static([(0, 1, 2), (3, 4, 5, 6)], [(0, 1, 2), (3, 4, 5, 6)], [tuple(range(7))], workers=7)
    monkeypatch.setattr(replan, "groups_for", lambda job, pace: [groups])
    now = after_loss(EIGHT, {3})
    found = replanned(EIGHT, now, members, said(members, [members], seconds=1.0))
    assert found.schedule.num_workers == 7
    assert found.schedule.strategy.phases == groups
    check_switch(now, found.schedule)


def test_a_question_and_its_answer_are_json(offered, monkeypatch):
    question = {
        "schedule": dump_schedule(EIGHT),
        "now": dump_schedule(EIGHT),
        "members": list(range(8)),
        "measured": said(range(8), ALL, seconds=1.0),
    }
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(question)))
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(replan.os, "nice", lambda _: 0)
    replan.main()
    found = json.loads(output.getvalue())
    assert schedule_of(found["schedule"]).strategy.phases == offered[0]
    assert (found["before"]["period"], found["after"]["period"]) == (1, 4)
    assert found["gain"] > 1.1
    question["measured"] = {str(w): one for w, one in said(range(8), ALL, seconds=0.0005).items()}
    assert answer(question) == {}


@pytest.mark.parametrize(
    ("strategy", "place"),
    [
        (Static(phases=static(ALL), pace=3), "strategy.pace"),
        (AllReduce(), "strategy.pace"),
    ],
)
def test_what_is_more_than_other_groups_is_no_switch(strategy, place):
    with pytest.raises(ScheduleError, match=place):
        check_switch(EIGHT, Schedule("other", EIGHT.cluster, strategy))
    with pytest.raises(ScheduleError, match="num_workers: is 8, and would be 7"):
        check_switch(EIGHT, after_loss(EIGHT, {3}))
