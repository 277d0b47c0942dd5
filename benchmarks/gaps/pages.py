"""The table and the picture of `scale`: which graph and which setting to choose when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from partreduce.report.palette import GREY, GRID, INK, MARKERS, OKABE_ITO, PALE
from partreduce.report.picture import new_figure, save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

Row = dict[str, Any]
PANELS = ((16, "6x, p = 1/n"), (16, "one worker 4x"), (10_000, "6x, p = 1/16"), (10_000, "one worker 4x"))
COLUMNS = (
    ("graph", "graph"),
    ("setting", "setting"),
    ("step", "step_seconds"),
    ("to agree", "agree"),
    ("gap: mean", "gap_mean"),
    ("90 %", "gap_90"),
    ("largest", "gap_most"),
    ("any two", "pair_most"),
    ("skipped", "skipped"),
    ("queue memory", "queue_models"),
)


TEXT = (
    "Made by `python -m benchmarks.gaps.scale`. Virtual time, parallel order; only computing takes time, 1 a step.",
    "`step` is the mean over the steps of all workers, the first quarter left out. `to agree` is the time in which a",
    "spread over the workers falls to 1 %: measured with 16 workers by averaging numbers as the protocol object says,",
    "above by the graph's contraction and the step (settings that leave updates out take longer than that). Gaps are",
    "in steps, over the edges but for `any two`. Queue memory is in models, of the busiest worker, proved: updates and",
    "snapshots. Tokens alone change nothing on an undirected graph, where `standard` keeps neighbours 1 step apart,",
    "so above 16 workers they are listed for the directed one only. On many workers some dozen steps show one slow",
    "worker's wake only: it reaches a hop further in each step.",
)


def agreement(row: Row) -> float:
    """Seconds until workers agree to 1 %: measured, or the steps that the graph's contraction says times the step's."""
    measured: float | None = row["agree_seconds"]
    return measured if measured is not None else steps_to_agree(row) * float(row["step_seconds"])


def steps_to_agree(row: Row) -> float:
    """Steps in which the graph alone brings consensus distance down to 1 %."""
    measured: float | None = row["agree_seconds"]
    if measured is not None:
        return measured / float(row["step_seconds"])
    return float(np.log(100) / -np.log(row["contraction"]))


def page(rows: list[Row]) -> str:
    """A table for each size and slowdown."""
    lines = [
        "# Gaps at 16, 256, 4,096 and 10,000 workers",
        "",
        *TEXT,
        "",
    ]
    for count in dict.fromkeys(row["workers"] for row in rows):
        for slowdown in dict.fromkeys(row["slowdown"] for row in rows if row["workers"] == count):
            listed = [row for row in rows if row["workers"] == count and row["slowdown"] == slowdown]
            steps = sorted({row["steps"] for row in listed}, reverse=True)
            lines += [
                f"## {count:,} workers, {slowdown} ({' or '.join(map(str, steps))} steps)",
                "",
                "| " + " | ".join(title for title, _ in COLUMNS) + " |",
                "|" + "---|" * len(COLUMNS),
                *("| " + " | ".join(_cell(row, key) for _, key in COLUMNS) + " |" for row in listed),
                "",
            ]
    return "\n".join(lines)


def _cell(row: Row, key: str) -> str:
    if key == "agree":
        return f"{agreement(row):,.3g}" if agreement(row) < 1000 else f"{agreement(row):,.0f}"
    if key == "skipped":
        return f"{row[key]:.1%}" if row[key] else ""
    return f"{row[key]:.2f}" if isinstance(row[key], float) else str(row[key])


def draw(rows: list[Row], path: Path) -> None:
    """Step time against steps to agreement: lower and further left is better, dashed lines take equal time."""
    rows = [row for row in rows if row["graph"] != "star"]  # it would press all others together
    panels = [panel for panel in PANELS if any((row["workers"], row["slowdown"]) == panel for row in rows)]
    figure = new_figure(12.5, 4.4 * ((len(panels) + 1) // 2) + 1.2)
    figure.suptitle(
        "Which graph, which setting: what a step takes, and how many steps agreement takes",
        x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK,
    )  # fmt: skip
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    settings = list(dict.fromkeys(row["setting"] for row in rows if row["setting"] != "tokens"))
    axes = figure.subplots((len(panels) + 1) // 2, 2, squeeze=False).ravel()
    for axis, panel in zip(axes, panels, strict=False):
        shown = [row for row in rows if (row["workers"], row["slowdown"]) == panel and row["setting"] in settings]
        _panel(axis, sorted(shown, key=lambda row: -row["queue_models"]), graphs, settings)
        how = "measured" if panel[0] == 16 else "by the graph's contraction"
        steps = "" if panel[0] == 16 else f", {shown[0]['steps']} steps"
        axis.set_title(f"{panel[0]:,} workers, {panel[1]}{steps}", loc="left", fontsize=10, color=INK)
        axis.set_xlabel(f"steps until a spread is down to 1 % ({how})", fontsize=9, color=INK)
    _legend(figure, graphs, settings)
    save(figure, path)


def _panel(axis: Axes, shown: list[Row], graphs: list[str], settings: list[str]) -> None:
    for row in shown:
        axis.scatter(
            steps_to_agree(row), row["step_seconds"], s=area(row["queue_models"]), linewidths=0.8, edgecolors="white",
            marker=MARKERS[settings.index(row["setting"])], alpha=0.85, color=OKABE_ITO[graphs.index(row["graph"])],
        )  # fmt: skip
    best = min(shown, key=agreement)
    axis.scatter(steps_to_agree(best), best["step_seconds"], s=520, facecolors="none", edgecolors=INK, linewidths=1.2)
    axis.set_title(f"agrees first: {best['graph']}, {best['setting']}", loc="right", fontsize=8, color=PALE)
    axis.set_ylabel("time of a step (computing alone: 1)", fontsize=9, color=INK)
    axis.set_xscale("log")
    axis.set_yscale("log")
    top = max(row["step_seconds"] for row in shown)
    ticks = [1, 1.2, 1.5, 2, 2.5, 3, 4]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_yticks([], minor=True)
    axis.set_ylim(0.93, max(1.25, 1.12 * top))
    low, high = axis.get_xlim()
    step = 0.5 if high < 1e4 * low else 1.0
    for power in np.arange(np.ceil(np.log10(low) / step) * step, np.log10(high * top) + step, step):
        axis.plot([low, high], [10**power / low, 10**power / high], color=GRID, linestyle="--", linewidth=0.9, zorder=0)
        if low < 10**power / 0.95 < high:
            axis.text(10**power / 0.95, 0.945, f"{10**power:,.0f}", fontsize=7, color=GREY)
    axis.set_xlim(low, high)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(colors=PALE, labelsize=8)


def area(models: float) -> float:
    """A marker's size: twice the models take twice the area."""
    return 10 + 4 * models


def _legend(figure: Any, graphs: list[str], settings: list[str]) -> None:  # noqa: ANN401 - matplotlib has no stubs
    from matplotlib.lines import Line2D

    def mark(name: str, marker: str, colour: str, size: float = 8) -> Line2D:
        return Line2D([], [], marker=marker, color=colour, linestyle="", markersize=size, label=name)

    handles = [mark(name, "s", colour) for name, colour in zip(graphs, OKABE_ITO, strict=False)]
    handles += [mark(name, MARKERS[index], INK) for index, name in enumerate(settings)]
    handles += [mark(f"{models} models in queues", "o", PALE, float(np.sqrt(area(models)))) for models in (10, 40)]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=7, fontsize=8, frameon=False, title_fontsize=8,
        title="colour: graph; shape: setting; size: queue memory of a worker; dashed: equal time; ringed: least",
    )  # fmt: skip
