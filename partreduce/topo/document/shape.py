"""The shape of a cluster in documents: which worker runs on which node. Shared by schedule and cluster files."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from partreduce.topo.closed_model import Listed, Model, Name, custom_error
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import DocumentError, InputError
from partreduce.topo.fields import Count, Index
from partreduce.topo.hardware import Hardware
from partreduce.topo.place import format_value

_PLACED = re.compile(r"([A-Za-z_]+(?:\[[0-9]+\]|\.[A-Za-z_]+)*): (.*)", re.DOTALL)


class _Shape(Model):
    @model_validator(mode="before")
    @classmethod
    def _in_one_way(cls, data: object) -> object:
        """Name both ways where a document writes a cluster in both, or in a way of other tools."""
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
    """One list of ranks per node, in the order of their local ranks."""

    nodes: Annotated[Listed[Annotated[Listed[Index], Field(min_length=1)]], Field(min_length=1)]


Shape = Annotated[
    Annotated[RegularShape, Tag("regular")] | Annotated[ListedShape, Tag("listed")],
    Discriminator(lambda value: "listed" if isinstance(value, dict) and "nodes" in value else "regular"),
]


def shape_value(model: RegularShape | ListedShape, place: str, hardware: Hardware | None = None) -> Cluster:
    """The cluster of a checked shape."""
    try:
        if isinstance(model, ListedShape):
            return Cluster.irregular(model.nodes, hardware=hardware)
        return Cluster.regular(model.num_nodes, model.workers_per_node, hardware=hardware)
    except InputError as error:
        raise error_at(error, place, drop="cluster") from None


def dump_shape(cluster: Cluster) -> dict[str, Any]:
    """The shape of a cluster as a document holds it."""
    if cluster.workers_per_node is not None:
        return {"num_nodes": cluster.num_nodes, "workers_per_node": cluster.workers_per_node}
    return {"nodes": [list(node) for node in cluster.nodes or ()]}


def error_at(error: InputError, root: str, drop: str = "") -> DocumentError:
    """A refusal by a value, with its place below `root`: values say `phases[0][1].local: problem`."""
    if isinstance(error, DocumentError):
        return error
    match = _PLACED.fullmatch(str(error))
    if match is None:
        return DocumentError(root or "document", str(error))
    inner = match[1].removeprefix(drop).lstrip(".") if drop else match[1]
    return DocumentError(".".join(part for part in (root, inner) if part) or "document", match[2])


__all__ = ["ListedShape", "Name", "RegularShape", "Shape", "dump_shape", "error_at", "shape_value"]
