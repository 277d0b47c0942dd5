"""Convert schedules from and to documents: header, name, cluster, strategy, failure plan and certificate."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from partreduce.topo.argument_types import check_arguments
from partreduce.topo.closed_model import Listed, Model, Name, custom_error, dump_fields, validate
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.phases import plain_phase
from partreduce.topo.document.reader import MAX_BYTES, collector_paused, in_file, parse_json, read_bytes
from partreduce.topo.document.strategies import dump_strategy, load_strategy
from partreduce.topo.errors import DocumentError, InputError, of_type
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.fields import Count, Index
from partreduce.topo.phase import Phase
from partreduce.topo.place import format_value, shown_path
from partreduce.topo.schedule import Schedule

_PLACED = re.compile(r"([A-Za-z_]+(?:\[[0-9]+\]|\.[A-Za-z_]+)*): (.*)", re.DOTALL)


class _Shape(Model):
    @model_validator(mode="before")
    @classmethod
    def _in_one_way(cls, data: object) -> object:
        """Return `data`; raise an error for a cluster with both `nodes` and counts, or a list as `workers_per_node`."""
        if not isinstance(data, dict):
            return data
        counts = [key for key in RegularShape.model_fields if key in data]
        problem = ""
        if "nodes" in data and counts:
            problem = f'has both "nodes" and {format_value(counts[0])}; keep nodes, or num_nodes and workers_per_node'
        elif isinstance(sizes := data.get("workers_per_node"), list):
            problem = (
                f"has workers_per_node {format_value(sizes)}, which is one number for all nodes; "
                "for unequal nodes write nodes alone, the ranks of each, such as nodes: [[0], [1, 2]]"
            )
        if problem:
            raise custom_error(problem)
        return data


class RegularShape(_Shape):
    """`num_nodes` nodes of `workers_per_node` workers; worker w runs on node w // workers_per_node."""

    num_nodes: Count
    workers_per_node: Count


class ListedShape(_Shape):
    """Nodes given as lists of ranks; a rank's position in its list is its local rank."""

    nodes: Annotated[Listed[Annotated[Listed[Index], Field(min_length=1)]], Field(min_length=1)]


Shape = Annotated[
    Annotated[RegularShape, Tag("regular")] | Annotated[ListedShape, Tag("listed")],
    Discriminator(lambda value: "listed" if isinstance(value, dict) and "nodes" in value else "regular"),
]


def shape_value(model: RegularShape | ListedShape, place: str) -> Cluster:
    """Build the Cluster of a validated `cluster` object at path `place`; raise DocumentError for impossible ranks."""
    try:
        if isinstance(model, ListedShape):
            return Cluster.irregular(model.nodes)
        return Cluster.regular(model.num_nodes, model.workers_per_node)
    except InputError as error:
        raise error_at(error, place, drop="cluster") from None


def dump_shape(cluster: Cluster) -> dict[str, Any]:
    """Return the JSON object of a cluster's nodes and workers, without hardware."""
    if cluster.workers_per_node is not None:
        return {"num_nodes": cluster.num_nodes, "workers_per_node": cluster.workers_per_node}
    return {"nodes": [list(node) for node in cluster.nodes or ()]}


def error_at(error: InputError, root: str, drop: str = "") -> DocumentError:
    """Return a DocumentError for an InputError such as `phases[0][1].local: problem`, with `root` before its path.

    If the path starts with `drop`, that part is removed first.
    """
    if isinstance(error, DocumentError):
        return error
    if (match := _PLACED.fullmatch(str(error))) is None:
        return DocumentError(root or "document", str(error))
    inner = match[1].removeprefix(drop).lstrip(".") if drop else match[1]
    return DocumentError(".".join(filter(None, (root, inner))) or "document", match[2])


FORMAT = "partreduce.schedule"
VERSION = 1
ABSENT = FailurePlan(SurvivorRule.ALL_REDUCE, 1)
"""The default of `failure_plan` in a document without one; it only marks absence and is never used as a plan."""


class ScheduleEnvelope(Model):
    """A schedule: which workers average with each other, and when, on a cluster of this shape."""

    format: Literal["partreduce.schedule"]
    version: Literal[1]
    name: Name
    cluster: Shape
    strategy: dict[str, Any]
    failure_plan: FailurePlan = Field(default_factory=lambda: ABSENT)
    certificate: dict[str, Any] = Field(default_factory=dict)


