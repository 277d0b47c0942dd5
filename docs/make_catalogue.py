"""Write docs/catalogue.md from the registry: `python docs/make_catalogue.py`; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from partreduce.schedulers import registry

if TYPE_CHECKING:
    from partreduce.schedulers.entry import Entry

TARGET = Path(__file__).with_name("catalogue.md")

HEAD = """# Catalogue

Every schedule that `partreduce design CLUSTER --build NAME` builds; `python docs/make_catalogue.py` writes this page
from the registry. `partreduce design [CLUSTER] --list --build NAME` explains an entry and its parameters, and says
whether it fits a cluster.

n is the number of workers. *Degree* is the most messages that a worker sends in a round, *period* the rounds until
the schedule repeats. Rules hold for any number of equal nodes; on unequal nodes they become explicit groups. Random
constructions take a seed.

## All entries

| name | kind | condition | degree | period | known metrics |
|---|---|---|---|---|---|
"""

IMPORTS = """
## Schedules from elsewhere

`partreduce.import_schedule(path, format=None, cluster=None, weights="metropolis")` reads {formats};
`partreduce.schedulers.imports.from_networkx` takes a networkx graph. `verify` treats them like our own.

* A node-link, GraphML or networkx edge u→v of weight w: v takes the share w from u. Entry [i, j] of a matrix: i
  takes from j.
* A NumPy file of shape (rounds, n, n), or JSON with such a list under `w_list`, has one matrix per round.
* Decimal weights become fractions (0.333333333 is 1/3). Weights that balance up to 1e-7 are balanced exactly.
  `partreduce import` prints every change.
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|") or "·"


def section(entry: Entry) -> str:
    lines = [f"### {entry.name}", "", entry.summary, "", f"Source: {entry.source}."]
    if entry.parameters:
        lines[-1] += f" Parameters: {', '.join(f'`{parameter.name}`' for parameter in entry.parameters)}."
    return "\n".join(lines) + "\n"


def page() -> str:
    from partreduce.schedulers.imports import formats

    entries = [registry.entry(name) for name in registry.names()]
    rows = [
        f"| [{e.name}](#{e.name}) | {e.kind} | {cell(e.condition)} | {cell(e.degree)} | {cell(e.period)} "
        f"| {cell(e.metrics)} |"
        for e in entries
    ]
    names = ", ".join(f"`{name}`" for name in formats())
    sections = "\n".join(section(entry) for entry in entries)
    return HEAD + "\n".join(rows) + "\n\n## Each entry\n\n" + sections + IMPORTS.format(formats=names)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return int(not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
