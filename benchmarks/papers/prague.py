"""Prague's rows: its ratios of times to a loss, from the lab's cells."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.lab.setting import settings
from benchmarks.lab.table import baseline
from benchmarks.papers.cells import Cells, Experiment, LabPaper
from benchmarks.papers.rows import RESULTS, Row, compared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from benchmarks.lab.table import Row as Contestant

    Block = dict[str, Contestant]
    Rows = Iterator[Row]

RULE = "generator, smart, paper's rule"
IMPROVED = "generator, node-then-all 24"
RECOMMENDED = "planner's recommendation"
EVERY_STEP = ("DDP", "flat ring", "hierarchical", "flat ring, overlapped", "hierarchical, overlapped")
WORDS = {
    "Figure 10": "Figure 10's static schedule",
    RULE: "smart generator, the paper's rule",
    IMPROVED: "generator, node-then-all",
    RECOMMENDED: "planner's recommendation",
}

ALIKE, SLOW = "Over All-Reduce, all workers alike", "Over All-Reduce, one worker 5× slower"
SLOW_2 = "Over All-Reduce, one worker 2× slower"
PAIRS, SERVER = "Over AD-PSGD, all workers alike", "Over a parameter server"

EXPERIMENTS = {
    "40mbit homogeneous": (*EVERY_STEP[2:], "AD-PSGD", *WORDS),
    "40mbit slow x5": (*EVERY_STEP[1:], *WORDS),
    "200mbit homogeneous": ("server, synchronous", "server, asynchronous", RULE, RECOMMENDED),
    "40mbit slow x2": (*EVERY_STEP[2:], *WORDS),
}
STORED = ("nodes", "slow-x2", "baselines")
"""Runs of the lab whose cells stand in benchmarks/results/lab-NAME.json."""


def experiments() -> list[Experiment]:
    """The most important first; cells run to the loss."""
    known = settings(16)
    return [Experiment(settings=(known[name],), shape=(4, 4), contestants=names) for name, names in EXPERIMENTS.items()]


def rows(cells: Cells) -> Iterator[Row]:
    """How many times as fast the loss comes, in the settings that were run."""
    blocks = cells.by_contestant()
    alike, slow, slow_2 = (blocks.get(f"40mbit {kind}", {}) for kind in ("homogeneous", "slow x5", "slow x2"))
    fast = blocks.get("200mbit homogeneous", {})

    def over(figure: str, block: Block, theirs: str, ours: Iterable[str], paper: float | None, more: str = "") -> Rows:  # noqa: PLR0917
        return compared(figure, block, theirs, setting=lambda name: WORDS[name] + more, only=ours, paper=paper)

    yield from over(ALIKE, alike, _best(alike), WORDS, 1.2, ", 40 Mbit/s")
    yield from over(SLOW, slow, _best(slow), WORDS, 4.4)
    yield from over(SLOW, slow, "flat ring", WORDS, 4.4, ", against the flat ring")
    yield from over(SLOW_2, slow_2, _best(slow_2), WORDS, None)
    yield from over(PAIRS, alike, "AD-PSGD", (RULE, IMPROVED, RECOMMENDED), 3.7)
    for kind in ("synchronous", "asynchronous"):
        yield from over(SERVER, fast, f"server, {kind}", (RULE, RECOMMENDED), 5.3, f", against the {kind} one")


def _best(block: Block) -> str:
    """The best of All-Reduce's forms."""
    found = baseline(list(block.values()))
    return found.contestant if found is not None else ""


def _stored(folder: Path = RESULTS.parent) -> Cells:
    """Cells of runs of `make lab` that are kept."""
    contents = [json.loads((folder / f"lab-{name}.json").read_text()) for name in STORED]
    note = "from the cells of " + ", ".join(f"[lab-{n}](../lab-{n}.md)" for n in STORED)
    return Cells(contents, notes=(note,))


PAPER = LabPaper(name="prague", parts={"all": experiments}, rows=rows, predicts=True, kept=_stored)
