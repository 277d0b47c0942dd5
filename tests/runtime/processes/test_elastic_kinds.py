"""After failures and joins the models of every elastic kind equal a replay of its membership views.

This is the column "failure" of the conformance table: for each kind the instants of failures and joins.
"""

import itertools
import os
import random
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from helpers import coded_sums
from helpers.elastic_runs import (
    ALL,
    EVEN_ODD,
    FOUR,
    INSTANTS,
    LEFT,
    RATE,
    THREE,
    gradient,
    launch_workers,
    near,
    pairs_until,
    replay_means,
    replayed_by_steps,
    replayed_gradients,
    report,
    run_to_the_end,
    start_of,
)
from helpers.training import group_phases, static_groups
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st
from partreduce.errors import ScheduleError
from partreduce.runtime.averaging import bucketed_gradients
from partreduce.runtime.data.sampler import assign_samples
from partreduce.topo import strategies as of
from partreduce.topo.strategies.axes import SYNCHRONOUS
from partreduce.topo.survivors import after_failure

pytestmark = pytest.mark.processes
WIDE, BLOCK = 192, 16
"""Number of parameters of a model with staged sums, and of a codec's block."""
LAYER = 16
"""Number of parameters of a layer that is sent by itself."""
DILOCO = st.OuterStep(lr=0.75, momentum=0.5, nesterov=True)
OWN = st.OuterStep(lr=0.75, momentum=0.25, outer_params=of.OuterParams.PER_WORKER)
HALVES = (("weight0",), ("weight1",))
FRAGMENTS_IN_TURN = st.Payload(outer=DILOCO, fragments=HALVES)
ERROR_FEEDBACK = {"block": BLOCK, "error_feedback": True}
BY_STEPS = st.AllReduce(steps_per_round=(2, 3, 1), averaging=of.Averaging.STEP_NORMALIZED)
LATE = of.DelayedAveraging()
PAIRS = group_phases(4, *EVEN_ODD)
OWN_PAIRS = st.StaticGroups(phases=PAIRS, payload=st.Payload(outer=OWN))
PAIRS_THEN_ALL = group_phases(4, [(0, 1), (2, 3)], [FOUR])
KEEP = st.FailurePlan(st.SurvivorRule.KEEP_GROUPS, 1)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    """Make a layer of `LAYER` parameters one segment, as a large layer is."""
    monkeypatch.setattr(bucketed_gradients, "SEGMENT_BYTES", 8 * LAYER)


def coded_sum(given, left, top=127):
    """The sum of rows coded in blocks with error feedback, and the rounding errors of the rows and of the sum."""
    coded, total = np.empty_like(given), np.empty_like(given[0])
    result = np.empty_like(total)
    for part in (slice(*bounds) for bounds in coded_sums.cut(len(total), len(given), BLOCK)):
        coded[:, part] = [coded_sums.in_blocks(values, BLOCK, top) for values in given[:, part]]
        total[part] = coded_sums.add_in_order(coded[:, part]) + left[part]
        result[part] = coded_sums.in_blocks(total[part], BLOCK, top)
    return result, given - coded, total - result


def rounded_means(ended, survivors, *, steps, size, codec):
    """Replay a run with coded gradients in NumPy; error feedback restarts with each view."""
    model, members = np.array(start_of(size), np.float32), ()
    for step in range(steps):
        if ended.members(step) != members:
            members = ended.members(step)
            given_left, sum_left = np.zeros((len(members), size), np.float32), np.zeros(size, np.float32)
        given = np.array([gradient(rank, step, size) for rank in members], np.float32) / np.float32(len(members))
        mean = given[0]
        if len(members) > 1:
            mean, given_left, sum_left = coded_sum(given + given_left, sum_left, coded_sums.LEVELS[codec])
        model -= np.float32(RATE) * mean
    return dict.fromkeys(survivors, model.tolist())


