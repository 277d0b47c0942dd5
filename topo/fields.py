"""The ranges and the closed shapes that strategy values share: what a document may hold stands on the value itself.

`topo.document` validates straight onto these values with pydantic. The hooks below import it only then, so that a
value costs nothing to import.
"""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Le, MaxLen, MinLen

from partreduce.topo.errors import ScheduleError

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

Count = Annotated[int, Ge(1), Le(2**31 - 1)]
"""A number of things, at least one."""

Index = Annotated[int, Ge(0), Le(2**31 - 1)]
"""A rank, a local rank, a node or a digit; counted from 0."""

Title = Annotated[str, MinLen(1), MaxLen(1000)]
"""What a user calls something."""

Rounds = Annotated[int, Ge(0), Le(2**53 - 1)]
"""A number of rounds, or a seed: as large as every JSON reader keeps exactly."""


class _Exactly:
    """Documents hold it as `topo.document` holds all exact numbers: an integer or a fraction string."""

    @staticmethod
    def __get_pydantic_core_schema__(source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from partreduce.topo.document.model import Exact as InDocuments

        return handler.generate_schema(InDocuments)


Exact = Annotated[Fraction, _Exactly()]
"""A number without rounding."""


class Choice(StrEnum):
    """One word of a closed list; in documents the word itself."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let the word stand for the member, also where everything else is strict."""
        from pydantic_core import core_schema

        return core_schema.enum_schema(cls, list(cls), sub_type="str", strict=False)


class Closed:
    """A dataclass whose fields are the members of a JSON object: nothing coerced, no unknown member.

    In Python, too, the word itself may stand for a `Choice`, as in `How(codec="int8")`.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"strict": True, "extra": "forbid"}

    def __post_init__(self) -> None:
        """Take words for the members that they name.

        Raises:
            ScheduleError: a word that is not in the list.
        """
        for name, choice in _choices(type(self)):  # type: ignore[arg-type]  # classes are hashable
            value = getattr(self, name)
            if not isinstance(value, choice):
                if value not in list(choice):
                    raise ScheduleError(f"{name}: is {value!r}; it must be one of {', '.join(choice)}")
                object.__setattr__(self, name, choice(value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let an object stand for the value; its fields stay strict."""
        schema: Any = handler(source)
        assert schema["type"] == "dataclass"
        result: CoreSchema = schema | {"strict": False}
        return result


class Bulk:
    """A value of flat arrays: documents hold it in a form of its own, which `topo.document` reads array by array."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Only take values that are already built."""
        from pydantic_core import core_schema

        anything = core_schema.any_schema()  # stands for it in the JSON Schema, which `topo.document` replaces
        return core_schema.json_or_python_schema(anything, core_schema.is_instance_schema(cls))


def take_numbers(value: Closed, place: str, *names: str) -> None:
    """Make exact numbers of fields that may be given as Python writes them: 0.7 is 7/10.

    Raises:
        ScheduleError: the place and the value.
    """
    for name in names:
        given = getattr(value, name)
        try:
            object.__setattr__(value, name, Fraction(str(given)))
        except (ValueError, ZeroDivisionError):
            raise ScheduleError(f"{place}.{name}: is {given!r}; it is a number such as 0.7") from None


@lru_cache
def _choices(closed: Any) -> tuple[tuple[str, type[Choice]], ...]:  # noqa: ANN401 - a dataclass
    """The fields of a dataclass that hold one word of a list, with the list."""
    return tuple((field.name, type(field.default)) for field in fields(closed) if isinstance(field.default, Choice))
