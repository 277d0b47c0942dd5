"""`partreduce export`: write a schedule as the settings of another program."""

from pathlib import Path
from typing import Annotated

import typer

from partreduce.commands.options import Json
from partreduce.console import claim_stdout, console, emit_json, write_text
from partreduce.schedulers.imports import export_schedule
from partreduce.topo.document.schedule import load_schedule


def command(
    schedule: Annotated[Path, typer.Argument(help="A schedule file.", metavar="FILE")],
    *,
    format_: Annotated[str, typer.Option("--format", help="Whose settings: maxtext, torchft, torchtitan.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write them.")] = None,
    as_json: Json = False,
) -> None:
    """Write outer steps (DiLoCo) as settings of MaxText, torchft or torchtitan, or say why that cannot be done.

    Before it writes them, it reads them back as `import` does, and must get the same schedule.
    """
    claim_stdout(output, as_json=as_json)
    loaded = load_schedule(schedule)
    text = export_schedule(loaded, format_)
    if output is not None:
        write_text(output, text)
    if as_json:
        emit_json({"name": loaded.name, "format": format_} | ({"output": str(output)} if output else {"text": text}))
    elif output is None:
        typer.echo(text, nl=False)
    else:
        console().print(f"{loaded.name}: settings of {format_}, written to {output}")
