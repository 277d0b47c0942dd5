"""The lab's results as a table: medians with their spread, one block per setting."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks import kit
from benchmarks.lab.contestants import EVERY_STEP
from benchmarks.lab.measure import Measured
from benchmarks.lab.setting import Setting

COLUMNS = (
    "contestant",
    "rate",
    "ms per step",
    "steps to target",
    "seconds to target",
    "× All-Reduce",
    "of the compute-only limit",
    "MB per NIC and step",
    "loss after {:.1f} s",
    "runs",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant in one setting: every repetition."""

    contestant: str
    family: str
    cells: list[Measured]
    target: float
    learning_rate: float | None = None

    @property
    def step_ms(self) -> float:
        return median(cell.step_ms for cell in self.cells)

    @property
    def nic_mb(self) -> float:
        return median(cell.nic_mb for cell in self.cells)

    def _reached(self, which: int) -> list[float]:
        return [found[which] for cell in self.cells if (found := cell.reached(self.target)) is not None]

    @property
    def steps(self) -> float | None:
        """Median steps to the target; None unless most repetitions reached it."""
        found = self._reached(0)
        return median(found) if 2 * len(found) > len(self.cells) else None

    @property
    def seconds(self) -> float | None:
        """Median seconds to the target; None unless most repetitions reached it."""
        found = self._reached(1)
        return median(found) if 2 * len(found) > len(self.cells) else None

    @property
    def all_seconds(self) -> list[float]:
        """Seconds to the target of every repetition that reached it."""
        return self._reached(1)

    def loss_after(self, seconds: float) -> float:
        """Median loss of the mean model at the last evaluation until then."""
        return median([loss for _, at, loss in cell.curve if at <= seconds][-1] for cell in self.cells)

    def seconds_spread(self) -> str:
        """Smallest and largest seconds to the target."""
        values = sorted(self._reached(1))
        return f"[{values[0]:.1f}-{values[-1]:.1f}]" if values else ""


def baseline(rows: list[Row]) -> Row | None:
    """The best every-step exact averaging, by seconds to the target."""
    reached = [row for row in rows if row.family == EVERY_STEP and row.seconds is not None]
    return min(reached, key=lambda row: row.seconds or 0.0) if reached else None


def fraction_of_limit(row: Row, rows: list[Row], setting: Setting, num_workers: int) -> float | None:
    """What All-Reduce's steps would take on a free network where nobody waits, over this row's seconds.

    All-Reduce's steps are the fewest of its forms: those that overlap need more.
    """
    steps = [base.steps for base in rows if base.family == EVERY_STEP and base.steps is not None]
    if not steps or row.seconds is None:
        return None
    return min(steps) * setting.free_step(num_workers) / row.seconds


def block(rows: list[Row], setting: Setting, num_workers: int) -> str:
    base = baseline(rows)
    ends = min(cell.curve[-1][1] for row in rows for cell in row.cells if cell.curve)
    lines = []
    for row in rows:
        seconds = row.seconds
        ratio = "" if base is None or seconds is None else f"{base.seconds / seconds:.2f}"  # type: ignore[operator]
        share = fraction_of_limit(row, rows, setting, num_workers)
        mark = " (baseline)" if row is base else ""
        cells = [
            f"{row.contestant}{mark}",
            "" if row.learning_rate is None else f"{row.learning_rate:g}",
            kit.middle([cell.step_ms for cell in row.cells], ".0f"),
            "not reached" if row.steps is None else f"{row.steps:.0f}",
            "" if seconds is None else f"{seconds:.2f} {row.seconds_spread()}",
            ratio,
            "" if share is None else f"{share:.2f}",
            f"{row.nic_mb:.2f}",
            f"{row.loss_after(ends):.3f}",
            f"{len(row.cells)}",
        ]
        lines.append(cells)
    return kit.table([column.format(ends) for column in COLUMNS], lines).rstrip("\n")


def document(head: dict[str, Any], blocks: dict[str, str], notes: list[str]) -> str:
    parts = ["# The lab's results", "", "Written by `python -m benchmarks.lab.run`; do not edit.", ""]
    parts += [f"* {key}: {value}" for key, value in head.items()]
    for name, text in blocks.items():
        parts += ["", f"## {name}", "", text]
    if notes:
        parts += ["", "## Left out, failed, or to be known", "", *[f"* {note}" for note in notes]]
    return "\n".join(parts) + "\n"
