"""Parallax's rows: what it gains to send tables another way than the rest, on 4 nodes of 4 workers and on 16 of one.

All ways but three (INEXACT) give the same gradients, so a step is a step; they differ in what it takes. Ways of
a session take turns in the same processes (tables_worker.py). Seconds are those of steps alone; losses are taken
between them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from statistics import median

import numpy as np
from pydantic import TypeAdapter

from benchmarks.lab.crew import LabError, standing
from benchmarks.lab.text import text
from benchmarks.papers import tables
from benchmarks.papers.cells import Apart, Kept, LabPaper
from benchmarks.papers.rows import Curve, Results, Row, ratio, share_of, value
from benchmarks.papers.tables import (
    COMPOSED,
    COMPOSED_CODED,
    GATHER,
    GATHER_LOCAL,
    HYBRID,
    HYBRID_CODED,
    HYBRID_LOCAL,
    OURS,
    PLANNED,
    Found,
    Session,
)
from benchmarks.papers.tables_worker import BASELINES, HOROVOD, TF_PS, TF_PS_IN_PAIRS, WORDS

Paper = float | tuple[float, float] | None

TARGET = 6.5
"""The loss over samples that nobody trains on, that some 30 steps reach."""
WAYS = (*BASELINES, *OURS, PLANNED, COMPOSED, COMPOSED_CODED)
INEXACT = (COMPOSED, COMPOSED_CODED, HYBRID_CODED)
EXACT = tuple(way for way in WAYS if way not in INEXACT)
"""Of the same mathematics, and so of the same steps to a loss."""
LATER = "; "
"""Between a session's name and what tells it from others in the same setting."""

FAIR = "Hybrid over the best baseline, servers in rounds of pairs among them"
SPEED, BYTES = "Words or impressions per second", "Megabytes out of a node's card in a step"
OVER_PS, OVER_MPI = "Speed per step, TF-PS = 1", "Speed per step, Horovod = 1"
BETTER, LOCAL = "Hybrid over the better of TF-PS and Horovod", "Local aggregation over hybrid without it"
CODED = "Rows in float16 over rows as they are, hybrid + local aggregation"
LOSS_PS, LOSS_MPI = "Speed to the loss, TF-PS = 1", "Speed to the loss, Horovod = 1"
SECONDS, STEPS = "Seconds to the loss", "Steps to the loss"
OWN = "Dense part by the planner's own schedule, over plain hybrid"
CHOICE = "Planner's choice: speed over the best contestant's"
ROUTES = "Planner's choice: speed over that of the best routes by hand"
WITHIN = "Settings whose choice is within 5 % of the best"
TOUCHED = "Share of a table's rows that a step touches"

PAPER_PS = {HYBRID: 1.11, HYBRID_LOCAL: 2.49, PLANNED: 2.73}
"""Table 4's language model: 101, 112, 251 and, with both placement steps, 276 thousand words per second."""
PAPER_MPI = {PLANNED: 7.1}
"""276 over Table 1's 39."""


def rows(found: Found) -> Iterator[Row]:
    where = found.session.name.split(LATER)[0]
    if found.session.target is not None:
        yield from _loss_rows(where, found)
        return
    yield from _speed_rows(where, found)
    for name, shares in found.shares.items():
        for who, share in zip(("a worker", "a node", "all"), shares, strict=True):
            one = {"figure": TOUCHED, "setting": f"{where}: {name}, {who}", "unit": "share", "runs": 1}
            yield Row(measured=share, low=share, high=share, **one)  # type: ignore[arg-type]


def _step_seconds(found: Found) -> dict[str, list[float]]:
    """Of every way, by the contestant that ran in its place because its routes are the same."""
    taken = {way: found.step_seconds(found.same.get(way, way)) for way in found.session.ways}
    return {way: seconds for way, seconds in taken.items() if seconds}


def _bytes_row(figure: str, setting: str, found: Found, way: str) -> Row:
    """Megabytes out of a node's card in a step."""
    sent = [turn.nic_bytes / found.session.steps / 1e6 for turn in found.timed(found.same.get(way, way))]
    return value(sent, figure=figure, setting=setting, unit="megabytes", predicted=found.mean_wire[way] / 1e6)


def _speed_rows(where: str, found: Found) -> Iterator[Row]:
    seconds, guess, items = _step_seconds(found), found.predicted, found.session.items
    for way, taken in seconds.items():
        speeds, setting = [items / one for one in taken], f"{where}: {way}"
        yield value(speeds, figure=SPEED, setting=setting, unit="per second", predicted=items / guess[way])
        yield _bytes_row(BYTES, setting, found, way)
    for figure, theirs, papers in ((OVER_PS, TF_PS, PAPER_PS), (OVER_MPI, HOROVOD, PAPER_MPI)):
        for way, ours in seconds.items():
            if theirs in seconds and way != theirs:
                fields = {"figure": figure, "setting": f"{where}: {way}", "paper": papers.get(way)}
                yield ratio(seconds[theirs], ours, predicted=guess[theirs] / guess[way], **fields)
    yield from _between(where, found, seconds)
    if TF_PS_IN_PAIRS in seconds:
        best = min((way for way in BASELINES if way in seconds), key=lambda way: median(seconds[way]))
        for way in (HYBRID, HYBRID_LOCAL, PLANNED):
            if way in seconds:
                yield ratio(seconds[best], seconds[way], figure=FAIR, setting=f"{where}: {way}", aim=1.0)


