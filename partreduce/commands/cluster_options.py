"""Read `--set` and `--model-bytes`: a cluster's hardware and its workers' compute times, completed by defaults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from partreduce.commands.options import (
    DEFAULT_COMPUTE,
    DEFAULT_INSIDE,
    DEFAULT_MODEL,
    DEFAULT_NIC,
    quantity,
    settings_of,
    whole,
)
from partreduce.schedulers.entry import hint
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import USUAL, Hardware, Link, Switch
from partreduce.topo.slurm import read_switches
from partreduce.topo.timing.compute import (
    ComputeTimes,
    RandomDelay,
    RandomSlowdown,
    RotatingDelay,
    StragglerModel,
    read_trace,
)
from partreduce.topo.timing.tables import RowAccess
from partreduce.topo.units import parse_bandwidth, parse_factor, parse_share, parse_size, parse_time

NODES = {
    "pcie3": "15.75GB/s", "pcie4": "31.5GB/s", "pcie5": "63GB/s",
    "nvlink3": "300GB/s", "nvlink4": "450GB/s", "nvlink5": "900GB/s",
}  # fmt: skip
"""Presets of `--set node`: one-way line rates between two accelerators of a node (sources: docs/clusters.md)."""
NETWORKS = {"1g": "50us", "10g": "50us", "25g": "20us", "100g": "5us", "200g": "5us", "400g": "5us"}
"""Presets of `--set network` (line rate of a NIC in Gbit/s) and their assumed latency: TCP up to 25g, RDMA beyond."""


def cluster_settings(entries: list[str] | None) -> dict[str, Any]:
    """Return the values of `--set KEY=VALUE` by key, in seconds, bytes per second, and factors; raise InputError."""
    readers: dict[str, Callable[[str], object]] = {
        "inside": parse_bandwidth, "nic": parse_bandwidth, "latency": parse_time, "rails": whole(1),
        "node": _one_of(NODES), "network": _one_of(NETWORKS), "switches": str, "uplink": parse_bandwidth,
        "compute": parse_time, "slow": _slow, "jitter": _variation,
        "disturb": disturbance_of, "touched": str,
    }  # fmt: skip
    given = settings_of("--set", entries, readers, "nic=5GB/s")
    if (node := given.pop("node", None)) is not None:
        given.setdefault("inside", parse_bandwidth(NODES[node]))
    if (network := given.pop("network", None)) is not None:
        given.setdefault("nic", parse_bandwidth(f"{network[:-1]}Gbit/s"))
        given.setdefault("nic latency", parse_time(NETWORKS[network]))
    return given


def _one_of(names: Collection[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise InputError(f"{text!r} is not one of {', '.join(names)}{hint(text, names)}")
        return text

    return read


def hardware_of(
    cluster: Cluster | None, given: Mapping[str, Any], *, model_bytes: str | None, default_model: str | None = None
) -> Hardware:
    """Return the cluster's hardware, overridden by `given`, the values of `--set`, and completed by the defaults.

    `model_bytes`, a text such as `500MB`, overrides the model's size in the cluster file. If neither states it, the
    size is `default_model`, also a text; it stays unknown if that is None.
    """
    stated = cluster.hardware if cluster is not None else None
    base = stated or USUAL

    def link(old: Link, key: str) -> Link:
        inverse = 1 / given[key] if key in given else old.seconds_per_byte
        latency = given.get("latency", given.get(f"{key} latency", old.latency))
        return quantity(f"--set {key}", lambda _: Link(latency, inverse), "")

    if model_bytes is None and base.model_bytes is None:
        model_bytes = default_model
    seconds = given.get("compute", base.compute)
    return replace(
        base,
        inside=link(base.inside, "inside"),
        nic=link(base.nic, "nic"),
        num_nics=given.get("rails", base.num_nics),
        switches=_switches(cluster, given) if {"switches", "uplink"} & set(given) else base.switches,
        slowdown=_slowdown(given["slow"]) if "slow" in given else base.slowdown,
        jitter=given.get("jitter", base.jitter),
        model_bytes=base.model_bytes if model_bytes is None else quantity("--model-bytes", parse_size, model_bytes),
        compute=parse_time(DEFAULT_COMPUTE) if seconds is None else seconds,
    )


def _switches(cluster: Cluster | None, given: Mapping[str, Any]) -> tuple[Switch, ...]:
    """Return the switches above the cluster's nodes, from `--set switches` (a file of SLURM) or the cluster file.

    `--set uplink` overrides the bandwidth of their uplinks.
    """
    if cluster is None:
        raise InputError("--set switches: needs the cluster whose nodes hang on them")
    stated = cluster.hardware.switches if cluster.hardware is not None else ()
    if "switches" in given:
        path, _, nodes = given["switches"].partition(":")
        stated = read_switches(Path(path), cluster.num_nodes, nodes)
    if "uplink" not in given:
        return stated
    if not stated:
        raise InputError("--set uplink: there are no switches; say --set switches=topology.conf, too")
    return tuple(replace(one, uplink=Link(one.uplink.latency, 1 / given["uplink"])) for one in stated)


def hardware_defaults(cluster: Cluster, given: Mapping[str, Any], *, model_bytes: str | None) -> dict[str, str]:
    """Return the default values that `hardware_of` uses, by the option that overrides each: {"--set nic": "5GB/s"}.

    If a cluster file leaves out a link's bandwidth, the link costs nothing, and the value is as in `_free_links`.
    """
    stated = cluster.hardware
    links = {"nic": DEFAULT_NIC, "inside": DEFAULT_INSIDE} if stated is None else _free_links(cluster, stated)
    found = {f"--set {key}": value for key, value in links.items() if key not in given}
    if model_bytes is None and (stated is None or stated.model_bytes is None):
        found["--model-bytes"] = DEFAULT_MODEL
    if "compute" not in given and (stated is None or stated.compute is None):
        found["--set compute"] = DEFAULT_COMPUTE
    return found


def _free_links(cluster: Cluster, stated: Hardware) -> dict[str, str]:
    """Return the links that a job uses and that cost nothing, because the cluster file states no bandwidth for them.

    The result maps a key of `--set`, "nic" or "inside", to "free", or to a text such as "free on 2 of 4 nodes".
    `stated` is the hardware in the cluster file.
    """
    nodes = range(cluster.num_nodes)
    shared = [node for node, size in enumerate(cluster.node_sizes()) if size > 1]
    used = {"nic": (stated.nic_of, nodes if len(nodes) > 1 else ()), "inside": (stated.inside_of, shared)}
    found = {}
    for name, (link_of, where) in used.items():
        free = [node for node in where if not link_of(node).seconds_per_byte]
        if free:
            found[name] = "free" if len(free) == len(where) else f"free on {len(free)} of {len(where)} nodes"
    return found


def with_defaults(cluster: Cluster) -> Cluster:
    """Return the cluster with the command line's default hardware where it states none."""
    return replace(cluster, hardware=hardware_of(cluster, {}, model_bytes=None, default_model=DEFAULT_MODEL))


