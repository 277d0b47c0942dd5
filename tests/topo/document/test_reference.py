"""The examples of docs/file-format.md are what the page says they are."""

import json
import re
from pathlib import Path

import pytest

from partreduce import load_cluster
from partreduce.files import dump_schedule, parse_schedule
from partreduce.topo import units
from partreduce.topo.document.cluster import dump_cluster
from partreduce.topo.document.schema import schedule_schema
from partreduce.topo.document.writer import schedule_text

PAGE = (Path(__file__).parents[3] / "docs" / "file-format.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r'^```(\w+) title="(schedule|cluster)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
SCHEDULES = [text for _, what, text in BLOCKS if what == "schedule"]


def test_the_page_has_examples_of_every_kind():
    from partreduce.topo.document.strategies import KINDS

    assert {json.loads(text)["strategy"]["kind"] for text in SCHEDULES} == set(KINDS)
    assert [language for language, what, _ in BLOCKS if what == "cluster"] == ["yaml", "json"]


@pytest.mark.parametrize("text", SCHEDULES, ids=range(len(SCHEDULES)))
def test_schedule_examples_load_and_are_their_own_dump(text):
    schedule = parse_schedule(text.encode())
    assert dump_schedule(schedule) == json.loads(text)
    assert parse_schedule(schedule_text(schedule).encode()) == schedule


def test_the_rule_example_is_written_as_the_page_shows_it():
    schedule = parse_schedule(SCHEDULES[0].encode())
    assert schedule_text(schedule) == SCHEDULES[0]


@pytest.mark.parametrize(("language", "what", "text"), [b for b in BLOCKS if b[1] == "cluster"], ids=["yaml", "json"])
def test_cluster_examples_load(tmp_path, language, what, text):
    path = tmp_path / f"cluster.{language}"
    path.write_text(text, encoding="utf-8")
    cluster = load_cluster(path)
    assert cluster.hardware is not None
    assert (
        set(dump_cluster(cluster)["hardware"])
        == {
            "yaml": {
                "inside",
                "nic",
                "bus",
                "node_nic",
                "switches",
                "slowdown",
                "jitter",
                "codec",
                "model_bytes",
                "compute",
                "layers",
                "backward",
            },
            "json": {"nic", "slowdown"},
        }[language]
    )


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
