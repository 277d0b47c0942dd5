"""Options that several verbs share, and functions that parse option values."""

# No `from __future__ import annotations` in the command modules: typer reads the annotations at run time.
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from partreduce.schedulers.entry import hint
from partreduce.topo.errors import InputError

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

DEFAULT_INSIDE = "10GB/s"
DEFAULT_NIC = "5GB/s"
DEFAULT_COMPUTE = "50ms"
DEFAULT_MODEL = "100MB"
REPEATED = frozenset({"slow", "touched"})
"""The keys of --set that may be given more than once."""


def panel(name: str | None = None) -> Callable[..., Any]:
    """Return a function that makes typer options for one panel of the help, from their help text and names."""
    return lambda text, *names, **settings: typer.Option(*names, help=text, rich_help_panel=name, **settings)


in_model, in_output = panel("The model"), panel("Output")


def members(*names: str) -> Callable[[str], list[str]]:
    """Return a function from the text typed so far to the values among `names` that continue it: shell completion."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


Json = Annotated[bool, in_output("Print one JSON document for machines and nothing else.", "--json")]
ModelBytes = Annotated[str | None, in_model("Size of the model, such as 552MB.", metavar="SIZE")]
SETTING_KEYS = (
    (f"inside={DEFAULT_INSIDE}", "bandwidth of a link inside a node; this is the default"),
    (f"nic={DEFAULT_NIC}", "bandwidth of one NIC of a node; this is the default"),
    ("latency=5us", "latency of all links"),
    ("rails=2", "number of NICs of a node"),
    ("node=nvlink4", "preset of inside: pcie3 to pcie5, nvlink3 to nvlink5"),
    ("network=100g", "preset of nic and its latency: 1g, 10g, 25g, 100g, 200g, 400g"),
    ("switches=topology.conf", "SLURM's switches above the nodes; topology.conf:NODES selects nodes"),
    ("uplink=2GB/s", "bandwidth of the uplink of a switch"),
    (f"compute={DEFAULT_COMPUTE}", "computing of one step; this is the default"),
    ("slow=3:5x", "worker 3 computes 5 times as long; may be repeated"),
    ("jitter=0.1", "coefficient of variation of a step's computing"),
    ("disturb=hop:6x", "each worker is 6 times as slow with probability 1/n in each step"),
    ("disturb=delay:2:50ms", "2 random workers are held up by 50 ms in each step"),
    ("disturb=skew:10ms:90ms", "all workers are held up, by delays from 10 to 90 ms that rotate"),
    ("touched=TABLE:0.8%:2%:5%", "share of a table's rows that one worker, a node, all touch in a step; repeatable"),
)
"""Every key of `--set` with an example and its meaning; `partreduce help settings` prints them."""
LIMIT_KEYS = (
    ("communication=110ms", "communication per step"),
    ("consensus-distance=8/7", "consensus distance"),
    ("period=24", "phases of a period; this is the default"),
    ("group=8", "workers of a group"),
    ("phases=6", "distinct phases, that is communicators of a worker"),
    ("queues=4GB", "memory of queues of iteration_gap or partial"),
)
"""Every key of `design --max` with an example and what it limits; `partreduce help limits` prints them."""
Settings = Annotated[
    list[str] | None,
    panel("The cluster")(
        f"Override the cluster file, such as nic={DEFAULT_NIC}, compute={DEFAULT_COMPUTE} or slow=3:5x; may be "
        "repeated. `partreduce help settings` lists all keys.",
        "--set",
        metavar="KEY=VALUE",
        autocompletion=members(*dict.fromkeys(example.partition("=")[0] + "=" for example, _ in SETTING_KEYS)),
    ),
]


def check_unused(context: typer.Context, names: Collection[str], reason: str) -> None:
    """Raise BadParameter with the text `reason` if one of the parameters `names` is given."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in names and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(reason, param_hint=parameter.opts[0])


def settings_of(
    option: str, entries: list[str] | None, keys: Mapping[str, Callable[[str], object]], example: str
) -> dict[str, Any]:
    """Return the values of a repeatable option `KEY=VALUE` by key, each parsed by its function in `keys`.

    A key of `REPEATED` may be given several times, and has a list of values. Raises InputError for other keys and
    values; the message shows `example`.
    """
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
    """Return `parse(text)`; the message of an InputError gets the option's name, `place`, as a prefix."""
    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def member_or_none(kind: type[E], choice: StrEnum) -> E | None:
    """Return the member of an enumeration whose value equals a choice; None for other choices, such as `any`."""
    return next((member for member in kind if member == choice), None)


def whole(least: int) -> Callable[[str], int]:
    """Return a function that parses an integer ≥ `least`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= least):
            raise InputError(f"expected an integer >= {least}, got {text!r}")
        return int(text)

    return read


def check_nodes(option: str, nodes: int, workers: int) -> None:
    """Raise BadParameter, for `option`, unless the local workers can be spread evenly over the simulated nodes."""
    if workers % nodes:
        raise typer.BadParameter(f"expected a divisor of {workers} workers, got {nodes}", param_hint=option)


def parameters_of(entries: list[str], *, place: str) -> dict[str, object]:
    """Return parameters by name: ["every=4"] → {"every": "4"}; raise InputError, which begins with `place`."""
    values: dict[str, object] = {}
    for entry in entries:
        key, sign, value = entry.partition("=")
        key = key.strip().replace("-", "_")
        if not sign or not key.isidentifier():
            raise InputError(f"{place}: {entry!r}: write KEY=VALUE, such as every=4")
        if key in values:
            raise InputError(f"{place}: {key} is given twice")
        values[key] = value.strip()
    return values
