"""DiLoCo settings of torchft and MaxText: both known faults are refuted with a witness, valid ones are imported."""

import contextlib
import json
import random
import re
from fractions import Fraction
from itertools import pairwise

import pytest

from helpers.command_runs import ran
from helpers.refusals import check_error
from partreduce import Cluster, import_schedule
from partreduce.errors import InputError, MissingDependencyError, RefutedError
from partreduce.schedulers.imports.diloco import torchft_buckets
from partreduce.strategies import AllReduce, DelayedMerge, OuterStep, Payload
from partreduce.topo.strategies.payload import round_ends
from partreduce.verify import prove

DILOCO = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
SIX_AND_SIX = {"model_fragments": [[6, 6]], "use_bucketization": True, "bucket_cap_mb": 8 * 4 / 2**20}
"""Tensors of 4-byte elements, and buckets of 8 elements."""


@pytest.fixture
def torchft(tmp_path):
    def write(**settings):
        path = tmp_path / "torchft.json"
        path.write_text(json.dumps({"sync_every": 20, "outer_optimizer": DILOCO, "num_replicas": 4} | settings))
        return path

    return write


@pytest.fixture
def maxtext(tmp_path):
    def write(**settings):
        path = tmp_path / "maxtext.yaml"
        lines = {"base_config": "base.yml", "enable_diloco": True, "dcn_diloco_parallelism": 2, "pure_nnx": True}
        path.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in (lines | settings).items()))
        return path

    return write


def findings(path):
    rows = []
    with contextlib.suppress(RefutedError, MissingDependencyError):
        import_schedule(path, rows=rows)
    return {name: (value, meaning) for name, value, meaning in rows}


def test_maxtext_19_fragments_in_36_steps_repeat_after_38(maxtext):
    path = maxtext(enable_streaming_diloco=True, diloco_sync_period=36, num_diloco_fragments=19)
    check_error(RefutedError, "every 19 · 2 = 38 steps, not 36: fragment 0 in steps 38 and 76", import_schedule, path)


def test_torchft_tensor_across_two_buckets_is_refuted(torchft):
    with pytest.raises(RefutedError, match=r"tensor 1 of fragment 0 has 6 numbers .* \(1 of 2\) are never averaged"):
        import_schedule(torchft(**SIX_AND_SIX))
    assert findings(torchft(**SIX_AND_SIX | {"use_bucketization": False}))["every tensor is sent"][0] == "proved"
    assert findings(torchft(**SIX_AND_SIX | {"model_fragments": 1}))["every tensor is sent"][0] == "not proved"


@pytest.mark.parametrize("which", ["maxtext", "torchft"])
def test_import_command_explains_and_refutes_settings(which, maxtext, torchft, tmp_path, capsys):
    made = {
        "maxtext": lambda: maxtext(enable_streaming_diloco=True, num_diloco_fragments=19),
        "torchft": lambda: torchft(**SIX_AND_SIX),
    }
    errors = ran(capsys, ["import", str(made[which]()), "-o", str(tmp_path / "s.json")], 1).err
    assert "outer step" in errors
    assert "refuted" in errors
    assert errors.count("partreduce: ") == 1
    assert not (tmp_path / "s.json").exists()


