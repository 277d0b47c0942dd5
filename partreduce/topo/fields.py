"""Field types and base classes of the strategy dataclasses; they state what a document may hold.

`topo.document` validates JSON directly into these dataclasses with pydantic. The hooks below import pydantic only when
they are called, so that importing a dataclass stays fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le, MaxLen, MinLen

from partreduce.topo.argument_types import check_fields
from partreduce.topo.errors import InputError, ScheduleError

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

# arrays
Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

Count = Annotated[int, Ge(1), Le(2**31 - 1)]
"""A positive integer."""

Index = Annotated[int, Ge(0), Le(2**31 - 1)]
"""A rank, a local rank, a node or a digit; numbered from 0."""

Title = Annotated[str, MinLen(1), MaxLen(1000)]
"""A name given by the user."""

Rounds = Annotated[int, Ge(0), Le(2**53 - 1)]
"""A number of rounds, or a seed; at most the largest integer that every JSON reader keeps exactly."""


class _Exactly:
    """Annotation: pydantic reads the field from an integer or a fraction string, as `closed_model.Exact`."""

    @staticmethod
    def __get_pydantic_core_schema__(source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from partreduce.topo.closed_model import Exact as InDocuments

        return handler.generate_schema(InDocuments)


Exact = Annotated[Fraction, _Exactly()]
"""A Fraction; documents hold it as an integer or as a string such as "1/3"."""


class Choice(StrEnum):
    """An enumeration whose members are written in JSON documents as their string values."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept the string value of a member, although pydantic is strict otherwise."""
        from pydantic_core import core_schema

        return core_schema.enum_schema(cls, list(cls), sub_type="str", strict=False)


class JsonObject:
    """Base of dataclasses that documents hold as JSON objects, with one member per field and no type coercion.

    The constructor also accepts strings for `Choice` fields, as in `Transport(codec="int8")`, and checks the ranges
    that the field types state; it raises ScheduleError.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
    place: ClassVar[str] = ""
    """The path in a schedule with which error messages about fields begin, such as `transport.`."""

    def __post_init__(self) -> None:
        """Convert strings to the enumeration members that they name; raise ScheduleError for other values or ranges."""
        for name, choice in _choices(type(self)):  # type: ignore[arg-type]  # classes are hashable
            value = getattr(self, name)
            if not isinstance(value, choice):
                if value not in list(choice):
                    raise ScheduleError(f"{self.place}{name}: is {value!r}; it must be one of {', '.join(choice)}")
                object.__setattr__(self, name, choice(value))
        check_ranges(self, ScheduleError, self.place)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept a JSON object whose keys are field names; the fields themselves stay strict."""
        from pydantic_core import core_schema

        from partreduce.topo.closed_model import known_members

        schema: Any = dict(handler(source))
        assert schema["type"] == "dataclass"
        names, reference = [field.name for field in fields(source)], schema.pop("ref", None)  # the outer schema's
        return core_schema.no_info_before_validator_function(
            lambda given: known_members(given, names), schema | {"strict": False}, ref=reference
        )


class CheckedFields:
    """Base of dataclasses that check the types and ranges of their fields at construction; raises InputError."""

    __slots__ = ()
    place: ClassVar[str]
    """The text with which error messages about fields begin, such as `link.`."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_ranges(self, InputError, self.place)


class Arrays:
    """Base of frozen dataclasses with array fields, made with eq=False: it compares and hashes their contents."""

    __slots__ = ()

    def _values(self) -> Iterator[Any]:
        return (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]  # as said

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and all(map(_are_equal, self._values(), other._values()))

    def __hash__(self) -> int:
        listed = (value for value in self._values() if not isinstance(value, tuple))  # hashing long tuples is slow
        return hash(tuple(value.tobytes() if isinstance(value, np.ndarray) else value for value in listed))


def _are_equal(one: Any, other: Any) -> bool:  # noqa: ANN401 - values of one field
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


class Bulk:
    """Base of classes that hold flat arrays, which `topo.document` reads array by array instead of through pydantic."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Make pydantic accept instances of the class only; `topo.document` builds them before it calls pydantic."""
        from pydantic_core import core_schema

        anything = core_schema.any_schema()  # a placeholder in the JSON Schema, replaced by `topo.document`
        return core_schema.json_or_python_schema(anything, core_schema.is_instance_schema(cls))


def check_ranges(value: object, error: type[InputError], place: str = "") -> None:
    """Raise an `error` beginning with `place` if a number in the dataclass instance is outside its field's range."""
    for name, least, most in _ranges(type(value)):  # type: ignore[arg-type]  # classes are hashable
        for number in _numbers(getattr(value, name)):
            if not least <= number <= most:
                sign, bound = ("<=", most) if number > most else (">=", least)
                shown = f"{bound:g}" if isinstance(bound, float) else bound
                raise error(f"{place}{name}: is {number}; it must be {sign} {shown}")


def _numbers(value: object) -> Iterator[float]:
    """Yield the numbers in a field's value: the value itself, or the items of a tuple at any depth."""
    if isinstance(value, tuple):
        for item in set(value):
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value


def take_numbers(value: JsonObject, *names: str) -> None:
    """Convert the named fields of `value` in place to exact fractions (0.7 becomes 7/10), or raise ScheduleError."""
    for name in names:
        given = getattr(value, name)
        try:
            object.__setattr__(value, name, Fraction(str(given)))
        except (ValueError, ZeroDivisionError):
            raise ScheduleError(f"{value.place}{name}: is {given!r}; it is a number such as 0.7") from None


@lru_cache
def _ranges(closed: Any) -> tuple[tuple[str, float, float], ...]:  # noqa: ANN401 - a dataclass
    """Return (name, smallest, largest) for the fields of a dataclass whose type states a numeric range."""
    found: list[tuple[str, float, float]] = []
    for name, hint in get_type_hints(closed, include_extras=True).items():
        marks = list(_marks(hint))
        lows: list[Any] = [mark.ge for mark in marks if isinstance(mark, Ge)]
        highs: list[Any] = [mark.le for mark in marks if isinstance(mark, Le)]
        if lows or highs:
            found.append((name, max(lows, default=-inf), min(highs, default=inf)))
    return tuple(found)


def _marks(hint: object) -> Iterator[object]:
    """Yield the metadata of an annotation and of all types inside it, such as members of a union or items of a list."""
    yield from getattr(hint, "__metadata__", ())
    for part in get_args(hint):
        yield from _marks(part)


@lru_cache
def _choices(closed: Any) -> tuple[tuple[str, type[Choice]], ...]:  # noqa: ANN401 - a dataclass
    """Return (name, enumeration) for the fields of a dataclass that hold a `Choice`."""
    return tuple((field.name, type(field.default)) for field in fields(closed) if isinstance(field.default, Choice))
