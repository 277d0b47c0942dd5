"""Write docs/conformance.md from the suite: `python docs/make_conformance.py`; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

TARGET = Path(__file__).with_name("conformance.md")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

HEAD = """# Conformance

What people's training loops do, under every strategy kind, compared with plain torch. `tests/runtime/conformance` runs
each cell on three workers against a reference of plain torch models that exchange vectors over a barrier. It compares
every worker's parameters after each step and at the end (float64, relative 1e-9). This page is generated from the suite
by `python docs/make_conformance.py`.

* **equal**: what the kind promises, by the book. With averaged gradients that is plain training on all batches (DDP);
  otherwise each worker's own training with the means of its rounds, x ← W x. In a pipeline each step takes the mean
  gradient of the step before, the first one a gradient of zero, and the last one is applied at the end.
* **refused**: an `InputError` of one line, before anything is changed.
* **warned**: a Python warning, once; the numbers differ from DDP's, workers have parted, or something was dropped.

Kinds whose workers run freely (an asynchronous server, pairs) step in turn here, so that their results are exact; the
groups of a generated schedule are those that ran. `server` averages gradients at steps_per_round 1, as `allreduce`
does. A gap is kept with tokens (`max_ig` 2), and a quorum waits for everybody's gradient (`grace`); with backup,
staleness, skips or less patience the results depend on who is late. Running statistics of BatchNorm follow the option
`buffers` and are left out here.

"""


def text() -> str:
    """The page."""
    from helpers.conformance.idioms import IDIOMS
    from helpers.conformance.kinds import KINDS

    lines = [f"| idiom | {' | '.join(KINDS)} |", "|---" * (len(KINDS) + 1) + "|"]
    notes = []
    for name, idiom in IDIOMS.items():
        lines.append(f"| {name} | {' | '.join(idiom.outcome(kind).verdict for kind in KINDS)} |")
        others = dict.fromkeys(idiom.outcome(kind) for kind in KINDS if idiom.outcome(kind).verdict != "equal")
        reasons = "".join(f" {one.verdict.capitalize()}: {one.why} (“… {one.words} …”)." for one in others)
        notes.append(f"* **{name}**: {idiom.says}.{reasons}")
    return HEAD + "\n".join(lines) + "\n\n## The idioms\n\n" + "\n".join(notes) + "\n"


def main() -> int:
    """Write, or compare."""
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.read_text() == text() else 1
    TARGET.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
