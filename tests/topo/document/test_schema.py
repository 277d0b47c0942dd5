"""Schemas, the examples of docs/file-format.md, renamed keys, and repeated phases."""

import json
import random
import re
from copy import deepcopy
from pathlib import Path

import pytest

from helpers.readings import agree, document, refusal
from helpers.refusals import check_error
from partreduce import load_cluster
from partreduce.errors import DocumentError
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.topo import units
from partreduce.topo.document.cluster import dump_cluster
from partreduce.topo.document.phases import MAX_PERIOD, MAX_UNROLLED
from partreduce.topo.document.schema import FOLDER, main, schedule_schema, stale, texts
from partreduce.topo.document.strategies import KINDS
from partreduce.topo.document.writer import schedule_text
from partreduce.topo.renamed import KEYS, VALUES
from partreduce.verify.checker.schedule import read_schedule


def test_schemas_are_current():
    assert stale() == []
    assert main(["--check"]) == 0


def test_stale_schemas_are_named(tmp_path):
    assert stale(tmp_path) == ["schedule.schema.json", "cluster.schema.json", "pilot.schema.json"]
    for name, text in texts().items():
        (tmp_path / name).write_text(text)
    assert stale(tmp_path) == []
    (tmp_path / "cluster.schema.json").write_text("{}")
    assert stale(tmp_path) == ["cluster.schema.json"]


def objects_of(schema):
    """Yield every object schema at any depth."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            yield schema
        for value in schema.values():
            yield from objects_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects_of(value)


def test_every_object_is_closed():
    for name in texts():
        found = list(objects_of(json.loads((FOLDER / name).read_text())))
        assert len(found) >= 4
        assert all(schema["additionalProperties"] is False for schema in found)


def test_schedule_schema_lists_every_kind():
    schema = json.loads((FOLDER / "schedule.schema.json").read_text())
    kinds = {s["properties"]["kind"]["const"] for s in objects_of(schema) if "kind" in s["properties"]}
    assert kinds == set(KINDS)


# The examples of docs/file-format.md


PAGE = (Path(__file__).parents[3] / "docs" / "file-format.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r'^```(\w+) title="(schedule|cluster)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
SCHEDULES = [text for _, what, text in EXAMPLES if what == "schedule"]


def test_page_has_examples_of_every_kind():
    assert {json.loads(text)["strategy"]["kind"] for text in SCHEDULES} == set(KINDS)
    assert [language for language, what, _ in EXAMPLES if what == "cluster"] == ["yaml", "json"]


@pytest.mark.parametrize("text", SCHEDULES, ids=range(len(SCHEDULES)))
def test_schedule_examples_load_and_equal_their_dump(text):
    schedule = parse_schedule(text.encode())
    assert dump_schedule(schedule) == json.loads(text)
    assert parse_schedule(schedule_text(schedule).encode()) == schedule


def test_rule_example_is_written_as_on_the_page():
    schedule = parse_schedule(SCHEDULES[0].encode())
    assert schedule_text(schedule) == SCHEDULES[0]


@pytest.mark.parametrize(("language", "what", "text"), [b for b in EXAMPLES if b[1] == "cluster"], ids=["yaml", "json"])
def test_cluster_examples_load(tmp_path, language, what, text):
    path = tmp_path / f"cluster.{language}"
    path.write_text(text, encoding="utf-8")
    cluster = load_cluster(path)
    assert cluster.hardware is not None
    keys = "inside nic bus node_nic switches slowdown jitter codec model_bytes compute layers backward"
    assert set(dump_cluster(cluster)["hardware"]) == set({"yaml": keys, "json": "nic slowdown"}[language].split())


def test_every_member_is_on_the_page():
    def keys(schema):
        if isinstance(schema, dict):
            yield from schema.get("properties", {})
            for value in schema.values():
                yield from keys(value)
        elif isinstance(schema, list):
            for value in schema:
                yield from keys(value)

    for key in set(keys(schedule_schema())):
        assert f'"{key}"' in PAGE or f"`{key}`" in PAGE


def test_every_unit_prefix_is_on_the_page():
    for unit in ("kB", "MB", "GB", "TB", "KiB", "TiB", "Tbps", "Tbit/s"):
        assert unit in PAGE
        assert unit in units.SIZES or unit in units.BANDWIDTHS


# Old files are rejected with the new names of their keys and values


GROUP = {"group": [0, 1, 2, 3]}
PARAMS = {"lr": "1/2", "momentum": "1/2"}
RING = {"edges": [[0, 1], [1, 2], [2, 3], [3, 0], [1, 0], [2, 1], [3, 2], [0, 3]], "weights": "1/3"}
STRATEGIES = [
    {"kind": "static", "phases": [[{"group": [0, 1], "relaxation": "1/2"}, {"group": [2, 3]}]], "sync": {"delay": 1}},
    {"kind": "static", "node_radices": [2], "phases": [[{"local": [0, 1], "across": [], "relaxation": "1/2"}]]},
    {"kind": "static", "phases": [[GROUP]], "sync": "synchronous", "averaging": "step-normalized"},
    {"kind": "static", "phases": [[GROUP]], "payload": {"outer": PARAMS | {"outer_params": "per_worker"}}},
    {"kind": "static", "phases": [[GROUP]], "payload": {"outer": PARAMS | {"outer_params": "shared"}}},
    {"kind": "allreduce", "steps_per_round": 2, "transport": {"algorithm": "ring", "gradient_buckets": "single"}},
    {"kind": "allreduce", "transport": {"gradient_buckets": "per_layer"}},
    {"kind": "allreduce", "sync": {"partial": {"quorum": 2, "missed": "latest", "synchronize_every": 9}}},
    *({"kind": "neighbor", "rounds": [RING], "sync": {"iteration_gap": {"max_ig": 2, "update_order": order}}}
        for order in ("adapt_then_combine", "dpsgd")),
    *({"kind": "dynamic_groups", "slow_worker_policy": policy} for policy in ("pair_locally", "defer")),
]  # fmt: skip


DOCUMENTS = [document(strategy) for strategy in STRATEGIES]
DOCUMENTS[0]["failure_plan"] = {"rule": "keep_groups", "failures": 1}


def inner_objects(value):
    """Yield every object of a document."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from inner_objects(item)