class CodedMean:
    """Delayed int8 means in NumPy: a worker sends the difference of its start from the last mean of all workers."""

    def __init__(self, size):
        self.reference = np.array(start_of(size), np.float32)

    def __call__(self, starts):
        if len(starts) == 1:  # a single worker sends nothing, so nothing is rounded
            self.reference = np.array(starts[0], np.float32)
        else:
            given = [(np.float32(start) - self.reference) / np.float32(len(starts)) for start in starts]
            self.reference = self.reference + coded_sum(np.stack(given), np.zeros_like(given[0]))[0]
        return self.reference


def replay_averages(ended, survivors, *, is_coded=False, **run):
    run |= {"mean_of": CodedMean(run["size"])} if is_coded else {}
    return replay_means(ended.groups, survivors, joins=ended.joins, **run)


def by_steps(ended, survivors, *, steps):
    worker_steps = BY_STEPS.steps_per_round
    rounds = steps // max(worker_steps)
    return replayed_by_steps(ended.members, survivors, worker_steps=worker_steps, rounds=rounds, joins=ended.joins)


@dataclass(frozen=True)
class Kind:
    """A strategy, the options of its run, and its replay with a relative and an absolute tolerance."""

    strategy: object
    run: dict
    replay: object
    errors: tuple = (1e-12, 1e-12)
    end: object = None
    """The models after `finish()`, for kinds that apply updates there."""

    def holds(self, deaths, survivors=None, **options):
        """Check that the models of `survivors` (by default all finished workers) equal the replay of a run."""
        run = self.run | options
        ended = run_to_the_end(deaths, strategy=self.strategy, **run)
        sizes = {name: run[name] for name in ("steps", "size", "workers") if name in run}
        rel, abs_ = self.errors
        expected = self.replay(ended, survivors or sorted(ended.reports), **sizes)
        assert ended.own == {r: pytest.approx(one, rel=rel, abs=abs_) for r, one in expected.items()}, ended.text
        if self.end is not None:
            assert all(
                one["end"] == pytest.approx(self.end(ended, **sizes), rel=1e-14) for one in ended.reports.values()
            )
        assert self.strategy is BY_STEPS or {one["steps"] for one in ended.reports.values()} == {run.get("steps", 9)}
        assert len({tuple(one["end"]) for one in ended.reports.values()}) == 1, ended.text
        return ended


def code_gradients(codec, errors=(0, 0), **transport):
    strategy = st.AllReduce(transport=st.Transport(codec=codec, **ERROR_FEEDBACK, **transport))
    run = {"size": WIDE, "dtype": torch.float32, "steps": 9}
    return Kind(strategy, run, partial(rounded_means, codec=codec.value), errors)


def progress(codec, error):
    strategy = st.AllReduce(steps_per_round=3, transport=st.Transport(codec=codec))
    run = {"size": WIDE, "dtype": torch.float32, "steps": 24}
    return Kind(strategy, run, partial(replay_averages, steps_per_round=3), (1e-6, error))


def late(steps_per_round, steps, **transport):
    strategy = st.AllReduce(steps_per_round=steps_per_round, sync=LATE, transport=st.Transport(**transport))
    replay = partial(replay_averages, steps_per_round=steps_per_round, overlaps=True, gradients=False)
    if transport:  # sometimes a number is rounded the other way, by one level of 127 of the progress of a few rounds
        run, replay = {"size": 64, "dtype": torch.float32}, partial(replay, is_coded=True)
        return Kind(strategy, run | {"steps": steps}, replay, (1e-5, 0.05))
    return Kind(strategy, {"steps": steps}, replay)


def pipeline(width, *, warm_up=0, errors=(0, 0), size=3, dtype=torch.float64, transport=None, **sync):
    sync = of.Pipeline(width=width, warm_up=warm_up, **sync)
    strategy = st.AllReduce(sync=sync, transport=transport or st.Transport())
    late = {"lag": sync.lag, "warm_up": warm_up, "total": sync.total is of.GradientReduction.SUM, "size": size}

    def replay(ended, *, steps=9, **_):
        return replayed_gradients(ended.members, joined=ended.joined, steps=steps, **late)

    own = lambda ended, survivors, **run: dict.fromkeys(survivors, replay(ended, **run)[0])  # noqa: E731
    end = None if transport else lambda ended, **run: replay(ended, **run)[1]
    return Kind(strategy, {"size": size, "dtype": dtype}, own, errors, end)


