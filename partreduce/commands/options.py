"""Options that several verbs share, and what they mean together."""

# No `from __future__ import annotations` in the command modules: typer reads the annotations at run time.
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.hardware import Hardware
    from partreduce.topo.timing.compute import ComputeTimes, Disturbance

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

DEFAULT_INSIDE = "10GB/s"
DEFAULT_NIC = "5GB/s"
DEFAULT_COMPUTE = "50ms"
DEFAULT_MODEL = "100MB"


def catalogue_names(incomplete: str) -> list[str]:
    """What a shell offers where a catalogue entry is named."""
    from partreduce.schedulers import registry

    return [name for name in registry.names() if name.startswith(incomplete)]


def members(*names: str) -> Callable[[str], list[str]]:
    """What a shell offers where one of a few words is meant."""

    def matching(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return matching


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines and nothing else.")]
ModelBytes = Annotated[str | None, typer.Option(help="Size of the model, such as 552MB.", metavar="SIZE")]
Intra = Annotated[
    str | None, typer.Option("--intra-bandwidth", help=f"Inside a node (default {DEFAULT_INSIDE}).", metavar="RATE")
]
Nic = Annotated[str | None, typer.Option("--nic-bandwidth", help=f"Of a NIC (default {DEFAULT_NIC}).", metavar="RATE")]
Latency = Annotated[str | None, typer.Option(help="Of every message, such as 5us.", metavar="TIME")]
Rails = Annotated[int | None, typer.Option(help="NICs of a node.", min=1)]
Compute = Annotated[
    str | None, typer.Option(help=f"Computing time of one step (default {DEFAULT_COMPUTE}).", metavar="TIME")
]
Slow = Annotated[
    list[str] | None,
    typer.Option(help="Worker W computes F times as long; may be repeated.", metavar="W:F"),
]
Jitter = Annotated[
    float | None, typer.Option(help="Coefficient of variation of a step's computing time, such as 0.1.", min=0)
]
Disturb = Annotated[
    str | None,
    typer.Option(
        help="hop[:6x] slows each worker with probability 1/n; delay:W:TIME holds up W random workers in every step; "
        "skew:LOW:HIGH holds up everybody, the delays shifting.",
        metavar="KIND",
    ),
]
TouchedShares = Annotated[
    list[str] | None,
    typer.Option(
        "--touched",
        help="Of a table that goes its own way, the share of its rows that a step of one worker touches, of a node's "
        "workers, of all; may be repeated.",
        metavar="NAME=0.8%[:2%[:5%]]",
    ),
]
ClusterFile = Annotated[
    str | None, typer.Option("--cluster", help="Shorthand such as 4x4, or a cluster file with links and speeds.")
]
ANY = "any"
_FORMS = members("ring", "tree", "hierarchical")
FormName = Annotated[
    str,
    typer.Option(
        "--form",
        help="How groups average: any, ring (take it for NCCL), tree or hierarchical.",
        autocompletion=members(ANY, "ring", "tree", "hierarchical"),
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
    ),
]
FileForm = Annotated[
    str | None,
    typer.Option(
        "--form",
        help="How groups average: ring, tree or hierarchical; as each file says by default.",
        autocompletion=_FORMS,
    ),
]
Schedules = Annotated[list[Path], typer.Argument(help="Schedule files.", metavar="SCHEDULE...")]


def hardware_of(
    cluster: "Cluster | None",
    *,
    model_bytes: str | None,
    intra: str | None,
    nic: str | None,
    latency: str | None,
    rails: int | None,
    compute: str | None,
    slow: list[str] | None,
    jitter: float | None,
    default_model: str | None = None,
) -> "Hardware":
    """The cluster file's hardware, overridden by what the options state, completed by the defaults.

    Without a `default_model` the size of the model stays unknown where neither file nor option states it.

    Raises:
        InputError: a quantity that is not understood.
    """
    from partreduce.topo.hardware import Hardware, Link
    from partreduce.topo.units import parse_bandwidth, parse_size, parse_time

    stated = cluster.hardware if cluster is not None else None
    base = stated or Hardware(
        inside=Link.of_bandwidth(parse_bandwidth(DEFAULT_INSIDE)), nic=Link.of_bandwidth(parse_bandwidth(DEFAULT_NIC))
    )
    delay = None if latency is None else quantity("--latency", parse_time, latency)

    def link(old: Link, option: str, rate: str | None) -> Link:
        inverse = old.seconds_per_byte if rate is None else 1 / quantity(option, parse_bandwidth, rate)
        return Link(old.latency if delay is None else delay, inverse)

    if model_bytes is None and base.model_bytes is None:
        model_bytes = default_model
    seconds = base.compute if compute is None else quantity("--compute", parse_time, compute)
    return replace(
        base,
        inside=link(base.inside, "--intra-bandwidth", intra),
        nic=link(base.nic, "--nic-bandwidth", nic),
        num_nics=base.num_nics if rails is None else rails,
        slowdown=slow_of(slow) if slow else base.slowdown,
        jitter=base.jitter if jitter is None else jitter,
        model_bytes=base.model_bytes if model_bytes is None else quantity("--model-bytes", parse_size, model_bytes),
        compute=parse_time(DEFAULT_COMPUTE) if seconds is None else seconds,
    )


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


def choice_or_any(kind: type[E], text: str, option: str) -> E | None:
    """The member of an enumeration that an option names, None for any.

    Raises:
        BadParameter: no such member; the message lists them.
    """
    if text == ANY:
        return None
    if text not in tuple(kind):
        raise typer.BadParameter(f"{text!r} is not one of {', '.join([ANY, *kind])}", param_hint=option)
    return kind(text)


def slow_of(entries: list[str]) -> tuple[tuple[int, float], ...]:
    """`3:5x` → ((3, 5.0),).

    Raises:
        InputError: an entry that is not WORKER:FACTOR, or a worker named twice.
    """
    from partreduce.topo.errors import InputError
    from partreduce.topo.units import parse_factor

    factor_of: dict[int, float] = {}
    for entry in entries:
        worker, _, factor = entry.partition(":")
        if not (worker.isascii() and worker.isdigit() and len(worker) <= 10) or not factor:
            raise InputError(
                f"--slow {entry!r}: write WORKER:FACTOR, such as 3:5x for worker 3 at a fifth of its speed"
            )
        if int(worker) in factor_of:
            raise InputError(f"--slow {entry!r}: worker {worker} is named twice")
        factor_of[int(worker)] = quantity(f"--slow {entry!r}", parse_factor, factor)
    return tuple(sorted(factor_of.items()))


def compute_of(hardware: "Hardware", *, disturbance: str | None = None, trace: Path | None = None) -> "ComputeTimes":
    """Step times of the hardware, with a published disturbance or a recorded trace.

    Raises:
        InputError: a disturbance that is not understood.
    """
    from partreduce.topo.timing.compute import ComputeTimes
    from partreduce.topo.timing.sampling import read_trace

    times = ComputeTimes.of(hardware)
    if trace is not None:
        times = replace(times, trace=read_trace(trace))
    return times if disturbance is None else replace(times, disturbance=disturbance_of(disturbance))


def disturbance_of(text: str) -> "Disturbance":
    """`delay:2:50ms` → RandomDelay(2, 0.05).

    Raises:
        InputError: none of the three published disturbances, or a quantity that is not understood.
    """
    from partreduce.topo.errors import InputError
    from partreduce.topo.timing.compute import RandomDelay, RandomSlowdown, ShiftingDelay
    from partreduce.topo.units import parse_factor, parse_time

    place = f"--disturb {text!r}"
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


def on_every_worker(measure: Callable[[], None], verb: str, usage: str, *, workers: int | None, nodes: int) -> int:
    """Run what a verb measures: here, inside a job, or in `workers` processes of this machine; the exit code.

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
            f"{verb}: runs inside a job; start it with --workers N here, or on the cluster with "
            f"torchrun … -m partreduce {verb} {usage}"
        )
    from partreduce.runtime.launcher.launch import launch

    return launch(measure, num_workers=workers, num_nodes=nodes)
