"""`preduce design`: build a schedule for a cluster and write it as JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from preduce.commands.options import Json

if TYPE_CHECKING:
    from topo.schedule import Schedule


def command(
    cluster: Annotated[str, typer.Argument(help="4x4, 3,3,2, or a cluster file (.yaml, .json).", metavar="CLUSTER")],
    *,
    using: Annotated[str | None, typer.Option(help="Name of a catalogue entry.", metavar="NAME")] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="A parameter of that entry.", metavar="KEY=VALUE")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name to write into the file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the schedule.")] = None,
    as_json: Json = False,
) -> None:
    """Build a schedule from the catalogue; without -o the file's content goes to standard output."""
    from dataclasses import replace

    from preduce.api import catalogue, design
    from preduce.console import console, emit_json
    from topo.document import dump_schedule, schedule_sha256, write_schedule

    if using is None:
        raise typer.BadParameter(
            f"is needed: name a catalogue entry, one of {', '.join(catalogue())}", param_hint="--using"
        )
    schedule = design(cluster, using=using, **parameters_of(param or []))
    if name is not None:
        schedule = replace(schedule, name=name)
    if output is not None:
        write_schedule(output, schedule)
    if not as_json and output is None:
        emit_json(dump_schedule(schedule))
        return
    facts = {
        "name": schedule.name,
        "strategy": schedule.strategy.kind,
        "num_workers": schedule.num_workers,
        "period": phases_of(schedule)[0],
        "num_distinct_phases": phases_of(schedule)[1],
        "sha256": schedule_sha256(schedule),
    }
    if as_json:
        emit_json(facts | ({"output": str(output)} if output else {"schedule": dump_schedule(schedule)}))
        return
    console().print(
        f"{schedule.name} for {schedule.cluster}: {schedule.num_workers} workers, strategy {schedule.strategy.kind}, "
        f"period {facts['period'] or 'none'}, written to {output}"
    )
    console().print(f"Next: preduce verify {output}", style="dim")


def phases_of(schedule: "Schedule") -> tuple[int | None, int | None]:
    """The period and the number of distinct phases, or None for strategies that have no fixed phases."""
    from topo.strategies import AllReduce, Neighbor, Static

    if isinstance(schedule.strategy, Static | AllReduce | Neighbor):
        return schedule.period, schedule.num_distinct_phases()
    return None, None


def parameters_of(entries: list[str]) -> dict[str, object]:
    """`every=4` → {"every": "4"}; the entry itself reads the values.

    Raises:
        InputError: an entry without `=`, or a key given twice.
    """
    from topo.errors import InputError

    found: dict[str, object] = {}
    for entry in entries:
        key, sign, value = entry.partition("=")
        key = key.strip().replace("-", "_")
        if not sign or not key.isidentifier():
            raise InputError(f"--param {entry!r}: write KEY=VALUE, such as every=4")
        if key in found:
            raise InputError(f"--param {entry!r}: {key} is given twice")
        found[key] = value.strip()
    return found