def in_turns(payload=FRAGMENTS_IN_TURN, sync=SYNCHRONOUS, *, steps=18, fragments=2, **replay):
    strategy = st.AllReduce(steps_per_round=4, payload=payload, sync=sync)
    outer = payload.outer if payload.outer.lr != 1 else None
    replay = partial(replay_averages, steps_per_round=4, fragments=fragments, outer=outer, **replay)
    return Kind(strategy, {"steps": steps, "parameters": fragments}, replay)


LAYERS = st.AllReduce(transport=st.Transport(gradient_buckets=st.GradientBuckets.PER_LAYER))
BFLOAT16, EIGHT_BITS = st.Transport(codec=of.Codec.BFLOAT16), st.Transport(codec=of.Codec.INT8, block=8)
IN_SHORT = {"size": 512, "dtype": torch.float32}
KINDS = {
    "gradients": Kind(st.AllReduce(), {}, replay_averages, (0, 0)),
    "parameters": Kind(st.AllReduce(steps_per_round=3), {}, partial(replay_averages, steps_per_round=3)),
    **{f"pipeline of {width}": pipeline(width) for width in (2, 3, 4)},
    "pipeline with warm-up": pipeline(3, warm_up=3),
    "pipeline of sums": pipeline(2, total=of.GradientReduction.SUM),
    # These gradients are exact in bfloat16 and nearly exact in int8.
    "pipeline in bfloat16": pipeline(3, transport=BFLOAT16, **IN_SHORT),
    "pipeline in int8": pipeline(3, transport=EIGHT_BITS, errors=(0, 0.2), **IN_SHORT),
    "codec": code_gradients(of.Codec.INT8),
    "codec of 4 bits": code_gradients(of.Codec.INT4),
    "layers": Kind(LAYERS, {"steps": 9, "size": 3 * LAYER, "parameters": 3}, replay_averages, (0, 0)),
    "layers by a codec": code_gradients(of.Codec.INT8, gradient_buckets=st.GradientBuckets.PER_LAYER),
    # The progress since the last average of all workers is exact in bfloat16.
    "progress in bfloat16": progress(of.Codec.BFLOAT16, 1e-6),
    "progress in int8": progress(of.Codec.INT8, 0.5),
    "outer": Kind(
        st.AllReduce(steps_per_round=3, payload=st.Payload(outer=DILOCO)),
        {"steps": 18},
        partial(replay_averages, steps_per_round=3, outer=DILOCO),
    ),
    "outer of each worker": Kind(
        static_groups(3, [ALL], payload=st.Payload(outer=OWN)),
        {"steps": 24},
        partial(replay_averages, gradients=False, outer=OWN),
    ),
    "by steps": Kind(BY_STEPS, {"steps": 18}, by_steps),
    "late": late(3, 18),
    "late, every step": late(1, 6),
    "late by a codec": late(3, 18, codec=of.Codec.INT8, block=BLOCK),
    "in turns": in_turns(),
    "in turns, plain": in_turns(st.Payload(fragments=HALVES)),
    "merged 1 late": in_turns(sync=of.DelayedMerge(steps=1, alpha=0.25), steps=26, late=1, alpha=0.25),
    # The first fragment is sent in the round before, so that two fragments are in flight at once.
    "merged 3 late": in_turns(sync=of.DelayedMerge(steps=3, alpha=0.25), steps=26, late=3, alpha=0.25),
    "replaced 1 late": in_turns(sync=of.DelayedMerge(steps=1), steps=40, late=1),
    "replaced 3 late": in_turns(sync=of.DelayedMerge(steps=3), steps=40, late=3),
    "one fragment, merged late": in_turns(
        st.Payload(outer=DILOCO), of.DelayedMerge(steps=2, alpha=0.5), steps=26, fragments=1, late=2, alpha=0.5
    ),
}
IN_FLIGHT = {"before the sum": 4, "in flight": 5, "prepared": 5}
UP_TO_COMMIT = ["before the sum", "in the sum", "prepared", "confirmed"]
DEATHS = [
    # kind, instant and round or turn of the death of worker 1, rounds where the others may resume (+1 if "confirmed")
    *(("gradients", instant, 4, {3, 4} if instant == "confirmed" else {4}) for instant in UP_TO_COMMIT),
    *(("parameters", instant, 1, {1}) for instant in UP_TO_COMMIT[::2]),
    *(
        # Gradients due in step 4 are applied where their sum is awaited.
        (f"pipeline of {width}", instant, number, {4, 5})
        for width in (2, 3)
        for instant, number in [*IN_FLIGHT.items(), ("in the sum", 6 - width)]
    ),
    *((f"pipeline of {width}", "applying", 6 - width, {5, 6}) for width in (2, 4)),
    *(("pipeline of 4", instant, 1, None) for instant in ("before the sum", "in flight")),  # no sum has arrived yet
    *(("pipeline with warm-up", "in flight", turn, {turn}) for turn in (3, 4)),
    *((f"pipeline {which}", "in flight", 5, None) for which in ("of sums", "in bfloat16", "in int8")),
    *(("codec", instant, 4, None) for instant in UP_TO_COMMIT),
    *(("layers", instant, 4, {3, 4}) for instant in ("layers left", *UP_TO_COMMIT[1:])),
    ("layers by a codec", "in the sum", 4, None),
    *((f"progress in {codec}", instant, 1, {1}) for codec in ("bfloat16", "int8") for instant in UP_TO_COMMIT[::2]),
    *(("outer", instant, 2, None) for instant in UP_TO_COMMIT),
    *(("by steps", instant, 3, {2, 3, 4}) for instant in UP_TO_COMMIT),
    *((kind, instant, 3, {2, 3}) for kind in ("late", "late, every step") for instant in ("in flight", *UP_TO_COMMIT)),
    *(("late by a codec", instant, 3, None) for instant in ("before the sum", "in flight", "prepared", "confirmed")),
    *(("in turns", instant, (2, fragment), {4 + fragment}) for instant in UP_TO_COMMIT for fragment in (0, 1)),
    ("in turns, plain", "prepared", (2, 0), {4}),
    *((f"merged {lag} late", instant, (2, 0), None) for lag in (1, 3) for instant in UP_TO_COMMIT),
]


