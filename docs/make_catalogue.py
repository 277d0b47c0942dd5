"""Write docs/catalogue.md from the registry: `python docs/make_catalogue.py`; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from partreduce.schedulers import registry

if TYPE_CHECKING:
    from partreduce.schedulers.entry import Entry, Parameter

TARGET = Path(__file__).with_name("catalogue.md")

HEAD = """# Catalogue

Every schedule that `partreduce design CLUSTER --using NAME` builds, generated from the registry by
`python docs/make_catalogue.py`. `partreduce design [CLUSTER] --list --using NAME` explains one, and says
whether it fits a cluster.

n is the number of workers. *Degree* is the most messages that a worker sends in a round, *period* the rounds until the
schedule repeats. Rules hold for any number of equal nodes and stay one page long for a million workers; on unequal
nodes they become explicit groups. Random constructions take a seed, are drawn once, and repeat after their period.

## All entries

| name | kind | condition | degree | period | known figures |
|---|---|---|---|---|---|
"""

IMPORTS = """
## Schedules from elsewhere

`partreduce.import_schedule(path, format=None, cluster=None, weights="metropolis", one_peer=False)`
reads {formats}. The format is recognised by suffix and content when it is not named. `from_networkx`, beside it, takes
any networkx graph, and `one_peer` runs BlueFog's one-peer rule over it. What they return is verified like our own:
BlueFog's one-peer rule on a star or a mesh, for example, is not doubly stochastic, and `verify` says so.

A node-link, GraphML or networkx edge u→v of weight w means that v takes the share w from u; entry [i, j] of a matrix is
what i takes from j. A line of an `.adj` file lists whom a worker sends to. A NumPy file of shape (rounds, n, n), or
JSON with such a list under `w_list`, is a schedule, taken round by round as it stands; such are the matrices of the
Base-(k+1) repository, `graph.w_list`. Its node file names workers only, and becomes our own construction.

Decimal weights become the fractions they stand for (0.333333333 is 1/3), 32-bit numbers those with denominators up to
1,000 that they round (11184811/16777216 is 2/3). Weights that balance at every worker up to 1e-7 are balanced exactly,
and own weights are what the others leave. Whatever was recognised or changed is said: `partreduce import` prints it as
notes, and `import_schedule` appends it to a list given as `notes`.

`partreduce verify --gaps` reads edge lists and node-link files with the same readers, which refuse the same files. It
asks them only who sends to whom: weights do not matter to it, and the nodes of an edge list need not be ranks.
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|") or "·"


def parameter_line(parameter: Parameter) -> str:
    default = "auto" if parameter.default is None else parameter.default
    choices = f" One of {', '.join(parameter.choices)}." if parameter.choices else ""
    return f"* `{parameter.name}` (default {default}): {parameter.help}.{choices}"


def section(entry: Entry) -> str:
    lines = [f"### {entry.name}", "", entry.summary, "", f"Source: {entry.source}."]
    if entry.parameters:
        lines += ["", *(parameter_line(parameter) for parameter in entry.parameters)]
    return "\n".join(lines) + "\n"


def page() -> str:
    from partreduce.schedulers.imports import formats

    entries = [registry.entry(name) for name in registry.names()]
    rows = [
        f"| [{e.name}](#{e.name}) | {e.kind} | {cell(e.condition)} | {cell(e.degree)} | {cell(e.period)} "
        f"| {cell(e.figures)} |"
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
