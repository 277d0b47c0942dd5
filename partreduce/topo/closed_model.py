"""Base class and field types of the pydantic models that read documents, and one-line errors in place of pydantic's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from partreduce.topo.errors import DocumentError
from partreduce.topo.place import child, format_value
from partreduce.topo.renamed import renamed_key, renamed_value

MAX_DIGITS = 64
_DIGITS = rf"[1-9][0-9]{{0,{MAX_DIGITS - 1}}}"
PATTERN = rf"^-?(0|{_DIGITS})(/{_DIGITS})?$"
_FRACTION = re.compile(rf"(-?(?:0|{_DIGITS}))(?:/({_DIGITS}))?")


def parse_fraction(value: object) -> Fraction:
    """Read an exact number from a document: an integer or a string such as "1/3".

    Raises:
        ValueError: any other value; the caller writes the value's path and a colon before the message.
    """
    if type(value) is int:
        return Fraction(value)
    if not isinstance(value, str):
        raise ValueError(f'is {format_value(value)}; it must be exact: an integer or a fraction string such as "4/3"')  # noqa: TRY004
    match = _FRACTION.fullmatch(value)
    if match is None:
        raise ValueError(
            f'is {format_value(value)}; a fraction string is such as "4/3": at most {MAX_DIGITS} digits each, '
            "no spaces, no leading zeros, no zero below"
        )
    return Fraction(int(match[1]), int(match[2] or 1))


def dump_fraction(value: Fraction) -> int | str:
    """Return JSON of a fraction: an integer if whole and |value| < 2**53, else a string; ValueError above 64 digits."""
    if value.denominator == 1 and abs(value.numerator) < 2**53:
        return value.numerator
    if max(abs(value.numerator), value.denominator) >= 10**MAX_DIGITS:
        raise ValueError(f"is a fraction of more than {MAX_DIGITS} digits; round it with Fraction.limit_denominator")
    return str(value)


def custom_error(problem: str) -> PydanticCustomError:
    """Return an error for pydantic validators to raise; `problem` becomes the message of the final DocumentError."""
    return PydanticCustomError("refused", "{problem}", {"problem": problem})


class Model(BaseModel):
    """Base class of models of JSON objects: no type coercion and no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: object) -> object:
        return known_members(data, cls.model_fields)


def known_members(data: object, known: Iterable[str]) -> object:
    """Return `data` unchanged; raise a pydantic error if it is a dictionary with a key outside `known`."""
    for key in data if isinstance(data, dict) else ():
        if key not in known:
            raise PydanticCustomError("unknown_key", "{problem}", {"problem": unknown(key, known)})
    return data


def unknown(key: str, known: Iterable[str], word: str = "key") -> str:
    """Return the error text for an unknown `key`: its new name if it was renamed, the closest of `known`, or all.

    For an unknown value, `key` is the value, `known` the valid values and `word` the name of the member that has it.
    """
    known = list(known)
    if sentence := renamed_key(key, known) if word == "key" else renamed_value(word, key):
        return sentence
    near = get_close_matches(key[:60], known, n=1, cutoff=0.6)
    way_out = f"did you mean {format_value(near[0])}?" if near else "known: " + ", ".join(known)
    return f"has the unknown {word} {format_value(key)}; {way_out}"


def _exact(value: object) -> Fraction:
    try:
        return parse_fraction(value)
    except ValueError as error:
        raise custom_error(str(error)) from None


def _printable(value: str) -> str:
    if not value.isprintable():
        raise custom_error(f"is {format_value(value)}; a name is 1 line of printable text")
    return value


Exact = Annotated[
    Fraction,
    BeforeValidator(_exact),
    PlainSerializer(dump_fraction),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1},
                {"type": "string", "pattern": PATTERN},
            ]
        }
    ),
]
"""A fraction that JSON holds as an integer or as a string such as "1/3"."""

Item = TypeVar("Item")
Listed = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose validation stops at the first error: a file with a million errors fails as fast as a file with one."""

Name = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_printable)]

Checked = TypeVar("Checked", bound=BaseModel)
Value = TypeVar("Value")


def validate(model: type[Checked], value: object, place: str) -> Checked:
    """Return the model of a parsed JSON value at path `place`; raise DocumentError with an invalid member's path."""
    with translate_errors(value, place):
        return model.model_validate(value)


