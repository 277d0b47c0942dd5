"""Every color of every picture: Okabe and Ito's, which color-blind readers can tell apart, with marks next to them.

A group has one style in the terminal, in a picture and in a report: `grid_of` numbers the groups of a schedule and
gives each a style, and code that draws a group asks for that one. Beyond the seven colors a hatch makes the difference;
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
"""Refuted, failed, unbounded; always with a word or a sign next to it."""

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
    """How one series or group is drawn: areas by color and hatch, lines by color and dash, dots by color and marker.

    `text` is the ink that can be read on the color.
    """

    color: str
    hatch: str
    marker: str
    dash: str
    text: str


def style(index: int) -> Style:
    """The style of the index-th group or series; seven differ by color, the next by hatch, marker or dash as well."""
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