@pytest.mark.parametrize(
    ("kind", "instant", "dies", "resumes"), DEATHS, ids=["-".join(map(str, row[:3])) for row in DEATHS]
)
def test_survivors_of_a_killed_worker_match_a_replay(kind, instant, dies, resumes):
    plan = st.FailurePlan(st.SurvivorRule.ALL_REDUCE, 1) if kind == "merged 3 late" else None
    ended = KINDS[kind].holds({1: (instant, dies)}, LEFT, failure_plan=plan)
    (_, first), (resumed, second) = ended.views
    assert (first, second) == (ALL, LEFT), ended.text
    assert resumes is None or resumed - (instant == "confirmed") in resumes
    if kind.startswith("progress"):
        assert [one["reference"] for one in ended.reports.values()] == [7] * 2, "the last round"
    if kind == "outer" or kind.startswith(("progress", "codec")):
        assert len({tuple(model) for model in ended.own.values()}) == 1
    place = f"round {resumed // 2} (fragment {resumed % 2})" if kind.startswith("in turns") else f"round {resumed}"
    models = "their models are equal" if KINDS[kind].strategy.averages_gradients else "the mean moved by 1/2 of"
    if kind.startswith(("gradients", "parameters", "pipeline", "in turns")):
        assert f"without worker 1 the other 2 continue together from {place}; {models}" in ended.text