def sent_by_maxtext(period, fragments, steps):
    """List (step, fragment) as in MaxText's training step: the next fragment every round(H / P) steps."""
    spacing = max(1, round(period / fragments))
    return [(step, step % (fragments * spacing) // spacing) for step in range(1, steps + 1) if step % spacing == 0]


def sent_by_torchft(sync_every, fragments, steps):
    """List (step, fragment) as in torchft's hook: by a local counter that resets, and the manager's step."""
    sent, local, committed = [], 0, 0
    for step in range(1, steps + 1):
        local += 1
        if local == sync_every // fragments:
            sent.append((step, committed % fragments))
            local, committed = 0, committed + 1
    return sent


def test_period_is_proved_exactly_if_each_fragment_is_sent_once(maxtext, torchft):
    draw = random.Random("periods")
    seen = {"proved": 0, "refuted": 0}
    for _ in range(120):
        period, fragments = draw.randrange(2, 40), draw.randrange(2, 20)
        if draw.random() < 0.4:
            period = fragments * draw.randrange(1, 6)
        path = maxtext(enable_streaming_diloco=True, diloco_sync_period=period, num_diloco_fragments=fragments)
        status, _ = findings(path)["once a period"]
        sent = sent_by_maxtext(period, fragments, 6 * period + 6 * fragments)
        steps = {f: [step for step, which in sent if which == f] for f in range(fragments)}
        once = all(b - a == period for times in steps.values() for a, b in pairwise(times))
        assert (status == "proved") == once, (period, fragments)
        seen[status] += 1
        if period % fragments == 0:
            sent = sent_by_torchft(period, fragments, 3 * period)
            assert [which for _, which in sent] == [*range(fragments)] * 3
            assert findings(torchft(sync_every=period, model_fragments=fragments))["once a period"][0] == "proved"
    assert min(seen.values()) > 30


def test_buckets_hold_only_whole_tensors():
    """There are as many buckets as all elements fill; each takes the next tensors that fit as a whole."""
    assert torchft_buckets([6, 6], 8) == [1, 0]
    assert torchft_buckets([6, 2, 6], 8) == [2, 1]
    assert torchft_buckets([9, 1], 8) == [0, 0], "the first tensor never fits and blocks the second"
    assert torchft_buckets([4, 4, 4], 4) == [1, 1, 1]
    draw = random.Random("buckets")
    for _ in range(500):
        sizes, capacity = [draw.randrange(1, 9) for _ in range(draw.randrange(1, 6))], draw.randrange(1, 14)
        taken = torchft_buckets(sizes, capacity)
        assert len(taken) == -(-sum(sizes) // capacity)
        first = 0
        for count in taken:
            assert sum(sizes[first : first + count]) <= capacity
            first += count


def test_valid_settings_become_a_schedule_with_an_outer_step(maxtext, torchft):
    outer = Payload(outer=OuterStep(**DILOCO))
    schedule = import_schedule(torchft())
    assert schedule.strategy == AllReduce(steps_per_round=20, payload=outer)
    assert schedule.num_workers == 4
    assert prove(schedule).verdict == "proved"
    schedule = import_schedule(maxtext(), cluster=Cluster.regular(2, 8))
    assert schedule.strategy == AllReduce(
        steps_per_round=36, payload=Payload(outer=OuterStep(lr=0.3, momentum=0.9, nesterov=True))
    )
    assert schedule.num_workers == 16


def test_alpha_becomes_a_relaxation(torchft):
    """As in torchft, the outer parameters are the global model, and the worker interpolates toward it."""
    schedule = import_schedule(torchft(fragment_update_alpha=0.25))
    assert schedule.phase(0)[0].relaxation == Fraction(3, 4)
    assert schedule.strategy.payload.outer == OuterStep(**DILOCO)


def test_torchft_fragments_keep_the_steps_of_its_hook(torchft):
    path = torchft(model_fragments=4, fragment_sync_delay=3)
    schedule = import_schedule(path)
    outer = Payload(outer=OuterStep(**DILOCO), fragments=4)
    assert schedule.strategy == AllReduce(steps_per_round=20, sync=DelayedMerge(steps=3), payload=outer)
    assert prove(schedule).verdict == "proved"
    ends = [20 * round_ + end for round_ in range(3) for end in round_ends(4, 20)]
    assert list(zip(ends, [0, 1, 2, 3] * 3, strict=True)) == sent_by_torchft(20, 4, 60), "merged there, 3 steps late"
    found = findings(path)
    assert found["fragments"] == ("4", "one of them is sent every 5 steps")
    assert found["merged in time"][0] == "proved"
    assert "is dropped" in found["α"][1]


def test_maxtext_fragments_keep_their_order(maxtext):
    """MaxText sends its fragment 1 first; fragments by number differ only in their numbering."""
    streams = {"enable_streaming_diloco": True, "num_diloco_fragments": 6, "num_communication_overlapping_steps": 2}
    schedule = import_schedule(maxtext(**streams, communication_overlapping_alpha=0.5))
    outer = Payload(outer=OuterStep(lr=0.3, momentum=0.9, nesterov=True), fragments=6)
    assert schedule.strategy == AllReduce(steps_per_round=36, sync=DelayedMerge(steps=2, alpha="1/2"), payload=outer)
    assert [step for step, _ in sent_by_maxtext(36, 6, 36)] == list(round_ends(6, 36))


def test_fragment_must_be_merged_before_its_next_transfer(maxtext):
    late = {"enable_streaming_diloco": True, "num_diloco_fragments": 6, "num_communication_overlapping_steps": 35}
    assert import_schedule(maxtext(**late)).strategy.sync == DelayedMerge(steps=35)
    late["num_communication_overlapping_steps"] = 36
    words = "merged in time is refuted: merged 36 steps after it is sent, and sent again after 36"
    check_error(RefutedError, words, import_schedule, maxtext(**late))


@pytest.mark.parametrize(("settings", "words"), [
    ({"sync_every": 10, "model_fragments": 3}, "sync_every: is 10; torchft asks for a multiple of the 3 fragments"),
    ({"fragment_sync_delay": 20}, "fragment_sync_delay: is 20; torchft asks for less than 20 / 1 steps"),
    ({"fragment_update_alpha": 2}, "fragment_update_alpha: is 2; it must be a number from 0 to 1"),
    ({"sync_evry": 3}, 'has the unknown key "sync_evry"; did you mean "sync_every"?'),
    ({"outer_optimizer": None}, "outer_optimizer: is null; it must be such as"),
    ({"outer_optimizer": {"lr": 0.7, "nesterov": True}}, "no momentum that it could look ahead with"),
    ({"outer_optimizer": {"lr": [1]}}, "payload.outer.lr: is [1]; it is a number such as 0.7"),
    ({"model_fragments": [[6, 0]]}, "it must list the numbers of elements of the fragment's tensors"),
    ({"model_fragments": []}, "model_fragments: is []; there must be at least 1 fragment"),
    ({"num_replicas": None}, "does not say how many replicas there are; give a cluster"),
    (SIX_AND_SIX | {"bucket_cap_mb": 1e-9}, "a bucket must hold at least 1 number"),
])  # fmt: skip
def test_invalid_torchft_settings_are_refused_in_one_line(torchft, settings, words):
    check_error(InputError, re.escape(words), import_schedule, torchft(**settings))


def test_invalid_maxtext_settings_are_refused(maxtext):
    words = "enable_diloco: is false; it must be true, or there are no outer steps"
    check_error(InputError, words, import_schedule, maxtext(enable_diloco=False))
    words = "num_diloco_fragments: is null; it must be a whole number, at least 2"
    check_error(InputError, words, import_schedule, maxtext(enable_streaming_diloco=True))


TITAN = """
[fault_tolerance]
enable = true
group_size = 4
semi_sync_method = "{method}"
sync_steps = 20
fragment_sync_delay = 1
{more}
"""


def titan(tmp_path, more="", method="diloco"):
    path = tmp_path / "train_configs.toml"
    path.write_text(TITAN.format(more=more, method=method))
    return import_schedule(path)


def test_torchtitan_fragment_modules_become_patterns(tmp_path):
    modules = 'module_fqns_per_model_fragment = [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]'
    outer = OuterStep(**DILOCO)
    patterns = (("tok_embeddings.*", "layers.0.*"), ("layers.1.*", "norm.*", "output.*"))
    schedule = titan(tmp_path, modules)
    assert schedule.strategy == AllReduce(
        steps_per_round=20, sync=DelayedMerge(steps=1), payload=Payload(outer=outer, fragments=patterns)
    )  # fmt: skip
    assert schedule.num_workers == 4
    assert prove(schedule).verdict == "proved"
    by_number = titan(tmp_path, "num_fragments = 4\nfragment_update_alpha = 0.5").strategy
    assert by_number == AllReduce(
        steps_per_round=20, sync=DelayedMerge(steps=1, alpha="1/2"), payload=Payload(outer=outer, fragments=4)
    )  # fmt: skip
    assert titan(tmp_path, method="local_sgd").strategy == AllReduce(steps_per_round=20)


@pytest.mark.parametrize(("more", "method", "words"), [
    ("num_fragments = 3", "diloco", "sync_steps: is 20; torchft asks for a multiple of the 3 fragments"),
    ("", "hivemind", 'semi_sync_method: is "hivemind"; it must be "diloco" or "local_sgd", with enable = true'),
    ("module_fqns_per_model_fragment = [[]]", "diloco", "it must list the modules of each fragment"),
    ("num_fragments = ", "diloco", "document: is no TOML"),
    ("num_fragments = 20", "diloco", "fragment_sync_delay: is 1; torchft asks for less than 20 / 20 steps"),
])  # fmt: skip
def test_invalid_torchtitan_settings_are_refused_in_one_line(tmp_path, more, method, words):
    check_error(InputError, re.escape(words), titan, tmp_path, more, method)
