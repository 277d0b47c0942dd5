"""Import another tool's file (`import_schedule`); the format is recognized by file name and content."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import PurePath

from partreduce.schedulers.entry import hint
from partreduce.schedulers.imports import diloco, graphs, matrices
from partreduce.schedulers.imports.exact import notes as gathering
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.reader import descriptor_to_read, parse_json, read_bytes
from partreduce.topo.document.schedule import parse_schedule
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.graphs.weights import check_unknown
from partreduce.topo.schedule import Schedule

_GRAPHS: dict[str, Callable[..., graphs.ImportedGraph]] = {
    "node-link": graphs.read_node_link,
    "graphml": graphs.read_graphml,
    "edge-list": graphs.read_edge_list,
    "npy": matrices.read_npy,
}
_SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "matrix-stack": matrices.read_matrix_stack,
    "maxtext": diloco.read_maxtext,
    "torchft": diloco.read_torchft,
    "torchtitan": diloco.read_torchtitan,
}
_BY_SUFFIX = {".graphml": "graphml", ".xml": "graphml", ".npy": "npy", ".toml": "torchtitan"}


def formats() -> list[str]:
    """Return the valid values of `format` in `import_schedule`."""
    return [*_GRAPHS, *_SCHEDULES, "partreduce"]


@check_arguments
def import_schedule(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word that users expect
    cluster: Cluster | None = None,
    weights: str = "metropolis",
    notes: list[str] | None = None,
    rows: list[tuple[str, str, str]] | None = None,
    **options: object,
) -> Schedule:
    """Read a schedule from another tool's file. Use `verify` to check that it reaches consensus.

    Args:
        path: the file; `-` is standard input.
        format: one of `formats()`; by default recognized by suffix and content.
        cluster: the nodes on which the workers run; by default every worker has its own node.
        weights: the method that computes mixing weights of a graph without weights.
        notes: a list to which a sentence is added for each change, such as a corrected rounding error.
        rows: a list to which DiLoCo settings are added as (name, value, meaning), and claims about them as (claim,
            proved or refuted, reason), also before an error is raised.
        **options: options of the format: `directed` (edge-list).

    Returns:
        The Schedule: of kind `neighbor` for a graph or matrices, `allreduce` for DiLoCo settings.

    Raises:
        FileError: the file cannot be read.
        InputError: the file does not have the format (DocumentError), or its format is not recognized.
        ScheduleError: an unknown format or option, or a graph that cannot be a topology.
        RefutedError: DiLoCo settings that do not have their documented effect.
    """
    with gathering() as gathered:
        try:
            imported = _import(path, format, cluster, weights, options)
        finally:
            if rows is not None:
                rows += gathered.rows
    if notes is not None:
        notes += gathered.lines()
    return imported


def _import(
    path: str | os.PathLike[str], format_: str | None, cluster: Cluster | None, weights: str, options: dict[str, object]
) -> Schedule:
    check_unknown(weights)  # even if the file has weights, so that a misspelled name raises an error
    data = read_bytes(path)
    # A descriptor has no meaningful file name; the schedule's name is derived from this one.
    name = PurePath(path).name if descriptor_to_read(path) is None else "imported"
    chosen = _sniff(data, name) if format_ is None else format_
    if chosen == "npy" and matrices.load_npy(data, name).ndim == 3:
        chosen = "matrix-stack"
    if chosen == "partreduce":
        return parse_schedule(data)
    if chosen not in formats():
        raise ScheduleError(f"format {chosen!r}: is not one of {', '.join(formats())}{hint(chosen, formats())}")
    known = ("directed",) if chosen == "edge-list" else ()
    for key in options:
        if key not in known:
            raise ScheduleError(f"format {chosen}: no option {key!r}; it takes {', '.join(known) or 'none'}")
    if chosen in _SCHEDULES:
        return _SCHEDULES[chosen](data, name, cluster=cluster, **options)
    try:
        imported = _GRAPHS[chosen](data, name, **options)
        return graphs.schedule(PurePath(name).stem, [graphs.round_of(imported, weights)], cluster)
    except ScheduleError as error:
        if str(error).startswith("cluster "):  # the argument is wrong, not the file
            raise
        raise ScheduleError(f"{name}: {error}") from None


def _sniff(data: bytes, name: str) -> str:
    suffix = PurePath(name).suffix.lower()
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    if suffix in (".yaml", ".yml"):
        return "torchft" if re.search(rb"^sync_every\s*:", data, re.MULTILINE) else "maxtext"
    if data.startswith(b"\x93NUMPY"):
        return "npy"
    text = data.lstrip()
    if not text:
        raise ScheduleError(f"{name}: is empty; the file may be cut off, so write it again")
    if suffix == ".json" or text[:1] in (b"{", b"["):
        return _sniff_json(data, name)
    if text[:1] == b"<":
        return "graphml"
    first = next((words for _, words in graphs.lines_of(data, name)), [])
    if len(first) in (2, 3):
        return "edge-list"
    raise ScheduleError(f"{name}: its format is not recognized; give format=, one of {', '.join(formats())}")


def _sniff_json(data: bytes, name: str) -> str:
    value = parse_json(data, source=name)
    if isinstance(value, dict):
        for key, format_ in (
            ("format", "partreduce"),
            ("w_list", "matrix-stack"),
            ("nodes", "node-link"),
            ("sync_every", "torchft"),
            ("diloco_sync_period", "maxtext"),
        ):
            if key in value:
                return format_
    raise InputError(f"{name}: JSON without `nodes`, `w_list` or `format`; give format=, one of {', '.join(formats())}")
