"""The picture of a running job in words: a table for a terminal, a line for a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from partreduce.console import number, size
from partreduce.report.table import Column, Table, table
from partreduce.report.watch.picture import MAX_NAMED, SILENT_SECONDS, Row


def picture_table(rows: Sequence[Row], seconds: float, *, room: int) -> Table:
    """A row for each worker; where they are more than `room`, those who hold up the rest and those who say nothing."""
    from rich.markup import escape

    has_gaps = any(row.largest is not None or row.status is not None for row in rows)
    columns = [Column("step"), Column("steps/s", drop=3), Column("ahead", drop=1)]
    if has_gaps:
        columns += [Column("gap"), Column("largest", drop=5), Column("queue", drop=2), Column("tokens", drop=4)]
        columns += [Column("sent", drop=6)]
    shown, rest = _that_fit(rows, room)
    more = f", {rest} not shown" if rest else ""
    result = table(
        f"{len(rows)} workers after {seconds:.0f} s{more}",
        "worker",
        *columns,
        Column("does", 0, "left", wraps=True, is_cut=True),
    )
    for row in shown:
        cells = [_or_dash(row.step), number(row.steps_per_second, 3), "-" if row.ahead is None else f"+{row.ahead}"]
        if has_gaps:
            cells += _gap_cells(row)
        style = "red" if row.code else "yellow" if row.is_odd else "dim" if row.has_ended else None
        result.add(str(row.rank), *cells, escape(row.does + silence(row)), style=style)
    return result


def picture_line(rows: Sequence[Row], seconds: float) -> str:
    """All of it in one line: the range of the steps, who is behind, and for whom it waits."""
    parts = [f"{len(rows)} workers after {seconds:.0f} s: "]
    running = [row for row in rows if row.code is None]
    stepping = [row for row in running if row.step is not None and not row.rests]
    starting = [row for row in running if row.step is None]
    steps = sorted(row.step for row in stepping if row.step is not None)
    if stepping:
        parts[0] += f"step {steps[0]}" if steps[0] == steps[-1] else f"steps {steps[0]} to {steps[-1]}"
        speeds = [row.steps_per_second for row in stepping if row.steps_per_second is not None]
        if speeds:
            parts.append(f"{number(min(speeds), 3)} to {number(max(speeds), 3)} steps/s each")
    elif starting:
        parts[0] += f"none has begun, worker {starting[0].rank} {starting[0].does}"
    else:
        parts[0] += "all have ended" + (" their steps" if running else "")
    parts += _gap_parts(rows)
    parts += [f"worker {row.rank} {row.does}{silence(row)}" for row in rows if row.is_odd][:3]
    if len(ahead := {row.ahead for row in stepping}) > 1 or any(row.is_odd for row in stepping):
        slowest = min(stepping, key=lambda row: (row.ahead or 0, -row.silent))
        if not slowest.is_odd:
            parts.append(f"slowest is worker {slowest.rank}, {max(a or 0 for a in ahead)} behind: {slowest.does}")
    if stepping:
        parts += _resting_part([row.rank for row in running if row.rests])
        parts += [f"worker {row.rank} {row.does}" for row in starting[:1]]
    return ", ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:])


def silence(row: Row) -> str:
    """How long a running worker has said nothing, where that is long."""
    silent = row.code is None and row.silent > SILENT_SECONDS
    return f", and gave no sign of life for {row.silent:.0f} s" if silent else ""


def _that_fit(rows: Sequence[Row], room: int) -> tuple[list[Row], int]:
    """The rows to be shown, by rank, and how many are left out."""
    if len(rows) <= room:
        return list(rows), 0
    kept = sorted(rows, key=lambda row: (not row.is_odd, row.has_ended, row.ahead or 0, row.rank))[: max(1, room)]
    return sorted(kept, key=lambda row: row.rank), len(rows) - len(kept)


def _gap_cells(row: Row) -> list[str]:
    cells = [
        "-" if row.gap is None else f"{row.gap} {_direction(row)}",
        "-" if row.largest is None else str(row.largest),
    ]
    status = row.status
    if status is None:
        return [*cells, "-", "-", "-"]
    filled, capacity = status.fullest
    tokens = "-" if status.tokens is None else str(min(status.tokens, default=0))
    return [*cells, f"{filled}/{capacity}", tokens, size(status.sent)]


def _direction(row: Row) -> str:
    """Over whom the worker is ahead, or behind whom, in the gap that it is shown with."""
    assert row.gap is not None
    return f"over {row.gap.neighbor}" if row.gap.worker == row.rank else f"behind {row.gap.worker}"


def _gap_parts(rows: Sequence[Row]) -> list[str]:
    """The largest gap, the fullest queue, the fewest tokens and the bytes of all workers."""
    parts = []
    if now := [row.gap for row in rows if row.gap is not None]:
        gap = max(now, key=lambda gap: gap.steps)
        parts.append(f"gap {gap} (worker {gap.worker} over {gap.neighbor})")
    if seen := [row.largest for row in rows if row.largest is not None]:
        parts.append(f"largest gap so far {max(seen, key=lambda gap: gap.steps)}")
    if states := [row.status for row in rows if row.status is not None]:
        if any(row.code is None for row in rows):
            filled, capacity = min((state.fullest for state in states), key=lambda queue: queue[1] - queue[0])
            parts.append(f"fullest queue {filled}/{capacity}")
            if tokens := [count for state in states for count in state.tokens or ()]:
                parts.append(f"fewest tokens {min(tokens)}")
        parts.append(f"sent {size(sum(state.sent for state in states))}")
    return parts


def _resting_part(ranks: Sequence[int]) -> list[str]:
    """Whose steps have ended while the others' go on."""
    if len(ranks) < 2:
        return [f"worker {rank} has ended its steps" for rank in ranks]
    named = ", ".join(map(str, ranks[:MAX_NAMED]))
    more = f" and {len(ranks) - MAX_NAMED} more" * (len(ranks) > MAX_NAMED)
    return [f"workers {named}{more} have ended their steps"]


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
