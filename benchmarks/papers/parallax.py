"""Parallax's rows: what it gains to send tables another way than the rest, on 4 nodes of 4 workers and on 16 of one.

All ways but three (figures.INEXACT) give the same gradients, so a step is a step; they differ in what it takes. Ways of
a session take turns in the same processes (tables/worker.py). Seconds are those of steps alone; losses are taken
between them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from statistics import median

import numpy as np
from pydantic import TypeAdapter

from benchmarks.lab.crew import LabError, standing
from benchmarks.lab.text import text
from benchmarks.papers.cells import Apart, Kept, LabPaper
from benchmarks.papers.rows import Results, Row, share_of
from benchmarks.papers.tables import sessions
from benchmarks.papers.tables.figures import CHOICE, LATER, ROUTES, TARGET, WAYS, WITHIN, curves, rows
from benchmarks.papers.tables.models import WORDS
from benchmarks.papers.tables.sessions import (
    COMPOSED,
    COMPOSED_CODED,
    GATHER_LOCAL,
    HYBRID_CODED,
    HYBRID_LOCAL,
    PLANNED,
    Found,
    Session,
)
from benchmarks.papers.tables.ways import HOROVOD, TF_PS

SHAPES = ((4, 4), (16, 1))
LEAST_SECONDS = 40.0
"""What is to be left of the time to begin a session."""
FOUND = TypeAdapter(Found)


def ladder(shape: tuple[int, int]) -> Session:
    """The language model by every way; workers that have a node each cannot agree on rows inside it."""
    alone = shape[1] == 1
    ways = tuple(way for way in WAYS if not (alone and way in (GATHER_LOCAL, HYBRID_LOCAL)))
    return Session(name=f"language, {shape[0]}x{shape[1]}", shape=shape, ways=ways)


def to_loss(shape: tuple[int, int]) -> Session:
    ways = (PLANNED, COMPOSED, COMPOSED_CODED, HYBRID_CODED, TF_PS, HOROVOD)
    name = f"language, {shape[0]}x{shape[1]}{LATER}to the loss"
    return Session(name=name, shape=shape, ways=ways, turns=18, steps=5, limit=250.0, target=TARGET)


PARTS = {"ladder": ladder, "loss": to_loss}
"""What can be run by itself."""


def measure(minutes: float, only: str | None, kept: Kept) -> None:
    """Session by session until the time is spent; what is left out is said.

    Raises:
        NoLabError: this machine cannot hold the lab.
    """
    end = time.monotonic() + 60 * minutes
    for shape in SHAPES:
        with standing(shape[0]) as lab:
            words = lab.scratch / "text.npy"
            np.save(words, text(rows=WORDS))
            for session in (make(shape) for part, make in PARTS.items() if only in (None, part)):
                left = end - time.monotonic()
                if left < LEAST_SECONDS:
                    kept.notes.append(f"left out, because the time was spent: {session.name}")
                    continue
                try:
                    found = sessions.run(session, lab, words, left)
                except (LabError, RuntimeError, OSError) as error:  # the others are to run
                    kept.notes.append(f"{session.name}: failed: {type(error).__name__}: {str(error)[-200:]}")
                    lab.crew.restart()
                    continue
                kept.found.append(asdict(found))
                kept.notes += found.notes
                kept.write()
                taken = {way: median(found.step_seconds(way)) for way in session.ways if found.timed(way)}
                print(session.name, ", ".join(f"{way} {1e3 * each:.0f} ms" for way, each in taken.items()), flush=True)


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
        rows=lambda kept: (row for one in kept.found for row in rows(FOUND.validate_python(one))),
        curves=lambda kept: (curve for one in kept.found for curve in curves(FOUND.validate_python(one))),
    ),
    derived=derived,
)
