"""Tables that fit the terminal: columns leave by priority, texts wrap, and what tells rows apart is never cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

GAP = 2
"""Blank cells between two columns: one of padding and one in place of a divider."""

TEXT = 20
"""Cells below which a column of running text is not squeezed while another column can leave."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column; the higher `drop`, the sooner it leaves a narrow terminal; 0 never leaves.

    `wraps`: running text. `is_cut`: where it does not fit into one line, its end is left out.
    """

    header: str
    drop: int = 0
    justify: Literal["left", "right"] = "right"
    wraps: bool = False
    is_cut: bool = False


@dataclass(slots=True)
class Table:
    """A table in the house style, to be given to `console().print`. Cells may hold rich's markup."""

    title: str
    columns: list[Column]
    rows: list[tuple[tuple[str, ...], str | None]] = field(default_factory=list)

    def add(self, *cells: str, style: str | None = None) -> None:
        assert len(cells) == len(self.columns), "a cell for each column"
        self.rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich: the table as it fits the width of the terminal."""
        kept, widths = self._fit(options.max_width)
        inside = options.update(no_wrap=False, overflow="fold")
        yield ""
        if self.title:  # by itself, since a table's own title would fold at the table's width
            yield from console.render(f"[bold]{self.title}[/]", inside)
        yield from console.render(self._drawn(kept, widths), inside)
        if left_out := [column.header for index, column in enumerate(self.columns) if index not in kept]:
            words = f"Too narrow for: {', '.join(left_out)}; a wider terminal or --json shows them."
            yield from console.render(f"[dim]{words}[/]", inside)

    def _fit(self, width: int) -> tuple[list[int], list[int]]:
        """The columns that are kept, and the width of each."""
        natural = [self._natural(index) for index in range(len(self.columns))]
        least = [min(full, TEXT) if column.wraps else full for full, column in zip(natural, self.columns, strict=True)]
        kept = list(range(len(self.columns)))
        for leaving in sorted((i for i in kept if self.columns[i].drop), key=lambda i: -self.columns[i].drop):
            if sum(least[i] + GAP for i in kept) - GAP <= width:
                break
            kept.remove(leaving)
        room = width + GAP - sum(least[i] + GAP for i in kept)
        widths = [least[i] for i in kept]
        if room < 0:  # nothing more can leave: the widest columns fold
            for _ in range(-room):
                widest = widths.index(max(widths))
                widths[widest] = max(1, widths[widest] - 1)
            return kept, widths
        # What is left goes to running texts first, then to headers, which may break between words.
        for wanted in (natural, [max(natural[i], len(column.header)) for i, column in enumerate(self.columns)]):
            for place, index in enumerate(kept):
                more = min(room, max(0, wanted[index] - widths[place]))
                widths[place] += more
                room -= more
        return kept, widths

    def _natural(self, index: int) -> int:
        """The cells that the column takes when nothing in it folds; headers may break between words."""
        texts = [Text.from_markup(cells[index]) for cells, _ in self.rows]
        cells = [line.cell_len for text in texts for line in text.split()]
        return max([*cells, *(len(word) for word in self.columns[index].header.split()), 1])

    def _drawn(self, kept: list[int], widths: list[int]) -> RichTable:
        result = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for index, width in zip(kept, widths, strict=True):
            column = self.columns[index]
            overflow: Literal["ellipsis", "fold"] = "ellipsis" if column.is_cut else "fold"
            result.add_column(
                column.header, justify=column.justify, width=width, overflow=overflow, no_wrap=column.is_cut
            )
        for cells, style in self.rows:
            result.add_row(*(cells[index] for index in kept), style=style)
        return result


def table(title: str, name: str, *columns: str | Column) -> Table:
    """An empty table whose first column names the rows; plain headers make right-aligned columns that never leave."""
    others = [column if isinstance(column, Column) else Column(column) for column in columns]
    return Table(title, [Column(name, justify="left"), *others])
