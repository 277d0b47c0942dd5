"""Print schedules and clusters in the terminal: the worker × round table, and the switches in words."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from partreduce.console import size
from partreduce.report.grid import Grid
from partreduce.topo.hardware import Hardware, Switch, above

CELL = 4


def terminal_tables(grid: Grid, width: int) -> list[Table]:
    """Return tables with workers as rows and as many phases as fit as columns; one letter and color per group.

    A skip is blank. Columns are separated by one divider.
    """
    labels = 2 * len("worker ") + CELL
    fitting = max(1, (width - labels) // (CELL + 1))
    starts = range(0, grid.num_phases, fitting)
    return [_part(grid, range(start, min(start + fitting, grid.num_phases))) for start in starts]


def _part(grid: Grid, phases: range) -> Table:
    result = Table(
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
            if index < 0:
                cells.append(Text(" " * CELL))
                continue
            look = grid.styles[index]
            cells.append(Text(f"{grid.letter(index):^{CELL}}", style=f"{look.text} on {look.color}"))
        first = row == 0 or grid.nodes[row] != grid.nodes[row - 1]
        last = row + 1 < len(grid.workers) and grid.nodes[row + 1] != grid.nodes[row]
        result.add_row(f"{grid.nodes[row]} " if first else "", f"{worker} ", *cells, end_section=last)
    return result


def switch_levels(hardware: Hardware, num_nodes: int) -> str:
    """Format `, under 4 switches of 2 nodes (2 GB/s up), 2 of 4 (1 GB/s up)`, lowest level first, if there are any."""
    levels: list[str] = []
    for row in above(hardware.switches, num_nodes):
        switches = [hardware.switches[index] for index in sorted({*row.tolist()} - {-1})]
        nodes = _span([str(count) for count in sorted(len(switch.nodes) for switch in switches)])
        bandwidths = _span([_bandwidth(switch) for switch in sorted(switches, key=_slowest_first)])
        words = "" if levels else f" switch{'' if len(switches) == 1 else 'es'}"
        plural = "" if levels else f" node{'' if nodes == '1' else 's'}"
        levels.append(f"{len(switches)}{words} of {nodes}{plural} ({bandwidths} up)")
    return f", under {', '.join(levels)}" if levels else ""


def _slowest_first(switch: Switch) -> float:
    return -switch.uplink.seconds_per_byte


def _bandwidth(switch: Switch) -> str:
    inverse = switch.uplink.seconds_per_byte
    return f"{size(1 / inverse)}/s" if inverse else "free"


def _span(ordered: list[str]) -> str:
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"