def _between(where: str, found: Found, seconds: dict[str, list[float]]) -> Iterator[Row]:
    """Ways of ours among themselves and beside the better of the two systems."""
    guess = found.predicted

    def over(figure: str, words: str, theirs: str, ours: str, paper: Paper = None) -> Row:
        fields = {"figure": figure, "setting": f"{where}: {words}", "paper": paper}
        return ratio(seconds[theirs], seconds[ours], predicted=guess[theirs] / guess[ours], **fields)

    both = [way for way in (TF_PS, HOROVOD) if way in seconds]
    if len(both) == 2 and HYBRID in seconds:
        best = min(both, key=lambda way: median(seconds[way]))
        yield over(BETTER, "hybrid", best, HYBRID, (1.1, 1.3))
    for plain, local, paper in ((HYBRID, HYBRID_LOCAL, 2.24), (GATHER, GATHER_LOCAL, None)):
        if plain in seconds and local in seconds:
            yield over(LOCAL, plain, plain, local, paper)
    for plain in (HYBRID, HYBRID_LOCAL):
        if plain in seconds and COMPOSED in seconds:
            yield over(OWN, f"per step, over {plain}", plain, COMPOSED)
        if plain in seconds and COMPOSED_CODED in seconds:
            yield over(OWN, f"per step, rows in float16, over {plain}", plain, COMPOSED_CODED)
    for plain in (HYBRID_LOCAL, HYBRID):  # on nodes of one worker there is nothing to agree on, and both are the same
        if plain in seconds and HYBRID_CODED in seconds:
            yield over(CODED, "per step", plain, HYBRID_CODED)
            break
    yield from _choice(where, seconds)


def _choice(where: str, seconds: dict[str, list[float]]) -> Iterator[Row]:
    """The best contestant's seconds over the choice's, 1 where the choice is the best; and the best route's."""
    for figure, left_out in ((CHOICE, (PLANNED, *INEXACT)), (ROUTES, (PLANNED, *INEXACT, *BASELINES))):
        others = [taken for way, taken in seconds.items() if way not in left_out]
        if PLANNED in seconds and others:
            yield ratio(min(others, key=median), seconds[PLANNED], figure=figure, setting=where, aim=0.95)


def _loss_rows(where: str, found: Found) -> Iterator[Row]:
    """Seconds and steps to the loss; of exact ways that did not come so far, another's steps times their own step."""
    made: dict[str, Row] = {}
    reached = {way: at for way in found.session.ways if (at := found.reached(way, TARGET)) is not None}
    exact = [at[0] for way, at in reached.items() if way in EXACT]
    for way in found.session.ways:
        setting = f"{where}: {way}"
        if way in reached:
            steps, seconds = reached[way]
            yield value([steps], figure=STEPS, setting=setting, unit="steps")
            made[way] = value([seconds], figure=SECONDS, setting=setting, unit="seconds")
        elif way in EXACT and exact and found.timed(way):
            seconds = median(exact) * median(found.step_seconds(way))
            made[way] = value([seconds], figure=SECONDS, setting=setting, unit="seconds", derived=True)
    yield from made.values()
    for figure, theirs, paper in ((LOSS_PS, TF_PS, 2.8), (LOSS_MPI, HOROVOD, 6.3)):
        for way in (PLANNED, *INEXACT):
            if way in made and theirs in made:
                yield replace(
                    ratio([made[theirs].measured], [made[way].measured], figure=figure, setting=made[way].setting),
                    paper=paper,
                    derived=made[theirs].derived or made[way].derived,
                    predicted=found.predicted[theirs] / found.predicted[way] if way in EXACT else None,
                )
    for way, figure, words in (
        (COMPOSED, OWN, "to the loss"),
        (COMPOSED_CODED, OWN, "to the loss, rows in float16"),
        (HYBRID_CODED, CODED, f"to the loss, over {PLANNED}"),
    ):
        if PLANNED in made and way in made:
            setting = f"{where}: {words}"
            yield ratio([made[PLANNED].measured], [made[way].measured], figure=figure, setting=setting)


def curves(found: Found) -> Iterator[Curve]:
    if found.session.target is None:
        return
    where = found.session.name.split(LATER)[0].replace(", ", " ")
    for way in found.session.ways:
        if points := found.curve(way):
            steps, seconds, losses = zip(*points, strict=True)
            plot = f"{where}: loss over seconds, and over steps, of samples held out"
            yield Curve(plot=plot, name=way, at=seconds, losses=losses, steps=steps)


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
    """Session by session until the time is spent; what is left out is said."""
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
                    found = tables.run(session, lab, words, left)
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
