"""Print tables that fit the terminal: columns are dropped by priority, texts wrap, and row names are never cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from partreduce.console import size
from partreduce.report.grid import Grid
from partreduce.topo.hardware import Hardware, switches_above

GAP = 2
"""Blank cells between two columns: one of padding and one instead of a divider."""
TEXT = 20
"""Minimum width of a text column while another column can be dropped."""
CELL = 4
"""Width of a phase in the worker × phase table."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table for the terminal.

    Columns with the highest `drop` are left out first on a narrow terminal, 0 never. `wraps`: long texts continue on
    the next line. `is_cut`: the end of a text is left out if it does not fit into one line.
    """

    header: str
    drop: int = 0
    justify: Literal["left", "right"] = "right"
    wraps: bool = False
    is_cut: bool = False


@dataclass(slots=True)
class Table:
    """A table for `console().print`; `rows` are (cells, rich style of the row). Cells may hold rich's markup."""

    title: str
    columns: list[Column]
    rows: list[tuple[tuple[str, ...], str | None]] = field(default_factory=list)

    def add(self, *cells: str, style: str | None = None) -> None:
        assert len(cells) == len(self.columns), "a cell for each column"
        self.rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table at the terminal's width; rich calls this."""
        kept, widths = self._fit(options.max_width)
        inside = options.update(no_wrap=False, overflow="fold")
        yield ""
        if self.title:  # printed separately, since a table's own title would wrap at the table's width
            yield from console.render(f"[bold]{self.title}[/]", inside)
        yield from console.render(self._drawn(kept, widths), inside)
        if left_out := [column.header for index, column in enumerate(self.columns) if index not in kept]:
            words = f"Too narrow for: {', '.join(left_out)}; a wider terminal or --json shows them."
            yield from console.render(f"[dim]{words}[/]", inside)

    def _fit(self, width: int) -> tuple[list[int], list[int]]:
        """Return the columns to keep on a terminal of `width` cells, and the width of each in cells."""
        natural = [self._natural(index) for index in range(len(self.columns))]
        least = [min(full, TEXT) if column.wraps else full for full, column in zip(natural, self.columns, strict=True)]
        kept = list(range(len(self.columns)))
        for leaving in sorted((i for i in kept if self.columns[i].drop), key=lambda i: -self.columns[i].drop):
            if sum(least[i] + GAP for i in kept) - GAP <= width:
                break
            kept.remove(leaving)
        room = width + GAP - sum(least[i] + GAP for i in kept)
        widths = [least[i] for i in kept]
        if room < 0:  # no column can be dropped: the widest columns wrap
            for _ in range(-room):
                widest = widths.index(max(widths))
                widths[widest] = max(1, widths[widest] - 1)
            return kept, widths
        # Wrapping text columns get the remaining width first, then headers, which may break between words.
        for wanted in (natural, [max(natural[i], len(column.header)) for i, column in enumerate(self.columns)]):
            for place, index in enumerate(kept):
                more = min(room, max(0, wanted[index] - widths[place]))
                widths[place] += more
                room -= more
        return kept, widths

    def _natural(self, index: int) -> int:
        """Return the column's width in cells without wrapping; headers may break between words."""
        texts = [Text.from_markup(cells[index]) for cells, _ in self.rows]
        cells = [line.cell_len for text in texts for line in text.split()]
        return max([*cells, *(len(word) for word in self.columns[index].header.split()), 1])

    def _drawn(self, kept: list[int], widths: list[int]) -> RichTable:
        result = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for index, width in zip(kept, widths, strict=True):
            column = self.columns[index]
            result.add_column(
                column.header, justify=column.justify, width=width, no_wrap=column.is_cut,
                overflow="ellipsis" if column.is_cut else "fold",
            )  # fmt: skip
        for cells, style in self.rows:
            result.add_row(*(cells[index] for index in kept), style=style)
        return result


def table(title: str, name: str, *columns: str | Column) -> Table:
    """Return an empty table whose first column is `name`; columns given as plain texts are never left out."""
    others = [column if isinstance(column, Column) else Column(column) for column in columns]
    return Table(title, [Column(name, justify="left"), *others])


def terminal_tables(grid: Grid, width: int) -> list[RichTable]:
    """Return tables of workers × phases, each within `width` cells; groups have letter and color, skips are blank."""
    fitting = max(1, (width - 2 * len("worker ") - CELL) // (CELL + 1))
    starts = range(0, grid.num_phases, fitting)
    return [_part(grid, range(start, min(start + fitting, grid.num_phases))) for start in starts]


def _part(grid: Grid, phases: range) -> RichTable:
    result = RichTable(
        box=box.SIMPLE_HEAD, title=grid.title if phases.start == 0 else None, title_justify="left",
        caption=(grid.note or None) if phases.stop == grid.num_phases else None, padding=(0, 0),
    )  # fmt: skip
    result.add_column("node ", justify="right")
    result.add_column("worker ", justify="right")
    for t in phases:
        result.add_column(f"{t:^4}", justify="center")
    for row, worker in enumerate(grid.workers):
        cells = []
        for index in grid.group[row, phases.start : phases.stop].tolist():
            style = "" if index < 0 else f"{grid.styles[index].text} on {grid.styles[index].color}"
            cells.append(Text(f"{grid.letter(index):^{CELL}}", style=style))
        first = row == 0 or grid.nodes[row] != grid.nodes[row - 1]
        last = row + 1 < len(grid.workers) and grid.nodes[row + 1] != grid.nodes[row]
        result.add_row(f"{grid.nodes[row]} " if first else "", f"{worker} ", *cells, end_section=last)
    return result


def switch_levels(hardware: Hardware, num_nodes: int) -> str:
    """Format the switches above nodes, lowest first: `, under 4 switches of 2 nodes (2 GB/s up)`; empty for none."""
    levels: list[str] = []
    for row in switches_above(hardware.switches, num_nodes):
        switches = [hardware.switches[index] for index in sorted({*row.tolist()} - {-1})]
        nodes = _span([str(count) for count in sorted(len(switch.nodes) for switch in switches)])
        inverse = sorted((switch.uplink.seconds_per_byte for switch in switches), reverse=True)
        bandwidths = _span([f"{size(1 / one)}/s" if one else "free" for one in inverse])
        words = "" if levels else f" switch{'' if len(switches) == 1 else 'es'}"
        plural = "" if levels else f" node{'' if nodes == '1' else 's'}"
        levels.append(f"{len(switches)}{words} of {nodes}{plural} ({bandwidths} up)")
    return f", under {', '.join(levels)}" if levels else ""


def _span(ordered: list[str]) -> str:
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"
