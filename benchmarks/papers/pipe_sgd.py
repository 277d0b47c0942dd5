"""Pipe-SGD's rows: the speed of steps and losses with late gradients and codecs.

Bare sums over emulated links, and the parts of a step (Figure 4), were measured once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.lab.campaign import Cells
from benchmarks.lab.contestants import RECOMMENDED
from benchmarks.lab.results import Row as Contestant
from benchmarks.lab.setting import TARGETS
from benchmarks.papers.cells import LabPaper
from benchmarks.papers.rows import (
    FIGURES,
    Curve,
    Results,
    Row,
    each,
    ms,
    ratio_rows,
    row_words,
    seconds,
    share_of,
    steps,
)

TOLD = FIGURES["pipe-sgd"]
D_SYNC, PS_SYNC, RARE = "flat ring", "server on one host, synchronous", "node-then-all 23, hierarchical"
RECOMMENDED_NAMES = (RECOMMENDED, f"{RECOMMENDED}, codec", f"{RECOMMENDED}, codec left out", RARE, f"{RARE}, int8")
WORDS: dict[str, str] = TOLD["words"]
_words = partial(row_words, told=WORDS)
LATE = tuple(name for name in WORDS if name.startswith("pipeline"))

STEP, STEPS, SECONDS = "Milliseconds per step", "Steps to the loss", "Seconds to the loss"
STEP_D, STEP_PS = "Speed per step, D-Sync = 1", "Speed per step, PS-Sync = 1"
LOSS_D, LOSS_PS = "Speed to the loss, D-Sync = 1", "Speed to the loss, PS-Sync = 1"
LIMIT, CLOSE = "Of the compute-only limit", "Cells predicted within 15 %"
RECOMMENDATIONS = "Recommendations: loss of the planner's recommendations over seconds, 40 Mbit/s"

TO_TARGET = f"to a loss of {TARGETS['digits']:g}"
RECOMMENDED_SETTING = f"digits, 4x4, 40 Mbit/s, {TO_TARGET}"


def rows(cells: Cells) -> Iterator[Row]:
    """Yield the rows that the cells alone give; `derive` yields the others."""
    for where, block in cells.by_contestant().items():
        named = {name: row for name, row in block.items() if name in WORDS}
        if where.endswith("free"):
            yield from _steps_rows(where, named)
        elif where.endswith(("to the loss", TO_TARGET)):
            yield from each(SECONDS, named, seconds, "seconds", setting=_words(where))
        if where.endswith(("bit/s", TO_TARGET)):
            yield from _step_rows(where, named, cells)
        if where.endswith(TO_TARGET):
            yield from each(STEP, named, _later_ms, "milliseconds", setting=_words(f"{where}, after 4 steps"))
    yield from _close(cells)


def _later_ms(row: Contestant) -> list[float]:
    """Return milliseconds per step after the first snapshot, without what a strategy does once at its start."""
    ends = [(cell.curve[1], cell.curve[-1]) for cell in row.cells]
    return [1e3 * (last[1] - first[1]) / (last[0] - first[0]) for first, last in ends]


def _step_rows(where: str, named: dict[str, Contestant], cells: Cells) -> Iterator[Row]:
    """Yield milliseconds per step with their prediction, and the ratios to D-Sync's and PS-Sync's."""
    known, setting = cells.predictions(), _words(where)
    yield from each(STEP, named, ms, "milliseconds", setting=setting, predicted=lambda name: known.get((where, name)))
    for figure, theirs, paper in ((STEP_D, D_SYNC, (2.0, 3.2)), (STEP_PS, PS_SYNC, (4.0, 5.4))):
        yield from ratio_rows(figure, named, theirs, ms, setting=setting, only=LATE, paper=paper)


def _steps_rows(where: str, named: dict[str, Contestant]) -> Iterator[Row]:
    yield from each(STEPS, named, steps, "steps", setting=_words(where.removesuffix(", free")))
    least = TARGETS["digits"]
    if where.startswith("digits, 4x4") and D_SYNC in named:
        base = {D_SYNC: replace(named[D_SYNC], target=least)}
        yield from each(STEPS, base, steps, "steps", setting=_words(f"digits, 4x4, loss {least:g}"))


def derive(found: Results) -> tuple[Row, ...]:
    """Return seconds to the loss, from the steps to it and the seconds of a step, and rows that follow from them."""
    kept = {row.key: row for row in found.rows}
    made: dict[tuple[str, str], Row] = {}
    for row in found.rows:
        where, _, name = row.setting.partition(": ")
        steps = kept.get((STEPS, f"{where.rpartition(', ')[0]}: {TOLD['same_steps'].get(name, name)}"))
        if row.figure != STEP or steps is None:
            continue
        made[where, name] = Row(
            figure=SECONDS,
            setting=row.setting,
            measured=steps.measured * row.measured / 1e3,
            low=steps.low * row.low / 1e3,
            high=steps.high * row.high / 1e3,
            runs=min(steps.runs, row.runs),
            unit="seconds",
            derived=True,
        )
    ratios = [
        _quotient(made[where, theirs], ours, figure=figure, setting=f"{where}: {name}", paper=paper, derived=True)
        for figure, theirs, paper in ((LOSS_D, WORDS[D_SYNC], (2.0, 3.2)), (LOSS_PS, WORDS[PS_SYNC], (4.0, 5.4)))
        for (where, name), ours in made.items()
        if name.startswith("Pipe") and not name.endswith("layer by layer") and (where, theirs) in made
    ]
    return (*made.values(), *ratios, *_limits(kept))


def _limits(kept: dict[tuple[str, str], Row]) -> Iterator[Row]:
    """Yield the time of D-Sync's steps if only computing took time, over the recommendations' seconds."""
    steps = kept.get((STEPS, f"digits, 4x4, loss {TARGETS['digits']:g}: {WORDS[D_SYNC]}"))
    for name in RECOMMENDED_NAMES:
        took = kept.get((SECONDS, f"{RECOMMENDED_SETTING}: {WORDS[name]}"))
        if steps is not None and took is not None:
            least, setting = PAPER.settings[RECOMMENDED_SETTING].compute, f"{RECOMMENDED_SETTING}: {WORDS[name]}"
            yield _quotient(steps, took, least, figure=LIMIT, setting=setting, unit="share", aim=0.9)


def _quotient(theirs: Row, ours: Row, factor: float = 1.0, **fields: Any) -> Row:
    return Row(
        measured=factor * theirs.measured / ours.measured,
        low=factor * theirs.low / ours.high,
        high=factor * theirs.high / ours.low,
        runs=min(theirs.runs, ours.runs),
        **fields,
    )


def _close(cells: Cells) -> Iterator[Row]:
    """Yield how many cells the simulator predicts within 15 % from the profile alone, if there are several settings."""
    found = (cells.prediction or {}).get("points", [])
    if len({point["setting"] for point in found}) > 1:
        close = [abs(p["predicted"] / p["measured"] - 1) <= 0.15 for p in found]
        yield share_of(close, figure=CLOSE, setting="from the profile alone", aim=0.9)


def _curves(cells: Cells) -> Iterator[Curve]:
    for where, block in cells.blocks().items():
        for row in block if where.endswith(TO_TARGET) else ():
            for seed, cell in enumerate(row.cells):
                _, at, losses = zip(*cell.curve, strict=True)
                yield Curve(plot=RECOMMENDATIONS, name=f"{WORDS[row.contestant]}, seed {seed}", at=at, losses=losses)


PAPER = LabPaper(name="pipe-sgd", rows=rows, curves=_curves, derived=derive, predicts=True)
