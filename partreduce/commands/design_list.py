"""`partreduce design --list`: what `design --build` can build."""

from typing import Any

from rich.markup import escape

from partreduce.commands.options import quantity
from partreduce.console import console, emit_json
from partreduce.report.table import Column, Table
from partreduce.schedulers import registry
from partreduce.schedulers.entry import Entry
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.cluster import load_cluster


def list_entries(cluster: str | None, name: str | None, *, as_json: bool) -> None:
    """List the schedules that can be built by name, or explain one; on a cluster, say which exist there."""
    place = None if cluster is None else load_cluster(cluster)
    chosen = (
        [quantity("--build", registry.entry, name)]
        if name is not None
        else [registry.entry(each) for each in registry.names()]
    )
    if as_json:
        documents = [_document(entry, place) for entry in chosen]
        emit_json(documents[0] if name is not None else {"entries": documents})
    elif name is not None:
        _explain(chosen[0], place)
    else:
        _list(chosen, place)


def _document(entry: Entry, place: Cluster | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": entry.name,
        "kind": entry.kind,
        "summary": entry.summary,
        "source": entry.source,
        "condition": entry.condition,
        "degree": entry.degree,
        "period": entry.period,
        "metrics": entry.metrics,
        "parameters": [
            {"name": p.name, "kind": p.kind, "default": p.default, "help": p.help, "choices": list(p.choices)}
            for p in entry.parameters
        ],
    }
    if place is not None:
        reason = entry.why_not(place)
        document["fits"] = reason is None
        if reason is not None:
            document["why_not"] = reason
    return document


def _list(entries: list[Entry], place: Cluster | None) -> None:
    columns = [
        Column("name", justify="left"),
        Column("parameters", drop=1, justify="left", wraps=True),
        Column("summary", justify="left", wraps=True),
    ]
    rows = Table("Catalogue", columns + ([Column(f"fits {place}")] if place is not None else []))
    for entry in entries:
        row = [entry.name, ", ".join(p.name for p in entry.parameters), escape(entry.summary)]
        if place is not None:
            row.append("no" if entry.why_not(place) else "yes")
        rows.add(*row)
    console().print(rows)
    console().print(
        "`partreduce design --list --build NAME` explains one; `partreduce design CLUSTER --build NAME` builds it.",
        style="dim",
    )


def _explain(entry: Entry, place: Cluster | None) -> None:
    out = console()
    out.print(f"[bold]{entry.name}[/]: {escape(entry.summary)}")
    for label in ("source", "condition", "degree", "period", "metrics"):
        if value := getattr(entry, label):
            out.print(f"  {label}: {escape(str(value))}")
    for parameter in entry.parameters:
        default = "chosen for the cluster" if parameter.default is None else parameter.default
        out.print(f"  {parameter.name}=...: {escape(parameter.help)} (default: {default})")
    if place is not None:
        reason = entry.why_not(place)
        out.print(f"  on {place}: " + ("can be built" if reason is None else escape(reason)))
