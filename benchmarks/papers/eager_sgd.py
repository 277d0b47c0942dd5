"""eager-SGD's rows: the gain in speed of quorums if workers are delayed, and the loss in accuracy.

In the lab 8 workers on 4 nodes fit a hyperplane, classify digits, and find the package of a docstring; they are delayed
by sleeping. All compute the same number of gradients; speed and accuracy over time are read from the run. Predictions
are in virtual time, on a free network with infinitely many cores. Figure 9, and the effect of more workers in virtual
time, were measured once.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lab.campaign import Cells
from benchmarks.lab.contestants import eager_name
from benchmarks.lab.plan import step_ms
from benchmarks.lab.results import CellResult
from benchmarks.lab.results import Row as Contestant
from benchmarks.papers.cells import LabPaper
from benchmarks.papers.rows import FIGURES, Curve, Row, each, ms, ratio_rows, row_words, value, words

ALL_REDUCE = "flat ring"
SOLO, MAJORITY, HALF, MOST = (eager_name(who) for who in ("solo", "majority", "half", "all but one"))
PUBLISHED = tuple(eager_name(f"{who}, as published") for who in ("solo", "majority"))
LATEST = {**dict(zip((SOLO, MAJORITY), PUBLISHED, strict=True)), HALF: eager_name("half, latest")}
"""By quorum, the contestant that keeps only the newest result, instead of applying each."""

SLOW, SHIFTING, TEXT = "images, one 5× slow", "images, 50 to 400 ms shifting", "docstrings, lengths as they are"
DELAYS = (200, 300, 400)
HYPERPLANE = {delay: f"hyperplane, one of 8 delayed by {delay} ms" for delay in DELAYS}

SPEED = "Gradients per second: All-Reduce = 1"
LEARNED = "Share of held-out samples told right after as many gradients"
IN_TIME = "Share of held-out samples told right at the instant at which the fastest of a setting is through"
LEFT = "Hyperplane regression: squared distance after as many gradients"
TO_LOSS = "Speed to the loss, All-Reduce = 1"
ROUNDS = "Gradients in a sum"

PRINTED: dict[str, dict[str, float]] = FIGURES["eager-sgd"]["printed"]

Block = dict[str, "Contestant"]


def rows(cells: Cells) -> Iterator[Row]:
    for where, block in cells.by_contestant().items():
        yield from _speeds(where, block)
        yield from ratio_rows(TO_LOSS, block, ALL_REDUCE, setting=row_words(where))
        if where not in HYPERPLANE.values():
            yield from _accuracy_rows(where, block)
        else:
            yield from each(LEFT, block, _last_losses, "loss", setting=row_words(where))
        yield from each(ROUNDS, block, _in_a_sum, "workers", setting=row_words(where))


def _last_losses(row: Contestant) -> list[float]:
    return [cell.curve[-1][2] for cell in row.cells]


def _in_a_sum(row: Contestant) -> list[float]:
    return [sum(cell.steps) / cell.rounds for cell in row.cells if cell.rounds]


def paper_ratio(where: str, name: str) -> float | None:
    """Return the paper's ratio for this start of a round, however missed results are treated."""
    return PRINTED.get(where, {}).get(words(name).partition(", ")[0])


def _speeds(where: str, block: Block) -> Iterator[Row]:
    (made,) = (made for made in PAPER.experiments() if made.setting.name == where)
    assert made.steps is not None
    taken = made.steps

    def predict(name: str) -> float | None:
        runs = len(block[name].cells)
        mine, theirs = (step_ms(one, made.setting, made.shape, taken, runs) for one in (name, ALL_REDUCE))
        return theirs / mine if mine and theirs else None

    def paper(name: str) -> float | None:
        return paper_ratio(where, name)

    yield from ratio_rows(
        SPEED, block, ALL_REDUCE, ms, setting=row_words(where), paper=paper, aim=paper, predicted=predict
    )


def _accuracy_rows(where: str, block: Block) -> Iterator[Row]:
    """Yield the final accuracies, of the mean model and of the workers' own, and those when the fastest has ended."""
    block = {name: row for name, row in block.items() if all(cell.accuracies for cell in row.cells)}
    for name, row in block.items():
        ends = [cell.accuracies[-1][1] for cell in row.cells]
        yield value(ends, figure=LEARNED, setting=f"{where}: {words(name)}", unit="share")
        own = [cell.own_accuracy for cell in row.cells if cell.own_accuracy is not None]
        if own and name in LATEST.values():
            yield value(own, figure=LEARNED, setting=f"{where}: {words(name)}, workers' own models", unit="share")
    if not block:
        return
    instant = min(cell.accuracies[-1][0] for row in block.values() for cell in row.cells)
    for name, row in block.items():
        then = [accuracy_at(cell, instant) for cell in row.cells]
        yield value(then, figure=IN_TIME, setting=f"{where}: {words(name)}", unit="share")


def accuracy_at(cell: CellResult, instant: float) -> float:
    return [share for at, share in cell.accuracies if at <= instant][-1]


def _curves(cells: Cells) -> Iterator[Curve]:
    """Yield loss, and accuracy if there is one, over seconds: the first run of each contestant."""
    for where, block in cells.blocks().items():
        for row in block:
            cell, name, title = row.cells[0], words(row.contestant), where.replace("×", "x").replace(",", "")
            yield Curve.of_run(f"{title}: loss over seconds, and over gradients", name, cell)
            if cell.accuracies:
                at, shares = zip(*cell.accuracies, strict=True)
                yield Curve(plot=f"{title} accuracy: over seconds", name=name, at=at, losses=shares)


PAPER = LabPaper(name="eager-sgd", rows=rows, curves=_curves, bars=(SPEED,))
