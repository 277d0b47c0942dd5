"""`partreduce schema`: the JSON Schemas of partreduce's files."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from partreduce.console import claim_stdout, console, emit_json, write_text
from partreduce.topo.document.schema import cluster_schema, pilot_schema, schedule_schema

Format = StrEnum("Format", ["schedule", "cluster", "pilot"])


def command(
    format_: Annotated[Format, typer.Argument(help="The kind of file.")] = Format.schedule,
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it here instead of printing it.")] = None,
) -> None:
    """Print the JSON Schema that every schedule, cluster or pilot file obeys."""
    schemas = {Format.schedule: schedule_schema, Format.cluster: cluster_schema, Format.pilot: pilot_schema}
    document = schemas[format_]()
    if output is None:
        emit_json(document)
        return
    claim_stdout(output)
    write_text(output, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    console().print(f"schema written to {output}")
