"""JSON documents: strict loading, canonical form, schema. Names are imported on first use (pydantic takes a while)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preduce.topo.document.canonical import canonical_bytes as canonical_bytes
    from preduce.topo.document.canonical import schedule_sha256 as schedule_sha256
    from preduce.topo.document.cluster import dump_cluster as dump_cluster
    from preduce.topo.document.cluster import load_cluster as load_cluster
    from preduce.topo.document.cluster import write_cluster as write_cluster
    from preduce.topo.document.fraction import dump_fraction as dump_fraction
    from preduce.topo.document.fraction import parse_fraction as parse_fraction
    from preduce.topo.document.reader import MAX_BYTES as MAX_BYTES
    from preduce.topo.document.reader import parse_json as parse_json
    from preduce.topo.document.reader import read_bytes as read_bytes
    from preduce.topo.document.reader import read_json as read_json
    from preduce.topo.document.schedule import dump_schedule as dump_schedule
    from preduce.topo.document.schedule import load_schedule as load_schedule
    from preduce.topo.document.schedule import parse_schedule as parse_schedule
    from preduce.topo.document.writer import schedule_text as schedule_text
    from preduce.topo.document.writer import write_file as write_file
    from preduce.topo.document.writer import write_schedule as write_schedule

_HOMES = {
    "MAX_BYTES": "reader",
    "canonical_bytes": "canonical",
    "dump_cluster": "cluster",
    "dump_fraction": "fraction",
    "dump_schedule": "schedule",
    "load_cluster": "cluster",
    "load_schedule": "schedule",
    "parse_fraction": "fraction",
    "parse_json": "reader",
    "parse_schedule": "schedule",
    "read_bytes": "reader",
    "read_json": "reader",
    "schedule_sha256": "canonical",
    "schedule_text": "writer",
    "write_cluster": "cluster",
    "write_file": "writer",
    "write_schedule": "writer",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
