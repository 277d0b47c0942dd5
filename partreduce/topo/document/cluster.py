"""Cluster files in YAML or JSON: the nodes and workers and, where known, the hardware, with units such as `10GB/s`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from math import inf
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from partreduce.topo import units
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.closed_model import Model, custom_error, dump_fields, validate
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.reader import (
    MAX_BYTES,
    descriptor_to_read,
    descriptor_to_write,
    in_file,
    is_file,
    parse_json,
    read_bytes,
)
from partreduce.topo.document.schedule import ListedShape, RegularShape, check_header, dump_shape, shape_value
from partreduce.topo.document.writer import pretty, write_file
from partreduce.topo.document.yaml_reader import MAX_YAML_BYTES, parse_yaml
from partreduce.topo.errors import DocumentError, FileError, InputError, of_type
from partreduce.topo.fields import Count, Index
from partreduce.topo.hardware import (
    LONGEST_SECONDS,
    CodecSeconds,
    Hardware,
    Link,
    Seconds,
    Share,
    Switch,
    Variation,
    nesting_problem,
)
from partreduce.topo.place import child, format_value, shown_path


def _quantity(
    parse: Callable[[str], float], base: str, *, bare: bool = False, least: float = 0.0, most: float = inf
) -> tuple[Any, Any]:
    """Return the pydantic validator and the JSON schema of a number with a unit, such as "10GB/s".

    `parse` reads the text; the result must lie between `least` and `most`. `base` is its unit, for messages. With
    `bare` a plain number is also valid.
    """

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            rule = "a number or a text with its unit" if bare else "a text with its unit"
            raise custom_error(f"is {format_value(value)}; it must be {rule}")
        try:
            result = parse(value if isinstance(value, str) else repr(value))
        except InputError as error:
            raise custom_error(str(error)) from None
        if not least <= result <= most:
            rule = f"at least {least:g}" if result < least else f"at most {most:g}"
            raise custom_error(f"is {result:g}; it must be {rule} in {base}")
        return result

    text = {"type": "string", "description": "number and unit"}
    schema = {"anyOf": [text, {"type": "number", "exclusiveMinimum": 0}]} if bare else text
    return BeforeValidator(check), WithJsonSchema(schema)


Bandwidth = Annotated[float, *_quantity(units.parse_bandwidth, "bytes per second", least=1 / LONGEST_SECONDS)]
Time = Annotated[float, *_quantity(units.parse_time, "seconds", most=LONGEST_SECONDS)]
Factor = Annotated[float, *_quantity(units.parse_factor, "times", bare=True, most=LONGEST_SECONDS)]
Size = Annotated[int, *_quantity(units.parse_size, "bytes")]
CodecName = Literal["float16", "bfloat16", "int8", "int4"]
RankKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]


class LinkModel(Model):
    """A link: its latency, and its bandwidth (`10GB/s`) or the inverse; without either, bytes take no time."""

    bandwidth: Bandwidth | None = None
    seconds_per_byte: Seconds | None = None
    latency: Time = 0.0

    @model_validator(mode="before")
    @classmethod
    def _is_no_rate_alone(cls, data: object) -> object:
        if isinstance(data, str):
            rule = 'a link is an object, such as {"bandwidth": "10GB/s", "latency": "10us"}'
            raise custom_error(f"is {format_value(data)}; {rule}")
        return data


class SwitchModel(LinkModel):
    """A switch: latency and bandwidth of its uplink, and the nodes below it, directly or through other switches."""

    nodes: list[Index] = Field(min_length=1)


class HardwareModel(Model):
    """Links inside and between nodes, overrides for single nodes, and the sizes and times of the training job."""

    inside: LinkModel = LinkModel()
    nic: LinkModel = LinkModel()
    bus: LinkModel = LinkModel()
    node_inside: dict[RankKey, LinkModel] = Field(default_factory=dict)
    node_nic: dict[RankKey, LinkModel] = Field(default_factory=dict)
    num_nics: Count = 1
    switches: list[SwitchModel] = Field(default_factory=list)
    slowdown: dict[RankKey, Factor] = Field(default_factory=dict)
    jitter: Variation = 0.0
    codec: dict[CodecName, CodecSeconds] = Field(default_factory=dict)
    model_bytes: Size | None = None
    compute: Time | None = None
    layers: Count | Annotated[list[Size], Field(min_length=1)] | None = None
    backward: Share = 2 / 3


def hardware_value(model: HardwareModel, cluster: Cluster, place: str) -> Hardware:
    """Build the Hardware of `cluster` from a validated object at path `place`; raise DocumentError for bad ranks."""
    for name, listed, bound, word in (
        ("node_inside", model.node_inside, cluster.num_nodes, "node"),
        ("node_nic", model.node_nic, cluster.num_nodes, "node"),
        ("slowdown", model.slowdown, cluster.num_workers, "worker"),
    ):
        for key in listed:
            if int(key) >= bound:
                raise DocumentError(child(place, name), f"{word} {key} is out of range; {word}s are 0..{bound - 1}")
    if isinstance(model.layers, list) and not any(model.layers):
        raise DocumentError(child(place, "layers"), "sends nothing; at least one segment has a size > 0")
    return Hardware(
        inside=_link(model.inside, child(place, "inside")),
        nic=_link(model.nic, child(place, "nic")),
        bus=_link(model.bus, child(place, "bus")),
        node_inside=_links(model.node_inside, child(place, "node_inside")),
        node_nic=_links(model.node_nic, child(place, "node_nic")),
        num_nics=model.num_nics,
        switches=_switches(model.switches, cluster.num_nodes, child(place, "switches")),
        slowdown=tuple(sorted((int(worker), factor) for worker, factor in model.slowdown.items())),
        jitter=model.jitter,
        codec=tuple((name, model.codec[name]) for name in sorted(model.codec)),
        model_bytes=model.model_bytes,
        compute=model.compute,
        layers=tuple(model.layers) if isinstance(model.layers, list) else model.layers,
        backward=model.backward,
    )


def _switches(listed: list[SwitchModel], num_nodes: int, place: str) -> tuple[Switch, ...]:
    switches = []
    for index, model in enumerate(listed):
        here = child(place, index)
        seen: set[int] = set()
        for node in model.nodes:
            if node >= num_nodes:
                raise DocumentError(child(here, "nodes"), f"node {node} is out of range; nodes are 0..{num_nodes - 1}")
            if node in seen:
                raise DocumentError(child(here, "nodes"), f"node {node} is listed twice; each node stands once")
            seen.add(node)
        switches.append(Switch(tuple(model.nodes), _link(model, here)))
    if problem := nesting_problem(switches):
        raise DocumentError(child(place, problem[0]), problem[1])
    return tuple(switches)


def _links(listed: dict[str, LinkModel], place: str) -> tuple[tuple[int, Link], ...]:
    return tuple((int(key), _link(listed[key], child(place, key))) for key in sorted(listed, key=int))


def _link(model: LinkModel, place: str) -> Link:
    if model.bandwidth is None:
        return Link(model.latency, model.seconds_per_byte or 0.0)
    if model.seconds_per_byte is not None:
        raise DocumentError(place, "has both bandwidth and seconds_per_byte; keep one of them")
    return Link.of_bandwidth(model.bandwidth, model.latency)


def dump_hardware(hardware: Hardware) -> dict[str, Any]:
    """Return the JSON object of a Hardware, without members that equal their default."""
    plain = Hardware()
    members = ((name, getattr(hardware, name), dump) for name, dump in DUMPS.items())
    return {name: dump(value) for name, value, dump in members if value != getattr(plain, name)}


def _text(value: float, names: dict[str, Any]) -> str:
    """Return `value` as exact text with one of the units `names` (unit → size): short if possible, else all digits."""
    units_of = {name: scale for name, scale in names.items() if name}
    base = next(name for name, scale in units_of.items() if scale == 1)
    return units.format_quantity(value, units_of) or f"{value!r}{base}"


def _dump_link(link: Link) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if link.seconds_per_byte:
        rounded = float(f"{1.0 / link.seconds_per_byte:.6g}")
        text = units.format_quantity(rounded, units.BANDWIDTHS)
        # A bandwidth is written only if it is read back as exactly the same seconds per byte.
        if text is not None and 1.0 / rounded == link.seconds_per_byte:
            result["bandwidth"] = text
        else:
            result["seconds_per_byte"] = link.seconds_per_byte
    if link.latency:
        result["latency"] = _text(link.latency, units.TIMES)
    return result


def _dump_links(links: tuple[tuple[int, Link], ...]) -> dict[str, Any]:
    return {str(node): _dump_link(link) for node, link in sorted(links, key=itemgetter(0))}


DUMPS: dict[str, Callable[[Any], Any]] = {
    "inside": _dump_link,
    "nic": _dump_link,
    "bus": _dump_link,
    "node_inside": _dump_links,
    "node_nic": _dump_links,
    "num_nics": int,
    "switches": lambda listed: [{"nodes": list(s.nodes), **_dump_link(s.uplink)} for s in listed],
    "slowdown": lambda listed: {str(worker): _text(factor, units.FACTORS) for worker, factor in sorted(listed)},
    "jitter": float,
    "codec": lambda listed: {name: dump_fields(seconds) for name, seconds in sorted(listed, key=itemgetter(0))},
    "model_bytes": lambda size: _text(size, units.SIZES),
    "compute": lambda seconds: _text(seconds, units.TIMES),
    "layers": lambda sizes: sizes if isinstance(sizes, int) else [_text(size, units.SIZES) for size in sizes],
    "backward": float,
}
"""For each field of Hardware, the function that converts its value to JSON."""

FORMAT = "partreduce.cluster"
VERSION = 1

_SUFFIXES = (".yaml", ".yml", ".json")


class _ClusterFile(Model):
    format: Literal["partreduce.cluster"] = "partreduce.cluster"
    version: Literal[1] = 1
    hardware: HardwareModel = HardwareModel()


class RegularClusterModel(_ClusterFile, RegularShape):
    """A cluster file of nodes with equal numbers of workers."""


class ListedClusterModel(_ClusterFile, ListedShape):
    """A cluster file that lists the ranks of every node."""


def load_cluster(text_or_path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster from a shorthand (`4x4`, `3,3,2`) or from a YAML or JSON file.

    The argument is a path if it ends in .yaml, .yml or .json, contains a slash, names an existing file, or is `-`
    (standard input); any other text is a shorthand. Standard input and `/dev/fd/N` are JSON if they start with a brace,
    else YAML.

    Args:
        text_or_path: a shorthand or a path.

    Returns:
        The Cluster; `hardware` is None for a shorthand and for a file without hardware.

    Raises:
        FileError: the file is absent or cannot be read.
        DocumentError: the file breaks the format.
        InputError: the text is neither a path nor a shorthand.
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
    with in_file(source):
        return cluster_of(parse_json(data, source=source) if as_json else parse_yaml(data, source=source))


def cluster_of(raw: object) -> Cluster:
    """Build a Cluster from a parsed document; raise DocumentError if the document breaks the format."""
    check_header(raw, FORMAT, VERSION)
    listed = isinstance(raw, dict) and "nodes" in raw
    model: ListedClusterModel | RegularClusterModel
    model = validate(ListedClusterModel, raw, "") if listed else validate(RegularClusterModel, raw, "")
    shape = shape_value(model, "")
    if "hardware" not in model.model_fields_set:
        return shape
    return replace(shape, hardware=hardware_value(model.hardware, shape, "hardware"))


def dump_cluster(cluster: Cluster) -> dict[str, Any]:
    """Return the JSON object of a cluster with its hardware; `cluster_of` reads it back to an equal cluster."""
    result: dict[str, Any] = {"format": FORMAT, "version": VERSION, **dump_shape(cluster)}
    if cluster.hardware is not None:
        result["hardware"] = dump_hardware(cluster.hardware)
    return result


@check_arguments
def write_cluster(path: str | os.PathLike[str], cluster: Cluster) -> None:
    """Write a cluster file atomically: YAML for .yaml, .yml and standard output (`-`), JSON for .json.

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
