"""The README's picture: loss over seconds, from the kept cells of the lab (benchmarks/results/lab-nodes.json).

python -m benchmarks.lab.front_picture [-o docs/pictures/loss-over-seconds.svg]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.kit import ROOT, parser
from benchmarks.lab.plots import pyplot
from benchmarks.lab.results import listed
from benchmarks.lab.table import Row
from partreduce.report.axes import quiet
from partreduce.report.palette import INK, OKABE_ITO

CELLS = ROOT / "benchmarks/results/lab-nodes.json"
PICTURE = ROOT / "docs/pictures/loss-over-seconds.svg"
SETTING = "40mbit homogeneous"
SHOWN = (
    ("DDP", "PyTorch DDP", OKABE_ITO[6], ":", (10.4, 0.113)),
    ("hierarchical", "All-Reduce, hierarchical", OKABE_ITO[5], "--", (16.5, 2.75)),
    ("planner's recommendation", "recommendation", OKABE_ITO[2], "-", (15.3, 0.045)),
)
"""Contestant, the label beside its lines, how they are drawn, and where the label stands."""


def shown() -> list[Row]:
    """What is drawn, in the order of `SHOWN`."""
    (rows,) = (rows for setting, rows in listed(json.loads(CELLS.read_text())) if setting.name == SETTING)
    by_name = {row.contestant: row for row in rows}
    return [by_name[contestant] for contestant, *_ in SHOWN]


def draw(path: Path) -> None:
    """Every run of each contestant is a line of its own, so the spread is what the picture shows."""
    plt = pyplot()
    plt.rcParams["svg.hashsalt"] = "partreduce"  # the same bytes each time
    figure, axis = plt.subplots(figsize=(6.2, 3.9), layout="constrained")
    rows = shown()
    for row, (_, label, color, dash, place) in zip(rows, SHOWN, strict=True):
        for cell in row.cells:
            axis.plot([at for _, at, _ in cell.curve], [loss for _, _, loss in cell.curve], dash, color=color)
        reached, runs = len(row.all_seconds), len(row.cells)
        of = "1 run" if runs == 1 else f"{runs} runs" if reached == runs else f"{reached} of {runs} runs"
        axis.text(*place, f"{label}: {row.seconds:.1f} s ({of})", color=color, weight="bold", fontsize=9.5)
    axis.axhline(rows[0].target, color=INK, linewidth=0.8)
    axis.text(50.5, rows[0].target * 1.05, f"loss {rows[0].target:g}", color=INK, ha="right")
    axis.set(yscale="log", xlim=(0, 51), ylim=(0.03, 3.5))
    axis.set_yticks([0.05, 0.1, 0.2, 0.5, 1, 2], ["0.05", "0.1", "0.2", "0.5", "1", "2"])
    axis.minorticks_off()
    quiet(axis, across="seconds of training", up="loss of the mean model")
    axis.set_title("16 workers on 4 nodes, 40 Mbit/s links, 160 ms of computing a step", color=INK, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)
    plt.close(figure)


def main(words: list[str]) -> int:
    arguments = parser(__doc__)
    arguments.add_argument("-o", "--output", type=Path, default=PICTURE)
    draw(arguments.parse_args(words).output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
