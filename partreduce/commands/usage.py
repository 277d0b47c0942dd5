"""A wrong value on the command line, found anywhere, as a usage error."""

# Imported with every verb: nothing heavy here.
from pathlib import Path
from typing import Any

import typer

from partreduce.topo.errors import DocumentError, HandshakeError, InputError


def usage_error(error: InputError, context: Any) -> Exception:  # noqa: ANN401 - a context of typer's own click
    """The usage error that an InputError of a verb is, if its place is a value of the command line; else itself.

    Errors about the content of a file carry its name or a place inside it, and stay what they are.
    """
    if isinstance(error, (DocumentError, HandshakeError)):
        return error
    place, sign, problem = str(error).partition(": ")
    first = place.split(" ")[0]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if not sign or source is None or source.name != "COMMANDLINE":
            continue
        value, option = context.params.get(parameter.name), max(parameter.opts, key=len)
        if not option.startswith("-"):
            option = str(parameter.metavar or parameter.name).strip("[].").upper()
        if first in parameter.opts and first.startswith("-"):
            return typer.BadParameter(problem, ctx=context, param_hint=place)
        if key := next((key for key in _keys(value) if first in _places_of_key(option, key)), None):
            return typer.BadParameter(problem, ctx=context, param_hint=f"{option} {key}")
        if _is_file(value):
            continue
        if place == str(value):
            return typer.BadParameter(problem, ctx=context, param_hint=f"{option} {place}")
        if first in (option, parameter.name):
            return typer.BadParameter(problem, ctx=context, param_hint=option if place == parameter.name else place)
    return error


def _is_file(value: object) -> bool:
    """Whether a value names a file, whose content may be what is wrong."""
    return isinstance(value, (str, Path)) and Path(value).is_file()


def _keys(value: object) -> list[str]:
    """The keys of `OPTION KEY=VALUE`, as often as it is given."""
    entries = [str(entry).partition("=") for entry in value] if isinstance(value, list) else []
    return [key for key, sign, _ in entries if sign]


def _places_of_key(option: str, key: str) -> tuple[str, ...]:
    """How functions name a key of an option: `slow`, `max-group`, `hardware.jitter`."""
    return key, f"{option.removeprefix('--')}-{key}", f"hardware.{key}"
