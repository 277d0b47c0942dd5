"""`partreduce schema`: the JSON Schemas of our files."""

import json
from pathlib import Path
from typing import Annotated

import typer

from partreduce.console import claim_stdout, console, emit_json, write_text
from partreduce.topo.document.schema import cluster_schema, pilot_schema, schedule_schema


def command(
    format_: Annotated[str, typer.Argument(help="schedule, cluster or pilot.", metavar="[FORMAT]")] = "schedule",
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it here instead of printing it.")] = None,
) -> None:
    """Print the JSON Schema that every schedule, cluster or pilot file obeys."""
    schemas = {"schedule": schedule_schema, "cluster": cluster_schema, "pilot": pilot_schema}
    if format_ not in schemas:
        raise typer.BadParameter(f"{format_!r} is not one of {', '.join(schemas)}", param_hint="FORMAT")
    document = schemas[format_]()
    if output is None:
        emit_json(document)
        return
    claim_stdout(output)
    write_text(output, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    console().print(f"schema written to {output}")
