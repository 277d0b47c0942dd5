"""Pictures of what stands in papers' files: losses over steps or seconds, a colour a contestant, and rows as bars."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.lab.plots import pyplot
from benchmarks.papers.rows import RESULTS
from partreduce.report.palette import DASHES, OKABE_ITO

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.papers.rows import Curve, Results, Row


def draw(found: Results, folder: Path = RESULTS) -> list[Path]:
    """A file for every plot that has curves."""
    made = []
    for plot, name in names(found).items():
        _draw(folder / name, plot, [curve for curve in found.curves if curve.plot == plot])
        made.append(folder / name)
    for figure, name in bar_names(found).items():
        _draw_bars(folder / name, figure, [row for row in found.rows if row.figure == figure])
        made.append(folder / name)
    return made


def names(found: Results) -> dict[str, str]:
    """The file of each plot: `PAPER-PLOT.png`, from the words of its title before the first colon."""
    plots = dict.fromkeys(curve.plot for curve in found.curves)
    return {plot: f"{found.paper}-{plot.split(':')[0].lower().replace(' ', '-')}.png" for plot in plots}


def bar_names(found: Results) -> dict[str, str]:
    """The file of each figure that is drawn as bars."""
    figures = [figure for figure in found.bars if any(row.figure == figure for row in found.rows)]
    return {figure: f"{found.paper}-{figure.split(':')[0].lower().replace(' ', '-')}.png" for figure in figures}


def _draw_bars(path: Path, figure: str, rows: list[Row]) -> None:
    """A panel for what stands before the colon of each setting; a mark where the simulator predicts the row."""
    plt = pyplot()
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(row.setting.partition(": ")[0], []).append(row)
    sizes = [len(shown) for shown in panels.values()]
    heights = [0.25 * max(sizes[place : place + 2]) + 0.8 for place in range(0, len(sizes), 2)]
    drawn, axes = plt.subplots(
        len(heights), 2, figsize=(13, 0.5 + sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    drawn.suptitle(figure)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (where, shown) in zip(axes.flat, panels.items(), strict=False):
        places = list(range(len(shown)))
        values = [row.measured for row in shown]
        ends = [[row.measured - row.low for row in shown], [row.high - row.measured for row in shown]]
        axis.barh(places, values, xerr=ends, color=OKABE_ITO[0], label="measured")
        known = [(place, row.predicted) for place, row in zip(places, shown, strict=True) if row.predicted]
        if known:
            axis.plot([at for _, at in known], [place for place, _ in known], "k|", markersize=9, label="predicted")
        axis.set(yticks=places, yticklabels=[row.setting.partition(": ")[2] for row in shown], title=where)
        axis.invert_yaxis()
    drawn.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower right", ncols=2)
    drawn.savefig(path, dpi=80)
    plt.close(drawn)


def _draw(path: Path, plot: str, curves: list[Curve]) -> None:
    """All of the run on the left. On the right the same over steps where they are known, else its last third."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    figure.suptitle(plot)
    by_steps = all(curve.steps for curve in curves)
    _lines(axes[0], curves)
    _lines(axes[1], [replace(curve, at=curve.steps) for curve in curves] if by_steps else curves)
    labels = _labels(plot)
    for axis, label in zip(axes, labels.over, strict=True):
        axis.set(xlabel=label if by_steps else labels.over[0], ylabel=labels.what)
    axes[0].set(yscale=labels.scale, xscale=labels.along)
    if by_steps:
        axes[1].set(yscale=labels.scale, xscale=labels.along)
    else:
        _show_the_end(axes[1], curves)
    axes[0].legend(loc=labels.legend)
    figure.savefig(path, dpi=80)
    plt.close(figure)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labels:
    """What a plot's axes say: upwards, and along both panels."""

    what: str = "training loss of the mean model"
    over: tuple[str, str] = ("steps", "steps")
    scale: str = "log"
    along: str = "linear"
    legend: str = "upper right"


def _labels(plot: str) -> _Labels:
    over = ("seconds", "gradients" if "gradients" in plot else "steps") if "seconds" in plot else ("steps", "steps")
    if "accuracy" in plot:
        what = "share of held-out samples that the mean model tells right"
        return _Labels(what=what, over=over, scale="linear", legend="lower right")
    if "over skew" in plot:
        over = ("milliseconds from one worker's call to the next one's", "skew of all over the time of a sum")
        return _Labels(what="times as fast", over=over, along="log", legend="upper left")
    if "held out" in plot:
        return _Labels(what="loss of samples held out", over=over, scale="linear")
    return _Labels(over=over)


def _show_the_end(axis: Any, curves: list[Curve]) -> None:  # noqa: ANN401 - matplotlib has no stubs
    """The last third alone, where ends can be told apart."""
    end = max(curve.at[-1] for curve in curves)
    late = [loss for curve in curves for at, loss in zip(curve.at, curve.losses, strict=True) if at >= 2 / 3 * end]
    low, high = min(late), max(late)
    axis.set(xlim=(2 / 3 * end, end), ylim=(low - 0.05 * (high - low), high + 0.05 * (high - low)))


def _lines(axis: Any, curves: list[Curve]) -> None:  # noqa: ANN401 - matplotlib has no stubs
    seen: dict[str, int] = {}
    order = list(dict.fromkeys(_contestant(curve) for curve in curves))
    for curve in curves:
        name = _contestant(curve)
        turn = seen[name] = seen.get(name, -1) + 1
        again, place = divmod(order.index(name), len(OKABE_ITO))  # colours begin anew with other dashes
        colour = OKABE_ITO[place]
        axis.plot(
            curve.at, curve.losses, DASHES[(turn + again) % len(DASHES)], color=colour, label=None if turn else name
        )


def _contestant(curve: Curve) -> str:
    return curve.name.split(", seed ")[0]
