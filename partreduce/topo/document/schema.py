"""Generate the JSON Schemas of the file formats from the models that read the files.

`python -m partreduce.topo.document.schema` writes them into `schemas/`; `--check` only reports outdated ones.
`schemas/schedule.schema.json` is a link into the folder of the checker, which validates files with it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

from partreduce.topo.closed_model import adapter, dump_fraction, parse_fraction
from partreduce.topo.document.cluster import ListedClusterModel, RegularClusterModel
from partreduce.topo.document.phases import repeated_phase_schema
from partreduce.topo.document.pilot import FORMAT as PILOT_FORMAT
from partreduce.topo.document.pilot import VERSION as PILOT_VERSION
from partreduce.topo.document.schedule import ScheduleEnvelope
from partreduce.topo.document.strategies import KINDS, Kind, first_paragraph, sync_schema
from partreduce.topo.document.writer import write_file
from partreduce.topo.pilot import Pilot
from partreduce.topo.strategies.axes import Sync

FOLDER = Path(__file__).resolve().parents[3] / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schedule_schema() -> dict[str, Any]:
    """Return the JSON Schema of schedule files."""
    schema = ScheduleEnvelope.model_json_schema()
    algorithms = [algorithm for kind in KINDS.values() for algorithm in _strategy_schemas(kind, schema["$defs"])]
    schema["properties"]["strategy"] = {"anyOf": algorithms}
    schema["$defs"]["Sync"] = sync_schema()
    for form in schema["$defs"]["Sync"]["anyOf"]:
        for member in form.get("properties", {}).values():
            schema["$defs"] |= member.pop("$defs", {})
    return _finish(schema, "partreduce schedule, version 1", ScheduleEnvelope.__doc__)


def _strategy_schemas(kind: Kind, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON Schemas of a kind of strategy, one per form of its phases; add shared ones to `definitions`."""
    own = adapter(kind.value).json_schema()
    definitions |= own.pop("$defs", {})
    for value in get_args(Sync):  # `sync_schema` describes their form in documents
        definitions.pop(value.__name__, None)
    sync = {"$ref": "#/$defs/Sync", "default": "synchronous"}
    own.pop("title", None)
    own["description"] = first_paragraph(kind.value)
    own["properties"] = {"kind": {"const": kind.value.kind}, **own["properties"], "sync": sync}
    own["required"] = ["kind", *(name for name in own.get("required", ()) if name != kind.bulk)]
    own["properties"].pop(kind.bulk, None)
    if not kind.models:
        return [own]
    algorithms = []
    for model in kind.models:
        part = model.model_json_schema(ref_template="#/$defs/{model}")
        definitions |= part.pop("$defs", {})
        if (phases := part["properties"].get("phases")) is not None:
            phases["items"] = repeated_phase_schema(phases["items"])
        members = {"properties": own["properties"] | part["properties"], "description": part["description"]}
        algorithms.append(own | members | {"required": [*own["required"], *part["required"]]})
    return algorithms


def cluster_schema() -> dict[str, Any]:
    """Return the JSON Schema of cluster files."""
    about = "The shape of a cluster and, where known, its hardware."
    schema = adapter(RegularClusterModel | ListedClusterModel).json_schema()
    return _finish(schema, "partreduce cluster, version 1", about)


def pilot_schema() -> dict[str, Any]:
    """Return the JSON Schema of pilot files."""
    schema = adapter(Pilot).json_schema()
    header = {"format": {"const": PILOT_FORMAT}, "version": {"const": PILOT_VERSION}}
    schema["properties"] = header | schema["properties"]
    return _finish(schema, "partreduce pilot, version 1", Pilot.__doc__)


def _finish(schema: dict[str, Any], title: str, about: str | None) -> dict[str, Any]:
    header = {"$schema": DIALECT, "title": title, "description": about}
    return header | {key: _plainly(value) for key, value in schema.items() if key != "title"}


def _plainly(value: object) -> object:
    """Return a schema without titles, which pydantic makes from field names, differently in its versions.

    Defaults are written as in files: exact numbers in their shortest form, objects as {} because all members default.
    """
    if not isinstance(value, dict):
        return [_plainly(item) for item in value] if isinstance(value, list) else value
    result = {k: _plainly(v) for k, v in value.items() if not (k == "title" and isinstance(v, str))}
    if isinstance(result.get("default"), dict):
        result["default"] = {}
    if isinstance(result.get("default"), str) and "anyOf" in result and "enum" not in result:
        result["default"] = dump_fraction(parse_fraction(result["default"]))
    return result


def texts() -> dict[str, str]:
    """Return the JSON text of every schema, by file name."""
    made = {
        "schedule.schema.json": schedule_schema(),
        "cluster.schema.json": cluster_schema(),
        "pilot.schema.json": pilot_schema(),
    }
    return {
        name: json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n" for name, schema in made.items()
    }


def stale(folder: Path = FOLDER) -> list[str]:
    """Return the names of the schema files in `folder` that are absent or outdated."""
    return [
        name
        for name, text in texts().items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    """Write the schemas, or with the argument `--check` compare them; return the exit code: 1 if any differs."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m partreduce.topo.document.schema [--check]\n")
        return 2
    old = stale()
    if not arguments:
        FOLDER.mkdir(exist_ok=True)
        for name, text in texts().items():
            write_file(FOLDER / name, text.encode())
    elif old:
        run = "`python -m partreduce.topo.document.schema`"
        sys.stderr.write(f"schemas/{', schemas/'.join(old)}: differ from the models; run {run}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
