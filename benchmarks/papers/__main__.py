"""The papers' tables: runs a paper's experiments in the lab and puts what it printed next to what was measured.

    python -m benchmarks.papers pipe-sgd --minutes 40     # root; says why and ends well where it cannot run
    python -m benchmarks.papers pipe-sgd --only lab       # one part, as experiments.toml names them
    python -m benchmarks.papers prague --stored           # rows from results that are kept, without running anything
    python -m benchmarks.papers --list
    python -m benchmarks.papers --write                   # results/papers/README.md and all tables again

Rows go to benchmarks/results/papers/NAME.json, where those that were run replace their older ones, then into
results/papers/README.md. `make papers PAPER=pipe-sgd MINUTES=40` does the same.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks import kit
from benchmarks.papers import page, rows
from benchmarks.papers.page import PAPERS, Paper

if TYPE_CHECKING:
    import argparse

MINUTES = 20.0


def main() -> int:
    parser = kit.parser(__doc__)
    parser.add_argument(
        "papers", nargs="*", metavar="PAPER", help=f"of {', '.join(p.name for p in PAPERS)}; default all"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for each paper; default {MINUTES:g}")
    parser.add_argument("--only", help="one part of the paper's experiments, as experiments.toml names them")
    parser.add_argument("--stored", action="store_true", help="make rows of what was measured before")
    parser.add_argument("--write", action="store_true", help="write the page and all tables, and run nothing")
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    known = {paper.name: paper for paper in PAPERS}
    if unknown := [name for name in chosen.papers if name not in known]:
        parser.error(f"no paper {unknown[0]!r}; there are {', '.join(known)}")
    if chosen.list:
        for paper in PAPERS:
            print(f"{paper.name:10} {paper.title:24} {paper.claim}")
        return 0
    if not chosen.write:
        for name in chosen.papers or known:
            _one(known[name], chosen)
    page.write()
    return 0


def _one(paper: Paper, chosen: argparse.Namespace) -> None:
    from benchmarks.lab.crew import NoLabError
    from benchmarks.papers import figures
    from benchmarks.papers.pipe_sgd import derive

    if paper.answered_at:
        print(f"papers: {paper.title}: answered once; its scripts are at commit {paper.answered_at}")
        return
    try:
        if chosen.stored:
            found = figures.read_stored(paper, chosen.only)
        else:
            found = figures.measure(paper, chosen.only, chosen.minutes)
    except NoLabError as reason:
        print(f"papers: {paper.title}: skipped: {reason}")
        return
    except FileNotFoundError as error:
        print(f"papers: {paper.title}: nothing is stored: {error.filename}", file=sys.stderr)
        return
    kept = rows.add(found)
    rows.add(replace(found, rows=derive(kept), curves=()))
    print(f"{paper.title}, at {found.commit}\n\n{page.table(found)}\n")


if __name__ == "__main__":
    sys.exit(main())
