"""Check the types of arguments and dataclass fields of the public API against their annotations."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from partreduce.topo.errors import InputError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
WAYS_OUT = {
    "Cluster": 'partreduce.load_cluster("4x4") makes one',
    "PlanRequest": "partreduce.PlanRequest(cluster=...) makes one",
    "Schedule": "partreduce.load_schedule(path) and partreduce.design(...) make one",
    "Hardware": "partreduce.Hardware(nic=partreduce.Link(...)) makes one",
}
"""For each class name, the text with which a type error ends: how to make an instance of that class."""


def check_arguments(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a public function so that an argument of a wrong type raises an InputError that names the argument."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Parameters.args, **named: Parameters.kwargs) -> Result:
        hints = _hints_of(function)
        try:
            arguments = signature.bind(*args, **named).arguments
        except TypeError:
            return function(*args, **named)  # raises the usual TypeError, which names the function
        for name, value in arguments.items():
            if name in hints:
                check_type(f"{function.__qualname__.removesuffix('.__init__')}: {name}", value, hints[name])
        return function(*args, **named)

    return call


def check_fields(value: object) -> None:
    """Raise InputError if a field of the dataclass instance `value` does not fit its annotation."""
    kind: Any = type(value)
    for name, hint in _field_hints(kind):
        check_type(f"{kind.__name__}: {name}", getattr(value, name), hint)


def check_type(place: str, value: object, hint: object) -> None:
    """Raise InputError "`place`: …" if `value`, of the parameter `place`, does not fit the annotation `hint`."""
    if _fits(value, hint):
        return
    shown = " ".join(repr(value).split())
    got = "None" if value is None else f"{type(value).__name__} {shown[:57] + '...' if len(shown) > 60 else shown}"
    ways = [WAYS_OUT[name] for part in _alternatives(hint) if (name := getattr(part, "__name__", "")) in WAYS_OUT]
    raise InputError(f"{place}: expected {_format(hint)}, got {got}{f'; {ways[0]}' if ways else ''}")


def _alternatives(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: object, hint: Any) -> bool:  # noqa: ANN401 - an annotation; one answer for each form
    origin = get_origin(hint)
    if origin is Annotated:
        return _fits(value, get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return any(value == part for part in get_args(hint))
    kind = origin or hint
    if kind is None or kind is type(None):
        return value is None
    if not isinstance(kind, type) or kind in (Any, object):
        return True  # Any, a type variable, a string: nothing to check
    if kind in (float, Fraction):  # also numpy scalars, and tensors of one element
        return hasattr(value, "__float__")
    if kind in (int, bool):
        return hasattr(value, "__index__") or type(value).__name__ == "bool_"
    if issubclass(kind, Enum):
        return isinstance(value, kind) or (isinstance(value, str) and value in [one.value for one in kind])
    if issubclass(kind, (str, bytes, Mapping, os.PathLike)) or not issubclass(kind, Iterable):
        if not getattr(kind, "_is_protocol", False):
            return isinstance(value, kind)
        names = {name for part in kind.__mro__ if getattr(part, "_is_protocol", False) for name in vars(part)}
        return all(hasattr(value, name) for name in names if not name.startswith("_"))
    if kind.__module__ in ("builtins", "collections.abc"):  # any iterable is valid where a tuple is expected
        return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    return isinstance(value, kind)


def _format(hint: Any) -> str:  # noqa: ANN401 - an annotation
    origin = get_origin(hint)
    if origin is Annotated:
        return _format(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_format(part) for part in get_args(hint)))
    if origin is Literal:
        return " or ".join(repr(part) for part in get_args(hint))
    kind = origin or hint
    if kind is None or kind is type(None):
        return "None"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"{kind.__name__} ({', '.join(str(one.value) for one in kind)})"
    return "path" if kind is os.PathLike else getattr(kind, "__name__", str(kind))


@functools.lru_cache
def _field_hints(kind: Any) -> tuple[tuple[str, Any], ...]:  # noqa: ANN401 - a dataclass
    return tuple((one.name, hint) for one in fields(kind) if (hint := _hints_of(kind).get(one.name)) is not None)


@functools.lru_cache
def _hints_of(annotated: Any) -> dict[str, Any]:  # noqa: ANN401 - a function or a class
    """Return the types of a function's parameters or of a class's fields, by name.

    Annotations that use names imported only for type checkers are left out.
    """
    found: dict[str, Any] = {}
    for owner in reversed(annotated.__mro__) if isinstance(annotated, type) else (annotated,):
        names = vars(sys.modules[owner.__module__])
        for name, text in inspect.get_annotations(owner).items():
            try:
                found[name] = eval(text, names) if isinstance(text, str) else text  # noqa: S307 - our own source
            except (NameError, TypeError):
                continue
    found.pop("return", None)
    return found