JOINS = {
    # kind, death of worker 1, (step at which the others wait for it, number of steps), turn in which it joins
    "gradients": ("gradients", ("before the sum", 4), (6, 14), None),
    "pipeline of 2": ("pipeline of 2", ("applying", 4), (8, 14), None),
    "pipeline of 3": ("pipeline of 3", ("before the sum", 4), (6, 14), None),
    "parameters": ("parameters", ("before the sum", 1), (6, 15), None),
    "codec": ("codec of 4 bits", ("in the sum", 4), (6, 14), None),
    "outer": ("outer", ("confirmed", 1), (6, 24), None),
    "outer of each worker": ("outer of each worker", ("before the sum", 4), (6, 18), None),
    "by steps, 1": ("by steps", ("prepared", 3), (9, 36), None),
    "by steps, 2": ("by steps", ("before the sum", 3), (9, 36), None),
    "late": ("late", ("prepared", 1), (6, 24), None),
    "late by a codec": ("late by a codec", ("confirmed", 1), (6, 24), None),
    # With merges 3 steps late the second fragment is merged after the first was sent again.
    **{
        f"{kind}, {fragment}": (kind, (instant, (1, 0)), (12 + 2 * fragment, 32), 6 + fragment)
        for kind, instant in (
            ("in turns", "confirmed"),
            ("replaced 1 late", "prepared"),
            ("replaced 3 late", "in the sum"),
        )
        for fragment in (0, 1)
    },
}


@pytest.mark.parametrize("name", JOINS)
def test_a_worker_that_rejoins_has_the_state_of_its_donor(name):
    """Models and their starts, outer parameters, momenta and references, but no error feedback."""
    kind, death, (waits_at, steps), turn = JOINS[name]
    victim = 2 if name == "by steps, 2" else 1
    ended = KINDS[kind].holds({victim: death}, ALL, steps=steps, restarts=1, back=(victim,), waits_at=waits_at)
    assert [members for _, members in ended.views] == [ALL, tuple(sorted({*ALL} - {victim})), ALL], ended.text
    assert ended.joins[victim][0] == (turn or ended.views[-1][0])
    assert not kind.startswith("outer") or len({tuple(own) for own in ended.own.values()}) == 1
    line = "; the mean moved by 1/3 of how far that state's model was from it"
    assert (line in ended.text) == (not KINDS[kind].strategy.averages_gradients)


ALONE = [
    ("gradients", ("in the sum", 3), {"steps": 14}, 5),
    ("pipeline of 3", ("in flight", 3), {"steps": 16, "waits_at": 9}, 5),
    ("outer", ("in the sum", 2), {"steps": 24, "waits_at": 12}, 2),
    ("late", ("in flight", 2), {"steps": 24, "waits_at": 12}, 2),
    ("in turns", ("in the sum", (2, 1)), {"steps": 32, "waits_at": 16}, 5),
    ("one fragment, merged late", ("in the sum", 2), {}, 5),  # and keeps its own progress
]


@pytest.mark.parametrize(("kind", "death", "options", "turn"), ALONE, ids=[row[0] for row in ALONE])
def test_a_single_survivor_averages_alone_until_a_worker_rejoins(kind, death, options, turn):
    back = {"restarts": 1, "back": (1,)} if options else {}
    survivors = (0, 1) if back else (0,)
    ended = KINDS[kind].holds({1: death}, survivors, workers=2, **options, **back)
    assert ended.members(turn) == (0,)
    assert [members for _, members in ended.views] == [(0, 1), (0,), *[(0, 1)] * bool(back)], ended.text


def test_layers_after_two_failures_and_two_rejoins():
    deaths = {2: ("layers left", 2), 1: ("layers left", 4)}
    options = {"steps": 14, "size": 2 * LAYER, "parameters": 2, "restarts": 2, "back": (1, 2)}
    assert KINDS["layers"].holds(deaths, ALL, **options).members(13) == ALL


@pytest.mark.parametrize("second", ["voting", "rebuilding"])
@pytest.mark.parametrize(
    ("kind", "first"),
    [("gradients", ("before the sum", 4)), ("late", ("in flight", 3)), ("pipeline of 3", ("in flight", 5))],
    ids=["gradients", "late", "pipeline"],
)
def test_a_second_failure_during_the_recovery_from_the_first(kind, first, second):
    KINDS[kind].holds({2: first, 0: (second, 0)}, (1, 3), workers=4)


