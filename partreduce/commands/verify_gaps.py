"""`partreduce verify --gaps`: how far workers drift apart in steps under Hop's settings, and what queues that needs."""

from typing import TYPE_CHECKING

from partreduce.commands.options import settings_of, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from partreduce.topo.strategies.gap import Gap
    from partreduce.verify.gaps import Gaps

WAITS = ("max_ig", "staleness", "backup", "notify_ack", "skip")
"""The settings on which gaps depend; the others of a schedule's `when.gap` say what is averaged, and in which order."""
MAX_MATRIX = 1024
SHOWN = 20


def verify_gaps(
    graph: str,
    settings: list[str] | None,
    *,
    directed: bool,
    max_states: int,
    as_json: bool,
) -> int:
    """Bound the iteration gaps: as published, exactly, and as attained by exploring every interleaving.

    A schedule that keeps a gap is bounded under its own setting unless `settings` ask for another.

    Returns:
        The exit code: 1 where some cycle of waiting carries no token.

    Raises:
        InputError: no graph, or a setting that is not understood.
        UnknownError: more workers than the matrices are made for.
    """
    from partreduce.console import console, emit_json
    from partreduce.graph_input import load_gap_graph
    from partreduce.topo.errors import UnknownError
    from partreduce.topo.strategies.gap import Gap
    from partreduce.verify.gaps import gaps

    asked = _setting(settings)
    loaded, runs = load_gap_graph(graph, directed=directed)
    if loaded.num_workers > MAX_MATRIX:
        raise UnknownError(f"graph {graph}: {loaded.num_workers} workers; the matrices are made for up to {MAX_MATRIX}")
    if asked == Gap() and runs is not None:  # what was not asked for otherwise is as it will run
        asked = Gap(**{name: getattr(runs, name) for name in WAITS})
    found = gaps(loaded, asked, max_states=max_states)
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


def _setting(entries: list[str] | None) -> "Gap":
    """`max-ig=3`, `notify-ack=yes` → Gap(max_ig=3, notify_ack=True)."""
    from partreduce.topo.errors import InputError
    from partreduce.topo.strategies.gap import Gap, Skip

    readers: dict[str, Callable[[str], object]] = {
        "max-ig": whole(0), "staleness": whole(0), "backup": _backups, "notify-ack": _yes_or_no, "skip": whole(2),
        "behind": whole(2),
    }  # fmt: skip
    given = {key.replace("-", "_"): value for key, value in settings_of("--set", entries, readers, "max-ig=3").items()}
    if "skip" in given:
        given["skip"] = Skip(limit=given["skip"], behind=given.pop("behind", 2))
    elif "behind" in given:
        raise InputError("--set behind: says from how far behind a worker skips; give skip as well")
    return Gap(**given)


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
        parts.append(
            f"skips up to {setting.skip.limit}" + f" from {setting.skip.behind} behind" * (setting.skip.behind > 2)
        )
    return ", ".join(parts) or "standard"


def _backups(text: str) -> int | tuple[int, ...]:
    from partreduce.topo.errors import InputError

    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and len(part) <= 9 for part in parts):
        raise InputError(f"{text!r}: write one number such as 1, or one per worker such as 1,0,1")
    numbers = tuple(int(part) for part in parts)
    return numbers[0] if len(numbers) == 1 else numbers


def _yes_or_no(text: str) -> bool:
    from partreduce.topo.errors import InputError

    if text not in ("yes", "no"):
        raise InputError(f"{text!r}: write yes or no")
    return text == "yes"


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
