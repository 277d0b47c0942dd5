"""Pipe-SGD's rows that follow from others: seconds to the loss, and what they are compared with.

Bare sums over emulated links, and the parts of a step (Figure 4), were measured once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.lab.contestants import RECOMMENDED
from benchmarks.lab.setting import TARGETS
from benchmarks.papers.figures import experiments_of, table_of
from benchmarks.papers.rows import Results, Row

NAME = "pipe-sgd"
STEP, STEPS, SECONDS = "Milliseconds per step", "Steps to the loss", "Seconds to the loss"
LOSS_D, LOSS_PS = "Speed to the loss, D-Sync = 1", "Speed to the loss, PS-Sync = 1"
LIMIT = "Of the compute-only limit"
RARE = "node-then-all 23, hierarchical"
RECOMMENDATIONS = (RECOMMENDED, f"{RECOMMENDED}, codec", f"{RECOMMENDED}, codec left out", RARE, f"{RARE}, int8")
RECOMMENDED_SETTING = f"digits, 4x4, 40 Mbit/s, to a loss of {TARGETS['digits']:g}"


def derive(found: Results) -> tuple[Row, ...]:
    """Return seconds to the loss, from the steps to it and the seconds of a step, and rows that follow from them.

    Of other papers' results nothing follows.
    """
    if found.paper != NAME:
        return ()
    kept = {row.key: row for row in found.rows}
    made: dict[tuple[str, str], Row] = {}
    for row in found.rows:
        where, _, name = row.setting.partition(": ")
        steps = kept.get((STEPS, f"{where.rpartition(', ')[0]}: {table_of(NAME).same_steps.get(name, name)}"))
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
        for figure, theirs, paper in ((LOSS_D, "D-Sync", (2.0, 3.2)), (LOSS_PS, "PS-Sync", (4.0, 5.4)))
        for (where, name), ours in made.items()
        if name.startswith("Pipe") and not name.endswith("layer by layer") and (where, theirs) in made
    ]
    return (*made.values(), *ratios, *_limits(kept))


def _limits(kept: dict[tuple[str, str], Row]) -> Iterator[Row]:
    """Yield the time of D-Sync's steps if only computing took time, over the recommendations' seconds."""
    steps = kept.get((STEPS, f"digits, 4x4, loss {TARGETS['digits']:g}: D-Sync"))
    least = next(one.setting.compute for one in experiments_of(NAME) if one.setting.name == RECOMMENDED_SETTING)
    for name in map(table_of(NAME).words_of, RECOMMENDATIONS):
        setting = f"{RECOMMENDED_SETTING}: {name}"
        took = kept.get((SECONDS, setting))
        if steps is not None and took is not None:
            yield _quotient(steps, took, least, figure=LIMIT, setting=setting, unit="share", aim=0.9)


def _quotient(theirs: Row, ours: Row, factor: float = 1.0, **fields: Any) -> Row:
    return Row(
        measured=factor * theirs.measured / ours.measured,
        low=factor * theirs.low / ours.high,
        high=factor * theirs.high / ours.low,
        runs=min(theirs.runs, ours.runs),
        **fields,
    )