def touched_of(entries: list[str], cluster: Cluster) -> dict[str, RowAccess]:
    """Return the shares of a table's rows that are looked up in a step, by table: `words.weight:0.8%:2%:5%`.

    The three shares are those that one worker, a node, and all workers touch. The second and the third may be left out;
    they are then computed as if workers touched rows independently.
    """
    result: dict[str, RowAccess] = {}
    for entry in entries:
        name, *shares = entry.split(":")
        if not name or not 1 <= len(shares) <= 3:
            raise InputError(f"--set touched: {entry!r}: write TABLE:WORKER[:NODE[:ALL]], as in words:0.8%:2%:5%")
        if name in result:
            raise InputError(f"--set touched: {entry!r}: {name} is given twice")
        known = [quantity("--set touched", parse_share, share) for share in shares]
        alone = RowAccess.independent(known[0], cluster)
        node = known[1] if len(known) > 1 else alone.node
        result[name] = RowAccess(known[0], node, known[2] if len(known) > 2 else max(node, alone.everyone))
    return result


def _variation(text: str) -> float:
    """Read a coefficient of variation, such as `0.1`; `Hardware` checks its upper limit."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InputError(f"{text!r} is not a number >= 0, such as 0.1")
    return value


def _slow(text: str) -> tuple[int, float]:
    worker, _, factor = text.partition(":")
    if not (worker.isascii() and worker.isdigit() and len(worker) <= 10) or not factor:
        raise InputError(f"{text!r}: write WORKER:FACTOR, such as 3:5x for worker 3 at a fifth of its speed")
    return int(worker), quantity(repr(text), parse_factor, factor)


def _slowdown(entries: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    workers = [worker for worker, _ in entries]
    if (twice := next((worker for worker in workers if workers.count(worker) > 1), None)) is not None:
        raise InputError(f"--set slow: worker {twice} is named twice")
    return tuple(sorted(entries))


def compute_of(
    hardware: Hardware, *, disturbance: StragglerModel | None = None, trace: Path | None = None
) -> ComputeTimes:
    """Return the workers' compute times: those of the hardware or of a recorded `trace` (CSV), plus random delays."""
    times = ComputeTimes.of(hardware)
    if trace is not None:
        times = replace(times, trace=read_trace(trace))
    return times if disturbance is None else replace(times, disturbance=disturbance)


def disturbance_of(text: str) -> StragglerModel:
    """Return the straggler model that a value of `--set disturb` names: `delay:2:50ms` gives RandomDelay(2, 0.05)."""
    place = repr(text)
    kind, *rest = text.split(":")
    if kind == "hop" and len(rest) <= 1:
        return RandomSlowdown(quantity(place, parse_factor, rest[0]) if rest else 6.0)
    if kind == "delay" and len(rest) == 2 and rest[0].isascii() and rest[0].isdigit() and len(rest[0]) <= 10:
        return RandomDelay(int(rest[0]), quantity(place, parse_time, rest[1]))
    if kind == "skew" and len(rest) == 2:
        return RotatingDelay(*(quantity(place, parse_time, time) for time in rest))
    raise InputError(
        f"{place}: write hop[:FACTOR] (each worker slow with probability 1/n), delay:WORKERS:TIME (so many "
        "random workers delayed in every step) or skew:LOW:HIGH (all workers delayed, the delays shifting)"
    )