def test_single_worker_continues_after_three_failures_in_two_rounds():
    deaths = {2: ("before the sum", 3), 0: ("prepared", 3), 1: ("in the sum", 6)}
    ended = KINDS["gradients"].holds(deaths, (3,), workers=4)
    assert [ended.members(round_) for round_ in (2, 3, 6)] == [FOUR, (1, 3), (3,)], ended.text
    assert "worker 3 continues alone from round 6" in ended.text


@pytest.mark.parametrize(
    ("kind", "others"), [("parameters", {}), ("pipeline of 3", {}), ("late", {0: ("before the sum", 0)})]
)
def test_a_failure_in_mean_model_gives_the_mean_of_the_survivors(kind, others):
    deaths = {2: ("in mean_model()", 0), **others}
    ended = KINDS[kind].holds(deaths, sorted({*FOUR} - {*deaths}), workers=4, evaluate=(4,))
    ((mean,),) = {tuple(tuple(mean) for mean in one["means"]) for one in ended.reports.values()}
    if kind == "parameters":
        assert ended.views[1:] == [(1, THREE)], ended.text
        inside = replay_means(lambda _: [FOUR], THREE, steps_per_round=3, steps=5, workers=4)
        assert mean == pytest.approx([sum(values) / 3 for values in zip(*inside.values(), strict=True)], rel=1e-14)


@pytest.mark.parametrize(
    ("kind", "dies", "breaks", "resumes"),
    [
        ("gradients", 5, 4, {5}), ("outer", 3, 2, {3}), ("late", 4, 3, {3, 4}),
        ("pipeline of 2", 5, 5, {5, 6}), ("pipeline of 4", 5, 5, {5, 6}),
    ],
)  # fmt: skip
def test_a_worker_whose_confirmation_failed_uses_the_mean_of_the_others(kind, dies, breaks, resumes):
    """Worker 1 dies when all have confirmed a round, and the confirmation of worker 2 fails."""
    ended = KINDS[kind].holds({1: ("before the sum", dies), 2: ("confirm breaks", breaks)}, LEFT)
    ((resumed, members),) = ended.views[1:]
    assert members == LEFT
    assert resumed in resumes


@pytest.mark.parametrize("kind", ["gradients", "late", "pipeline of 3"])
def test_an_elastic_run_without_failures_equals_an_ordinary_one(kind):
    assert KINDS[kind].holds({}, ALL, evaluate=(4,)).views == [(-1, ALL)]


DRAWN = {"gradients": (8, UP_TO_COMMIT, 2, 0.5), "pipeline": (6, [*IN_FLIGHT, "in the sum"], 1, 0.6)}
"""Number of runs, instants of failures outside recoveries, first round of a failure, probability of a second one."""


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, row in DRAWN.items() for seed in range(row[0])])
def test_random_failures_also_during_recovery_match_a_replay(kind, seed):
    draws, (_, instants, lowest, share) = random.Random(seed), DRAWN[kind]
    first, second = draws.sample(FOUR, 2)
    deaths = {first: (draws.choice(instants), draws.randrange(lowest, 6))}
    in_recovery = [*instants, "voting", "rebuilding"]
    if draws.random() < share:
        deaths[second] = draws.choice([*in_recovery, "giving its state"]), draws.randrange(2, 9)
    joiner = draws.choice([*in_recovery, "asking", "taking a state"]), draws.randrange(9, 20)
    again = {1: [joiner]} if draws.random() < 0.5 else {}
    row = KINDS["gradients"] if kind == "gradients" else pipeline(draws.choice([2, 3, 4]), warm_up=draws.choice([0, 3]))
    row.holds(deaths, workers=4, steps=30, restarts=2, again=again)


# Sums in stages.
HIERARCHICAL = st.Transport(algorithm=of.AllReduceAlgorithm.HIERARCHICAL)
STAGES = Kind(st.AllReduce(transport=HIERARCHICAL), {"size": WIDE}, replay_averages, (0, 0))


@pytest.mark.parametrize("instant", ["before the sum", "in the sum", "prepared"])
def test_hierarchical_sums_continue_after_a_node_failed(instant):
    ended = STAGES.holds({4: (instant, 4), 5: (instant, 4)}, FOUR, workers=6, nodes=3)
    assert (ended.members(3), ended.members(4)) == (tuple(range(6)), FOUR)
    assert all(one["in_stages"] for one in ended.reports.values())


