"""Options that several verbs share, and what they mean together."""

# No `from __future__ import annotations` in the command modules: typer reads the annotations at run time.
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.hardware import Hardware, Switch
    from partreduce.topo.timing.compute import ComputeTimes, Disturbance

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

DEFAULT_INSIDE = "10GB/s"
DEFAULT_NIC = "5GB/s"
DEFAULT_COMPUTE = "50ms"
DEFAULT_MODEL = "100MB"
NODES = {
    "pcie3": "15.75GB/s", "pcie4": "31.5GB/s", "pcie5": "63GB/s",
    "nvlink3": "300GB/s", "nvlink4": "450GB/s", "nvlink5": "900GB/s",
}  # fmt: skip
"""Line rates of one direction between two accelerators of a node; docs/clusters.md names the sources."""
NETWORKS = {"1g": "50us", "10g": "50us", "25g": "20us", "100g": "5us", "200g": "5us", "400g": "5us"}
"""Gbit/s of a NIC's line rate, with the latency that we assume: of TCP up to 25, of RDMA beyond."""
REPEATED = frozenset({"slow", "touched"})
"""Keys of --set that may be given more than once."""

CATALOGUE, CLUSTER, MODEL, HOW, LIMITED, WRITTEN = (
    "The catalogue", "The cluster", "The model", "How workers may average", "Objective and limits", "Output"
)  # fmt: skip
"""Panels of the help."""


def catalogue_names(incomplete: str) -> list[str]:
    """What a shell offers where a catalogue entry is named."""
    from partreduce.schedulers import registry

    return [name for name in registry.names() if name.startswith(incomplete)]


def members(*names: str) -> Callable[[str], list[str]]:
    """What a shell offers where one of a few words is meant."""

    def matching(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return matching


Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document for machines and nothing else.", rich_help_panel=WRITTEN),
]
ModelBytes = Annotated[
    str | None, typer.Option(help="Size of the model, such as 552MB.", metavar="SIZE", rich_help_panel=MODEL)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Overrides the cluster file; may be repeated. KEY=VALUE is one of "
        f"inside={DEFAULT_INSIDE} and nic={DEFAULT_NIC} (links in a node and of a NIC; the defaults), latency=5us, "
        "node=nvlink4 and network=100g (presets of both), switches=topology.conf (SLURM's; perhaps :NODES), "
        f"uplink=2GB/s (of switches), rails=2 (NICs of a node), compute={DEFAULT_COMPUTE} (a step; the default), "
        "slow=3:5x (worker 3 computes 5 "
        "times as long; may come again), jitter=0.1 (coefficient of variation of a step), disturb=hop[:6x] (each "
        "worker slow with probability 1/n), disturb=delay:W:TIME (W random workers held up in every step), "
        "disturb=skew:LOW:HIGH (everybody held up, the delays shifting), touched=TABLE:0.8%:2%:5% (the share of a "
        "table's rows that a step of one worker touches, of a node's workers, of all; may come again).",
        metavar="KEY=VALUE",
        autocompletion=members(
            "inside=",
            "nic=",
            "node=",
            "network=",
            "switches=",
            "uplink=",
            "latency=",
            "rails=",
            "compute=",
            "slow=",
            "jitter=",
            "disturb=",
            "touched=",
        ),
        rich_help_panel=CLUSTER,
    ),
]
ClusterFile = Annotated[
    str | None, typer.Option("--cluster", help="Shorthand such as 4x4, or a cluster file with links and speeds.")
]
ANY = "any"
_FORMS = members("ring", "hierarchical")
FormName = Annotated[
    str,
    typer.Option(
        "--form",
        help="How groups average: any, ring (take it for NCCL) or hierarchical.",
        autocompletion=members(ANY, "ring", "hierarchical"),
        rich_help_panel=HOW,
    ),
]
GAP, QUORUM = "gap", "quorum"
_WHENS = ("lockstep", "late", "pipeline", GAP, QUORUM)
WhenName = Annotated[
    str,
    typer.Option(
        "--when",
        help="Whether a round waits: any, lockstep, late by one round, pipeline (All-Reduce's gradients come late), "
        "gap (workers go on by themselves, neighbours keep a gap), or quorum (rounds of those that have come).",
        autocompletion=members(ANY, *_WHENS),
        rich_help_panel=HOW,
    ),
]
NO_CODEC = "none"
CodecName = Annotated[
    str,
    typer.Option(
        "--codec",
        help="How sums, and rows of tables, may be written: none, any (where it pays: float16 or int8), float16, "
        "bfloat16 or int8.",
        autocompletion=members(ANY, NO_CODEC, "float16", "bfloat16", "int8"),
        rich_help_panel=HOW,
    ),
]
FileForm = Annotated[
    str | None,
    typer.Option(
        "--form",
        help="How groups average: ring or hierarchical; as each file says by default.",
        autocompletion=_FORMS,
    ),
]
Schedules = Annotated[list[Path], typer.Argument(help="Schedule files.", metavar="SCHEDULE...")]


