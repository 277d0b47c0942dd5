"""Cluster files in YAML or JSON: the shape of a cluster and, where known, its hardware."""

from __future__ import annotations

import os
from typing import Any, Literal

from partreduce.topo.argument_types import check_arguments
from partreduce.topo.closed_model import Model, validate
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.descriptors import descriptor_to_read, descriptor_to_write
from partreduce.topo.document.hardware import HardwareModel, dump_hardware, hardware_value
from partreduce.topo.document.reader import MAX_BYTES, is_file, parse_json, read_bytes
from partreduce.topo.document.schedule import check_header
from partreduce.topo.document.shape import ListedShape, RegularShape, dump_shape, shape_value
from partreduce.topo.document.writer import pretty, write_file
from partreduce.topo.document.yaml_reader import MAX_YAML_BYTES, parse_yaml
from partreduce.topo.errors import DocumentError, FileError, InputError, of_type
from partreduce.topo.place import shown_path

FORMAT = "partreduce.cluster"
VERSION = 1

_SUFFIXES = (".yaml", ".yml", ".json")


class _ClusterFile(Model):
    format: Literal["partreduce.cluster"] = "partreduce.cluster"
    version: Literal[1] = 1
    hardware: HardwareModel = HardwareModel()


class RegularClusterModel(_ClusterFile, RegularShape):
    """Equally sized nodes."""


class ListedClusterModel(_ClusterFile, ListedShape):
    """One list of ranks per node."""


def load_cluster(text_or_path: str | os.PathLike[str]) -> Cluster:
    """Read the cluster of a shorthand (`4x4`, `3,3,2`) or of a YAML or JSON file.

    A text that ends in .yaml, .yml or .json, holds a slash, or names an existing file is a path, and so is `-` for
    standard input; anything else is a shorthand. Input from a descriptor has no ending: it is JSON if it starts with a
    brace.

    Args:
        text_or_path: a shorthand or a path.

    Returns:
        The Cluster; without `hardware` if a shorthand made it, or the file states none.

    Raises:
        FileError: the file is absent or cannot be read.
        DocumentError: a file that breaks the format.
        InputError: a text that is no shorthand either.
    """
    of_type(text_or_path, (str, os.PathLike), "cluster", "write it as '2x4', or name a cluster file")
    text = os.fsdecode(os.fspath(text_or_path))
    if not isinstance(text_or_path, str) or text.endswith(_SUFFIXES) or "/" in text or text == "-":
        return _load_file(text)
    try:
        return Cluster.parse(text)
    except InputError:
        if is_file(text):
            return _load_file(text)
        raise


def _load_file(path: str) -> Cluster:
    source = shown_path(path)
    as_json = path.endswith(".json")
    connected = descriptor_to_read(path) is not None
    data = read_bytes(path, MAX_BYTES if as_json or connected else MAX_YAML_BYTES)
    as_json = as_json or (connected and data.lstrip()[:1] == b"{")
    raw = parse_json(data, source=source) if as_json else parse_yaml(data, source=source)
    try:
        return cluster_of(raw)
    except DocumentError as error:
        raise DocumentError(error.place, error.problem, source) from None


def cluster_of(raw: object) -> Cluster:
    """The cluster of a parsed document."""
    check_header(raw, FORMAT, VERSION)
    listed = isinstance(raw, dict) and "nodes" in raw
    model: ListedClusterModel | RegularClusterModel
    model = validate(ListedClusterModel, raw, "") if listed else validate(RegularClusterModel, raw, "")
    shape = shape_value(model, "")
    if "hardware" not in model.model_fields_set:
        return shape
    hardware = hardware_value(model.hardware, shape, "hardware")
    return Cluster(shape.num_nodes, shape.workers_per_node, shape.nodes, hardware)


def dump_cluster(cluster: Cluster) -> dict[str, Any]:
    """The document of a cluster; `cluster_of` reads the same cluster and hardware back."""
    result: dict[str, Any] = {"format": FORMAT, "version": VERSION, **dump_shape(cluster)}
    if cluster.hardware is not None:
        result["hardware"] = dump_hardware(cluster.hardware)
    return result


@check_arguments
def write_cluster(path: str | os.PathLike[str], cluster: Cluster) -> None:
    """Write a cluster file, atomically: YAML for .yaml, .yml and standard output (`-`), JSON for .json.

    Args:
        path: the file, or `-` for standard output.
        cluster: with or without hardware.

    Raises:
        FileError: the file cannot be written, or has none of these endings.
    """
    text = os.fsdecode(os.fspath(path))
    document = dump_cluster(cluster)
    if text.endswith(".json"):
        write_file(path, pretty(document).encode())
    elif text.endswith(_SUFFIXES) or descriptor_to_write(text) is not None:
        import yaml

        body = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120)
        write_file(path, body.encode())
    else:
        raise FileError(f"{shown_path(path)}: cannot be written: a cluster file ends in {', '.join(_SUFFIXES)}")
