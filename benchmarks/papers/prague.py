"""Prague's rows: its ratios of times to a loss, from the lab's cells, over slow links and in the paper's own regime.

The paper's links are fast relative to its computing, and a slow worker takes 2 or 5 step times longer (Figures 18 to
20): 1 Gbit/s and settings `slow +2` and `slow +5` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.lab.campaign import Cells
from benchmarks.lab.results import Row as Contestant
from benchmarks.lab.results import baseline
from benchmarks.papers.cells import LabPaper
from benchmarks.papers.rows import FIGURES, Row, each, ms, ratio_rows, row_words, steps

Block = dict[str, Contestant]
Rows = Iterator[Row]

RULE = "generator, smart, paper's rule"
IMPROVED = "generator, node-then-all 24"
RECOMMENDED = "planner's recommendation"
FLAT, OVERLAPPED, PUBLISHED = "flat ring", "hierarchical, overlapped", "generator, smart, as published"
WORDS: dict[str, str] = FIGURES["prague"]["words"]
OWN_WORDS = {**WORDS, **FIGURES["prague"]["own_words"]}

EQUAL, SLOW = "Over All-Reduce, all workers equal", "Over All-Reduce, one worker 5× slower"
SLOW_2 = "Over All-Reduce, one worker 2× slower"
PAIRS, SERVER = "Over AD-PSGD, all workers equal", "Over a parameter server"

OWN = {"homogeneous": "all workers equal", "slow +2": "one worker +2 steps", "slow +5": "one worker +5 steps"}
OWN_LINKS = {"1gbit": "1 Gbit/s", "250mbit": "1 Gbit/s at quarter speed"}
"""The paper's own regime: 1 Gbit/s and 80 ms of computing, and the same four times slower."""
PRINTED: dict[str, dict[str, float]] = FIGURES["prague"]["printed"]
OVER_FLAT = "Figures 18 to 20: speed to the loss, flat All-Reduce = 1"
OVER_HIDDEN = "Speed to the loss, overlapped hierarchical All-Reduce = 1"
PER_STEP, STEPS, MS = "Speed per step, flat All-Reduce = 1", "Steps to the loss", "Milliseconds per step"
STORED = ("nodes", "slow-x2", "baselines")
"""Runs of the lab with cells in benchmarks/results/lab-NAME.json."""


def rows(cells: Cells) -> Iterator[Row]:
    """Yield the speedups in time to the loss, in the settings that were run."""
    blocks = cells.by_contestant()
    alike, slow, slow_2 = (blocks.get(f"40mbit {kind}", {}) for kind in ("homogeneous", "slow x5", "slow x2"))
    fast = blocks.get("200mbit homogeneous", {})

    def over(figure: str, block: Block, theirs: str, ours: Iterable[str], paper: float | None, more: str = "") -> Rows:  # noqa: PLR0917
        return ratio_rows(figure, block, theirs, setting=lambda name: WORDS[name] + more, only=ours, paper=paper)

    yield from over(EQUAL, alike, _best(alike), WORDS, 1.2, ", 40 Mbit/s")
    yield from over(SLOW, slow, _best(slow), WORDS, 4.4)
    yield from over(SLOW, slow, "flat ring", WORDS, 4.4, ", against the flat ring")
    yield from over(SLOW_2, slow_2, _best(slow_2), WORDS, None)
    yield from over(PAIRS, alike, "AD-PSGD", (RULE, IMPROVED, RECOMMENDED), 3.7)
    for kind in ("synchronous", "asynchronous"):
        yield from over(SERVER, fast, f"server, {kind}", (RULE, RECOMMENDED), 5.3, f", against the {kind} one")
    for rate, speed in OWN_LINKS.items():
        for kind, words in OWN.items():
            yield from _own_rows(kind, f"{speed}, {words}", blocks.get(f"{rate} {kind}", {}))


def _own_rows(kind: str, where: str, block: Block) -> Rows:
    """Yield the speed to the loss, and its parts: steps to the loss, and milliseconds per step."""

    setting = row_words(where, OWN_WORDS)
    yield from ratio_rows(OVER_FLAT, block, FLAT, setting=setting, paper=PRINTED[kind].get)
    yield from ratio_rows(OVER_HIDDEN, block, OVERLAPPED, setting=setting)
    yield from ratio_rows(PER_STEP, block, FLAT, ms, setting=setting)
    yield from each(STEPS, block, steps, "steps", setting=setting)
    yield from each(MS, block, ms, "milliseconds", setting=setting)


def _best(block: Block) -> str:
    found = baseline(list(block.values()))
    return found.contestant if found is not None else ""


PAPER = LabPaper(name="prague", rows=rows, bars=(OVER_FLAT,), predicts=True, labs=STORED)
