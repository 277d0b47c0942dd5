"""`partreduce gaps`: how far workers can drift apart in steps under Hop's settings, and what queues that needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partreduce.commands.options import Json

if TYPE_CHECKING:
    from partreduce.topo.strategies.gap import Gap
    from partreduce.verify.gaps import Gaps

WAITS = ("max_ig", "staleness", "backup", "notify_ack", "skip")
"""The settings on which gaps depend; the others of a schedule's `when.gap` say what is averaged, and in which order."""
MAX_MATRIX = 1024
SHOWN = 20


def command(
    graph: Annotated[str, typer.Argument(help="A schedule, node-link or edge-list file, or NAME:SIZE as in ring:16.")],
    *,
    max_ig: Annotated[
        int | None, typer.Option("--max-ig", help="Token queues: largest gap over one edge.", min=0)
    ] = None,
    staleness: Annotated[int, typer.Option(help="Updates so many steps old still serve.", min=0)] = 0,
    backup: Annotated[
        str, typer.Option(help="In-neighbours that a worker may do without: one number, or one per worker.")
    ] = "0",
    notify_ack: Annotated[bool, typer.Option("--notify-ack", help="Send only what the last was acknowledged.")] = False,
    skip: Annotated[
        int | None, typer.Option("--skip", help="A worker left behind skips up to so many steps at once.", min=2)
    ] = None,
    directed: Annotated[bool, typer.Option("--directed", help="Lines of an edge list go one way.")] = False,
    max_states: Annotated[int, typer.Option(help="Explore so many states at most; 0 explores none.", min=0)] = 30_000,
    plot: Annotated[Path | None, typer.Option(help="Draw the gap matrices.", metavar="FILE")] = None,
    as_json: Json = False,
) -> int:
    """Bound the iteration gaps: as published, exactly, and as attained by exploring every interleaving."""
    from partreduce.console import claim_stdout, console, emit_json
    from partreduce.graph_input import load_gap_graph
    from partreduce.report.picture import check
    from partreduce.topo.errors import UnknownError
    from partreduce.topo.strategies.gap import Gap, Skip
    from partreduce.verify.gaps import gaps

    check(plot)
    claim_stdout(as_json=as_json)
    loaded, runs = load_gap_graph(graph, directed=directed)
    if loaded.num_workers > MAX_MATRIX:
        raise UnknownError(f"graph {graph}: {loaded.num_workers} workers; the matrices are made for up to {MAX_MATRIX}")
    setting = Gap(
        max_ig=max_ig,
        staleness=staleness,
        backup=_backups(backup),
        notify_ack=notify_ack,
        skip=None if skip is None else Skip(limit=skip),
    )
    if setting == Gap() and runs is not None:  # what was not asked for otherwise is as it will run
        setting = Gap(**{name: getattr(runs, name) for name in WAITS})
    found = gaps(loaded, setting, max_states=max_states)
    if plot is not None:
        from partreduce.report.gaps import draw_gaps

        draw_gaps(found, plot, title=f"{graph}: {words(setting)}")
    if as_json:
        emit_json(found.to_json())
    else:
        _print(found, graph)
    if found.exploration is not None and not found.exhausted and found.live:
        console(errors=True).print(
            f"exploration stopped at {found.exploration.states} states; `attained` comes from one run for each worker "
            "that is held back"
            if found.attained
            else f"exploration stopped at {found.exploration.states} states"
        )
    return 0 if found.live else 1


def words(setting: "Gap") -> str:
    """The setting as people say it."""
    parts = []
    if setting.staleness:
        parts.append(f"staleness {setting.staleness}")
    if setting.backup not in (0, ()):
        parts.append(f"backup {setting.backup}")
    if setting.notify_ack:
        parts.append("NOTIFY-ACK")
    if setting.max_ig is not None:
        parts.append(f"token queues, max_ig {setting.max_ig}")
    if setting.skip is not None:
        parts.append(f"skips up to {setting.skip.limit}")
    return ", ".join(parts) or "standard"


def _backups(text: str) -> int | tuple[int, ...]:
    from partreduce.topo.errors import InputError

    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and len(part) <= 9 for part in parts):
        raise InputError(f"--backup {text!r}: write one number such as 1, or one per worker such as 1,0,1")
    numbers = tuple(int(part) for part in parts)
    return numbers[0] if len(numbers) == 1 else numbers


def _print(found: "Gaps", name: str) -> None:
    from rich.markup import escape

    from partreduce.console import console
    from partreduce.report.table import Column, table

    out = console()
    n = found.graph.num_workers
    out.print(f"[bold]{escape(name)}[/]: {n} workers, {len(found.graph.edges)} edges; {words(found.setting)}")
    if found.live:
        out.print("live: every cycle of the event graph carries a token")
    else:
        out.print("[bold red]not live[/]: waiting in a circle: " + " → ".join(found.dead_cycle))
    rows = table(
        "Step(i) − Step(j) is at most",
        "i, j",
        "paper",
        "exact",
        "attained",
        Column("update queue", drop=1),
        Column("token queue", drop=2),
    )
    pairs = _pairs(found)
    for i, j in pairs[:SHOWN]:
        attained = "-" if found.attained is None else _number(found.attained[i][j])
        edge = (j, i) in set(found.graph.edges)
        queues = (found.update_queue_capacity[i][j], found.token_queue_capacity[i][j])
        tokens = "" if found.setting.max_ig is None else _number(queues[1])
        rows.add(
            f"{i}, {j}", _number(found.paper_bound[i][j]), _number(found.exact_bound[i][j]), attained,
            _number(queues[0]) if edge else "", tokens if edge else "",
        )  # fmt: skip
    out.print(rows)
    if len(pairs) > SHOWN:
        out.print(f"{SHOWN} of {len(pairs)} kinds of pairs shown; --json prints all", style="dim")
    out.print("queues stand at i for its in-neighbour j; a step counts from the instant it is entered", style="dim")
    if found.exploration is not None and found.exhausted:
        out.print(f"attained: all {found.exploration.states} states explored", style="dim")


def _pairs(found: "Gaps") -> list[tuple[int, int]]:
    """One pair of each kind: pairs that agree in all five columns are shown once."""
    n = found.graph.num_workers
    edges = set(found.graph.edges)
    kinds: dict[object, tuple[int, int]] = {}
    for i in range(n):
        for j in range(n):
            if i != j:
                queues = (
                    (found.update_queue_capacity[i][j], found.token_queue_capacity[i][j]) if (j, i) in edges else ()
                )
                seen = found.attained[i][j] if found.attained else None
                kinds.setdefault((found.paper_bound[i][j], found.exact_bound[i][j], seen, queues), (i, j))
    return sorted(kinds.values(), key=lambda pair: (found.exact_bound[pair[0]][pair[1]] or 10**9, pair))


def _number(value: int | None) -> str:
    return "∞" if value is None else str(value)
