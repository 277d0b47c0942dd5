"""What survivors run is planned for every class of losses: the same groups where these serve, better ones else."""

from dataclasses import replace
from typing import Any

import pytest

from partreduce.planner import contingencies
from partreduce.planner.contingencies import FACTOR, survival, survivors_of
from partreduce.planner.job import Job
from partreduce.planner.lateness import Lateness
from partreduce.planner.measuring import measure
from partreduce.planner.plan import plan
from partreduce.runtime.worker.goes_on import refusal_of
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.contingency import Contingency, Survivors, after_loss
from partreduce.topo.document.writer import schedule_text
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.hardware import Hardware, Link, Switch
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    Codec,
    Form,
    Generated,
    How,
    Late,
    Outer,
    Pipeline,
    Routes,
    RulePhases,
    Sending,
    Static,
)
from partreduce.verify import prove
from partreduce.verify.base import Status
from partreduce.verify.certificate import confirm

HARDWARE = Hardware(nic=Link(2e-5, 2e-10), inside=Link(5e-6, 1e-10), model_bytes=100_000_000, compute=0.01)
NODES = Static(phases=RulePhases((3,), ((Block((0, 1)),), (Block((0, 1), (0,)),))))
LEADERS = Static(phases=RulePhases((3,), ((Block((0, 1)),), (Block((0,), (0,)),))))
"""Who loses its node's local rank 0 is cut off."""


def job(nodes: int, size: int, survive: int, hardware: Hardware = HARDWARE) -> Job:
    return Job(cluster=Cluster.regular(nodes, size, hardware=hardware), survive=survive)


def test_groups_that_still_serve_are_kept_and_all_is_proved() -> None:
    asked = job(3, 2, 2)
    found = survival(Schedule("nodes", asked.cluster, NODES), asked, is_given=True)
    assert [one.lost for one in found.schedule.contingencies] == [(0,), (0, 1), (0, 2)]
    assert {one.groups for one in found.schedule.contingencies} == {Survivors.REMAINING}
    assert found.words.endswith("survivors go on: of 3 classes of losses, in 3 they keep their groups")
    assert prove(found.schedule).verdict is Status.PROVED


def test_only_what_the_run_time_goes_on_with_is_planned() -> None:
    asked = replace(job(2, 2, 1), effort=0.2)
    assert not refusal_of(plan(asked).recommendation.schedule)
    layers = Schedule("layers", asked.cluster, AllReduce(how=How(sending=Sending.LAYERS)))
    assert refusal_of(layers)
    with pytest.raises(ScheduleError, match="only what is sent whole goes on"):
        survival(layers, asked, is_given=True)
    for other in ("gap", "quorum"):
        with pytest.raises(InputError, match=f"when: is {other}; no such schedule goes on after a loss yet; leave out"):
            replace(asked, **{other: True})


@pytest.mark.parametrize(("when", "waits"), [(Lateness.PIPELINE, Pipeline()), (Lateness.LATE, Late())])
def test_what_comes_late_is_planned_for_and_proved(when: Lateness, waits: Pipeline | Late) -> None:
    asked = replace(job(2, 2, 2), when=when, effort=0.2)
    found = plan(asked).recommendation.schedule
    assert found.strategy.when == waits
    assert {(0,), (0, 1)} <= {one.lost for one in found.contingencies}
    assert not refusal_of(found)
    proof = prove(found)
    assert proof.verdict is Status.PROVED
    assert "survives" in confirm(replace(found, certificate=proof.certificate))
    for one in found.contingencies:
        assert after_loss(found, one.lost).strategy.when == waits


def test_sums_in_stages_are_recommended_where_they_are_faster_and_survivors_go_on_with_them() -> None:
    asked = replace(job(2, 2, 1), effort=0.2)
    found = plan(asked).recommendation
    assert found.form is Form.HIERARCHICAL
    assert not refusal_of(found.schedule)
    assert prove(found.schedule).verdict is Status.PROVED


@pytest.mark.parametrize(
    "options", [{"how": How(form=Form.HIERARCHICAL, codec=Codec.INT8)}, {"what": Routes(outer=Outer(lr=0.7))}]
)
def test_survivors_of_codecs_and_outer_steps_have_a_round_of_all(options: dict[str, Any]) -> None:
    asked = job(3, 2, 2)
    found = survival(Schedule("nodes", asked.cluster, replace(NODES, **options)), asked, is_given=True).schedule
    assert len(found.contingencies) == 3
    assert all(
        after_loss(found, one.lost).strategy.has_round_of_all(after_loss(found, one.lost).cluster)
        for one in found.contingencies
    )
    assert prove(found).verdict is Status.PROVED


