"""Pipe-SGD's rows: how much faster steps and losses come when gradients are late and travel small."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.lab.setting import Setting
from benchmarks.papers import sums
from benchmarks.papers.cells import Cells, Experiment
from benchmarks.papers.cells import run as run_cells
from benchmarks.papers.rows import Results, Row, only, ratio, value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.lab.table import Row as Contestant

NAME = "pipe-sgd"
D_SYNC, PS_SYNC, PICK = "flat ring", "server on one host, synchronous", "planner's pick"
PIPES = {"pipeline": "Pipe", "pipeline, float16": "Pipe + 16 bit", "pipeline, layers": "Pipe, layer by layer"}
WORDS = {
    D_SYNC: "D-Sync",
    "flat ring, float16": "D-Sync + 16 bit",
    "flat ring, int8": "D-Sync + 8 bit",
    "flat ring, layers": "D-Sync, layer by layer",
    "hierarchical": "hierarchical fp32",
    "hierarchical, int8": "hierarchical + 8 bit",
    PS_SYNC: "PS-Sync",
    f"{PS_SYNC}, int8": "PS-Sync + 8 bit",
    "pipeline": "Pipe",
    "pipeline, layers": "Pipe, layer by layer",
    "pipeline, float16": "Pipe + 16 bit",
    "pipeline, int8": "Pipe + 8 bit",
    "pipeline, hierarchical, int8": "Pipe + 8 bit, hierarchical",
    PICK: "planner's pick",
    f"{PICK}, codec": "planner's pick with a codec",
}
LATE = tuple(name for name in WORDS if name.startswith("pipeline"))

STEPS, OVER_D, OVER_PS = "Seconds per step", "Over D-Sync, per step", "Over PS-Sync, per step"
TO_LOSS, LOSS_D, LOSS_PS = "Seconds to the loss", "Over D-Sync, to the loss", "Over PS-Sync, to the loss"
LIMIT, CLOSE = "Of the compute-only limit", "Steps predicted within 15 %"

WHY: dict[str, str] = {}

COMPUTE = {(1, "200mbit"): 0.06, (1, "40mbit"): 0.16, (4, "200mbit"): 0.08, (4, "40mbit"): 0.16}
"""Seconds that a step computes, by workers per node and rate: about what the 8-bit sum takes on the wire."""


def setting(task: str, size: int, rate: str, compute: float | None = None) -> Setting:
    """One setting of the paper, named for its rows."""
    chosen = compute or COMPUTE[size, rate]
    named = f"{task}, 4x{size}, {rate.removesuffix('mbit')} Mbit/s"
    more = f", {1e3 * chosen:.0f} ms" if compute else ""
    return Setting(name=named + more, rate=rate, compute=chosen, task=task)


def experiments() -> list[Experiment]:
    """The most important first: the paper's shape, then 16 workers, then the text model."""
    found = []
    listed = tuple(name for name in WORDS if not name.startswith(PICK))
    for task in ("digits", "text"):
        for rate in ("200mbit", "40mbit"):
            for size in (1, 4):
                names = tuple(n for n in listed if size > 1 or "hierarchical" not in n)
                steps = 24 if rate == "200mbit" else 16
                found.append(
                    Experiment(setting=setting(task, size, rate), shape=(4, size), contestants=names, steps=steps)
                )
    return found


def run(minutes: float) -> Results:
    """The bare sums, then the cells; what is left of the time goes into repetitions."""
    bare = sums.run(minutes=min(4.0, minutes / 5))
    cells = run_cells(NAME, experiments(), minutes - min(4.0, minutes / 5))
    cell_rows = rows(cells)
    return Results(
        paper=NAME, commit=cells.commit, rows=(*bare.rows, *cell_rows), why=WHY, notes=(*bare.notes, *cells.notes)
    )


def stored() -> Results:
    """The same rows from the cells that this machine keeps."""
    cells = Cells.read(NAME)
    return Results(paper=NAME, commit=cells.commit, rows=rows(cells), why=WHY, notes=cells.notes)


def rows(cells: Cells) -> tuple[Row, ...]:
    """All that can be said of the cells that were run."""
    predictions = cells.predictions()
    made: list[Row | None] = []
    for where, block in cells.blocks().items():
        by_name = {row.contestant: row for row in block if row.contestant in WORDS}
        for name, row in by_name.items():
            ms = predictions.get((where, name))
            made.append(_step_row(where, name, row, ms))
        made += _over(OVER_D, where, by_name, D_SYNC, (2.0, 3.2))
        made += _over(OVER_PS, where, by_name, PS_SYNC, (4.0, 5.4))
    made.append(_close(cells))
    return only(made)


def _step_row(where: str, name: str, row: Contestant, predicted: float | None) -> Row:
    made = value(
        [cell.step_ms for cell in row.cells], figure=STEPS, setting=f"{where}: {WORDS[name]}", unit="milliseconds"
    )
    return made if predicted is None else replace(made, predicted=predicted)


def _over(
    figure: str, where: str, by_name: dict[str, Contestant], theirs: str, paper: tuple[float, float]
) -> Iterable[Row]:
    if theirs not in by_name:
        return
    base = [cell.step_ms for cell in by_name[theirs].cells]
    for name in LATE:
        if name in by_name:
            ours = [cell.step_ms for cell in by_name[name].cells]
            yield ratio(base, ours, figure=figure, setting=f"{where}: {WORDS[name]}", paper=paper)


def _close(cells: Cells) -> Row | None:
    """How many cells the simulator predicts within 15 % from the profile."""
    found = (cells.prediction or {}).get("from_profile", [])
    if not found:
        return None
    share = sum(abs(p["predicted"] / p["measured"] - 1) <= 0.15 for p in found) / len(found)
    return Row(
        figure=CLOSE, setting=f"all {len(found)} cells, from the profile alone", measured=share, low=share, high=share,
        runs=len(found), unit="share", aim=0.9,
    )  # fmt: skip