def test_ring_replaces_hierarchical_sums_while_nodes_are_unequal():
    dies = {3: ("prepared", 4)}
    ended = STAGES.holds(dies, FOUR, workers=4, nodes=2, steps=14, restarts=1, back=(3,))
    assert [ended.members(round_) for round_ in (3, 4, 13)] == [FOUR, (0, 1, 2), FOUR]
    assert all(one["in_stages"] for one in ended.reports.values())
    left = STAGES.holds(dies, (0, 1, 2), workers=4, nodes=2).reports.values()
    assert [one["in_stages"] for one in left] == [False] * 3


# Groups: one pair may be a round ahead of or behind the other when the survivors resume.
GROUPS = {
    "pairs": (st.StaticGroups(phases=PAIRS), {}, 9),
    "late": (st.StaticGroups(phases=PAIRS, steps_per_round=2, sync=LATE), {"overlaps": True, "steps_per_round": 2}, 16),
    "outer": (st.StaticGroups(phases=PAIRS_THEN_ALL, payload=st.Payload(outer=DILOCO)), {"outer": DILOCO}, 12),
}


@pytest.mark.parametrize(
    ("kind", "instant", "lost", "plan"),
    [("pairs", instant, 4, plan) for instant in ("before the sum", "prepared") for plan in (None, KEEP)]
    + [("late", instant, 4, KEEP) for instant in ("before the sum", "in flight")]
    # A round of pairs, and one of all.
    + [("outer", instant, lost, KEEP) for instant in ("before the sum", "prepared") for lost in (4, 5)],
)
def test_groups_resume_at_the_furthest_round_with_the_failure_plan(kind, instant, lost, plan):
    """Survivors make outer steps in rounds that average over all of them."""
    strategy, options, steps = GROUPS[kind]
    ended = run_to_the_end({2: (instant, lost)}, workers=4, strategy=strategy, failure_plan=plan, steps=steps)
    schedule = Schedule("replayed", Cluster.regular(1, 4), strategy, failure_plan=plan)
    resume = next(after for after, members in ended.views if len(members) == 3)
    options = options | ({"present": lambda turn: 4 if turn < resume else 3} if kind == "outer" else {})

    def replay(own_pair):
        before = lambda round_: [group.members for group in schedule.phase(round_)]  # noqa: E731
        groups = pairs_until(resume, own_pair, after_failure(schedule, {2}), lost=lost, before=before)
        return near(replay_means(groups, THREE, workers=4, steps=steps, gradients=False, **options))

    assert ended.own in [replay([]), replay([(0, 1)])], ended.text
    assert ended.all_ended_equal(steps)


def test_survivors_of_groups_average_each_fragment_together():
    strategy = st.StaticGroups(phases=PAIRS_THEN_ALL, steps_per_round=4, payload=FRAGMENTS_IN_TURN)
    ended = run_to_the_end({2: ("before the sum", (1, 1))}, workers=4, strategy=strategy, steps=24, parameters=2)
    assert [members for _, members in ended.views] == [FOUR, THREE], ended.text
    assert ended.views[1][0] == 3, "the second fragment of the round of all"
    assert len({tuple(own[2:]) for own in ended.own.values()}) == 1, "after the last turn of the second fragment"
    assert ended.all_ended_equal(24)


@pytest.mark.parametrize("instant", UP_TO_COMMIT)
def test_survivors_keep_their_own_outer_parameters(instant):
    ended = run_to_the_end({2: (instant, 4)}, workers=4, strategy=OWN_PAIRS, steps=12)
    resume = next(after for after, members in ended.views if len(members) == 3)

    def replay(done):
        groups = lambda r: EVEN_ODD[r % 2] if r < 4 else done[r - 4] if r < resume else [THREE]  # noqa: E731
        return near(replay_means(groups, THREE, workers=4, steps=12, gradients=False, outer=OWN))

    # The survivors skip rounds that only one of the pairs had completed before the failure.
    some = [[[], pairs[:1], pairs[1:], pairs] for pairs in (EVEN_ODD[r % 2] for r in range(4, resume))]
    assert ended.own in [replay(done) for done in itertools.product(*some)], ended.text


