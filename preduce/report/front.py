"""Picture of a plan: communication against disagreement and drift, found schedules beside the catalogue's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from preduce.planner.option import Option
    from preduce.planner.plan import Plan


def draw_front(planned: Plan, path: Path) -> None:
    """Write the picture; the format is that of the file's suffix.

    Raises:
        InputError: a suffix that is no picture format.
        FileProblem: the file cannot be written.
        MissingFeatureError: matplotlib is not installed.
    """
    from preduce.report.picture import new_figure, save

    figure = new_figure(12.0, 4.8)
    axes = figure.subplots(1, 2)
    _panel(axes[0], planned, "disagreement", [_value(option, "disagreement") for option in planned.options])
    _panel(axes[1], planned, "drift", [_value(option, "drift") for option in planned.options])
    axes[0].legend(loc="upper right", frameon=False)
    figure.suptitle(f"{planned.pick.schedule.cluster}: what less communication costs")
    save(figure, path)


def _value(option: Option, name: str) -> float:
    return float(getattr(option, name))


def _panel(axes: Axes, planned: Plan, name: str, values: list[float]) -> None:
    """One scatter; zero figures lie on the lower edge, because the axis is symmetric-logarithmic."""
    kept = {id(option) for option in planned.front}
    for label, colour, marker, wanted in (
        ("catalogue", "0.55", "s", "catalogue"),
        ("found by the search", "tab:blue", "o", "found"),
    ):
        chosen = [
            (option.communication * 1e3, value, id(option) in kept)
            for option, value in zip(planned.options, values, strict=True)
            if (option.status == "catalogue") == (wanted == "catalogue") and math.isfinite(value)
        ]
        axes.scatter(
            [x for x, _, _ in chosen], [y for _, y, _ in chosen], c=colour, marker=marker, label=label,
            s=[36 if on_front else 12 for _, _, on_front in chosen], alpha=0.85, linewidths=0,
        )  # fmt: skip
    pick = planned.pick
    axes.scatter([pick.communication * 1e3], [_value(pick, name)], s=160, facecolors="none", edgecolors="tab:green",
                 linewidths=2, label=f"pick: {pick.name}")  # fmt: skip
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylim(bottom=-0.01)
    axes.set_xlabel("communication, ms per step")
    axes.set_ylabel(name)
    axes.grid(alpha=0.25)