def cluster_settings(entries: list[str] | None) -> dict[str, Any]:
    """What `--set` says of a cluster, as numbers in seconds, bytes a second and factors.

    Raises:
        InputError: a key that is not there, or a value that is not understood.
    """
    from partreduce.topo.units import parse_bandwidth, parse_time

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
        from partreduce.schedulers.entry import hint
        from partreduce.topo.errors import InputError

        if text not in names:
            raise InputError(f"{text!r} is not one of {', '.join(names)}{hint(text, names)}")
        return text

    return read


def hardware_of(
    cluster: "Cluster | None", given: Mapping[str, Any], *, model_bytes: str | None, default_model: str | None = None
) -> "Hardware":
    """The cluster file's hardware, overridden by what `--set` states, completed by the defaults.

    Without a `default_model` the size of the model stays unknown where neither file nor option states it.

    Raises:
        InputError: a size that is not understood, or hardware out of range.
    """
    from partreduce.topo.hardware import Hardware, Link
    from partreduce.topo.units import parse_bandwidth, parse_size, parse_time

    stated = cluster.hardware if cluster is not None else None
    base = stated or Hardware(
        inside=Link.of_bandwidth(parse_bandwidth(DEFAULT_INSIDE)), nic=Link.of_bandwidth(parse_bandwidth(DEFAULT_NIC))
    )

    def link(old: Link, key: str) -> Link:
        inverse = 1 / given[key] if key in given else old.seconds_per_byte
        return Link(given.get("latency", given.get(f"{key} latency", old.latency)), inverse)

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


def _switches(cluster: "Cluster | None", given: Mapping[str, Any]) -> "tuple[Switch, ...]":
    """SLURM's switches above the cluster's nodes, or those of its file, with the bandwidth of their uplinks."""
    from partreduce.topo.errors import InputError
    from partreduce.topo.hardware import Link
    from partreduce.topo.slurm import read_switches

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


def assumed(cluster: "Cluster", given: Mapping[str, Any], *, model_bytes: str | None) -> dict[str, str]:
    """What `hardware_of` takes from its defaults, by the option that would say it."""
    stated = cluster.hardware
    links = {"nic": DEFAULT_NIC, "inside": DEFAULT_INSIDE} if stated is None else {}
    found = {f"--set {key}": value for key, value in links.items() if key not in given}
    if model_bytes is None and (stated is None or stated.model_bytes is None):
        found["--model-bytes"] = DEFAULT_MODEL
    if "compute" not in given and (stated is None or stated.compute is None):
        found["--set compute"] = DEFAULT_COMPUTE
    return found


def refuse(context: typer.Context, names: Collection[str], reason: str) -> None:
    """Refuse options that say nothing in this use of a verb, instead of dropping them without a word.

    Args:
        context: of the verb.
        names: of the parameters that are refused.
        reason: what is said of the first that was given.

    Raises:
        BadParameter: one of them was given.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in names and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(reason, param_hint=parameter.opts[0])


def settings_of(
    option: str, entries: list[str] | None, keys: Mapping[str, Callable[[str], object]], example: str
) -> dict[str, Any]:
    """What `OPTION KEY=VALUE …` says, each value read by its key's reader; a key of `REPEATED` may come again.

    Raises:
        InputError: an entry that is not KEY=VALUE, a key that is not there or is given twice, a value that is refused.
    """
    from partreduce.schedulers.entry import hint
    from partreduce.topo.errors import InputError

    values: dict[str, Any] = {}
    for entry in entries or []:
        key, sign, text = entry.partition("=")
        key = key.strip()
        if not sign or not text.strip():
            raise InputError(f"{option} {entry!r}: write KEY=VALUE, such as {example}")
        if key not in keys:
            raise InputError(f"{option} {entry!r}: {key!r} is not one of {', '.join(keys)}{hint(key, keys)}")
        value = quantity(f"{option} {key}", keys[key], text.strip())
        if key in values and key not in REPEATED:
            raise InputError(f"{option} {entry!r}: {key} is given twice")
        values[key] = [*values.get(key, []), value] if key in REPEATED else value
    return values


def quantity(place: str, parse: Callable[[str], T], text: str) -> T:
    """What an option's text means; a refusal names the option.

    Raises:
        InputError: a quantity that is not understood.
    """
    from partreduce.topo.errors import InputError

    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def optional(place: str, parse: Callable[[str], T], text: str | None) -> T | None:
    """What the text of an option means that may be left out.

    Raises:
        InputError: a quantity that is not understood.
    """
    return None if text is None else quantity(place, parse, text)


def choice(kind: type[E], text: str, option: str) -> E:
    """The member of an enumeration that an option names.

    Raises:
        BadParameter: no such member; the message lists them.
    """
    try:
        return kind(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(kind)}", param_hint=option) from None


def choice_or_any(kind: type[E], text: str, option: str, *, also: Collection[str] = ()) -> E | None:
    """The member of an enumeration that an option names, None for any and for the words in `also`.

    Raises:
        BadParameter: no such member; the message lists them.
    """
    if text == ANY or text in also:
        return None
    if text not in tuple(kind):
        raise typer.BadParameter(f"{text!r} is not one of {', '.join([ANY, *kind, *also])}", param_hint=option)
    return kind(text)


def whole(least: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` on."""

    def read(text: str) -> int:
        from partreduce.topo.errors import InputError

        if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= least):
            raise InputError(f"{text!r} is not a whole number >= {least}")
        return int(text)

    return read


