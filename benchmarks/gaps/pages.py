"""The table and the picture of `scale`: which graph and which setting to choose when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from preduce.report.palette import GREY, GRID, INK, MARKERS, OKABE_ITO, PALE
from preduce.report.picture import new_figure, save

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
    "in steps, over the edges but for `any two`. Queue memory is in models, of the busiest worker, as proved: updates",
    "and snapshots. Tokens alone change nothing on an undirected graph, where `standard` keeps neighbours 1 step apart,",
    "so above 16 workers they are listed for the directed one only. On many workers a run of some dozen steps shows one",
    "slow worker's wake only: it reaches a hop further in each step.",
)


def agreement(row: Row) -> float:
    """Seconds until workers agree to 1 %: measured, or the steps that the graph's contraction says times the step's."""
    measured: float | None = row["agree_seconds"]
    return measured if measured is not None else steps_to_agree(row) * float(row["step_seconds"])


def steps_to_agree(row: Row) -> float:
    """Steps in which the graph alone brings disagreement down to 1 %."""
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
    panels = [panel for panel in PANELS if any((row["workers"], row["slowdown"]) == panel for row in rows)]
    figure = new_figure(12.5, 4.6 * ((len(panels) + 1) // 2) + 1.0)
    figure.suptitle("Which graph, which setting: a step's time, and how many steps agreement takes", color=INK)
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    settings = list(dict.fromkeys(row["setting"] for row in rows if row["setting"] != "tokens"))
    axes = figure.subplots((len(panels) + 1) // 2, 2, squeeze=False).ravel()
    for axis, (count, slowdown) in zip(axes, panels, strict=False):
        here = [row for row in rows if (row["workers"], row["slowdown"]) == (count, slowdown)]
        shown = [row for row in here if row["setting"] in settings]
        for row in shown:
            axis.scatter(
                steps_to_agree(row), row["step_seconds"], s=14 + 5 * row["queue_models"], linewidths=0.8,
                marker=MARKERS[settings.index(row["setting"])], edgecolors="white", alpha=0.85,
                color=OKABE_ITO[graphs.index(row["graph"]) % len(OKABE_ITO)] if row["graph"] != "star" else GREY,
            )  # fmt: skip
        how = "measured" if count == 16 else "by the graph's contraction"
        axis.set_title(f"{count:,} workers, {slowdown}", loc="left", fontsize=10, color=INK)
        axis.set_xlabel(f"steps until a spread is down to 1 % ({how})", fontsize=9)
        axis.set_ylabel("time of a step (computing alone: 1)", fontsize=9)
        axis.set_xscale("log")
        axis.set_yscale("log")
        ticks = [1, 1.2, 1.5, 2, 2.5, 3, 4]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_yticks([], minor=True)
        axis.set_ylim(0.93, 4.4)
        _equal_times(axis)
        best = min(shown, key=agreement)
        axis.annotate(
            f"agrees first: {best['graph']}, {best['setting']}", (steps_to_agree(best), best["step_seconds"]),
            xytext=(0.98, 0.93), textcoords="axes fraction", fontsize=8, color=INK, ha="right",
            arrowprops={"arrowstyle": "->", "color": PALE, "connectionstyle": "arc3,rad=0.15"},
        )  # fmt: skip
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        axis.tick_params(colors=PALE, labelsize=8)
    _legend(figure, graphs, settings)
    save(figure, path)


def _equal_times(axis: Axes) -> None:
    """Dashed lines along which agreement takes the same time."""
    low, high = axis.get_xlim()
    for power in np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high * 4)) + 0.01, 0.5):
        time = 10**power
        steps = np.array([low, high])
        axis.plot(steps, time / steps, color=GRID, linestyle="--", linewidth=0.9, zorder=0)
        place = time / 0.97
        if low < place < high:
            axis.text(place, 0.95, f"{time:,.3g}", fontsize=7, color=GREY, ha="left", rotation=-38)
    axis.set_xlim(low, high)


def _legend(figure: Any, graphs: list[str], settings: list[str]) -> None:  # noqa: ANN401 - matplotlib has no stubs
    from matplotlib.lines import Line2D

    def mark(name: str, marker: str, colour: str, size: float = 8) -> Line2D:
        return Line2D([], [], marker=marker, color=colour, linestyle="", markersize=size, label=name)

    colours = [*OKABE_ITO[: len(graphs) - 1], GREY] if "star" in graphs else OKABE_ITO
    handles = [mark(name, "o", colour) for name, colour in zip(graphs, colours, strict=False)]
    handles += [mark(name, MARKERS[index], INK) for index, name in enumerate(settings)]
    handles += [
        mark(f"{models} models of queue memory", "o", PALE, np.sqrt(14 + 5 * models)) for models in (9, 46, 136)
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=6, fontsize=8, frameon=False, title_fontsize=8,
        title="dashed: equal time to agree",
    )  # fmt: skip
