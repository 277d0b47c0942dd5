"""What the axes of all pictures share: quiet spines, a pale grid, and scales that can be read at every size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from partreduce.report.palette import GRID, INK, PALE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMMUNICATION = "communication per step (ms)"
CONSENSUS_DISTANCE = "consensus distance\n(unit: variance of one step's noise)"
FINE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
DRIFT = "drift\n(unit: square of one step's push)"


def quiet(axis: Axes, *, across: str = "", up: str = "", grid: bool = True) -> None:
    """Labels with their units, no frame on the right and above, a grid behind the data."""
    axis.set_xlabel(across, color=INK)
    axis.set_ylabel(up, color=INK)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(colors=PALE, which="both")
    axis.set_axisbelow(True)
    if grid:
        axis.grid(visible=True, which="major", color=GRID, linewidth=0.8)


def logarithmic(axis: Axes, which: str, values: Iterable[float]) -> None:
    """A logarithmic x or y axis with plain numbers; a zero among the values stands below the smallest positive one.

    One value that is a hundred times the others then takes a part of the width and not all of it.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, SymmetricalLogLocator

    finite = [value for value in values if math.isfinite(value) and value >= 0]
    positive = [value for value in finite if value > 0]
    if not positive:
        return
    scale = getattr(axis, f"set_{which}scale")
    target = axis.xaxis if which == "x" else axis.yaxis
    least, most = min(positive), max(positive)
    decades = math.log10(most / least)
    steps = FINE if decades < 0.8 else (1.0, 2.0, 5.0) if decades < 2.5 else (1.0, 3.0) if decades < 4 else (1.0,)
    if len(positive) < len(finite):
        start = 10.0 ** math.floor(math.log10(least))
        scale("symlog", linthresh=start, linscale=0.4)
        target.set_major_locator(SymmetricalLogLocator(base=10.0, linthresh=start, subs=steps))
        getattr(axis, f"set_{which}lim")(-0.25 * start, most * 1.6)
    else:
        scale("log")
        target.set_major_locator(LogLocator(base=10.0, subs=steps, numticks=12))
        getattr(axis, f"set_{which}lim")(least / 1.4, most * 1.4)
    target.set_minor_locator(NullLocator())
    target.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
