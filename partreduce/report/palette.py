"""Define the colors of all pictures: Okabe and Ito's, which color-blind readers can distinguish, with marks.

A group has one style in the terminal, in a picture and in a report: `grid_of` numbers the groups of a schedule and
assigns the styles, and code that draws a group uses that one. Beyond the seven colors a hatch distinguishes groups;
lines and dots differ by dash and marker as well, so that no picture depends on color alone.
"""

from __future__ import annotations

from dataclasses import dataclass

INK = "#222222"
PALE = "#767676"
GRID = "#e6e6e6"
EDGE = "#ffffff"
GRAY = "#9a9a9a"
SURFACE = "#f3f3f3"
FRAME = "#cecece"
ALARM = "#d55e00"
"""Refuted, failed, unbounded; always together with a word or a sign."""

OKABE_ITO = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00")
"""M. Okabe and K. Ito, Color Universal Design (2008), without black, which is for text."""

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
    """The style of one series or group: color and hatch of areas, color and dash of lines, color and marker of dots.

    `text` is a text color that is readable on the color.
    """

    color: str
    hatch: str
    marker: str
    dash: str
    text: str


def style(index: int) -> Style:
    """Return the style of the index-th group or series; seven differ by color, more also by hatch, marker or dash."""
    place = index % len(OKABE_ITO)
    turn = index // len(OKABE_ITO)
    color = OKABE_ITO[place]
    return Style(
        color,
        HATCHES[turn % len(HATCHES)],
        MARKERS[(place + turn) % len(MARKERS)],
        DASHES[(place + turn) % len(DASHES)],
        "#ffffff" if color == OKABE_ITO[5] else "#000000",
    )
