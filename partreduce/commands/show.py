"""`partreduce show`: draw a schedule as a worker × phase table and as groups over the nodes."""

from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from partreduce.commands.options import Json, panel, quantity
from partreduce.console import console, emit_json, write_text
from partreduce.report import page
from partreduce.report.grid import grid_of
from partreduce.report.picture import draw_rounds, draw_schedule, save
from partreduce.report.table import Column, Table, terminal_tables
from partreduce.topo.describe import describe
from partreduce.topo.document.schedule import load_schedule
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.units import parse_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


own = panel()


def command(
    schedule: Annotated[Path, typer.Argument(help="A schedule file.")],
    *,
    output: Annotated[
        Path | None, own("A .png, .svg, .pdf or .html file instead of the terminal.", "--output", "-o")
    ] = None,
    max_workers: Annotated[int, own("Draw at most this many workers.", min=1)] = 64,
    max_phases: Annotated[int, own("Draw at most this many phases.", min=1)] = 48,
    max_bytes: Annotated[str, own("Refuse larger files.", metavar="SIZE")] = "16MiB",
    as_json: Json = False,
) -> None:
    """Draw a schedule: a row per worker, a column per phase, a color and a letter per group; blank means skip."""
    loaded = load_schedule(schedule, max_bytes=quantity("--max-bytes", parse_size, max_bytes))
    if loaded.strategy.graphs:
        _show_rounds(loaded, output, as_json=as_json, max_workers=max_workers)
        return
    if not loaded.is_phased:
        raise InputError(
            f"{schedule}: strategy {loaded.strategy.kind!r} has no fixed groups to draw; `partreduce simulate` "
            "predicts how it runs"
        )

    grid = grid_of(loaded, max_workers=max_workers, max_phases=max_phases)
    plain, note = grid, _without_matrix(loaded, loaded.phased.period)
    grid = replace(grid, note=". ".join(filter(None, [grid.note, note])))
    if as_json:
        letters = [[None if g < 0 else grid.letter(g) for g in row] for row in grid.group.tolist()]
        document = {"name": loaded.name, "note": grid.note, "workers": list(grid.workers), "nodes": list(grid.nodes)}
        emit_json(document | {"groups": letters})
    elif output is None:
        screen = console()
        screen.print(fill(describe(loaded), screen.width))
        for part in terminal_tables(plain, screen.width):
            screen.print(part)
        if note:  # above the table, which may be only a few columns wide
            screen.print(note, style="dim")
    else:
        _write(
            output, loaded.name, draw_schedule(grid), grid.note or "All workers and phases.", f"{describe(loaded)}.",
            f"{loaded.num_workers} workers on {loaded.cluster.num_nodes} nodes, period {loaded.phased.period}. Members "
            "of one group share letter and color; a blank cell is a worker that skips the step.",
        )  # fmt: skip
    if output is not None and not as_json:
        console().print(f"written to {output}" + (f". {grid.note}" if grid.note else ""))


def _write(output: Path, name: str, figure: "Figure", caption: str, *paragraphs: str) -> None:
    if output.suffix.lower() in {".html", ".htm"}:
        write_text(output, page.page(name, [*map(page.paragraph, paragraphs), page.picture(figure, caption)]))
    else:
        save(figure, output)


def _without_matrix(schedule: Schedule, period: int) -> str:
    """Return a line on why a schedule has no mixing matrices: what is decided at run time; empty if it has some."""
    if schedule.is_mixing:
        return ""
    return f"Period {period}: {schedule.undecided}; the schedule has no metrics"


def _show_rounds(schedule: Schedule, output: Path | None, *, as_json: bool, max_workers: int) -> None:
    if as_json:
        rounds = [[[s, t, str(w)] for s, t, w in edges.edges()] for edges in schedule.strategy.graphs]
        emit_json({"name": schedule.name, "rounds": rounds})
        return
    if output is None:
        console().print(fill(describe(schedule), console().width))
        for index, edges in enumerate(schedule.strategy.graphs[:8]):
            columns = [Column("worker"), Column("averages with (source: weight)", justify="left", wraps=True)]
            partners = Table(f"{schedule.name}, round {index}", columns)
            into: dict[int, list[str]] = {}
            for source, target, weight in edges.edges():
                if target < max_workers:
                    into.setdefault(target, []).append(f"{source}: {weight}")
            for target, sources in sorted(into.items()):
                partners.add(str(target), ", ".join(sources))
            console().print(partners)
        if note := _without_matrix(schedule, len(schedule.strategy.graphs)):
            console().print(note, style="dim")
        return
    _write(output, schedule.name, draw_rounds(schedule), "Arrows point from source to target.")
    console().print(f"written to {output}")