def load_schedule(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> Schedule:
    """Read one schedule file strictly.

    Args:
        path: a regular file, or a link to one; `-` is standard input.
        max_bytes: the size above which the file is rejected unread; raise it to read groups of a million workers.

    Returns:
        The Schedule; failure plan and certificate are None if the file has none.

    Raises:
        FileError: the file is absent or cannot be read.
        DocumentError: the file breaks the format; one line with the file, the place and the rule. Overlapping groups
            and schedules that never reach consensus do load: `verify` refutes them.
    """
    of_type(path, (str, os.PathLike), "load_schedule", "give the path of a schedule file")
    return _parse(read_bytes(path, max_bytes), max_bytes, shown_path(path))


def parse_schedule(document: str | bytes | bytearray, *, max_bytes: int = MAX_BYTES) -> Schedule:
    """Read a schedule from JSON text or bytes, as strictly as `load_schedule`.

    Args:
        document: JSON, as text or UTF-8 bytes.
        max_bytes: the size above which the document is rejected unread.

    Returns:
        The Schedule.

    Raises:
        DocumentError: the document breaks the format.
        InputError: the argument is neither bytes nor text.
    """
    if isinstance(document, str):
        # A lone surrogate is no character: it becomes bytes that raise an error as invalid UTF-8.
        document = document.encode(errors="surrogatepass")
    if not isinstance(document, bytes | bytearray):
        kind = type(document).__name__
        way_out = "it must be str or bytes; load_schedule(path) reads a file"
        raise InputError(f"parse_schedule: the document is a {kind}; {way_out}")
    return _parse(bytes(document), max_bytes, "")


def _parse(data: bytes, max_bytes: int, source: str) -> Schedule:
    with in_file(source), collector_paused():
        return schedule_of(parse_json(data, max_bytes=max_bytes, source=source))


def schedule_of(raw: object) -> Schedule:
    """Build a Schedule from a parsed document; raise DocumentError if the document breaks the format."""
    check_header(raw, FORMAT, VERSION)
    envelope = validate(ScheduleEnvelope, raw, "")
    cluster = shape_value(envelope.cluster, "cluster")
    if cluster.num_workers < 2:
        raise DocumentError("cluster", "has 1 worker; a schedule needs at least 2 workers")
    strategy = load_strategy(envelope.strategy, cluster, "strategy")
    certificate = envelope.certificate if "certificate" in envelope.model_fields_set else None
    plan = envelope.failure_plan if "failure_plan" in envelope.model_fields_set else None
    try:
        bare = Schedule(envelope.name, cluster, strategy, certificate)
    except InputError as error:
        raise error_at(error, "strategy") from None
    try:
        return bare if plan is None else replace(bare, failure_plan=plan)
    except InputError as error:
        raise error_at(error, "") from None


def check_header(raw: object, name: str, version: int) -> dict[str, Any]:
    """Return the JSON object `raw`; raise DocumentError for other JSON, or if it states another format or version."""
    if not isinstance(raw, dict):
        raise DocumentError("document", f'is {format_value(raw)}; it must be an object with "format": "{name}"')
    if "format" in raw and raw["format"] != name:
        raise DocumentError("format", f'is {format_value(raw["format"])}; it must be "{name}"; give such a file here')
    found = raw.get("version", version)
    if type(found) is not int or found != version:
        newer = type(found) is int and found > version
        way_out = "install a newer partreduce" if newer else "write it again with this partreduce"
        raise DocumentError("version", f"is {format_value(found)}; this partreduce reads version {version}; {way_out}")
    return raw


def encodable(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule file's object without default values; phases of explicit groups are still `Phase` values."""
    result: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": schedule.name,
        "cluster": dump_shape(schedule.cluster),
        "strategy": dump_strategy(schedule.strategy),
    }
    if schedule.failure_plan is not None:
        result["failure_plan"] = dump_fields(schedule.failure_plan)
    if schedule.certificate is not None:
        result["certificate"] = dict(schedule.certificate)
    return result


@check_arguments
def dump_schedule(schedule: Schedule) -> dict[str, Any]:
    """Convert a schedule to dictionaries, lists, strings and numbers; `parse_schedule` reads their JSON text back.

    Args:
        schedule: any Schedule.

    Returns:
        The JSON object, as docs/file-format.md describes it.
    """
    result = encodable(schedule)
    strategy: dict[str, Any] = result["strategy"]
    if "phases" in strategy:
        phases = strategy["phases"]
        strategy["phases"] = [plain_phase(phase) if isinstance(phase, Phase) else phase for phase in phases]
    return result
