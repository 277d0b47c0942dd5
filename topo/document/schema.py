"""JSON Schemas of the formats, generated from the models that read them.

`python -m preduce.topo.document.schema` writes them into `schemas/`; `--check` only says whether they are current.
"""

from __future__ import annotations

import json
import sys
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, create_model

from preduce.topo.document.cluster import ListedClusterModel, RegularClusterModel
from preduce.topo.document.kinds import MODULES, kind_of
from preduce.topo.document.schedule import ScheduleEnvelope

FOLDER = Path(__file__).resolve().parents[2] / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schedule_schema() -> dict[str, Any]:
    """The JSON Schema of schedule files."""
    models = [model for name in MODULES for model in kind_of(name).models]
    strategies: Any = reduce(or_, models)
    whole: Any = create_model("Schedule", __base__=ScheduleEnvelope, strategy=(strategies, ...))
    return _finished(whole.model_json_schema(), "preduce schedule, version 1", ScheduleEnvelope.__doc__)


def cluster_schema() -> dict[str, Any]:
    """The JSON Schema of cluster files."""
    adapter: TypeAdapter[Any] = TypeAdapter(RegularClusterModel | ListedClusterModel)
    about = "The shape of a cluster and, where known, its hardware."
    return _finished(adapter.json_schema(), "preduce cluster, version 1", about)


def _finished(schema: dict[str, Any], title: str, about: str | None) -> dict[str, Any]:
    schema.pop("title", None)
    return {
        "$schema": DIALECT,
        "title": title,
        "description": about,
        **{key: _without_titles(value) for key, value in schema.items()},
    }


def _without_titles(value: object) -> object:
    """Drop the titles that pydantic derives from field names: they say nothing and differ between its versions."""
    if isinstance(value, dict):
        return {k: _without_titles(v) for k, v in value.items() if not (k == "title" and isinstance(v, str))}
    return [_without_titles(item) for item in value] if isinstance(value, list) else value


def texts() -> dict[str, str]:
    """The file name and the text of every schema."""
    made = {"schedule.schema.json": schedule_schema(), "cluster.schema.json": cluster_schema()}
    return {
        name: json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n" for name, schema in made.items()
    }


def stale(folder: Path = FOLDER) -> list[str]:
    """The names of the schemas in `folder` that are absent or differ from what the models say."""
    return [
        name
        for name, text in texts().items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    """Write the schemas, or with `--check` compare them; the exit code."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m preduce.topo.document.schema [--check]\n")
        return 2
    old = stale()
    if not arguments:
        FOLDER.mkdir(exist_ok=True)
        for name, text in texts().items():
            (FOLDER / name).write_text(text, encoding="utf-8")
    elif old:
        sys.stderr.write(
            f"schemas/{', schemas/'.join(old)}: differ from the models; run `python -m preduce.topo.document.schema`\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