@pytest.mark.parametrize("raw", DOCUMENTS)
def test_documents_use_current_names(raw):
    parse_schedule(json.dumps(raw).encode())


RENAMED = [(None, *pair) for pair in KEYS.items()]
RENAMED += [(key, *pair) for key, values in VALUES.items() for pair in values.items()]


@pytest.mark.parametrize(("key", "old", "new"), RENAMED)
def test_renamed_key_or_value_is_rejected_with_its_new_name(key, old, new):
    problems = set()
    for raw in map(deepcopy, DOCUMENTS):
        for inner in inner_objects(raw):
            is_key = key is None and new in inner
            if is_key or (key is not None and inner.get(key) == new):
                current = dict(inner)
                inner.update({old: inner.pop(new)} if is_key else {key: old})
                with pytest.raises(DocumentError) as caught:
                    parse_schedule(json.dumps(raw))
                problems.add(caught.value.problem)
                inner.clear()
                inner.update(current)
    assert problems == {f'"{old}" is called "{new}" now; rename it'}


def test_renamed_key_is_unknown_where_the_new_name_is_invalid():
    raw = document({"kind": "allreduce", "order": "serial"})
    check_error(DocumentError, 'strategy: has the unknown key "order"', parse_schedule, json.dumps(raw).encode())


# A repeated phase is written once with its count, and has the schedule and hash of the listed phases


BLOCKS = ([{"local": [0, 1], "across": []}], [{"local": [0], "across": [0]}], [])
GROUPS = ([{"group": [0, 1]}, {"group": [2, 3], "relaxation": "1/2"}], [{"group": [3, 0]}], [])


def static(phases, *shape, **strategy):
    return document({"kind": "static", "phases": phases, **strategy}, *shape)


@pytest.mark.parametrize("seed", range(20))
def test_repeated_phases_equal_listed_phases(seed):
    draw = random.Random(seed)
    phases, more = (BLOCKS, {"node_radices": [2]}) if seed % 2 else (GROUPS, {})
    entries = [(draw.choice(phases), draw.choice((1, 1, 2, 5))) for _ in range(draw.randrange(1, 6))]
    listed = [phase for phase, count in entries for _ in range(count)]
    short = [{"phase": phase, "repeat": count} if count > 1 else phase for phase, count in entries]
    whole = parse_schedule(json.dumps(static(listed, **more)))
    repeated = parse_schedule(json.dumps(static(short, **more)))
    assert repeated == whole
    assert parse_schedule(schedule_text(whole)) == whole
    written = json.loads(schedule_text(whole))["strategy"]["phases"]
    assert len(written) <= len(short)
    assert all(isinstance(entry, list) or entry["repeat"] > 1 for entry in written)
    assert dump_schedule(repeated) == dump_schedule(whole)
    assert all(agree(static(form, **more)) for form in (short, listed, written))
    unrolled = dump_schedule(whole)["strategy"]["phases"]
    read = [read_schedule(static(form, **more)) for form in (unrolled, written)]
    assert {one.sha256 for one in read} == {schedule_sha256(whole)}
    assert read[0].phases == read[1].phases


def test_equal_consecutive_phases_are_written_once():
    schedule = parse_schedule(json.dumps(static([BLOCKS[0]] * 19 + [BLOCKS[1]], node_radices=[2])))
    assert json.loads(schedule_text(schedule))["strategy"]["phases"] == [{"repeat": 19, "phase": BLOCKS[0]}, BLOCKS[1]]


def test_repeats_count_toward_the_limits():
    def loads_in_both(phases, num_workers=4, **strategy):  # not `agree`, which would write all ranks of a repetition
        raw, is_read = static(phases, 1, num_workers, **strategy), True
        try:
            parse_schedule(json.dumps(raw))
        except DocumentError:
            is_read = False
        assert (refusal(raw) is None) == is_read
        return is_read

    blocks = {"node_radices": []}
    assert loads_in_both([{"phase": BLOCKS[0], "repeat": MAX_PERIOD}], **blocks)
    assert not loads_in_both([{"phase": BLOCKS[0], "repeat": MAX_PERIOD}, []], **blocks)
    size = 2**12
    phase = [{"group": list(range(size))}]
    assert loads_in_both([{"phase": phase, "repeat": MAX_UNROLLED // size}], num_workers=size)
    assert not loads_in_both([{"phase": phase, "repeat": MAX_UNROLLED // size + 1}], num_workers=size)
    assert not loads_in_both([{"phase": BLOCKS[0], "repeat": 1}], **blocks)
    assert not loads_in_both([{"phase": BLOCKS[0]}], **blocks)
    assert not loads_in_both([{"phase": {}, "repeat": 2}], **blocks)
    assert not loads_in_both([{"phase": BLOCKS[0], "repeat": 2, "more": 1}], **blocks)