@contextmanager
def translate_errors(value: object, place: str) -> Iterator[None]:
    """Context manager: turn pydantic's ValidationError for the JSON `value` at path `place` into a DocumentError."""
    try:
        yield
    except ValidationError as error:
        raise _first_error(error.errors(include_url=False, include_context=True), value, place) from None


@lru_cache
def adapter(value: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a class of values
    """Return pydantic's TypeAdapter for the class `value`; cached, because building one is slow."""
    return TypeAdapter(value)


def read_value(kind: type[Value], raw: object, place: str) -> Value:
    """Build a `kind` from `raw`, the JSON object at path `place`; raise DocumentError with an invalid member's path."""
    with translate_errors(raw, place):
        value: Value = adapter(kind).validate_python(as_tuples(raw))  # type: ignore[arg-type]  # classes are hashable
    return value


def dump_fields(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON object of a dataclass's fields, without fields that equal their default."""
    kind: Any = type(value)
    return adapter(kind).dump_python(value, mode="json", exclude_defaults=True)


def as_tuples(value: object) -> object:
    """Return a JSON value with all lists, at any depth, replaced by tuples, which frozen dataclasses need."""
    if isinstance(value, dict):
        return {key: as_tuples(item) for key, item in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def part_of(raw: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return the members of an object that have these keys; absent keys are skipped."""
    return {key: raw[key] for key in keys if key in raw}


def _first_error(errors: list[ErrorDetails], value: object, root: str) -> DocumentError:
    # Unknown keys first: a misspelled key causes a missing one. Else the error with the longest path in the document,
    # because it lies in the branch of the union to which the document belongs.
    first = errors[0]["loc"][:1]
    unions = [error for error in errors if error["loc"][:1] == first]
    deepest = max(unions, key=lambda error: len(_walk(value, error["loc"])))
    error = next((e for e in errors if e["type"] == "unknown_key"), deepest)
    place = root
    for part in _walk(value, error["loc"]):
        place = child(place, part)
    if error["type"] in ("missing", "missing_argument"):
        return DocumentError(place or "document", f"the key {format_value(error['loc'][-1])} is missing; add it")
    return DocumentError(place or "document", _sentence(error, place))


def _walk(value: Any, location: tuple[int | str, ...]) -> list[int | str]:  # noqa: ANN401 - JSON, walked by a checked path
    """Return those parts of pydantic's error `location` that are keys or indices in the document `value`.

    Pydantic adds other parts to a location, such as names for the alternatives of a union.
    """
    path: list[int | str] = []
    for part in location:
        in_object = isinstance(value, dict) and part in value
        in_list = isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)
        if in_object or in_list:
            value = value[part]
            path.append(part)
    return path


_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "bool_type": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dataclass_type": "an object",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "float_type": "a number",
    "finite_number": "a finite number",
}

_WAYS_OUT = {
    "group": "a group has at least 2 workers; leave out who skips",
    "phases": "a static schedule has at least 1 phase",
    "rounds": "a neighbor schedule has at least 1 round",
    "local": "a block names at least 1 local rank",
}


def _sentence(error: ErrorDetails, place: str) -> str:
    kind, got, context = error["type"], format_value(error["input"]), error.get("ctx", {})
    if "problem" in context:
        return str(context["problem"])
    if kind in _EXPECTED:
        return f"is {got}; it must be {_EXPECTED[kind]}"
    for key, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        if key in context:
            return f"is {got}; it must be {sign} {context[key]}"
    if kind in ("literal_error", "enum"):
        sentence = renamed_value(place.rpartition(".")[2], error["input"])
        return sentence or f"is {got}; it must be {context['expected']}"
    if kind in ("too_short", "too_long", "string_too_short", "string_too_long"):
        short = kind.endswith("short")
        bound = context.get("min_length" if short else "max_length")
        rule = _WAYS_OUT.get(place.rpartition(".")[2]) if short else None
        most = "least" if short else "most"
        return f"is {got}, too {'short' if short else 'long'}; {rule or f'its length is at {most} {bound}'}"
    return f"is {got}: {error['msg'][:1].lower()}{error['msg'][1:]}"
