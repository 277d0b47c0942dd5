"""Prague's rows: its ratios of times to a loss, from the lab's cells."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.lab.results import listed
from benchmarks.lab.setting import settings
from benchmarks.lab.table import Row as Contestant
from benchmarks.lab.table import baseline
from benchmarks.papers.cells import Experiment
from benchmarks.papers.cells import run as run_cells
from benchmarks.papers.rows import RESULTS, Results, Row, only, ratio

if TYPE_CHECKING:
    from pathlib import Path

NAME = "prague"
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

WHY = {
    ALIKE: "a step computes 160 ms here and a flat ring takes 822 ms of wire, so more was to be gained than on the "
    "paper's links; the recommendations average less often than any schedule of the paper.",
    SLOW: "the paper compares with a flat ring that hides nothing; the best All-Reduce here is hierarchical and "
    "overlaps, so it hides behind the slow worker. The paper's rule sends 1.8 to 2.1 MB per NIC and step, and that "
    "decides its step.",
    PAIRS: "AD-PSGD here averages beside its computing and is not slow by the step; the recommendations gain by fewer "
    "steps to the loss.",
    SERVER: "four shards, one on each node, whose workers share its NIC: the ratio is one of wires, and the paper's "
    "server had others.",
}

EXPERIMENTS = {
    "40mbit homogeneous": (*EVERY_STEP[2:], "AD-PSGD", *WORDS),
    "40mbit slow x5": (*EVERY_STEP[1:], *WORDS),
    "200mbit homogeneous": ("server, synchronous", "server, asynchronous", RULE, RECOMMENDED),
    "40mbit slow x2": (*EVERY_STEP[2:], *WORDS),
}
"""The most important first. Cells run to the loss."""
STORED = ("nodes", "slow-x2", "baselines")
"""Runs of the lab whose cells stand in benchmarks/results/lab-NAME.json."""


def run(minutes: float, only: str | None = None) -> Results:
    """Run the experiments in the lab, or those of one setting."""
    known = settings(16)
    listed = [
        Experiment(setting=known[name], shape=(4, 4), contestants=names)
        for name, names in EXPERIMENTS.items()
        if only in (None, name)
    ]
    cells = run_cells(NAME, listed, minutes)
    return Results(paper=NAME, commit=cells.commit, rows=rows(cells.blocks()), why=WHY, notes=cells.notes)


def stored(only: str | None = None, folder: Path = RESULTS.parent) -> Results:  # noqa: ARG001 - all of them
    """The same rows from runs of `make lab` that are kept."""
    blocks, commits = {}, []
    for name in STORED:
        content = json.loads((folder / f"lab-{name}.json").read_text())
        commits += content["head"]["commit"].split("; ")
        blocks |= {setting.name: found for setting, found in listed(content)}
    note = "from the cells of " + ", ".join(f"[lab-{n}](../benchmarks/results/lab-{n}.md)" for n in STORED)
    return Results(paper=NAME, commit=" ".join(dict.fromkeys(commits)), rows=rows(blocks), why=WHY, notes=(note,))


def rows(blocks: dict[str, list[Contestant]]) -> tuple[Row, ...]:
    """What can be said of the settings that were run."""
    alike, slow, slow_2 = (blocks.get(f"40mbit {kind}", []) for kind in ("homogeneous", "slow x5", "slow x2"))
    fast = blocks.get("200mbit homogeneous", [])
    made = [_over_all(ALIKE, alike, name, 1.2, ", 40 Mbit/s") for name in WORDS]
    for name in WORDS:
        made.append(_over_all(SLOW, slow, name, 4.4))
        made.append(_over(SLOW, slow, "flat ring", name, 4.4, ", against the flat ring"))
    made += [_over_all(SLOW_2, slow_2, name, None) for name in WORDS]
    made += [_over(PAIRS, alike, "AD-PSGD", name, 3.7) for name in (RULE, IMPROVED, RECOMMENDED)]
    for name in (RULE, RECOMMENDED):
        made.append(_over(SERVER, fast, "server, synchronous", name, 5.3, ", against the synchronous one"))
        made.append(_over(SERVER, fast, "server, asynchronous", name, 5.3, ", against the asynchronous one"))
    return only(made)


def _over_all(figure: str, block: list[Contestant], name: str, paper: float | None, more: str = "") -> Row | None:
    """Against the best of All-Reduce's forms."""
    best = baseline(block)
    return None if best is None else _over(figure, block, best.contestant, name, paper, more)


def _over(  # noqa: PLR0917 - what, where, whom, who and by how much stand in this order in every call
    figure: str, block: list[Contestant], theirs: str, ours: str, paper: float | None, more: str = ""
) -> Row | None:
    """How many times as fast `ours` reaches the loss; None where one of the two did not."""
    found = {row.contestant: row for row in block}
    seconds = [found[name].all_seconds if name in found else [] for name in (theirs, ours)]
    if not all(seconds):
        return None
    return ratio(*seconds, figure=figure, setting=f"{WORDS[ours]}{more}", paper=paper)
