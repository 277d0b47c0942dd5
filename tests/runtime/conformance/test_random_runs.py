"""Random schedules and training loops: the model of every worker matches plain torch after each step.

`PARTREDUCE_DRAWN_RUNS=100 pytest tests/runtime/conformance/test_random_runs.py -k match` runs 100 times as many.
"""

import os
from dataclasses import replace

import pytest
import torch

from helpers.conformance.draws import FAMILIES, problems
from partreduce import strategies as st
from partreduce.runtime.averaging import bucketed_gradients
from partreduce.runtime.averaging import reducer as reduction
from partreduce.runtime.averaging import reference as outer_optimizer
from partreduce.runtime.averaging.reduction import PARAMETERS
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.strategies import gradient_average, parameter_average
from partreduce.runtime.strategies.parameter_average import Part
from partreduce.topo.strategies import payload

MORE = int(os.environ.get("PARTREDUCE_DRAWN_RUNS", "1"))
BASE = int(os.environ.get("PARTREDUCE_TEST_SEED", "0"))
SEEDS = {"coded": 8, "pipelines": 12}
"""Seeds of one row, among which every codec occurs; 6 for the other families."""
BLOCKS = {"groups": 6, "coded": 3, "graphs": 4, "outer": 4, "fragments": 4, "fragments of groups": 2, "pipelines": 2}
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:partreduce. schedule .* has a pipeline of 3"),
    pytest.mark.filterwarnings("ignore:partreduce. gradients were changed"),  # each worker clips its local gradients
]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    """Each layer is sent by itself."""
    monkeypatch.setattr(bucketed_gradients, "SEGMENT_BYTES", 0)


@pytest.mark.parametrize(
    ("family", "block"), [(family, block) for family, count in BLOCKS.items() for block in range(count * MORE)]
)
def test_random_runs_match_plain_torch(ranks, tmp_path, family, block):
    count = SEEDS.get(family, 6)
    for seed in range(BASE + block * count, BASE + (block + 1) * count):
        assert problems(ranks, FAMILIES[family](seed), tmp_path / str(seed)) == []


