"""A wrong value on the command line, found anywhere, as a usage error."""

# Imported with every verb: nothing heavy here.
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from partreduce.topo.errors import DocumentError, HandshakeError, InputError


def usage_error(error: InputError, context: Any) -> Exception:  # noqa: ANN401 - a context of typer's own click
    """The usage error that an InputError of a verb is, if its place is a value of the command line; else itself.

    What a file holds is no such value: errors about its content carry its name or a place inside it.
    """
    if isinstance(error, (DocumentError, HandshakeError)):
        return error
    place, sign, problem = str(error).partition(": ")
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if not sign or source is None or source.name != "COMMANDLINE":
            continue
        option, value = _written(parameter), context.params.get(parameter.name)
        if place.split(" ")[0] in parameter.opts:
            return typer.BadParameter(problem, ctx=context, param_hint=place)
        if place in _names(parameter, value) or place.split(" ")[0] in _keys(option, value):
            return typer.BadParameter(problem, ctx=context, param_hint=option)
    return error


def _written(parameter: Any) -> str:  # noqa: ANN401 - a parameter of typer's own click
    """How the command line names a parameter: `--plot`, or `CLUSTER` where only its position does."""
    longest = max(parameter.opts, key=len)
    return longest if longest.startswith("-") else str(parameter.metavar or parameter.name).strip("[].").upper()


def _names(parameter: Any, value: object) -> Iterator[str]:  # noqa: ANN401 - a parameter of typer's own click
    """The places by which functions name a parameter, or its value where that is not the name of a file."""
    name = parameter.name or ""
    yield from (name, name.replace("_", "-"), _written(parameter))
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, (str, Path)) and not Path(one).is_file():
            yield from (str(one), f"{name} {one}", f"{name} {str(one)!r}")


def _keys(option: str, value: object) -> Iterator[str]:
    """The places by which functions name a key of `OPTION KEY=VALUE`: `slow`, `max-group`, `hardware.jitter`."""
    for entry in value if isinstance(value, list) else []:
        key, sign, _ = str(entry).partition("=")
        if sign:
            yield from (key, f"{option.removeprefix('--')}-{key}", f"hardware.{key}")
