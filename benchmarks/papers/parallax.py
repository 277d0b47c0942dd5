"""Parallax's rows: what it gains to send tables another way than the rest, on 4 nodes of 4 workers and on 16 of one.

All ways but three (figures.INEXACT) give the same gradients, so a step is a step; they differ in what it takes. Ways of
a session take turns in the same processes (tables/worker.py). Seconds are those of steps alone; losses are taken
between them.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.lab.standing import NoLabError, standing
from benchmarks.papers.cells import Apart, LabPaper
from benchmarks.papers.rows import Row, share_of
from benchmarks.papers.tables import sessions
from benchmarks.papers.tables.figures import CHOICE, LATER, ROUTES, SWEEP, TARGETS, WITHIN, WORDS, curves, rows
from benchmarks.papers.tables.models import LanguageData
from benchmarks.papers.tables.sessions import (
    COMPOSED,
    COMPOSED_CODED,
    GATHER,
    GATHER_LOCAL,
    HYBRID,
    HYBRID_CODED,
    HYBRID_LOCAL,
    PLANNED,
    Found,
    Lab,
    Session,
    latency_of,
)
from benchmarks.papers.tables.sweep import SHARES
from benchmarks.papers.tables.ways import DENSE, HOROVOD, TF_PS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.papers.cells import Kept
    from benchmarks.papers.rows import Results

RATE, SWEEP_RATE = "20mbit", "40mbit"
COMPUTE, SWEEP_COMPUTE = 0.1, 0.05


LONG = 0.3
"""Share of touched rows from which on a turn is one step."""


def _loss(task: str, shape: tuple[int, int], ways: tuple[str, ...], turns: int, limit: float) -> Session:
    return Session(
        name=f"{_where(task, shape)}{LATER}to the loss",
        task=task,
        shape=shape,
        rate=RATE,
        compute=COMPUTE,
        ways=ways,
        turns=turns,
        steps=5,
        judge=True,
        target=TARGETS[task],
        limit=limit,
        few=(TF_PS, HOROVOD),
    )


def _where(task: str, shape: tuple[int, int]) -> str:
    return f"{task}, {shape[0]}x{shape[1]}"


def _ladder(task: str, shape: tuple[int, int]) -> Session:
    """Everybody but the all-reduce of everything, which takes as long as all others together."""
    local = (GATHER_LOCAL, HYBRID_LOCAL) if shape[1] > 1 else ()
    ways = tuple(way for way in WORDS if way != DENSE and (way in local or not way.endswith("aggregated")))
    return Session(
        name=_where(task, shape), task=task, shape=shape, rate=RATE, compute=COMPUTE, ways=ways, turns=3, limit=150.0
    )


def _sweep(shape: tuple[int, int]) -> list[Session]:
    local = (GATHER_LOCAL, HYBRID_LOCAL) if shape[1] > 1 else ()
    ways = (HYBRID, *local, GATHER, DENSE, TF_PS, PLANNED)
    return [
        Session(
            name=f"sweep, {shape[0]}x{shape[1]}, {100 * share:g} %",
            task=f"sweep {share:g}",
            shape=shape,
            rate=SWEEP_RATE,
            compute=SWEEP_COMPUTE,
            ways=ways,
            turns=3,
            steps=1 if share >= LONG else 2,
            slowest=3.0,
            limit=60.0,
        )
        for share in SHARES
    ]


def _everything(shape: tuple[int, int]) -> list[Session]:
    one = replace(_ladder("language", shape), ways=(DENSE,), turns=1, steps=1)
    return [replace(one, name=f"{one.name}{LATER}all-reduce of everything")]


def ladder(shape: tuple[int, int]) -> list[Session]:
    """The language model by every way."""
    return [_ladder("language", shape)]


def to_loss(shape: tuple[int, int]) -> list[Session]:
    """The language model to its loss."""
    ways = (PLANNED, COMPOSED, COMPOSED_CODED, HYBRID_CODED, TF_PS, HOROVOD)
    return [_loss("language", shape, ways, 18, 250.0 if shape[1] > 1 else 195.0)]


def clicks(shape: tuple[int, int]) -> list[Session]:
    """The model of clicks, by every way and to its loss."""
    return [_ladder("clicks", shape), _loss("clicks", shape, (PLANNED, TF_PS, HOROVOD), 16, 100.0)]


PARTS = {
    "ladder": lambda: [*ladder((4, 4)), *ladder((16, 1))],
    "loss": lambda: [*to_loss((4, 4)), *to_loss((16, 1))],
    "sweep": lambda: [*_sweep((4, 4)), *_sweep((16, 1))],
    "clicks": lambda: clicks((4, 4)),
    "everything": lambda: _everything((4, 4)),
}
"""What can be run by itself."""
ALL = (
    *(ladder((4, 4)) + to_loss((4, 4)) + _sweep((4, 4))),
    *(ladder((16, 1)) + to_loss((16, 1)) + _sweep((16, 1))),
    *(clicks((4, 4)) + _everything((4, 4))),
)
"""In the order of importance, as far as one network after the other allows."""


def measure(minutes: float, only: str | None, kept: Kept) -> None:
    """Session by session until the time is spent; what is left out is said.

    Raises:
        NoLabError: this machine cannot hold the lab.
    """
    end = time.monotonic() + 60 * minutes
    left_out: list[str] = []
    try:
        for shape, group in groupby(ALL if only is None else PARTS[only](), key=lambda session: session.shape):
            those = list(group)
            if time.monotonic() + 60 > end:
                left_out += [session.name for session in those]
                continue
            try:
                with standing(shape[0]) as held:
                    lab = _probed(Lab(held), shape, kept.notes)
                    LanguageData.write(lab.text)
                    for session in those:
                        if not _one(session, lab, end, kept):
                            left_out.append(session.name)
                        kept.write()
            except NoLabError:
                raise
            except Exception as error:  # noqa: BLE001 - what was measured is kept, whatever fails
                kept.notes.append(f"{shape[0]}x{shape[1]}: the lab failed: {type(error).__name__}: {str(error)[:200]}")
    finally:
        if left_out:
            kept.notes.append(f"left out, because the time was spent: {'; '.join(left_out)}")


def _probed(lab: Lab, shape: tuple[int, int], notes: list[str]) -> Lab:
    """The lab with what a message was found to take."""
    try:
        lab = replace(lab, latency=latency_of(lab, shape))
    except (RuntimeError, OSError) as error:
        notes.append(f"{shape[0]}x{shape[1]}: {error}; the planner took {1e3 * lab.latency:g} ms for a message")
    else:
        notes.append(f"{shape[0]}x{shape[1]}: a message takes {1e3 * lab.latency:.2f} ms, which the planner knew")
    return lab


def _one(session: Session, lab: Lab, end: float, kept: Kept) -> bool:
    """Run a session in what is left of the time; False where that is not enough."""
    left = end - time.monotonic() - sessions.TRANSFER_SECONDS
    if left < sessions.least_seconds(session):
        return False
    begun = time.monotonic()
    try:
        found = sessions.run(session, lab, end)
    except Exception as error:  # noqa: BLE001 - the others are to run, whatever fails here
        kept.notes.append(f"{session.name}: failed: {type(error).__name__}: {str(error)[:200]}")
        return True
    kept.found.append(asdict(found))
    kept.notes += found.notes
    speeds = ", ".join(f"{way} {1e3 * median(found.step_seconds(way)):.0f}" for way in session.ways if found.timed(way))
    print(f"{session.name}: {time.monotonic() - begun:.0f} s; ms per step: {speeds}", flush=True)
    return True


def derived(found: Results) -> Iterator[Row]:
    """How many of all settings have a choice that is within 5 % of the best contestant, and of the best routes."""
    for figure, setting in ((CHOICE, "of all settings"), (ROUTES, "of all settings, among routes by hand")):
        near = [row.measured >= 0.95 for row in found.rows if row.figure == figure]
        if near:
            yield share_of(near, figure=WITHIN, setting=setting, aim=0.9)


PAPER = LabPaper(
    name="parallax",
    apart=Apart(
        parts=tuple(PARTS),
        measure=measure,
        rows=lambda kept: (row for one in kept.found for row in rows(Found.of_json(one))),
        curves=lambda kept: (curve for one in kept.found for curve in curves(Found.of_json(one))),
    ),
    derived=derived,
    bars=(SWEEP,),
)
