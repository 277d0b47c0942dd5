"""The worker × step table in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from preduce.report.grid import Grid


def terminal_table(grid: Grid) -> Table:
    """Rows are workers, columns steps; members of one group share letter and colour, a skip is blank."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(
        box=box.SIMPLE_HEAD, title=grid.title, title_justify="left", caption=grid.note or None, padding=(0, 0)
    )
    result.add_column("node ", justify="right")
    result.add_column("worker ", justify="right")
    for t in range(grid.num_phases):
        result.add_column(f"{t:^4}", justify="center")
    for row, worker in enumerate(grid.workers):
        cells = []
        for index in grid.group[row].tolist():
            shown = (
                Text("    ") if index < 0 else Text(f"{grid.letter(index):^4}", style=f"black on {grid.colour(index)}")
            )
            cells.append(shown)
        first = row == 0 or grid.nodes[row] != grid.nodes[row - 1]
        last = row + 1 < len(grid.workers) and grid.nodes[row + 1] != grid.nodes[row]
        result.add_row(f"{grid.nodes[row]} " if first else "", f"{worker} ", *cells, end_section=last)
    return result
