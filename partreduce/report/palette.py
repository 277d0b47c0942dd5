"""The colors and marks of all pictures: Okabe and Ito's colors, which color-blind readers can distinguish.

A group has the same style in the terminal, in a picture and in a report: `grid_of` numbers the groups of a schedule and
assigns the styles, and all drawing code uses them. Beyond the seven colors a hatch distinguishes groups;
lines and dots differ by dash and marker as well, so that no picture depends on color alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#222222"
PALE = "#767676"
GRID = "#e6e6e6"
EDGE = "#ffffff"
GRAY = "#9a9a9a"
SURFACE = "#f3f3f3"
FRAME = "#cecece"
ALARM = "#d55e00"
"""The color of anything refuted, failed or unbounded; always used together with a word or a sign."""

OKABE_ITO = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00")
"""M. Okabe and K. Ito, Color Universal Design (2008), without black, which is used for text."""

HATCHES = ("", "///", "...", "xx")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
NUM_STYLES = len(OKABE_ITO) * len(HATCHES)

COMPUTE = OKABE_ITO[0]
COMMUNICATE = OKABE_ITO[1]
COMMUNICATE_HATCH = "///"
WAIT = "#e3e3e3"
MESSAGE = OKABE_ITO[5]


@dataclass(frozen=True, slots=True)
class Style:
    """The style of a series or group: color and hatch of areas, color and dash of lines, color and marker of dots.

    `text` is a text color that is readable on the color.
    """

    color: str
    hatch: str
    marker: str
    dash: str
    text: str


def style(index: int) -> Style:
    """Return the style of the index-th group or series: the first seven differ by color, others by hatch or dash."""
    turn, place = divmod(index, len(OKABE_ITO))
    marker, dash = MARKERS[(place + turn) % len(MARKERS)], DASHES[(place + turn) % len(DASHES)]
    text = "#ffffff" if place == 5 else "#000000"
    return Style(OKABE_ITO[place], HATCHES[turn % len(HATCHES)], marker, dash, text)


COMMUNICATION = "communication per step (ms)"
CONSENSUS_DISTANCE = "consensus distance\n(unit: variance of one step's noise)"
FINE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
DRIFT = "drift\n(unit: square of one step's push)"


def quiet(axis: Axes, *, across: str = "", up: str = "", grid: bool = True) -> None:
    """Label the axes (`across` and `up`, with units), remove the right and upper frame, and draw a grid."""
    axis.set_xlabel(across, color=INK)
    axis.set_ylabel(up, color=INK)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(colors=PALE, which="both")
    axis.set_axisbelow(True)
    if grid:
        axis.grid(visible=True, which="major", color=GRID, linewidth=0.8)


def logarithmic(axis: Axes, which: str, values: Iterable[float]) -> None:
    """Make the x or y axis (`which`) logarithmic, with limits and tick marks for `values`, labeled by plain numbers.

    Zeros are drawn below the smallest positive value.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, SymmetricalLogLocator

    finite = [value for value in values if math.isfinite(value) and value >= 0]
    positive = [value for value in finite if value > 0]
    if not positive:
        return
    scale, target = getattr(axis, f"set_{which}scale"), axis.xaxis if which == "x" else axis.yaxis
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
