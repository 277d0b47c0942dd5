"""The committed JSON Schemas are current, closed, and say what the models say."""

import json
import subprocess
import sys

from partreduce.topo.document.schema import FOLDER, main, stale, texts


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
    """Every object schema, wherever it stands."""
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


def test_schedule_schema_knows_every_kind():
    from partreduce.topo.document.strategies import KINDS

    schema = json.loads((FOLDER / "schedule.schema.json").read_text())
    kinds = {s["properties"]["kind"]["const"] for s in objects_of(schema) if "kind" in s["properties"]}
    assert kinds == set(KINDS)


def test_import_of_the_package_stays_cheap():
    """The front door imports partreduce.topo.document; pydantic and yaml come with the first use."""
    heavy = ("pydantic", "yaml", "json.decoder")
    code = f"import sys, partreduce.topo.document; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=FOLDER.parent)
    assert done.stdout.strip() == "[]"