def test_split_arrays_change_no_result(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(reduction, "SPLIT_BYTES", 0)
    for seed in range(BASE, BASE + 6):
        assert problems(ranks, FAMILIES["groups"](seed), tmp_path / str(seed)) == []


def draw(family, count=300):
    cases = [FAMILIES[family](seed) for seed in range(count)]
    return cases, [case.strategy for case in cases]


def test_random_loops_cover_common_idioms():
    for family in FAMILIES:
        cases, _ = draw(family, 100)
        assert {bool(case.skips) for case in cases} == {True, False}
        assert {case.is_uneven for case in cases} == {True, False}
        assert {case.decay for case in cases} == {1, 0.8}
        assert {case.clip for case in cases} >= ({"", "value", "mean"} if family == "pipelines" else {"", "norm"})
        assert {bool(case.reopens) for case in cases} == {True, False}


def test_random_groups_and_graphs_cover_every_setting():
    cases, strategies = draw("groups")
    assert {case.workers for case in cases} == {2, 3, 4, 5, 6}
    assert {case.dtype for case in cases} == {torch.float64, torch.float32}
    assert {bool(case.options) for case in cases} == {True, False}, "different initial models, and equal ones"
    assert {(one.is_delayed, one.averaging) for one in strategies} == {
        (late, averaging) for late in (True, False) for averaging in st.Averaging
    }
    assert {getattr(one, "prologue", 0) for one in strategies} == {0, 1}
    assert {(one.kind, one.averages_gradients) for one in strategies} == {
        *((kind, gradients) for kind in ("allreduce", "server") for gradients in (True, False)),
        ("static", False),
    }
    phases = [phase for one in strategies if one.kind == "static" for phase in one.phases.phases]
    assert {len(group.members) for phase in phases for group in phase} == {2, 3, 4, 5, 6}
    assert {group.relaxation > 1 for phase in phases for group in phase} == {True, False}
    assert any(len(phase.members) < phase.num_workers for phase in phases), "some worker is in no group"
    coded = draw("coded")[1]
    assert {(one.transport.codec, one.is_delayed) for one in coded} == {
        (codec, late) for codec in st.Codec if codec.rounds for late in (True, False)
    }
    assert {(one.kind, one.averaging) for one in coded} == {
        (kind, averaging) for kind in ("allreduce", "static") for averaging in st.Averaging
    }
    for one in strategies, coded, draw("graphs")[1]:
        assert {isinstance(strategy.steps_per_round, tuple) for strategy in one} == {True, False}
    edges = [{edge[:2] for edge in round_.edges()} for one in draw("graphs")[1] for round_ in one.rounds]
    assert any(not one for one in edges), "a round without edges"
    assert {{(t, s) for s, t in one} == one for one in edges} == {True, False}, "directed and symmetric graphs"


def test_random_outer_steps_and_fragments_cover_every_setting():
    cases, strategies = draw("outer")
    outer = [one.payload.outer for one in strategies]
    assert {(one.nesterov, one.is_plain) for one in outer} == {(True, False), (False, True), (False, False)}
    assert {one.outer_params for one in outer} == set(st.OuterParams)
    assert {one.kind for one in strategies} == {"static", "allreduce"}
    assert {one.averaging for one in strategies} == set(st.Averaging)
    assert any(one.steps_once for one in strategies), "an outer step after each step"
    cases, strategies = draw("fragments", 400)
    assert {one.payload.num_fragments for one in strategies} == {1, 2, 3, 4}
    assert {type(one.payload.fragments) for one in strategies} == {int, tuple}
    assert {(type(one.sync), one.payload.outer.is_plain) for one in strategies} >= {
        (st.DelayedMerge, True),
        (st.DelayedMerge, False),
    }
    assert any(one.steps_per_round % one.payload.num_fragments for one in strategies), "fragments not evenly spaced"
    flying = [max(1, -(-one.sync.late_steps * one.payload.num_fragments // one.steps_per_round)) for one in strategies]
    assert {1, 2, 3, 4} <= set(flying)
    assert any(count % case.steps_of(0) for case in cases for count in case.batches), "data that ends inside a round"
    cases, strategies = draw("fragments of groups", 100)
    assert {one.payload.outer.is_plain for one in strategies} == {True, False}
    assert {isinstance(one.steps_per_round, tuple) for one in strategies} == {True, False}


def test_random_pipelines_cover_every_setting():
    cases, strategies = draw("pipelines")
    late = [one for one in strategies if isinstance(one.sync, st.Pipeline)]
    assert {(one.sync.width, one.sync.drain, one.sync.total) for one in late} == {
        (width, drain, total) for width in (2, 3) for drain in st.DrainPolicy for total in st.GradientReduction
    }
    assert {one.sync.warm_up for one in late} == {0, 1, 2, 3}
    assert {(one.transport.codec, one.transport.gradient_buckets) for one in strategies} == {
        *((codec, st.GradientBuckets.SINGLE) for codec in st.Codec),
        *((codec, st.GradientBuckets.PER_LAYER) for codec in st.Codec if not codec.has_blocks),
    }
    assert {one.transport.algorithm for one in strategies} == set(st.AllReduceAlgorithm)
    assert {one.transport.error_feedback for one in strategies} == {True, False}
    assert {bool(case.absent) for case in cases} == {True, False}
    assert {case.inner for case in cases} == {"sgd", "momentum", "nesterov", "adam", "adamw"}
    assert any(max(case.batches) < case.lag + 1 for case in cases), "training ends before the first gradient returns"


def _wrong_divisor(patch):
    patch.setattr(reduction.Reduction, "num_members", property(lambda self: len(self.group.members) + 1))
    patch.setattr(reduction, "sums_agree", lambda sums, _tag, _k: torch.tensor(True))


def _outer_step(**wrong):
    step = outer_optimizer.outer_step
    return lambda patch: patch.setattr(
        outer_optimizer, "outer_step", lambda outer, *given: step(replace(outer, **wrong), *given)
    )


def _round_ends(wrong):
    ends = payload.round_ends
    return lambda patch: patch.setattr(payload, "round_ends", lambda *given: wrong(ends(*given)))


commit_mean, send, begin = parameter_average.commit_mean, Part.send, reduction.Reducer.begin
FAULTS = {
    "relaxation ignored": (
        "groups",
        lambda patch: patch.setattr(
            parameter_average, "commit_mean", lambda b, sums, _, ok, **__: commit_mean(b, sums, 1.0, ok)
        ),
    ),
    "late averages replace the model": (
        "groups",
        lambda patch: patch.setattr(
            parameter_average,
            "commit_delayed",
            lambda b, sums, _, relaxation, ok: commit_mean(b, sums, relaxation, ok),
        ),
    ),
    "wrong divisor": ("groups", _wrong_divisor),
    "no outer momentum": ("outer", _outer_step(momentum=0, nesterov=False)),
    "no look ahead": ("outer", _outer_step(nesterov=False)),
    "half the outer rate": ("outer", _outer_step(lr=0.35)),
    "parameters themselves by a codec": (
        "coded",
        lambda patch: patch.setattr(
            reduction.Reducer,
            "begin",
            lambda self, *place, content=PARAMETERS: begin(self, *place[:4], replace([*place, content][4], since=None)),
        ),
    ),
    "movements since the start by a codec": (
        "coded",
        lambda patch: patch.setattr(Reference, "take", lambda *_: None),
    ),
    "outer parameters of the start": ("outer", lambda patch: patch.setattr(Reference, "take", lambda *_: None)),
    "fragments a step early": ("fragments", _round_ends(lambda ends: [end - 1 or end for end in ends])),
    "fragments in another order": ("fragments", _round_ends(lambda ends: ends[::-1])),
    "fragments merged whole": ("fragments", lambda patch: patch.setattr(st.AllReduce, "_relaxation", 1)),
    "one fragment forgotten": (
        "fragments",
        lambda patch: patch.setattr(Part, "send", lambda self, *a, **k: "2" in self.name or send(self, *a, **k)),
    ),
    "gradients one step too late": (
        "pipelines",
        lambda patch: patch.setattr(st.Pipeline, "lag", property(lambda self: self.width)),
    ),
    "own gradients first": (
        "pipelines",
        lambda patch: patch.setattr(gradient_average, "clear_gradients", lambda _: None),
    ),
    "late gradients forgotten": (
        "pipelines",
        lambda patch: patch.setattr(gradient_average.GradientAverage, "settle", lambda _, ends=False: None),
    ),
}


@pytest.mark.filterwarnings("ignore:partreduce")
@pytest.mark.parametrize("fault", FAULTS)
def test_seeded_bug_is_detected(ranks, tmp_path, monkeypatch, fault):
    family, plant = FAULTS[fault]
    plant(monkeypatch)
    cases = (replace(FAMILIES[family](seed), reopens=()) for seed in range(40))
    if fault == "one fragment forgotten":
        cases = (case for case in cases if case.strategy.payload.num_fragments > 2)
    assert any(problems(ranks, case, tmp_path / str(case.seed)) for case in cases)