def _variation(text: str) -> float:
    """`0.1` → 0.1; how large it may be says the hardware."""
    from partreduce.topo.errors import InputError

    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InputError(f"{text!r} is not a number >= 0, such as 0.1")
    return value


def _slow(text: str) -> tuple[int, float]:
    from partreduce.topo.errors import InputError
    from partreduce.topo.units import parse_factor

    worker, _, factor = text.partition(":")
    if not (worker.isascii() and worker.isdigit() and len(worker) <= 10) or not factor:
        raise InputError(f"{text!r}: write WORKER:FACTOR, such as 3:5x for worker 3 at a fifth of its speed")
    return int(worker), quantity(repr(text), parse_factor, factor)


def _slowdown(entries: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    from partreduce.topo.errors import InputError

    workers = [worker for worker, _ in entries]
    if (twice := next((worker for worker in workers if workers.count(worker) > 1), None)) is not None:
        raise InputError(f"--set slow: worker {twice} is named twice")
    return tuple(sorted(entries))


def compute_of(
    hardware: "Hardware", *, disturbance: "Disturbance | None" = None, trace: Path | None = None
) -> "ComputeTimes":
    """Step times of the hardware, with a published disturbance or a recorded trace."""
    from partreduce.topo.timing.compute import ComputeTimes
    from partreduce.topo.timing.sampling import read_trace

    times = ComputeTimes.of(hardware)
    if trace is not None:
        times = replace(times, trace=read_trace(trace))
    return times if disturbance is None else replace(times, disturbance=disturbance)


def disturbance_of(text: str) -> "Disturbance":
    """`delay:2:50ms` → RandomDelay(2, 0.05).

    Raises:
        InputError: none of the three published disturbances, or a quantity that is not understood.
    """
    from partreduce.topo.errors import InputError
    from partreduce.topo.timing.compute import RandomDelay, RandomSlowdown, ShiftingDelay
    from partreduce.topo.units import parse_factor, parse_time

    place = repr(text)
    kind, *rest = text.split(":")
    if kind == "hop" and len(rest) <= 1:
        return RandomSlowdown(quantity(place, parse_factor, rest[0]) if rest else 6.0)
    if kind == "delay" and len(rest) == 2 and rest[0].isascii() and rest[0].isdigit() and len(rest[0]) <= 10:
        return RandomDelay(int(rest[0]), quantity(place, parse_time, rest[1]))
    if kind == "skew" and len(rest) == 2:
        return ShiftingDelay(*(quantity(place, parse_time, time) for time in rest))
    raise InputError(
        f"{place}: write hop[:FACTOR] (each worker slow with probability 1/n), delay:WORKERS:TIME (so many "
        "random workers held up in every step) or skew:LOW:HIGH (everybody held up, the delays shifting)"
    )


def on_every_worker(measure: Callable[[], None], usage: str, *, workers: int | None, nodes: int) -> int:
    """Run what `measure` measures: here, inside a job, or in `workers` processes of this machine; the exit code.

    Raises:
        InputError: neither is asked for; `usage` is the end of the command that a cluster's launcher starts.
    """
    import os

    from partreduce.topo.errors import InputError

    if "RANK" in os.environ:
        measure()
        return 0
    if workers is None:
        raise InputError(
            f"measure: runs inside a job; start it with --workers N here, or on the cluster with "
            f"torchrun … -m partreduce measure {usage}"
        )
    from partreduce.runtime.launcher.launch import launch

    return launch(measure, num_workers=workers, num_nodes=nodes)
