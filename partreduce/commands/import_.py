"""`partreduce import`: read another tool's graph or schedule and write it as a schedule file."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from partreduce.commands.options import Json, panel, parameters_of
from partreduce.console import claim_stdout, console, emit_json, suggest_verify
from partreduce.report.table import Column, table
from partreduce.schedulers.imports import import_schedule
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.document.writer import write_schedule

Format = StrEnum(
    "Format",
    ["node-link", "graphml", "edge-list", "npy", "matrix-stack", "maxtext", "torchft", "torchtitan", "partreduce"],
)
"""The choices of --format, equal to `schedulers.imports.formats()`."""
Weights = StrEnum("Weights", ["metropolis", "uniform", "best-constant"])
own = panel()


def command(
    file: Annotated[Path, typer.Argument(help="A graph or schedule file of another tool.", metavar="FILE")],
    *,
    format_: Annotated[
        Format | None, own("Its format; recognized by name and content when left out.", "--format")
    ] = None,
    cluster: Annotated[str | None, own("Where the workers run, such as 4x4 (default: a node for each).")] = None,
    weights: Annotated[Weights, own("For graphs without weights.")] = Weights.metropolis,
    param: Annotated[list[str] | None, own("An option of the format.", "--param", "-p", metavar="KEY=VALUE")] = None,
    output: Annotated[Path | None, own("Where to write the schedule.", "--output", "-o")] = None,
    as_json: Json = False,
) -> None:
    """Turn a networkx graph, an edge list or mixing matrices into a schedule; check it with `verify`.

    DiLoCo settings of MaxText (YAML), torchft and torchtitan (TOML) are explained and proved or refuted, too.
    """
    claim_stdout(output, as_json=as_json)
    notes: list[str] = []
    rows: list[tuple[str, str, str]] = []
    try:
        schedule = import_schedule(
            file, format=format_, cluster=None if cluster is None else load_cluster(cluster), weights=weights,
            notes=notes, rows=rows, **parameters_of(param or [], place="--param"),
        )  # fmt: skip
    finally:
        if rows:
            settings = table(f"{file}", "setting", "value", Column("what it does", justify="left", wraps=True))
            for row in rows:
                settings.add(*row)
            console(errors=True).print(settings)
    if output is not None:
        write_schedule(output, schedule)
    for note in notes:
        console(errors=True).print(f"Note: {note}.")
    if as_json or output is None:
        facts = {"name": schedule.name, "num_workers": schedule.num_workers, "sha256": schedule_sha256(schedule)}
        facts |= {"notes": notes}
        emit_json(facts | {"output": str(output)} if as_json and output else dump_schedule(schedule))
        return
    console().print(f"{file}: {schedule.num_workers} workers, period {schedule.period}, written to {output}")
    suggest_verify(output)