def test_survivors_that_would_be_cut_off_get_other_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contingencies, "ANEW", 0)
    asked = job(3, 2, 1)
    found = survival(Schedule("leaders", asked.cluster, LEADERS), asked, is_given=True).schedule
    groups = {one.lost: one.groups for one in found.contingencies}
    assert groups == {(0,): Survivors.ALL, (1,): Survivors.REMAINING, (0, 1): Survivors.REMAINING}
    assert prove(found).verdict is Status.PROVED


def test_what_the_planner_finds_for_the_cluster_that_is_left_is_taken_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search is replaced by its answer: two quick phases for a node less, which are to be measured and proved."""
    rule = RulePhases((2,), ((Block((0, 1)),), (Block((0, 1)),), (Block((0, 1)),), (Block((0, 1), (0,)),)))
    monkeypatch.setattr(
        contingencies,
        "groups_for",
        lambda asked, _: [rule] if asked.cluster.num_workers == 4 and asked.cluster.is_regular else [],
    )
    asked = job(3, 2, 1, replace(HARDWARE, nic=Link(2e-5, 1e-8), compute=0.001))
    bare = Schedule("nodes", asked.cluster, NODES)
    found = survival(bare, asked).schedule
    groups = {one.lost: one.groups for one in found.contingencies}
    assert groups[0, 1] == rule
    left = replace(asked, cluster=survivors_of(asked.cluster, (0, 1)))
    own, remaining = (
        measure(after_loss(replace(bare, contingencies=(Contingency((0, 1), one),)), {0, 1}), left).time
        for one in (rule, Survivors.REMAINING)
    )
    assert remaining > FACTOR * own
    assert prove(found).verdict is Status.PROVED


def test_a_rule_of_a_million_workers_has_a_small_file() -> None:
    asked = job(250_000, 4, 1)
    found = survival(build("node-then-all", asked.cluster), asked, is_given=True).schedule
    assert {one.groups for one in found.contingencies} == {Survivors.REMAINING}
    assert len(schedule_text(found)) < 2000
    assert prove(found).verdict is Status.PROVED


def test_all_reduce_needs_no_groups() -> None:
    asked = job(3, 2, 2)
    found = survival(Schedule("all", asked.cluster, AllReduce()), asked)
    assert [one.lost for one in found.schedule.contingencies] == [(0,), (0, 1)]
    assert found.words.endswith("survivors go on with All-Reduce")


def test_hardware_of_what_is_left_has_its_new_numbers() -> None:
    fast, slow = Link(0, 1e-10), Link(0, 1e-9)
    hardware = replace(
        HARDWARE,
        node_nic=((0, slow), (2, fast)),
        slowdown=((1, 2.0), (5, 3.0)),
        switches=(Switch((0, 1), fast), Switch((0, 1, 2), slow), Switch((2,), fast)),
    )
    left = survivors_of(Cluster.regular(3, 2, hardware=hardware), (0, 1))
    assert left.shape() == Cluster.regular(2, 2)
    assert left.hardware == replace(
        hardware,
        node_nic=((1, fast),),
        slowdown=((3, 3.0),),
        switches=(Switch((0,), fast), Switch((0, 1), slow), Switch((1,), fast)),
    )
    both = survivors_of(Cluster.regular(3, 2, hardware=hardware), (4, 5))
    assert both.hardware is not None
    assert both.hardware.switches == (Switch((0, 1), slow),)


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(InputError, match="survive: is 5, of 6 workers; plan for the loss of 1 to 4"):
        job(3, 2, 5)
    with pytest.raises(InputError, match="survive: is 1, of 2 workers; a loss would leave nobody"):
        job(2, 1, 1)
    with pytest.raises(ScheduleError, match=r"strategy\.kind: is generated"):
        survival(Schedule("drawn", Cluster.regular(3, 2), Generated()), job(3, 2, 1))


def test_too_many_classes_are_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contingencies, "MAX_CONTINGENCIES", 5)
    asked = job(2, 4, 2)
    with pytest.raises(InputError, match="losses of 2 workers fall into over 5 classes, which no file holds; take 1"):
        survival(build("prague-figure-10", asked.cluster), asked)
