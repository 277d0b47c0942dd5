"""Pictures of the curves in papers' files: loss over steps or seconds, a colour a contestant, a line a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.lab.plots import pyplot
from benchmarks.papers.rows import RESULTS
from preduce.report.palette import DASHES, OKABE_ITO

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.papers.rows import Curve, Results


def draw(found: Results, folder: Path = RESULTS) -> list[Path]:
    """A file for every plot that has curves."""
    made = []
    for plot, name in names(found).items():
        _draw(folder / name, plot, [curve for curve in found.curves if curve.plot == plot])
        made.append(folder / name)
    return made


def names(found: Results) -> dict[str, str]:
    """The file of each plot: `PAPER-PLOT.png`, from the words of its title before the first colon."""
    plots = dict.fromkeys(curve.plot for curve in found.curves)
    return {plot: f"{found.paper}-{plot.split(':')[0].lower().replace(' ', '-')}.png" for plot in plots}


def _draw(path: Path, plot: str, curves: list[Curve]) -> None:
    """All of the run on the left, its last third on the right, where the ends can be told apart."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    figure.suptitle(plot)
    for axis in axes:
        _lines(axis, curves)
        axis.set(xlabel="seconds" if "seconds" in plot else "steps", ylabel="training loss of the mean model")
    end = max(curve.at[-1] for curve in curves)
    late = [loss for curve in curves for at, loss in zip(curve.at, curve.losses, strict=True) if at >= 2 / 3 * end]
    low, high = min(late), max(late)
    axes[1].set(xlim=(2 / 3 * end, end), ylim=(low - 0.05 * (high - low), high + 0.05 * (high - low)))
    axes[0].set_yscale("log")
    axes[0].legend(loc="upper right")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _lines(axis: Any, curves: list[Curve]) -> None:  # noqa: ANN401 - matplotlib has no stubs
    seen: dict[str, int] = {}
    order = list(dict.fromkeys(_contestant(curve) for curve in curves))
    for curve in curves:
        name = _contestant(curve)
        turn = seen[name] = seen.get(name, -1) + 1
        colour = OKABE_ITO[order.index(name) % len(OKABE_ITO)]
        axis.plot(curve.at, curve.losses, DASHES[turn % len(DASHES)], color=colour, label=None if turn else name)


def _contestant(curve: Curve) -> str:
    return curve.name.split(", seed ")[0]