def test_a_failure_plan_for_per_worker_outer_parameters_is_refused():
    with pytest.raises(ScheduleError, match="is per_worker; none is proved"):
        Schedule("planned", Cluster.regular(1, 4), OWN_PAIRS, failure_plan=KEEP)


def test_round_sampler_gives_the_rest_of_a_round_to_a_joining_worker():
    options = {"steps": 0, "samples": 97, "restarts": 1, "back": (1,), "waits_at": 12, "parameters": 2}
    ended = run_to_the_end({1: ("before the sum", (1, 0))}, strategy=KINDS["in turns"].strategy, **options)
    assert [members for _, members in ended.views] == [ALL, LEFT, ALL]
    rounds = dict(assign_samples(range(97), ended.views, (4,) * 3, 1, 0, turns=2))
    joined = ended.views[-1][0]
    assert len(rounds[joined // 2][1]) == (3, 1)[joined % 2], "of 4 steps; turns end after steps 2 and 4"
    for rank, one in ended.reports.items():
        mine = [sample for hands in rounds.values() for sample in hands.get(rank, [])]
        seen = [sample for _, sample in one["seen"]]
        assert seen == (mine[-len(seen) :] if rank == 1 else mine), ended.text
        assert one["steps"] == 4 * len(rounds)


# Pipelines: the end, and buffers.


@pytest.mark.parametrize("drain", list(of.DrainPolicy))
@pytest.mark.parametrize("number", [7, 8])
def test_a_failure_while_late_gradients_are_applied_at_the_end(number, drain):
    ended = run_to_the_end({1: ("at the end", number)}, strategy=st.AllReduce(sync=of.Pipeline(width=3, drain=drain)))
    expected, _ = replayed_gradients(lambda _: ALL, lag=2, steps=9)
    assert ended.own == dict.fromkeys(LEFT, expected), ended.text
    assert ended.all_ended_equal(9), ended.text
    end = ended.reports[0]["end"]
    assert (end == pytest.approx(expected, rel=1e-14)) == (drain is of.DrainPolicy.DROP)
    if number == 7 and drain is of.DrainPolicy.APPLY:
        late = replayed_gradients(ended.members, lag=2, steps=9)[1]
        assert end == pytest.approx(late, rel=1e-14), ended.text


def run_with_buffer(dies_in):
    """The parameter and buffer of each worker but worker 1 after 8 steps, by rank.

    Each step clips the means and adds to the buffer; the learning rate is halved from step 4 on.
    """

    def work():
        rank = int(os.environ["RANK"])
        if rank == 1:
            INSTANTS["in flight"](dies_in)
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        model.register_buffer("seen", torch.zeros(2, dtype=torch.float64))
        schedule = Schedule("late", Cluster.regular(1, 3), st.AllReduce(sync=of.Pipeline()))
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

    code, reports, text = launch_workers(work, max_failures=1)
    assert code == 0, text
    return {rank: (one["weight"], one["seen"]) for rank, one in reports.items()}


@pytest.mark.parametrize("dies_in", [1, 5])
def test_a_restarted_sum_averages_the_current_buffers(dies_in):
    found = run_with_buffer(dies_in)
    weight, seen, left = 0.0, dict.fromkeys(ALL, 0.0), {}
    for turn in range(8):
        members = ALL if turn < dies_in else LEFT
        seen = {rank: value + rank + 1 for rank, value in seen.items()}
        if turn:
            weight -= min(2.0, sum(rank + 1 for rank in members) / len(members)) * 0.5 ** (turn // 4)
            sent = seen if turn == dies_in else left
            mean = sum(sent[rank] for rank in members) / len(members)
            seen = {rank: mean + seen[rank] - sent[rank] for rank in members}
        left = seen
    assert found == {rank: ([pytest.approx(weight)] * 2, [pytest.approx(seen[rank])] * 2) for rank in LEFT}
